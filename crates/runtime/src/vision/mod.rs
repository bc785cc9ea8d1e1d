//! Models that see. A tower is the one network again, over the patches of a picture instead of tokens, with what stands
//! before and behind it (`tower`); a family is data (`spec` and a file for each, `vit` for what some share), and `layout` says in which order patches go
//! through it, and `pieces` how far at a time, as `towers` has it and `cuts` counts. `mmproj` reads llama.cpp's files,
//! and `embedded` splits Ollama's, which have text and tower in one.
//! What a prompt says of a picture, and how many rows it has there, is `sight`, which needs no device. Decoding and
//! preprocessing are `hanzo-engine-media`'s.

mod cuts;
mod dual;
pub(crate) mod embedded;
mod files;
mod gemma3;
mod idefics2;
mod idefics3;
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
pub(crate) use layout::batch_of;
pub use sight::{PICTURE, Sight};
pub use spec::TowerSpec;
pub(crate) use spec::knows;
pub use tower::Tower;
pub(crate) use tower::{means, pack, shape_of};
pub use towers::{Piece, Products, Towers};
