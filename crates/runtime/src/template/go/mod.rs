//! Chat templates in Go's language (`text/template`), as Modelfiles and packages of Ollama have them: translated to a Jinja program
//! that writes what Ollama would, so that one interpreter runs every template. What a conversation looks like to such a template,
//! and what is printed of it, is Ollama's: system messages as one, messages of one speaker in a row as one, tools and arguments as
//! Go's JSON; and where a template has no `.Messages`, a run for each question and answer.
//!
//! A construct that has no translation is an error that names it. Absent: running Go, templates that call others.

mod fields;
mod lexer;
mod parser;
mod pieces;
mod writer;

#[cfg(test)]
mod tests;

use std::fmt;

/// Bytes of a template.
const SOURCE_BYTES_MAX: usize = 64 << 10;
/// Actions and parentheses inside of others.
const NESTING_MAX: usize = 32;

/// Why a template cannot be translated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Untranslated {
    /// The line, from 1.
    pub line: usize,
    /// What stands there, and what is the matter with it.
    pub reason: String,
}

impl fmt::Display for Untranslated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.reason)
    }
}

impl Untranslated {
    fn at<T>(line: usize, reason: impl Into<String>) -> Result<T, Untranslated> {
        Err(Untranslated { line, reason: reason.into() })
    }
}

/// Whether a text has an action of Go's templates and none of Jinja's statements.
pub fn is_go(template: &str) -> bool {
    template.contains("{{") && !template.contains("{%")
}

/// The Jinja template that writes what this one in Go's language does where Ollama runs it.
///
/// # Errors
/// The first construct that is not understood, or has no translation.
pub fn to_jinja(source: &str) -> Result<String, Untranslated> {
    if source.len() > SOURCE_BYTES_MAX {
        return Untranslated::at(1, format!("over {SOURCE_BYTES_MAX} bytes"));
    }
    writer::write(&parser::parse(&lexer::split(source)?)?)
}
