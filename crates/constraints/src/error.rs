//! Errors of constraints: one that cannot be compiled, and an answer that cannot go on.

use crate::limits::ERROR_BYTES_MAX;

/// Reason why a constraint cannot be compiled. The text names the fault and its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CompileError {
    pub(crate) message: String,
}

impl CompileError {
    pub(crate) fn new(message: impl Into<String>) -> CompileError {
        CompileError { message: message.into() }
    }
}

/// Failure of a matcher: its grammar became too complex, or a token was not allowed. The matcher cannot be used
/// any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the constraint cannot be followed any further: {0}")]
pub struct Stuck(pub(crate) String);

/// Shortens an error text: without llguidance's state, on one line, at most [`ERROR_BYTES_MAX`] bytes.
pub(crate) fn first_line(error: &str) -> String {
    let error = error.split("\n<").next().unwrap_or_default();
    let mut line: String = error.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.len() > ERROR_BYTES_MAX {
        let end = (0..=ERROR_BYTES_MAX).rev().find(|&at| line.is_char_boundary(at)).unwrap_or(0);
        line.truncate(end);
        line.push('…');
    }
    line
}
