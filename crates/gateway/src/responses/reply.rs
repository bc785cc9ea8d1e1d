//! An answer as a response: its items as they are written, and, of a stream, the events that tell of them. Items come one after the
//! other: reasoning, texts, calls.

use std::{collections::HashMap, sync::Arc};

use hanzo_engine_proto::v1::{self, FinishReason};
use serde::Serialize;

use super::{
    conversation::{Item, sealed},
    custom,
    kept::{Kept, RESPONSE, item_id, quoted},
    object::{Frame, State},
    server_call,
    store::Responses,
    tools::Called,
};
use crate::{
    answers::AnswerRoom,
    error::ApiError,
    limits::LOGPROB_BYTES,
    openai::{
        events::token_logprobs,
        frames::Frames,
        generation::Event,
        shape::{CollectedChoice, Head, Shape},
        turns::ServerCall,
        usage_count::UsageCount,
    },
};

/// What the request says of its answer.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) frame: Frame,
    /// Tools that the model sees otherwise, by the name that it calls them by.
    pub(super) called: HashMap<String, Called>,
    /// The reasoning is told as its summary.
    pub(super) summary: bool,
    /// It is put away in `encrypted_content` too.
    pub(super) sealed: bool,
    /// Events of pieces are filled up to few sizes.
    pub(super) obfuscate: bool,
    pub(super) streamed: bool,
    /// Items of the input that came with the request.
    pub(super) items: Vec<Item>,
}

/// What is kept of it when it is whole.
#[derive(Debug)]
pub(super) struct Keeping {
    pub(super) responses: Responses,
    pub(super) owner: String,
    /// The response that it follows.
    pub(super) before: Option<Arc<Kept>>,
}

/// An answer that is being written.
#[derive(Debug)]
pub(super) struct Reply {
    asked: Asked,
    keeping: Option<Keeping>,
    room: AnswerRoom,
    fault: Option<ApiError>,
    head: Option<Head>, // once it has begun
    sequence: u64,
    items: Vec<String>, // those that are whole
    begun: usize,       // items, whole or not
    has_answer: bool,   // a text or a call
    open: Option<Open>,
    space: String,                 // white space between items, which is told where text follows
    early: Vec<String>,            // log probabilities of text that is held back
    reason: FinishReason,          // why it has ended
    running: Vec<(String, usize)>, // calls of servers' tools, and their items' places
    last: String,                  // the response when it has ended
}

/// The item that is being written.
#[derive(Debug)]
enum Open {
    Reasoning { text: String },
    Message { text: String, logprobs: Vec<String> },
    Call { index: u32, id: String, name: String, arguments: String },
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain structs with string keys are always JSON")
}

impl Reply {
    pub(super) fn new(asked: Asked, keeping: Option<Keeping>, room: AnswerRoom) -> Reply {
        Reply {
            asked,
            keeping,
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

    /// The whole response, and the room that it takes up.
    pub(super) fn into_whole(self) -> (String, AnswerRoom) {
        (self.last, self.room)
    }

    /// Tells of an event, whose other members are `rest`.
    fn tell(&mut self, frames: &mut Frames, name: &str, rest: &str) {
        if self.asked.streamed {
            frames.text(name, &self.event_text(name, rest), false);
            self.sequence += 1;
        }
    }

    /// The same, of a piece of text.
    fn tell_piece(&mut self, frames: &mut Frames, name: &str, rest: &str) {
        if self.asked.streamed {
            frames.text(name, &self.event_text(name, rest), self.asked.obfuscate);
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
        if self.asked.streamed {
            let response = self.asked.frame.response(head, None, &State::InProgress, &[]);
            let response = format!("\"response\":{response}");
            self.tell(frames, "response.created", &response);
            self.tell(frames, "response.in_progress", &response);
        }
    }

    /// Whether a tool is called with a text, by the name that the model calls it by.
    fn is_custom(&self, name: &str) -> bool {
        self.asked.called.get(name).is_some_and(|called| called.custom)
    }

    /// The id of the last item that has begun.
    fn id(&self, kind: &str) -> String {
        let response = self.head.as_ref().map_or("", |head| &head.id);
        item_id(kind, response, self.asked.items.len() + self.begun - 1)
    }

    /// Where an event is: the item, and the part of it that `list` names.
    fn place(&self, id: &str, list: &str) -> String {
        let at = format!("\"item_id\":\"{id}\",\"output_index\":{}", self.begun - 1);
        if list.is_empty() { at } else { format!("{at},\"{list}\":0") }
    }

    /// Begins an item, with which what is written goes on.
    fn start(&mut self, open: Open, frames: &mut Frames) {
        self.close(frames, "completed");
        self.begun += 1;
        self.has_answer |= !matches!(open, Open::Reasoning { .. });
        let (item, id) = self.item(&open, "in_progress");
        let added = format!("\"output_index\":{},\"item\":{item}", self.begun - 1);
        self.tell(frames, "response.output_item.added", &added);
        match &open {
            Open::Reasoning { .. } if self.asked.summary => {
                let part = format!("{},\"part\":{}", self.place(&id, "summary_index"), summary_text(""));
                self.tell(frames, "response.reasoning_summary_part.added", &part);
            }
            Open::Reasoning { .. } => {
                let part = format!("{},\"part\":{}", self.place(&id, "content_index"), reasoning_text(""));
                self.tell(frames, "response.content_part.added", &part);
            }
            Open::Message { .. } => {
                let part = format!("{},\"part\":{}", self.place(&id, "content_index"), output_text("", &[]));
                self.tell(frames, "response.content_part.added", &part);
            }
            Open::Call { .. } => {}
        }
        self.open = Some(open);
    }

    /// An item as it is in that state, and its id.
    fn item(&self, open: &Open, status: &str) -> (String, String) {
        let begins = status == "in_progress";
        match open {
            Open::Reasoning { text } => {
                let id = self.id("rs");
                let text = text.as_str();
                let (summary, content) = match (begins, self.asked.summary) {
                    (true, _) => (String::new(), String::new()),
                    (false, true) => (summary_text(text), String::new()),
                    (false, false) => (String::new(), reasoning_text(text)),
                };
                let put_away =
                    if self.asked.sealed && !begins { quoted(&sealed(text)) } else { "null".to_owned() };
                let item = format!(
                    "{{\"id\":\"{id}\",\"type\":\"reasoning\",\"status\":\"{status}\",\"summary\":[{summary}],\"content\":[{content}],\"encrypted_content\":{put_away}}}"
                );
                (item, id)
            }
            Open::Message { text, logprobs } => {
                let id = self.id("msg");
                let content = if begins { String::new() } else { output_text(text, logprobs) };
                let item = format!(
                    "{{\"id\":\"{id}\",\"type\":\"message\",\"status\":\"{status}\",\"role\":\"assistant\",\"content\":[{content}]}}"
                );
                (item, id)
            }
            Open::Call { id: call, name, arguments, .. } => {
                let is_custom = self.is_custom(name);
                let known = self.asked.called.get(name);
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

    /// Ends the item that is being written.
    fn close(&mut self, frames: &mut Frames, status: &str) {
        let Some(open) = self.open.take() else { return };
        let (item, id) = self.item(&open, status);
        if self.asked.streamed {
            self.tell_ends(&open, &id, frames);
        }
        let done = format!("\"output_index\":{},\"item\":{item}", self.begun - 1);
        self.tell(frames, "response.output_item.done", &done);
        self.items.push(item);
    }

    /// Tells that the parts of an item are whole.
    fn tell_ends(&mut self, open: &Open, id: &str, frames: &mut Frames) {
        match open {
            Open::Reasoning { text } if self.asked.summary => {
                let at = self.place(id, "summary_index");
                let text_done = format!("{at},\"text\":{}", quoted(text));
                self.tell(frames, "response.reasoning_summary_text.done", &text_done);
                let part = format!("{at},\"part\":{}", summary_text(text));
                self.tell(frames, "response.reasoning_summary_part.done", &part);
            }
            Open::Reasoning { text } => {
                let at = self.place(id, "content_index");
                let text_done = format!("{at},\"text\":{}", quoted(text));
                self.tell(frames, "response.reasoning_text.done", &text_done);
                let part = format!("{at},\"part\":{}", reasoning_text(text));
                self.tell(frames, "response.content_part.done", &part);
            }
            Open::Message { text, logprobs } => {
                let at = self.place(id, "content_index");
                let text_done =
                    format!("{at},\"text\":{},\"logprobs\":[{}]", quoted(text), logprobs.join(","));
                self.tell(frames, "response.output_text.done", &text_done);
                let part = format!("{at},\"part\":{}", output_text(text, logprobs));
                self.tell(frames, "response.content_part.done", &part);
            }
            Open::Call { name, arguments, .. } if self.is_custom(name) => {
                let (at, input) = (self.place(id, ""), quoted(&custom::input(arguments)));
                self.tell_piece(
                    frames,
                    "response.custom_tool_call_input.delta",
                    &format!("{at},\"delta\":{input}"),
                );
                self.tell(frames, "response.custom_tool_call_input.done", &format!("{at},\"input\":{input}"));
            }
            Open::Call { name, arguments, .. } => {
                let name = self.asked.called.get(name).map_or(name, |called| &called.name);
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
        if !matches!(self.open, Some(Open::Reasoning { .. })) {
            self.start(Open::Reasoning { text: String::new() }, frames);
        }
        if let Some(Open::Reasoning { text }) = &mut self.open {
            text.push_str(piece);
        }
        let (name, list) = match self.asked.summary {
            true => ("response.reasoning_summary_text.delta", "summary_index"),
            false => ("response.reasoning_text.delta", "content_index"),
        };
        let rest = format!("{},\"delta\":{}", self.place(&self.id("rs"), list), quoted(piece));
        self.tell_piece(frames, name, &rest);
    }

    fn text(&mut self, piece: &str, mut logprobs: Vec<String>, frames: &mut Frames) {
        let starts = !matches!(self.open, Some(Open::Message { .. }));
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
            self.start(Open::Message { text: String::new(), logprobs: Vec::new() }, frames);
        }
        let rest = format!(
            "{},\"delta\":{},\"logprobs\":[{}]",
            self.place(&self.id("msg"), "content_index"),
            quoted(&piece),
            added.join(",")
        );
        if let Some(Open::Message { text, logprobs }) = &mut self.open {
            text.push_str(&piece);
            logprobs.extend(added);
        }
        self.tell_piece(frames, "response.output_text.delta", &rest);
    }

    fn call(&mut self, part: v1::ToolCallDelta, frames: &mut Frames) {
        let v1::ToolCallDelta { index, id, name, arguments_json, broken } = part;
        if broken {
            // It is none: nothing says that it is whole, and what was written of it follows as text.
            self.open = None;
            return;
        }
        if !matches!(&self.open, Some(Open::Call { index: open, .. }) if *open == index) {
            self.start(Open::Call { index, id, name, arguments: String::new() }, frames);
        }
        let Some(Open::Call { name, arguments, .. }) = &mut self.open else { return };
        arguments.push_str(&arguments_json);
        let name = name.clone();
        // The text of a custom tool is known when its arguments are whole.
        if !arguments_json.is_empty() && !self.is_custom(&name) {
            let rest = format!("{},\"delta\":{}", self.place(&self.id("fc"), ""), quoted(&arguments_json));
            self.tell_piece(frames, "response.function_call_arguments.delta", &rest);
        }
    }

    /// A call of a server's tool has begun or ended. Those of one turn begin together and end in the same order.
    fn server(&mut self, call: &ServerCall, frames: &mut Frames) {
        let held = call.outcome.as_ref().map_or(0, |outcome| outcome.text.len());
        if let Err(error) = self.room.grow(2 * (call.arguments.len() + held)) {
            self.fault.get_or_insert(error);
        }
        let response = self.head.as_ref().map_or("", |head| &head.id).to_owned();
        let before = self.asked.items.len();
        let id = |place: usize| item_id("mcp", &response, before + place);
        let at = |place: usize| format!("\"item_id\":\"{}\",\"output_index\":{place}", id(place));
        if call.outcome.is_none() {
            self.close(frames, "completed");
            // White space before a call is none before the text that follows.
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
        // Agents take an answer that says nothing for none, and ask again.
        if !self.has_answer && (reason != FinishReason::Length || self.begun == 0) {
            let text = std::mem::take(&mut self.space);
            let logprobs = std::mem::take(&mut self.early);
            self.start(Open::Message { text, logprobs }, frames);
        }
        self.close(frames, status);
    }

    /// What an event brings must fit.
    fn grow(&mut self, delta: &v1::Delta) {
        let call = |call: &v1::ToolCallDelta| call.id.len() + call.name.len() + call.arguments_json.len();
        let calls: usize = delta.tool_calls.iter().map(call).sum();
        let logprobs: usize = delta.logprobs.iter().map(|token| (1 + token.top.len()) * LOGPROB_BYTES).sum();
        // Once as an item, and once in the response.
        let bytes = 2 * (delta.text.len() + delta.reasoning.len() + calls + logprobs);
        if let Err(error) = self.room.grow(bytes) {
            self.fault.get_or_insert(error);
        }
    }

    /// Keeps the response that has ended.
    async fn keep(&mut self, head: &Head, response: String) -> bool {
        let Some(keeping) = self.keeping.take() else { return false };
        let named = |(place, item): (usize, &Item)| {
            item.named(&item_id(item.unnamed.unwrap_or_default(), &head.id, place))
        };
        let before = keeping.before.map(|kept| kept.items()).unwrap_or_default();
        let before = Some(before).filter(|items| !items.is_empty());
        let own = self.asked.items.iter().enumerate().map(named);
        let input: Vec<String> = before.into_iter().chain(own).collect();
        let kept = Kept { owner: keeping.owner, input: format!("[{}]", input.join(",")), response };
        keeping.responses.keep(head.id.clone(), kept).await
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

impl Shape for Reply {
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
                // Text of a call that is none comes with the end of it.
                broken.into_iter().for_each(|part| self.call(part, frames));
                // Without a text they are of the message that is open, or of one that begins with space.
                let open = matches!(self.open, None | Some(Open::Message { .. }));
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
            FinishReason::Length => State::Incomplete,
            _ => State::Completed,
        };
        let items = std::mem::take(&mut self.items);
        self.last = self.asked.frame.response(head, Some(used), &state, &items);
        if self.asked.frame.store && !self.keep(head, self.last.clone()).await {
            self.asked.frame.store = false;
            self.last = self.asked.frame.response(head, Some(used), &state, &items);
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
        self.asked.frame.store = false;
        let response = self.asked.frame.response(&head, None, &State::Failed(error), &self.items);
        self.tell(frames, "response.failed", &format!("\"response\":{response}"));
    }

    fn choice(&self, _: u32, _: CollectedChoice) {}

    fn envelope(&self, _: &Head, _: &UsageCount) -> impl Serialize {}
}
