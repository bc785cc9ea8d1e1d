//! Whether a connection is of use: one on which nothing is being answered for a while is closed, whatever it speaks.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

/// What runs on a connection; cloning it is cheap.
#[derive(Debug, Clone, Default)]
pub(crate) struct Busy(Arc<State>);

#[derive(Debug, Default)]
struct State {
    answers: Mutex<Answers>,
    changed: Notify,
}

#[derive(Debug)]
struct Answers {
    running: u32,
    since: Instant, // when that became so
}

impl Default for Answers {
    fn default() -> Answers {
        Answers { running: 0, since: Instant::now() }
    }
}

/// An answer that is on its way, until this is dropped. It is handed on with the request.
#[derive(Debug, Clone)]
pub(crate) struct Work(#[expect(dead_code, reason = "held")] Arc<Answer>);

#[derive(Debug)]
struct Answer(Busy);

impl Drop for Answer {
    fn drop(&mut self) {
        self.0.count(|running| running.saturating_sub(1));
    }
}

impl Busy {
    /// A request came.
    pub(crate) fn works(&self) -> Work {
        self.count(|running| running + 1);
        Work(Arc::new(Answer(self.clone())))
    }

    fn count(&self, change: impl FnOnce(u32) -> u32) {
        let mut answers = self.answers();
        *answers = Answers { running: change(answers.running), since: Instant::now() };
        drop(answers);
        self.0.changed.notify_one();
    }

    fn answers(&self) -> MutexGuard<'_, Answers> {
        self.0.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves when nothing has been answered for that long.
    pub(crate) async fn idle_for(&self, time: Duration) {
        loop {
            let (running, since) = {
                let answers = self.answers();
                (answers.running, answers.since)
            };
            let end = since + time;
            match running {
                0 if Instant::now() >= end => return,
                0 => {
                    // Either way it is looked again.
                    let _ = tokio::time::timeout_at(end, self.0.changed.notified()).await;
                }
                _ => self.0.changed.notified().await,
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
}
