//! Local model store: names, file locations, metadata, and how models are downloaded, imported and removed. One
//! sled database at `<dir>/db`, opened by one process at a time. Each file is stored once in `<dir>/blobs`.
//! Each model has a folder in `<dir>/models`.
//!
//! The store parses no model file: the runtime does, and passes in the description. The store changes only its
//! own files. [`Store::remove`] forgets a model that was registered in place and leaves its files.

mod acquire;
mod alias;
mod archive;
mod collect;
mod database;
mod derive;
mod digest;
mod download;
mod error;
mod file_name;
mod file_system;
#[doc(hidden)]
pub mod fuzz;
mod http;
mod journal;
mod layout;
mod ledger;
mod limits;
mod lookup;
mod name;
mod opening;
mod pins;
mod plan;
mod prefix;
mod progress;
mod publish;
mod pull;
mod pull_error;
mod reach;
mod reachable;
mod record;
mod reference;
mod repair;
mod repaired;
mod reserve;
mod schema;
mod settings;
mod source;
mod store;
mod trees;
mod verify;

pub use alias::Alias;
pub use archive::ExportResult;
pub use collect::{DiskUsage, GarbageCollection, ModelUsage};
pub use derive::Base;
pub use digest::Digest;
pub use error::StoreError;
pub use limits::{
    ALIASES_MAX, DIGEST_EAGER_BYTES_MAX, FILE_BYTES_MAX, FILES_MAX, MODEL_BYTES_MAX, MODELS_MAX,
    NAME_BYTES_MAX, ORPHAN_AGE, PULLS_MAX, RECORD_BYTES_MAX,
};
pub use lookup::ModelLookup;
pub use name::{Match, RESERVED_NAMES, check_name, derive_name, find_name, nearest_name};
pub use plan::{Proposal, PullOptions};
pub use progress::{FileProgress, Phase, Progress};
pub use publish::Inspect;
pub use pull::{Pull, PullState, PullTotals, Puller};
pub use pull_error::PullError;
pub use reachable::{Reachable, reachable};
pub use record::{
    Description, FileOwner, FileRecord, FileState, ModelRecord, NewModel, Role, SideTexts, texts_beside,
};
pub use reference::{HubReference, OllamaReference, Reference, UrlReference};
pub use repaired::RepairReport;
pub use schema::PullRecord;
pub use settings::StoreSettings;
pub use store::{CorruptRecord, ModelList, RemovalResult, Sizes, Store, default_dir};
pub use verify::{FileCheck, Health, ModelCheck};

#[cfg(test)]
mod tests;
mod unix_time;
