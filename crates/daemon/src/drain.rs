//! Whether requests are taken, and how many are being answered: what a graceful end waits for.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::watch;

use crate::error::Error;

/// Shared by everything that takes requests.
#[derive(Clone)]
pub(crate) struct Drain {
    phase: Arc<watch::Sender<Phase>>,
    active: Arc<watch::Sender<usize>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serving,
    Draining { until: Instant },
}

/// One request that is being answered.
pub(crate) struct Active(Arc<watch::Sender<usize>>);

impl Drain {
    /// Taking requests.
    pub(crate) fn new() -> Self {
        Self { phase: Arc::new(watch::Sender::new(Phase::Serving)), active: Arc::new(watch::Sender::new(0)) }
    }

    /// Takes a request.
    ///
    /// # Errors
    /// [`Error::Draining`], with when this address may answer again.
    pub(crate) fn enter(&self) -> Result<Active, Error> {
        self.active.send_modify(|active| *active += 1);
        // Counted first: the drain that begins now waits for it, or it is turned away.
        let active = Active(self.active.clone());
        match *self.phase.borrow() {
            Phase::Serving => Ok(active),
            Phase::Draining { until } => {
                let left = until.saturating_duration_since(Instant::now());
                Err(Error::Draining { retry_after_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX) })
            }
        }
    }

    /// Whether requests are turned away.
    pub(crate) fn is_draining(&self) -> bool {
        *self.phase.borrow() != Phase::Serving
    }

    /// From now on requests are turned away; those being answered may take `time`.
    pub(crate) fn begin(&self, time: Duration) {
        self.phase.send_replace(Phase::Draining { until: Instant::now() + time });
    }

    /// Waits for the drain to begin.
    pub(crate) async fn begun(&self) {
        // The sender is held by `self`.
        let _ = self.phase.subscribe().wait_for(|phase| *phase != Phase::Serving).await;
    }

    /// Waits until nothing is being answered.
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
