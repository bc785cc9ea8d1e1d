//! Scheduling of prompt construction. Long prompts are slow to build, and a chat template is a program from the
//! model's file. Prompts are therefore built on the blocking pool, a few at a time for each model and fewer for
//! each client. The time is bounded, and work for clients that have disconnected is dropped.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use hanzo_engine_runtime::{ClientId, RequestError};

use crate::{
    blocking::{blocking, give_back_soon},
    error::Error,
    limits::{
        PROMPT_BUILD_LARGE, PROMPT_BUILD_TIME_MAX, PROMPT_BUILDS_LARGE_MAX, PROMPT_BUILDS_MAX,
        PROMPT_LARGE_BYTES,
    },
    turns::{EngineTurn, Turns},
};

/// Builder of one model's prompts, a few at a time. A model with slow prompts does not delay other models, and a
/// client with slow prompts does not delay other clients. Requests that wait here hold a place in the model's
/// bounded queue.
pub(crate) struct PromptBuilder {
    turns: Turns,
    /// Turns of large prompts. These take seconds and many times their size in memory, and must not delay the
    /// others.
    large_turns: Turns,
    /// Time limit, counted from a prompt's turn.
    time_max: Duration,
    context_shift: bool,
}

/// Piece of work that waits for its turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Build {
    /// Description of the work for messages, such as `tokenizing the text`.
    pub(crate) what: &'static str,
    /// Client that requested it.
    pub(crate) client: Option<ClientId>,
    /// Deadline.
    pub(crate) by: Option<Instant>,
    /// Whether it takes much memory: it reads pictures, sounds or a text of at least [`PROMPT_LARGE_BYTES`].
    pub(crate) is_large: bool,
}

/// Whether a text of this many bytes takes much memory.
pub(crate) fn is_large(bytes: usize) -> bool {
    bytes >= PROMPT_LARGE_BYTES
}

/// Signal to the work that its caller has gone; sent on drop.
struct CallerGuard(Arc<AtomicBool>);

impl Drop for CallerGuard {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

impl PromptBuilder {
    /// Creates the builder of one model. `context_shift` is the default for requests that do not say.
    pub(crate) fn new(context_shift: bool) -> Self {
        let (turns, large_turns) = (Turns::new(PROMPT_BUILDS_MAX), Turns::new(PROMPT_BUILDS_LARGE_MAX));
        Self { turns, large_turns, time_max: PROMPT_BUILD_TIME_MAX, context_shift }
    }

    /// Whether completions continue beyond the context by default.
    pub(crate) fn shifts(&self) -> bool {
        self.context_shift
    }

    /// Waits for the turns that the work needs.
    async fn turns(&self, build: &Build) -> Option<(Option<EngineTurn>, EngineTurn)> {
        let large = match build.is_large {
            true => Some(self.large_turns.take(build.client).await?),
            false => None,
        };
        Some((large, self.turns.take(build.client).await?))
    }

    /// Runs `work` on the blocking pool in its turn, until the request's deadline. `work` receives a function that
    /// it should call often. The function returns true once the time is over or the caller has dropped this future.
    ///
    /// # Errors
    /// Errors of `work`; [`Error::Deadline`] after the request's deadline; [`Error::Busy`] if the work itself took
    /// too long. Templates that take too many steps are refused by limits of their own.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        build: Build,
        work: impl FnOnce(&dyn Fn() -> bool) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let turns = self.turns(&build).await.ok_or(Error::Stopped { what: "prompts ended" })?;
        let left = CallerGuard(Arc::new(AtomicBool::new(false)));
        let has_left = left.0.clone();
        let began = Instant::now();
        let most = began + self.time_max;
        let end = build.by.map_or(most, |by| by.min(most));
        let built = blocking(move || {
            // Held until the work is done, even if its caller is gone.
            let _turns = turns;
            work(&|| has_left.load(Relaxed) || Instant::now() >= end)
        })
        .await;
        if began.elapsed() > PROMPT_BUILD_LARGE {
            give_back_soon();
        }
        match built {
            Err(Error::Request(RequestError::Interrupted)) if end == most => {
                Err(Error::Busy { what: build.what, seconds: self.time_max.as_secs() })
            }
            Err(Error::Request(RequestError::Interrupted)) => Err(Error::Deadline),
            built => built,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits until another thread has made the condition true.
    fn until(what: impl Fn() -> bool) {
        let since = Instant::now();
        while !what() {
            assert!(since.elapsed().as_secs() < 60, "never");
            std::thread::yield_now();
        }
    }

    /// Work that runs until it is interrupted.
    fn endless(interrupted: &dyn Fn() -> bool) -> Result<(), Error> {
        while !interrupted() {
            std::thread::yield_now();
        }
        Err(RequestError::Interrupted.into())
    }

    fn build(client: u64) -> Build {
        let client = Some(ClientId(client));
        Build { what: "tokenizing the text", client, by: None, is_large: false }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn work_that_takes_too_long_is_the_engines_fault() {
        let builder = PromptBuilder { time_max: Duration::from_millis(20), ..PromptBuilder::new(false) };
        let status = tonic::Status::from(builder.run(build(1), endless).await.unwrap_err());
        assert_eq!(status.code(), tonic::Code::Unavailable, "{status}");
        assert!(status.message().starts_with("tokenizing the text took over "), "{status}");
        assert!(status.metadata().contains_key("retry-after-ms"), "{status}");
        // The request's own deadline gives a different error.
        let ended = builder.run(Build { by: Some(Instant::now()), ..build(1) }, endless).await;
        assert!(matches!(ended, Err(Error::Deadline)), "{ended:?}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_wait_for_a_turn_does_not_count_as_work() {
        let time_max = Duration::from_millis(200);
        let builder = Arc::new(PromptBuilder { time_max, ..PromptBuilder::new(false) });
        let slow = |_: u64| {
            let builder = builder.clone();
            tokio::spawn(async move { builder.run(build(1), endless).await })
        };
        let first: Vec<_> = (0..3).map(slow).collect();
        until(|| builder.turns.free() == 1);
        // It waits as long as work may take, and still completes.
        builder
            .run(build(1), |interrupted| if interrupted() { endless(interrupted) } else { Ok(()) })
            .await
            .unwrap();
        for one in first {
            assert!(matches!(one.await.unwrap(), Err(Error::Busy { .. })));
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn large_prompts_leave_turns_to_others() {
        let builder = Arc::new(PromptBuilder::new(false));
        let large = |client| Build { is_large: true, ..build(client) };
        let slow: Vec<_> = (0..2 * PROMPT_BUILDS_MAX)
            .map(|client| {
                let builder = builder.clone();
                tokio::spawn(async move { builder.run(large(client as u64), endless).await })
            })
            .collect();
        until(|| builder.large_turns.free() == 0);
        builder.run(build(0), |_| Ok(())).await.unwrap();
        assert!(builder.turns.free() >= PROMPT_BUILDS_MAX - PROMPT_BUILDS_LARGE_MAX);
        for gone in slow {
            gone.abort();
            let _ = gone.await;
        }
        until(|| builder.large_turns.free() == PROMPT_BUILDS_LARGE_MAX);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_slow_prompt_ends_with_its_client_and_keeps_no_other_client_or_model_waiting() {
        let (slow, other) = (Arc::new(PromptBuilder::new(false)), PromptBuilder::new(false));
        let client = |asked: Build| {
            let slow = slow.clone();
            tokio::spawn(async move { slow.run(asked, endless).await })
        };
        // Twice as many as there are turns, so that most of them wait.
        let greedy: Vec<_> = (0..2 * PROMPT_BUILDS_MAX).map(|_| client(build(1))).collect();
        until(|| slow.turns.free() == 1);
        slow.run(build(2), |_| Ok(())).await.unwrap();
        let others: Vec<_> = (2..2 + PROMPT_BUILDS_MAX).map(|name| client(build(name as u64))).collect();
        until(|| slow.turns.free() == 0);
        other.run(build(1), |_| Ok(())).await.unwrap();
        for gone in greedy.into_iter().chain(others) {
            gone.abort();
            assert!(gone.await.unwrap_err().is_cancelled());
        }
        until(|| slow.turns.free() == PROMPT_BUILDS_MAX);
        slow.run(build(1), |_| Ok(())).await.unwrap();
        // A request with a deadline ends at the deadline.
        let soon = Instant::now() + std::time::Duration::from_millis(50);
        let ended = client(Build { by: Some(soon), ..build(1) }).await.unwrap();
        assert!(matches!(ended, Err(Error::Deadline)), "{ended:?}");
        until(|| slow.turns.free() == PROMPT_BUILDS_MAX);
    }
}
