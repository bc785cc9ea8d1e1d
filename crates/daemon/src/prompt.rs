//! From what a client asks to a job the worker can run: template and tokenizer, the model's own defaults, limits.
//! Slow for a long prompt, so it runs on the blocking pool, a few at a time.

use std::sync::Arc;

use hanzo_engine_runtime::{
    Job, RequestError, SamplingParams, StopConditions, TextModel, chat::Chat, load::GenerationDefaults,
};
use tokio::sync::Semaphore;

use crate::{
    error::{Error, random_u64},
    limits::PROMPT_BUILDS_MAX,
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
    Text(String),
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

/// Builds prompts, a few at a time. Whoever waits here holds a place in a bounded queue.
#[derive(Clone)]
pub(crate) struct PromptBuilder(Arc<Semaphore>);

impl PromptBuilder {
    /// For one daemon.
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(PROMPT_BUILDS_MAX)))
    }

    /// Runs `work` on the blocking pool in its turn.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let turn =
            self.0.clone().acquire_owned().await.map_err(|_| Error::Stopped { what: "prompts ended" })?;
        blocking(move || {
            // Held until the work is done, though its caller may have left.
            let _turn = turn;
            work()
        })
        .await
    }
}

/// Makes the job of an ask.
///
/// # Errors
/// The runtime's, naming the field.
pub(crate) fn build(ask: Ask, served: &Served) -> Result<Built, Error> {
    let text = &served.text;
    let own_stops = ask.stop.strings.is_empty() && ask.stop.token_ids.is_empty();
    let context_tokens_max = served.config.context_tokens_max;
    let (tokens, rendered, starts_in_reasoning, split_reasoning) = match ask.prompt {
        PromptSource::Chat(chat) => {
            let prompt = text.prompt_from_chat(&chat, &|| false)?;
            (prompt.tokens, Some(prompt.text), prompt.starts_in_reasoning, true)
        }
        PromptSource::Text(prompt) => (text.tokenizer.encode(&prompt, true)?, Some(prompt), false, false),
        PromptSource::Tokens(tokens) => (tokens, None, false, false),
    };
    let job = Job {
        id: served.next_job(),
        choices: ask.choices,
        sampling: sampling(ask.sampling, &text.generation),
        stop: StopConditions {
            max_tokens: ask.max_tokens.unwrap_or_else(|| {
                let room = room(tokens.len(), context_tokens_max);
                // A request that wants more than that at least has said so.
                text.generation.max_new_tokens.map_or(room, |own| own.max(ask.stop.min_tokens).clamp(1, room))
            }),
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

/// What the context leaves. At least 1, so that a prompt that fills it is refused by the context and not by
/// `max_tokens`.
fn room(prompt_tokens: usize, context_tokens_max: usize) -> u32 {
    u32::try_from(context_tokens_max.saturating_sub(prompt_tokens)).unwrap_or(u32::MAX).max(1)
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
    Text { text: String, add_special: bool },
}

/// Its tokens, and the text they are of.
///
/// # Errors
/// The runtime's, naming the field.
pub(crate) fn tokenize(input: TokenizeInput, model: &TextModel) -> Result<(Vec<u32>, String), RequestError> {
    match input {
        TokenizeInput::Chat(chat) => {
            model.prompt_from_chat(&chat, &|| false).map(|prompt| (prompt.tokens, prompt.text))
        }
        TokenizeInput::Text { text, add_special } => Ok((model.tokenizer.encode(&text, add_special)?, text)),
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
    fn without_max_tokens_the_context_is_the_limit() {
        assert_eq!((room(10, 64), room(64, 64), room(100, 64)), (54, 1, 1));
    }
}
