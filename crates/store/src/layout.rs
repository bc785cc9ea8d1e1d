//! Paths within the store's directory, and the few ways that files get there. Each leaves either the whole file
//! under its name or nothing. Plain file system operations are in [`crate::file_system`].
//!
//! `blobs/sha256-<hex>` holds each file once, even if several models share it. `models/<folder>/` is the folder
//! that the runtime opens. It has the model's own file names, each a hard link to its blob, for three reasons.
//! A folder stays whole when a blob's entry is collected or replaced by a forced pull, because its bytes live
//! until the last link goes. Programs that canonicalise a path find `model.gguf` and not `sha256-…`. Hard links
//! cost nothing and cannot dangle. On a file system without them a symbolic link takes their place. A file of
//! another program's store on another disk is always a symbolic link.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::StoreError;
use crate::error::is_full;
use crate::file_system::{delete_file, sync_dir, sync_tree};
use crate::reserve::Reserve;

/// File that describes a model, beside the model's files. The database can be rebuilt from it.
pub(crate) const MANIFEST: &str = ".hanzo-model.json";
/// Folder that contains the models' folders.
pub(crate) const MODELS: &str = "models";
const STAGE: &str = ".stage-";

/// Paths within the store's directory.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    dir: PathBuf,
    pub(crate) reserve: Reserve,
}

impl Layout {
    pub(crate) fn new(dir: PathBuf) -> Self {
        let reserve = Reserve::new(&dir, dir.join("reserve"));
        Self { dir, reserve }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.dir.join("db")
    }

    /// Path of the ledger of database changes, see [`crate::ledger`].
    pub(crate) fn ledger(&self) -> PathBuf {
        self.dir.join("ledger")
    }

    /// Path of the lock file. The process that locks it owns the store.
    pub(crate) fn lock(&self) -> PathBuf {
        self.dir.join("lock")
    }

    /// Returns true if any pulled model exists.
    pub(crate) fn has_models(&self) -> bool {
        let folders = fs::read_dir(self.models()).into_iter().flatten().flatten();
        folders.map(|folder| folder.path().join(MANIFEST)).any(|manifest| manifest.is_file())
    }

    /// Marker file: present while the database is being rebuilt. Models whose manifests are not yet read have
    /// no record then, and must not be treated as removed.
    fn incomplete(&self) -> PathBuf {
        self.dir.join("incomplete")
    }

    /// Returns true if models with manifests must still be restored. Assumes so if the check fails.
    pub(crate) fn is_incomplete(&self) -> bool {
        let meta = self.incomplete().symlink_metadata();
        !meta.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    /// Creates the marker durably, so that a kill does not lose it.
    pub(crate) fn set_incomplete(&self) -> Result<(), StoreError> {
        let path = self.incomplete();
        let create = || {
            File::create(&path)?.sync_all()?;
            sync_dir(&self.dir)
        };
        create().map_err(|error| self.failed(&path, error))
    }

    /// Removes the marker: every manifest has been read.
    pub(crate) fn set_complete(&self) -> Result<(), StoreError> {
        let path = self.incomplete();
        delete_file(&path).and_then(|()| sync_dir(&self.dir)).map_err(|error| self.failed(&path, error))
    }

    /// Keeps a copy of `path` under another name before it is replaced. A file stays in its place until then.
    pub(crate) fn keep_aside(&self, path: &Path) -> Result<(), StoreError> {
        match path.symlink_metadata() {
            Ok(meta) if meta.is_file() => {
                let to = aside(path);
                let kept = fs::hard_link(path, &to).or_else(|_| fs::copy(path, &to).map(drop));
                kept.map_err(|error| self.failed(&to, error))
            }
            _ => self.set_aside(path).map(drop),
        }
    }

    /// Moves an unusable file out of the way. Returns its new path, or None if it did not exist.
    pub(crate) fn set_aside(&self, path: &Path) -> Result<Option<PathBuf>, StoreError> {
        let to = aside(path);
        match fs::rename(path, &to) {
            Ok(()) => Ok(Some(to)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed(path, error)),
        }
    }

    /// Marks a point where a kill would leave work half done. Tests inspect the disk there.
    pub(crate) fn step(&self) {
        #[cfg(test)]
        crate::tests::kills::look(&self.dir);
    }

    /// Converts an error of the operating system. A full disk becomes [`StoreError::DiskFull`].
    pub(crate) fn failed(&self, path: &Path, error: io::Error) -> StoreError {
        if is_full(&error) { StoreError::full(&self.dir) } else { StoreError::file(path)(error) }
    }

    pub(crate) fn blobs(&self) -> PathBuf {
        self.dir.join("blobs")
    }

    /// Path of the blob with this SHA-256, in hexadecimal.
    pub(crate) fn blob(&self, sha256: &str) -> PathBuf {
        self.blobs().join(format!("sha256-{sha256}"))
    }

    /// Folder of part files and their journals.
    pub(crate) fn partial(&self) -> PathBuf {
        self.dir.join("partial")
    }

    pub(crate) fn models(&self) -> PathBuf {
        self.dir.join(MODELS)
    }

    /// Creates an empty folder to assemble a model in. [`Layout::publish`] makes it visible.
    pub(crate) fn stage(&self, folder: &str) -> io::Result<PathBuf> {
        let path = self.models().join(format!("{STAGE}{folder}"));
        if path.exists() {
            fs::remove_dir_all(&path)?;
        }
        fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// Renames a staged folder to `folder`, or to the next free name. An existing folder may be open in a
    /// program and is never changed.
    pub(crate) fn publish(&self, stage: &Path, folder: &str) -> io::Result<PathBuf> {
        sync_tree(stage)?;
        let names = std::iter::once(folder.to_owned()).chain((2_u32..).map(|n| format!("{folder}-{n}")));
        for name in names {
            let path = self.models().join(name);
            if path.symlink_metadata().is_ok() {
                continue;
            }
            fs::rename(stage, &path)?;
            sync_dir(&self.models())?;
            return Ok(path);
        }
        Err(io::Error::other("no free folder name"))
    }
}

/// Returns true if a name under `models/` is an unfinished folder.
pub(crate) fn is_stage(name: &str) -> bool {
    name.starts_with(STAGE)
}

/// Returns the first free name of the form `NAME.damaged-N`.
fn aside(path: &Path) -> PathBuf {
    let named = |number: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".damaged-{number}"));
        PathBuf::from(name)
    };
    (1_u32..).map(named).find(|path| path.symlink_metadata().is_err()).unwrap_or_else(|| named(0))
}
