//! The Rust half of `src/text`: the field's reference libraries for tokenizing and for chat
//! templates, behind one C++ bridge.
//!
//! Rules of this border: every function that can fail returns `Result`, and a panic inside a library
//! becomes an error too, so nothing unwinds into C++. Constrained output (llguidance) will be one
//! more module with one more opaque type here.

mod decode;
mod error;
mod gguf;
mod messages;
mod pretokenizer;
mod python;
mod source;
mod template;
mod tokenizer;

use error::guard;
use template::ChatTemplateCore;
use tokenizer::TokenizerCore;

#[cxx::bridge(namespace = "millrace::text::bridge")]
mod ffi {
    /// The `tokenizer.ggml.*` keys. Absent ids are -1; absent flags are -1, else 0 or 1.
    struct GgufVocab {
        model: String,
        pre: String,
        tokens: Vec<String>,
        scores: Vec<f32>,
        token_types: Vec<i32>,
        merges: Vec<String>,
        charsmap: Vec<u8>,
        bos: i64,
        eos: i64,
        unk: i64,
        add_bos: i8,
        add_eos: i8,
        add_space_prefix: i8,
        remove_extra_whitespaces: i8,
        strip_after_control: bool,
    }

    /// What to do with text that spells a control token.
    #[derive(Debug)]
    enum ControlText {
        Parse,
        Literal,
        /// Literal where the text is marked (see `tokenizer::MARK`), parsed elsewhere.
        LiteralWhereMarked,
    }

    /// What C++ needs to know about every id, so that decoding never crosses the bridge.
    /// Entry i of a list is `data[ends[i - 1]..ends[i]]`.
    struct TokenTable {
        texts: Vec<u8>,
        text_ends: Vec<u64>,
        pieces: Vec<u8>,
        piece_ends: Vec<u64>,
        flags: Vec<u8>,
        /// Pieces are exact: decoding is their concatenation. Otherwise the library must decode.
        exact: bool,
        /// How many leading blanks encoding added, so that decoding drops them: 0 or 1.
        leading_blank: u8,
        /// Encoding adds that blank only where the text does not begin with one.
        blank_only_if_absent: bool,
    }

    extern "Rust" {
        type TokenizerCore;
        fn tokenizer_from_json(json: &[u8]) -> Result<Box<TokenizerCore>>;
        fn tokenizer_from_gguf(vocab: GgufVocab) -> Result<Box<TokenizerCore>>;
        fn encode(
            self: &TokenizerCore,
            text: &[u8],
            add_special: bool,
            control: ControlText,
        ) -> Result<Vec<u32>>;
        fn decode(self: &TokenizerCore, ids: &[u32], skip_special: bool) -> Result<String>;
        fn token_to_id(self: &TokenizerCore, token: &str) -> Result<i64>;
        fn table(self: &TokenizerCore) -> Result<TokenTable>;
        fn known_pre_tokenizers() -> Vec<String>;

        type ChatTemplateCore;
        fn chat_template_compile(source: &[u8]) -> Result<Box<ChatTemplateCore>>;
        /// Inputs are JSON; `tools` and `extra` may be empty. `now` is in Unix seconds, `i64::MIN`
        /// for the system's clock.
        fn render(
            self: &ChatTemplateCore,
            messages: &[u8],
            tools: &[u8],
            extra: &[u8],
            add_generation_prompt: bool,
            now: i64,
        ) -> Result<String>;
        fn capabilities(self: &ChatTemplateCore) -> u8;
    }
}

fn tokenizer_from_json(json: &[u8]) -> Result<Box<TokenizerCore>, error::TextError> {
    guard("tokenizer.json", || TokenizerCore::from_json(json).map(Box::new))
}

fn tokenizer_from_gguf(vocab: ffi::GgufVocab) -> Result<Box<TokenizerCore>, error::TextError> {
    guard("GGUF tokenizer", || gguf::build(vocab).map(Box::new))
}

fn known_pre_tokenizers() -> Vec<String> {
    pretokenizer::names().map(str::to_owned).collect()
}

fn chat_template_compile(source: &[u8]) -> Result<Box<ChatTemplateCore>, error::TextError> {
    guard("chat template", || ChatTemplateCore::compile(source).map(Box::new))
}
