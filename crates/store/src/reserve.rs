//! Room on the disk that is kept for when there is none: a file of zeros, given back a piece at a time so that a full
//! disk does not keep anybody from looking, removing and collecting. The database cannot be asked to write where there
//! is no room: it fails for good then.

use crate::file_system;
use crate::limits::{RESERVE_BYTES, ROOM_BYTES};
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
#[cfg(test)]
use std::sync::{Arc, atomic::AtomicBool, atomic::AtomicU64, atomic::Ordering::Relaxed};

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Reserve {
    dir: PathBuf,
    file: PathBuf,
    /// As if the disk were full and there were no reserve.
    #[cfg(test)]
    pub(crate) pretend_full: Arc<AtomicBool>,
    /// As if so many bytes were free, and there were no reserve; `u64::MAX`: as it is.
    #[cfg(test)]
    pub(crate) pretend_free: Arc<AtomicU64>,
}

/// What is to be free for a change of so many bytes: they stand in the ledger, in its database's log, and once more
/// where that is moved; what else there is to a change is in the rest.
pub(crate) fn needed_bytes(bytes: usize) -> u64 {
    ROOM_BYTES.saturating_add(4 * bytes as u64)
}

impl Reserve {
    pub(crate) fn new(dir: &Path, file: PathBuf) -> Self {
        Self {
            dir: dir.to_owned(),
            file,
            #[cfg(test)]
            pretend_full: Arc::default(),
            #[cfg(test)]
            pretend_free: Arc::new(AtomicU64::new(u64::MAX)),
        }
    }

    /// The file of it.
    pub(crate) fn path(&self) -> &Path {
        &self.file
    }

    /// Puts room by where there is plenty. That there is none is no failure.
    pub(crate) fn keep(&self) {
        let whole = self.file.metadata().is_ok_and(|meta| meta.len() >= RESERVE_BYTES);
        if whole || file_system::free_bytes(&self.dir).unwrap_or(0) < 2 * RESERVE_BYTES {
            return;
        }
        if let Err(error) = fill(&self.file) {
            tracing::debug!(%error, "no room is kept for a full disk");
        }
    }

    /// Whether there is room for a change of so many bytes, if need be by giving some of what was put by.
    pub(crate) fn make_room(&self, bytes: usize) -> bool {
        let room = needed_bytes(bytes);
        #[cfg(test)]
        match self.pretend_free.load(Relaxed) {
            _ if self.pretend_full.load(Relaxed) => return false,
            u64::MAX => {}
            free => return free >= room,
        }
        // What cannot be told is found out by writing.
        let missing = || room.saturating_sub(file_system::free_bytes(&self.dir).unwrap_or(u64::MAX));
        let needed = missing();
        if needed == 0 {
            return true;
        }
        let left = self.file.metadata().map_or(0, |meta| meta.len()).saturating_sub(needed);
        let given = match left {
            0 => file_system::delete_file(&self.file),
            left => OpenOptions::new().write(true).open(&self.file).and_then(|file| file.set_len(left)),
        };
        given.is_ok() && missing() == 0
    }
}

fn fill(path: &Path) -> io::Result<()> {
    let mut file = File::create(path)?;
    let zeros = vec![0_u8; 1 << 18];
    let mut written = 0;
    while written < RESERVE_BYTES {
        file.write_all(&zeros)?;
        written += zeros.len() as u64;
    }
    Ok(())
}
