//! Identity of a model's blocks: everything besides the tokens that the numbers in its KV cache depend on.

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
use crate::{DEMO_GGUF, limits::PREFIX_DISK_MODEL_FILES_MAX, source::ModelSource};

/// Bytes read from the beginning of a file; the two constants below are the size and number of the samples after
/// it.
const HEADER_BYTES: u64 = 1 << 20;
const SAMPLE_BYTES: u64 = 4 << 10;
const SAMPLES: u64 = 64;

/// Digest of a model and its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Identity([u8; 32]);

impl Identity {
    /// Digest of a model's files: their names, sizes and modification times, their headers, and samples of the
    /// rest. Files are replaced, never rewritten, so that a changed content has another modification time. Reading
    /// everything would take as long as loading it.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(crate) fn of(source: &ModelSource) -> io::Result<Identity> {
        let mut sha = Sha256::new_with_prefix(env!("CARGO_PKG_VERSION")).chain_update(MAGIC);
        match source {
            ModelSource::Demo => sha.update(DEMO_GGUF),
            ModelSource::Path(path) => {
                for path in files(path)? {
                    add_file(&mut sha, &path)?;
                }
            }
        }
        Ok(Identity(sha.finalize().into()))
    }

    /// Extends the identity by the options that the model runs with.
    pub(crate) fn run_as(self, how: &str) -> Identity {
        Identity(Sha256::new_with_prefix(self.0).chain_update(how).finalize().into())
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Parses the name of an identity.
    pub(super) fn parse(name: &str) -> Option<Identity> {
        unhex(name).map(Identity)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&hex(&self.0))
    }
}

/// Files of a directory, or a file with the other parts of a split one, in a fixed order.
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
        // In 128 bits, because the product overflows 64 bits for files above 2^58 bytes.
        let at = u128::from(rest - SAMPLE_BYTES) * u128::from(sample) / u128::from(SAMPLES);
        file.seek(SeekFrom::Start(HEADER_BYTES + at as u64))?;
        add(&mut file, SAMPLE_BYTES)?;
    }
    Ok(())
}
