//! Why a picture, or a processor's settings, are not taken.

use thiserror::Error;

/// Why a picture is refused. Each says what to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PictureError {
    /// There is nothing.
    #[error("is empty; send the bytes of a picture")]
    Empty,
    /// More bytes than are taken.
    #[error("has {bytes} bytes, and at most {max} are taken; send a smaller picture")]
    TooManyBytes {
        /// How many it has.
        bytes: usize,
        /// How many it may have.
        max: usize,
    },
    /// More pixels than are taken.
    #[error("is {width} x {height} pixels, and at most {max} pixels are taken; send a smaller picture")]
    TooManyPixels {
        /// As its header says.
        width: u32,
        /// As its header says.
        height: u32,
        /// How many it may have.
        max: u64,
    },
    /// A side that is longer than any is taken.
    #[error("is {width} x {height} pixels, and at most {max} beside or above each other are taken; cut it")]
    TooLong {
        /// As its header says.
        width: u32,
        /// As its header says.
        height: u32,
        /// Of either.
        max: u32,
    },
    /// It begins like no format that is read.
    #[error("is neither JPEG, PNG, WebP nor GIF; send it as one of these")]
    UnknownFormat,
    /// It is passed over more often than a picture needs.
    #[error(
        "is passed over {scans} times by its own file, and {max} are taken; save it again as a plain picture"
    )]
    TooManyScans {
        /// At least so often.
        scans: usize,
        /// How often it may be.
        max: usize,
    },
    /// It cannot be decoded.
    #[error("cannot be decoded as {format}: {reason}; send a whole picture")]
    Broken {
        /// What its first bytes say it is.
        format: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// Its reader has left.
    #[error("was not decoded to its end: its request has ended")]
    Interrupted,
    /// A `data:` URI that is none.
    #[error("{0}")]
    Uri(String),
    /// One side is so much longer than the other that the processor makes nothing of it.
    #[error(
        "is {width} x {height} pixels, which the model's processor cannot make to a size of its own; cut it"
    )]
    Shape {
        /// Of the picture.
        width: u32,
        /// Of the picture.
        height: u32,
    },
    /// Bounds of a request between which no size lies.
    #[error(
        "is to have {least} to {most} pixels: min_pixels must not be above max_pixels, and max_pixels at least {square}, one \
         square of the model's patches"
    )]
    Bounds {
        /// At least so many.
        least: u64,
        /// At most so many.
        most: u64,
        /// The smallest picture.
        square: u64,
    },
    /// Bounds of a request by which a picture would become larger than any is made.
    #[error(
        "would become {width} x {height} pixels, and at most {max} are made of a picture; set min_pixels lower"
    )]
    Larger {
        /// Of what it would become.
        width: u32,
        /// Of what it would become.
        height: u32,
        /// How many it may have.
        max: u64,
    },
    /// Bounds of a request, of a processor that has none.
    #[error("has min_pixels or max_pixels, which this model's processor does not know; leave them out")]
    NoBounds,
    /// More patches than the tower has room for.
    #[error(
        "becomes {width} x {height} pixels, {patches} patches, and the model's tower has room for {max}; set max_pixels to \
         {pixels} or less, or send a smaller picture"
    )]
    TooManyPatches {
        /// Of what it becomes.
        width: u32,
        /// Of what it becomes.
        height: u32,
        /// Of it.
        patches: usize,
        /// As many as there is room for.
        max: usize,
        /// Pixels of so many.
        pixels: u64,
    },
}

/// Why a processor's settings cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{key}: {reason}")]
pub struct ProcessorError {
    /// The key of `preprocessor_config.json`.
    pub key: String,
    /// What is wrong with it.
    pub reason: String,
}

impl ProcessorError {
    pub(crate) fn new(key: &str, reason: impl Into<String>) -> Self {
        Self { key: key.to_owned(), reason: reason.into() }
    }
}
