//! Calls with arguments between tags: strings unquoted, other values as JSON. The schema determines the JSON
//! type. A string is emitted as it arrives; a value that may be something else, at its end.

use super::{KnownTools, ReadStep};
use crate::{
    json::{Json, Scan, escape, whole},
    limits::{HEAD_CHARS_MAX, VALUE_BYTES_MAX},
    piece::Sink,
};

/// Tags of a family. The tag that begins the call was read before.
#[derive(Debug)]
pub(crate) struct Tags {
    /// Text that ends the tool's name. Empty: white space or the next tag ends it.
    pub(crate) name_end: &'static str,
    /// Text that begins a parameter.
    pub(crate) parameter: &'static str,
    /// Alternatives between a parameter's name and its value, each with the kind of value.
    pub(crate) value: &'static [(&'static str, ValueType)],
    /// Text that ends the value.
    pub(crate) value_end: &'static str,
    /// Text that ends the call.
    pub(crate) end: &'static str,
    /// True if a line break inside each tag of a value belongs to the format.
    pub(crate) breaks: bool,
    /// Begin and end of a text section around a value, if the family has one.
    pub(crate) section: Option<[&'static str; 2]>,
}

/// Kind of a value, as its tag states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueType {
    /// The schema decides.
    Unsaid,
    Text,
    Json,
}

/// `<function=name><parameter=key>value</parameter></function>`
pub(crate) static FUNCTION: Tags = Tags {
    name_end: ">",
    parameter: "<parameter=",
    value: &[(">", ValueType::Unsaid)],
    value_end: "</parameter>",
    end: "</function>",
    breaks: true,
    section: None,
};
/// `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`
pub(crate) static ARG_KEY: Tags = Tags {
    name_end: "",
    parameter: "<arg_key>",
    value: &[("</arg_key><arg_value>", ValueType::Unsaid)],
    value_end: "</arg_value>",
    end: "</tool_call>",
    breaks: false,
    section: None,
};
/// `<invoke name="name"><parameter name="key">value</parameter></invoke>`
pub(crate) static INVOKE: Tags = Tags {
    name_end: "\">",
    parameter: "<parameter name=\"",
    value: &[("\">", ValueType::Unsaid)],
    value_end: "</parameter>",
    end: "</invoke>",
    breaks: false,
    section: None,
};
/// DSML: the same with a prefix in each tag, and the kind of each value.
pub(crate) static DSML: Tags = Tags {
    name_end: "\">",
    parameter: "<｜DSML｜parameter name=\"",
    value: &[
        ("\" string=\"true\">", ValueType::Text),
        ("\" string=\"false\">", ValueType::Json),
        ("\">", ValueType::Unsaid),
    ],
    value_end: "</｜DSML｜parameter>",
    end: "</｜DSML｜invoke>",
    breaks: false,
    section: None,
};
/// `<function name="name"><param name="key">value</param></function>`
pub(crate) static PARAM: Tags = Tags {
    name_end: "\">",
    parameter: "<param name=\"",
    value: &[("\">", ValueType::Unsaid)],
    value_end: "</param>",
    end: "</function>",
    breaks: false,
    section: Some(["<![CDATA[", "]]></param>"]),
};

/// Reader of a call.
#[derive(Clone, Debug)]
pub(crate) struct TaggedReader {
    tags: &'static Tags,
    at: TaggedState,
    tool: String,
    parameters: Vec<String>, // parameters so far
}

#[derive(Clone, Debug)]
enum TaggedState {
    Name { held: String },
    Between { held: String },
    Key { held: String },
    Value { key: String, held: String, mode: Mode, first: bool, end: &'static str },
}

/// Mode of emitting a value.
#[derive(Clone, Debug)]
enum Mode {
    AsItComes,
    /// Start of a string, where a section may begin.
    Start,
    /// At the end. Within a JSON string the end tag is text.
    Whole {
        may_be_text: bool,
        json: Option<Json>,
    },
}

impl TaggedReader {
    /// Starts right after the tag that begins the call.
    pub(crate) fn new(tags: &'static Tags) -> TaggedReader {
        TaggedReader {
            tags,
            at: TaggedState::Name { held: String::new() },
            tool: String::new(),
            parameters: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, c: char, known: KnownTools, sink: &mut Sink) -> ReadStep {
        let tags = self.tags;
        match &mut self.at {
            TaggedState::Name { .. } => self.name(c, known, sink),
            TaggedState::Between { held } => {
                if held.is_empty() && c.is_whitespace() {
                    return ReadStep::More;
                }
                held.push(c);
                if held == tags.parameter {
                    self.at = TaggedState::Key { held: String::new() };
                    return ReadStep::More;
                }
                if held == tags.end {
                    sink.arguments(if self.parameters.is_empty() { "{}" } else { "}" });
                    sink.end();
                    return ReadStep::Done;
                }
                match tags.parameter.starts_with(held.as_str()) || tags.end.starts_with(held.as_str()) {
                    true => ReadStep::More,
                    false => ReadStep::Fail,
                }
            }
            TaggedState::Key { held } => {
                // White space is allowed between two tags.
                if !(c.is_whitespace() && held.ends_with('>')) {
                    held.push(c);
                }
                let ends =
                    |(end, kind): &(&str, ValueType)| held.strip_suffix(end).map(|key| (key.trim(), *kind));
                match tags.value.iter().find_map(ends) {
                    None if held.len() > HEAD_CHARS_MAX => ReadStep::Fail,
                    None => ReadStep::More,
                    Some(("", _)) => ReadStep::Fail,
                    Some((key, kind)) => {
                        let key = key.to_owned();
                        self.begin(key, kind, known, sink)
                    }
                }
            }
            TaggedState::Value { .. } => self.value(c, sink),
        }
    }

    /// Reads a character of the tool's name.
    fn name(&mut self, c: char, known: KnownTools, sink: &mut Sink) -> ReadStep {
        let TaggedState::Name { held } = &mut self.at else { return ReadStep::Fail };
        let tags = self.tags;
        held.push(c);
        let name = match tags.name_end {
            "" => {
                let ends = held.trim_start().find(|c: char| c.is_whitespace() || c == '<');
                ends.map(|_| held.trim_start().trim_end_matches(|c: char| c.is_whitespace() || c == '<'))
            }
            end => held.strip_suffix(end),
        };
        match name.map(str::trim) {
            None if held.len() > HEAD_CHARS_MAX => ReadStep::Fail,
            None => ReadStep::More,
            Some(name) if !known.has(name) => ReadStep::Fail,
            Some(name) => {
                self.tool = name.to_owned();
                sink.start(name, None);
                let held = if tags.name_end.is_empty() && c == '<' { "<" } else { "" };
                self.at = TaggedState::Between { held: held.to_owned() };
                ReadStep::More
            }
        }
    }

    /// Reads a character of a parameter's value.
    fn value(&mut self, c: char, sink: &mut Sink) -> ReadStep {
        let TaggedState::Value { key, held, mode, first, end } = &mut self.at else { return ReadStep::Fail };
        let tags = self.tags;
        held.push(c);
        if let (Mode::Start, Some([opens, closes])) = (&mode, tags.section) {
            if held == opens {
                held.clear();
                (*mode, *end) = (Mode::AsItComes, closes);
                return ReadStep::More;
            }
            if opens.starts_with(held.as_str()) {
                return ReadStep::More;
            }
            *mode = Mode::AsItComes;
        }
        if std::mem::take(first) && tags.breaks && c == '\n' {
            held.clear();
            return ReadStep::More;
        }
        if let Mode::Whole { json, .. } = mode {
            // None: the value has ended, or is no JSON.
            let goes_on = json.as_mut().is_some_and(|json| json.push(c, &mut String::new()) == Scan::Took);
            if !goes_on {
                *json = None;
            }
        }
        let is_inside = matches!(mode, Mode::Whole { json: Some(json), .. } if json.is_in_text());
        if let Some(value) = held.strip_suffix(*end).filter(|_| !is_inside) {
            let value = if tags.breaks { value.strip_suffix('\n').unwrap_or(value) } else { value };
            match mode {
                Mode::AsItComes | Mode::Start => sink.arguments(&(escaped(value) + "\"")),
                Mode::Whole { may_be_text, .. } => {
                    match (as_json(value), *may_be_text) {
                        (Some(json), _) => sink.arguments(&json),
                        (None, true) => sink.arguments(&format!("\"{}\"", escaped(value))),
                        (None, false) => return ReadStep::Fail,
                    };
                }
            }
            let key = std::mem::take(key);
            self.parameters.push(key);
            self.at = TaggedState::Between { held: String::new() };
            return ReadStep::More;
        }
        if matches!(mode, Mode::AsItComes) {
            let waits = waiting(held, end, tags.breaks);
            let certain = held.len() - waits;
            sink.arguments(&escaped(&held[..certain]));
            held.drain(..certain);
            return ReadStep::More;
        }
        if held.len() > VALUE_BYTES_MAX { ReadStep::Fail } else { ReadStep::More }
    }

    /// Emits an unfinished value as far as it is certain.
    pub(crate) fn cut(&self, sink: &mut Sink) {
        let TaggedState::Value { held, mode: Mode::Whole { may_be_text, json }, end, .. } = &self.at else {
            return;
        };
        let value = held[..held.len() - waiting(held, end, self.tags.breaks)].trim();
        let is_word = ["True", "False", "None"].iter().any(|word| word.starts_with(value));
        // With more characters, a number or a word may become a text.
        if *may_be_text && json.is_some() && !value.starts_with(['{', '[', '"']) {
            return;
        }
        match as_json(value) {
            Some(json) => sink.arguments(&json),
            None if json.is_some() => sink.arguments(value),
            None if *may_be_text && !is_word => sink.arguments(&format!("\"{}", escaped(value))),
            None => {}
        }
    }

    fn begin(&mut self, key: String, kind: ValueType, known: KnownTools, sink: &mut Sink) -> ReadStep {
        if self.parameters.contains(&key) {
            return ReadStep::Fail;
        }
        let tool = known.tool(&self.tool);
        let is_string = kind == ValueType::Text
            || kind == ValueType::Unsaid && tool.is_some_and(|tool| tool.is_string(&key));
        let may_be_text = tool.is_none_or(|tool| tool.may_be_string(&key)) || kind == ValueType::Unsaid;
        sink.arguments(if self.parameters.is_empty() { "{\"" } else { ", \"" });
        sink.arguments(&(escaped(&key) + if is_string { "\": \"" } else { "\": " }));
        let mode = if is_string && self.tags.section.is_some() {
            Mode::Start
        } else if is_string {
            Mode::AsItComes
        } else {
            Mode::Whole { may_be_text, json: Some(Json::default()) }
        };
        self.at =
            TaggedState::Value { key, held: String::new(), mode, first: true, end: self.tags.value_end };
        ReadStep::More
    }
}

/// Bytes at the end of a value that may be the start of its end tag.
fn waiting(held: &str, end: &str, breaks: bool) -> usize {
    let tag = (1..end.len().min(held.len() + 1))
        .rev()
        .find(|&n| end.is_char_boundary(n) && held.ends_with(&end[..n]));
    let tag = tag.unwrap_or(0);
    let breaks = breaks && held[..held.len() - tag].ends_with('\n');
    tag + usize::from(breaks)
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    text.chars().for_each(|c| escape(c, &mut out));
    out
}

/// Converts a value written as JSON or as a Python literal.
fn as_json(value: &str) -> Option<String> {
    let value = value.trim();
    let is_literal = value.starts_with(['[', '{']) || matches!(value, "True" | "False" | "None");
    whole(value).or_else(|| whole(&from_python(value)).filter(|_| is_literal))
}

/// Converts a Python literal to JSON. Anything else does not become valid JSON.
fn from_python(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    let mut rest = value;
    while let Some(c) = rest.chars().next() {
        if c == '\'' || c == '"' {
            let end = text_end(rest, c);
            let text = rest[1..end].replace("\\'", "'");
            let text = if c == '\'' { text.replace('"', "\\\"") } else { text };
            out.push('"');
            out.push_str(&text);
            out.push_str(if end < rest.len() { "\"" } else { "" });
            rest = rest.get(end + 1..).unwrap_or_default();
            continue;
        }
        let length = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let (word, after) = rest.split_at(length.max(c.len_utf8()));
        out.push_str(match word {
            "True" => "true",
            "False" => "false",
            "None" => "null",
            other => other,
        });
        rest = after;
    }
    out
}

/// Offset of the quote that ends a text, or the end of the text.
fn text_end(text: &str, quote: char) -> usize {
    let mut escaped = true;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at,
            _ => {}
        }
    }
    text.len()
}
