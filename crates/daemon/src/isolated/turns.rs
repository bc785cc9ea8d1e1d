//! Turns by which processes share the cores of a machine: one step runs at a time, as with models that share a
//! thread pool. Two files, which nothing writes to, are locked one after the other; the first lock is for the next
//! in line. A process that ends releases both. The wait is bounded, so a process that is stopped delays the others
//! only briefly. Steps then overlap, which is slower but still correct.

use std::{
    fs::{File, TryLockError},
    path::PathBuf,
    thread,
    time::Instant,
};

use crate::limits::{WORKER_TURN_PATIENCE, WORKER_TURN_POLL};

/// Lock files: one for the next in line, one for the running step.
pub(super) struct Turns {
    line: File,
    work: File,
}

/// The right to run one step.
pub(super) struct StepTurn<'a> {
    work: Option<&'a File>,
}

impl Turns {
    /// Opens the files; `None` if that fails, and then no worker waits.
    pub(super) fn open([line, work]: &[PathBuf; 2]) -> Option<Turns> {
        match (File::open(line), File::open(work)) {
            (Ok(line), Ok(work)) => Some(Turns { line, work }),
            (Err(error), _) | (_, Err(error)) => {
                tracing::warn!(%error, "workers do not take turns at the cores: their files cannot be opened");
                None
            }
        }
    }

    /// Waits for a turn, for a bounded time.
    pub(super) fn take(&self) -> StepTurn<'_> {
        let until = Instant::now() + WORKER_TURN_PATIENCE;
        let next = lock(&self.line, until);
        let turn = StepTurn { work: lock(&self.work, until) };
        if let Some(line) = next {
            let _ = line.unlock();
        }
        turn
    }
}

impl Drop for StepTurn<'_> {
    fn drop(&mut self) {
        if let Some(work) = self.work {
            // The file is locked, so unlocking cannot fail in another way.
            let _ = work.unlock();
        }
    }
}

/// Locks a file, with a deadline.
fn lock(file: &File, until: Instant) -> Option<&File> {
    loop {
        match file.try_lock() {
            Ok(()) => return Some(file),
            Err(TryLockError::WouldBlock) if Instant::now() < until => thread::sleep(WORKER_TURN_POLL),
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    fn files(dir: &tempfile::TempDir) -> [PathBuf; 2] {
        ["line", "work"].map(|name| {
            let path = dir.path().join(name);
            std::fs::write(&path, "").unwrap();
            path
        })
    }

    #[test]
    fn one_runs_at_a_time_and_each_comes_to_its_turn() {
        let dir = tempfile::tempdir().unwrap();
        let paths = files(&dir);
        let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let turns = Turns::open(&paths).unwrap();
                    for _ in 0..40 {
                        let _turn = turns.take();
                        most.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
                        thread::yield_now();
                        inside.fetch_sub(1, SeqCst);
                    }
                });
            }
        });
        assert_eq!(most.load(SeqCst), 1);
    }

    #[test]
    fn nobody_waits_for_ever_for_one_that_is_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let paths = files(&dir);
        let (stopped, other) = (Turns::open(&paths).unwrap(), Turns::open(&paths).unwrap());
        let held = stopped.take();
        let began = Instant::now();
        assert!(other.take().work.is_none());
        assert!(began.elapsed() >= WORKER_TURN_PATIENCE);
        drop(held);
        assert!(other.take().work.is_some());
    }
}
