//! Background thread for slow masks. Most masks take 50 µs, and are computed beside a step. A mask of a large or an
//! ambiguous grammar takes up to a second: its sequence leaves the steps until this thread has computed it, so that
//! no other sequence waits. Each sequence has one task at a time, so the thread serves all slow sequences in turn.

use std::{
    fmt,
    sync::{
        Arc, Condvar, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering::Acquire, Ordering::Release},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use crate::limits::MASK_TIME_MAX;
use crate::matcher::Stopper;

/// Runs work, and measures its time.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let began = Instant::now();
    (work(), began.elapsed())
}

/// Task that was given to the thread. Dropping it stops the work.
pub struct PendingMask {
    done: Arc<AtomicBool>,
    stopper: Stopper,
}

/// Task in the thread's queue.
struct Entry {
    task: Option<Box<dyn FnOnce() + Send>>,
    done: Arc<AtomicBool>,
    stopper: Stopper,
}

/// Queue of the thread, and the signal that a task is done.
struct MaskWorker {
    queue: Sender<Entry>,
    signal: Signal,
}

#[derive(Default)]
struct Signal {
    done: Mutex<u64>, // number of tasks
    changed: Condvar,
}

static WORKER: OnceLock<Option<MaskWorker>> = OnceLock::new();

impl PendingMask {
    /// Queues the work `run` on a state. It is left out if the state is gone when its turn comes. The lock of the state
    /// is the task's while it runs, and [`Stopper::stop`] ends it early. Without a thread, the caller does the work.
    pub fn start<T: Send + Sync + 'static>(state: &Arc<T>, run: fn(&T), stopper: Stopper) -> PendingMask {
        let done = Arc::new(AtomicBool::new(false));
        let state = Arc::downgrade(state);
        let task = move || {
            if let Some(state) = state.upgrade() {
                run(&state);
            }
        };
        let entry = Entry { task: Some(Box::new(task)), done: done.clone(), stopper: stopper.clone() };
        let unsent = match WORKER.get_or_init(MaskWorker::spawn) {
            Some(worker) => worker.queue.send(entry).err().map(|unsent| unsent.0),
            None => Some(entry),
        };
        if let Some(mut entry) = unsent {
            entry.run();
        }
        PendingMask { done, stopper }
    }

    /// Whether the work is done.
    pub fn is_done(&self) -> bool {
        self.done.load(Acquire)
    }
}

impl Drop for PendingMask {
    fn drop(&mut self) {
        if !self.is_done() {
            self.stopper.stop();
        }
    }
}

impl fmt::Debug for PendingMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PendingMask(done: {})", self.is_done())
    }
}

/// Waits until a task of any engine is done, or for `time`.
pub fn wait_for_mask(time: Duration) {
    let Some(Some(worker)) = WORKER.get() else { return };
    let before = worker.signal.count();
    let guard = worker.signal.done.lock().unwrap_or_else(PoisonError::into_inner);
    drop(worker.signal.changed.wait_timeout_while(guard, time, |done| *done == before));
}

impl Signal {
    fn count(&self) -> u64 {
        *self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn raise(&self) {
        *self.done.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.changed.notify_all();
    }
}

impl MaskWorker {
    /// Starts the thread that computes, and one that stops tasks which take too long.
    fn spawn() -> Option<MaskWorker> {
        let (queue, entries) = mpsc::channel();
        let (begun, watched) = mpsc::channel();
        let (ended, ends) = mpsc::channel();
        let watch = move || stop_late(&watched, &ends);
        thread::Builder::new().name("mask-watch".into()).spawn(watch).ok()?;
        let compute = move || compute(&entries, &begun, &ended);
        thread::Builder::new().name("masks".into()).spawn(compute).ok()?;
        Some(MaskWorker { queue, signal: Signal::default() })
    }
}

fn compute(entries: &Receiver<Entry>, begun: &Sender<Stopper>, ended: &Sender<()>) {
    for mut entry in entries {
        let watched = begun.send(entry.stopper.clone());
        entry.run();
        if watched.is_ok() {
            let _ = ended.send(());
        }
    }
}

impl Entry {
    fn run(&mut self) {
        if let Some(task) = self.task.take() {
            task();
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.done.store(true, Release);
        if let Some(Some(worker)) = WORKER.get() {
            worker.signal.raise();
        }
    }
}

/// Stops each task that is not done after [`MASK_TIME_MAX`].
fn stop_late(begun: &Receiver<Stopper>, ends: &Receiver<()>) {
    for stopper in begun {
        if ends.recv_timeout(MASK_TIME_MAX) == Err(RecvTimeoutError::Timeout) {
            stopper.stop();
            if ends.recv().is_err() {
                return;
            }
        }
    }
}
