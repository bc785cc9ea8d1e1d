//! Models that see. A tower is the one network again, over the patches of a picture instead of tokens, with what stands
//! before and behind it (`tower`); a family is data (`families`). What a prompt says of a picture, and how many rows it
//! has there, is `sight`, which needs no device. Decoding and preprocessing are `hanzo-engine-media`'s.

mod families;
mod files;
mod sight;
#[cfg(test)]
mod tests;
mod tower;

pub use families::TowerSpec;
pub(crate) use families::knows;
pub use files::TowerFiles;
pub use sight::{PICTURE, Sight};
pub use tower::{Tower, Towers};
