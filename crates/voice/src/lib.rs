//! Text to speech: text normalisation, phonemes, and networks. [`Script`] prepares a text ahead of the model's
//! turn. [`VoiceEngine`] synthesises it, one piece a step, by programs of ops on a device. A seed determines all random numbers.
//!
//! This crate has no async code, network access, clocks, sound formats or dependency on candle.

mod engine;
mod error;
mod kokoro;
pub mod limits;
mod nn;
mod noise;
mod script;
mod speaker;
mod text;
mod vits;
mod weights;

pub use engine::{SpeechJob, VoiceEngine};
pub use error::{FieldRefusal, SpeakError};
pub use script::{Ask, Input, Script, Speech, SpeechPiece, VoiceInfo};
pub use speaker::{Speaker, memory};
pub use text::EspeakNg;
