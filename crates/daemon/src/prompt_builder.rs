//! When prompts are built, and for how long. It is slow for a long prompt, and a chat template is a program of the model's
//! file, so it runs on the blocking pool, a few at a time for each model and fewer for each client, for a bounded time, and
//! not for clients that have left.

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
    turns::{Turn, Turns},
};

/// Builds prompts of one model, a few at a time: a model whose prompts are slow keeps no other waiting, and a client
/// whose prompts are slow no other client. A request that waits here holds a place in a bounded queue.
pub(crate) struct PromptBuilder {
    turns: Turns,
    /// Turns that large prompts may have: they take seconds and many times their bytes, and others must not stand
    /// behind them.
    large_turns: Turns,
    /// From a prompt's turn on.
    time_max: Duration,
    context_shift: bool,
}

/// A piece of work that waits for its turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Build {
    /// The work in the words of a message, such as `tokenizing the text`.
    pub(crate) what: &'static str,
    /// The client that asks for it.
    pub(crate) client: Option<ClientId>,
    /// When it is too late.
    pub(crate) by: Option<Instant>,
    /// Whether it takes much memory: it reads pictures, sounds or a text of [`PROMPT_LARGE_BYTES`].
    pub(crate) is_large: bool,
}

/// Whether a text of so many bytes takes much memory.
pub(crate) fn is_large(bytes: usize) -> bool {
    bytes >= PROMPT_LARGE_BYTES
}

/// Tells the work of a caller that it has left.
struct Leaving(Arc<AtomicBool>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

impl PromptBuilder {
    /// For one model, whose completions go on beyond the context where `context_shift` says so and a request nothing else.
    pub(crate) fn new(context_shift: bool) -> Self {
        let (turns, large_turns) = (Turns::new(PROMPT_BUILDS_MAX), Turns::new(PROMPT_BUILDS_LARGE_MAX));
        Self { turns, large_turns, time_max: PROMPT_BUILD_TIME_MAX, context_shift }
    }

    /// Whether completions go on beyond the context where a request does not say.
    pub(crate) fn shifts(&self) -> bool {
        self.context_shift
    }

    /// The turns that a piece of work needs.
    async fn turns(&self, build: &Build) -> Option<(Option<Turn>, Turn)> {
        let large = match build.is_large {
            true => Some(self.large_turns.take(build.client).await?),
            false => None,
        };
        Some((large, self.turns.take(build.client).await?))
    }

    /// Runs `work` on the blocking pool in its turn, until its request's time is over. `work` is given a question to ask
    /// again and again: whether to give up, because the time is over or because the caller has dropped this future.
    ///
    /// # Errors
    /// Those of `work`; [`Error::Deadline`] when the request's time is over; [`Error::Busy`] of work that took too long by
    /// itself. Messages that a template takes too many steps for are refused by the template's own bounds.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        build: Build,
        work: impl FnOnce(&dyn Fn() -> bool) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let turns = self.turns(&build).await.ok_or(Error::Stopped { what: "prompts ended" })?;
        let left = Leaving(Arc::new(AtomicBool::new(false)));
        let has_left = left.0.clone();
        let began = Instant::now();
        let most = began + self.time_max;
        let end = build.by.map_or(most, |by| by.min(most));
        let built = blocking(move || {
            // Held until the work is done, though its caller may have left.
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

    /// Waits for what a thread is to do.
    fn until(what: impl Fn() -> bool) {
        let since = Instant::now();
        while !what() {
            assert!(since.elapsed().as_secs() < 60, "never");
            std::thread::yield_now();
        }
    }

    /// Work that goes on until it is told to end.
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
        // The request's own deadline is another thing.
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
        // It waits for as long as work may take, and is done all the same.
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
        // Twice as many as have a turn: most of them wait.
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
        // A request that has a deadline ends by it.
        let soon = Instant::now() + std::time::Duration::from_millis(50);
        let ended = client(Build { by: Some(soon), ..build(1) }).await.unwrap();
        assert!(matches!(ended, Err(Error::Deadline)), "{ended:?}");
        until(|| slow.turns.free() == PROMPT_BUILDS_MAX);
    }
}
