//! Models that hear in a chat: Qwen2-Audio (arxiv.org/abs/2407.10759), Voxtral (arxiv.org/abs/2507.13264) and Qwen3-ASR. A tower
//! is Whisper's encoder, or much like it: the one network over a window of sound (`tower`), behind convolutions (`stem`), and what
//! joins some of its rows to one of the text model's. A family is data (`spec`); `files` finds its tensors. What a prompt says of a
//! sound, and how many rows it has there, is `hearing`, which needs no device. Files of sound are `hanzo-engine-sound`'s, and what
//! Whisper itself does of its encoder's rows is `whisper`.

mod files;
mod hearing;
mod spec;
mod stem;
#[cfg(test)]
mod tests;
mod tower;

pub use files::AudioFiles;
pub use hearing::{Heard, Hearing, Listening, SOUND, TooShort};
pub use spec::AudioSpec;
pub(crate) use spec::knows;
pub use tower::AudioTower;
