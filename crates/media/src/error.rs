//! Errors for pictures and for processors' settings.

use thiserror::Error;

/// Reason for refusing a picture. Each message says what to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PictureError {
    /// The file is empty.
    #[error("is empty; send the bytes of a picture")]
    Empty,
    /// The file has too many bytes.
    #[error("has {bytes} bytes, and at most {max} are taken; send a smaller picture")]
    TooManyBytes {
        /// Size of the file.
        bytes: usize,
        /// Maximum size.
        max: usize,
    },
    /// The picture has too many pixels.
    #[error("is {width} x {height} pixels, and at most {max} pixels are taken; send a smaller picture")]
    TooManyPixels {
        /// Width in the header.
        width: u32,
        /// Height in the header.
        height: u32,
        /// Maximum number of pixels.
        max: u64,
    },
    /// A side of the picture is too long.
    #[error("is {width} x {height} pixels, and at most {max} beside or above each other are taken; cut it")]
    TooLong {
        /// Width in the header.
        width: u32,
        /// Height in the header.
        height: u32,
        /// Maximum of each side.
        max: u32,
    },
    /// The file has no supported format.
    #[error("is neither JPEG, PNG, WebP nor GIF; send it as one of these")]
    UnknownFormat,
    /// The JPEG has too many scans.
    #[error(
        "is passed over {scans} times by its own file, and {max} are taken; save it again as a plain picture"
    )]
    TooManyScans {
        /// Number of scans, at least.
        scans: usize,
        /// Maximum number of scans.
        max: usize,
    },
    /// The file cannot be decoded.
    #[error("cannot be decoded as {format}: {reason}; send a whole picture")]
    Broken {
        /// Format according to its first bytes.
        format: &'static str,
        /// Description of the error.
        reason: String,
    },
    /// The decoding was interrupted, because its request has ended.
    #[error("was not decoded to its end: its request has ended")]
    Interrupted,
    /// A `data:` URI is invalid.
    #[error("{0}")]
    Uri(String),
    /// The aspect ratio is too extreme for the processor.
    #[error(
        "is {width} x {height} pixels, which the model's processor cannot make to a size of its own; cut it"
    )]
    Shape {
        /// Width of the picture.
        width: u32,
        /// Height of the picture.
        height: u32,
    },
    /// The request's bounds allow no size.
    #[error(
        "is to have {least} to {most} pixels: min_pixels must not be above max_pixels, and max_pixels at least {square}, one \
         square of the model's patches"
    )]
    Bounds {
        /// Minimum number of pixels.
        least: u64,
        /// Maximum number of pixels.
        most: u64,
        /// Pixels of the smallest picture.
        square: u64,
    },
    /// The request's bounds would make the picture larger than allowed.
    #[error(
        "would become {width} x {height} pixels, and at most {max} are made of a picture; set min_pixels lower"
    )]
    Larger {
        /// Resulting width.
        width: u32,
        /// Resulting height.
        height: u32,
        /// Maximum number of pixels.
        max: u64,
    },
    /// The request has bounds, which this processor does not support.
    #[error("has min_pixels or max_pixels, which this model's processor does not know; leave them out")]
    NoBounds,
    /// The picture has more patches than the tower has room for.
    #[error(
        "becomes {width} x {height} pixels, {patches} patches, and the model's tower has room for {max}; set max_pixels to \
         {pixels} or less, or send a smaller picture"
    )]
    TooManyPatches {
        /// Resulting width.
        width: u32,
        /// Resulting height.
        height: u32,
        /// Resulting number of patches.
        patches: usize,
        /// Maximum number of patches.
        max: usize,
        /// Pixels of that many patches.
        pixels: u64,
    },
}

/// Error in a processor's settings.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{key}: {reason}")]
pub struct ProcessorError {
    /// Key in `preprocessor_config.json`.
    pub key: String,
    /// Description of the error.
    pub reason: String,
}

impl ProcessorError {
    pub(crate) fn new(key: &str, reason: impl Into<String>) -> Self {
        Self { key: key.to_owned(), reason: reason.into() }
    }
}
