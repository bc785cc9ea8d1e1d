//! What an answer must satisfy: JSON schemas, regular expressions, choices and grammars, compiled over a model's vocabulary, and
//! which of its tokens may come next. A [`Spec`] is what a request says, a [`Vocabulary`] the tokens of a model; both make a
//! [`Grammar`], which many completions share, and each of them follows it with a [`Matcher`] of its own, so that what one may
//! say, and whether its grammar becomes too complex, depends on nothing but its own tokens. llguidance does the parsing.
//! Absent on purpose: logits, sampling, models, clocks.

mod gbnf;
mod grammar;
mod limits;
mod matcher;
mod schema;
mod vocabulary;

pub use grammar::{CompileError, Grammar, Spec};
pub use limits::{CHOICES_BYTES_MAX, CHOICES_MAX, GRAMMAR_BYTES_MAX, REGEX_BYTES_MAX, SCHEMA_BYTES_MAX};
pub use matcher::{Matcher, Stuck};
pub use schema::in_lark as json_in_lark;
pub use vocabulary::{Vocabulary, VocabularyError, Word};

#[cfg(test)]
mod tests;
