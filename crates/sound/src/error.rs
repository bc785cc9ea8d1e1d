//! Errors for sounds.

use thiserror::Error;

/// Reason for refusing a sound. Each message says what to do.
#[derive(Debug, Error)]
pub enum SoundError {
    /// The file is empty, or has no sound.
    #[error("is empty; send a sound file")]
    Empty,
    /// The file has no supported format.
    #[error("is no sound file of a kind that is read; send one of {formats}")]
    UnknownFormat {
        /// Supported formats.
        formats: &'static str,
    },
    /// The container has no audio track.
    #[error("has no audio track; send a file with sound")]
    NoAudioTrack,
    /// The codec is not supported.
    #[error("has its sound as {codec}, which is not read; send one of {formats}")]
    Codec {
        /// Name of the codec, as far as known.
        codec: String,
        /// Supported formats.
        formats: &'static str,
    },
    /// The sound is too long.
    #[error("is longer than {max_s:.0} seconds, which is what is taken; send it in parts")]
    TooLong {
        /// Maximum length in seconds.
        max_s: f64,
    },
    /// The file has too many bytes.
    #[error("has more than {max} bytes, which is what is taken; send it compressed (mp3, opus) or in parts")]
    TooManyBytes {
        /// Maximum size.
        max: u64,
    },
    /// The sound has too many channels.
    #[error("has {channels} channels, and 1 to {max} are taken; send it mixed down")]
    Channels {
        /// Number of channels.
        channels: usize,
        /// Maximum number.
        max: usize,
    },
    /// The sample rate is not supported.
    #[error("has {rate} samples per second, and {min} to {max} are taken; send it resampled")]
    Rate {
        /// Rate of the sound.
        rate: u32,
        /// Minimum rate.
        min: u32,
        /// Maximum rate.
        max: u32,
    },
    /// The sound is shorter than its header states.
    #[error("ends after {found_s:.1} of {said_s:.1} seconds: it is truncated; send the whole file")]
    Truncated {
        /// Actual length in seconds.
        found_s: f64,
        /// Length in the header, in seconds.
        said_s: f64,
    },
    /// The file cannot be decoded.
    #[error("cannot be decoded as {format}: {reason}; send a whole file")]
    Broken {
        /// Format of the file.
        format: &'static str,
        /// Description of the error.
        reason: String,
    },
    /// The bytes could not be read.
    #[error("cannot be read: {0}")]
    Read(#[from] std::io::Error),
}
