//! Errors of a pull. Each variant states what went wrong, where, and what to do. Nothing of a failed pull is
//! visible. Fetched bytes stay for the next attempt unless their digest was wrong.

use crate::StoreError;
use crate::digest::Digest;
use std::path::PathBuf;

/// Error of a pull. Every message is one line. A URL in it has no query, which may be a signature.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PullError {
    /// Error of the store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An environment variable is invalid.
    #[error("{name}: {why}")]
    Setting {
        /// Name of the variable.
        name: String,
        /// Description of the mistake.
        why: String,
    },
    /// The network may not be used, and not all files are on this machine.
    #[error("{what} is not on this machine, and HF_HUB_OFFLINE says not to ask the network")]
    Offline {
        /// Requested item.
        what: String,
    },
    /// The source does not have the item.
    #[error("{what} is not there: {hint}")]
    NotFound {
        /// Requested item.
        what: String,
        /// Advice for the user.
        hint: String,
    },
    /// The source requires a login, or acceptance of a licence.
    #[error("{what} may not be had ({status}): {hint}")]
    Forbidden {
        /// Requested item.
        what: String,
        /// HTTP status.
        status: u16,
        /// Advice for the user, with the address.
        hint: String,
    },
    /// A server answered with a status that refuses the request.
    #[error("{url} answered {status}{}", if detail.is_empty() { String::new() } else { format!(": {detail}") })]
    Status {
        /// URL without its query.
        url: String,
        /// HTTP status.
        status: u16,
        /// Start of the server's error message, or advice.
        detail: String,
    },
    /// A server could not be reached, or broke off, too many times.
    #[error(
        "{url} failed {attempts} times, the last time so: {why}; pull again to go on from where it stopped"
    )]
    Network {
        /// URL without its query.
        url: String,
        /// Number of attempts without progress.
        attempts: u32,
        /// Last failure.
        why: String,
    },
    /// A server's redirect is not followed.
    #[error("{url} redirects {why}")]
    Redirect {
        /// URL without its query.
        url: String,
        /// Reason, such as "in a circle".
        why: String,
    },
    /// A listing, manifest or file is invalid.
    #[error("{what} is refused: {why}")]
    Refused {
        /// Name of the item.
        what: String,
        /// Rule that it breaks.
        why: String,
    },
    /// The user must choose, or the choice does not exist.
    #[error("{what}: {why}; there are {}", candidates.join(", "))]
    Choice {
        /// The source.
        what: String,
        /// Description of the missing choice.
        why: String,
        /// Possible choices.
        candidates: Vec<String>,
    },
    /// The bytes do not match the promised digest. They were deleted.
    #[error("{file} has digest {found}, and {expected} was promised: it was deleted, pull again")]
    DigestMismatch {
        /// Name of the file.
        file: String,
        /// Digest promised by the source.
        expected: Digest,
        /// Digest of the bytes received.
        found: Digest,
    },
    /// The server's copy kept changing during the download.
    #[error("{file} changed {times} times on the server while it was fetched: try again later")]
    Unsteady {
        /// Name of the file.
        file: String,
        /// Number of changes.
        times: u32,
    },
    /// A file of the store cannot be written.
    #[error("{}: {source}", path.display())]
    Disk {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A user cancelled the pull.
    #[error("the pull was cancelled; pull again to go on from where it stopped")]
    Cancelled,
    /// The maximum number of pulls is running.
    #[error("{max} pulls are running, which is the most: try again when one has ended")]
    TooMany {
        /// The maximum.
        max: usize,
    },
    /// An internal failure that no source can cause.
    #[error("internal error: {0}")]
    Internal(String),
}

impl PullError {
    pub(crate) fn refused(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Refused { what: what.into(), why: why.into() }
    }
}
