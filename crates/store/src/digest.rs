//! Digests of files: SHA-256, which names blobs, and git's SHA-1, by which a hub identifies small files.

use sha1::Sha1;
use sha2::{Digest as _, Sha256};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

/// Digest that a source states for a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Digest {
    /// SHA-256 in 64 hexadecimal digits, lower case.
    Sha256(String),
    /// SHA-1 of git's blob object (a header with the length, then the bytes) in 40 hexadecimal digits, lower
    /// case.
    Git(String),
}

impl Digest {
    /// Parses `sha256:…` or 64 hexadecimal digits.
    pub(crate) fn sha256(text: &str) -> Option<Self> {
        let hex = text.strip_prefix("sha256:").unwrap_or(text);
        is_hex(hex, 64).then(|| Self::Sha256(hex.to_ascii_lowercase()))
    }

    /// Parses 40 hexadecimal digits.
    pub(crate) fn git(text: &str) -> Option<Self> {
        is_hex(text, 40).then(|| Self::Git(text.to_ascii_lowercase()))
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Sha256(hex) => write!(f, "sha256:{hex}"),
            Self::Git(hex) => write!(f, "git:{hex}"),
        }
    }
}

/// Returns true if `text` is exactly `digits` hexadecimal digits.
pub(crate) fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Computes a file's SHA-256 and, if its source states one, git's SHA-1.
#[derive(Clone)]
pub(crate) struct Hasher {
    sha256: Sha256,
    git: Option<Sha1>,
}

impl Hasher {
    /// `git_bytes` is the file's length if git's digest is wanted.
    pub(crate) fn new(git_bytes: Option<u64>) -> Self {
        let git = git_bytes.map(|bytes| Sha1::new_with_prefix(format!("blob {bytes}\0")));
        Self { sha256: Sha256::new(), git }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.sha256.update(bytes);
        if let Some(git) = &mut self.git {
            git.update(bytes);
        }
    }

    /// Returns the SHA-256 in hexadecimal, and the digest to compare with `expected`.
    pub(crate) fn finish(self, expected: Option<&Digest>) -> (String, Option<Digest>) {
        let sha256 = hex(&self.sha256.finalize());
        let found = match expected {
            Some(Digest::Sha256(_)) => Some(Digest::Sha256(sha256.clone())),
            Some(Digest::Git(_)) => self.git.map(|git| Digest::Git(hex(&git.finalize()))),
            None => None,
        };
        (sha256, found)
    }
}

/// Hashes the whole file; returns 64 hexadecimal digits.
///
/// # Errors
/// The operating system's error.
pub(crate) fn sha256(path: &Path) -> Result<String, std::io::Error> {
    digest_file(path, Hasher::new(None), |_| true).map(|hasher| hasher.finish(None).0)
}

/// SHA-256 of a byte string, in hexadecimal.
pub(crate) fn sha256_of(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Hashes the whole file and calls `seen` with the size of each piece. Stops early if `seen` returns false.
///
/// # Errors
/// The operating system's error. `Interrupted` if `seen` stopped it.
pub(crate) fn digest_file(
    path: &Path,
    mut hasher: Hasher,
    mut seen: impl FnMut(u64) -> bool,
) -> Result<Hasher, std::io::Error> {
    let mut file = File::open(path)?;
    let mut piece = vec![0_u8; 1 << 20];
    loop {
        match file.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => {
                hasher.update(&piece[..n]);
                if !seen(n as u64) {
                    return Err(ErrorKind::Interrupted.into());
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(hasher)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
