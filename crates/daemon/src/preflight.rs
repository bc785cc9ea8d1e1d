//! Checks before a program starts: a clock that is set, and as many threads as it will need. Libraries would panic
//! if either were missing later.

use std::{
    io,
    sync::RwLock,
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

use tokio::runtime::{Builder, Runtime};

use crate::limits::{HEAPS_MAX, HEAPS_MIN, THREADS_BESIDE_MIN};

/// Reason why a program cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The clock was never set.
    #[error(
        "this machine's clock says that it is before 1970: set it (date, or a time service); dates in answers, \
         logs and certificates need it"
    )]
    Clock,
    /// The system allows fewer threads than needed.
    #[error(
        "the system gives this process {given} of the {needed} threads it needs: {source}; raise the limit (ulimit -u, \
         TasksMax= of a unit, the pids limit of a container), or compute with fewer (--threads, engine.threads)"
    )]
    Threads {
        /// Number of threads that could be started.
        given: usize,
        /// Number of threads needed.
        needed: usize,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The async runtime cannot be created.
    #[error("cannot start the asynchronous runtime: {0}")]
    Runtime(io::Error),
}

/// Creates the async runtime of a program that starts `beside` threads itself.
///
/// # Errors
/// [`StartError`], with advice on what to do.
pub fn runtime(beside: usize) -> Result<Runtime, StartError> {
    check_clock(SystemTime::now())?;
    let workers = thread::available_parallelism().map_or(1, usize::from);
    hanzo_engine_process::heap::share(workers.clamp(HEAPS_MIN, HEAPS_MAX));
    check_threads(workers + THREADS_BESIDE_MIN + beside)?;
    Builder::new_multi_thread().worker_threads(workers).enable_all().build().map_err(StartError::Runtime)
}

fn check_clock(now: SystemTime) -> Result<(), StartError> {
    now.duration_since(UNIX_EPOCH).map(drop).map_err(|_| StartError::Clock)
}

/// Checks that the system allows this many threads, by starting them all at once and letting them end.
///
/// # Errors
/// [`StartError::Threads`].
pub fn check_threads(needed: usize) -> Result<(), StartError> {
    let gate = RwLock::new(());
    thread::scope(|scope| {
        let closed = gate.write();
        for given in 0..needed {
            let wait = || drop(gate.read());
            if let Err(source) = thread::Builder::new().spawn_scoped(scope, wait) {
                return Err(StartError::Threads { given, needed, source });
            }
        }
        drop(closed);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_clock_before_1970_is_said() {
        let error = check_clock(UNIX_EPOCH - Duration::from_nanos(1)).unwrap_err();
        assert!(error.to_string().contains("before 1970: set it"), "{error}");
        check_clock(UNIX_EPOCH).unwrap();
    }

    #[test]
    fn threads_that_are_there_are_given_back() {
        for _ in 0..3 {
            check_threads(20).unwrap();
        }
    }
}
