//! The record of the models on this machine: what they are called, where their files lie, what the files say of
//! themselves. One sled database at `<dir>/db`, opened by one process at a time.
//!
//! Reads no model file (the runtime does, and hands over what it read), fetches nothing, and deletes nothing: a
//! model registered in place is forgotten by [`Store::remove`] and its files stay.

mod digest;
mod error;
mod limits;
mod name;
mod record;
mod schema;
mod store;

pub use error::StoreError;
pub use limits::{DIGEST_EAGER_BYTES_MAX, FILES_MAX, MODELS_MAX, NAME_BYTES_MAX, RECORD_BYTES_MAX};
pub use name::{Match, check_name, derive_name, find_name};
pub use record::{FileRecord, FileState, ModelRecord, NewModel};
pub use store::{CorruptRecord, Listing, Removed, Store, default_dir};

#[cfg(test)]
mod tests;
