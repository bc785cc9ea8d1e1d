//! What can go wrong in the store: each variant says what, where and what to do.

use crate::alias::builtin;
use crate::limits::SPARE_BYTES;
use crate::name::{RESERVED_NAMES, nearest_name};
use std::path::PathBuf;

/// An operation on the store that failed. Every message is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Another process has the database open.
    #[error(
        "the model store at {} is in use by another process: ask the daemon that runs there (--engine), stop it, or name another directory (--model-dir or HANZO_MODELS_DIR)",
        dir.display()
    )]
    Locked {
        /// The store's directory.
        dir: PathBuf,
    },
    /// The database cannot be opened or created.
    #[error("cannot open the model store at {}: {why}", dir.display())]
    Open {
        /// The store's directory.
        dir: PathBuf,
        /// The operating system's or database's own words.
        why: String,
    },
    /// The database is damaged.
    #[error(
        "the database of the model store at {} is damaged ({why}): `hanzo-engine doctor --repair` sets it aside and makes it again from its ledger and the models' manifests",
        dir.display()
    )]
    Damaged {
        /// The store's directory.
        dir: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A newer version of this program wrote the database.
    #[error(
        "the model store at {} has schema version {found}, this program knows up to {known}: use a newer version of it, or name another directory (--model-dir)",
        dir.display()
    )]
    Newer {
        /// The store's directory.
        dir: PathBuf,
        /// The version that the database states.
        found: u32,
        /// The version that this program writes.
        known: u32,
    },
    /// Reading or writing the open database failed.
    #[error(
        "the model store at {} failed while {doing}: {why}; `hanzo-engine doctor --repair` mends what can be mended",
        dir.display()
    )]
    Database {
        /// The store's directory.
        dir: PathBuf,
        /// What was being done, such as "writing qwen3-4b".
        doing: String,
        /// The database's own words.
        why: String,
    },
    /// A file of a model cannot be read.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// No model answers to the name.
    #[error("no model named {name:?} in the store; {}{}", hint(name, known), known_sentence(known))]
    NotFound {
        /// What was asked for.
        name: String,
        /// Names that exist, in order.
        known: Vec<String>,
    },
    /// More than one owner has a model of that name.
    #[error("{name:?} is ambiguous: say which of {}", candidates.join(", "))]
    Ambiguous {
        /// What was asked for.
        name: String,
        /// Full names that match, in order.
        candidates: Vec<String>,
    },
    /// The name belongs to other files already.
    #[error("the name {name:?} belongs to {} already: choose another name, or remove that model first", path.display())]
    NameTaken {
        /// The name that was wanted.
        name: String,
        /// What has it.
        path: PathBuf,
    },
    /// The text is no model name.
    #[error("{name:?} is no model name: {why}")]
    BadName {
        /// The text, cut to 200 bytes.
        name: String,
        /// Which rule it breaks.
        why: &'static str,
    },
    /// The record cannot be decoded.
    #[error(
        "the record of {name:?} in the model store is corrupt ({why}): remove the model and register it again"
    )]
    Corrupt {
        /// The record's key.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// The text is no reference to a model.
    #[error("{text:?} is no reference to a model: {why}")]
    BadReference {
        /// The text, cut to 200 bytes.
        text: String,
        /// What is wrong with it, and what to write.
        why: String,
    },
    /// The name can be no alias, or leads nowhere.
    #[error("alias {alias:?}: {why}")]
    BadAlias {
        /// The alias.
        alias: String,
        /// What is wrong with it.
        why: String,
    },
    /// Something that may not happen while models are pulled.
    #[error("{pulls} pulls are running: try again when they have ended")]
    Busy {
        /// How many.
        pulls: usize,
    },
    /// A model is to be made of files that are none.
    #[error("these files are no model that can be read, and none was made: {why}")]
    Unreadable {
        /// What whoever reads models says of them.
        why: String,
    },
    /// A model is to be made of a blob that is not there.
    #[error("there is no blob sha256:{sha256}: upload it first")]
    NoBlob {
        /// The digest, in hexadecimal.
        sha256: String,
    },
    /// The bytes that were to be a blob are others.
    #[error("the bytes have SHA-256 {found}, and were to have {sha256}: nothing is kept of them")]
    OtherBlob {
        /// The digest that was promised.
        sha256: String,
        /// That of what came.
        found: String,
    },
    /// An archive that is to be imported is not as an export makes it. Nothing of it became visible.
    #[error("the archive cannot be imported, and no model of it was: {why}")]
    Archive {
        /// What is wrong with it.
        why: String,
    },
    /// The disk has no room.
    #[error(
        "not enough space on the disk of {}: {} are to be written, {} are kept free, and {} are free: {} more are needed; free some (hanzo-engine gc, hanzo-engine rm) or name another directory (--model-dir)",
        dir.display(),
        show_bytes(*needed_bytes),
        show_bytes(SPARE_BYTES),
        show_bytes(*free_bytes),
        missing(needed_bytes.saturating_add(SPARE_BYTES).saturating_sub(*free_bytes))
    )]
    DiskFull {
        /// The store's directory.
        dir: PathBuf,
        /// What is still to be written.
        needed_bytes: u64,
        /// What is free for this user.
        free_bytes: u64,
    },
    /// A limit of the store is reached.
    #[error("{what} is {value}, the store's limit is {max}")]
    Limit {
        /// What is too large, such as "the number of models".
        what: String,
        /// How large it is.
        value: u64,
        /// How large it may be.
        max: u64,
    },
}

impl StoreError {
    /// A file that cannot be read or written.
    pub(crate) fn file(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { path, source }
    }

    /// No room for the database itself.
    pub(crate) fn full(dir: &std::path::Path) -> Self {
        Self::no_room(dir, 0)
    }

    /// No room for a change of so many bytes.
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

/// No room, by whatever limit.
pub(crate) fn is_full(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::StorageFull
            | std::io::ErrorKind::QuotaExceeded
            | std::io::ErrorKind::FileTooLarge
    )
}

/// At most this many names in a message: an error is one line.
const KNOWN_MAX: usize = 10;

/// A size for people, in the units of disks.
pub(crate) fn show_bytes(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] =
        [(1_000_000_000_000, "TB"), (1_000_000_000, "GB"), (1_000_000, "MB"), (1000, "kB")];
    match UNITS.iter().find(|(size, _)| bytes >= *size) {
        Some((size, unit)) => format!("{}.{} {unit}", bytes / size, bytes % size / (size / 10)),
        None => format!("{bytes} bytes"),
    }
}

/// The size of what is missing, rounded up: so much is enough.
fn missing(bytes: u64) -> String {
    const STEP: u64 = 100_000;
    show_bytes(bytes.div_ceil(STEP).saturating_mul(STEP))
}

/// The name that was probably meant, of the store's, the built-in model's and the program's own aliases.
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
