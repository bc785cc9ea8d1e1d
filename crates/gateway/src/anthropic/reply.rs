//! Answer as an Anthropic message: whole, or as stream events whose content blocks follow one another.

use hanzo_engine_proto::v1::{self, FinishReason};
use serde::Serialize;
use serde_json::{Value, json};

use super::error;
use crate::{
    error::ApiError,
    json::partial::partial_object,
    openai::{
        frames::Frames,
        generation::Event,
        shape::{AnswerShape, CollectedChoice, Head},
        usage_count::UsageCount,
    },
};

/// Answer being written.
#[derive(Debug)]
pub(super) struct Reply {
    max_tokens: u32,
    thinking_omitted: bool,
    begun: bool,             // `message_start` was sent
    open: Option<OpenBlock>, // content block being written
    blocks: usize,           // opened so far
    space: String,           // white space between blocks, sent only before text
    end: (FinishReason, String),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum OpenBlock {
    Thinking,
    Text,
    Call(u32),
}

/// Content block of a whole answer.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Block {
    Thinking { thinking: String, signature: &'static str },
    Text { text: String, citations: () },
    ToolUse { id: String, name: String, input: Value },
}

/// Message without its content.
#[derive(Serialize)]
pub(super) struct Message<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    model: &'a str,
    content: [Value; 0],
    stop_reason: Option<&'static str>,
    stop_sequence: Option<&'a str>,
    usage: MessagesUsage,
}

#[derive(Serialize)]
struct MessagesUsage {
    /// Prompt tokens that were not found in the prefix cache.
    input_tokens: u32,
    cache_creation_input_tokens: u32,
    cache_read_input_tokens: u32,
    output_tokens: u32,
    output_tokens_details: OutputTokensDetails,
}

#[derive(Serialize)]
struct OutputTokensDetails {
    thinking_tokens: u32,
}

fn usage(used: &UsageCount) -> MessagesUsage {
    let cached = used.cached_tokens();
    MessagesUsage {
        input_tokens: used.prompt_tokens().saturating_sub(cached),
        cache_creation_input_tokens: 0,
        cache_read_input_tokens: cached,
        output_tokens: used.completion_tokens(),
        output_tokens_details: OutputTokensDetails { thinking_tokens: used.reasoning_tokens },
    }
}

impl Reply {
    pub(super) fn new(max_tokens: u32, thinking_omitted: bool) -> Reply {
        let end = (FinishReason::Unspecified, String::new());
        Reply { max_tokens, thinking_omitted, begun: false, open: None, blocks: 0, space: String::new(), end }
    }

    /// Stop reason, and the stop sequence that ended the answer.
    fn stop<'a>(
        &self,
        used: &UsageCount,
        reason: FinishReason,
        string: &'a str,
    ) -> (&'static str, Option<&'a str>) {
        match reason {
            FinishReason::Length if used.completion_tokens() < self.max_tokens => {
                ("model_context_window_exceeded", None)
            }
            FinishReason::Length => ("max_tokens", None),
            FinishReason::ToolCalls => ("tool_use", None),
            _ if !string.is_empty() => ("stop_sequence", Some(string)),
            _ => ("end_turn", None),
        }
    }

    /// Envelope of a whole answer, without its blocks.
    pub(super) fn message<'a>(
        &self,
        head: &'a Head,
        used: &UsageCount,
        whole: &'a CollectedChoice,
    ) -> Message<'a> {
        let (reason, string) = self.stop(used, whole.reason, &whole.stop_string);
        let usage = usage(used);
        let (kind, role, content) = ("message", "assistant", []);
        let (stop_reason, stop_sequence) = (Some(reason), string);
        Message { id: &head.id, kind, role, model: &head.model, content, stop_reason, stop_sequence, usage }
    }

    /// Content blocks of a whole answer.
    pub(super) fn blocks(&self, whole: CollectedChoice) -> Vec<Block> {
        let mut blocks = Vec::new();
        if !whole.reasoning.is_empty() {
            let thinking = if self.thinking_omitted { String::new() } else { whole.reasoning };
            blocks.push(Block::Thinking { thinking, signature: "" });
        }
        let only_space = whole.text.trim().is_empty();
        if !only_space || whole.calls.is_empty() && blocks.is_empty() {
            blocks.push(Block::Text { text: whole.text, citations: () });
        }
        for call in whole.calls {
            let input = partial_object(&call.arguments);
            blocks.push(Block::ToolUse { id: call.id, name: call.name, input });
        }
        blocks
    }

    fn begin(&mut self, head: &Head, used: &UsageCount, frames: &mut Frames) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        let message = Message {
            id: &head.id,
            kind: "message",
            role: "assistant",
            model: &head.model,
            content: [],
            stop_reason: None,
            stop_sequence: None,
            usage: usage(used),
        };
        frames.named("message_start", &json!({"type": "message_start", "message": message}));
    }

    /// Continues the block `with`. If another one is open, it is closed and a new one begins with `start`.
    fn go_on(&mut self, with: OpenBlock, start: impl FnOnce() -> Value, frames: &mut Frames) {
        if self.open == Some(with) {
            return;
        }
        self.close(frames);
        self.open = Some(with);
        let event = json!({"type": "content_block_start", "index": self.blocks, "content_block": start()});
        frames.named("content_block_start", &event);
        self.blocks += 1;
    }

    fn close(&mut self, frames: &mut Frames) {
        if self.open.take().is_some() {
            let event = json!({"type": "content_block_stop", "index": self.blocks - 1});
            frames.named("content_block_stop", &event);
        }
    }

    fn delta(&self, delta: Value, frames: &mut Frames) {
        let event = json!({"type": "content_block_delta", "index": self.blocks - 1, "delta": delta});
        frames.named("content_block_delta", &event);
    }

    fn text(&mut self, text: &str, frames: &mut Frames) {
        let starts = self.open != Some(OpenBlock::Text);
        if text.is_empty() || starts && text.trim().is_empty() {
            self.space.push_str(text);
            return;
        }
        let space = std::mem::take(&mut self.space);
        self.go_on(OpenBlock::Text, || json!({"type": "text", "text": ""}), frames);
        self.delta(json!({"type": "text_delta", "text": space + text}), frames);
    }

    fn call(&mut self, part: v1::ToolCallDelta, frames: &mut Frames) {
        let v1::ToolCallDelta { index, id, name, arguments_json, broken } = part;
        if broken {
            // The text of a malformed call follows as a text block.
            return self.close(frames);
        }
        let start = || json!({"type": "tool_use", "id": id, "name": name, "input": {}});
        self.go_on(OpenBlock::Call(index), start, frames);
        if !arguments_json.is_empty() {
            self.delta(json!({"type": "input_json_delta", "partial_json": arguments_json}), frames);
        }
    }
}

impl AnswerShape for Reply {
    const ID_PREFIX: &'static str = "msg_";
    const KEEP_ALIVE: &'static [u8] = b"event: ping\ndata: {\"type\": \"ping\"}\n\n";
    type Choice = ();

    fn event(&mut self, head: &Head, used: &UsageCount, event: Event, frames: &mut Frames) {
        self.begin(head, used, frames);
        match event {
            Event::Loading(_) | Event::Started { .. } | Event::Scored { .. } | Event::Server(_) => {}
            Event::Delta { delta, .. } => {
                if !delta.reasoning.is_empty() {
                    let start = || json!({"type": "thinking", "thinking": "", "signature": ""});
                    self.go_on(OpenBlock::Thinking, start, frames);
                    if !self.thinking_omitted {
                        self.delta(json!({"type": "thinking_delta", "thinking": delta.reasoning}), frames);
                    }
                }
                let (broken, parts): (Vec<_>, Vec<_>) =
                    delta.tool_calls.into_iter().partition(|part| part.broken);
                // A malformed call ends with its text.
                broken.into_iter().for_each(|part| self.call(part, frames));
                self.text(&delta.text, frames);
                parts.into_iter().for_each(|part| self.call(part, frames));
            }
            Event::Finished { reason, stop_string, .. } => {
                if self.blocks == 0 {
                    self.go_on(OpenBlock::Text, || json!({"type": "text", "text": ""}), frames);
                }
                self.close(frames);
                self.end = (reason, stop_string);
            }
        }
    }

    fn scored(&mut self, _: u32, _: v1::PromptLogprobs) {}

    fn usage(&mut self, _: &Head, used: &UsageCount, frames: &mut Frames) {
        let (reason, string) = self.stop(used, self.end.0, &self.end.1);
        let delta = json!({"stop_reason": reason, "stop_sequence": string});
        frames
            .named("message_delta", &json!({"type": "message_delta", "delta": delta, "usage": usage(used)}));
    }

    fn done(&mut self, frames: &mut Frames) {
        frames.named("message_stop", &json!({"type": "message_stop"}));
    }

    fn failed(&mut self, error: &ApiError, frames: &mut Frames) {
        frames.named("error", &error::body(error));
    }

    fn choice(&self, _: u32, _: CollectedChoice) {}

    fn envelope(&self, _: &Head, _: &UsageCount) -> impl Serialize {}
}
