//! Why a sound is not taken.

use thiserror::Error;

/// Why a sound is refused. Each says what to do.
#[derive(Debug, Error)]
pub enum SoundError {
    /// There is nothing, or nothing that can be heard.
    #[error("is empty; send a sound file")]
    Empty,
    /// It begins like no format that is read.
    #[error("is no sound file of a kind that is read; send one of {formats}")]
    UnknownFormat {
        /// Those that are read.
        formats: &'static str,
    },
    /// A container without sound.
    #[error("has no audio track; send a file with sound")]
    NoAudioTrack,
    /// Sound in a codec that is not read.
    #[error("has its sound as {codec}, which is not read; send one of {formats}")]
    Codec {
        /// Its name, as far as it is known.
        codec: String,
        /// Those that are read.
        formats: &'static str,
    },
    /// Longer than is taken.
    #[error("is longer than {max_s:.0} seconds, which is what is taken; send it in parts")]
    TooLong {
        /// How long it may be.
        max_s: f64,
    },
    /// More bytes than are taken.
    #[error("has more than {max} bytes, which is what is taken; send it compressed (mp3, opus) or in parts")]
    TooManyBytes {
        /// How many it may have.
        max: u64,
    },
    /// More channels than are taken.
    #[error("has {channels} channels, and 1 to {max} are taken; send it mixed down")]
    Channels {
        /// How many it has.
        channels: usize,
        /// How many it may have.
        max: usize,
    },
    /// A sample rate that is not taken.
    #[error("has {rate} samples per second, and {min} to {max} are taken; send it resampled")]
    Rate {
        /// Its own.
        rate: u32,
        /// The least.
        min: u32,
        /// The most.
        max: u32,
    },
    /// It says that it is longer than it is.
    #[error("ends after {found_s:.1} of {said_s:.1} seconds: it is truncated; send the whole file")]
    Truncated {
        /// What there is.
        found_s: f64,
        /// What its header says.
        said_s: f64,
    },
    /// It cannot be decoded.
    #[error("cannot be decoded as {format}: {reason}; send a whole file")]
    Broken {
        /// What it is.
        format: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// Its bytes could not be read.
    #[error("cannot be read: {0}")]
    Read(#[from] std::io::Error),
}
