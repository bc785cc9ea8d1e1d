//! Chat templates in Go's language (`text/template`), as used in Ollama's Modelfiles and packages. They are
//! translated to a Jinja program with the same output as in Ollama, so that one interpreter runs every template.
//! Conversations look to them as in Ollama: system messages are joined, consecutive messages of one speaker are
//! joined, tools and arguments are Go's JSON. A template without `.Messages` runs once for each question and
//! answer.
//!
//! A construct without a translation is an error that names it. Absent: running Go, templates that call other
//! templates.

mod fields;
mod lexer;
mod parser;
mod pieces;
mod writer;

#[cfg(test)]
mod tests;

use std::fmt;

/// Maximum bytes of a template.
const SOURCE_BYTES_MAX: usize = 64 << 10;
/// Maximum nesting of actions and parentheses.
const NESTING_MAX: usize = 32;

/// Reason why a template cannot be translated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TranslateError {
    /// Line, from 1.
    pub line: usize,
    /// The construct and its problem.
    pub reason: String,
}

impl fmt::Display for TranslateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.reason)
    }
}

impl TranslateError {
    fn at<T>(line: usize, reason: impl Into<String>) -> Result<T, TranslateError> {
        Err(TranslateError { line, reason: reason.into() })
    }
}

/// Whether a text has an action of Go's templates and no Jinja statement.
pub fn is_go(template: &str) -> bool {
    template.contains("{{") && !template.contains("{%")
}

/// Translates a Go template to a Jinja template with the same output as in Ollama.
///
/// # Errors
/// The first construct that is not understood or has no translation.
pub fn to_jinja(source: &str) -> Result<String, TranslateError> {
    if source.len() > SOURCE_BYTES_MAX {
        return TranslateError::at(1, format!("over {SOURCE_BYTES_MAX} bytes"));
    }
    writer::write(&parser::parse(&lexer::split(source)?)?)
}
