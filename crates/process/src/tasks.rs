//! Tasks and blocking work whose types tokio does not see. It makes 4 KB of code for each type of task.

use std::any::Any;
use std::pin::Pin;

use tokio::task::{JoinError, JoinHandle, spawn_blocking};

type AnyFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type AnyWork = Box<dyn FnOnce() -> Box<dyn Any + Send> + Send>;

/// Runs `future` as a task of its own.
pub fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    let future: AnyFuture<T> = Box::pin(future);
    tokio::spawn(future)
}

/// Runs `work` on the blocking pool.
///
/// # Errors
/// If the work panics, or the runtime ends before it begins.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
    let work: AnyWork = Box::new(|| Box::new(work()));
    let value = spawn_blocking(work).await?;
    Ok(*value.downcast().expect("the work's own value"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_gives_its_value_or_its_panic() {
        assert_eq!(blocking(|| vec![1, 2]).await.unwrap(), [1, 2]);
        assert_eq!(spawn(async { vec![1, 2] }).await.unwrap(), [1, 2]);
        assert!(blocking(|| panic!("no")).await.unwrap_err().is_panic());
        assert!(spawn(async { panic!("no") }).await.unwrap_err().is_panic());
    }
}
