//! Calls as JSON: an object with the tool's name and its arguments, or an array of such objects. Keys may come
//! in any order. Arguments before the name are kept until the name is known.

use super::{Known, Step};
use crate::{
    json::{Json, Scan, Unescape},
    limits::VALUE_BYTES_MAX,
    piece::Sink,
};

/// Reader of a call's object, or of an array of them.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    list: bool,
    lines: bool, // more objects may follow without a list
    keyed: bool, // the key is the tool's name, its value the arguments
    at: At,
    nested: usize, // depth of enclosing objects, such as {"function": {…}}
    name: Option<String>,
    id: Option<String>,
    early: Option<String>, // arguments before the name
    has_arguments: bool,
    started: bool,
}

#[derive(Clone, Debug)]
enum At {
    Start,
    Item { first: bool },
    Key { first: bool },
    KeyText { text: String, scan: Unescape },
    Colon { key: String },
    Value { key: Meaning },
    Name { text: String, scan: Unescape },
    Id { text: String, scan: Unescape },
    Arguments { json: Json },
    Spelled { json: Json, scan: Unescape, done: bool }, // arguments as a string of JSON
    Nothing { json: Json },
    Skipped { json: Json, bytes: usize },
    After,
    AfterItem,
}

/// Meaning of a key in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    Name,
    /// The name, or an object that contains it.
    Function,
    Arguments,
    Id,
    Other,
}

/// Keys that a call may have.
const KEYS: [&str; 14] = [
    "name",
    "tool_name",
    "function_name",
    "function",
    "tool_call",
    "arguments",
    "parameters",
    "args",
    "kwargs",
    "id",
    "tool_call_id",
    "call_id",
    "type",
    "index",
];

fn meaning(key: &str) -> Option<Meaning> {
    Some(match key {
        "name" | "tool_name" | "function_name" => Meaning::Name,
        "function" | "tool_call" => Meaning::Function,
        "arguments" | "parameters" | "args" | "kwargs" => Meaning::Arguments,
        "id" | "tool_call_id" | "call_id" => Meaning::Id,
        "type" | "index" => Meaning::Other,
        _ => return None,
    })
}

impl Object {
    /// Starts before the first brace or bracket.
    pub(crate) fn new() -> Object {
        Object {
            list: false,
            lines: false,
            keyed: false,
            at: At::Start,
            nested: 0,
            name: None,
            id: None,
            early: None,
            has_arguments: false,
            started: false,
        }
    }

    /// Creates a reader that accepts more objects after the first.
    pub(crate) fn lines() -> Object {
        Object { lines: true, ..Object::new() }
    }

    /// Creates a reader of objects whose only key is the tool's name: `{"name": {…}}`.
    pub(crate) fn keyed() -> Object {
        Object { keyed: true, ..Object::new() }
    }

    /// Returns true within an array between complete calls.
    pub(crate) fn is_between(&self) -> bool {
        matches!(self.at, At::AfterItem)
    }

    pub(crate) fn push(&mut self, c: char, known: Known, sink: &mut Sink) -> Step {
        let space = matches!(c, ' ' | '\n' | '\r' | '\t');
        match &mut self.at {
            At::Start
            | At::Item { .. }
            | At::Key { .. }
            | At::Colon { .. }
            | At::Value { .. }
            | At::After
            | At::AfterItem
                if space =>
            {
                Step::More
            }
            At::Start => match c {
                '{' => self.go(At::Key { first: true }),
                '[' => {
                    self.list = true;
                    self.go(At::Item { first: true })
                }
                _ => Step::Fail,
            },
            At::Item { first } => match c {
                '{' => self.go(At::Key { first: true }),
                ']' if *first => Step::Fail, // no call at all
                _ => Step::Fail,
            },
            At::Key { first } => match c {
                '"' => self.go(At::KeyText { text: String::new(), scan: Unescape::default() }),
                '}' if *first && self.nested == 0 => Step::Fail,
                _ => Step::Fail,
            },
            At::KeyText { text, scan } => match scan.push(c, text) {
                Scan::Took if text.len() <= crate::limits::HEAD_CHARS_MAX => Step::More,
                Scan::Ended if self.keyed => {
                    let name = std::mem::take(text);
                    if self.name.is_some() || !known.has(&name) {
                        return Step::Fail;
                    }
                    self.name = Some(name);
                    self.go(At::Colon { key: "arguments".to_owned() })
                }
                Scan::Ended => {
                    let key = std::mem::take(text);
                    self.go(At::Colon { key })
                }
                _ => Step::Fail,
            },
            At::Colon { key } => match (c, meaning(key)) {
                (':', Some(key)) => self.go(At::Value { key }),
                _ => Step::Fail,
            },
            At::Value { key } => {
                let key = *key;
                self.value(key, c, known, sink)
            }
            At::Name { text, scan } => match scan.push(c, text) {
                Scan::Took if text.len() <= crate::limits::HEAD_CHARS_MAX => Step::More,
                Scan::Ended => {
                    let name = std::mem::take(text);
                    if !known.has(&name) {
                        return Step::Fail;
                    }
                    self.name = Some(name);
                    if let Some(arguments) = self.early.take() {
                        self.start(sink);
                        sink.arguments(&arguments);
                    }
                    self.go(At::After)
                }
                _ => Step::Fail,
            },
            At::Id { text, scan } => match scan.push(c, text) {
                Scan::Took if text.len() <= crate::limits::HEAD_CHARS_MAX => Step::More,
                Scan::Ended => {
                    self.id = Some(std::mem::take(text)).filter(|id| !id.is_empty());
                    self.go(At::After)
                }
                _ => Step::Fail,
            },
            At::Arguments { json } => {
                let mut out = String::new();
                let scan = json.push(c, &mut out);
                self.say(&out, sink);
                match scan {
                    Scan::Took if self.early_fits() => Step::More,
                    Scan::Ended => self.go(At::After),
                    _ => Step::Fail,
                }
            }
            At::Spelled { json, scan, done } => {
                let (mut characters, mut out) = (String::new(), String::new());
                let end = scan.push(c, &mut characters);
                for c in characters.chars() {
                    let blank = c.is_whitespace() && (*done || json.is_empty());
                    match (blank, *done) {
                        (true, _) => {}
                        (false, true) => return Step::Fail,
                        // A string with JSON in it must contain an object.
                        (false, false) if json.is_empty() && c != '{' => return Step::Fail,
                        (false, false) => match json.push(c, &mut out) {
                            Scan::Took => {}
                            Scan::Ended => *done = true,
                            Scan::EndedBefore | Scan::Bad => return Step::Fail,
                        },
                    }
                }
                let (whole, empty) = (*done, json.is_empty());
                match end {
                    Scan::Took => {}
                    Scan::Ended if whole => self.at = At::After,
                    Scan::Ended if empty => {
                        out.push_str("{}");
                        self.at = At::After;
                    }
                    _ => return Step::Fail,
                }
                self.say(&out, sink);
                if self.early_fits() { Step::More } else { Step::Fail }
            }
            At::Nothing { json } => match json.push(c, &mut String::new()) {
                Scan::Took => Step::More,
                Scan::Ended => {
                    self.say("{}", sink);
                    self.go(At::After)
                }
                Scan::EndedBefore | Scan::Bad => Step::Fail,
            },
            At::Skipped { json, bytes } => {
                *bytes += c.len_utf8();
                match json.push(c, &mut String::new()) {
                    Scan::Took if *bytes <= VALUE_BYTES_MAX => Step::More,
                    Scan::Ended => self.go(At::After),
                    Scan::EndedBefore => {
                        self.at = At::After;
                        self.push(c, known, sink)
                    }
                    _ => Step::Fail,
                }
            }
            At::After => match c {
                ',' => self.go(At::Key { first: false }),
                '}' if self.nested > 0 => {
                    self.nested -= 1;
                    Step::More
                }
                '}' => self.close(sink),
                _ => Step::Fail,
            },
            At::AfterItem => match c {
                '{' if self.lines && !self.list => self.go(At::Key { first: true }),
                _ if self.lines && !self.list => Step::DoneBefore,
                ',' => self.go(At::Item { first: false }),
                ']' => Step::Done,
                _ => Step::Fail,
            },
        }
    }

    fn value(&mut self, key: Meaning, c: char, known: Known, sink: &mut Sink) -> Step {
        let text = || (String::new(), Unescape::default());
        match (key, c) {
            (Meaning::Name | Meaning::Function, '"') if self.name.is_none() => {
                let (text, scan) = text();
                self.go(At::Name { text, scan })
            }
            (Meaning::Function, '{') if self.nested == 0 => {
                self.nested += 1;
                self.go(At::Key { first: true })
            }
            (Meaning::Arguments, '{' | '"' | 'n') if !self.has_arguments => {
                self.has_arguments = true;
                let mut json = Json::default();
                match c {
                    '"' => {
                        self.begin_arguments(sink);
                        self.go(At::Spelled { json, scan: Unescape::default(), done: false })
                    }
                    'n' => {
                        self.begin_arguments(sink);
                        json.push(c, &mut String::new());
                        self.go(At::Nothing { json })
                    }
                    _ => {
                        self.begin_arguments(sink);
                        self.at = At::Arguments { json };
                        self.push(c, known, sink)
                    }
                }
            }
            (Meaning::Id, '"') => {
                let (text, scan) = text();
                self.go(At::Id { text, scan })
            }
            (Meaning::Id | Meaning::Other, _) => {
                self.at = At::Skipped { json: Json::default(), bytes: 0 };
                self.push(c, known, sink)
            }
            _ => Step::Fail,
        }
    }

    fn go(&mut self, at: At) -> Step {
        self.at = at;
        Step::More
    }

    fn start(&mut self, sink: &mut Sink) {
        if let Some(name) = &self.name {
            sink.start(name, self.id.take());
            self.started = true;
        }
    }

    fn begin_arguments(&mut self, sink: &mut Sink) {
        match self.name {
            Some(_) => self.start(sink),
            None => self.early = Some(String::new()),
        }
    }

    /// Appends to the arguments: emits them, or keeps them until the name is known.
    fn say(&mut self, more: &str, sink: &mut Sink) {
        match &mut self.early {
            Some(early) => early.push_str(more),
            None => sink.arguments(more),
        }
    }

    /// Begins the call if its name is known and its arguments have not begun.
    pub(crate) fn cut(&mut self, sink: &mut Sink) {
        if !self.started {
            self.start(sink);
        }
    }

    /// Returns true if the text may continue as a call.
    pub(crate) fn may_be_call(&self, known: Known) -> bool {
        match &self.at {
            At::Name { text, .. } => known.may_begin(text),
            At::KeyText { text, .. } if self.keyed => known.may_begin(text),
            At::KeyText { text, .. } => KEYS.iter().any(|key| key.starts_with(text.as_str())),
            At::Colon { key } => meaning(key).is_some(),
            _ => true,
        }
    }

    fn early_fits(&self) -> bool {
        self.early.as_ref().is_none_or(|early| early.len() <= VALUE_BYTES_MAX)
    }

    /// Handles the end of a call's object.
    fn close(&mut self, sink: &mut Sink) -> Step {
        if self.name.is_none() {
            return Step::Fail;
        }
        if !self.started {
            self.start(sink);
            sink.arguments("{}");
        }
        sink.end();
        let Object { list, lines, keyed, .. } = *self;
        *self = Object { list, lines, keyed, at: At::AfterItem, ..Object::new() };
        if list || lines { Step::More } else { Step::Done }
    }
}
