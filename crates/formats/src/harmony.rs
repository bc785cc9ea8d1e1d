//! Harmony, GPT-OSS's format: an answer is messages, each with a channel. What is said in `analysis` is reasoning, in
//! `final` the answer; a message to `functions.name` is a call. Text before the first marker is the answer too.

use crate::{
    json::{Json, Scan},
    limits::HEAD_CHARS_MAX,
    piece::Sink,
    read::Known,
};

/// The marks between messages and their parts; control tokens in the vocabulary.
pub(crate) const MARKS: [&str; 7] =
    ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"];

/// An output in the middle of being read.
#[derive(Clone, Debug)]
pub(crate) struct Harmony {
    /// What may be the beginning of a mark.
    held: String,
    at: At,
}

#[derive(Clone, Debug)]
enum At {
    /// Nothing but what may be a recipient: the prompt ends inside of a head.
    Start {
        raw: String,
    },
    /// A message's head, up to its body; as it is written.
    Head {
        raw: String,
    },
    Reasoning,
    Text,
    Call {
        json: Json,
        raw: String,
        whole: bool,
    },
}

impl Harmony {
    /// At the beginning of an output, whose prompt has opened a message of the assistant.
    pub(crate) fn new() -> Harmony {
        Harmony { held: String::new(), at: At::Start { raw: String::new() } }
    }

    /// Whether what comes is reasoning.
    pub(crate) fn in_reasoning(&self) -> bool {
        matches!(self.at, At::Reasoning)
    }

    pub(crate) fn push(&mut self, text: &str, known: Known, sink: &mut Sink) {
        for c in text.chars() {
            if self.held.is_empty() && c != '<' {
                self.character(c, sink);
                continue;
            }
            self.held.push(c);
            loop {
                if let Some(mark) = MARKS.into_iter().find(|mark| self.held == *mark) {
                    self.held.clear();
                    self.mark(mark, known, sink);
                    break;
                }
                if self.held.is_empty() || MARKS.iter().any(|mark| mark.starts_with(self.held.as_str())) {
                    break;
                }
                let first = self.held.remove(0);
                self.character(first, sink);
            }
        }
    }

    fn character(&mut self, c: char, sink: &mut Sink) {
        let mut one = [0; 4];
        let text: &str = c.encode_utf8(&mut one);
        match &mut self.at {
            At::Start { raw } => {
                raw.push(c);
                if !may_be_recipient(raw) {
                    let raw = std::mem::take(raw);
                    self.at = At::Text;
                    sink.text(&raw);
                }
            }
            At::Head { raw } => {
                raw.push(c);
                if raw.len() > HEAD_CHARS_MAX {
                    let raw = std::mem::take(raw);
                    self.at = At::Text;
                    sink.text(&raw);
                }
            }
            At::Reasoning => sink.reasoning(text),
            At::Text => sink.text(text),
            At::Call { json, raw, whole } => {
                raw.push(c);
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
        if let At::Call { raw, .. } = std::mem::replace(&mut self.at, At::Text) {
            sink.give_up();
            sink.text(&raw);
        }
    }

    /// The message that stands open ends.
    fn close(&mut self, sink: &mut Sink) {
        match &self.at {
            At::Call { whole: true, .. } => sink.end(),
            At::Call { .. } => self.give_up(sink),
            At::Head { raw } => sink.text(&visible(raw)),
            At::Start { raw } => sink.text(raw),
            At::Reasoning | At::Text => {}
        }
        self.at = At::Text;
    }

    fn mark(&mut self, mark: &str, known: Known, sink: &mut Sink) {
        match (mark, &mut self.at) {
            ("<|channel|>" | "<|constrain|>" | "<|message|>", At::Start { raw }) if raw.contains("to=") => {
                let raw = std::mem::take(raw);
                self.at = At::Head { raw };
                self.mark(mark, known, sink);
            }
            ("<|channel|>" | "<|constrain|>", At::Head { raw }) => raw.push_str(mark),
            ("<|message|>", At::Head { raw }) => {
                let raw = std::mem::take(raw);
                self.at = body(&raw, known, sink);
            }
            ("<|message|>", _) => {}
            ("<|start|>" | "<|channel|>", _) => {
                self.close(sink);
                self.at = At::Head { raw: mark.to_owned() };
            }
            _ => self.close(sink),
        }
    }

    pub(crate) fn finish(&mut self, sink: &mut Sink) {
        let held = std::mem::take(&mut self.held);
        held.chars().for_each(|c| self.character(c, sink));
        self.close(sink);
    }
}

/// Whether a message's beginning, right behind its role, may say whom it is for.
fn may_be_recipient(raw: &str) -> bool {
    let word = raw.trim_start();
    raw.len() <= HEAD_CHARS_MAX && (word.starts_with("to=functions.") || "to=functions.".starts_with(word))
}

/// A head that no body came to, without the marks of a head that is only begun.
fn visible(raw: &str) -> String {
    let words = MARKS.iter().fold(raw.to_owned(), |text, mark| text.replace(mark, ""));
    match words.trim() {
        ""
        | "assistant"
        | "analysis"
        | "final"
        | "commentary"
        | "assistantanalysis"
        | "assistantfinal"
        | "assistantcommentary" => String::new(),
        _ => words,
    }
}

/// What a message is, by its head: `<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json`.
fn body(raw: &str, known: Known, sink: &mut Sink) -> At {
    let words = || {
        raw.split(|c: char| c.is_whitespace() || matches!(c, '<' | '>' | '|')).filter(|word| !word.is_empty())
    };
    let to = words().find_map(|word| word.split_once("to=").map(|(_, to)| to));
    match to {
        Some(to) => {
            let name = to.strip_prefix("functions.").unwrap_or(to);
            if known.has(name) {
                sink.start(name, None);
                return At::Call { json: Json::default(), raw: format!("{raw}<|message|>"), whole: false };
            }
            sink.text(raw);
            sink.text("<|message|>");
            At::Text
        }
        None if words().any(|word| word == "analysis") => At::Reasoning,
        None => At::Text,
    }
}
