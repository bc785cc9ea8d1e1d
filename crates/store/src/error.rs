//! What can go wrong in the store: each variant says what, where and what to do.

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
    #[error("the model store at {} failed while {doing}: {why}", dir.display())]
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
    #[error("no model named {name:?} in the store; {}", known_sentence(known))]
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

/// At most this many names in a message: an error is one line.
const KNOWN_MAX: usize = 10;

fn known_sentence(known: &[String]) -> String {
    match known.len() {
        0 => "it holds no models yet".to_owned(),
        n if n <= KNOWN_MAX => format!("it holds {}", known.join(", ")),
        n => format!("it holds {} and {} more", known[..KNOWN_MAX].join(", "), n - KNOWN_MAX),
    }
}
