//! Harmony, GPT-OSS's format: an answer consists of messages, each with a channel. `analysis` is reasoning and
//! `final` is the answer. A message to `functions.name` is a call. Text before the first marker also belongs to
//! the answer.

use crate::{
    json::{Json, Scan},
    limits::HEAD_CHARS_MAX,
    piece::{End, LocatedText, Sink},
    read::KnownTools,
};

/// Marks between messages and their parts, which are control tokens in the vocabulary.
pub(crate) const MARKS: [&str; 7] =
    ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"];

/// State of parsing an output.
#[derive(Clone, Debug)]
pub(crate) struct Harmony {
    /// Text that may be the start of a mark.
    held: LocatedText,
    at: HarmonyState,
}

#[derive(Clone, Debug)]
enum HarmonyState {
    /// Start of the output. It may begin with a recipient, because the prompt ends inside a header.
    Start {
        raw: LocatedText,
    },
    /// Header of a message, up to its body, as written.
    Head {
        raw: LocatedText,
    },
    Reasoning,
    Text,
    Call {
        json: Json,
        raw: LocatedText,
        whole: bool,
    },
}

impl Harmony {
    /// Starts at the beginning of an output, after the prompt has opened an assistant message.
    pub(crate) fn new() -> Harmony {
        Harmony { held: LocatedText::default(), at: HarmonyState::Start { raw: LocatedText::default() } }
    }

    /// Returns true within reasoning.
    pub(crate) fn in_reasoning(&self) -> bool {
        matches!(self.at, HarmonyState::Reasoning)
    }

    /// Offset in the output before which nothing can become text any more. `read` is the number of bytes read
    /// so far.
    pub(crate) fn settled(&self, read: usize) -> usize {
        match &self.at {
            HarmonyState::Start { raw } | HarmonyState::Head { raw } | HarmonyState::Call { raw, .. } => {
                raw.at
            }
            HarmonyState::Reasoning | HarmonyState::Text if self.held.text.is_empty() => read,
            HarmonyState::Reasoning | HarmonyState::Text => self.held.at,
        }
    }

    /// Parses text. `at` is the offset of its first byte in the output.
    pub(crate) fn push(&mut self, at: usize, text: &str, known: KnownTools, sink: &mut Sink) {
        for (offset, c) in text.char_indices() {
            if self.held.text.is_empty() && c != '<' {
                self.character(c, at + offset, sink);
                continue;
            }
            if self.held.text.is_empty() {
                self.held.at = at + offset;
            }
            self.held.text.push(c);
            loop {
                if let Some(mark) = MARKS.into_iter().find(|mark| self.held.text == *mark) {
                    self.held.text.clear();
                    self.mark(mark, self.held.at, known, sink);
                    break;
                }
                let held = self.held.text.as_str();
                if held.is_empty() || MARKS.iter().any(|mark| mark.starts_with(held)) {
                    break;
                }
                let (first, at) = (self.held.text.remove(0), self.held.at);
                self.held.at += first.len_utf8();
                self.character(first, at, sink);
            }
        }
    }

    fn character(&mut self, c: char, at: usize, sink: &mut Sink) {
        let mut one = [0; 4];
        let text: &str = c.encode_utf8(&mut one);
        match &mut self.at {
            HarmonyState::Start { raw } => {
                raw.text.push(c);
                if !may_be_recipient(&raw.text) {
                    let raw = std::mem::take(raw);
                    self.at = HarmonyState::Text;
                    sink.text(raw.at, &raw.text);
                }
            }
            HarmonyState::Head { raw } => {
                raw.text.push(c);
                if raw.text.len() > HEAD_CHARS_MAX {
                    let raw = std::mem::take(raw);
                    self.at = HarmonyState::Text;
                    sink.text(raw.at, &raw.text);
                }
            }
            HarmonyState::Reasoning => sink.reasoning(text),
            HarmonyState::Text => sink.text(at, text),
            HarmonyState::Call { json, raw, whole } => {
                raw.text.push(c);
                let mut out = String::new();
                let blank = c.is_whitespace() && (*whole || json.is_empty());
                let bad = match blank {
                    true => false,
                    _ if *whole || json.is_empty() && c != '{' => true,
                    false => match json.push(c, &mut out) {
                        Scan::Took => false,
                        Scan::Ended => {
                            *whole = true;
                            false
                        }
                        Scan::EndedBefore | Scan::Bad => true,
                    },
                };
                if bad {
                    self.give_up(sink);
                } else {
                    sink.arguments(&out);
                }
            }
        }
    }

    fn give_up(&mut self, sink: &mut Sink) {
        if let HarmonyState::Call { raw, .. } = std::mem::replace(&mut self.at, HarmonyState::Text) {
            sink.give_up();
            sink.text(raw.at, &raw.text);
        }
    }

    /// Ends the open message.
    fn close(&mut self, sink: &mut Sink) {
        match &self.at {
            HarmonyState::Call { whole: true, .. } => sink.end(),
            HarmonyState::Call { .. } => self.give_up(sink),
            HarmonyState::Head { raw } => tell_head(raw, sink),
            HarmonyState::Start { raw } => sink.text(raw.at, &raw.text),
            HarmonyState::Reasoning | HarmonyState::Text => {}
        }
        self.at = HarmonyState::Text;
    }

    fn mark(&mut self, mark: &str, at: usize, known: KnownTools, sink: &mut Sink) {
        match (mark, &mut self.at) {
            ("<|channel|>" | "<|constrain|>" | "<|message|>", HarmonyState::Start { raw })
                if raw.text.contains("to=") =>
            {
                let raw = std::mem::take(raw);
                self.at = HarmonyState::Head { raw };
                self.mark(mark, at, known, sink);
            }
            ("<|channel|>" | "<|constrain|>", HarmonyState::Head { raw }) => raw.text.push_str(mark),
            ("<|message|>", HarmonyState::Head { raw }) => {
                let raw = std::mem::take(raw);
                self.at = body(raw, known, sink);
            }
            ("<|message|>", _) => {}
            ("<|start|>" | "<|channel|>", _) => {
                self.close(sink);
                self.at = HarmonyState::Head { raw: LocatedText { at, text: mark.to_owned() } };
            }
            _ => self.close(sink),
        }
    }

    /// Ends the output. A call that has begun remains one, with its arguments so far. If the output was cut, an
    /// unfinished mark or header is dropped, unless the header names a tool: then the call begins.
    pub(crate) fn finish(&mut self, end: End, known: KnownTools, sink: &mut Sink) {
        let held = std::mem::take(&mut self.held);
        let cut = end == End::Cut;
        if !cut && !matches!(self.at, HarmonyState::Call { .. }) {
            held.text.char_indices().for_each(|(at, c)| self.character(c, held.at + at, sink));
        }
        match &self.at {
            HarmonyState::Call { whole: false, .. } => {}
            HarmonyState::Start { raw } | HarmonyState::Head { raw }
                if cut && !raw.text.trim().is_empty() =>
            {
                if let Some(name) = recipient(&raw.text).filter(|name| known.has(name)) {
                    sink.start(name, None);
                }
            }
            _ => self.close(sink),
        }
        self.at = HarmonyState::Text;
    }
}

/// Tool named in a header, if its name is complete.
fn recipient(raw: &str) -> Option<&str> {
    let (_, to) = raw.split_once("to=")?;
    let (name, _) = to.split_once(|c: char| c.is_whitespace() || c == '<')?;
    Some(name.strip_prefix("functions.").unwrap_or(name))
}

/// Returns true if the text after a message's role may name a recipient.
fn may_be_recipient(raw: &str) -> bool {
    let word = raw.trim_start();
    raw.len() <= HEAD_CHARS_MAX && (word.starts_with("to=functions.") || "to=functions.".starts_with(word))
}

/// Emits a header without a body as text, without its marks, if it has other text than a header's.
fn tell_head(raw: &LocatedText, sink: &mut Sink) {
    let (mut pieces, mut at) = (Vec::new(), 0);
    while at < raw.text.len() {
        let rest = &raw.text[at..];
        if let Some(mark) = MARKS.into_iter().find(|mark| rest.starts_with(mark)) {
            at += mark.len();
            continue;
        }
        let next = MARKS.into_iter().filter_map(|mark| rest.find(mark)).min().unwrap_or(rest.len());
        pieces.push((at, &rest[..next]));
        at += next;
    }
    let words: String = pieces.iter().map(|(_, text)| *text).collect();
    match words.trim() {
        ""
        | "assistant"
        | "analysis"
        | "final"
        | "commentary"
        | "assistantanalysis"
        | "assistantfinal"
        | "assistantcommentary" => {}
        _ => pieces.into_iter().for_each(|(at, text)| sink.text(raw.at + at, text)),
    }
}

/// Determines the kind of message from its header: `<|start|>assistant<|channel|>commentary to=functions.f
/// <|constrain|>json`.
fn body(mut raw: LocatedText, known: KnownTools, sink: &mut Sink) -> HarmonyState {
    let words = || {
        let between = |c: char| c.is_whitespace() || matches!(c, '<' | '>' | '|');
        raw.text.split(between).filter(|word| !word.is_empty())
    };
    let to = words().find_map(|word| word.split_once("to=").map(|(_, to)| to));
    match to {
        Some(to) => {
            let name = to.strip_prefix("functions.").unwrap_or(to).to_owned();
            raw.text.push_str("<|message|>");
            if known.has(&name) {
                sink.start(&name, None);
                return HarmonyState::Call { json: Json::default(), raw, whole: false };
            }
            sink.text(raw.at, &raw.text);
            HarmonyState::Text
        }
        None if words().any(|word| word == "analysis") => HarmonyState::Reasoning,
        None => HarmonyState::Text,
    }
}
