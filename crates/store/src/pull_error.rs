//! What can go wrong with a pull: each variant says what, where and what to do. Nothing of a pull that failed is
//! visible; what it fetched stays for the next attempt unless its digest was wrong.

use crate::StoreError;
use crate::digest::Digest;
use std::path::PathBuf;

/// A pull that failed. Every message is one line; a URL in it has no query, which may be a signature.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PullError {
    /// The store refuses.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A variable of the environment cannot be read.
    #[error("{name}: {why}")]
    Setting {
        /// The variable.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// The network may not be asked, and what is on this machine is not enough.
    #[error("{what} is not on this machine, and HF_HUB_OFFLINE says not to ask the network")]
    Offline {
        /// What was wanted.
        what: String,
    },
    /// The source has no such thing.
    #[error("{what} is not there: {hint}")]
    NotFound {
        /// What was wanted.
        what: String,
        /// What to look at.
        hint: String,
    },
    /// The source asks who is asking, or for a licence to be accepted.
    #[error("{what} may not be had ({status}): {hint}")]
    Forbidden {
        /// What was wanted.
        what: String,
        /// The HTTP status.
        status: u16,
        /// What to do, and where.
        hint: String,
    },
    /// A server answered with a status that means no.
    #[error("{url} answered {status}{}", if detail.is_empty() { String::new() } else { format!(": {detail}") })]
    Status {
        /// Without its query.
        url: String,
        /// The HTTP status.
        status: u16,
        /// What the server said, cut; or what to do.
        detail: String,
    },
    /// A server could not be reached, or broke off, again and again.
    #[error(
        "{url} failed {attempts} times, the last time so: {why}; pull again to go on from where it stopped"
    )]
    Network {
        /// Without its query.
        url: String,
        /// How often it was tried without a byte.
        attempts: u32,
        /// What happened last.
        why: String,
    },
    /// A server sends elsewhere in a way that is not followed.
    #[error("{url} redirects {why}")]
    Redirect {
        /// Without its query.
        url: String,
        /// Such as "in a circle".
        why: String,
    },
    /// A listing, manifest or file that is not what such a thing may be.
    #[error("{what} is refused: {why}")]
    Refused {
        /// What it is.
        what: String,
        /// The rule it breaks.
        why: String,
    },
    /// There is a choice to make, or the choice made is not there.
    #[error("{what}: {why}; there are {}", candidates.join(", "))]
    Choice {
        /// The source.
        what: String,
        /// What is missing.
        why: String,
        /// What can be chosen.
        candidates: Vec<String>,
    },
    /// The bytes are not those the source promised. They were deleted.
    #[error("{file} has digest {found}, and {expected} was promised: it was deleted, pull again")]
    DigestMismatch {
        /// The file.
        file: String,
        /// What the source promised.
        expected: Digest,
        /// What arrived.
        found: Digest,
    },
    /// The server's copy changed again and again while it was fetched.
    #[error("{file} changed {times} times on the server while it was fetched: try again later")]
    Unsteady {
        /// The file.
        file: String,
        /// How often.
        times: u32,
    },
    /// A file of the store cannot be written.
    #[error("{}: {source}", path.display())]
    Disk {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// Somebody ended the pull.
    #[error("the pull was cancelled; pull again to go on from where it stopped")]
    Cancelled,
    /// As many pulls run as may.
    #[error("{max} pulls are running, which is the most: try again when one has ended")]
    TooMany {
        /// How many.
        max: usize,
    },
    /// Something of this process failed that no source can cause.
    #[error("internal error: {0}")]
    Internal(String),
}

impl PullError {
    pub(crate) fn refused(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Refused { what: what.into(), why: why.into() }
    }
}
