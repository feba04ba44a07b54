//! A loaded tokenizer: the library's object plus what it does not offer: encoding text with its
//! control tokens taken literally, without locking, and a table from which C++ decodes by itself.

use crate::decode::DecodePlan;
use crate::error::{guard, TextError};
use crate::ffi::{ControlText, TokenTable};
use tokenizers::{
    AddedVocabulary, Model, OffsetType, PreTokenizer, Tokenizer,
};

pub const FLAG_PRESENT: u8 = 1;
pub const FLAG_SPECIAL: u8 = 2;
pub const FLAG_ADDED: u8 = 4;
pub const FLAG_BYTE: u8 = 8;
pub const FLAG_UNUSED: u8 = 16;

/// A Unicode noncharacter. Put inside the spelling of a control token, it keeps the spelling from
/// being parsed as that token.
pub const MARK: char = '\u{fdd0}';

pub struct TokenizerCore {
    inner: Tokenizer,
    /// The same added tokens, set to leave control tokens in the text alone.
    literal: AddedVocabulary,
    /// Every token's text and GGUF type, where the source names them by id (GGUF).
    listed: Option<Vec<(String, i32)>>,
}

impl TokenizerCore {
    pub fn from_json(json: &[u8]) -> Result<Self, TextError> {
        let mut inner = Tokenizer::from_bytes(json)
            .map_err(|e| TextError::invalid(format!("tokenizer.json: {e}")))?;
        // Some published files carry the truncation and padding of their training run.
        inner
            .with_truncation(None)
            .map_err(|e| TextError::invalid(format!("tokenizer.json: {e}")))?;
        inner.with_padding(None);
        Ok(Self::new(inner, None))
    }

    pub fn new(inner: Tokenizer, listed: Option<Vec<(String, i32)>>) -> Self {
        let mut literal = inner.get_added_vocabulary().clone();
        literal.set_encode_special_tokens(true);
        TokenizerCore { inner, literal, listed }
    }

    pub fn encode(
        &self,
        text: &[u8],
        add_special: bool,
        control: ControlText,
    ) -> Result<Vec<u32>, TextError> {
        let text = std::str::from_utf8(text).map_err(|e| {
            TextError::invalid(format!("text is not UTF-8 at byte {}", e.valid_up_to()))
        })?;
        guard("encode", || {
            let encoding = match control {
                ControlText::Literal => self.encode_with(&self.literal, text, add_special),
                ControlText::LiteralWhereMarked if text.contains(MARK) => {
                    self.encode_with(self.inner.get_added_vocabulary(), text, add_special)
                }
                _ => self.inner.encode_fast(text, add_special),
            };
            let encoding = encoding.map_err(|e| TextError::invalid(format!("encode: {e}")))?;
            Ok(encoding.get_ids().to_vec())
        })
    }

    /// The library's own pipeline, step by step: marks have done their work once the added tokens
    /// are cut out, and must not reach the model.
    fn encode_with(
        &self,
        added: &AddedVocabulary,
        text: &str,
        add_special: bool,
    ) -> tokenizers::Result<tokenizers::Encoding> {
        let mut pieces = added.extract_and_normalize(self.inner.get_normalizer(), text);
        if text.contains(MARK) {
            pieces.normalize(|piece| {
                piece.filter(|c| c != MARK);
                Ok(())
            })?;
        }
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces)?;
        }
        let model = self.inner.get_model();
        pieces.tokenize(|piece| model.tokenize(piece.get()))?;
        let encoding = pieces.into_encoding(None, 0, OffsetType::None)?;
        self.inner.post_process(encoding, None, add_special)
    }

    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, TextError> {
        guard("decode", || {
            self.inner
                .decode(ids, skip_special)
                .map_err(|e| TextError::invalid(format!("decode: {e}")))
        })
    }

    pub fn token_to_id(&self, token: &str) -> Result<i64, TextError> {
        guard("token_to_id", || Ok(self.inner.token_to_id(token).map_or(-1, i64::from)))
    }

    pub fn table(&self) -> Result<TokenTable, TextError> {
        guard("token table", || Ok(self.build_table()))
    }

    fn build_table(&self) -> TokenTable {
        let texts = self.texts_by_id();
        let added = self.inner.get_added_vocabulary();
        let plan = DecodePlan::of(&self.inner);
        let mut table = TokenTable {
            texts: Vec::new(),
            text_ends: Vec::with_capacity(texts.len()),
            pieces: Vec::new(),
            piece_ends: Vec::with_capacity(texts.len()),
            flags: Vec::with_capacity(texts.len()),
            exact: plan.is_some(),
            leading_blank: plan.as_ref().map_or(0, |p| p.leading_blank),
            blank_only_if_absent: plan.as_ref().is_some_and(|p| p.blank_only_if_absent),
        };
        let byte_fallback = plan.as_ref().is_some_and(|p| p.byte_fallback);
        for (id, text) in texts.iter().enumerate() {
            let mut flags = 0;
            if let Some(text) = text {
                flags |= FLAG_PRESENT;
                // Decoding sees the normalized form of an added token, matching does not.
                let seen = added.simple_id_to_token(id as u32);
                if seen.is_some() {
                    flags |= FLAG_ADDED;
                }
                let seen = seen.as_deref().unwrap_or(text);
                if added.is_special_token(seen) {
                    flags |= FLAG_SPECIAL;
                }
                if byte_fallback && DecodePlan::byte_of(seen).is_some() {
                    flags |= FLAG_BYTE;
                }
                if let Some(plan) = &plan {
                    plan.append_piece(seen, &mut table.pieces);
                }
                table.texts.extend_from_slice(text.as_bytes());
            }
            if let Some(listed) = &self.listed {
                if listed[id].1 == crate::gguf::TYPE_UNUSED {
                    flags |= FLAG_UNUSED;
                }
            }
            table.text_ends.push(table.texts.len() as u64);
            table.piece_ends.push(table.pieces.len() as u64);
            table.flags.push(flags);
        }
        table
    }

    fn texts_by_id(&self) -> Vec<Option<String>> {
        if let Some(listed) = &self.listed {
            return listed.iter().map(|(text, _)| Some(text.clone())).collect();
        }
        let vocab = self.inner.get_vocab(true);
        // A hostile file can give a token a huge id; the table must not grow with it.
        let limit = vocab.len().saturating_mul(4).saturating_add(1 << 16);
        let size = vocab
            .values()
            .map(|&id| id as usize + 1)
            .filter(|&n| n <= limit)
            .max()
            .unwrap_or(0);
        let mut texts = vec![None; size];
        for (text, id) in vocab {
            if let Some(slot) = texts.get_mut(id as usize) {
                *slot = Some(text);
            }
        }
        for (id, token) in self.inner.get_added_tokens_decoder() {
            if let Some(slot) = texts.get_mut(id as usize) {
                *slot = Some(token.content);
            }
        }
        texts
    }
}
