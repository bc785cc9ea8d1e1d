//! The machine's clock and threads, which a worker is run by. Everything that is measured uses `Instant`, which is an
//! argument wherever something is decided by it, so that tests can say what it is.

use std::{
    sync::Arc,
    task::{Wake, Waker},
    thread::{self, Thread},
    time::Instant,
};

use hanzo_engine_runtime::StepError;

use crate::worker::{Turn, Worker};

/// Runs a worker on this thread until it has left.
///
/// # Errors
/// Those of [`Worker::turn`].
pub(crate) fn run(worker: &mut Worker) -> Result<(), StepError> {
    loop {
        match worker.turn(Instant::now)? {
            Turn::Ran => {}
            Turn::Park(None) => thread::park(),
            Turn::Park(Some(until)) => thread::park_timeout(until.saturating_duration_since(Instant::now())),
            Turn::Left => return Ok(()),
        }
    }
}

/// Wakes a thread that is parked, or has the next park return at once.
pub(crate) fn waker(thread: Thread) -> Waker {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }

        fn wake_by_ref(self: &Arc<Self>) {
            self.0.unpark();
        }
    }

    Arc::new(Unpark(thread)).into()
}
