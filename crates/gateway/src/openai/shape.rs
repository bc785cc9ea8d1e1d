//! Common parts of chat and completion answers, streamed and collected.

use hanzo_engine_proto::v1::{self, FinishReason};
use serde::Serialize;

use crate::{
    error::ApiError,
    openai::{
        events::{Usage, usage},
        frames::Frames,
        generation::Event,
        plan::StreamOptions,
        turns::ServerCall,
        usage_count::UsageCount,
    },
    request_id::{random_id, unix_seconds},
};

/// Choice of a collected answer.
#[derive(Debug, Default)]
pub(crate) struct CollectedChoice {
    pub(crate) text: String,
    pub(crate) reasoning: String,
    pub(crate) calls: Vec<CollectedCall>,
    pub(crate) logprobs: Vec<v1::TokenLogprob>,
    pub(crate) reason: FinishReason,
    pub(crate) stop_string: String, // stop string that ended it, if any
}

/// Tool call of a collected answer.
#[derive(Debug)]
pub(crate) struct CollectedCall {
    index: u32,
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) arguments: String,
}

impl CollectedChoice {
    /// Adds parts of tool calls. A malformed call is removed, because its text is in the answer.
    pub(crate) fn add_calls(&mut self, parts: Vec<v1::ToolCallDelta>) {
        for part in parts {
            let v1::ToolCallDelta { index, id, name, arguments_json: arguments, broken } = part;
            match self.calls.last_mut() {
                Some(last) if last.index == index => last.arguments.push_str(&arguments),
                _ => self.calls.push(CollectedCall { index, id, name, arguments }),
            }
            if broken {
                self.calls.pop();
            }
        }
    }
}

/// Fields that every chunk of an answer begins with.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) created: u64, // Unix seconds
    pub(crate) model: String,
    pub(crate) fingerprint: String,
}

/// JSON format of an answer: chat or completion.
pub(crate) trait AnswerShape: Send + 'static {
    /// Prefix of the answer's id.
    const ID_PREFIX: &'static str;
    /// Media type of a stream.
    const CONTENT_TYPE: &'static str = "text/event-stream";
    /// Bytes to send after a long silence.
    const KEEP_ALIVE: &'static [u8] = b": keep-alive\n\n";
    /// Choice of an answer that is not streamed.
    type Choice: Serialize;
    /// Writes the chunks of an event, which has been counted already.
    fn event(&mut self, head: &Head, used: &UsageCount, event: Event, frames: &mut Frames);
    /// Records log probabilities of the prompt of a collected answer. The prompt's choices begin at `index`.
    fn scored(&mut self, index: u32, scored: v1::PromptLogprobs);
    /// Records an MCP tool call of a collected answer.
    fn server_call(&mut self, _: ServerCall) {}
    /// Error that occurred while processing an event, if any.
    fn fault(&mut self) -> Option<ApiError> {
        None
    }
    /// Work to do when all choices have finished, before the end of the answer.
    fn settle(&mut self, _: &Head, _: &UsageCount) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
    /// Writes the last chunk of a stream with usage.
    fn usage(&mut self, head: &Head, used: &UsageCount, frames: &mut Frames);
    /// Writes the end of a successful stream.
    fn done(&mut self, frames: &mut Frames) {
        frames.done();
    }
    /// Writes the end of a failed stream.
    fn failed(&mut self, error: &ApiError, frames: &mut Frames) {
        frames.data(&error.json());
    }
    /// Choice of an answer that is not streamed.
    fn choice(&self, index: u32, whole: CollectedChoice) -> Self::Choice;
    /// Answer without its choices.
    fn envelope(&self, head: &Head, used: &UsageCount) -> impl Serialize;
}

impl Head {
    /// Head of an answer of that model, with an id that begins with `prefix`.
    pub(crate) fn new(prefix: &str, model: String) -> Head {
        // FNV-1a of what determines the tokens besides the request: the version and the model.
        let seed = concat!("hanzo-engine/", env!("CARGO_PKG_VERSION"), "/");
        let hash = seed.bytes().chain(model.bytes()).fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Head {
            id: format!("{prefix}{}", random_id()),
            created: unix_seconds(),
            model,
            fingerprint: format!("fp_{:010x}", hash >> 24),
        }
    }
}

impl StreamOptions {
    /// Value of `usage` in a chunk before the last. Absent if no usage was requested.
    pub(crate) fn usage_so_far(self, used: &UsageCount) -> Option<Option<Usage>> {
        let asked = self.include_usage || self.continuous_usage_stats;
        asked.then(|| self.continuous_usage_stats.then(|| usage(used)))
    }
}
