//! MCP tools within one answer: the model may call them, the gateway makes the calls, and the model continues
//! with the results, for a bounded number of turns. Calls of the client's own tools end the answer as usual.
//! The maker of a chat's [`RequestPlan`] may [`offer`] the tools; [`Generation`](super::generation::Generation) runs
//! the turns.

use std::{collections::VecDeque, pin::Pin, sync::Arc};

use futures_util::{StreamExt as _, stream};
use hanzo_engine_mcp::{Outcome, Servers, Tool};
use hanzo_engine_proto::v1::{self, Capability, FinishReason, ToolChoice, infer_request::Prompt};
use serde_json::json;

use crate::{
    app::App,
    asker::Asker,
    error::ApiError,
    limits::{CHAT_TOOLS_MAX, MCP_CALLS_OF_TURN_MAX, MCP_CALLS_RUNNING_MAX, MCP_TOOLS_MAX, MCP_TURNS_MAX},
    openai::{generation::Event, plan::RequestPlan},
    select::sole,
};

/// MCP tools that are offered to a request's model.
#[derive(Debug, Clone)]
pub(crate) struct OfferedTools {
    servers: Arc<Servers>,
    tools: Vec<Tool>,
    /// Maximum number of calls, over all turns.
    calls_max: Option<u32>,
}

/// Call of an MCP tool, as shown to clients.
#[derive(Debug, Clone)]
pub(crate) struct ServerCall {
    pub(crate) id: String,
    pub(crate) tool: Tool,
    pub(crate) arguments: String,
    /// None while it runs.
    pub(crate) outcome: Option<Outcome>,
}

/// Offers the MCP tools to a chat that can use them: one with a single choice, a tool choice that permits them,
/// and a model that can call tools. At most `calls_max` calls are made. Waits for servers that are starting.
/// For any other request, nothing changes.
///
/// # Errors
/// The request's time limit has passed.
pub(crate) async fn offer(
    app: &App,
    asker: &Asker,
    plan: &mut RequestPlan,
    calls_max: Option<u32>,
) -> Result<(), ApiError> {
    let Some(servers) = &app.mcp_servers else { return Ok(()) };
    let [request] = &mut plan.requests[..] else { return Ok(()) };
    let choice = request.tool_use.as_ref().map_or(ToolChoice::Unspecified, v1::ToolUse::choice);
    let chosen = matches!(choice, ToolChoice::None | ToolChoice::Named);
    if plan.choices != 1
        || plan.old_calls
        || chosen
        || request.constraint.is_some()
        || request.prompt_logprobs.is_some()
    {
        return Ok(());
    }
    let Some(Prompt::Chat(chat)) = &mut request.prompt else { return Ok(()) };
    if chat.continue_final_message || !calls_tools(app, asker, &request.model).await {
        return Ok(());
    }
    let until = plan.until.insert(app.until());
    let started = async {
        servers.started().await;
        Ok::<_, ApiError>(())
    };
    until.run(started).await?;
    let mut tools = servers.tools(MCP_TOOLS_MAX.min(CHAT_TOOLS_MAX.saturating_sub(chat.tools_json.len())));
    // A client's own tool takes precedence over an MCP tool of the same name.
    tools.retain(|tool| !chat.tools_json.iter().any(|own| names(own, &tool.name)));
    if tools.is_empty() {
        return Ok(());
    }
    chat.tools_json.extend(tools.iter().map(|tool| {
        let function =
            json!({"name": tool.name, "description": tool.description, "parameters": tool.parameters});
        json!({"type": "function", "function": function}).to_string()
    }));
    plan.offered = Some(OfferedTools { servers: Arc::clone(servers), tools, calls_max });
    Ok(())
}

/// Whether a client's tool has that name.
fn names(tool_json: &str, name: &str) -> bool {
    serde_json::from_str::<serde_json::Value>(tool_json).is_ok_and(|tool| tool["function"]["name"] == name)
}

/// Whether the model can call tools. An unknown name counts as no; the request itself reports it.
async fn calls_tools(app: &App, asker: &Asker, model: &str) -> bool {
    if model.is_empty() {
        let sole = sole(app, asker, &[Capability::Chat]).await;
        return sole
            .is_ok_and(|m| m.status.is_some_and(|s| s.capabilities().any(|can| can == Capability::Tools)));
    }
    let Ok(shown) = app.engine(asker).show(model.to_owned()).await else { return false };
    let loaded =
        shown.status.as_ref().is_some_and(|status| status.capabilities().any(|can| can == Capability::Tools));
    loaded || shown.capabilities().any(|can| can == Capability::Tools)
}

type Running = Pin<Box<dyn Future<Output = Vec<Outcome>> + Send>>;

/// Turns of one answer.
pub(super) struct Turns {
    offered: OfferedTools,
    request: v1::InferRequest, // of the current turn
    turn: usize,
    made: u32,                     // calls, over all turns
    text: String,                  // of this turn
    reasoning: String,             // of this turn
    calls: Vec<(u32, ServerCall)>, // of this turn, by the engine's index
    own: Vec<u32>,                 // the engine's indices of the client's tool calls
    /// Events to show before any others.
    pub(super) told: VecDeque<Event>,
    /// Running calls. Stored here, so that waiting for them is cancel-safe.
    pub(super) running: Option<Running>,
}

impl Turns {
    pub(super) fn new(offered: OfferedTools, request: v1::InferRequest) -> Turns {
        let (text, reasoning) = (String::new(), String::new());
        let (calls, own, told) = (Vec::new(), Vec::new(), VecDeque::new());
        Turns { offered, request, turn: 0, made: 0, text, reasoning, calls, own, told, running: None }
    }

    /// Whether this is the first turn.
    pub(super) fn is_first(&self) -> bool {
        self.turn == 0
    }

    /// Removes MCP calls from a delta. Returns whether anything is left to show.
    pub(super) fn see(&mut self, delta: &mut v1::Delta) -> bool {
        self.text.push_str(&delta.text);
        self.reasoning.push_str(&delta.reasoning);
        let (parts, mut own) = (std::mem::take(&mut delta.tool_calls), Vec::new());
        let hidden = parts.len();
        for mut part in parts {
            let begins = !part.name.is_empty();
            let known = self.calls.iter_mut().find(|(index, _)| *index == part.index);
            if let Some((_, call)) = known {
                call.arguments.push_str(&part.arguments_json);
                if part.broken {
                    self.calls.retain(|(index, _)| *index != part.index);
                }
            } else if let Some(tool) = self.offered.tools.iter().find(|tool| begins && tool.name == part.name)
            {
                let (id, arguments, tool) = (part.id, part.arguments_json, tool.clone());
                self.calls.push((part.index, ServerCall { id, tool, arguments, outcome: None }));
            } else {
                // For the client, its own calls are numbered without gaps.
                if !self.own.contains(&part.index) {
                    self.own.push(part.index);
                }
                let at = self.own.iter().position(|index| *index == part.index).unwrap_or_default();
                part.index = u32::try_from(at).unwrap_or(u32::MAX);
                own.push(part);
            }
        }
        delta.tool_calls = own;
        let only_hidden = hidden > 0 && delta.tool_calls.is_empty();
        !(only_hidden && delta.text.is_empty() && delta.reasoning.is_empty() && delta.logprobs.is_empty())
    }

    /// Starts the calls of a turn that ended with MCP calls only. False: the answer ends here.
    pub(super) fn begin(&mut self, reason: FinishReason) -> bool {
        if reason != FinishReason::ToolCalls || self.calls.is_empty() || !self.own.is_empty() {
            return false;
        }
        let calls: Vec<ServerCall> = self.calls.iter().map(|(_, call)| call.clone()).collect();
        self.told.extend(calls.iter().cloned().map(|call| Event::Server(Box::new(call))));
        let servers = Arc::clone(&self.offered.servers);
        let left = self.left();
        self.made = self.made.saturating_add(u32::try_from(calls.len()).unwrap_or(u32::MAX));
        self.running = Some(Box::pin(async move {
            let call = |(at, call): (usize, ServerCall)| {
                let servers = Arc::clone(&servers);
                async move {
                    match at < MCP_CALLS_OF_TURN_MAX {
                        _ if at >= left => {
                            let text = "max_tool_calls is reached: answer with what there is".to_owned();
                            Outcome { text, is_error: true }
                        }
                        true => servers.call(&call.tool, &call.arguments).await,
                        false => Outcome { text: "too many calls at once".to_owned(), is_error: true },
                    }
                }
            };
            stream::iter(calls.into_iter().enumerate())
                .map(call)
                .buffered(MCP_CALLS_RUNNING_MAX)
                .collect()
                .await
        }));
        true
    }

    /// Number of calls that may still be made.
    fn left(&self) -> usize {
        self.offered.calls_max.map_or(usize::MAX, |max| max.saturating_sub(self.made) as usize)
    }

    /// Request of the next turn, with the results of the calls. None: the token limit is reached; `generated`
    /// is the number of tokens in all turns.
    pub(super) fn next(&mut self, outcomes: Vec<Outcome>, generated: u32) -> Option<v1::InferRequest> {
        self.running = None;
        self.turn += 1;
        let calls = std::mem::take(&mut self.calls);
        let mut results = Vec::new();
        let mut made = Vec::new();
        for ((_, mut call), outcome) in calls.into_iter().zip(outcomes) {
            let (name, id) = (call.tool.name.clone(), call.id.clone());
            made.push(v1::ToolCall {
                id: id.clone(),
                name: name.clone(),
                arguments_json: call.arguments.clone(),
            });
            let text =
                if outcome.is_error { format!("error: {}", outcome.text) } else { outcome.text.clone() };
            results.push(v1::Message {
                role: "tool".to_owned(),
                content: content(text),
                name,
                tool_call_id: id,
                ..v1::Message::default()
            });
            call.outcome = Some(outcome);
            self.told.push_back(Event::Server(Box::new(call)));
        }
        let Some(Prompt::Chat(chat)) = &mut self.request.prompt else { return None };
        let (said, reasoning) = (std::mem::take(&mut self.text), std::mem::take(&mut self.reasoning));
        chat.messages.push(v1::Message {
            role: "assistant".to_owned(),
            content: if said.is_empty() { Vec::new() } else { content(said) },
            tool_calls: made,
            reasoning_content: reasoning,
            ..v1::Message::default()
        });
        chat.messages.append(&mut results);
        let may_call = self.turn < MCP_TURNS_MAX && self.left() > 0;
        let used = self.request.tool_use.get_or_insert_default();
        used.choice = if may_call { ToolChoice::Auto } else { ToolChoice::None }.into();
        let mut next = self.request.clone();
        if let Some(max) = next.stop.as_mut().and_then(|stop| stop.max_tokens.as_mut()) {
            *max = max.saturating_sub(generated);
            if *max == 0 {
                return None;
            }
        }
        Some(next)
    }
}

fn content(text: String) -> Vec<v1::ContentPart> {
    vec![v1::ContentPart { part: Some(v1::content_part::Part::Text(text)) }]
}
