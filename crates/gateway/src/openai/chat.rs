//! `POST /v1/chat/completions`: format of the answer, streamed and whole. `openai::plan` parses the request.

use std::sync::Arc;

use axum::{Extension, extract::State, response::Response};
use hanzo_engine_proto::v1::{self, FinishReason};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    app::App,
    asker::Asker,
    body::{self, IncomingBody, ReceivedBody},
    config::Config,
    error::ApiError,
    fields::Fields,
    forward,
    openai::{
        answer::answer,
        events::{
            ChatLogprobs, PromptLogprobs, Timings, Usage, chat_logprobs, finish_reason, timings, usage,
        },
        frames::Frames,
        generation::Event,
        plan::{self, StreamOptions},
        shape::{AnswerShape, CollectedCall, CollectedChoice, Head},
        turns::{ServerCall, offer},
        usage_count::UsageCount,
    },
    peer::Peer,
};

/// Handler of the route.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: IncomingBody,
) -> Result<Response, ApiError> {
    let peer = incoming.peer();
    let received = body::read(&app, incoming).await?;
    let here = |received| run(&app, &asker, peer.clone(), received);
    forward::or_there(&app, &asker, peer.clone(), "chat/completions", received, here).await
}

async fn run(
    app: &App,
    asker: &Asker,
    peer: Option<Peer>,
    received: ReceivedBody,
) -> Result<Response, ApiError> {
    let id = asker.id.clone();
    let read = move |fields: Fields<'_>, config: &Config| plan::chat(fields, config, &id);
    let (mut plan, room) = received.into(read).await?;
    offer(app, asker, &mut plan, None).await?;
    let shape = Chat {
        opened: vec![false; plan.choices as usize],
        logprobs: plan.requests.iter().any(|request| request.logprobs),
        prompt: plan
            .requests
            .iter()
            .any(|request| request.prompt_logprobs.is_some())
            .then(PromptLogprobs::default),
        streaming: plan.streaming,
        old_calls: plan.old_calls,
        server_calls: plan.offered.is_some().then(Vec::new),
    };
    answer(app, asker, plan, room, peer, shape).await
}

struct Chat {
    opened: Vec<bool>, // by choice: its first chunk, with the role, was sent
    logprobs: bool,
    prompt: Option<PromptLogprobs>, // if requested
    streaming: StreamOptions,
    old_calls: bool,                    // as `function_call`
    server_calls: Option<Vec<McpCall>>, // None: no tools were offered
}

/// Call of a tool of an MCP server by the gateway: an extension of OpenAI's format.
#[derive(Serialize, JsonSchema)]
struct McpCall {
    id: String,
    /// Name of the server.
    server: String,
    /// Name of the tool.
    name: String,
    /// Arguments as JSON.
    arguments: String,
    #[schemars(extend("enum" = ["in_progress", "completed", "failed"]))]
    status: &'static str,
    /// Result of the tool, if the call has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<String>,
}

impl McpCall {
    fn of(call: ServerCall) -> McpCall {
        let status =
            call.outcome.as_ref().map_or("in_progress", |o| if o.is_error { "failed" } else { "completed" });
        let output = call.outcome.map(|outcome| outcome.text);
        McpCall {
            id: call.id,
            server: call.tool.server,
            name: call.tool.tool,
            arguments: call.arguments,
            status,
            output,
        }
    }
}

/// Answer to a chat.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ChatCompletion<'a, 'p> {
    id: &'a str,
    #[schemars(extend("enum" = ["chat.completion"]))]
    object: &'static str,
    /// Unix time in seconds.
    created: u64,
    /// Model that answered.
    model: &'a str,
    /// Name of the engine's build and of the model's files.
    system_fingerprint: &'a str,
    // Written one by one.
    #[schemars(with = "Vec<ChatChoice>")]
    choices: [ChatChoice; 0],
    usage: Usage,
    /// Log probabilities of the prompt's tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "serde_json::Value")]
    prompt_logprobs: Option<&'p PromptLogprobs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
    /// Calls of tools of MCP servers that the gateway has made.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Vec<McpCall>")]
    mcp_calls: Option<&'p [McpCall]>,
}

/// Choice of a chat.
#[derive(Serialize, JsonSchema)]
struct ChatChoice {
    /// Index among the answers.
    index: u32,
    message: AssistantMessage,
    logprobs: Option<ChatLogprobs>,
    /// Reason of the end: stop, length, tool_calls or function_call.
    finish_reason: &'static str,
}

/// Message of the assistant.
#[derive(Serialize, JsonSchema)]
struct AssistantMessage {
    #[schemars(extend("enum" = ["assistant"]))]
    role: &'static str,
    /// Text; null for tool calls without one.
    content: Option<String>,
    refusal: (), // null
    /// Reasoning of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    /// Tools that the model calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCallObject>,
    /// Function that the model calls, in the older format.
    #[serde(skip_serializing_if = "Option::is_none")]
    function_call: Option<CalledFunction>,
}

/// Tool call, or a part of one in a chunk.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ToolCall", extend("required" = ["id", "function"]))]
struct ToolCallObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    index: Option<u32>, // in a chunk
    #[serde(skip_serializing_if = "String::is_empty")]
    id: String,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("enum" = ["function"]))]
    kind: Option<&'static str>,
    function: CalledFunction,
}

/// Function that the model calls.
#[derive(Serialize, JsonSchema)]
#[schemars(extend("required" = ["name", "arguments"]))]
struct CalledFunction {
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    /// Arguments as JSON.
    arguments: String,
}

impl ToolCallObject {
    /// Part of a streamed call. The first part has the name.
    fn of_part(part: v1::ToolCallDelta) -> ToolCallObject {
        ToolCallObject {
            index: Some(part.index),
            kind: (!part.id.is_empty()).then_some("function"),
            id: part.id,
            function: CalledFunction { name: part.name, arguments: part.arguments_json },
        }
    }

    fn of_whole(call: CollectedCall) -> ToolCallObject {
        ToolCallObject {
            index: None,
            kind: Some("function"),
            id: call.id,
            function: CalledFunction { name: call.name, arguments: call.arguments },
        }
    }
}

/// Event of a streamed chat.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ChatChunk<'a> {
    id: &'a str,
    #[schemars(extend("enum" = ["chat.completion.chunk"]))]
    object: &'static str,
    /// Unix time in seconds.
    created: u64,
    /// Model that answers.
    model: &'a str,
    /// Name of the engine's build and of the model's files.
    system_fingerprint: &'a str,
    /// New parts of the choices.
    #[schemars(with = "Vec<serde_json::Value>")]
    choices: Vec<ChunkChoice>,
    /// Usage in the last event, with include_usage. The others have null.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
    /// Call of a tool of an MCP server that has begun or ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    mcp_call: Option<McpCall>,
}

#[derive(Serialize)]
struct ChunkChoice {
    index: u32,
    delta: ChunkDelta,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
}

#[derive(Default, Serialize)]
struct ChunkDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCallObject>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function_call: Option<CalledFunction>,
}

impl Chat {
    /// Value of `finish_reason`, depending on the format of tool calls.
    fn reason(&self, reason: FinishReason) -> &'static str {
        match reason {
            FinishReason::ToolCalls if self.old_calls => "function_call",
            reason => finish_reason(reason),
        }
    }

    fn chunk<'a>(&self, head: &'a Head, used: &UsageCount, choices: Vec<ChunkChoice>) -> ChatChunk<'a> {
        ChatChunk {
            id: &head.id,
            object: "chat.completion.chunk",
            created: head.created,
            model: &head.model,
            system_fingerprint: &head.fingerprint,
            choices,
            usage: self.streaming.usage_so_far(used),
            timings: None,
            mcp_call: None,
        }
    }

    fn open(&mut self, head: &Head, used: &UsageCount, index: u32, frames: &mut Frames) {
        if !std::mem::replace(&mut self.opened[index as usize], true) {
            let delta =
                ChunkDelta { role: Some("assistant"), content: Some(String::new()), ..ChunkDelta::default() };
            let choice = ChunkChoice { index, delta, logprobs: None, finish_reason: None };
            frames.data(&self.chunk(head, used, vec![choice]));
        }
    }
}

impl AnswerShape for Chat {
    const ID_PREFIX: &'static str = "chatcmpl-";
    type Choice = ChatChoice;

    fn event(&mut self, head: &Head, used: &UsageCount, event: Event, frames: &mut Frames) {
        match event {
            // Streams do not show these.
            Event::Loading(_) | Event::Started { .. } | Event::Scored { .. } => {}
            Event::Server(call) => {
                self.open(head, used, 0, frames);
                // With a choice, because all chunks that clients know have one.
                let delta = ChunkDelta::default();
                let choice = ChunkChoice { index: 0, delta, logprobs: None, finish_reason: None };
                let mcp_call = Some(McpCall::of(*call));
                frames.data(&ChatChunk { mcp_call, ..self.chunk(head, used, vec![choice]) });
            }
            Event::Delta { index, delta } => {
                self.open(head, used, index, frames);
                let logprobs = (!delta.logprobs.is_empty()).then(|| chat_logprobs(&delta.logprobs));
                let (text, reasoning) = (!delta.text.is_empty(), !delta.reasoning.is_empty());
                // A malformed call is not shown here; its text follows.
                let mut calls: Vec<ToolCallObject> = delta
                    .tool_calls
                    .into_iter()
                    .filter(|part| !part.broken)
                    .map(ToolCallObject::of_part)
                    .collect();
                let called = !calls.is_empty();
                if !text && !reasoning && !called && logprobs.is_none() {
                    return;
                }
                let first = |call: ToolCallObject| call.function;
                let function_call = self.old_calls.then(|| calls.drain(..).next().map(first)).flatten();
                let delta = ChunkDelta {
                    role: None,
                    // Log probabilities of withheld text are sent with an empty text.
                    content: (text || !reasoning && !called).then_some(delta.text),
                    reasoning_content: reasoning.then_some(delta.reasoning),
                    tool_calls: calls,
                    function_call,
                };
                frames.data(&self.chunk(
                    head,
                    used,
                    vec![ChunkChoice { index, delta, logprobs, finish_reason: None }],
                ));
            }
            Event::Finished { index, reason, timings: spent, .. } => {
                self.open(head, used, index, frames);
                let choice = ChunkChoice {
                    index,
                    delta: ChunkDelta::default(),
                    logprobs: None,
                    finish_reason: Some(self.reason(reason)),
                };
                frames.data(&ChatChunk {
                    timings: spent.as_ref().map(timings),
                    ..self.chunk(head, used, vec![choice])
                });
            }
        }
    }

    fn scored(&mut self, _: u32, scored: v1::PromptLogprobs) {
        self.prompt.iter_mut().for_each(|prompt| prompt.0.extend_from_slice(&scored.tokens));
    }

    fn server_call(&mut self, call: ServerCall) {
        if call.outcome.is_some() {
            self.server_calls.iter_mut().for_each(|calls| calls.push(McpCall::of(call.clone())));
        }
    }

    fn usage(&mut self, head: &Head, used: &UsageCount, frames: &mut Frames) {
        frames.data(&ChatChunk { usage: Some(Some(usage(used))), ..self.chunk(head, used, Vec::new()) });
    }

    fn choice(&self, index: u32, whole: CollectedChoice) -> ChatChoice {
        let mut calls: Vec<ToolCallObject> = whole.calls.into_iter().map(ToolCallObject::of_whole).collect();
        let content = (calls.is_empty() || !whole.text.is_empty()).then_some(whole.text);
        let function_call =
            self.old_calls.then(|| calls.drain(..).next().map(|call| call.function)).flatten();
        ChatChoice {
            index,
            message: AssistantMessage {
                role: "assistant",
                content,
                refusal: (),
                reasoning_content: (!whole.reasoning.is_empty()).then_some(whole.reasoning),
                tool_calls: calls,
                function_call,
            },
            logprobs: self.logprobs.then(|| chat_logprobs(&whole.logprobs)),
            finish_reason: self.reason(whole.reason),
        }
    }

    fn envelope(&self, head: &Head, used: &UsageCount) -> impl Serialize {
        ChatCompletion {
            id: &head.id,
            object: "chat.completion",
            created: head.created,
            model: &head.model,
            system_fingerprint: &head.fingerprint,
            choices: [],
            usage: usage(used),
            prompt_logprobs: self.prompt.as_ref(),
            timings: used.timings.as_ref().map(timings),
            mcp_calls: self.server_calls.as_deref().filter(|calls| !calls.is_empty()),
        }
    }
}
