//! Where things lie in the store's directory, and the few ways files get there: every one of them leaves either the
//! whole file under its name or nothing. What the file system is asked for is in [`crate::file_system`].
//!
//! `blobs/sha256-<hex>` holds each file once, whatever models share it. `models/<folder>/` is what the runtime
//! opens: a folder with the model's own file names, each a hard link to its blob. Hard links, because a folder
//! must stay whole when a blob's own entry is collected or replaced by a forced pull (its bytes live until the last
//! link goes), because programs that canonicalise a path must find `model.gguf` and not `sha256-…`, and because
//! they cost nothing and cannot dangle. Where the file system has none, a symbolic link stands in. A file of
//! another program's store on another disk is a symbolic link always.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::StoreError;
use crate::error::is_full;
use crate::file_system::{delete_file, sync_dir, sync_tree};
use crate::reserve::Reserve;

/// The description of a model that lies beside its files: what the database is rebuilt from.
pub(crate) const MANIFEST: &str = ".hanzo-model.json";
/// The folder of models' folders.
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

    /// Every change of the database, see [`crate::ledger`].
    pub(crate) fn ledger(&self) -> PathBuf {
        self.dir.join("ledger")
    }

    /// Whoever holds a lock on this file has the store.
    pub(crate) fn lock(&self) -> PathBuf {
        self.dir.join("lock")
    }

    /// Whether there is a model that was pulled.
    pub(crate) fn has_models(&self) -> bool {
        let folders = fs::read_dir(self.models()).into_iter().flatten().flatten();
        folders.map(|folder| folder.path().join(MANIFEST)).any(|manifest| manifest.is_file())
    }

    /// As long as this file is there, making the database again has not ended: models whose manifests were not taken
    /// from it yet have no record, and must not be taken for models that are gone.
    fn incomplete(&self) -> PathBuf {
        self.dir.join("incomplete")
    }

    /// Whether what has a manifest is still to be taken from there. What cannot be told counts as that.
    pub(crate) fn is_incomplete(&self) -> bool {
        let meta = self.incomplete().symlink_metadata();
        !meta.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    /// Notes that what has a manifest is to be taken from there, so that a kill does not make it forgotten.
    pub(crate) fn set_incomplete(&self) -> Result<(), StoreError> {
        let path = self.incomplete();
        let create = || {
            File::create(&path)?.sync_all()?;
            sync_dir(&self.dir)
        };
        create().map_err(|error| self.failed(&path, error))
    }

    /// Notes that everything was taken from manifests.
    pub(crate) fn set_complete(&self) -> Result<(), StoreError> {
        let path = self.incomplete();
        delete_file(&path).and_then(|()| sync_dir(&self.dir)).map_err(|error| self.failed(&path, error))
    }

    /// Keeps what is about to be replaced under another name. A file stays in its place too, until then.
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

    /// Moves what cannot be used out of the way; where to, if it was there.
    pub(crate) fn set_aside(&self, path: &Path) -> Result<Option<PathBuf>, StoreError> {
        let to = aside(path);
        match fs::rename(path, &to) {
            Ok(()) => Ok(Some(to)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed(path, error)),
        }
    }

    /// A place where a kill would find things half done: tests look at what is on the disk there.
    pub(crate) fn step(&self) {
        #[cfg(test)]
        crate::tests::kills::look(&self.dir);
    }

    /// An error of the operating system: no room is said as such.
    pub(crate) fn failed(&self, path: &Path, error: io::Error) -> StoreError {
        if is_full(&error) { StoreError::full(&self.dir) } else { StoreError::file(path)(error) }
    }

    pub(crate) fn blobs(&self) -> PathBuf {
        self.dir.join("blobs")
    }

    /// The blob with this SHA-256, in hexadecimal.
    pub(crate) fn blob(&self, sha256: &str) -> PathBuf {
        self.blobs().join(format!("sha256-{sha256}"))
    }

    /// Files that are being fetched, and their journals.
    pub(crate) fn partial(&self) -> PathBuf {
        self.dir.join("partial")
    }

    pub(crate) fn models(&self) -> PathBuf {
        self.dir.join(MODELS)
    }

    /// A fresh folder to assemble a model in; [`Layout::settle`] makes it visible.
    pub(crate) fn stage(&self, folder: &str) -> io::Result<PathBuf> {
        let path = self.models().join(format!("{STAGE}{folder}"));
        if path.exists() {
            fs::remove_dir_all(&path)?;
        }
        fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// Gives a staged folder its name, or the next free one after it: a folder that is there already may be open
    /// in a program, and is never changed.
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

/// Whether a name under `models/` is a folder that was never finished.
pub(crate) fn is_stage(name: &str) -> bool {
    name.starts_with(STAGE)
}

/// The first free name of the form `NAME.damaged-N`.
fn aside(path: &Path) -> PathBuf {
    let named = |number: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".damaged-{number}"));
        PathBuf::from(name)
    };
    (1_u32..).map(named).find(|path| path.symlink_metadata().is_err()).unwrap_or_else(|| named(0))
}
