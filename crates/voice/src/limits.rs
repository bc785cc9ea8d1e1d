//! Limits of this crate.

/// Maximum frames of one piece, each of at most 1/40 second: 60 seconds or less.
pub(crate) const FRAMES_MAX: usize = 2_400;
/// Maximum characters of a text.
pub const TEXT_CHARS_MAX: usize = 16_384;
/// Maximum characters of phonemes in a request.
pub const PHONEMES_CHARS_MAX: usize = 16_384;
/// Maximum voices of a blend.
pub(crate) const BLEND_MAX: usize = 8;
/// Maximum number of unknown words that are reported.
pub const UNKNOWN_WORDS_MAX: usize = 64;
/// Approximate bytes of the signals of the longest piece, besides scratch.
pub(crate) const ROOM_BYTES: u64 = 256 << 20;
