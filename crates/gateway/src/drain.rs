//! Graceful shutdown: serving → draining → cut. Running requests may finish until a deadline.

use std::time::Duration;

use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

use crate::{
    error::ApiError,
    limits::{QUIET_LOOK, QUIET_LOOKS},
};

/// Guard of an admitted request, held until the last byte of its answer is handed over.
pub(crate) type Admission = TaskTrackerToken;

/// State of the shutdown: whether requests are admitted, which are running, and when they must end.
#[derive(Debug, Default)]
pub(crate) struct Drain {
    draining: CancellationToken,
    cut: CancellationToken,
    running: TaskTracker,
}

impl Drain {
    /// Admits a request, or refuses it with 503 if the shutdown has begun.
    pub(crate) fn admit(&self) -> Result<Admission, ApiError> {
        // The request is counted first, so that a shutdown in between either refuses it or waits for it.
        let admission = self.running.token();
        if self.is_draining() { Err(ApiError::draining()) } else { Ok(admission) }
    }

    /// Whether the shutdown has begun.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Token that is cancelled when the shutdown begins.
    pub(crate) fn begins(&self) -> CancellationToken {
        self.draining.clone()
    }

    /// Token that is cancelled when the remaining requests must end with an error.
    pub(crate) fn cut(&self) -> CancellationToken {
        self.cut.clone()
    }

    /// Waits until nothing has run for a moment, long enough for a new connection to send its request.
    pub(crate) async fn quiet(&self) {
        let mut looks = 0;
        while looks < QUIET_LOOKS {
            tokio::time::sleep(QUIET_LOOK).await;
            looks = if self.running.is_empty() { looks + 1 } else { 0 };
        }
    }

    /// Refuses new requests, waits until the running ones have finished or `deadline` has passed, then ends the
    /// rest.
    pub(crate) async fn run(&self, deadline: Duration) {
        self.draining.cancel();
        self.running.close();
        tracing::info!(requests = self.running.len(), "draining");
        if tokio::time::timeout(deadline, self.running.wait()).await.is_err() {
            tracing::warn!(
                requests = self.running.len(),
                "the drain's deadline is over: ending what still runs"
            );
        }
        self.cut.cancel();
    }
}
