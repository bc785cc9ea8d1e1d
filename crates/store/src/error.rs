//! Errors of the store. Each variant states what went wrong, where, and what to do.

use crate::alias::builtin;
use crate::limits::SPARE_BYTES;
use crate::name::{RESERVED_NAMES, nearest_name};
use std::path::PathBuf;

/// Error of a store operation. Every message is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The database is open in another process.
    #[error(
        "the model store at {} is in use by another process: ask the daemon that runs there (--engine), stop it, or name another directory (--model-dir or HANZO_MODELS_DIR)",
        dir.display()
    )]
    Locked {
        /// Directory of the store.
        dir: PathBuf,
    },
    /// The database cannot be opened or created.
    #[error("cannot open the model store at {}: {why}", dir.display())]
    Open {
        /// Directory of the store.
        dir: PathBuf,
        /// Message of the operating system or the database.
        why: String,
    },
    /// The database is damaged.
    #[error(
        "the database of the model store at {} is damaged ({why}): `hanzo-engine doctor --repair` sets it aside and makes it again from its ledger and the models' manifests",
        dir.display()
    )]
    Damaged {
        /// Directory of the store.
        dir: PathBuf,
        /// Description of the damage.
        why: String,
    },
    /// A newer version of this program wrote the database.
    #[error(
        "the model store at {} has schema version {found}, this program knows up to {known}: use a newer version of it, or name another directory (--model-dir)",
        dir.display()
    )]
    Newer {
        /// Directory of the store.
        dir: PathBuf,
        /// Version that the database states.
        found: u32,
        /// Version that this program writes.
        known: u32,
    },
    /// Reading or writing the open database failed.
    #[error(
        "the model store at {} failed while {doing}: {why}; `hanzo-engine doctor --repair` mends what can be mended",
        dir.display()
    )]
    Database {
        /// Directory of the store.
        dir: PathBuf,
        /// The operation, such as "writing qwen3-4b".
        doing: String,
        /// Message of the database.
        why: String,
    },
    /// A file of a model cannot be read.
    #[error("{}: {source}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// No model matches the name.
    #[error("no model named {name:?} in the store; {}{}", hint(name, known), known_sentence(known))]
    NotFound {
        /// Requested name.
        name: String,
        /// Names that exist, in order.
        known: Vec<String>,
    },
    /// More than one owner has a model of that name.
    #[error("{name:?} is ambiguous: say which of {}", candidates.join(", "))]
    Ambiguous {
        /// Requested name.
        name: String,
        /// Full names that match, in order.
        candidates: Vec<String>,
    },
    /// The name belongs to other files already.
    #[error("the name {name:?} belongs to {} already: choose another name, or remove that model first", path.display())]
    NameTaken {
        /// Requested name.
        name: String,
        /// Path of the files that have the name.
        path: PathBuf,
    },
    /// The text is not a valid model name.
    #[error("{name:?} is no model name: {why}")]
    BadName {
        /// The text, cut to 200 bytes.
        name: String,
        /// Rule that it breaks.
        why: &'static str,
    },
    /// The record cannot be decoded.
    #[error(
        "the record of {name:?} in the model store is corrupt ({why}): remove the model and register it again"
    )]
    Corrupt {
        /// Key of the record.
        name: String,
        /// Description of the damage.
        why: String,
    },
    /// The text is not a valid reference to a model.
    #[error("{text:?} is no reference to a model: {why}")]
    BadReference {
        /// The text, cut to 200 bytes.
        text: String,
        /// Description of the mistake, and the right form.
        why: String,
    },
    /// The name cannot be an alias, or its target does not exist.
    #[error("alias {alias:?}: {why}")]
    BadAlias {
        /// Name of the alias.
        alias: String,
        /// Description of the mistake.
        why: String,
    },
    /// The operation is not possible while models are pulled.
    #[error("{pulls} pulls are running: try again when they have ended")]
    Busy {
        /// Number of running pulls.
        pulls: usize,
    },
    /// A model was to be made of files that are no readable model.
    #[error("these files are no model that can be read, and none was made: {why}")]
    Unreadable {
        /// Message of the model reader.
        why: String,
    },
    /// A model was to be made of a blob that does not exist.
    #[error("there is no blob sha256:{sha256}: upload it first")]
    NoBlob {
        /// SHA-256 in hexadecimal.
        sha256: String,
    },
    /// The uploaded bytes do not match the promised digest.
    #[error("the bytes have SHA-256 {found}, and were to have {sha256}: nothing is kept of them")]
    OtherBlob {
        /// Promised SHA-256.
        sha256: String,
        /// SHA-256 of the bytes received.
        found: String,
    },
    /// An archive to import is invalid. None of its models became visible.
    #[error("the archive cannot be imported, and no model of it was: {why}")]
    Archive {
        /// Description of the mistake.
        why: String,
    },
    /// The disk is full.
    #[error(
        "not enough space on the disk of {}: {} are to be written, {} are kept free, and {} are free: {} more are needed; free some (hanzo-engine gc, hanzo-engine rm) or name another directory (--model-dir)",
        dir.display(),
        show_bytes(*needed_bytes),
        show_bytes(SPARE_BYTES),
        show_bytes(*free_bytes),
        missing(needed_bytes.saturating_add(SPARE_BYTES).saturating_sub(*free_bytes))
    )]
    DiskFull {
        /// Directory of the store.
        dir: PathBuf,
        /// Bytes still to be written.
        needed_bytes: u64,
        /// Bytes free for this user.
        free_bytes: u64,
    },
    /// A limit of the store is reached.
    #[error("{what} is {value}, the store's limit is {max}")]
    Limit {
        /// Limited quantity, such as "the number of models".
        what: String,
        /// Requested value.
        value: u64,
        /// Maximum value.
        max: u64,
    },
}

impl StoreError {
    /// Error for a file that cannot be read or written.
    pub(crate) fn file(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { path, source }
    }

    /// Error for a disk too full for the database itself.
    pub(crate) fn full(dir: &std::path::Path) -> Self {
        Self::no_room(dir, 0)
    }

    /// Error for a disk too full for a change of `bytes` bytes.
    pub(crate) fn no_room(dir: &std::path::Path, bytes: usize) -> Self {
        let free_bytes = crate::file_system::free_bytes(dir).unwrap_or(0);
        Self::DiskFull { dir: dir.to_owned(), needed_bytes: crate::reserve::needed_bytes(bytes), free_bytes }
    }

    pub(crate) fn limit(what: impl Into<String>, value: u64, max: u64) -> Self {
        Self::Limit { what: what.into(), value, max }
    }

    pub(crate) fn reference(text: &str, why: impl Into<String>) -> Self {
        Self::BadReference { text: text.chars().take(200).collect(), why: why.into() }
    }
}

/// Returns true if the error means no space, by whatever limit: disk, quota or file size.
pub(crate) fn is_full(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::StorageFull
            | std::io::ErrorKind::QuotaExceeded
            | std::io::ErrorKind::FileTooLarge
    )
}

/// Maximum number of names in a message, so that an error stays one line.
const KNOWN_MAX: usize = 10;

/// Formats a size for people, in decimal units.
pub(crate) fn show_bytes(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] =
        [(1_000_000_000_000, "TB"), (1_000_000_000, "GB"), (1_000_000, "MB"), (1000, "kB")];
    match UNITS.iter().find(|(size, _)| bytes >= *size) {
        Some((size, unit)) => format!("{}.{} {unit}", bytes / size, bytes % size / (size / 10)),
        None => format!("{bytes} bytes"),
    }
}

/// Formats the missing space, rounded up so that freeing that much is enough.
fn missing(bytes: u64) -> String {
    const STEP: u64 = 100_000;
    show_bytes(bytes.div_ceil(STEP).saturating_mul(STEP))
}

/// Suggests the most similar name among the store's, the built-in model's and the built-in aliases.
fn hint(name: &str, known: &[String]) -> String {
    let names =
        known.iter().map(String::as_str).chain(RESERVED_NAMES).chain(builtin().keys().map(String::as_str));
    nearest_name(name, names).map_or_else(String::new, |meant| format!("did you mean {meant}? "))
}

fn known_sentence(known: &[String]) -> String {
    match known.len() {
        0 => "it holds no models yet".to_owned(),
        n if n <= KNOWN_MAX => format!("it holds {}", known.join(", ")),
        n => format!("it holds {} and {} more", known[..KNOWN_MAX].join(", "), n - KNOWN_MAX),
    }
}
