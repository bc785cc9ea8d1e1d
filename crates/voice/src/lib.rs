//! Text to speech: what a text sounds like, and the networks that say it.

mod error;
mod kokoro;
pub mod limits;
mod nn;
mod noise;
mod weights;

pub use error::SpeakError;
