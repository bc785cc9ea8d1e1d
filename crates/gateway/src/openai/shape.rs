//! What the answers of chats and completions have in common, whether they are streamed or collected.

use hanzo_engine_proto::v1::{self, FinishReason};
use serde::Serialize;

use crate::{
    error::ApiError,
    openai::{
        events::{Usage, usage},
        frames::Frames,
        generation::Event,
        plan::Streaming,
        turns::ServerCall,
        usage_count::UsageCount,
    },
    request_id::{random_id, unix_seconds},
};

/// One choice of a collected answer.
#[derive(Debug, Default)]
pub(crate) struct CollectedChoice {
    pub(crate) text: String,
    pub(crate) reasoning: String,
    pub(crate) calls: Vec<CollectedCall>,
    pub(crate) logprobs: Vec<v1::TokenLogprob>,
    pub(crate) reason: FinishReason,
    pub(crate) stop_string: String, // that ended it, if one did
}

/// A tool call of a collected answer.
#[derive(Debug)]
pub(crate) struct CollectedCall {
    index: u32,
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) arguments: String,
}

impl CollectedChoice {
    /// Adds parts of calls; one that turned out to be none is left out, its text is in the answer.
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

/// What every chunk of an answer begins with.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) created: u64, // Unix seconds
    pub(crate) model: String,
    pub(crate) fingerprint: String,
}

/// An answer's JSON: chat or completion.
pub(crate) trait Shape: Send + 'static {
    /// What the answer's id starts with.
    const ID_PREFIX: &'static str;
    /// Of a stream.
    const CONTENT_TYPE: &'static str = "text/event-stream";
    /// What is sent where there has long been nothing to send.
    const KEEP_ALIVE: &'static [u8] = b": keep-alive\n\n";
    /// A choice of an answer that is not streamed.
    type Choice: Serialize;
    /// The chunks that show an event, which is counted already.
    fn event(&mut self, head: &Head, used: &UsageCount, event: Event, frames: &mut Frames);
    /// Log probabilities of the tokens of an answer's prompt that is collected, which has the choices from `index` on.
    fn scored(&mut self, index: u32, scored: v1::PromptLogprobs);
    /// A call of a tool of an MCP server, of an answer that is collected.
    fn server_call(&mut self, _: ServerCall) {}
    /// What has gone wrong while an event was taken in, if anything has.
    fn fault(&mut self) -> Option<ApiError> {
        None
    }
    /// What is to be done when all choices have finished, before the end is told.
    fn settle(&mut self, _: &Head, _: &UsageCount) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
    /// The last chunk of a stream that asked for usage.
    fn usage(&mut self, head: &Head, used: &UsageCount, frames: &mut Frames);
    /// The end of a stream that succeeded.
    fn done(&mut self, frames: &mut Frames) {
        frames.done();
    }
    /// The end of a stream that failed.
    fn failed(&mut self, error: &ApiError, frames: &mut Frames) {
        frames.data(&error.json());
    }
    /// A choice of a request that is not streamed.
    fn choice(&self, index: u32, whole: CollectedChoice) -> Self::Choice;
    /// The answer around the choices, with none of them in it.
    fn envelope(&self, head: &Head, used: &UsageCount) -> impl Serialize;
}

impl Head {
    /// Of an answer of that model, whose id begins so.
    pub(crate) fn new(prefix: &str, model: String) -> Head {
        // FNV-1a of what decides the tokens besides the request: the version and the model.
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

impl Streaming {
    /// The `usage` of a chunk before the last: absent where no usage was asked for.
    pub(crate) fn usage_so_far(self, used: &UsageCount) -> Option<Option<Usage>> {
        let asked = self.include_usage || self.continuous_usage;
        asked.then(|| self.continuous_usage.then(|| usage(used)))
    }
}
