//! Shutting down without cutting anyone off before the deadline: serving → draining → cut.

use std::time::Duration;

use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

use crate::{
    error::ApiError,
    limits::{QUIET_LOOK, QUIET_LOOKS},
};

/// Held by every admitted request until its answer's last byte is handed over.
pub(crate) type Admission = TaskTrackerToken;

/// Whether requests are admitted, which are running, and when they must end.
#[derive(Debug, Default)]
pub(crate) struct Drain {
    draining: CancellationToken,
    cut: CancellationToken,
    running: TaskTracker,
}

impl Drain {
    /// Admits a request, unless the shutdown has begun (503).
    pub(crate) fn admit(&self) -> Result<Admission, ApiError> {
        // Counted first: a request is either refused or waited for, also when the shutdown comes in between.
        let admission = self.running.token();
        if self.is_draining() { Err(ApiError::draining()) } else { Ok(admission) }
    }

    /// Whether the shutdown has begun.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Cancelled when the shutdown begins.
    pub(crate) fn begins(&self) -> CancellationToken {
        self.draining.clone()
    }

    /// Cancelled when what still runs must end with an error.
    pub(crate) fn cut(&self) -> CancellationToken {
        self.cut.clone()
    }

    /// Waits until nothing has run for a moment, in which a connection that was just accepted says what it wants.
    pub(crate) async fn quiet(&self) {
        let mut looks = 0;
        while looks < QUIET_LOOKS {
            tokio::time::sleep(QUIET_LOOK).await;
            looks = if self.running.is_empty() { looks + 1 } else { 0 };
        }
    }

    /// Refuses new requests, waits until the running ones have finished or `deadline` is over, then cuts what
    /// is left.
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
