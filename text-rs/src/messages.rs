//! Brings messages into the shape that a template expects.
//!
//! Clients send OpenAI's shape: content as a string, as a list of parts, or null, and tool-call
//! arguments as JSON text. Templates differ in what they can print. A template is asked once, at
//! compile time, by rendering small conversations, and then gets the shape that it prints right.

use crate::error::TextError;
use serde_json::{json, Map, Value};

/// What the template can print. The default suits a template that answers no probe.
#[derive(Clone, Copy, Debug)]
pub struct Capabilities {
    /// Content as a string.
    pub string_content: bool,
    /// Content as a list of parts.
    pub part_content: bool,
    /// Tool-call arguments as an object; otherwise they must be JSON text.
    pub object_arguments: bool,
    /// Prints tool calls at all.
    pub tool_calls: bool,
    /// Prints the list of tools.
    pub tools: bool,
    /// Prints a system message.
    pub system: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Capabilities {
            string_content: true,
            part_content: false,
            object_arguments: true,
            tool_calls: false,
            tools: false,
            system: false,
        }
    }
}

impl Capabilities {
    pub fn bits(&self) -> u8 {
        let flags = [
            self.string_content,
            self.part_content,
            self.object_arguments,
            self.tool_calls,
            self.tools,
            self.system,
        ];
        flags.iter().enumerate().map(|(i, &on)| u8::from(on) << i).sum()
    }
}

const NEEDLE: &str = "mr_needle";

fn conversation(messages: Value, tools: Value) -> Value {
    json!({
        "messages": messages,
        "tools": tools,
        "documents": null,
        "add_generation_prompt": true,
        "bos_token": "<s>",
        "eos_token": "</s>",
    })
}

/// Asks the template. `run` renders a context, None if the template refuses it.
pub fn probe(source: &str, run: impl Fn(&Value) -> Option<String>) -> Capabilities {
    let mut found = Capabilities::default();
    let prints = |messages: Value, tools: Value| run(&conversation(messages, tools));
    let has_needle = |text: &Option<String>| text.as_ref().is_some_and(|t| t.contains(NEEDLE));

    let user = |content: Value| json!([{"role": "user", "content": content}]);
    let parts = json!([{"type": "text", "text": NEEDLE}]);
    let as_string = has_needle(&prints(user(json!(NEEDLE)), Value::Null));
    let listed = prints(user(parts), Value::Null);
    // A template that prints a list as it prints a string shows Python's or JSON's spelling of it.
    found.part_content = has_needle(&listed)
        && listed.is_some_and(|t| !t.contains("'text'") && !t.contains("\"text\""));
    found.string_content = as_string || !found.part_content;

    let ask = user(json!("q"));
    if source.contains("tool") {
        let tool = json!([{"type": "function", "function": {"name": NEEDLE, "description": "d",
            "parameters": {"type": "object", "properties": {}}}}]);
        found.tools = has_needle(&prints(ask.clone(), tool));
        let call = |arguments: Value| {
            let messages = json!([
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": "", "tool_calls": [{"id": "abcdef123",
                    "type": "function", "function": {"name": "f", "arguments": arguments}}]},
                {"role": "tool", "content": "r", "tool_call_id": "abcdef123", "name": "f"},
            ]);
            run(&conversation(messages, Value::Null))
        };
        let object = call(json!({NEEDLE: "v"}));
        let text = call(json!(format!("{{\"{NEEDLE}\": \"v\"}}")));
        found.tool_calls = has_needle(&object) || has_needle(&text);
        // Python's spelling of a dict means that the template expected text; text that comes out
        // with escaped quotes means that it expected an object.
        let object_good =
            has_needle(&object) && object.is_some_and(|t| !t.contains(&format!("'{NEEDLE}'")));
        found.object_arguments = object_good || !has_needle(&text);
    }
    let system = json!([{"role": "system", "content": NEEDLE}, {"role": "user", "content": "q"}]);
    found.system = has_needle(&prints(system, Value::Null));
    found
}

/// Renders with the messages of `context` in the template's shape.
pub fn render(
    capabilities: &Capabilities,
    mut context: Value,
    run: impl Fn(&Value) -> Result<String, TextError>,
) -> Result<String, TextError> {
    let mut null_content = false;
    if let Some(messages) = context.get_mut("messages") {
        let list = messages
            .as_array_mut()
            .ok_or_else(|| TextError::invalid("messages is not a list"))?;
        for (i, message) in list.iter_mut().enumerate() {
            let message = message
                .as_object_mut()
                .ok_or_else(|| TextError::invalid(format!("messages[{i}] is not an object")))?;
            shape_content(capabilities, message);
            shape_arguments(capabilities, message);
            alias_reasoning(message);
            // A null field means an absent one, as in the reference.
            message.retain(|name, value| name == "content" || !value.is_null());
            null_content |= message.get("content").is_some_and(Value::is_null);
        }
    }
    if !null_content {
        return run(&context);
    }
    render_null_content(context, run)
}

/// Content that is null (an assistant that only calls tools). A few templates branch on it, others
/// print "None" or fail. So null is kept unless that shows, then left out as the reference does, then
/// made an empty string.
fn render_null_content(
    mut context: Value,
    run: impl Fn(&Value) -> Result<String, TextError>,
) -> Result<String, TextError> {
    let kept = run(&context);
    let mut without = context.clone();
    for message in without["messages"].as_array_mut().into_iter().flatten() {
        if let Some(message) = message.as_object_mut() {
            message.retain(|_, value| !value.is_null());
        }
    }
    for message in context["messages"].as_array_mut().into_iter().flatten() {
        if message.get("content").is_some_and(Value::is_null) {
            message["content"] = json!("");
        }
    }
    let nones = |text: &str| text.matches("None").count();
    let fallback = run(&without).or_else(|_| run(&context));
    match (kept, fallback) {
        (Ok(kept), Ok(fallback)) if nones(&kept) > nones(&fallback) => Ok(fallback),
        (Ok(kept), _) => Ok(kept),
        (Err(_), Ok(fallback)) => Ok(fallback),
        (Err(error), Err(_)) => Err(error),
    }
}

/// Templates read a message's reasoning under different names; clients send it under as many.
fn alias_reasoning(message: &mut Map<String, Value>) {
    let names = ["reasoning_content", "thinking", "reasoning"];
    let found = names.iter().find_map(|name| message.get(*name).filter(|v| !v.is_null()).cloned());
    if let Some(reasoning) = found {
        message.insert("reasoning_content".to_owned(), reasoning.clone());
        if message.get("thinking").is_none_or(Value::is_null) {
            message.insert("thinking".to_owned(), reasoning);
        }
    }
}

fn shape_content(capabilities: &Capabilities, message: &mut Map<String, Value>) {
    match message.get("content") {
        Some(Value::String(text)) if !capabilities.string_content => {
            let parts = json!([{"type": "text", "text": text}]);
            message.insert("content".to_owned(), parts);
        }
        Some(Value::Array(parts)) if !capabilities.part_content => {
            if let Some(text) = joined_text(parts) {
                message.insert("content".to_owned(), json!(text));
            }
        }
        _ => {}
    }
}

/// The text of a list of text parts; None if there is a part that text cannot stand for.
fn joined_text(parts: &[Value]) -> Option<String> {
    parts
        .iter()
        .map(|part| match part {
            Value::String(text) => Some(text.as_str()),
            _ => part.get("text").and_then(Value::as_str),
        })
        .collect::<Option<Vec<&str>>>()
        .map(|texts| texts.join("\n"))
}

fn shape_arguments(capabilities: &Capabilities, message: &mut Map<String, Value>) {
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten() {
        let holder = if call.get("function").is_some() { &mut call["function"] } else { call };
        let Some(arguments) = holder.get_mut("arguments") else { continue };
        match arguments {
            Value::String(text) if capabilities.object_arguments => {
                if let Ok(parsed @ Value::Object(_)) = serde_json::from_str(text) {
                    *arguments = parsed;
                } else if text.trim().is_empty() {
                    *arguments = json!({});
                }
            }
            Value::Object(_) if !capabilities.object_arguments => {
                let parsed = crate::python::from_json(arguments);
                if let Ok(text) = crate::python::dumps(&parsed) {
                    *arguments = json!(text);
                }
            }
            _ => {}
        }
    }
}
