//! Constrained decoding: JSON schemas, regular expressions, choices and grammars, compiled for a model's
//! vocabulary into masks of allowed next tokens. A [`Spec`] is a request's constraint, a [`ConstraintVocabulary`] holds
//! the tokens of a model. Both make a [`Grammar`], which many completions share. Each completion has its own
//! [`Matcher`], so its masks and its complexity depend on its own tokens alone. llguidance does the parsing.
//! [`PendingMask`] computes slow masks in the background. Logits, sampling and models are out of scope.

mod error;
mod gbnf;
mod grammar;
mod lexers;
mod limits;
mod mask_worker;
mod matcher;
mod schema;
mod vocabulary;

pub use error::{CompileError, Stuck};
pub use grammar::{Grammar, Spec};
pub use limits::{
    CHOICES_BYTES_MAX, CHOICES_MAX, GRAMMAR_BYTES_MAX, REGEX_BYTES_MAX, SCHEMA_BYTES_MAX, SLOW_MASK,
};
pub use mask_worker::{PendingMask, timed, wait_for_mask};
pub use matcher::{Matcher, Stopper};
pub use schema::in_lark as json_in_lark;
pub use vocabulary::{ConstraintVocabulary, VocabularyError, Word};

#[cfg(test)]
mod tests;
