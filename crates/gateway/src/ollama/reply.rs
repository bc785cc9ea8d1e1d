//! Answer in Ollama's format, for a chat or a prompt. It is one object, or a line for each part and a last line
//! with the stop reason and the timings. Tool calls are sent when they are complete.

use std::time::{Duration, Instant};

use hanzo_engine_proto::v1::{self, FinishReason, TokenLogprob};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    error,
    time::{now, ns, ns_of_ms},
};
use crate::{
    error::ApiError,
    json::partial::partial_object,
    openai::{
        events::finite,
        frames::Frames,
        generation::Event,
        shape::{AnswerShape, CollectedCall, CollectedChoice, Head},
        usage_count::UsageCount,
    },
};

/// Position of an answer's text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum AnswerField {
    /// In a message.
    Chat,
    /// In `response`.
    Prompt,
}

/// Answer being written.
#[derive(Debug)]
pub(super) struct Reply {
    kind: AnswerField,
    model: String, // client's name
    began: Instant,
    loaded: Duration,
    calls: CollectedChoice, // tool calls; the last may be incomplete
    told: usize,            // calls sent so far
    reason: FinishReason,
}

/// Content of a line.
#[derive(Debug, Default)]
struct LineContent {
    text: String,
    thinking: String,
    calls: Vec<Value>,
    logprobs: Vec<TokenLogprob>,
}

impl Reply {
    /// Answer to a request that began at `began`.
    pub(super) fn new(kind: AnswerField, model: String, began: Instant) -> Reply {
        Reply {
            kind,
            model,
            began,
            loaded: Duration::ZERO,
            calls: CollectedChoice::default(),
            told: 0,
            reason: FinishReason::Unspecified,
        }
    }

    /// Records that the engine has accepted the request, so the model is loaded.
    pub(super) fn accepted(&mut self) {
        self.loaded = self.began.elapsed();
    }

    /// Answer to a request that only loads or unloads the model.
    pub(super) fn of_nothing(&self, reason: &str) -> Value {
        let mut line = self.line(LineContent::default(), true);
        line["done_reason"] = json!(reason);
        line
    }

    /// Takes the complete tool calls; with `all`, every one.
    fn whole_calls(&mut self, all: bool) -> Vec<Value> {
        let keep = usize::from(!all && !self.calls.calls.is_empty());
        let whole: Vec<CollectedCall> = {
            let calls = &mut self.calls.calls;
            calls.drain(..calls.len() - keep).collect()
        };
        whole.into_iter().map(|call| self.call(call)).collect()
    }

    fn call(&mut self, call: CollectedCall) -> Value {
        let index = self.told;
        self.told += 1;
        let arguments = partial_object(&call.arguments);
        json!({"id": call.id, "function": {"index": index, "name": call.name, "arguments": arguments}})
    }

    fn line(&self, content: LineContent, done: bool) -> Value {
        let mut line = json!({"model": self.model, "created_at": now()});
        match self.kind {
            AnswerField::Chat => {
                let mut message = json!({"role": "assistant", "content": content.text});
                if !content.thinking.is_empty() {
                    message["thinking"] = json!(content.thinking);
                }
                if !content.calls.is_empty() {
                    message["tool_calls"] = json!(content.calls);
                }
                line["message"] = message;
            }
            AnswerField::Prompt => {
                line["response"] = json!(content.text);
                if !content.thinking.is_empty() {
                    line["thinking"] = json!(content.thinking);
                }
            }
        }
        line["done"] = json!(done);
        if !content.logprobs.is_empty() {
            line["logprobs"] = content.logprobs.iter().map(logprob).collect();
        }
        line
    }

    /// Last line, with its content.
    fn end(&self, content: LineContent, used: &UsageCount) -> Value {
        let mut line = self.line(content, true);
        let spent = used.timings.unwrap_or_default();
        line["done_reason"] = json!(if self.reason == FinishReason::Length { "length" } else { "stop" });
        line["total_duration"] = json!(ns(self.began.elapsed()));
        line["load_duration"] = json!(ns(self.loaded));
        line["prompt_eval_count"] = json!(used.prompt_tokens());
        line["prompt_eval_duration"] = json!(ns_of_ms(spent.prefill_ms));
        line["eval_count"] = json!(used.completion_tokens());
        // Decoding time starts at the first token. A single token has none, and clients divide by it.
        if spent.decode_ms > 0.0 {
            line["eval_duration"] = json!(ns_of_ms(spent.decode_ms));
        }
        line
    }

    /// Whole answer.
    pub(super) fn whole(&mut self, whole: CollectedChoice, used: &UsageCount) -> Value {
        self.reason = whole.reason;
        let CollectedChoice { text, reasoning, calls, logprobs, .. } = whole;
        let calls = calls.into_iter().map(|call| self.call(call)).collect();
        self.end(LineContent { text, thinking: reasoning, calls, logprobs }, used)
    }
}

/// Log probability of a token.
fn logprob(token: &TokenLogprob) -> Value {
    let entry = |token: &TokenLogprob| {
        let text = String::from_utf8_lossy(&token.token);
        // Decimal digits of the f32.
        let logprob: f64 = finite(token.logprob).to_string().parse().unwrap_or_default();
        json!({"token": text, "logprob": logprob, "bytes": token.token.to_vec()})
    };
    let mut one = entry(token);
    if !token.top.is_empty() {
        one["top_logprobs"] = token.top.iter().map(entry).collect();
    }
    one
}

impl AnswerShape for Reply {
    const ID_PREFIX: &'static str = "";
    const CONTENT_TYPE: &'static str = crate::progress::NDJSON;
    // White space before a line is ignored.
    const KEEP_ALIVE: &'static [u8] = b" ";
    type Choice = ();

    fn event(&mut self, _: &Head, _: &UsageCount, event: Event, frames: &mut Frames) {
        match event {
            // MCP tools are not offered on this API.
            Event::Loading(_) | Event::Started { .. } | Event::Scored { .. } | Event::Server(_) => {}
            Event::Delta { delta, .. } => {
                self.calls.add_calls(delta.tool_calls);
                let (text, thinking, logprobs) = (delta.text, delta.reasoning, delta.logprobs);
                let content = LineContent { calls: self.whole_calls(false), text, thinking, logprobs };
                if content.text.is_empty()
                    && content.thinking.is_empty()
                    && content.calls.is_empty()
                    && content.logprobs.is_empty()
                {
                    return;
                }
                frames.line(&self.line(content, false));
            }
            Event::Finished { reason, .. } => {
                self.reason = reason;
                let calls = self.whole_calls(true);
                if !calls.is_empty() {
                    frames.line(&self.line(LineContent { calls, ..LineContent::default() }, false));
                }
            }
        }
    }

    fn scored(&mut self, _: u32, _: v1::PromptLogprobs) {}

    fn usage(&mut self, _: &Head, used: &UsageCount, frames: &mut Frames) {
        frames.line(&self.end(LineContent::default(), used));
    }

    /// The last line ends the answer.
    fn done(&mut self, _: &mut Frames) {}

    fn failed(&mut self, error: &ApiError, frames: &mut Frames) {
        frames.line(&error::body(error));
    }

    fn choice(&self, _: u32, _: CollectedChoice) {}

    fn envelope(&self, _: &Head, _: &UsageCount) -> impl Serialize {}
}
