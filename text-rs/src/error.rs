//! One error for the whole bridge. The first letter of its text carries the kind across, because the
//! bridge only transports a message.

use std::fmt;
use std::panic::{catch_unwind, AssertUnwindSafe};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The data or the request is wrong.
    Invalid,
    /// Well-formed, but nothing here handles it.
    Unsupported,
    /// The template itself refused the conversation with `raise_exception`.
    Refused,
    /// A fault of ours or of a library.
    Internal,
}

#[derive(Debug)]
pub struct TextError {
    pub kind: Kind,
    pub message: String,
}

impl TextError {
    pub fn invalid(message: impl Into<String>) -> Self {
        TextError { kind: Kind::Invalid, message: message.into() }
    }

    pub fn unsupported(message: impl Into<String>) -> Self {
        TextError { kind: Kind::Unsupported, message: message.into() }
    }
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = match self.kind {
            Kind::Invalid => 'I',
            Kind::Unsupported => 'U',
            Kind::Refused => 'R',
            Kind::Internal => 'X',
        };
        write!(f, "{letter}{}", self.message)
    }
}

impl std::error::Error for TextError {}

/// Runs `body` so that a panic becomes an error. `what` names the operation for that case.
pub fn guard<T>(
    what: &str,
    body: impl FnOnce() -> Result<T, TextError>,
) -> Result<T, TextError> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(payload) => {
            let reason = payload
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| payload.downcast_ref::<&str>().copied())
                .unwrap_or("unknown reason");
            Err(TextError {
                kind: Kind::Internal,
                message: format!("{what}: the library gave up: {reason}"),
            })
        }
    }
}
