//! Builds the library's tokenizer from the `tokenizer.ggml.*` keys of a GGUF file, shaped as the
//! tokenizer.json of the same model would be.

use crate::error::TextError;
use crate::ffi::GgufVocab;
use crate::pretokenizer;
use crate::tokenizer::TokenizerCore;
use std::collections::HashMap;
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as DecoderSequence;
use tokenizers::decoders::strip::Strip as StripDecoder;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::models::bpe::BPE;
use tokenizers::models::unigram::Unigram;
use tokenizers::models::ModelWrapper;
use tokenizers::normalizers::{
    Precompiled, Prepend, Replace, Sequence as NormalizerSequence, Strip, NFC,
};
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, NormalizerWrapper, SplitDelimiterBehavior, Tokenizer};

pub const TYPE_UNKNOWN: i32 = 2;
pub const TYPE_CONTROL: i32 = 3;
pub const TYPE_USER_DEFINED: i32 = 4;
pub const TYPE_UNUSED: i32 = 5;
pub const TYPE_BYTE: i32 = 6;

const BLANK: &str = "\u{2581}"; // SentencePiece's visible blank

type Merges = Vec<(String, String)>;

pub fn build(vocab: GgufVocab) -> Result<TokenizerCore, TextError> {
    check(&vocab)?;
    let tokenizer = match vocab.model.as_str() {
        "gpt2" => byte_level_bpe(&vocab)?,
        "llama" => sentencepiece_bpe(&vocab)?,
        "gemma4" => raw_bpe(&vocab)?,
        "t5" => unigram(&vocab)?,
        other => {
            return Err(TextError::unsupported(format!(
                "tokenizer.ggml.model '{other}' is not supported (gpt2, llama, gemma4, t5 are)"
            )))
        }
    };
    let types = vocab.token_types;
    let listed = vocab
        .tokens
        .into_iter()
        .enumerate()
        .map(|(i, text)| (text, types.get(i).copied().unwrap_or(1)))
        .collect();
    Ok(TokenizerCore::new(tokenizer, Some(listed)))
}

fn check(vocab: &GgufVocab) -> Result<(), TextError> {
    let count = vocab.tokens.len();
    if count == 0 {
        return Err(TextError::invalid("tokenizer.ggml.tokens is missing or empty"));
    }
    for (name, len) in [("token_type", vocab.token_types.len()), ("scores", vocab.scores.len())] {
        if len != 0 && len != count {
            return Err(TextError::invalid(format!(
                "tokenizer.ggml.{name} has {len} entries for {count} tokens"
            )));
        }
    }
    for (name, id) in [("bos", vocab.bos), ("eos", vocab.eos), ("unknown", vocab.unk)] {
        if id < -1 || id >= count as i64 {
            return Err(TextError::invalid(format!(
                "tokenizer.ggml.{name}_token_id is {id}, but there are {count} tokens"
            )));
        }
    }
    Ok(())
}

fn library(what: &str) -> impl Fn(tokenizers::Error) -> TextError + '_ {
    move |e| TextError::invalid(format!("GGUF tokenizer: {what}: {e}"))
}

impl GgufVocab {
    fn kind(&self, id: usize) -> i32 {
        self.token_types.get(id).copied().unwrap_or(1)
    }

    fn flag(value: i8, default: bool) -> bool {
        if value < 0 { default } else { value != 0 }
    }

    fn ids(&self) -> HashMap<String, u32> {
        // Of two tokens with one text the later wins, as in every GGUF reader.
        self.tokens.iter().enumerate().map(|(id, text)| (text.clone(), id as u32)).collect()
    }

    fn unk_token(&self) -> Option<String> {
        (self.unk >= 0).then(|| self.tokens[self.unk as usize].clone())
    }
}

fn byte_level_bpe(vocab: &GgufVocab) -> Result<Tokenizer, TextError> {
    let rules = pretokenizer::find(&vocab.pre)?;
    let merges = if vocab.merges.is_empty() && vocab.pre == "kimi-k2" {
        // The source has ranks instead of merges: a token's rank is its id.
        merges_by_score(vocab, |id| -(id as f64))
    } else {
        listed_merges(vocab)?
    };
    let model = BPE::builder()
        .vocab_and_merges(vocab.ids().into_iter().collect::<ahash::AHashMap<_, _>>(), merges)
        .ignore_merges(rules.ignore_merges)
        .build()
        .map_err(library("merges"))?;
    let mut tokenizer = Tokenizer::new(ModelWrapper::from(model));
    if rules.nfc {
        tokenizer.with_normalizer(Some(NFC)).map_err(library("normalizer"))?;
    }
    tokenizer.with_pre_tokenizer(Some(rules.pre_tokenizer()?));
    tokenizer.with_decoder(Some(ByteLevel::new(true, true, true)));
    finish(tokenizer, vocab, rules.add_bos, false)
}

/// SentencePiece BPE: merges follow from the scores, blanks are visible, unknown text becomes bytes.
fn sentencepiece_bpe(vocab: &GgufVocab) -> Result<Tokenizer, TextError> {
    if vocab.scores.is_empty() {
        return Err(TextError::invalid("tokenizer.ggml.scores is missing for model 'llama'"));
    }
    let merges = merges_by_score(vocab, |id| f64::from(vocab.scores[id]));
    let mut tokenizer = Tokenizer::new(blank_bpe(vocab, merges)?);
    let prefix = GgufVocab::flag(vocab.add_space_prefix, true);
    let mut steps: Vec<NormalizerWrapper> = Vec::new();
    if prefix {
        steps.push(Prepend::new(BLANK.to_owned()).into());
    }
    steps.push(Replace::new(" ", BLANK).map_err(library("normalizer"))?.into());
    tokenizer
        .with_normalizer(Some(NormalizerSequence::new(steps)))
        .map_err(library("normalizer"))?;
    tokenizer.with_decoder(Some(blank_decoder(prefix)?));
    finish(tokenizer, vocab, true, false)
}

/// Listed merges over plain text with visible blanks (Gemma 4).
fn raw_bpe(vocab: &GgufVocab) -> Result<Tokenizer, TextError> {
    let mut tokenizer = Tokenizer::new(blank_bpe(vocab, listed_merges(vocab)?)?);
    let normalizer = Replace::new(" ", BLANK).map_err(library("normalizer"))?;
    tokenizer.with_normalizer(Some(normalizer)).map_err(library("normalizer"))?;
    let split = Split::new(
        SplitPattern::String(" ".to_owned()),
        SplitDelimiterBehavior::MergedWithPrevious,
        false,
    )
    .map_err(library("pre-tokenizer"))?;
    tokenizer.with_pre_tokenizer(Some(split));
    tokenizer.with_decoder(Some(blank_decoder(false)?));
    finish(tokenizer, vocab, true, false)
}

fn blank_bpe(vocab: &GgufVocab, merges: Merges) -> Result<ModelWrapper, TextError> {
    let has_bytes = (0..vocab.tokens.len()).any(|id| vocab.kind(id) == TYPE_BYTE);
    let mut builder = BPE::builder()
        .vocab_and_merges(vocab.ids().into_iter().collect::<ahash::AHashMap<_, _>>(), merges)
        .fuse_unk(true)
        .byte_fallback(has_bytes);
    if let Some(unk) = vocab.unk_token() {
        builder = builder.unk_token(unk);
    }
    Ok(ModelWrapper::from(builder.build().map_err(library("merges"))?))
}

fn blank_decoder(drop_leading: bool) -> Result<DecoderWrapper, TextError> {
    let mut steps: Vec<DecoderWrapper> = vec![
        Replace::new(BLANK, " ").map_err(library("decoder"))?.into(),
        ByteFallback::new().into(),
        Fuse::new().into(),
    ];
    if drop_leading {
        steps.push(StripDecoder::new(' ', 1, 0).into());
    }
    Ok(DecoderSequence::new(steps).into())
}

fn unigram(vocab: &GgufVocab) -> Result<Tokenizer, TextError> {
    if vocab.scores.is_empty() {
        return Err(TextError::invalid("tokenizer.ggml.scores is missing for model 't5'"));
    }
    let has_bytes = (0..vocab.tokens.len()).any(|id| vocab.kind(id) == TYPE_BYTE);
    let pieces = vocab
        .tokens
        .iter()
        .zip(&vocab.scores)
        .map(|(text, &score)| (text.clone(), f64::from(score)))
        .collect();
    let unk = (vocab.unk >= 0).then_some(vocab.unk as usize);
    let model = Unigram::from(pieces, unk, has_bytes)
        .map_err(|e| TextError::invalid(format!("GGUF tokenizer: unigram: {e}")))?;
    let mut tokenizer = Tokenizer::new(ModelWrapper::from(model));
    let mut steps: Vec<NormalizerWrapper> = Vec::new();
    if !vocab.charsmap.is_empty() {
        let map = Precompiled::from(&vocab.charsmap).map_err(|e| {
            TextError::invalid(format!("tokenizer.ggml.precompiled_charsmap: {e}"))
        })?;
        steps.push(map.into());
    }
    if GgufVocab::flag(vocab.remove_extra_whitespaces, false) {
        let runs = tokenizers::normalizers::replace::ReplacePattern::Regex(" {2,}".to_owned());
        steps.push(Strip::new(true, true).into());
        steps.push(Replace::new(runs, " ").map_err(library("normalizer"))?.into());
    }
    if !steps.is_empty() {
        tokenizer
            .with_normalizer(Some(NormalizerSequence::new(steps)))
            .map_err(library("normalizer"))?;
    }
    let prefix = GgufVocab::flag(vocab.add_space_prefix, true);
    let scheme = if prefix { PrependScheme::Always } else { PrependScheme::Never };
    tokenizer.with_pre_tokenizer(Some(Metaspace::new('\u{2581}', scheme, true)));
    if has_bytes {
        tokenizer.with_decoder(Some(blank_decoder(prefix)?));
    } else {
        tokenizer.with_decoder(Some(Metaspace::new('\u{2581}', scheme, true)));
    }
    finish(tokenizer, vocab, false, true)
}

fn listed_merges(vocab: &GgufVocab) -> Result<Merges, TextError> {
    if vocab.merges.is_empty() {
        return Err(TextError::invalid("tokenizer.ggml.merges is missing"));
    }
    let split = |(i, merge): (usize, &String)| {
        // A token can itself begin with a blank (gemma4), so the first character never separates.
        let first = merge.chars().next().map_or(0, char::len_utf8);
        merge[first..]
            .find(' ')
            .map(|at| (merge[..first + at].to_owned(), merge[first + at + 1..].to_owned()))
            .ok_or_else(|| {
                TextError::invalid(format!("tokenizer.ggml.merges[{i}] '{merge}' is not a pair"))
            })
    };
    let ids = vocab.ids().into_iter().collect::<ahash::AHashMap<_, _>>();
    // A merge whose parts or result are no tokens can never take part in an encoding; the reference
    // passes over it, where the library would refuse the whole vocabulary.
    let possible = |pair: &Result<(String, String), TextError>| match pair {
        Ok((l, r)) => ids.contains_key(l) && ids.contains_key(r) && ids.contains_key(&format!("{l}{r}")),
        Err(_) => true,
    };
    vocab.merges.iter().enumerate().map(split).filter(possible).collect()
}

/// Every way to make a token from two others, best score first: what SentencePiece does implicitly.
fn merges_by_score(vocab: &GgufVocab, score: impl Fn(usize) -> f64) -> Merges {
    let mergeable = |id: usize| {
        !matches!(vocab.kind(id), TYPE_UNKNOWN | TYPE_CONTROL | TYPE_BYTE)
    };
    let ids: ahash::AHashMap<&str, u32> = vocab
        .tokens
        .iter()
        .enumerate()
        .filter(|(id, _)| mergeable(*id))
        .map(|(id, text)| (text.as_str(), id as u32))
        .collect();
    let mut merges: Vec<(f64, &str, &str, u32, u32)> = Vec::new();
    for (id, text) in vocab.tokens.iter().enumerate() {
        if !mergeable(id) {
            continue;
        }
        for (at, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(at);
            if let (Some(&l), Some(&r)) = (ids.get(left), ids.get(right)) {
                merges.push((score(id), left, right, l, r));
            }
        }
    }
    // Ties are broken as the converters to tokenizer.json break them: longer left half, longer
    // right half, then the lower ids.
    let length = |text: &str| text.chars().count();
    merges.sort_by(|a, b| {
        b.0.total_cmp(&a.0)
            .then_with(|| length(b.1).cmp(&length(a.1)))
            .then_with(|| length(b.2).cmp(&length(a.2)))
            .then_with(|| (a.3, a.4).cmp(&(b.3, b.4)))
    });
    merges.into_iter().map(|(_, l, r, _, _)| (l.to_owned(), r.to_owned())).collect()
}

/// Added tokens and the frame of BOS and EOS.
fn finish(
    mut tokenizer: Tokenizer,
    vocab: &GgufVocab,
    default_bos: bool,
    default_eos: bool,
) -> Result<Tokenizer, TextError> {
    let mut added = Vec::new();
    for (id, text) in vocab.tokens.iter().enumerate() {
        let special = match vocab.kind(id) {
            TYPE_CONTROL | TYPE_UNKNOWN => true,
            TYPE_USER_DEFINED => false,
            _ => continue,
        };
        let keeps_blanks = matches!(text.as_str(), "<unk>" | "<s>" | "<|endoftext|>");
        added.push(
            AddedToken::from(text.clone(), special)
                .normalized(false)
                .rstrip(vocab.strip_after_control && special && !keeps_blanks),
        );
    }
    tokenizer.add_tokens(added).map_err(library("added tokens"))?;

    let mut template = Vec::new();
    let mut named = Vec::new();
    let mut put = |id: i64, key: &str, flag: i8, default: bool| -> Result<(), TextError> {
        if !GgufVocab::flag(flag, default && id >= 0) {
            return Ok(());
        }
        if id < 0 {
            return Err(TextError::invalid(format!(
                "tokenizer.ggml.add_{key}_token is set, but there is no {key}_token_id"
            )));
        }
        // The frame is written in ids; its names only need to differ from each other.
        template.push(format!("<{key}>"));
        named.push((format!("<{key}>"), id as u32));
        Ok(())
    };
    put(vocab.bos, "bos", vocab.add_bos, default_bos)?;
    put(vocab.eos, "eos", vocab.add_eos, default_eos)?;
    if !named.is_empty() {
        let mut single: Vec<String> =
            template.iter().filter(|name| *name == "<bos>").cloned().collect();
        single.push("$A".to_owned());
        single.extend(template.iter().filter(|name| *name == "<eos>").cloned());
        let frame = TemplateProcessing::builder()
            .try_single(single)
            .map_err(|e| TextError::invalid(format!("GGUF tokenizer: frame: {e}")))?
            .special_tokens(named)
            .build()
            .map_err(|e| TextError::invalid(format!("GGUF tokenizer: frame: {e}")))?;
        tokenizer.with_post_processor(Some(frame));
    }
    Ok(tokenizer)
}
