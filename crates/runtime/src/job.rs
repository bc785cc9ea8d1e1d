//! What goes into the engine and what comes out: plain data, so that a worker can be a thread now and a
//! process later.

use std::sync::Arc;

use crate::sampler::SamplingParams;

/// Names a job within one engine; chosen by the caller, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u64);

/// One request: a prompt and how to continue it, `choices` times.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its name.
    pub id: JobId,
    /// The prompt; not empty.
    pub prompt: Arc<[u32]>,
    /// Independent completions, at least 1; choice i draws with seed + i.
    pub choices: u32,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// When to stop.
    pub stop: StopConditions,
    /// Lower runs earlier.
    pub priority: i32,
    /// The prompt ends inside the model's reasoning section (the template opened it).
    pub starts_in_reasoning: bool,
    /// Split the reasoning section from the answer.
    pub split_reasoning: bool,
}

/// When a completion ends, besides the end of the context.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StopConditions {
    /// Tokens to generate at most; at least 1.
    pub max_tokens: u32,
    /// End-of-sequence is not sampled before this many tokens.
    pub min_tokens: u32,
    /// Text that ends the completion where it first appears.
    pub strings: Vec<String>,
    /// Tokens that end the completion besides the model's own.
    pub token_ids: Vec<u32>,
    /// Leave the stop string in the text.
    pub include_stop_string: bool,
    /// The model's own end-of-sequence tokens are ordinary tokens.
    pub ignore_eos: bool,
}

/// Why a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// End of sequence, a stop token or a stop string.
    Stop,
    /// `max_tokens` or the end of the context.
    Length,
}

/// Tokens a completion used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of the prompt.
    pub prompt_tokens: u32,
    /// Of the prompt, found in the prefix cache.
    pub cached_tokens: u32,
    /// Generated, the end token included.
    pub completion_tokens: u32,
    /// Of the completion, inside the reasoning section.
    pub reasoning_tokens: u32,
}

/// Log probability of a token, of the distribution before temperature and penalties.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: u32,
    /// Natural logarithm.
    pub logprob: f32,
    /// The most likely tokens, best first.
    pub top: Vec<(u32, f32)>,
}

/// Something that happened to a job in a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The job.
    pub job: JobId,
    /// Which of its completions.
    pub choice: u32,
    /// What happened.
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum EventKind {
    /// The completion was scheduled for the first time.
    Started {
        /// Tokens of the prompt found in the prefix cache.
        cached_tokens: u32,
    },
    /// Text or reasoning was added; either may be empty. Tokens whose text is held back (an unfinished
    /// character, a possible stop string) come with a later delta.
    Delta {
        /// Text of the answer.
        text: String,
        /// Text of the reasoning section.
        reasoning: String,
        /// Tokens since the last delta.
        tokens: Vec<u32>,
        /// One for each token, when asked for.
        logprobs: Vec<TokenLogprob>,
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
}
