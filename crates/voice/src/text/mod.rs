//! From text to phonemes: sentences, words for numbers and signs, pronunciation.

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
pub(crate) use reader::TextReader;
pub(crate) use sentences::sentences;
use written::normalize;
