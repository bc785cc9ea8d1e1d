//! Text to speech: what a text sounds like, and the networks that say it. [`Script`] makes a text ready, off the model's turn;
//! [`VoiceEngine`] says it, a piece a step, on the kernels' packed matrices: a convolution is a product of rows laid side by
//! side. A seed decides all that is drawn.
//!
//! Absent on purpose: async, network, clocks, formats of sound, candle.

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
pub use error::SpeakError;
pub use script::{Ask, Input, Piece, Refused, Script, Speech, VoiceInfo};
pub use speaker::{Speaker, memory};
pub use text::EspeakNg;
