//! What Python does to values: `json.dumps`, `str`, `range`, `strftime`. Chat templates were written
//! against these, and a model notices when a tool schema is spelled differently.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, Value};
use std::cell::Cell;
use std::fmt::Write;

fn fault(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// A JSON document as template values, in its own order.
pub fn from_json(json: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match json {
        Json::Null => Value::from(()),
        Json::Bool(v) => Value::from(*v),
        Json::Number(v) => match (v.as_i64(), v.as_u64()) {
            (Some(v), _) => Value::from(v),
            (_, Some(v)) => Value::from(v),
            _ => Value::from(v.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(v) => Value::from(v.as_str()),
        Json::Array(v) => v.iter().map(from_json).collect(),
        Json::Object(v) => Value::from_pairs(v.iter().map(|(k, v)| (k.as_str(), from_json(v)))),
    }
}

/// Python's `repr(float)`.
pub fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf".into() } else { "-inf".into() };
    }
    // Rust's Debug switches to exponents where Python does, but spells them without sign and padding.
    let text = format!("{value:?}");
    match text.split_once('e') {
        None => text,
        Some((mantissa, exponent)) => {
            let exponent: i32 = exponent.parse().unwrap_or(0);
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{}e{sign}{:02}", mantissa.trim_end_matches(".0"), exponent.abs())
        }
    }
}

fn as_float(value: &Value) -> Option<f64> {
    if value.kind() == ValueKind::Number && !value.is_integer() {
        return f64::try_from(value.clone()).ok();
    }
    None
}

/// Python's `str(value)`, as `{{ value }}` prints it.
pub fn to_str(value: &Value) -> String {
    match value.kind() {
        ValueKind::Seq | ValueKind::Map => {
            let mut out = String::new();
            repr(value, 0, &mut out);
            out
        }
        _ => scalar(value),
    }
}

fn scalar(value: &Value) -> String {
    as_float(value).map_or_else(|| value.to_string(), float_repr)
}

/// Python's `repr(value)`. What cannot be listed, or is nested absurdly, the engine spells itself.
fn repr(value: &Value, depth: usize, out: &mut String) {
    let items = value.try_iter().map(|items| items.collect::<Vec<Value>>());
    match (value.kind(), items) {
        (ValueKind::String, _) => repr_str(value.as_str().unwrap_or_default(), out),
        (ValueKind::Map, Ok(keys)) if depth < 200 => {
            out.push('{');
            for (i, key) in keys.iter().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(key, depth + 1, out);
                out.push_str(": ");
                repr(&value.get_item(key).unwrap_or_default(), depth + 1, out);
            }
            out.push('}');
        }
        (ValueKind::Seq, Ok(items)) if depth < 200 => {
            let tuple = value.is_tuple();
            out.push(if tuple { '(' } else { '[' });
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(item, depth + 1, out);
            }
            out.push_str(match (tuple, items.len()) {
                (true, 1) => ",)",
                (true, _) => ")",
                (false, _) => "]",
            });
        }
        (ValueKind::Undefined, _) => out.push_str("Undefined"),
        _ => out.push_str(&scalar(value)),
    }
}

fn repr_str(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    let mut pair = String::new();
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            ' '..='~' => out.push(c),
            c => {
                // Rust escapes what is not printable by the same categories as Python. The letter in
                // front keeps it from escaping a combining mark as well.
                pair.clear();
                pair.push('a');
                pair.push(c);
                if pair.escape_debug().count() == 2 {
                    out.push(c);
                } else {
                    let code = c as u32;
                    let _ = match code {
                        0..=0xff => write!(out, "\\x{code:02x}"),
                        0x100..=0xffff => write!(out, "\\u{code:04x}"),
                        _ => write!(out, "\\U{code:08x}"),
                    };
                }
            }
        }
    }
    out.push(quote);
}

/// Jinja2's filter `int`.
pub fn int(value: Value, default: Option<Value>, base: Option<u32>) -> Value {
    let parsed = match value.kind() {
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default().trim().replace('_', "");
            let base = base.unwrap_or(10).clamp(2, 36);
            i64::from_str_radix(&text, base).ok().map(Value::from).or_else(|| {
                text.parse::<f64>().ok().filter(|v| v.is_finite()).map(|v| Value::from(v as i64))
            })
        }
        ValueKind::Bool => Some(Value::from(i64::from(value.is_true()))),
        ValueKind::Number => Some(match as_float(&value) {
            Some(v) => Value::from(v as i64),
            None => value,
        }),
        _ => None,
    };
    parsed.or(default).unwrap_or_else(|| Value::from(0))
}

/// Jinja2's filter `float`.
pub fn float(value: Value, default: Option<Value>) -> Value {
    let parsed = match value.kind() {
        ValueKind::String => value.as_str().unwrap_or_default().trim().parse::<f64>().ok(),
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => f64::try_from(value).ok(),
        _ => None,
    };
    parsed.map(Value::from).or(default).unwrap_or_else(|| Value::from(0.0))
}

struct Json {
    ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sort_keys: bool,
}

/// The filter `tojson` as transformers defines it: `json.dumps(x, ensure_ascii=False, ...)`, with the
/// options in its order.
pub fn tojson(value: Value, positional: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    if positional.len() > 4 {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let option = |index: usize, name: &str| -> Result<Option<Value>, Error> {
        let given = match positional.get(index) {
            Some(value) => Some(value.clone()),
            None => kwargs.get::<Option<Value>>(name)?,
        };
        Ok(given.filter(|v| !v.is_none() && !v.is_undefined()))
    };
    let ascii = option(0, "ensure_ascii")?.is_some_and(|v| v.is_true());
    let sort_keys = option(3, "sort_keys")?.is_some_and(|v| v.is_true());
    let separators = option(2, "separators")?;
    let indent = match option(1, "indent")? {
        None => None,
        Some(v) => Some(match v.as_str() {
            Some(text) => text.to_owned(),
            None => {
                let width = i64::try_from(v).map_err(|_| fault("tojson: indent is not a number"))?;
                " ".repeat(width.clamp(0, 1000) as usize)
            }
        }),
    };
    let mut item = if indent.is_some() { "," } else { ", " }.to_owned();
    let mut key = ": ".to_owned();
    if let Some(pair) = separators {
        let parts: Vec<Value> = pair.try_iter()?.collect();
        match &parts[..] {
            [a, b] if a.as_str().is_some() && b.as_str().is_some() => {
                item = a.as_str().unwrap_or_default().to_owned();
                key = b.as_str().unwrap_or_default().to_owned();
            }
            _ => return Err(fault("tojson: separators must be two strings")),
        }
    }
    kwargs.assert_all_used()?;
    let mut out = String::new();
    Json { ascii, indent, item, key, sort_keys }.write(&value, 0, &mut out)?;
    Ok(out)
}

/// `json.dumps(x, ensure_ascii=False)`.
pub fn dumps(value: &Value) -> Result<String, Error> {
    let (item, key) = (", ".to_owned(), ": ".to_owned());
    let mut out = String::new();
    Json { ascii: false, indent: None, item, key, sort_keys: false }.write(value, 0, &mut out)?;
    Ok(out)
}

impl Json {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > 200 {
            return Err(fault("tojson: nested too deeply"));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.wrapped('[', ']', items.len(), depth, out, |i, out| {
                    self.write(&items[i], depth + 1, out)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.wrapped('{', '}', keys.len(), depth, out, |i, out| {
                    self.map_key(&keys[i], out)?;
                    out.push_str(&self.key);
                    self.write(&value.get_item(&keys[i])?, depth + 1, out)
                })?;
            }
            ValueKind::Undefined => {
                return Err(fault("Object of type Undefined is not JSON serializable"))
            }
            kind => return Err(fault(format!("Object of type {kind} is not JSON serializable"))),
        }
        Ok(())
    }

    fn wrapped(
        &self,
        open: char,
        close: char,
        count: usize,
        depth: usize,
        out: &mut String,
        mut each: impl FnMut(usize, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for i in 0..count {
            if i > 0 {
                out.push_str(&self.item);
            }
            self.line(depth + 1, out);
            each(i, out)?;
        }
        if count > 0 {
            self.line(depth, out);
        }
        out.push(close);
        Ok(())
    }

    fn line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            for _ in 0..depth {
                out.push_str(indent);
            }
        }
    }

    fn map_key(&self, key: &Value, out: &mut String) -> Result<(), Error> {
        let text = match key.kind() {
            ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
            ValueKind::None => "null".to_owned(),
            ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_owned(),
            ValueKind::Number => number(key),
            kind => return Err(fault(format!("tojson: a key cannot be a {kind}"))),
        };
        self.string(&text, out);
        Ok(())
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if (c as u32) < 0x20 || (self.ascii && !matches!(c, ' '..='~')) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

fn number(value: &Value) -> String {
    match as_float(value) {
        Some(v) if v.is_nan() => "NaN".into(),
        Some(v) if v.is_infinite() => if v > 0.0 { "Infinity" } else { "-Infinity" }.into(),
        Some(v) => float_repr(v),
        None => value.to_string(),
    }
}

/// Python's `range`, downwards too.
pub fn range(first: i64, stop: Option<i64>, step: Option<i64>) -> Result<Value, Error> {
    let (start, stop) = match stop {
        Some(stop) => (first, stop),
        None => (0, first),
    };
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(fault("range() arg 3 must not be zero"));
    }
    let span = if step > 0 {
        i128::from(stop) - i128::from(start)
    } else {
        i128::from(start) - i128::from(stop)
    };
    let width = i128::from(step.unsigned_abs());
    let count = if span <= 0 { 0 } else { (span + width - 1) / width };
    // The sandbox of the reference has this limit as well.
    if count > 100_000 {
        return Err(fault("range() is too long (more than 100000 items)"));
    }
    Ok((0..count as i64).map(|i| Value::from(start + i * step)).collect())
}

thread_local! {
    static NOW: Cell<Option<i64>> = const { Cell::new(None) };
}

/// Sets the clock that `strftime_now` reads while `body` runs: Unix seconds, None for the system's.
pub fn with_now<T>(now: Option<i64>, body: impl FnOnce() -> T) -> T {
    struct Restore(Option<i64>);
    impl Drop for Restore {
        fn drop(&mut self) {
            NOW.set(self.0);
        }
    }
    let _restore = Restore(NOW.replace(now));
    body()
}

/// `strftime_now` as transformers defines it: local time through Python's `strftime`.
pub fn strftime_now(format: String) -> Result<String, Error> {
    let now = match NOW.get() {
        None => chrono::Local::now(),
        Some(seconds) => chrono::DateTime::from_timestamp(seconds, 0)
            .ok_or_else(|| fault("strftime_now: the time is out of range"))?
            .with_timezone(&chrono::Local),
    };
    let mut out = String::new();
    write!(out, "{}", now.format(&format))
        .map_err(|_| fault(format!("strftime_now: cannot use the format '{format}'")))?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_in_python() {
        for (value, text) in [
            (1.0, "1.0"), (0.1, "0.1"), (1e16, "1e+16"), (1.5e300, "1.5e+300"), (1e-5, "1e-05"),
            (123456789012345.6, "123456789012345.6"), (-0.0, "-0.0"), (1e15, "1000000000000000.0"),
        ] {
            assert_eq!(float_repr(value), text);
        }
    }

    #[test]
    fn ranges_go_both_ways() {
        let list = |a, b, c| range(a, b, c).unwrap().to_string();
        assert_eq!(list(3, None, None), "[0, 1, 2]");
        assert_eq!(list(3, Some(0), Some(-1)), "[3, 2, 1]");
        assert_eq!(list(5, Some(0), Some(-2)), "[5, 3, 1]");
        assert_eq!(list(0, Some(5), Some(-1)), "[]");
        assert!(range(0, Some(1), Some(0)).is_err());
    }
}
