//! Models with vision. A tower is the one network over a picture's patches instead of tokens, with an embedding
//! before it and a projector after it (`tower`). A family is data (`spec`, with one file per family, and `vit` for
//! shared parts). `layout` orders the patches. `pieces` runs the tower in pieces, behind the trait in `towers`;
//! `cuts` sizes them. `mmproj` reads llama.cpp's tower files, and `embedded` splits Ollama's files with text model
//! and tower in one. `sight` needs no device: it prepares the pictures of a prompt and counts their rows. Decoding
//! and preprocessing are in `hanzo-engine-media`.

mod cuts;
mod dual;
pub(crate) mod embedded;
mod files;
mod gemma3;
mod idefics2;
mod idefics3;
mod joiner;
mod layout;
mod llava;
mod mllama;
pub(crate) mod mmproj;
mod mosaic;
mod perceiver;
mod pieces;
mod pixtral;
mod pooled;
mod quantise;
mod qwen;
mod sight;
mod spec;
#[cfg(test)]
pub(crate) mod tests;
mod tower;
mod towers;
pub(crate) mod vit;

pub use files::TowerFiles;
pub(crate) use files::{f32s, no_tokens};
pub(crate) use joiner::{Joiner, JoinerBuffers, JoinerFiles, JoinerWidths};
pub(crate) use layout::batch_of;
pub use sight::Sight;
pub use spec::TowerSpec;
pub(crate) use spec::knows;
pub use tower::Tower;
pub(crate) use tower::{means, pack, shape_of};
pub use towers::{Piece, Products, Towers};
