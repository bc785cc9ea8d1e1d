//! Hashing of a file while it is written. A thread reads the contiguous part from the start, mostly out of the
//! page cache. Pieces that arrive out of order need not be kept in memory, and a finished file is not read
//! again.

use crate::digest::Hasher;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use tokio::task::JoinHandle;

const PIECE_BYTES: usize = 256 << 10;

/// Handle of the hashing thread. Dropping it ends the thread.
pub(crate) struct Follower {
    shared: Arc<SharedPrefix>,
    thread: Option<JoinHandle<io::Result<Option<Hasher>>>>,
}

#[derive(Default)]
struct SharedPrefix {
    state: Mutex<PrefixState>,
    changed: Condvar,
}

#[derive(Default)]
struct PrefixState {
    end: u64,
    /// Set when the file is complete, or when the digest is no longer needed.
    closed: Option<CloseReason>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CloseReason {
    Whole,
    Abandoned,
}

impl Follower {
    /// Starts to hash `file`, of which nothing is complete yet.
    pub(crate) fn start(file: Arc<File>, hasher: Hasher) -> Self {
        let shared = Arc::new(SharedPrefix::default());
        let watched = shared.clone();
        let thread = tokio::task::spawn_blocking(move || follow(&file, hasher, &watched));
        Self { shared, thread: Some(thread) }
    }

    /// Notes that the file is complete up to `end`.
    pub(crate) fn whole_to(&self, end: u64) {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.end = state.end.max(end);
        self.shared.changed.notify_one();
    }

    /// Notes that the file is complete, and waits until all of it is hashed.
    pub(crate) async fn finish(mut self) -> io::Result<Hasher> {
        self.close(CloseReason::Whole);
        let thread = self.thread.take().ok_or_else(|| io::Error::other("finished twice"))?;
        let hasher = thread.await.map_err(io::Error::other)??;
        hasher.ok_or_else(|| io::Error::other("abandoned"))
    }

    fn close(&self, how: CloseReason) {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.closed.get_or_insert(how);
        self.shared.changed.notify_one();
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.close(CloseReason::Abandoned);
    }
}

fn follow(file: &File, mut hasher: Hasher, shared: &SharedPrefix) -> io::Result<Option<Hasher>> {
    let mut piece = vec![0_u8; PIECE_BYTES];
    let mut at = 0;
    loop {
        let end = {
            let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                match state.closed {
                    Some(CloseReason::Abandoned) => return Ok(None),
                    Some(CloseReason::Whole) if state.end == at => return Ok(Some(hasher)),
                    _ if state.end > at => break state.end,
                    _ => state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                }
            }
        };
        // Hash one piece at a time, so that a stop is noticed soon.
        let length = (end - at).min(PIECE_BYTES as u64) as usize;
        file.read_exact_at(&mut piece[..length], at)?;
        hasher.update(&piece[..length]);
        at += length as u64;
    }
}
