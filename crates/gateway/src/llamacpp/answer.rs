//! Completions in the format of llama.cpp's server, streamed and collected.

use axum::{
    Json,
    response::{IntoResponse as _, Response},
};
use hanzo_engine_proto::v1::{self, FinishReason, TokenLogprob, infer_request::Prompt};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    app::App,
    error::ApiError,
    limits::LOGPROB_BYTES,
    llamacpp::{ask::AnswerFields, settings},
    openai::{
        events::{Timings, decode_rate, timings},
        frames::Frames,
        generation::{Event, Generation},
        plan::RequestPlan,
        shape::{AnswerShape, CollectedChoice, Head},
        usage_count::UsageCount,
    },
};

/// Slot number in answers. Requests have no slots here: all running ones share a batch.
const NO_SLOT: i32 = -1;

/// Writer of completions.
pub(super) struct Llama {
    shown: AnswerFields,
    choices: u32, // of each prompt
    /// Only the prompt is read; the generated token is not shown.
    reads_only: bool,
    asked: Value,
    so_far: Vec<SoFar>,                // by index
    started: Vec<Option<v1::Started>>, // by prompt
}

/// State of a completion.
#[derive(Debug, Default, Clone)]
struct SoFar {
    predicted: u32,
    has_new_line: bool,
    /// Token ids that have not been sent yet.
    tokens: Vec<u32>,
    logprobs: Vec<TokenLogprob>,
}

/// End of a completion.
struct End {
    reason: FinishReason,
    stop_string: String,
    timings: Option<v1::Timings>,
    tokens: u32,
}

/// Part of a completion.
#[derive(Serialize)]
struct CompletionPart {
    index: u32,
    content: String,
    tokens: Vec<u32>,
    id_slot: i32,
    stop: bool,
    tokens_predicted: u32,
    tokens_evaluated: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_probabilities: Option<Vec<Probability>>,
}

/// Last part of a stream, or a whole completion.
#[derive(Serialize)]
struct FinalCompletion<'a> {
    #[serde(flatten)]
    piece: CompletionPart,
    model: &'a str,
    generation_settings: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt: Option<Value>,
    has_new_line: bool,
    truncated: bool,
    /// Values: `eos`, `word` or `limit`.
    stop_type: &'static str,
    stopping_word: String,
    tokens_cached: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<LlamaTimings>,
}

/// Probability of a token, and of its alternatives.
#[derive(Serialize)]
struct Probability {
    id: u32,
    token: String,
    bytes: Vec<u8>,
    logprob: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<Vec<Probability>>,
}

/// Timings in llama.cpp's format, in addition to this server's.
#[derive(Serialize)]
struct LlamaTimings {
    #[serde(flatten)]
    timings: Timings,
    cache_n: u32,
    prompt_n: u32,
    prompt_ms: f64,
    prompt_per_token_ms: f64,
    prompt_per_second: f64,
    predicted_n: u32,
    predicted_ms: f64,
    predicted_per_token_ms: Option<f64>,
    predicted_per_second: Option<f64>,
}

impl LlamaTimings {
    fn new(spent: &v1::Timings, predicted_n: u32, prompt: u32, cached: u32) -> LlamaTimings {
        let prompt_n = prompt.saturating_sub(cached);
        let each = |ms: f64, tokens: u32| ms / f64::from(tokens.max(1));
        LlamaTimings {
            timings: timings(spent),
            cache_n: cached,
            prompt_n,
            prompt_ms: spent.prefill_ms,
            prompt_per_token_ms: each(spent.prefill_ms, prompt_n),
            prompt_per_second: spent.prefill_tokens_per_s,
            predicted_n,
            predicted_ms: spent.decode_ms,
            predicted_per_token_ms: decode_rate(spent).map(|rate| 1e3 / rate),
            predicted_per_second: decode_rate(spent),
        }
    }
}

impl Probability {
    fn new(token: TokenLogprob) -> Probability {
        Probability {
            top_logprobs: Some(token.top.into_iter().map(Probability::alternative).collect()),
            ..Probability::alternative(TokenLogprob { top: Vec::new(), ..token })
        }
    }

    fn alternative(token: TokenLogprob) -> Probability {
        Probability {
            id: token.token_id,
            token: String::from_utf8_lossy(&token.token).into_owned(),
            bytes: token.token.to_vec(),
            // JSON has no minus infinity.
            logprob: token.logprob.max(f32::MIN),
            top_logprobs: None,
        }
    }
}

impl Llama {
    pub(super) fn new(plan: &RequestPlan, shown: AnswerFields) -> Llama {
        let prompts = plan.requests.len();
        Llama {
            shown,
            choices: plan.choices,
            reads_only: plan.line_limits.is_some_and(|limits| limits.reads_only),
            asked: plan
                .requests
                .first()
                .map(|request| settings::asked(request, plan.stream))
                .unwrap_or_default(),
            so_far: vec![SoFar::default(); prompts * plan.choices as usize],
            started: vec![None; prompts],
        }
    }

    fn prompt_of(&self, index: u32) -> usize {
        (index / self.choices) as usize
    }

    fn begin(&mut self, index: u32, started: v1::Started) {
        let prompt = self.prompt_of(index);
        self.started[prompt].get_or_insert(started);
    }

    /// Records new tokens and returns their text.
    fn take(&mut self, index: u32, delta: v1::Delta) -> String {
        let so_far = &mut self.so_far[index as usize];
        so_far.predicted =
            so_far.predicted.saturating_add(u32::try_from(delta.token_ids.len()).unwrap_or(u32::MAX));
        so_far.tokens.extend(delta.token_ids);
        so_far.logprobs.extend(delta.logprobs);
        // A completion has a single text, so reasoning is part of it.
        let text = delta.reasoning + &delta.text;
        so_far.has_new_line |= text.contains('\n');
        text
    }

    fn piece(&mut self, index: u32, content: String, used: &UsageCount) -> CompletionPart {
        let (tokens_evaluated, _) = used.of_prompt(self.prompt_of(index));
        let so_far = &mut self.so_far[index as usize];
        let logprobs = std::mem::take(&mut so_far.logprobs).into_iter().map(Probability::new);
        CompletionPart {
            index,
            content,
            tokens: std::mem::take(&mut so_far.tokens),
            id_slot: NO_SLOT,
            stop: false,
            tokens_predicted: if self.reads_only { 0 } else { so_far.predicted },
            tokens_evaluated,
            completion_probabilities: self.shown.probabilities.then(|| logprobs.collect()),
        }
    }

    fn whole(&mut self, model: &str, content: String, index: u32, end: End, used: &UsageCount) -> Value {
        let mut piece = self.piece(index, content, used);
        piece.stop = true;
        if !self.reads_only {
            piece.tokens_predicted = piece.tokens_predicted.max(end.tokens);
        }
        let prompt = self.prompt_of(index);
        let (prompt_tokens, tokens_cached) = used.of_prompt(prompt);
        let started = self.started[prompt].as_ref();
        let context = started.map_or(0, |started| started.context_tokens_max);
        let mut drawn = started.and_then(|started| started.sampling.clone()).unwrap_or_default();
        drawn.seed = drawn.seed.map(|seed| seed.wrapping_add(u64::from(index % self.choices)));
        let own = json!({"n_ctx": context, "model": model});
        let settings = settings::together(settings::sampling(&drawn), self.asked.clone());
        let spent = end.timings.as_ref().or(used.timings.as_ref());
        let limit = end.reason == FinishReason::Length;
        let whole = json!(FinalCompletion {
            model,
            generation_settings: settings::together(settings, own),
            prompt: self.shown.prompts.get(prompt).map(|prompt| match prompt {
                Prompt::Text(text) => json!(text),
                Prompt::Tokens(tokens) => json!(tokens.ids),
                Prompt::Chat(_) => Value::Null,
            }),
            has_new_line: self.so_far[index as usize].has_new_line,
            truncated: limit
                && context > 0
                && prompt_tokens.saturating_add(piece.tokens_predicted) >= context,
            stop_type: match () {
                () if limit => "limit",
                () if !end.stop_string.is_empty() => "word",
                () => "eos",
            },
            stopping_word: end.stop_string,
            tokens_cached,
            timings: spent.map(|spent| LlamaTimings::new(
                spent,
                piece.tokens_predicted,
                prompt_tokens,
                tokens_cached,
            )),
            piece,
        });
        match self.shown.fields.is_empty() {
            true => whole,
            false => {
                let found = |path: &String| Some((path.clone(), at(&whole, path)?));
                self.shown.fields.iter().filter_map(found).collect()
            }
        }
    }
}

/// Value at a path, if there is one.
fn at(whole: &Value, path: &str) -> Option<Value> {
    path.split('/').try_fold(whole, |value, name| value.as_object()?.get(name)).cloned()
}

/// Answers a request that is not streamed.
pub(super) async fn collect(
    app: &App,
    mut generation: Generation,
    shape: &mut Llama,
    choices: usize,
) -> Result<Response, ApiError> {
    let mut texts = vec![String::new(); choices];
    let mut ends: Vec<Option<End>> = Vec::new();
    ends.resize_with(choices, || None);
    let mut room = app.answers.room();
    while let Some(event) = generation.next().await {
        match event? {
            Event::Started { index, started } => shape.begin(index, *started),
            // No scores were requested for the prompt.
            Event::Loading(_) | Event::Scored { .. } | Event::Server(_) => {}
            Event::Delta { index, delta } => {
                let listed: usize =
                    delta.logprobs.iter().map(|one| (1 + one.top.len()) * LOGPROB_BYTES).sum();
                room.grow(delta.text.len() + delta.reasoning.len() + 4 * delta.token_ids.len() + listed)?;
                let text = shape.take(index, delta);
                texts[index as usize].push_str(&text);
            }
            Event::Finished { index, reason, stop_string, timings, tokens } => {
                ends[index as usize] = Some(End { reason, stop_string, timings, tokens });
            }
        }
    }
    let (model, used) = (std::mem::take(&mut generation.model), &generation.used);
    let mut all = Vec::with_capacity(choices);
    for ((index, text), end) in (0..).zip(texts).zip(ends) {
        let Some(end) = end else { continue };
        if !shape.shown.tokens {
            shape.so_far[index as usize].tokens.clear();
        }
        all.push(shape.whole(&model, text, index, end, used));
    }
    Ok(match shape.shown.listed {
        true => Json(all).into_response(),
        false => Json(all.pop()).into_response(),
    })
}

impl AnswerShape for Llama {
    const ID_PREFIX: &'static str = "cmpl-";
    type Choice = String;

    fn event(&mut self, head: &Head, used: &UsageCount, event: Event, frames: &mut Frames) {
        match event {
            Event::Started { index, started } => self.begin(index, *started),
            Event::Loading(_) | Event::Scored { .. } | Event::Server(_) => {}
            Event::Delta { index, delta } => {
                let text = self.take(index, delta);
                if !text.is_empty() {
                    let piece = self.piece(index, text, used);
                    frames.data(&piece);
                }
            }
            Event::Finished { index, reason, stop_string, timings, tokens } => {
                let so_far = &mut self.so_far[index as usize];
                // Earlier parts have sent all tokens, except those without text.
                so_far.tokens.clear();
                so_far.logprobs.clear();
                let end = End { reason, stop_string, timings, tokens };
                let mut whole = self.whole(&head.model, String::new(), index, end, used);
                if let Some(whole) = whole.as_object_mut() {
                    whole.shift_remove("completion_probabilities");
                }
                frames.data(&whole);
            }
        }
    }

    /// Prompt scores are not shown.
    fn scored(&mut self, _: u32, _: v1::PromptLogprobs) {}

    /// The last part contains the usage.
    fn usage(&mut self, _: &Head, _: &UsageCount, _: &mut Frames) {}

    /// The stream ends with its last part.
    fn done(&mut self, _: &mut Frames) {}

    fn failed(&mut self, error: &ApiError, frames: &mut Frames) {
        frames.data(&error.json());
    }

    fn choice(&self, _: u32, whole: CollectedChoice) -> String {
        whole.text
    }

    fn envelope(&self, head: &Head, _: &UsageCount) -> impl Serialize {
        head.model.clone()
    }
}
