//! Files that are read again when they change: keys and certificates.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::{Duration, SystemTime},
};

/// How often it is looked whether a file has changed.
const LOOK: Duration = Duration::from_secs(1);

/// What is made of files, and can be made again.
pub trait Follow: Send + Sync + 'static {
    /// The files.
    fn files(&self) -> Vec<PathBuf>;

    /// They are other files than before. What cannot be used leaves everything as it was, and the log says so.
    fn changed(&self);

    /// Whether the files are to be read again though they look as they did: the last try failed, and permissions may have changed.
    fn try_again(&self) -> bool {
        false
    }
}

/// What tells that a file is another one.
#[derive(Debug, Clone, PartialEq)]
struct Stamp {
    modified: Option<SystemTime>,
    bytes: u64,
    #[cfg(unix)]
    inode: u64,
}

impl Stamp {
    fn of(path: &Path) -> Option<Stamp> {
        let metadata = fs::metadata(path).ok()?;
        Some(Stamp {
            modified: metadata.modified().ok(),
            bytes: metadata.len(),
            #[cfg(unix)]
            inode: std::os::unix::fs::MetadataExt::ino(&metadata),
        })
    }
}

/// What the files looked like when they were last read.
#[derive(Debug, PartialEq)]
pub(crate) struct Seen(Vec<Option<Stamp>>);

impl Seen {
    /// To be taken before they are read: what changes meanwhile is read again.
    pub(crate) fn of(files: &[PathBuf]) -> Seen {
        Seen(files.iter().map(|path| Stamp::of(path)).collect())
    }
}

/// Follows the files, as they were `seen`, until nobody has what is made of them any more. To be called in an asynchronous
/// runtime.
pub(crate) fn follow<T: Follow>(made: &Arc<T>, mut seen: Seen) {
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
                let now = Seen::of(&made.files());
                if now != seen || made.try_again() {
                    made.changed();
                }
                Some(now)
            });
            match looked.await {
                Ok(Some(now)) => seen = now,
                _ => return,
            }
        }
    });
}
