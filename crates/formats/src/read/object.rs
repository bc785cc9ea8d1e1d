//! Calls as JSON: an object with the tool's name and its arguments, or an array of such objects. Keys may come
//! in any order. Arguments before the name are kept until the name is known.

use super::{KnownTools, ReadStep};
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
    at: ObjectState,
    nested: usize, // depth of enclosing objects, such as {"function": {…}}
    name: Option<String>,
    id: Option<String>,
    early: Option<String>, // arguments before the name
    has_arguments: bool,
    started: bool,
}

#[derive(Clone, Debug)]
enum ObjectState {
    Start,
    Item { first: bool },
    Key { first: bool },
    KeyText { text: String, scan: Unescape },
    Colon { key: String },
    Value { key: KeyMeaning },
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
enum KeyMeaning {
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

fn meaning(key: &str) -> Option<KeyMeaning> {
    Some(match key {
        "name" | "tool_name" | "function_name" => KeyMeaning::Name,
        "function" | "tool_call" => KeyMeaning::Function,
        "arguments" | "parameters" | "args" | "kwargs" => KeyMeaning::Arguments,
        "id" | "tool_call_id" | "call_id" => KeyMeaning::Id,
        "type" | "index" => KeyMeaning::Other,
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
            at: ObjectState::Start,
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
        matches!(self.at, ObjectState::AfterItem)
    }

    pub(crate) fn push(&mut self, c: char, known: KnownTools, sink: &mut Sink) -> ReadStep {
        let space = matches!(c, ' ' | '\n' | '\r' | '\t');
        match &mut self.at {
            ObjectState::Start
            | ObjectState::Item { .. }
            | ObjectState::Key { .. }
            | ObjectState::Colon { .. }
            | ObjectState::Value { .. }
            | ObjectState::After
            | ObjectState::AfterItem
                if space =>
            {
                ReadStep::More
            }
            ObjectState::Start => match c {
                '{' => self.go(ObjectState::Key { first: true }),
                '[' => {
                    self.list = true;
                    self.go(ObjectState::Item { first: true })
                }
                _ => ReadStep::Fail,
            },
            ObjectState::Item { first } => match c {
                '{' => self.go(ObjectState::Key { first: true }),
                ']' if *first => ReadStep::Fail, // no call at all
                _ => ReadStep::Fail,
            },
            ObjectState::Key { first } => match c {
                '"' => self.go(ObjectState::KeyText { text: String::new(), scan: Unescape::default() }),
                '}' if *first && self.nested == 0 => ReadStep::Fail,
                _ => ReadStep::Fail,
            },
            ObjectState::KeyText { .. } => self.key_text(c, known),
            ObjectState::Colon { key } => match (c, meaning(key)) {
                (':', Some(key)) => self.go(ObjectState::Value { key }),
                _ => ReadStep::Fail,
            },
            ObjectState::Value { key } => {
                let key = *key;
                self.value(key, c, known, sink)
            }
            ObjectState::Name { .. } => self.name(c, known, sink),
            ObjectState::Id { .. } => self.id(c),
            ObjectState::Arguments { .. } => self.arguments(c, sink),
            ObjectState::Spelled { .. } => self.spelled(c, sink),
            ObjectState::Nothing { .. } => self.nothing(c, sink),
            ObjectState::Skipped { .. } => self.skipped(c, known, sink),
            ObjectState::After => match c {
                ',' => self.go(ObjectState::Key { first: false }),
                '}' if self.nested > 0 => {
                    self.nested -= 1;
                    ReadStep::More
                }
                '}' => self.close(sink),
                _ => ReadStep::Fail,
            },
            ObjectState::AfterItem => match c {
                '{' if self.lines && !self.list => self.go(ObjectState::Key { first: true }),
                _ if self.lines && !self.list => ReadStep::DoneBefore,
                ',' => self.go(ObjectState::Item { first: false }),
                ']' => ReadStep::Done,
                _ => ReadStep::Fail,
            },
        }
    }

    /// Reads a character of a key.
    fn key_text(&mut self, c: char, known: KnownTools) -> ReadStep {
        let ObjectState::KeyText { text, scan } = &mut self.at else { return ReadStep::Fail };
        match scan.push(c, text) {
            Scan::Took if text.len() <= crate::limits::HEAD_CHARS_MAX => ReadStep::More,
            Scan::Ended if self.keyed => {
                let name = std::mem::take(text);
                if self.name.is_some() || !known.has(&name) {
                    return ReadStep::Fail;
                }
                self.name = Some(name);
                self.go(ObjectState::Colon { key: "arguments".to_owned() })
            }
            Scan::Ended => {
                let key = std::mem::take(text);
                self.go(ObjectState::Colon { key })
            }
            _ => ReadStep::Fail,
        }
    }

    /// Reads a character of the tool's name.
    fn name(&mut self, c: char, known: KnownTools, sink: &mut Sink) -> ReadStep {
        let ObjectState::Name { text, scan } = &mut self.at else { return ReadStep::Fail };
        match scan.push(c, text) {
            Scan::Took if text.len() <= crate::limits::HEAD_CHARS_MAX => ReadStep::More,
            Scan::Ended => {
                let name = std::mem::take(text);
                if !known.has(&name) {
                    return ReadStep::Fail;
                }
                self.name = Some(name);
                if let Some(arguments) = self.early.take() {
                    self.start(sink);
                    sink.arguments(&arguments);
                }
                self.go(ObjectState::After)
            }
            _ => ReadStep::Fail,
        }
    }

    /// Reads a character of the call's id.
    fn id(&mut self, c: char) -> ReadStep {
        let ObjectState::Id { text, scan } = &mut self.at else { return ReadStep::Fail };
        match scan.push(c, text) {
            Scan::Took if text.len() <= crate::limits::HEAD_CHARS_MAX => ReadStep::More,
            Scan::Ended => {
                self.id = Some(std::mem::take(text)).filter(|id| !id.is_empty());
                self.go(ObjectState::After)
            }
            _ => ReadStep::Fail,
        }
    }

    /// Reads a character of the arguments' object.
    fn arguments(&mut self, c: char, sink: &mut Sink) -> ReadStep {
        let ObjectState::Arguments { json } = &mut self.at else { return ReadStep::Fail };
        let mut out = String::new();
        let scan = json.push(c, &mut out);
        self.say(&out, sink);
        match scan {
            Scan::Took if self.early_fits() => ReadStep::More,
            Scan::Ended => self.go(ObjectState::After),
            _ => ReadStep::Fail,
        }
    }

    /// Reads a character of arguments that are a string of JSON.
    fn spelled(&mut self, c: char, sink: &mut Sink) -> ReadStep {
        let ObjectState::Spelled { json, scan, done } = &mut self.at else { return ReadStep::Fail };
        let (mut characters, mut out) = (String::new(), String::new());
        let end = scan.push(c, &mut characters);
        for c in characters.chars() {
            let blank = c.is_whitespace() && (*done || json.is_empty());
            match (blank, *done) {
                (true, _) => {}
                (false, true) => return ReadStep::Fail,
                // A string with JSON in it must contain an object.
                (false, false) if json.is_empty() && c != '{' => return ReadStep::Fail,
                (false, false) => match json.push(c, &mut out) {
                    Scan::Took => {}
                    Scan::Ended => *done = true,
                    Scan::EndedBefore | Scan::Bad => return ReadStep::Fail,
                },
            }
        }
        let (whole, empty) = (*done, json.is_empty());
        match end {
            Scan::Took => {}
            Scan::Ended if whole => self.at = ObjectState::After,
            Scan::Ended if empty => {
                out.push_str("{}");
                self.at = ObjectState::After;
            }
            _ => return ReadStep::Fail,
        }
        self.say(&out, sink);
        if self.early_fits() { ReadStep::More } else { ReadStep::Fail }
    }

    /// Reads a character of a value that is not used.
    fn skipped(&mut self, c: char, known: KnownTools, sink: &mut Sink) -> ReadStep {
        let ObjectState::Skipped { json, bytes } = &mut self.at else { return ReadStep::Fail };
        *bytes += c.len_utf8();
        match json.push(c, &mut String::new()) {
            Scan::Took if *bytes <= VALUE_BYTES_MAX => ReadStep::More,
            Scan::Ended => self.go(ObjectState::After),
            Scan::EndedBefore => {
                self.at = ObjectState::After;
                self.push(c, known, sink)
            }
            _ => ReadStep::Fail,
        }
    }

    /// Reads a character of `null` in place of arguments.
    fn nothing(&mut self, c: char, sink: &mut Sink) -> ReadStep {
        let ObjectState::Nothing { json } = &mut self.at else { return ReadStep::Fail };
        match json.push(c, &mut String::new()) {
            Scan::Took => ReadStep::More,
            Scan::Ended => {
                self.say("{}", sink);
                self.go(ObjectState::After)
            }
            Scan::EndedBefore | Scan::Bad => ReadStep::Fail,
        }
    }

    fn value(&mut self, key: KeyMeaning, c: char, known: KnownTools, sink: &mut Sink) -> ReadStep {
        let text = || (String::new(), Unescape::default());
        match (key, c) {
            (KeyMeaning::Name | KeyMeaning::Function, '"') if self.name.is_none() => {
                let (text, scan) = text();
                self.go(ObjectState::Name { text, scan })
            }
            (KeyMeaning::Function, '{') if self.nested == 0 => {
                self.nested += 1;
                self.go(ObjectState::Key { first: true })
            }
            (KeyMeaning::Arguments, '{' | '"' | 'n') if !self.has_arguments => {
                self.has_arguments = true;
                let mut json = Json::default();
                match c {
                    '"' => {
                        self.begin_arguments(sink);
                        self.go(ObjectState::Spelled { json, scan: Unescape::default(), done: false })
                    }
                    'n' => {
                        self.begin_arguments(sink);
                        json.push(c, &mut String::new());
                        self.go(ObjectState::Nothing { json })
                    }
                    _ => {
                        self.begin_arguments(sink);
                        self.at = ObjectState::Arguments { json };
                        self.push(c, known, sink)
                    }
                }
            }
            (KeyMeaning::Id, '"') => {
                let (text, scan) = text();
                self.go(ObjectState::Id { text, scan })
            }
            (KeyMeaning::Id | KeyMeaning::Other, _) => {
                self.at = ObjectState::Skipped { json: Json::default(), bytes: 0 };
                self.push(c, known, sink)
            }
            _ => ReadStep::Fail,
        }
    }

    fn go(&mut self, at: ObjectState) -> ReadStep {
        self.at = at;
        ReadStep::More
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
    pub(crate) fn may_be_call(&self, known: KnownTools) -> bool {
        match &self.at {
            ObjectState::Name { text, .. } => known.may_begin(text),
            ObjectState::KeyText { text, .. } if self.keyed => known.may_begin(text),
            ObjectState::KeyText { text, .. } => KEYS.iter().any(|key| key.starts_with(text.as_str())),
            ObjectState::Colon { key } => meaning(key).is_some(),
            _ => true,
        }
    }

    fn early_fits(&self) -> bool {
        self.early.as_ref().is_none_or(|early| early.len() <= VALUE_BYTES_MAX)
    }

    /// Handles the end of a call's object.
    fn close(&mut self, sink: &mut Sink) -> ReadStep {
        if self.name.is_none() {
            return ReadStep::Fail;
        }
        if !self.started {
            self.start(sink);
            sink.arguments("{}");
        }
        sink.end();
        let Object { list, lines, keyed, .. } = *self;
        *self = Object { list, lines, keyed, at: ObjectState::AfterItem, ..Object::new() };
        if list || lines { ReadStep::More } else { ReadStep::Done }
    }
}
