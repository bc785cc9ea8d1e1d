//! From what a client asks to a job the worker can run: template and tokenizer, the model's own defaults, limits.
//! Slow for a long prompt, and a chat template is a program of the model's file, so it runs on the blocking pool, a few
//! at a time for each model, for a bounded time, and not for clients that have left.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use hanzo_engine_runtime::{
    Job, RequestError, SamplingParams, StopConditions, TextModel, chat::Chat, load::GenerationDefaults,
};
use tokio::sync::Semaphore;

use crate::{
    error::{Error, random_u64},
    limits::{PROMPT_BUILD_TIME_MAX, PROMPT_BUILDS_MAX},
    models::blocking,
    registry::Served,
};

/// A generation as it was asked for, in the engine's words.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) prompt: PromptSource,
    pub(crate) sampling: AskedSampling,
    /// `max_tokens` is in [`Ask::max_tokens`].
    pub(crate) stop: StopConditions,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) choices: u32,
    pub(crate) priority: i32,
    pub(crate) echo: bool,
}

/// What to go on from.
#[derive(Clone, Debug)]
pub(crate) enum PromptSource {
    Chat(Chat),
    /// With `parse_special`, control tokens written in it are recognised.
    Text {
        text: String,
        parse_special: bool,
    },
    Tokens(Vec<u32>),
}

/// Sampling as asked for; unset is the model's default, then neutral.
#[derive(Clone, Debug, Default)]
pub(crate) struct AskedSampling {
    pub(crate) temperature: Option<f32>,
    pub(crate) top_k: Option<u32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) min_p: Option<f32>,
    pub(crate) repetition_penalty: Option<f32>,
    pub(crate) frequency_penalty: Option<f32>,
    pub(crate) presence_penalty: Option<f32>,
    pub(crate) logit_bias: Vec<(u32, f32)>,
    pub(crate) seed: Option<u64>,
    pub(crate) logprobs: Option<u8>,
}

/// A job, and the text of its prompt where it is to be repeated.
pub(crate) struct Built {
    pub(crate) job: Job,
    pub(crate) echo: Option<String>,
}

/// Builds prompts of one model, a few at a time: a model whose prompts are slow keeps no other waiting. Whoever waits
/// here holds a place in a bounded queue.
pub(crate) struct PromptBuilder {
    turns: Arc<Semaphore>,
    /// From a prompt's turn on.
    time_max: Duration,
}

/// What is built, and so whose fault it is that it takes too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Making {
    /// By a chat template, which is a program that runs over the request's messages.
    Chat,
    /// By a tokenizer, whose time is bounded by the text's length: the machine is slow. In the words of a message.
    Plain(&'static str),
}

impl PromptSource {
    /// What a prompt of it is.
    pub(crate) fn making(&self) -> Making {
        match self {
            PromptSource::Chat(_) => Making::Chat,
            PromptSource::Text { .. } | PromptSource::Tokens(_) => Making::Plain("tokenizing the prompt"),
        }
    }
}

/// Tells the work of a caller that it has left.
struct Leaving(Arc<AtomicBool>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

impl PromptBuilder {
    /// For one model.
    pub(crate) fn new() -> Self {
        Self { turns: Arc::new(Semaphore::new(PROMPT_BUILDS_MAX)), time_max: PROMPT_BUILD_TIME_MAX }
    }

    /// Runs `work` on the blocking pool in its turn, until `by`. `work` is given a question to ask again and again:
    /// whether to give up, because the time is over or because the caller has dropped this future.
    ///
    /// # Errors
    /// Those of `work`; [`Error::Deadline`] after `by`; where `making` took too long by itself, [`Error::Field`] of a chat and
    /// [`Error::Busy`] of all else.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        making: Making,
        by: Option<Instant>,
        work: impl FnOnce(&dyn Fn() -> bool) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let turn =
            self.turns.clone().acquire_owned().await.map_err(|_| Error::Stopped { what: "prompts ended" })?;
        let left = Leaving(Arc::new(AtomicBool::new(false)));
        let has_left = left.0.clone();
        let most = Instant::now() + self.time_max;
        let end = by.map_or(most, |by| by.min(most));
        let built = blocking(move || {
            // Held until the work is done, though its caller may have left.
            let _turn = turn;
            work(&|| has_left.load(Relaxed) || Instant::now() >= end)
        })
        .await;
        match built {
            Err(Error::Request(RequestError::Interrupted)) if end == most => {
                let seconds = self.time_max.as_secs();
                Err(match making {
                    Making::Chat => {
                        let reason = format!("the template made no prompt of them within {seconds} seconds");
                        Error::field("chat.messages", reason)
                    }
                    Making::Plain(what) => Error::Busy { what, seconds },
                })
            }
            Err(Error::Request(RequestError::Interrupted)) => Err(Error::Deadline),
            built => built,
        }
    }
}

/// Makes the job of an ask. A completion may be as long as the context leaves room for, whatever was asked for.
///
/// # Errors
/// The runtime's, naming the field.
pub(crate) fn build(ask: Ask, served: &Served, interrupted: &dyn Fn() -> bool) -> Result<Built, Error> {
    let text = &served.text;
    let own_stops = ask.stop.strings.is_empty() && ask.stop.token_ids.is_empty();
    let context_tokens_max = served.config.context_tokens_max;
    let (tokens, rendered, starts_in_reasoning, split_reasoning) = match ask.prompt {
        PromptSource::Chat(chat) => {
            let prompt = text.prompt_from_chat(&chat, context_tokens_max, interrupted)?;
            (prompt.tokens, Some(prompt.text), prompt.starts_in_reasoning, true)
        }
        PromptSource::Text { text: prompt, parse_special } => {
            text.tokenizer.check_length("prompt", &prompt, context_tokens_max, interrupted)?;
            (encoded(text, &prompt, true, parse_special)?, Some(prompt), false, false)
        }
        PromptSource::Tokens(tokens) => (tokens, None, false, false),
    };
    let room = room(tokens.len(), context_tokens_max, ask.max_tokens, ask.stop.min_tokens)?;
    let job = Job {
        id: served.next_job(),
        choices: ask.choices,
        sampling: sampling(ask.sampling, &text.generation),
        stop: StopConditions {
            max_tokens: match (ask.max_tokens, text.generation.max_new_tokens) {
                (Some(asked), _) => asked.min(room),
                // A request that wants more than that at least has said so.
                (None, Some(own)) => own.max(ask.stop.min_tokens).clamp(1, room),
                (None, None) => room,
            },
            // Who says what ends the completion says all of it.
            strings: if own_stops { text.generation.stop.clone() } else { ask.stop.strings },
            token_ids: if own_stops { text.stop_tokens.clone() } else { ask.stop.token_ids },
            ..ask.stop
        },
        priority: ask.priority,
        starts_in_reasoning,
        split_reasoning,
        prompt: tokens.into(),
    };
    job.validate(text, context_tokens_max)?;
    let echo = ask.echo.then(|| rendered.unwrap_or_else(|| text.tokenizer.decode(&job.prompt, false)));
    Ok(Built { job, echo })
}

/// The tokens of a bare text.
fn encoded(
    model: &TextModel,
    text: &str,
    add_special: bool,
    parse_special: bool,
) -> Result<Vec<u32>, RequestError> {
    match parse_special {
        true => model.tokenizer.encode(text, add_special),
        false => model.tokenizer.encode_plain(text, add_special),
    }
}

/// What the context leaves for the completion; at least 1.
///
/// # Errors
/// [`RequestError::ContextLength`]: of a prompt that leaves nothing, or less than the completion must have.
fn room(
    prompt_tokens: usize,
    context_tokens_max: usize,
    max_tokens: Option<u32>,
    min_tokens: u32,
) -> Result<u32, RequestError> {
    let too_long = |completion_tokens| {
        Err(RequestError::ContextLength { prompt_tokens, completion_tokens, context_tokens_max })
    };
    let room = u32::try_from(context_tokens_max.saturating_sub(prompt_tokens)).unwrap_or(u32::MAX);
    if room == 0 {
        return too_long(0);
    }
    // One above `max_tokens` is wrong by itself.
    if min_tokens > room && max_tokens.is_none_or(|max_tokens| min_tokens <= max_tokens) {
        return too_long(min_tokens as usize);
    }
    Ok(room)
}

fn sampling(asked: AskedSampling, model: &GenerationDefaults) -> SamplingParams {
    // A model that says not to sample is greedy, unless the request says a temperature.
    let own_temperature = match model.do_sample {
        Some(false) => Some(0.0),
        _ => model.temperature,
    };
    SamplingParams {
        temperature: asked.temperature.or(own_temperature).unwrap_or(1.0),
        top_k: asked.top_k.or(model.top_k).unwrap_or(0),
        top_p: asked.top_p.or(model.top_p).unwrap_or(1.0),
        min_p: asked.min_p.or(model.min_p).unwrap_or(0.0),
        repetition_penalty: asked.repetition_penalty.or(model.repetition_penalty).unwrap_or(1.0),
        frequency_penalty: asked.frequency_penalty.or(model.frequency_penalty).unwrap_or(0.0),
        presence_penalty: asked.presence_penalty.or(model.presence_penalty).unwrap_or(0.0),
        logit_bias: asked.logit_bias,
        seed: asked.seed.or(model.seed).unwrap_or_else(random_u64),
        logprobs: asked.logprobs,
    }
}

/// What a client wants to see tokenized.
pub(crate) enum TokenizeInput {
    Chat(Chat),
    Text { text: String, add_special: bool, parse_special: bool },
}

impl TokenizeInput {
    /// What its tokens are.
    pub(crate) fn making(&self) -> Making {
        match self {
            TokenizeInput::Chat(_) => Making::Chat,
            TokenizeInput::Text { .. } => Making::Plain("tokenizing the text"),
        }
    }
}

/// Its tokens, and the text they are of.
///
/// # Errors
/// The runtime's, naming the field.
pub(crate) fn tokenize(
    input: TokenizeInput,
    model: &TextModel,
    interrupted: &dyn Fn() -> bool,
) -> Result<(Vec<u32>, String), RequestError> {
    match input {
        TokenizeInput::Chat(chat) => {
            model.prompt_from_chat(&chat, usize::MAX, interrupted).map(|prompt| (prompt.tokens, prompt.text))
        }
        TokenizeInput::Text { text, add_special, parse_special } => {
            Ok((encoded(model, &text, add_special, parse_special)?, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_over_the_model_is_over_neutral() {
        let model = GenerationDefaults { temperature: Some(0.6), top_k: Some(20), ..Default::default() };
        let asked = AskedSampling { top_k: Some(0), ..Default::default() };
        let params = sampling(asked, &model);
        assert_eq!((params.temperature, params.top_k, params.top_p), (0.6, 0, 1.0));
        assert_eq!(sampling(AskedSampling::default(), &GenerationDefaults::default()).temperature, 1.0);
    }

    #[test]
    fn a_model_that_does_not_sample_is_greedy_until_asked() {
        let model =
            GenerationDefaults { do_sample: Some(false), temperature: Some(0.6), ..Default::default() };
        assert_eq!(sampling(AskedSampling::default(), &model).temperature, 0.0);
        let asked = AskedSampling { temperature: Some(0.3), ..Default::default() };
        assert_eq!(sampling(asked, &model).temperature, 0.3);
    }

    #[test]
    fn seeds_are_fresh_unless_asked_for() {
        let seed = |seed| sampling(AskedSampling { seed, ..Default::default() }, &Default::default()).seed;
        assert_eq!(seed(Some(7)), 7);
        assert_ne!(seed(None), seed(None));
        let model = GenerationDefaults { seed: Some(9), ..Default::default() };
        assert_eq!(sampling(AskedSampling::default(), &model).seed, 9);
        assert_eq!(sampling(AskedSampling { seed: Some(7), ..Default::default() }, &model).seed, 7);
    }

    #[test]
    fn the_context_is_the_limit_and_says_so() {
        assert_eq!((room(10, 64, None, 0), room(63, 64, Some(5), 0)), (Ok(54), Ok(1)));
        for (prompt, max_tokens) in [(64, None), (100, Some(5))] {
            let error = room(prompt, 64, max_tokens, 0).unwrap_err().to_string();
            assert!(error.contains("maximum context length is 64 tokens"), "{error}");
            assert!(error.contains(&format!("resulted in {prompt} tokens")), "{error}");
            assert!(!error.contains("completion") && !error.contains("max_tokens"), "{error}");
        }
        let error = room(60, 64, None, 10).unwrap_err().to_string();
        assert!(
            error.contains("you requested 70 tokens (60 in the messages, 10 in the completion)"),
            "{error}"
        );
        assert_eq!(room(60, 64, Some(5), 10), Ok(4), "min_tokens above max_tokens is refused by name");
    }

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
        let builder = PromptBuilder { time_max: Duration::from_millis(20), ..PromptBuilder::new() };
        let inputs = Making::Plain("tokenizing the inputs");
        for (making, code, begins, retries) in [
            (Making::Chat, tonic::Code::InvalidArgument, "chat.messages: ", false),
            (inputs, tonic::Code::Unavailable, "tokenizing the inputs took over ", true),
        ] {
            let status = tonic::Status::from(builder.run(making, None, endless).await.unwrap_err());
            assert_eq!(status.code(), code, "{status}");
            assert!(status.message().starts_with(begins), "{status}");
            assert_eq!(status.metadata().contains_key("retry-after-ms"), retries, "{status}");
            // The request's own deadline is another thing, whatever is made.
            let ended = builder.run(making, Some(Instant::now()), endless).await;
            assert!(matches!(ended, Err(Error::Deadline)), "{ended:?}");
        }
        let text = PromptSource::Text { text: String::new(), parse_special: false };
        assert_eq!(text.making(), PromptSource::Tokens(Vec::new()).making());
        assert_ne!(text.making(), Making::Chat);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_slow_prompt_ends_with_its_client_and_keeps_no_other_model_waiting() {
        let (slow, other) = (Arc::new(PromptBuilder::new()), PromptBuilder::new());
        let client = |by: Option<Instant>| {
            let slow = slow.clone();
            tokio::spawn(async move { slow.run(Making::Chat, by, endless).await })
        };
        // Twice as many as have a turn: half of them wait.
        let clients: Vec<_> = (0..2 * PROMPT_BUILDS_MAX).map(|_| client(None)).collect();
        until(|| slow.turns.available_permits() == 0);
        other.run(Making::Chat, None, |_| Ok(())).await.unwrap();
        for gone in clients {
            gone.abort();
            assert!(gone.await.unwrap_err().is_cancelled());
        }
        until(|| slow.turns.available_permits() == PROMPT_BUILDS_MAX);
        slow.run(Making::Chat, None, |_| Ok(())).await.unwrap();
        // A request that has a deadline ends by it.
        let soon = Instant::now() + std::time::Duration::from_millis(50);
        let ended = client(Some(soon)).await.unwrap();
        assert!(matches!(ended, Err(Error::Deadline)), "{ended:?}");
        until(|| slow.turns.available_permits() == PROMPT_BUILDS_MAX);
    }
}
