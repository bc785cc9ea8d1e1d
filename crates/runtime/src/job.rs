//! Input and output of the engine: plain data, so that a worker can be a thread or a process.

use std::sync::Arc;

use hanzo_engine_constraints::Grammar;
pub use hanzo_engine_formats::{Tool, ToolFormat};
pub use hanzo_engine_ops::TokenLogprob;
use serde::{Deserialize, Serialize};

use crate::{
    adapter::LoadedAdapter,
    embedding::{EmbedInput, EmbedResult, Output},
    error::RequestError,
    limits::{CHOICES_MAX, STOP_STRING_BYTES_MAX, STOP_STRINGS_MAX, STOP_TOKENS_MAX, TOP_LOGPROBS_MAX},
    media::{self, MediaSpan},
    overflow::ContextShift,
    sampler::SamplingParams,
    text::TextModel,
    transcript::Transcript,
    vision::Sight,
};

/// ID of a job within one engine; chosen by the caller, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct JobId(pub u64);

/// ID of a client; jobs of one client share a place in the fair queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClientId(pub u64);

/// Request: a prompt and how to continue it, `choices` times. Serialised without its adapter and its constraint, which
/// belong to a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// ID of the job.
    pub id: JobId,
    /// The prompt; not empty.
    pub prompt: Arc<[u32]>,
    /// Spans of prompt tokens whose embeddings are given, in order.
    pub media: Arc<[MediaSpan]>,
    /// Adapter to compute with, if any; loaded on the job's engine.
    #[serde(skip)]
    pub adapter: Option<Arc<LoadedAdapter>>,
    /// Number of independent completions, at least 1; choice i samples with seed + i.
    pub choices: u32,
    /// Sampling parameters.
    pub sampling: SamplingParams,
    /// Stop conditions.
    pub stop: StopConditions,
    /// Grammar that the answer must match, compiled for the model's vocabulary ([`TextModel::vocabulary`]). The
    /// answer ends where the grammar ends, unless a stop string, `max_tokens` or the end of the context cuts it.
    #[serde(skip)]
    pub constraint: Option<Arc<Grammar>>,
    /// Priority; lower runs earlier.
    pub priority: i32,
    /// Client that sent the job. `None`: the job counts as its own client.
    pub client: Option<ClientId>,
    /// The prompt ends inside the reasoning section, which the template opened.
    pub starts_in_reasoning: bool,
    /// The prompt ends after the reasoning section, so a constrained answer has no other.
    pub reasoning_is_over: bool,
    /// Separate the reasoning section from the answer.
    pub split_reasoning: bool,
    /// `Some(k)`: report the log probability of each prompt token after the first, and the k most likely tokens in
    /// its place, 0 to 20. The whole prompt is then computed, even if it is cached.
    pub prompt_logprobs: Option<u8>,
    /// Predicted completion, such as a file to be changed. It only affects speed, never the tokens.
    pub prediction: Arc<[u32]>,
    /// Maximum length of the reasoning section, which is then closed; `None`: the model closes it. Only used if the
    /// section is split.
    pub reasoning_tokens_max: Option<u32>,
    /// Separate tool calls from the answer.
    pub calls: Option<CallReading>,
    /// Continue when the context is full, instead of ending.
    pub context_shift: Option<ContextShift>,
    /// Only jobs with the same salt share cached blocks; empty: shared by all jobs without one.
    pub cache_salt: Arc<[u8]>,
    /// Compute the whole prompt, even if it is cached.
    pub skip_cache: bool,
}

/// Default: one greedy completion of an empty prompt.
impl Default for Job {
    fn default() -> Job {
        Job {
            id: JobId(0),
            prompt: Arc::default(),
            media: Arc::default(),
            adapter: None,
            choices: 1,
            sampling: SamplingParams::default(),
            stop: StopConditions::default(),
            constraint: None,
            priority: 0,
            client: None,
            starts_in_reasoning: false,
            reasoning_is_over: false,
            split_reasoning: false,
            prompt_logprobs: None,
            prediction: Arc::default(),
            reasoning_tokens_max: None,
            calls: None,
            context_shift: None,
            cache_salt: Arc::default(),
            skip_cache: false,
        }
    }
}

/// Shared copy of the job, for callers that keep theirs.
impl From<&Job> for Arc<Job> {
    fn from(job: &Job) -> Arc<Job> {
        Arc::new(job.clone())
    }
}

impl Job {
    /// Checks that a model with this vocabulary and context can run the job. The error names the wrong field.
    pub fn validate(&self, text: &TextModel, context_tokens_max: usize) -> Result<(), RequestError> {
        let vocab = text.vocab;
        if self.prompt.is_empty() {
            return Err(RequestError::invalid("prompt", "must have at least one token"));
        }
        if let Some(token) = self.prompt.iter().find(|&&token| token as usize >= vocab) {
            return Err(RequestError::invalid(
                "prompt",
                format!("token {token} is not below the vocabulary's {vocab}"),
            ));
        }
        if !(1..=CHOICES_MAX).contains(&self.choices) {
            let reason = format!("must be 1 to {CHOICES_MAX}, got {}", self.choices);
            return Err(RequestError::invalid("choices", reason));
        }
        let sight = text.sight.as_ref();
        let widths = [text.hidden, sight.map_or(text.hidden, Sight::row_width)];
        let is_frame = |span: &MediaSpan| {
            sight.is_some_and(|sight| sight.fits(span))
                || text.hearing.as_ref().is_some_and(|hearing| hearing.fits(span))
        };
        media::check(&self.media, self.prompt.len(), widths, is_frame)?;
        self.sampling.validate(vocab)?;
        self.stop.validate(vocab)?;
        if self.stop.max_tokens == 0 && self.prompt_logprobs.is_none() {
            let reason = "must be at least 1, but for a prompt whose log probabilities are asked for";
            return Err(RequestError::invalid("max_tokens", reason));
        }
        if let Some(top) = self.prompt_logprobs.filter(|&top| usize::from(top) > TOP_LOGPROBS_MAX) {
            let reason = format!("must be 0 to {TOP_LOGPROBS_MAX}, not {top}");
            return Err(RequestError::invalid("prompt_logprobs", reason));
        }
        if self.prompt_logprobs.is_some() && self.media.iter().any(|span| span.mutual) {
            let reason = "must be unset beside pictures of this model, whose rows see each other: a prompt that is scored is cut";
            return Err(RequestError::invalid("prompt_logprobs", reason));
        }
        if let Some(token) = self.prediction.iter().find(|&&token| token as usize >= vocab) {
            let reason = format!("token {token} is not below the vocabulary's {vocab}");
            return Err(RequestError::invalid("prediction", reason));
        }
        // The last sampled token is never computed, so it needs no cache. It counts all the same: users count whole
        // contexts.
        let (prompt_tokens, completion_tokens) = (self.prompt.len(), self.stop.max_tokens as usize);
        if let Some(shift) = self.context_shift {
            shift.check(context_tokens_max)?;
            if !self.media.is_empty() {
                let reason = "must be unset: a prompt with media cannot lose tokens";
                return Err(RequestError::invalid("context_shift", reason));
            }
        }
        // With a context shift, the completion only has to start within the context.
        let completion_tokens =
            if self.context_shift.is_some() { completion_tokens.min(1) } else { completion_tokens };
        if prompt_tokens.saturating_add(completion_tokens) > context_tokens_max {
            return Err(RequestError::ContextLength { prompt_tokens, completion_tokens, context_tokens_max });
        }
        Ok(())
    }
}

/// How tool calls are recognised in an answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CallReading {
    /// Format of the calls.
    pub format: ToolFormat,
    /// Tools that may be called.
    pub tools: Arc<[Tool]>,
    /// The answer must be a call.
    pub required: bool,
    /// Allow more than one call; otherwise the first ends the completion.
    pub parallel: bool,
}

/// Part of a tool call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallDelta {
    /// Index of the call in its completion, from 0.
    pub index: u32,
    /// Name of the tool; only in the first part.
    pub name: Option<String>,
    /// The model's own ID of the call, if its format has one; only in the first part.
    pub id: Option<String>,
    /// Next part of the arguments' JSON text.
    pub arguments: String,
    /// The text was no call after all. Everything written of it is ordinary text.
    pub broken: bool,
}

impl CallDelta {
    /// Appends parts of calls to `calls`. Parts of the same call are joined.
    pub fn append(calls: &mut Vec<CallDelta>, more: Vec<CallDelta>) {
        for call in more {
            match calls.last_mut() {
                Some(last) if last.index == call.index && call.name.is_none() => {
                    last.arguments.push_str(&call.arguments);
                    last.broken |= call.broken;
                }
                _ => calls.push(call),
            }
        }
    }
}

/// Inputs that the network reads once, to compute vectors or scores.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EmbedJob {
    /// ID of the job.
    pub id: JobId,
    /// Inputs; at least one.
    pub inputs: Vec<EmbedInput>,
    /// Output to compute for each input.
    pub output: Output,
    /// Priority; lower runs earlier.
    pub priority: i32,
    /// Client that sent the job. `None`: the job counts as its own client.
    pub client: Option<ClientId>,
}

/// Stop conditions of a completion, besides the end of the context.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StopConditions {
    /// Maximum number of generated tokens; at least 1, or 0 if only the prompt's log probabilities are wanted.
    pub max_tokens: u32,
    /// Minimum number of generated tokens before end-of-sequence may be sampled.
    pub min_tokens: u32,
    /// Strings that end the completion at their first occurrence.
    pub strings: Vec<String>,
    /// Tokens that end the completion, besides the model's own.
    pub token_ids: Vec<u32>,
    /// Keep the stop string in the text.
    pub include_stop_string: bool,
    /// Never sample the model's own end-of-sequence tokens, so that it continues. Under a constraint they count as
    /// ordinary tokens.
    pub ignore_eos: bool,
}

impl StopConditions {
    fn validate(&self, vocab: usize) -> Result<(), RequestError> {
        if self.min_tokens > self.max_tokens {
            let reason = format!("must not be above max_tokens {}, got {}", self.max_tokens, self.min_tokens);
            return Err(RequestError::invalid("min_tokens", reason));
        }
        if self.strings.len() > STOP_STRINGS_MAX {
            let reason = format!("must have at most {STOP_STRINGS_MAX} strings, got {}", self.strings.len());
            return Err(RequestError::invalid("stop", reason));
        }
        if self.strings.iter().any(|string| string.is_empty() || string.len() > STOP_STRING_BYTES_MAX) {
            let reason = format!("each string must have 1 to {STOP_STRING_BYTES_MAX} bytes");
            return Err(RequestError::invalid("stop", reason));
        }
        if self.token_ids.len() > STOP_TOKENS_MAX {
            return Err(RequestError::invalid(
                "stop_token_ids",
                format!("must have at most {}", STOP_TOKENS_MAX),
            ));
        }
        match self.token_ids.iter().find(|&&token| token as usize >= vocab) {
            Some(token) => {
                let reason = format!("token {token} is not below the vocabulary's {vocab}");
                Err(RequestError::invalid("stop_token_ids", reason))
            }
            None => Ok(()),
        }
    }
}

/// Reason why a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FinishReason {
    /// End of sequence, a stop token or a stop string.
    Stop,
    /// `max_tokens` or the end of the context.
    Length,
    /// End of sequence or a stop token, after complete tool calls.
    ToolCalls,
}

/// Token counts of a completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens of the prompt found in the prefix cache.
    pub cached_tokens: u32,
    /// Generated tokens, the end token included.
    pub completion_tokens: u32,
    /// Generated tokens inside the reasoning section.
    pub reasoning_tokens: u32,
    /// Draft tokens that were computed.
    pub draft_tokens: u32,
    /// Draft tokens that were accepted.
    pub accepted_draft_tokens: u32,
}

/// Log probability of a token of the answer's text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TextLogprob {
    /// Log probability of the token.
    #[serde(with = "crate::wire::logprob")]
    pub logprob: TokenLogprob,
    /// Bytes of the text that come from this token, if they are not all its bytes: a stop string or a mark may take
    /// some.
    pub part: Option<Vec<u8>>,
}

/// Event of a job in a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// The job.
    pub job: JobId,
    /// Index of the completion or input.
    pub choice: u32,
    /// Kind of event.
    pub kind: EventKind,
}

/// Kind of event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum EventKind {
    /// The completion was scheduled for the first time.
    Started {
        /// Tokens of the prompt found in the prefix cache.
        cached_tokens: u32,
    },
    /// Tokens of the prompt were scored. Continues from the last event, from the prompt's second token on: the log
    /// probability of each token and the most likely ones in its place. Only for a job's first completion.
    Scored(#[serde(with = "crate::wire::logprobs")] Vec<TokenLogprob>),
    /// Text, reasoning or calls were added; each may be empty. Tokens whose text is held back (an unfinished
    /// character, a possible stop string) come with a later delta.
    Delta {
        /// Added text of the answer.
        text: String,
        /// Added text of the reasoning section.
        reasoning: String,
        /// Parts of tool calls.
        calls: Vec<CallDelta>,
        /// Tokens since the last delta.
        tokens: Vec<u32>,
        /// If requested, one entry for each token with a part in the answer's text, sent once its whole part is
        /// certain. All parts joined are the text.
        logprobs: Vec<TextLogprob>,
    },
    /// The completion ended.
    Finished {
        /// Reason.
        reason: FinishReason,
        /// The stop string that matched.
        stop_string: Option<String>,
        /// Token counts.
        usage: Usage,
    },
    /// An input of an [`EmbedJob`] is done; `choice` is its index.
    Computed(EmbedResult),
    /// Part of a transcription.
    Heard(Box<Transcript>),
    /// Audio samples of the next piece of a text to speak.
    Said(Vec<f32>),
    /// The next piece of the text cannot be spoken. It is the last event of the completion.
    Unsayable {
        /// Reason and remedy.
        reason: String,
    },
    /// The model's output for this completion was not a number: its prompt or its weights exceed the range that the
    /// model can compute. It is the last event of the completion; other completions go on.
    Failed,
    /// The completion's constraint became too complex to follow. It is the last event of the completion.
    ConstraintFailed {
        /// Reason.
        reason: String,
    },
}

impl EventKind {
    /// Appends the delta that follows this one.
    pub fn append(&mut self, next: EventKind) {
        let (
            EventKind::Delta { text, reasoning, calls, tokens, logprobs },
            EventKind::Delta { text: more, reasoning: thoughts, calls: parts, tokens: ids, logprobs: scores },
        ) = (self, next)
        else {
            return;
        };
        text.push_str(&more);
        reasoning.push_str(&thoughts);
        CallDelta::append(calls, parts);
        tokens.extend(ids);
        logprobs.extend(scores);
    }
}
