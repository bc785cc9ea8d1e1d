//! When prompts are built, and for how long. It is slow for a long prompt, and a chat template is a program of the model's
//! file, so it runs on the blocking pool, a few at a time for each model, for a bounded time, and not for clients that
//! have left.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use hanzo_engine_runtime::RequestError;
use tokio::sync::Semaphore;

use crate::{
    blocking::{blocking, give_back_soon},
    error::Error,
    limits::{PROMPT_BUILD_LARGE, PROMPT_BUILD_TIME_MAX, PROMPT_BUILDS_MAX, PROMPT_MEDIA_MAX},
};

/// Builds prompts of one model, a few at a time: a model whose prompts are slow keeps no other waiting. Whoever waits
/// here holds a place in a bounded queue.
pub(crate) struct PromptBuilder {
    turns: Arc<Semaphore>,
    /// Of those, what prompts with pictures or sounds may have: they take seconds and hundreds of megabytes, and others must not stand behind them.
    media_turns: Arc<Semaphore>,
    /// From a prompt's turn on.
    time_max: Duration,
    context_shift: bool,
}

/// What is built, and so whose fault it is that it takes too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BuildKind {
    /// By a chat template, which is a program that runs over the request's messages.
    Chat,
    /// By a tokenizer, whose time is bounded by the text's length: the machine is slow. In the words of a message.
    Plain(&'static str),
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
        let turns = Arc::new(Semaphore::new(PROMPT_BUILDS_MAX));
        let media_turns = Arc::new(Semaphore::new(PROMPT_MEDIA_MAX));
        Self { turns, media_turns, time_max: PROMPT_BUILD_TIME_MAX, context_shift }
    }

    /// Whether completions go on beyond the context where a request does not say.
    pub(crate) fn shifts(&self) -> bool {
        self.context_shift
    }

    /// As [`PromptBuilder::run`], with a turn of those that are for media first where there are some.
    ///
    /// # Errors
    /// As [`PromptBuilder::run`].
    pub(crate) async fn run_with_media<T: Send + 'static>(
        &self,
        has_media: bool,
        kind: BuildKind,
        by: Option<Instant>,
        work: impl FnOnce(&dyn Fn() -> bool) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let ended = |_| Error::Stopped { what: "prompts ended" };
        let turn = match has_media {
            true => Some(self.media_turns.clone().acquire_owned().await.map_err(ended)?),
            false => None,
        };
        self.run(kind, by, move |interrupted| {
            let _turn = turn;
            work(interrupted)
        })
        .await
    }

    /// Runs `work` on the blocking pool in its turn, until `by`. `work` is given a question to ask again and again:
    /// whether to give up, because the time is over or because the caller has dropped this future.
    ///
    /// # Errors
    /// Those of `work`; [`Error::Deadline`] after `by`; where `kind` took too long by itself, [`Error::Field`] of a chat and
    /// [`Error::Busy`] of all else.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        kind: BuildKind,
        by: Option<Instant>,
        work: impl FnOnce(&dyn Fn() -> bool) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let turn =
            self.turns.clone().acquire_owned().await.map_err(|_| Error::Stopped { what: "prompts ended" })?;
        let left = Leaving(Arc::new(AtomicBool::new(false)));
        let has_left = left.0.clone();
        let began = Instant::now();
        let most = began + self.time_max;
        let end = by.map_or(most, |by| by.min(most));
        let built = blocking(move || {
            // Held until the work is done, though its caller may have left.
            let _turn = turn;
            work(&|| has_left.load(Relaxed) || Instant::now() >= end)
        })
        .await;
        if began.elapsed() > PROMPT_BUILD_LARGE {
            give_back_soon();
        }
        match built {
            Err(Error::Request(RequestError::Interrupted)) if end == most => {
                let seconds = self.time_max.as_secs();
                Err(match kind {
                    BuildKind::Chat => {
                        let reason = format!("the template made no prompt of them within {seconds} seconds");
                        Error::field("chat.messages", reason)
                    }
                    BuildKind::Plain(what) => Error::Busy { what, seconds },
                })
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

    #[tokio::test(flavor = "multi_thread")]
    async fn what_takes_too_long_is_the_messages_fault_only_where_a_template_ran() {
        let builder = PromptBuilder { time_max: Duration::from_millis(20), ..PromptBuilder::new(false) };
        let inputs = BuildKind::Plain("tokenizing the inputs");
        for (kind, code, begins, retries) in [
            (BuildKind::Chat, tonic::Code::InvalidArgument, "chat.messages: ", false),
            (inputs, tonic::Code::Unavailable, "tokenizing the inputs took over ", true),
        ] {
            let status = tonic::Status::from(builder.run(kind, None, endless).await.unwrap_err());
            assert_eq!(status.code(), code, "{status}");
            assert!(status.message().starts_with(begins), "{status}");
            assert_eq!(status.metadata().contains_key("retry-after-ms"), retries, "{status}");
            // The request's own deadline is another thing, whatever is made.
            let ended = builder.run(kind, Some(Instant::now()), endless).await;
            assert!(matches!(ended, Err(Error::Deadline)), "{ended:?}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn prompts_with_media_leave_turns_to_others() {
        let builder = Arc::new(PromptBuilder::new(false));
        let slow: Vec<_> = (0..2 * PROMPT_BUILDS_MAX)
            .map(|_| {
                let builder = builder.clone();
                tokio::spawn(
                    async move { builder.run_with_media(true, BuildKind::Chat, None, endless).await },
                )
            })
            .collect();
        until(|| builder.media_turns.available_permits() == 0);
        builder.run_with_media(false, BuildKind::Chat, None, |_| Ok(())).await.unwrap();
        assert!(builder.turns.available_permits() >= PROMPT_BUILDS_MAX - PROMPT_MEDIA_MAX);
        for gone in slow {
            gone.abort();
            let _ = gone.await;
        }
        until(|| builder.media_turns.available_permits() == PROMPT_MEDIA_MAX);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_slow_prompt_ends_with_its_client_and_keeps_no_other_model_waiting() {
        let (slow, other) = (Arc::new(PromptBuilder::new(false)), PromptBuilder::new(false));
        let client = |by: Option<Instant>| {
            let slow = slow.clone();
            tokio::spawn(async move { slow.run(BuildKind::Chat, by, endless).await })
        };
        // Twice as many as have a turn: half of them wait.
        let clients: Vec<_> = (0..2 * PROMPT_BUILDS_MAX).map(|_| client(None)).collect();
        until(|| slow.turns.available_permits() == 0);
        other.run(BuildKind::Chat, None, |_| Ok(())).await.unwrap();
        for gone in clients {
            gone.abort();
            assert!(gone.await.unwrap_err().is_cancelled());
        }
        until(|| slow.turns.available_permits() == PROMPT_BUILDS_MAX);
        slow.run(BuildKind::Chat, None, |_| Ok(())).await.unwrap();
        // A request that has a deadline ends by it.
        let soon = Instant::now() + std::time::Duration::from_millis(50);
        let ended = client(Some(soon)).await.unwrap();
        assert!(matches!(ended, Err(Error::Deadline)), "{ended:?}");
        until(|| slow.turns.available_permits() == PROMPT_BUILDS_MAX);
    }
}
