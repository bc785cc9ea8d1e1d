//! Reserved disk space: a file of zeros that is shortened when the disk is full, so that users can still list,
//! remove and collect models. The database must not write without free space, because it then fails
//! permanently.

use crate::file_system;
use crate::limits::{RESERVE_BYTES, ROOM_BYTES};
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
#[cfg(test)]
use std::sync::{Arc, atomic::AtomicBool, atomic::AtomicU64, atomic::Ordering::Relaxed};

/// Reserve file of a store.
#[derive(Clone, Debug)]
pub(crate) struct Reserve {
    dir: PathBuf,
    file: PathBuf,
    /// Simulates a full disk without a reserve.
    #[cfg(test)]
    pub(crate) pretend_full: Arc<AtomicBool>,
    /// Simulates this many free bytes without a reserve. `u64::MAX`: no simulation.
    #[cfg(test)]
    pub(crate) pretend_free: Arc<AtomicU64>,
}

/// Free space needed for a change of `bytes` bytes. They are written to the ledger, to the database's log, and
/// once more when the log is moved. The rest covers the overhead.
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

    /// Path of the reserve file.
    pub(crate) fn path(&self) -> &Path {
        &self.file
    }

    /// Creates the reserve if the disk has plenty of space. A failure is only logged.
    pub(crate) fn keep(&self) {
        let whole = self.file.metadata().is_ok_and(|meta| meta.len() >= RESERVE_BYTES);
        if whole || file_system::free_bytes(&self.dir).unwrap_or(0) < 2 * RESERVE_BYTES {
            return;
        }
        if let Err(error) = fill(&self.file) {
            tracing::debug!(%error, "no room is kept for a full disk");
        }
    }

    /// Returns true if there is room for a change of `bytes` bytes. Shortens the reserve if necessary.
    pub(crate) fn make_room(&self, bytes: usize) -> bool {
        let room = needed_bytes(bytes);
        #[cfg(test)]
        match self.pretend_free.load(Relaxed) {
            _ if self.pretend_full.load(Relaxed) => return false,
            u64::MAX => {}
            free => return free >= room,
        }
        // If the free space is unknown, assume enough: the write itself will tell.
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
