//! From a text to what it sounds like: sentences, words for numbers and signs, phonemes.

mod english;
mod espeak;
mod letters;
mod normalize;
mod numbers;
mod reader;
mod sentences;

pub(crate) use english::{Dialect, English};
pub(crate) use espeak::espeak;
pub(crate) use normalize::normalize;
pub(crate) use reader::Reader;
pub(crate) use sentences::sentences;
