//! What goes into the engine and what comes out: plain data, so that a worker can be a thread now and a
//! process later.

use std::sync::Arc;

use hanzo_engine_constraints::Grammar;
pub use hanzo_engine_formats::{Tool, ToolFormat};
pub use hanzo_engine_kernels::TokenLogprob;
use serde::{Deserialize, Serialize};

use crate::{
    adapter::LoadedAdapter,
    embedding::{Computed, Output},
    error::RequestError,
    limits::{CHOICES_MAX, STOP_STRING_BYTES_MAX, STOP_STRINGS_MAX, STOP_TOKENS_MAX, TOP_LOGPROBS_MAX},
    media::{self, MediaSpan},
    overflow::ContextShift,
    sampler::SamplingParams,
    text::TextModel,
    vision::Sight,
    whisper::Transcript,
};

/// Names a job within one engine; chosen by the caller, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct JobId(pub u64);

/// Who asks for a job; those of one client share its place among others'.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClientId(pub u64);

/// One request: a prompt and how to continue it, `choices` times.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its name.
    pub id: JobId,
    /// The prompt; not empty.
    pub prompt: Arc<[u32]>,
    /// Those of its tokens whose embeddings are given, in order.
    pub media: Arc<[MediaSpan]>,
    /// The adapter it is computed with, if any: of the engine that it goes to.
    pub adapter: Option<Arc<LoadedAdapter>>,
    /// Independent completions, at least 1; choice i draws with seed + i.
    pub choices: u32,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// When to stop.
    pub stop: StopConditions,
    /// What the answer must satisfy, compiled over the model's own vocabulary ([`TextModel::vocabulary`]). It ends only where it
    /// does, unless a stop string, `max_tokens` or the end of the context cuts it.
    pub constraint: Option<Arc<Grammar>>,
    /// Lower runs earlier.
    pub priority: i32,
    /// Who asks; `None`: nobody else asks for it.
    pub client: Option<ClientId>,
    /// The prompt ends inside the model's reasoning section (the template opened it).
    pub starts_in_reasoning: bool,
    /// The prompt ends behind the reasoning section: a constrained answer has no other.
    pub reasoning_is_over: bool,
    /// Split the reasoning section from the answer.
    pub split_reasoning: bool,
    /// `Some(k)`: report the log probability of each token of the prompt after the first, and the k most likely ones in its
    /// place, 0 to 20. The whole prompt is computed then, whatever of it is in the cache.
    pub prompt_logprobs: Option<u8>,
    /// What the completion is likely to be, such as a file that it is to change; it changes nothing but how fast it comes.
    pub prediction: Arc<[u32]>,
    /// The reasoning section is closed when it has so many tokens; `None`: when the model closes it. Where the section is
    /// split.
    pub reasoning_tokens_max: Option<u32>,
    /// Tell tool calls from the answer.
    pub calls: Option<CallReading>,
    /// Go on where the context is full, instead of ending there.
    pub context_shift: Option<ContextShift>,
    /// What is cached of it is found by jobs of the same salt alone; empty: by all that have none.
    pub cache_salt: Arc<[u8]>,
    /// Compute the whole prompt, whatever of it is cached.
    pub skip_cache: bool,
}

/// One greedy completion of a prompt that is still empty.
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

impl Job {
    /// Whether a model with this vocabulary and context can run it; the error names the field that is wrong.
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
        // The last token drawn is never computed, so it needs no room; but a context is what users count in.
        let (prompt_tokens, completion_tokens) = (self.prompt.len(), self.stop.max_tokens as usize);
        if let Some(shift) = self.context_shift {
            shift.check(context_tokens_max)?;
            if !self.media.is_empty() {
                let reason = "must be unset: a prompt with media cannot lose tokens";
                return Err(RequestError::invalid("context_shift", reason));
            }
        }
        // One that is shifted must begin within its context.
        let completion_tokens =
            if self.context_shift.is_some() { completion_tokens.min(1) } else { completion_tokens };
        if prompt_tokens.saturating_add(completion_tokens) > context_tokens_max {
            return Err(RequestError::ContextLength { prompt_tokens, completion_tokens, context_tokens_max });
        }
        Ok(())
    }
}

/// How calls are told from an answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CallReading {
    /// How they are written.
    pub format: ToolFormat,
    /// The tools that may be called.
    pub tools: Arc<[Tool]>,
    /// The answer must be a call.
    pub required: bool,
    /// More than one call; otherwise the first ends the completion.
    pub parallel: bool,
}

/// A part of a tool call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallDelta {
    /// Of the call in its completion, from 0.
    pub index: u32,
    /// The tool: in the first part.
    pub name: Option<String>,
    /// The model's own id of the call, where its format has one: in the first part.
    pub id: Option<String>,
    /// More of the arguments' JSON text.
    pub arguments: String,
    /// It turned out to be no call; all that was written of it is text.
    pub broken: bool,
}

impl CallDelta {
    /// Adds parts of calls behind those that are there; parts of one call are joined.
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

/// Inputs to be read by the network once: vectors or scores of each.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EmbedJob {
    /// Its name.
    pub id: JobId,
    /// At least one.
    pub inputs: Vec<EmbedInput>,
    /// What is computed of each.
    pub output: Output,
    /// Lower runs earlier.
    pub priority: i32,
    /// Who asks; `None`: nobody else asks for it.
    pub client: Option<ClientId>,
}

/// One text, pair of texts or conversation, as tokens; or a picture.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EmbedInput {
    /// Special tokens included; not empty.
    pub tokens: Arc<[u32]>,
    /// The type of each token; empty: all 0.
    pub types: Vec<u32>,
    /// Tokens at the beginning that are left out of pooling.
    pub prompt_tokens: usize,
    /// Of a decoder those of its tokens whose embeddings are given, in order. Of an encoder with texts and pictures in one space the
    /// picture that it is instead: then its tokens say only how much it is.
    pub media: Arc<[MediaSpan]>,
}

/// When a completion ends, besides the end of the context.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StopConditions {
    /// Tokens to generate at most; at least 1, or 0 where only a prompt's log probabilities are wanted.
    pub max_tokens: u32,
    /// End-of-sequence is not sampled before this many tokens.
    pub min_tokens: u32,
    /// Text that ends the completion where it first appears.
    pub strings: Vec<String>,
    /// Tokens that end the completion besides the model's own.
    pub token_ids: Vec<u32>,
    /// Leave the stop string in the text.
    pub include_stop_string: bool,
    /// The model's own end-of-sequence tokens are never drawn, so that it goes on; where a constraint says which tokens may come, they
    /// are ordinary ones.
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

/// Why a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FinishReason {
    /// End of sequence, a stop token or a stop string.
    Stop,
    /// `max_tokens` or the end of the context.
    Length,
    /// End of sequence or a stop token, behind whole tool calls.
    ToolCalls,
}

/// Tokens a completion used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Of the prompt.
    pub prompt_tokens: u32,
    /// Of the prompt, found in the prefix cache.
    pub cached_tokens: u32,
    /// Generated, the end token included.
    pub completion_tokens: u32,
    /// Of the completion, inside the reasoning section.
    pub reasoning_tokens: u32,
    /// Drafted and computed, in the hope that they would be drawn.
    pub draft_tokens: u32,
    /// Of them, those that were.
    pub accepted_draft_tokens: u32,
}

/// Log probability of a token of the answer's text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TextLogprob {
    /// The token's.
    #[serde(with = "crate::wire::logprob")]
    pub logprob: TokenLogprob,
    /// The bytes of the text that come from it, where they are not all of its own: a stop string, or a mark, may take a part.
    pub part: Option<Vec<u8>>,
}

/// Something that happened to a job in a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// The job.
    pub job: JobId,
    /// Which of its completions, or inputs.
    pub choice: u32,
    /// What happened.
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum EventKind {
    /// The completion was scheduled for the first time.
    Started {
        /// Tokens of the prompt found in the prefix cache.
        cached_tokens: u32,
    },
    /// Tokens of the prompt were scored: those after the ones that were before, from the second on, each with its log
    /// probability and the most likely tokens in its place. Of a job's first completion alone.
    Scored(#[serde(with = "crate::wire::logprobs")] Vec<TokenLogprob>),
    /// Text, reasoning or calls were added; each may be empty. Tokens whose text is held back (an unfinished
    /// character, a possible stop string) come with a later delta.
    Delta {
        /// Text of the answer.
        text: String,
        /// Text of the reasoning section.
        reasoning: String,
        /// Parts of tool calls.
        calls: Vec<CallDelta>,
        /// Tokens since the last delta.
        tokens: Vec<u32>,
        /// When asked for, one for each token with a part in the answer's text, each once all of its part is certain: their parts, joined
        /// over all deltas, are the text.
        logprobs: Vec<TextLogprob>,
    },
    /// The completion ended.
    Finished {
        /// Why.
        reason: FinishReason,
        /// The stop string that matched.
        stop_string: Option<String>,
        /// What it used.
        usage: Usage,
    },
    /// An input of an [`EmbedJob`] is done; `choice` is its index.
    Computed(Computed),
    /// A part of a transcription.
    Heard(Box<Transcript>),
    /// Samples of a text that is said, those of its next piece.
    Said(Vec<f32>),
    /// Its next piece cannot be said. No further event names it.
    Unsayable {
        /// Why, and what to do.
        reason: String,
    },
    /// The model computed something that is not a number for this completion: its prompt, or its weights, are out
    /// of the range the model can run. No further event names it; other completions are not concerned.
    Failed,
    /// The completion's constraint became too complex to follow. No further event names it.
    ConstraintFailed {
        /// What went wrong.
        reason: String,
    },
}

impl EventKind {
    /// Puts a delta that follows this one behind it.
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
