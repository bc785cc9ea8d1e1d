//! Every bound of this crate.

/// Frames of one piece of sound, of 1/40 second or less each: 60 seconds and more.
pub(crate) const FRAMES_MAX: usize = 2_400;
/// Characters of a text.
pub const TEXT_CHARS_MAX: usize = 16_384;
/// Characters of phonemes that are given.
pub const PHONEMES_CHARS_MAX: usize = 16_384;
/// Voices of a blend.
pub(crate) const BLEND_MAX: usize = 8;
/// Words that are told to be unknown.
pub const UNKNOWN_WORDS_MAX: usize = 64;
/// Bytes that signals of the longest piece take beside scratch, about.
pub(crate) const ROOM_BYTES: u64 = 256 << 20;
