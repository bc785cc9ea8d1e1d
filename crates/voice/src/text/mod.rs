//! From a text to what it sounds like: sentences, words for numbers and signs, phonemes.

mod english;
mod espeak;
mod ipa;
mod letters;
mod normalize;
mod numbers;
mod reader;
mod roman;
mod sentences;

use english::{Dialect, English};
pub use espeak::EspeakNg;
use normalize::normalize;
pub(crate) use reader::Reader;
pub(crate) use sentences::sentences;
