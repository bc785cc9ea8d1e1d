//! From a text to what it sounds like: sentences, words for numbers and signs, phonemes.

mod english;
mod espeak;
mod ipa;
mod letters;
mod numbers;
mod reader;
mod roman;
mod sentences;
mod written;

use english::{Dialect, English};
pub use espeak::EspeakNg;
pub(crate) use reader::Reader;
pub(crate) use sentences::sentences;
use written::normalize;
