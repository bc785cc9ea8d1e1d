//! Sound, in and out. In: from bytes that a stranger sent to the samples that a speech model hears: decoding within bounds, as
//! the bytes come; one channel of 16 kHz; and which stretches of it are worth hearing, with the way back to times in the
//! original. Out: samples into files of the usual formats, as they come ([`Encoder`]). What a model makes of samples is the
//! runtime's.

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
pub use encode::{Encoder, Format, PCM_RATE};
pub use error::SoundError;
pub use gate::Gate;
pub use resample::Resampler;
pub use silero::SileroWeights;
pub use time_map::TimeMap;

/// Samples per second that speech models hear.
pub const SPEECH_RATE: u32 = 16_000;
