//! Rewrites of a template's source that the engine needs before it can compile it.
//!
//! `{% generation %}` marks the assistant's part for training in transformers. For rendering it is a
//! block without effect, so it becomes `{% if true %}`, with its whitespace marks kept.

/// Replaces the tags `generation` and `endgeneration`, leaving text, expressions, comments and raw
/// blocks as they are.
pub fn replace_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find('{') {
        let tail = &rest[at..];
        let length = match tail.as_bytes().get(1) {
            Some(b'%') => tag_length(tail, "%}"),
            Some(b'{') => tag_length(tail, "}}"),
            Some(b'#') => tail.find("#}").map(|end| end + 2),
            _ => Some(1),
        };
        let Some(length) = length else { break }; // unclosed: the compiler will say so
        out.push_str(&rest[..at]);
        let mut tag = &tail[..length];
        rest = &tail[length..];
        if tag.starts_with("{%") {
            if tag_word(tag) == "raw" {
                let end = raw_length(rest);
                out.push_str(tag);
                tag = &rest[..end];
                rest = &rest[end..];
            } else if let Some(replaced) = replaced_tag(tag) {
                out.push_str(&replaced);
                continue;
            }
        }
        out.push_str(tag);
    }
    out.push_str(rest);
    out
}

fn tag_body(tag: &str) -> &str {
    tag[2..tag.len() - 2].trim_matches(|c| c == '-' || c == '+').trim()
}

fn tag_word(tag: &str) -> &str {
    let body = tag_body(tag);
    body.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or("")
}

fn replaced_tag(tag: &str) -> Option<String> {
    let body = tag_body(tag);
    let statement = match body {
        "generation" => "if true",
        "endgeneration" => "endif",
        _ => return None,
    };
    Some(tag.replacen(body, statement, 1))
}

/// The length of `{% ... %}` or `{{ ... }}`; closing marks inside strings do not count.
fn tag_length(text: &str, close: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut quote = None;
    let mut i = 2;
    while i < bytes.len() {
        match (quote, bytes[i]) {
            (Some(_), b'\\') => i += 1,
            (Some(q), c) if q == c => quote = None,
            (Some(_), _) => {}
            (None, c @ (b'"' | b'\'')) => quote = Some(c),
            (None, _) if bytes[i..].starts_with(close.as_bytes()) => return Some(i + 2),
            _ => {}
        }
        i += 1;
    }
    None
}

/// The length of a raw block's content, up to its `{% endraw %}` (which is left to be copied).
fn raw_length(text: &str) -> usize {
    let mut from = 0;
    while let Some(at) = text[from..].find("{%") {
        let start = from + at;
        if let Some(length) = text[start..].find("%}") {
            if length >= 2 && tag_body(&text[start..start + length + 2]) == "endraw" {
                return start;
            }
        }
        from = start + 2;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::replace_generation_tags as replaced;

    #[test]
    fn only_the_tags_change() {
        assert_eq!(
            replaced("a{%- generation -%}x{% endgeneration +%}b"),
            "a{%- if true -%}x{% endif +%}b"
        );
        for same in [
            "{{ '{% generation %}' }}",
            "{# {% generation %} #}",
            "{% raw %}{% generation %}{% endraw %}",
            "{% set generation = 1 %}{{ generation }}",
            "{% if x == '%} {% generation %}' %}{% endif %}",
            "plain { text",
            "{% generation",
        ] {
            assert_eq!(replaced(same), same);
        }
    }
}
