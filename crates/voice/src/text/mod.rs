//! From a text to what it sounds like: sentences, words for numbers and signs, phonemes.

mod english;
mod letters;
mod normalize;
mod numbers;
mod sentences;

pub(crate) use english::{Dialect, English};
pub(crate) use normalize::normalize;
pub(crate) use sentences::sentences;
