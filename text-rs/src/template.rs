//! Chat templates, rendered as transformers renders them with Jinja2: the same options, functions,
//! filters and tests, and messages in the shape that the template expects.

use crate::error::{guard, Kind, TextError};
use crate::messages::{self, Capabilities};
use crate::python;
use crate::source::replace_generation_tags;
use minijinja::value::ValueKind;
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, Value};
use std::cell::RefCell;

const NAME: &str = "chat_template";

/// A template is data from outside: it may loop, but not for ever. Ten thousand messages take about
/// a tenth of this, and all of it takes about a second.
const FUEL: u64 = 20_000_000;
/// Enough for the small conversations of a probe.
const PROBE_FUEL: u64 = 500_000;

pub struct ChatTemplateCore {
    env: Environment<'static>,
    capabilities: Capabilities,
}

thread_local! {
    /// What `raise_exception` said last; an engine error would wrap the words.
    static REFUSAL: RefCell<Option<String>> = const { RefCell::new(None) };
}

impl ChatTemplateCore {
    pub fn compile(source: &[u8]) -> Result<Self, TextError> {
        let source = std::str::from_utf8(source).map_err(|e| {
            TextError::invalid(format!("chat template is not UTF-8 at byte {}", e.valid_up_to()))
        })?;
        let mut env = environment();
        env.add_template_owned(NAME, replace_generation_tags(source)).map_err(describe)?;
        let mut core = ChatTemplateCore { env, capabilities: Capabilities::default() };
        core.env.set_fuel(Some(PROBE_FUEL));
        core.capabilities = messages::probe(source, |context| core.run(context, None).ok());
        core.env.set_fuel(Some(FUEL));
        Ok(core)
    }

    pub fn capabilities(&self) -> u8 {
        self.capabilities.bits()
    }

    pub fn render(
        &self,
        messages: &[u8],
        tools: &[u8],
        extra: &[u8],
        add_generation_prompt: bool,
        now: i64,
    ) -> Result<String, TextError> {
        let mut context = serde_json::Map::new();
        context.insert("messages".into(), parse("messages", messages)?);
        context.insert("tools".into(), parse("tools", tools)?);
        context.insert("documents".into(), serde_json::Value::Null);
        context.insert("add_generation_prompt".into(), add_generation_prompt.into());
        match parse("template arguments", extra)? {
            serde_json::Value::Null => {}
            serde_json::Value::Object(extra) => context.extend(extra),
            _ => return Err(TextError::invalid("template arguments are not an object")),
        }
        let now = (now != i64::MIN).then_some(now);
        guard("chat template", || {
            messages::render(&self.capabilities, context.into(), |context| self.run(context, now))
        })
    }

    fn run(&self, context: &serde_json::Value, now: Option<i64>) -> Result<String, TextError> {
        REFUSAL.set(None);
        let template = self.env.get_template(NAME).map_err(describe)?;
        let context = python::from_json(context);
        python::with_now(now, || template.render(context)).map_err(|error| {
            match REFUSAL.take() {
                Some(message) => TextError { kind: Kind::Refused, message },
                None => describe(error),
            }
        })
    }
}

/// Empty text stands for null.
fn parse(what: &str, json: &[u8]) -> Result<serde_json::Value, TextError> {
    if json.is_empty() {
        return Ok(serde_json::Value::Null);
    }
    serde_json::from_slice(json).map_err(|e| TextError::invalid(format!("{what}: {e}")))
}

fn describe(error: Error) -> TextError {
    let place = error.line().map_or(String::new(), |line| format!(" line {line}"));
    let detail = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    TextError::invalid(format!("chat template{place}: {detail}"))
}

fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    let mut syntax = SyntaxConfig::builder();
    syntax.trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(false);
    // Only custom delimiters can make this fail.
    env.set_syntax(syntax.build().unwrap_or_default());
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_recursion_limit(200);
    env.set_formatter(|out, _state, value| {
        out.write_str(&python::to_str(value)).map_err(Error::from)
    });
    env.set_unknown_method_callback(methods);

    env.add_filter("tojson", python::tojson);
    env.add_filter("string", |value: Value| match value.as_str() {
        Some(_) => value,
        None => Value::from(python::to_str(&value)),
    });
    env.add_filter("int", python::int);
    env.add_filter("float", python::float);
    env.add_filter("wordcount", |text: String| text.split_whitespace().count());
    env.add_function("range", python::range);
    env.add_function("strftime_now", python::strftime_now);
    env.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
        let message = python::to_str(&message);
        REFUSAL.set(Some(message.clone()));
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    env.add_function("joiner", minijinja_contrib::globals::joiner);

    // Jinja2 asks what a value can do, not what it is.
    env.add_test("sequence", |v: &Value| {
        matches!(v.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map)
    });
    env.add_test("iterable", |v: &Value| {
        matches!(
            v.kind(),
            ValueKind::Seq
                | ValueKind::String
                | ValueKind::Map
                | ValueKind::Iterable
                | ValueKind::Undefined
        )
    });
    env.add_test("callable", |v: &Value| v.kind() == ValueKind::Plain);
    env.add_test("number", |v: &Value| matches!(v.kind(), ValueKind::Number | ValueKind::Bool));
    env
}

/// Python's methods: the contrib crate's, and the ones that templates use and it lacks.
fn methods(
    state: &mut minijinja::State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    match minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args) {
        Err(error) if error.kind() == ErrorKind::UnknownMethod => {}
        result => return result,
    }
    if let Some(text) = value.as_str() {
        return string_method(text, method, args);
    }
    match (value.kind(), method) {
        (ValueKind::Map, "copy") => Ok(value.clone()),
        (ValueKind::Seq, "index") => {
            let (wanted,): (&Value,) = minijinja::value::from_args(args)?;
            value
                .try_iter()?
                .position(|item| item == *wanted)
                .map(Value::from)
                .ok_or_else(|| {
                    Error::new(ErrorKind::InvalidOperation, format!("{wanted} is not in list"))
                })
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn string_method(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    use minijinja::value::from_args;
    Ok(match method {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let (found, missing) = match method {
                "partition" => (text.split_once(separator), (text, "", "")),
                _ => (text.rsplit_once(separator), ("", "", text)),
            };
            let (a, b, c) = match found {
                Some((before, after)) => (before, separator, after),
                None => missing,
            };
            Value::from(minijinja::value::Tuple::from([a, b, c].map(Value::from)))
        }
        "rsplit" => {
            let (separator, limit): (Option<&str>, Option<i64>) = from_args(args)?;
            Value::from(rsplit(text, separator, limit))
        }
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            let (sign, digits) = match text.strip_prefix(['-', '+']) {
                Some(digits) => (&text[..1], digits),
                None => ("", text),
            };
            let missing = width.min(10_000).saturating_sub(text.chars().count());
            Value::from(format!("{sign}{}{digits}", "0".repeat(missing)))
        }
        "ljust" | "rjust" | "center" => {
            let (width, fill): (usize, Option<&str>) = from_args(args)?;
            let fill = fill.unwrap_or(" ");
            let missing = width.min(100_000).saturating_sub(text.chars().count());
            let left = match method {
                "ljust" => 0,
                "rjust" => missing,
                _ => missing / 2 + (missing & width & 1),
            };
            let pad = |n: usize| fill.repeat(n);
            Value::from(format!("{}{text}{}", pad(left), pad(missing - left)))
        }
        "swapcase" => Value::from(
            text.chars()
                .flat_map(|c| -> Vec<char> {
                    if c.is_uppercase() {
                        c.to_lowercase().collect()
                    } else {
                        c.to_uppercase().collect()
                    }
                })
                .collect::<String>(),
        ),
        "casefold" => Value::from(text.to_lowercase()),
        "isdecimal" => {
            Value::from(!text.is_empty() && text.chars().all(|c| c.is_ascii_digit()))
        }
        "index" => {
            let (what,): (&str,) = from_args(args)?;
            let at = text
                .find(what)
                .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "substring not found"))?;
            Value::from(text[..at].chars().count())
        }
        "expandtabs" => Value::from(text.replace('\t', "        ")),
        _ => return Err(Error::from(ErrorKind::UnknownMethod)),
    })
}

fn rsplit(text: &str, separator: Option<&str>, limit: Option<i64>) -> Vec<Value> {
    let limit = match limit {
        Some(n) if n >= 0 => n as usize,
        _ => usize::MAX,
    };
    let mut parts: Vec<&str> = Vec::new();
    let mut rest = text;
    match separator {
        Some(separator) if !separator.is_empty() => {
            while parts.len() < limit {
                let Some((before, after)) = rest.rsplit_once(separator) else { break };
                parts.push(after);
                rest = before;
            }
            parts.push(rest);
        }
        _ => {
            rest = rest.trim();
            while parts.len() < limit {
                let Some(at) = rest.rfind(char::is_whitespace) else { break };
                let blank = rest[at..].chars().next().map_or(1, char::len_utf8);
                parts.push(&rest[at + blank..]);
                rest = rest[..at].trim_end();
            }
            if !rest.is_empty() {
                parts.push(rest);
            }
        }
    }
    parts.into_iter().rev().map(Value::from).collect()
}

