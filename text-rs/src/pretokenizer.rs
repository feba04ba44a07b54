//! The named byte-level pre-tokenizers of GGUF files (`tokenizer.ggml.pre`).
//!
//! GGUF stores only a name; the rules behind it are facts of each family's published tokenizer.json,
//! and are written here in that form, so that a GGUF tokenizer equals the tokenizer.json it came
//! from. A name that is not in the table is an error: a wrong split costs quality without a sound.

use crate::error::TextError;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::punctuation::Punctuation;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::SplitDelimiterBehavior::{Contiguous, Isolated};

#[derive(Clone, Copy)]
enum Step {
    /// Cut around every match.
    Regex(&'static str),
    /// Cut off every digit, or every run of digits.
    EachDigit,
    DigitRuns,
    PunctuationRuns,
    /// To the byte alphabet, cutting with GPT-2's own regex first.
    Gpt2Bytes,
    /// To the byte alphabet.
    Bytes,
}
use Step::*;

pub struct Rules {
    names: &'static [&'static str],
    steps: &'static [Step],
    /// A word that is a token is taken whole, whatever the merges say.
    pub ignore_merges: bool,
    pub add_bos: bool,
    /// The family's tokenizer.json composes Unicode (NFC) first; GGUF has no key for it.
    pub nfc: bool,
}

const fn rules(names: &'static [&'static str], steps: &'static [Step]) -> Rules {
    Rules { names, steps, ignore_merges: false, add_bos: false, nfc: false }
}

macro_rules! contractions { () => { r"(?i:'s|'t|'re|'ve|'m|'ll|'d)" } }
macro_rules! line_tail { () => { r"\s*[\r\n]+|\s+(?!\S)|\s+" } }
macro_rules! symbols { () => { r" ?[^\s\p{L}\p{N}]+[\r\n]*|" } }
macro_rules! upper { () => { r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]" } }
macro_rules! lower { () => { r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]" } }
macro_rules! lead { () => { r"[^\r\n\p{L}\p{N}]?" } }
macro_rules! symbols_slash { () => { r" ?[^\s\p{L}\p{N}]+[\r\n/]*|" } }

const LLAMA3: &str = concat!(
    contractions!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|", symbols!(), line_tail!());
const QWEN2: &str = concat!(
    contractions!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|", symbols!(), line_tail!());
const QWEN35: &str = concat!(
    contractions!(), r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|",
    line_tail!());
const GPT4O: &str = concat!(
    lead!(), upper!(), "*", lower!(), "+", contractions!(), "?|",
    lead!(), upper!(), "+", lower!(), "*", contractions!(), r"?|\p{N}{1,3}|",
    symbols_slash!(), line_tail!());
const TEKKEN: &str = concat!(
    lead!(), upper!(), "*", lower!(), "+|", lead!(), upper!(), "+", lower!(), r"*|\p{N}|",
    symbols_slash!(), line_tail!());
const YOUTU: &str = concat!(
    lead!(), upper!(), "*", lower!(), "+", contractions!(), "?|",
    lead!(), upper!(), "+", lower!(), "*", contractions!(), r"?|\p{N}|",
    symbols_slash!(), line_tail!());
const KIMI: &str = concat!(
    r"[\p{Han}]+|",
    lead!(), r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
    contractions!(), "?|",
    lead!(), r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
    contractions!(), r"?|\p{N}{1,3}|", symbols!(), line_tail!());
const DEEPSEEK3_WORDS: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"##,
    r" ?[\p{P}\p{S}]+[\r\n]*|", line_tail!());
const DEEPSEEK_CJK: &str = "[一-龥ࠀ-一가-퟿]+";
const JAIS2: &str = concat!(
    contractions!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|", symbols!(), r"\s*[\r\n]+|",
    r"\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|",
    r"\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}");
const BLOOM: &str = r" ?[^(\s|[.,!?…。，、।۔،])]+";
const THREES_FROM_THE_RIGHT: &str = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))";

static TABLE: &[Rules] = &[
    Rules {
        ignore_merges: true,
        add_bos: true,
        ..rules(
            &["llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0",
              "lfm2", "jina-v5-nano"],
            &[Regex(LLAMA3), Bytes])
    },
    rules(&["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"], &[Regex(LLAMA3), Bytes]),
    rules(&["jais-2"], &[Regex(JAIS2), Bytes]),
    Rules { nfc: true, ..rules(&["qwen2", "hunyuan"], &[Regex(QWEN2), Bytes]) },
    Rules { nfc: true, ..rules(&["qwen35"], &[Regex(QWEN35), Bytes]) },
    rules(
        &["deepseek-r1-qwen", "stablelm2", "megrez", "kormo", "openpangu", "f2llmv2", "grok-2",
          "solar-open"],
        &[Regex(QWEN2), Bytes]),
    rules(
        &["gpt-2", "phi-2", "jina-es", "jina-de", "jina-v1-en", "jina-v2-es", "jina-v2-de",
          "jina-v2-code", "roberta-bpe", "gigachat", "a.x-4.0", "mellum", "modern-bert", "jais",
          "trillion", "granite-docling", "exaone4"],
        &[Gpt2Bytes]),
    Rules { nfc: true, ..rules(&["mpt", "olmo"], &[Gpt2Bytes]) },
    rules(
        &["starcoder", "refact", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"],
        &[EachDigit, Gpt2Bytes]),
    Rules { nfc: true, ..rules(&["command-r"], &[EachDigit, Gpt2Bytes]) },
    rules(
        &["deepseek-llm"],
        &[Regex(r"[\r\n]"), Regex("\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"), Regex("\\s?[!-/:-~！-／：-～‘-‟　-。]+"), Regex(r"\s+$"),
          Regex(DEEPSEEK_CJK), EachDigit, Bytes]),
    rules(
        &["deepseek-coder"],
        &[Regex(r"[\r\n]"), Regex(r"\s?\p{L}+"), Regex(r"\s?\p{P}+"), Regex(DEEPSEEK_CJK),
          EachDigit, Bytes]),
    rules(
        &["deepseek-v3", "hunyuan-dense", "joyai-llm"],
        &[Regex(r"\p{N}{1,3}"), Regex("[一-龥぀-ゟ゠-ヿ]+"), Regex(DEEPSEEK3_WORDS), Bytes]),
    Rules {
        ignore_merges: true,
        ..rules(&["youtu"], &[Regex("[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"), Regex(YOUTU), Bytes])
    },
    rules(
        &["falcon"],
        &[PunctuationRuns, Gpt2Bytes, DigitRuns, Regex("[0-9][0-9][0-9]")]),
    rules(&["bloom", "poro-chat", "gpt3-finnish"], &[Regex(BLOOM), Bytes]),
    rules(&["viking"], &[Regex(BLOOM), EachDigit, Bytes]),
    Rules {
        ignore_merges: true,
        add_bos: true,
        ..rules(&["tekken"], &[Regex(TEKKEN), Bytes])
    },
    rules(
        &["gpt-4o", "o200k", "llama4", "kanana2", "talkie", "minimax-m2"],
        &[Regex(GPT4O), Bytes]),
    Rules {
        nfc: true,
        ..rules(
            &["tiny_aya", "cohere2moe"],
            &[Regex(r"\d{1,3}(?=(?:\d{3})*\b)"), Regex(GPT4O), Bytes])
    },
    rules(&["kimi-k2"], &[Regex(KIMI), Bytes]),
    rules(&["superbpe"], &[Regex(r"\p{N}+"), Regex(r"(?=(\d{3})+(?!\d))"), Bytes]),
    rules(
        &["bailingmoe", "bailingmoe2", "llada-moe"],
        &[Regex(concat!(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|",
            r"\s*[\r\n]|\s+(?!\S)|\s+")), Bytes]),
    rules(
        &["seed-coder"],
        &[Regex(concat!(
            contractions!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|",
            line_tail!())), Bytes]),
    rules(
        &["afmoe"],
        &[Regex(THREES_FROM_THE_RIGHT), Regex("[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+"), Regex(DEEPSEEK3_WORDS), Bytes]),
    rules(
        &["exaone-moe"],
        &[Regex(concat!(
            contractions!(), r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}|",
            r" ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+")), Bytes]),
    Rules {
        add_bos: true,
        ..rules(
            &["chameleon"],
            &[Regex("<sentinel:[0-9]+>"), Regex("(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z"),
              Regex(r"([\t\n]|    |  )"), EachDigit, Regex(r"[\p{P}!-/:-@\[-`{-~]"), Gpt2Bytes])
    },
    // Files of before the key existed, re-saved with the name of their own default.
    rules(
        &["default"],
        &[Regex(r"[\p{P}\$\+<=>\^~\|]+"),
          Regex(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"),
          Regex(r"\p{N}+"), Regex("[0-9][0-9][0-9]"), Bytes]),
];

pub fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().flat_map(|rules| rules.names.iter().copied())
}

pub fn find(name: &str) -> Result<&'static Rules, TextError> {
    if name.is_empty() {
        return Err(TextError::invalid(
            "tokenizer.ggml.pre is missing: the file does not say how to split text; convert the \
             model again with a current converter, or put its tokenizer.json beside it",
        ));
    }
    TABLE.iter().find(|rules| rules.names.contains(&name)).ok_or_else(|| {
        TextError::unsupported(format!("tokenizer.ggml.pre '{name}' is not known"))
    })
}

impl Rules {
    pub fn pre_tokenizer(&self) -> Result<PreTokenizerWrapper, TextError> {
        let steps = self.steps.iter().map(build).collect::<Result<Vec<_>, _>>()?;
        Ok(Sequence::new(steps).into())
    }
}

fn build(step: &Step) -> Result<PreTokenizerWrapper, TextError> {
    Ok(match *step {
        Regex(pattern) => Split::new(SplitPattern::Regex(pattern.to_owned()), Isolated, false)
            .map_err(|e| TextError::invalid(format!("pre-tokenizer regex '{pattern}': {e}")))?
            .into(),
        EachDigit => Digits::new(true).into(),
        DigitRuns => Digits::new(false).into(),
        PunctuationRuns => Punctuation::new(Contiguous).into(),
        Gpt2Bytes => ByteLevel::new(false, true, true).into(),
        Bytes => ByteLevel::new(false, true, false).into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_rule_builds_and_no_name_is_listed_twice() {
        let mut seen = HashSet::new();
        for name in names() {
            assert!(seen.insert(name), "{name}");
            find(name).unwrap().pre_tokenizer().unwrap();
        }
    }
}
