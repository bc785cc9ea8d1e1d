//! Models that take sound in a chat: Qwen2-Audio (arxiv.org/abs/2407.10759), Voxtral (arxiv.org/abs/2507.13264) and
//! Qwen3-ASR. A tower is Whisper's encoder or a close relative: convolutions (`stem`), the one network over a
//! window of sound (`tower`), and a projector that joins several rows to one of the text model's. A family is data
//! (`spec`); `files` finds its tensors. `hearing` needs no device: it prepares the sounds of a prompt and counts
//! their rows. The crate `hanzo-engine-sound` decodes sound files. Whisper itself, which transcribes, is in
//! `whisper`.

mod files;
mod hearing;
mod spec;
mod stem;
#[cfg(test)]
mod tests;
mod tower;

pub use files::AudioFiles;
pub use hearing::{PreparedSound, SoundBuilder, SoundPreprocessor, TooShort};
pub use spec::AudioSpec;
pub(crate) use spec::knows;
pub use tower::AudioTower;
