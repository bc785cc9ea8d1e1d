//! Sound input and output. Input: bounded, streaming decoding of untrusted bytes to 16 kHz mono, and voice
//! activity detection with a map back to times in the original. Output: encoding of samples into the common
//! formats ([`Encoder`]). The models are in the runtime.

mod codec;
mod decode;
mod encode;
mod error;
mod gate;
mod resample;
mod silero;
mod source;
#[cfg(test)]
mod tests;
mod time_map;

pub use decode::{Hint, Info, Limits, Sound};
pub use encode::{Encoder, PCM_RATE, SoundFormat};
pub use error::SoundError;
pub use gate::Gate;
pub use resample::Resampler;
pub use silero::SileroWeights;
pub use time_map::TimeMap;

/// Sample rate of speech models.
pub const SPEECH_RATE: u32 = 16_000;
