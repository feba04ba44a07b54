//! Decoding as a table: each token's bytes, so that a sequence decodes to their concatenation.
//!
//! The library decodes a whole list of strings, and some of its decoders look across tokens: a
//! Metaspace decoder drops every blank of the first token, byte fallback turns a whole run into
//! replacement characters when its end is not complete yet. A stream cannot be cut out of that.
//! Here the same settings are read as rules for one token at a time plus "drop one leading blank".

use serde_json::Value;
use tokenizers::Tokenizer;

pub struct DecodePlan {
    byte_level: bool,
    /// Texts replaced inside a token, in order.
    replacements: Vec<(String, String)>,
    pub byte_fallback: bool,
    pub leading_blank: u8,
    pub blank_only_if_absent: bool,
}

impl DecodePlan {
    /// None if the decoder is one that a table cannot express (WordPiece, CTC, ...).
    pub fn of(tokenizer: &Tokenizer) -> Option<DecodePlan> {
        let decoder = serde_json::to_value(tokenizer.get_decoder()?).ok()?;
        let mut plan = DecodePlan {
            byte_level: false,
            replacements: Vec::new(),
            byte_fallback: false,
            leading_blank: 0,
            blank_only_if_absent: false,
        };
        let steps = match decoder["type"].as_str()? {
            "Sequence" => decoder["decoders"].as_array()?.clone(),
            _ => vec![decoder],
        };
        let mut fused = false;
        for step in &steps {
            plan.add(step, &mut fused)?;
        }
        let metaspace = tokenizer
            .get_pre_tokenizer()
            .and_then(|p| serde_json::to_value(p).ok())
            .is_some_and(|p| mentions_type(&p, "Metaspace"));
        plan.blank_only_if_absent = metaspace && plan.leading_blank > 0;
        Some(plan)
    }

    fn add(&mut self, step: &Value, fused: &mut bool) -> Option<()> {
        match step["type"].as_str()? {
            "ByteLevel" if !*fused && self.replacements.is_empty() => self.byte_level = true,
            "Replace" if !*fused => {
                let from = step["pattern"]["String"].as_str()?;
                let to = step["content"].as_str()?;
                self.replacements.push((from.to_owned(), to.to_owned()));
            }
            "ByteFallback" if !*fused => self.byte_fallback = true,
            "Fuse" => *fused = true,
            "Strip" => {
                let blank = step["content"].as_str()? == " ";
                let (start, stop) = (step["start"].as_u64()?, step["stop"].as_u64()?);
                if !blank || !*fused || start > 1 || stop > 0 {
                    return None;
                }
                self.leading_blank = start as u8;
            }
            "Metaspace" => {
                let mark = step["replacement"].as_str()?;
                self.replacements.push((mark.to_owned(), " ".to_owned()));
                if step["prepend_scheme"].as_str()? != "never" {
                    self.leading_blank = 1;
                }
            }
            _ => return None,
        }
        Some(())
    }

    pub fn append_piece(&self, token: &str, out: &mut Vec<u8>) {
        if self.byte_level {
            let start = out.len();
            for c in token.chars() {
                match byte_level_byte(c) {
                    Some(byte) => out.push(byte),
                    None => {
                        // A token with a character outside the byte alphabet stands for itself.
                        out.truncate(start);
                        out.extend_from_slice(token.as_bytes());
                        return;
                    }
                }
            }
            return;
        }
        let replaced = self
            .replacements
            .iter()
            .fold(token.to_owned(), |text, (from, to)| text.replace(from.as_str(), to));
        match Self::byte_of(&replaced) {
            Some(byte) if self.byte_fallback => out.push(byte),
            _ => out.extend_from_slice(replaced.as_bytes()),
        }
    }

    /// The byte of a token such as `<0x0A>`.
    pub fn byte_of(token: &str) -> Option<u8> {
        let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
        if hex.len() != 2 {
            return None;
        }
        u8::from_str_radix(hex, 16).ok()
    }
}

fn mentions_type(value: &Value, name: &str) -> bool {
    match value {
        Value::Object(map) => {
            map.get("type").and_then(Value::as_str) == Some(name)
                || map.values().any(|v| mentions_type(v, name))
        }
        Value::Array(list) => list.iter().any(|v| mentions_type(v, name)),
        _ => false,
    }
}

/// The byte-level alphabet writes printable Latin-1 bytes as themselves and the other 68 bytes, in
/// order, as the characters from U+0100 on.
fn byte_level_byte(c: char) -> Option<u8> {
    let code = c as u32;
    let printable = |b: u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if code < 0x100 {
        return printable(code).then_some(code as u8);
    }
    match code - 0x100 {
        n @ 0..=32 => Some(n as u8),                   // 0x00..=0x20
        n @ 33..=66 => Some((n - 33 + 0x7f) as u8),    // 0x7f..=0xa0
        67 => Some(0xad),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn byte_alphabet_is_a_bijection_onto_the_librarys() {
        let alphabet = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
        let bytes: HashSet<u8> = alphabet.iter().filter_map(|&c| byte_level_byte(c)).collect();
        assert_eq!(alphabet.len(), 256);
        assert_eq!(bytes.len(), 256);
        assert_eq!(byte_level_byte('Ġ'), Some(b' '));
        assert_eq!(byte_level_byte('Ċ'), Some(b'\n'));
        assert_eq!(byte_level_byte(' '), None);
    }
}
