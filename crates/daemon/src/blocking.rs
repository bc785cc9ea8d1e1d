//! Work that blocks, on the runtime's blocking pool; a panic of it is an error of whoever waits for it.

use std::sync::Arc;

use crate::error::{Error, Failure, FailureReason};

/// Runs `work` on the blocking pool.
pub(crate) async fn blocking<T: Send + 'static, E: From<Blocked> + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(Blocked(error).into()),
    }
}

/// Blocking work that panicked.
pub(crate) struct Blocked(tokio::task::JoinError);

impl From<Blocked> for Error {
    fn from(blocked: Blocked) -> Self {
        let error_id = crate::error::error_id();
        tracing::error!(error_id, error = %blocked.0, "blocking work failed");
        Error::Internal { what: "blocking work failed", error_id }
    }
}

impl From<Blocked> for Arc<Failure> {
    fn from(blocked: Blocked) -> Self {
        Failure::new(FailureReason::Panic(blocked.0.to_string()))
    }
}
