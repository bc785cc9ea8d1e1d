//! Idle detection of connections: one without a running answer for a while is closed, whatever its protocol.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};

/// Running answers of a connection. Cloning is cheap.
#[derive(Debug, Clone, Default)]
pub(crate) struct Busy(Arc<watch::Sender<Answers>>);

#[derive(Debug)]
struct Answers {
    running: u32,
    since: Instant, // time of the last change
}

impl Default for Answers {
    fn default() -> Answers {
        Answers { running: 0, since: Instant::now() }
    }
}

/// Running answer, until dropped. It travels with the request.
#[derive(Debug, Clone)]
pub(crate) struct AnswerGuard(#[expect(dead_code, reason = "held")] Arc<Answer>);

#[derive(Debug)]
struct Answer(Busy);

impl Drop for Answer {
    fn drop(&mut self) {
        self.0.count(|running| running.saturating_sub(1));
    }
}

impl Busy {
    /// Counts a request as running.
    pub(crate) fn works(&self) -> AnswerGuard {
        self.count(|running| running + 1);
        AnswerGuard(Arc::new(Answer(self.clone())))
    }

    fn count(&self, change: impl FnOnce(u32) -> u32) {
        self.0.send_modify(|answers| {
            *answers = Answers { running: change(answers.running), since: Instant::now() };
        });
    }

    /// Whether no answer is running.
    pub(crate) fn is_idle(&self) -> bool {
        self.0.borrow().running == 0
    }

    /// Resolves when an answer is running.
    pub(crate) async fn resumed(&self) {
        // `self` holds the sender, so this cannot fail.
        let _ = self.0.subscribe().wait_for(|answers| answers.running > 0).await;
    }

    /// Resolves when no answer has been running for `time`.
    pub(crate) async fn idle_for(&self, time: Duration) {
        let mut changes = self.0.subscribe();
        loop {
            let (running, since) = {
                let answers = changes.borrow_and_update();
                (answers.running, answers.since)
            };
            let end = since + time;
            match running {
                0 if Instant::now() >= end => return,
                // The state is checked again after a timeout and after a change.
                0 => drop(tokio::time::timeout_at(end, changes.changed()).await),
                _ => drop(changes.changed().await),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{sleep, timeout};

    use super::Busy;

    #[tokio::test(start_paused = true)]
    async fn only_what_does_nothing_is_idle() {
        const TIME: Duration = Duration::from_secs(60);
        let busy = Busy::default();
        let idle = async |after_s| timeout(Duration::from_secs(after_s), busy.idle_for(TIME)).await.is_ok();
        let (one, other) = (busy.works(), busy.works());
        assert!(!idle(3600).await);
        drop(one);
        assert!(!idle(3600).await);
        drop(other);
        assert!(!idle(59).await);
        let work = busy.works();
        sleep(TIME * 2).await;
        drop(work);
        assert!(!idle(59).await);
        assert!(idle(2).await);
    }

    #[tokio::test(start_paused = true)]
    async fn each_who_waits_for_that_hears_of_it() {
        const TIME: Duration = Duration::from_secs(60);
        let busy = Busy::default();
        assert!(busy.is_idle() && timeout(TIME, busy.resumed()).await.is_err());
        let work = busy.works();
        let (waiting, also) = (busy.clone(), busy.clone());
        let waiting = tokio::spawn(async move { waiting.idle_for(TIME).await });
        let also = tokio::spawn(async move { also.idle_for(Duration::ZERO).await });
        sleep(TIME).await;
        assert!(!busy.is_idle() && timeout(TIME, busy.resumed()).await.is_ok());
        drop(work);
        assert!(timeout(TIME, also).await.is_ok() && !waiting.is_finished());
        assert!(timeout(TIME * 2, waiting).await.is_ok());
    }
}
