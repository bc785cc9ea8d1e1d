//! Answer in the format of the Responses API: its items, and for streams their events. Items follow one
//! another: reasoning, texts, calls.

use std::{collections::HashMap, sync::Arc};

use hanzo_engine_proto::v1::{self, FinishReason};
use serde::Serialize;

use super::{
    conversation::{Item, sealed},
    custom,
    object::{Frame, ResponseState},
    server_call,
    tools::ClientTool,
};
use crate::{
    answers::AnswerRoom,
    error::ApiError,
    limits::LOGPROB_BYTES,
    openai::{
        events::token_logprobs,
        frames::Frames,
        generation::Event,
        shape::{AnswerShape, CollectedChoice, Head},
        turns::ServerCall,
        usage_count::UsageCount,
    },
    response_store::{
        Responses,
        stored::{RESPONSE, StoredResponse, item_id, quoted},
    },
};

/// Settings of the answer in the request.
#[derive(Debug)]
pub(super) struct ReplySettings {
    pub(super) frame: Frame,
    /// Tools that the model sees under another name or form, by the model's name of each.
    pub(super) called: HashMap<String, ClientTool>,
    /// Whether reasoning is sent as a summary.
    pub(super) summary: bool,
    /// Whether reasoning is also sent in `encrypted_content`.
    pub(super) sealed: bool,
    /// Whether events of text are padded.
    pub(super) obfuscate: bool,
    pub(super) streamed: bool,
    /// Items of the input that came with the request.
    pub(super) items: Vec<Item>,
}

/// How to store the response when it is complete.
#[derive(Debug)]
pub(super) struct StorePlan {
    pub(super) responses: Responses,
    pub(super) owner: String,
    /// Previous response.
    pub(super) before: Option<Arc<StoredResponse>>,
}

/// Answer being written.
#[derive(Debug)]
pub(super) struct Reply {
    settings: ReplySettings,
    store_plan: Option<StorePlan>,
    room: AnswerRoom,
    fault: Option<ApiError>,
    head: Option<Head>, // None until the answer has begun
    sequence: u64,
    items: Vec<String>, // complete items
    begun: usize,       // items, complete or not
    has_answer: bool,   // a text or a call
    open: Option<OpenItem>,
    space: String,                 // white space between items, sent only before text
    early: Vec<String>,            // log probabilities of withheld text
    reason: FinishReason,          // reason of the end
    running: Vec<(String, usize)>, // running MCP calls, and the positions of their items
    last: String,                  // the response at its end
}

/// Item being written.
#[derive(Debug)]
enum OpenItem {
    Reasoning { text: String },
    Message { text: String, logprobs: Vec<String> },
    Call { index: u32, id: String, name: String, arguments: String },
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain structs with string keys are always JSON")
}

impl Reply {
    pub(super) fn new(settings: ReplySettings, store_plan: Option<StorePlan>, room: AnswerRoom) -> Reply {
        Reply {
            settings,
            store_plan,
            room,
            fault: None,
            head: None,
            sequence: 0,
            items: Vec::new(),
            begun: 0,
            has_answer: false,
            open: None,
            space: String::new(),
            early: Vec::new(),
            reason: FinishReason::Unspecified,
            running: Vec::new(),
            last: String::new(),
        }
    }

    /// Whole response, and the memory reserved for it.
    pub(super) fn into_whole(self) -> (String, AnswerRoom) {
        (self.last, self.room)
    }

    /// Writes an event whose other members are `rest`.
    fn tell(&mut self, frames: &mut Frames, name: &str, rest: &str) {
        if self.settings.streamed {
            frames.text(name, &self.event_text(name, rest), false);
            self.sequence += 1;
        }
    }

    /// Writes an event with a part of a text, padded if requested.
    fn tell_piece(&mut self, frames: &mut Frames, name: &str, rest: &str) {
        if self.settings.streamed {
            frames.text(name, &self.event_text(name, rest), self.settings.obfuscate);
            self.sequence += 1;
        }
    }

    fn event_text(&self, name: &str, rest: &str) -> String {
        format!("{{\"type\":\"{name}\",\"sequence_number\":{},{rest}}}", self.sequence)
    }

    fn begin(&mut self, head: &Head, frames: &mut Frames) {
        if self.head.is_some() {
            return;
        }
        self.head = Some(head.clone());
        if self.settings.streamed {
            let response = self.settings.frame.response(head, None, &ResponseState::InProgress, &[]);
            let response = format!("\"response\":{response}");
            self.tell(frames, "response.created", &response);
            self.tell(frames, "response.in_progress", &response);
        }
    }

    /// Whether a tool takes a text; `name` is the model's name of it.
    fn is_custom(&self, name: &str) -> bool {
        self.settings.called.get(name).is_some_and(|called| called.custom)
    }

    /// Id of the last item that has begun.
    fn id(&self, kind: &str) -> String {
        let response = self.head.as_ref().map_or("", |head| &head.id);
        item_id(kind, response, self.settings.items.len() + self.begun - 1)
    }

    /// Position of an event: the item, and its part in `list`.
    fn place(&self, id: &str, list: &str) -> String {
        let at = format!("\"item_id\":\"{id}\",\"output_index\":{}", self.begun - 1);
        if list.is_empty() { at } else { format!("{at},\"{list}\":0") }
    }

    /// Begins an item, which the next events continue.
    fn start(&mut self, open: OpenItem, frames: &mut Frames) {
        self.close(frames, "completed");
        self.begun += 1;
        self.has_answer |= !matches!(open, OpenItem::Reasoning { .. });
        let (item, id) = self.item(&open, "in_progress");
        let added = format!("\"output_index\":{},\"item\":{item}", self.begun - 1);
        self.tell(frames, "response.output_item.added", &added);
        match &open {
            OpenItem::Reasoning { .. } if self.settings.summary => {
                let part = format!("{},\"part\":{}", self.place(&id, "summary_index"), summary_text(""));
                self.tell(frames, "response.reasoning_summary_part.added", &part);
            }
            OpenItem::Reasoning { .. } => {
                let part = format!("{},\"part\":{}", self.place(&id, "content_index"), reasoning_text(""));
                self.tell(frames, "response.content_part.added", &part);
            }
            OpenItem::Message { .. } => {
                let part = format!("{},\"part\":{}", self.place(&id, "content_index"), output_text("", &[]));
                self.tell(frames, "response.content_part.added", &part);
            }
            OpenItem::Call { .. } => {}
        }
        self.open = Some(open);
    }

    /// JSON of an item in that state, and its id.
    fn item(&self, open: &OpenItem, status: &str) -> (String, String) {
        let begins = status == "in_progress";
        match open {
            OpenItem::Reasoning { text } => {
                let id = self.id("rs");
                let text = text.as_str();
                let (summary, content) = match (begins, self.settings.summary) {
                    (true, _) => (String::new(), String::new()),
                    (false, true) => (summary_text(text), String::new()),
                    (false, false) => (String::new(), reasoning_text(text)),
                };
                let put_away =
                    if self.settings.sealed && !begins { quoted(&sealed(text)) } else { "null".to_owned() };
                let item = format!(
                    "{{\"id\":\"{id}\",\"type\":\"reasoning\",\"status\":\"{status}\",\"summary\":[{summary}],\"content\":[{content}],\"encrypted_content\":{put_away}}}"
                );
                (item, id)
            }
            OpenItem::Message { text, logprobs } => {
                let id = self.id("msg");
                let content = if begins { String::new() } else { output_text(text, logprobs) };
                let item = format!(
                    "{{\"id\":\"{id}\",\"type\":\"message\",\"status\":\"{status}\",\"role\":\"assistant\",\"content\":[{content}]}}"
                );
                (item, id)
            }
            OpenItem::Call { id: call, name, arguments, .. } => {
                let is_custom = self.is_custom(name);
                let known = self.settings.called.get(name);
                let name = known.map_or(name, |called| &called.name);
                let namespace = known.and_then(|called| called.namespace.as_deref());
                let namespace = namespace.map(|text| format!("\"namespace\":{},", quoted(text)));
                let namespace = namespace.unwrap_or_default();
                let id = self.id(if is_custom { "ctc" } else { "fc" });
                let (kind, what, value) = if is_custom {
                    let input = if begins { String::new() } else { custom::input(arguments) };
                    ("custom_tool_call", "input", input)
                } else {
                    ("function_call", "arguments", if begins { String::new() } else { arguments.clone() })
                };
                let item = format!(
                    "{{\"id\":\"{id}\",\"type\":\"{kind}\",\"status\":\"{status}\",\"call_id\":{},\"name\":{},{namespace}\"{what}\":{}}}",
                    quoted(call),
                    quoted(name),
                    quoted(&value)
                );
                (item, id)
            }
        }
    }

    /// Ends the item being written.
    fn close(&mut self, frames: &mut Frames, status: &str) {
        let Some(open) = self.open.take() else { return };
        let (item, id) = self.item(&open, status);
        if self.settings.streamed {
            self.tell_ends(&open, &id, frames);
        }
        let done = format!("\"output_index\":{},\"item\":{item}", self.begun - 1);
        self.tell(frames, "response.output_item.done", &done);
        self.items.push(item);
    }

    /// Writes the events that end the parts of an item.
    fn tell_ends(&mut self, open: &OpenItem, id: &str, frames: &mut Frames) {
        match open {
            OpenItem::Reasoning { text } if self.settings.summary => {
                let at = self.place(id, "summary_index");
                let text_done = format!("{at},\"text\":{}", quoted(text));
                self.tell(frames, "response.reasoning_summary_text.done", &text_done);
                let part = format!("{at},\"part\":{}", summary_text(text));
                self.tell(frames, "response.reasoning_summary_part.done", &part);
            }
            OpenItem::Reasoning { text } => {
                let at = self.place(id, "content_index");
                let text_done = format!("{at},\"text\":{}", quoted(text));
                self.tell(frames, "response.reasoning_text.done", &text_done);
                let part = format!("{at},\"part\":{}", reasoning_text(text));
                self.tell(frames, "response.content_part.done", &part);
            }
            OpenItem::Message { text, logprobs } => {
                let at = self.place(id, "content_index");
                let text_done =
                    format!("{at},\"text\":{},\"logprobs\":[{}]", quoted(text), logprobs.join(","));
                self.tell(frames, "response.output_text.done", &text_done);
                let part = format!("{at},\"part\":{}", output_text(text, logprobs));
                self.tell(frames, "response.content_part.done", &part);
            }
            OpenItem::Call { name, arguments, .. } if self.is_custom(name) => {
                let (at, input) = (self.place(id, ""), quoted(&custom::input(arguments)));
                self.tell_piece(
                    frames,
                    "response.custom_tool_call_input.delta",
                    &format!("{at},\"delta\":{input}"),
                );
                self.tell(frames, "response.custom_tool_call_input.done", &format!("{at},\"input\":{input}"));
            }
            OpenItem::Call { name, arguments, .. } => {
                let name = self.settings.called.get(name).map_or(name, |called| &called.name);
                let done = format!(
                    "{},\"name\":{},\"arguments\":{}",
                    self.place(id, ""),
                    quoted(name),
                    quoted(arguments)
                );
                self.tell(frames, "response.function_call_arguments.done", &done);
            }
        }
    }

    fn reasoning(&mut self, piece: &str, frames: &mut Frames) {
        if !matches!(self.open, Some(OpenItem::Reasoning { .. })) {
            self.start(OpenItem::Reasoning { text: String::new() }, frames);
        }
        if let Some(OpenItem::Reasoning { text }) = &mut self.open {
            text.push_str(piece);
        }
        let (name, list) = match self.settings.summary {
            true => ("response.reasoning_summary_text.delta", "summary_index"),
            false => ("response.reasoning_text.delta", "content_index"),
        };
        let rest = format!("{},\"delta\":{}", self.place(&self.id("rs"), list), quoted(piece));
        self.tell_piece(frames, name, &rest);
    }

    fn text(&mut self, piece: &str, mut logprobs: Vec<String>, frames: &mut Frames) {
        let starts = !matches!(self.open, Some(OpenItem::Message { .. }));
        if starts && piece.trim().is_empty() {
            self.space.push_str(piece);
            self.early.append(&mut logprobs);
            return;
        }
        let piece = std::mem::take(&mut self.space) + piece;
        self.early.append(&mut logprobs);
        let added = std::mem::take(&mut self.early);
        if piece.is_empty() && added.is_empty() {
            return;
        }
        if starts {
            self.start(OpenItem::Message { text: String::new(), logprobs: Vec::new() }, frames);
        }
        let rest = format!(
            "{},\"delta\":{},\"logprobs\":[{}]",
            self.place(&self.id("msg"), "content_index"),
            quoted(&piece),
            added.join(",")
        );
        if let Some(OpenItem::Message { text, logprobs }) = &mut self.open {
            text.push_str(&piece);
            logprobs.extend(added);
        }
        self.tell_piece(frames, "response.output_text.delta", &rest);
    }

    fn call(&mut self, part: v1::ToolCallDelta, frames: &mut Frames) {
        let v1::ToolCallDelta { index, id, name, arguments_json, broken } = part;
        if broken {
            // The call is malformed: no event completes it, and its text follows.
            self.open = None;
            return;
        }
        if !matches!(&self.open, Some(OpenItem::Call { index: open, .. }) if *open == index) {
            self.start(OpenItem::Call { index, id, name, arguments: String::new() }, frames);
        }
        let Some(OpenItem::Call { name, arguments, .. }) = &mut self.open else { return };
        arguments.push_str(&arguments_json);
        let name = name.clone();
        // The text of a custom tool is known when its arguments are complete.
        if !arguments_json.is_empty() && !self.is_custom(&name) {
            let rest = format!("{},\"delta\":{}", self.place(&self.id("fc"), ""), quoted(&arguments_json));
            self.tell_piece(frames, "response.function_call_arguments.delta", &rest);
        }
    }

    /// Begin or end of an MCP call. The calls of a turn begin together and end in the same order.
    fn server(&mut self, call: &ServerCall, frames: &mut Frames) {
        let held = call.outcome.as_ref().map_or(0, |outcome| outcome.text.len());
        if let Err(error) = self.room.grow(2 * (call.arguments.len() + held)) {
            self.fault.get_or_insert(error);
        }
        let response = self.head.as_ref().map_or("", |head| &head.id).to_owned();
        let before = self.settings.items.len();
        let id = |place: usize| item_id("mcp", &response, before + place);
        let at = |place: usize| format!("\"item_id\":\"{}\",\"output_index\":{place}", id(place));
        if call.outcome.is_none() {
            self.close(frames, "completed");
            // White space before a call is not repeated before the text that follows.
            self.space.clear();
            let place = self.begun;
            self.begun += 1;
            self.running.push((call.id.clone(), place));
            let item = server_call::item(&id(place), call);
            let added = format!("\"output_index\":{place},\"item\":{item}");
            self.tell(frames, "response.output_item.added", &added);
            self.tell(frames, "response.mcp_call.in_progress", &at(place));
            let arguments = quoted(&call.arguments);
            let delta = format!("{},\"delta\":{arguments}", at(place));
            self.tell_piece(frames, "response.mcp_call_arguments.delta", &delta);
            let done = format!("{},\"arguments\":{arguments}", at(place));
            self.tell(frames, "response.mcp_call_arguments.done", &done);
            return;
        }
        let Some(known) = self.running.iter().position(|(id, _)| *id == call.id) else { return };
        let (_, place) = self.running.remove(known);
        let item = server_call::item(&id(place), call);
        let name = format!("response.mcp_call.{}", server_call::status(call));
        self.tell(frames, &name, &at(place));
        self.tell(frames, "response.output_item.done", &format!("\"output_index\":{place},\"item\":{item}"));
        self.items.push(item);
    }

    fn finish(&mut self, reason: FinishReason, frames: &mut Frames) {
        self.reason = reason;
        let status = if reason == FinishReason::Length { "incomplete" } else { "completed" };
        // Agents take an empty answer for a failure and ask again.
        if !self.has_answer && (reason != FinishReason::Length || self.begun == 0) {
            let text = std::mem::take(&mut self.space);
            let logprobs = std::mem::take(&mut self.early);
            self.start(OpenItem::Message { text, logprobs }, frames);
        }
        self.close(frames, status);
    }

    /// Reserves memory for an event.
    fn grow(&mut self, delta: &v1::Delta) {
        let call = |call: &v1::ToolCallDelta| call.id.len() + call.name.len() + call.arguments_json.len();
        let calls: usize = delta.tool_calls.iter().map(call).sum();
        let logprobs: usize = delta.logprobs.iter().map(|token| (1 + token.top.len()) * LOGPROB_BYTES).sum();
        // Once in an item, and once in the response.
        let bytes = 2 * (delta.text.len() + delta.reasoning.len() + calls + logprobs);
        if let Err(error) = self.room.grow(bytes) {
            self.fault.get_or_insert(error);
        }
    }

    /// Stores the complete response.
    async fn keep(&mut self, head: &Head, response: String) -> bool {
        let Some(store_plan) = self.store_plan.take() else { return false };
        let named = |(place, item): (usize, &Item)| {
            item.named(&item_id(item.unnamed.unwrap_or_default(), &head.id, place))
        };
        let before = store_plan.before.map(|stored| stored.items()).unwrap_or_default();
        let before = Some(before).filter(|items| !items.is_empty());
        let own = self.settings.items.iter().enumerate().map(named);
        let input: Vec<String> = before.into_iter().chain(own).collect();
        let stored =
            StoredResponse { owner: store_plan.owner, input: format!("[{}]", input.join(",")), response };
        store_plan.responses.keep(head.id.clone(), stored).await
    }
}

fn output_text(text: &str, logprobs: &[String]) -> String {
    format!(
        "{{\"type\":\"output_text\",\"text\":{},\"annotations\":[],\"logprobs\":[{}]}}",
        quoted(text),
        logprobs.join(",")
    )
}

fn reasoning_text(text: &str) -> String {
    format!("{{\"type\":\"reasoning_text\",\"text\":{}}}", quoted(text))
}

fn summary_text(text: &str) -> String {
    format!("{{\"type\":\"summary_text\",\"text\":{}}}", quoted(text))
}

impl AnswerShape for Reply {
    const ID_PREFIX: &'static str = RESPONSE;
    type Choice = ();

    fn event(&mut self, head: &Head, _: &UsageCount, event: Event, frames: &mut Frames) {
        self.begin(head, frames);
        match event {
            Event::Loading(_) | Event::Started { .. } | Event::Scored { .. } => {}
            Event::Server(call) => self.server(&call, frames),
            Event::Delta { delta, .. } => {
                self.grow(&delta);
                if !delta.reasoning.is_empty() {
                    self.reasoning(&delta.reasoning, frames);
                }
                let (broken, parts): (Vec<_>, Vec<_>) =
                    delta.tool_calls.into_iter().partition(|part| part.broken);
                // A malformed call ends with its text.
                broken.into_iter().for_each(|part| self.call(part, frames));
                // Without a text, they belong to the open message, or to one that begins with white space.
                let open = matches!(self.open, None | Some(OpenItem::Message { .. }));
                let of_text = !delta.text.is_empty() || delta.reasoning.is_empty() && open;
                let tokens = if of_text { &delta.logprobs[..] } else { &[] };
                let logprobs: Vec<String> = token_logprobs(tokens).iter().map(json).collect();
                if !delta.text.is_empty() || !logprobs.is_empty() {
                    self.text(&delta.text, logprobs, frames);
                }
                parts.into_iter().for_each(|part| self.call(part, frames));
            }
            Event::Finished { reason, .. } => self.finish(reason, frames),
        }
    }

    fn fault(&mut self) -> Option<ApiError> {
        self.fault.take()
    }

    fn scored(&mut self, _: u32, _: v1::PromptLogprobs) {}

    async fn settle(&mut self, head: &Head, used: &UsageCount) {
        let state = match self.reason {
            FinishReason::Length => ResponseState::Incomplete,
            _ => ResponseState::Completed,
        };
        let items = std::mem::take(&mut self.items);
        self.last = self.settings.frame.response(head, Some(used), &state, &items);
        if self.settings.frame.store && !self.keep(head, self.last.clone()).await {
            self.settings.frame.store = false;
            self.last = self.settings.frame.response(head, Some(used), &state, &items);
        }
    }

    fn usage(&mut self, _: &Head, _: &UsageCount, frames: &mut Frames) {
        let name = match self.reason {
            FinishReason::Length => "response.incomplete",
            _ => "response.completed",
        };
        let response = format!("\"response\":{}", self.last);
        self.tell(frames, name, &response);
    }

    fn done(&mut self, _: &mut Frames) {}

    fn failed(&mut self, error: &ApiError, frames: &mut Frames) {
        let Some(head) = self.head.take() else {
            let whole = error.json();
            let field = |name: &str| whole["error"][name].to_string();
            let rest = format!(
                "\"code\":{},\"message\":{},\"param\":{}",
                field("code"),
                field("message"),
                field("param")
            );
            return self.tell(frames, "error", &rest);
        };
        self.settings.frame.store = false;
        let response = self.settings.frame.response(&head, None, &ResponseState::Failed(error), &self.items);
        self.tell(frames, "response.failed", &format!("\"response\":{response}"));
    }

    fn choice(&self, _: u32, _: CollectedChoice) {}

    fn envelope(&self, _: &Head, _: &UsageCount) -> impl Serialize {}
}
