//! Watcher that reloads key files and certificates when they change.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::{Duration, SystemTime},
};

/// Interval between checks for changes.
const LOOK: Duration = Duration::from_secs(1);

/// Value that is built from files and can be rebuilt.
pub trait Follow: Send + Sync + 'static {
    /// Watched files.
    fn files(&self) -> Vec<PathBuf>;

    /// Called after the files changed. Unusable files leave the value as it was and are logged.
    fn changed(&self);

    /// Whether to reload unchanged files because the last try failed; permissions may have changed.
    fn try_again(&self) -> bool {
        false
    }
}

/// Metadata that identifies a version of a file.
#[derive(Debug, Clone, PartialEq)]
struct Stamp {
    modified: Option<SystemTime>,
    bytes: u64,
    #[cfg(unix)]
    inode: u64,
    /// Time of the last change of content, owner or permissions, in seconds and nanoseconds. A program can set
    /// `modified` back, but not this.
    #[cfg(unix)]
    changed: [i64; 2],
}

impl Stamp {
    fn of(path: &Path) -> Option<Stamp> {
        #[cfg(unix)]
        use std::os::unix::fs::MetadataExt as _;

        let metadata = fs::metadata(path).ok()?;
        Some(Stamp {
            modified: metadata.modified().ok(),
            bytes: metadata.len(),
            #[cfg(unix)]
            inode: metadata.ino(),
            #[cfg(unix)]
            changed: [metadata.ctime(), metadata.ctime_nsec()],
        })
    }
}

/// Metadata of the files at their last reading.
#[derive(Debug, PartialEq)]
pub(crate) struct FileStamps(Vec<Option<Stamp>>);

impl FileStamps {
    /// Reads the metadata. Call it before the files are read, so that a change in between causes another
    /// reading.
    pub(crate) fn of(files: &[PathBuf]) -> FileStamps {
        FileStamps(files.iter().map(|path| Stamp::of(path)).collect())
    }
}

/// Watches the files, starting from the state `stamps`, until `made` is dropped everywhere. Must run in an async
/// runtime.
pub(crate) fn follow<T: Follow>(made: &Arc<T>, mut stamps: FileStamps) {
    if made.files().is_empty() {
        return;
    }
    let made: Weak<T> = Arc::downgrade(made);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(LOOK).await;
            let made = made.clone();
            let looked = tokio::task::spawn_blocking(move || {
                let made = made.upgrade()?;
                let now = FileStamps::of(&made.files());
                if now != stamps || made.try_again() {
                    made.changed();
                }
                Some(now)
            });
            match looked.await {
                Ok(Some(now)) => stamps = now,
                _ => return,
            }
        }
    });
}
