//! Blocking work on tokio's blocking pool. A panic in it becomes an error for the caller.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::AcqRel, Ordering::Release},
};

use hanzo_engine_process::{heap, tasks};

use crate::error::{Error, Failure, FailureReason};
use crate::limits::HEAPS_GIVE_BACK_AFTER;

/// Runs `work` on the blocking pool.
pub(crate) async fn blocking<T: Send + 'static, E: From<WorkPanic> + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    match tasks::blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(WorkPanic(error).into()),
    }
}

/// Makes the allocators return free memory to the system after a short delay. Calls until then are merged into one.
/// For work that frees megabytes in small allocations, such as a long text's tokens.
pub(crate) fn give_back_soon() {
    static ASKED: AtomicBool = AtomicBool::new(false);
    if !ASKED.swap(true, AcqRel) {
        tasks::spawn(async {
            tokio::time::sleep(HEAPS_GIVE_BACK_AFTER).await;
            ASKED.store(false, Release);
            tokio::task::spawn_blocking(heap::give_back).await
        });
    }
}

/// Panic of blocking work.
pub(crate) struct WorkPanic(tokio::task::JoinError);

impl From<WorkPanic> for Error {
    fn from(panic: WorkPanic) -> Self {
        let error_id = crate::error::error_id();
        tracing::error!(error_id, error = %panic.0, "blocking work failed");
        Error::Internal { what: "blocking work failed", error_id }
    }
}

impl From<WorkPanic> for Arc<Failure> {
    fn from(panic: WorkPanic) -> Self {
        Failure::new(FailureReason::Panic(panic.0.to_string()))
    }
}
