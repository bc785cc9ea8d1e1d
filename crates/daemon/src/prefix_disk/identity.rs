//! Whose blocks they are: everything that the numbers in a model's cache depend on, beside the tokens.

use std::{
    fmt,
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::file::{MAGIC, hex, unhex};
use crate::{DEMO_GGUF, limits::PREFIX_DISK_MODEL_FILES_MAX, source::Source};

/// Bytes of a file's beginning that are read, and of each sample after it.
const HEADER_BYTES: u64 = 1 << 20;
const SAMPLE_BYTES: u64 = 4 << 10;
const SAMPLES: u64 = 64;

/// A digest of a model as it is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Identity([u8; 32]);

impl Identity {
    /// Of a model's files: their names, lengths and times of change, their headers and samples of what follows. A file is
    /// replaced and never rewritten, so that another content has another time; reading all of it would take as long as
    /// loading it.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn of(source: &Source) -> io::Result<Identity> {
        let mut sha = Sha256::new_with_prefix(env!("CARGO_PKG_VERSION")).chain_update(MAGIC);
        match source {
            Source::Demo => sha.update(DEMO_GGUF),
            Source::Path(path) => {
                for path in files(path)? {
                    add_file(&mut sha, &path)?;
                }
            }
        }
        Ok(Identity(sha.finalize().into()))
    }

    /// The same, run so.
    pub(crate) fn run_as(self, how: &str) -> Identity {
        Identity(Sha256::new_with_prefix(self.0).chain_update(how).finalize().into())
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Of its name.
    pub(super) fn parse(name: &str) -> Option<Identity> {
        unhex(name).map(Identity)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&hex(&self.0))
    }
}

/// The files of a directory, or a file and those that are named as other parts of it, in an order that is always the same.
pub(super) fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let (dir, begins) = if path.is_dir() {
        (path, String::new())
    } else {
        let own = name(path).unwrap_or_default();
        let Some((begins, _)) = own.split_once("-00001-of-") else { return Ok(vec![path.to_owned()]) };
        (path.parent().unwrap_or(path), begins.to_owned())
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_file() && name(&path).is_some_and(|name| name.starts_with(&begins)) {
            found.push(path);
        }
        if found.len() > PREFIX_DISK_MODEL_FILES_MAX {
            return Err(io::Error::other(format!("more than {PREFIX_DISK_MODEL_FILES_MAX} files")));
        }
    }
    found.sort_unstable();
    Ok(found)
}

fn add_file(sha: &mut Sha256, path: &Path) -> io::Result<()> {
    let mut file = File::open(path)?;
    let facts = file.metadata()?;
    let changed = facts.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    sha.update(format!("{name}\0{}\0{changed}\0", facts.len()));
    let mut part = Vec::new();
    let mut add = |file: &mut File, bytes: u64| -> io::Result<()> {
        part.clear();
        file.take(bytes).read_to_end(&mut part)?;
        sha.update(&part);
        Ok(())
    };
    add(&mut file, HEADER_BYTES)?;
    let rest = facts.len().saturating_sub(HEADER_BYTES);
    for sample in 1..=SAMPLES.min(rest / SAMPLE_BYTES) {
        // In 128 bits, because a file has more than 58 of them times samples at most.
        let at = u128::from(rest - SAMPLE_BYTES) * u128::from(sample) / u128::from(SAMPLES);
        file.seek(SeekFrom::Start(HEADER_BYTES + at as u64))?;
        add(&mut file, SAMPLE_BYTES)?;
    }
    Ok(())
}
