//! Graceful shutdown: whether requests are accepted, and how many are still being answered.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::watch;

use crate::error::Error;

/// Drain state, shared by everything that accepts requests.
#[derive(Clone)]
pub(crate) struct Drain {
    phase: Arc<watch::Sender<DrainPhase>>,
    active: Arc<watch::Sender<usize>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DrainPhase {
    Serving,
    Draining { until: Instant },
}

/// Guard of a request that is being answered.
pub(crate) struct Active(Arc<watch::Sender<usize>>);

impl Drain {
    /// Creates the state in which requests are accepted.
    pub(crate) fn new() -> Self {
        Self {
            phase: Arc::new(watch::Sender::new(DrainPhase::Serving)),
            active: Arc::new(watch::Sender::new(0)),
        }
    }

    /// Registers a request.
    ///
    /// # Errors
    /// [`Error::Draining`], with the time after which this address may answer again.
    pub(crate) fn enter(&self) -> Result<Active, Error> {
        self.active.send_modify(|active| *active += 1);
        // Counted first: a drain that begins now either waits for this request or sees it refused.
        let active = Active(self.active.clone());
        match *self.phase.borrow() {
            DrainPhase::Serving => Ok(active),
            DrainPhase::Draining { until } => {
                let left = until.saturating_duration_since(Instant::now());
                Err(Error::Draining { retry_after_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX) })
            }
        }
    }

    /// Whether new requests are refused.
    pub(crate) fn is_draining(&self) -> bool {
        *self.phase.borrow() != DrainPhase::Serving
    }

    /// Refuses requests from now on; running ones may take `time`.
    pub(crate) fn begin(&self, time: Duration) {
        self.phase.send_replace(DrainPhase::Draining { until: Instant::now() + time });
    }

    /// Waits until a drain begins.
    pub(crate) async fn begun(&self) {
        // Cannot fail: `self` holds the sender.
        let _ = self.phase.subscribe().wait_for(|phase| *phase != DrainPhase::Serving).await;
    }

    /// Waits until no request is being answered.
    pub(crate) async fn idle(&self) {
        let _ = self.active.subscribe().wait_for(|active| *active == 0).await;
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.0.send_modify(|active| *active -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_drain_waits_for_what_is_being_answered_and_turns_away_the_rest() {
        let drain = Drain::new();
        drain.idle().await;
        let active = drain.enter().unwrap();
        drain.begin(Duration::from_secs(5));
        drain.begun().await;
        let Err(Error::Draining { retry_after_ms }) = drain.enter() else { panic!("taken") };
        assert!((1..=5_000).contains(&retry_after_ms));
        let waiting = tokio::spawn({
            let drain = drain.clone();
            async move { drain.idle().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(active);
        waiting.await.unwrap();
    }
}
