//! Time limit of a request's work: its deadline, and the end of the drain.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::ApiError;

/// Time limit that ends work with 504 at the deadline, and with 503 when the drain's time is over.
#[derive(Debug, Clone)]
pub(crate) struct Until {
    /// None: `request_timeout_s` is not set.
    pub(crate) deadline: Option<Instant>,
    cut: CancellationToken,
}

impl Until {
    /// Limit of a request that begins now and may take `timeout_s` seconds; `cut` ends it with the drain.
    pub(crate) fn new(timeout_s: Option<u64>, cut: CancellationToken) -> Until {
        let deadline = timeout_s.map(|s| Instant::now() + Duration::from_secs(s));
        Until { deadline, cut }
    }

    /// Result of `work`, if it ends in time.
    pub(crate) async fn run<T, E: Into<ApiError>>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, ApiError> {
        let deadline = async {
            match self.deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.cut.cancelled() => Err(ApiError::draining()),
            () = deadline => Err(ApiError::deadline()),
            done = work => match done {
                Ok(done) => Ok(done),
                // The engine has the same deadline, and may be the first to report it.
                Err(_) if self.deadline.is_some_and(|d| d <= Instant::now()) => Err(ApiError::deadline()),
                Err(error) => Err(error.into()),
            },
        }
    }
}
