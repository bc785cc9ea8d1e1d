//! Calls with the name in a header, followed by the arguments as a JSON object.

use super::{KnownTools, ReadStep};
use crate::{
    json::{Json, Scan},
    limits::HEAD_CHARS_MAX,
    piece::Sink,
};

/// Name and optional id of a call.
type Named = Option<(String, Option<String>)>;

/// Form of a family's header, which is all text between the marker and the first brace.
#[derive(Debug)]
pub(crate) struct HeadForm {
    /// Parses the name and the id of a complete header.
    read: fn(&str) -> Named,
    /// Parses the name in an incomplete header. None if the name may continue.
    name: fn(&str) -> Option<&str>,
}

/// `<function=name>{…}`
pub(crate) static CLOSED: HeadForm =
    HeadForm { read: closed, name: |head| head.split_once('>').map(|(name, _)| name) };
/// Name on its own line.
pub(crate) static LINE: HeadForm =
    HeadForm { read: |head| named(head, None), name: |head| head.split_once('\n').map(|(name, _)| name) };
/// Solar Open: an id from the model before the name.
pub(crate) static SOLAR_OPEN: HeadForm = HeadForm {
    read: solar_open,
    name: |head| {
        let (_, name) = head.split_once("<|tool_call:name|>")?;
        name.split_once('<').map(|(name, _)| name)
    },
};
/// Mistral: `[CALL_ID]` and `[ARGS]` after the name.
pub(crate) static MISTRAL: HeadForm =
    HeadForm { read: mistral, name: |head| head.split_once('[').map(|(name, _)| name) };
/// DeepSeek: the name before the separator, or on the line after it.
pub(crate) static DEEPSEEK: HeadForm = HeadForm {
    read: deepseek,
    name: |head| match head.split_once("<｜tool▁sep｜>")? {
        (first, rest) if first.trim() == "function" => rest.split_once('\n').map(|(name, _)| name),
        (first, _) => Some(first),
    },
};
/// Kimi: the name within the id.
pub(crate) static KIMI: HeadForm = HeadForm {
    read: kimi,
    name: |head| {
        let id = head.split_once('<').map_or(head, |(id, _)| id);
        let (name, _) = id.trim().rsplit_once(':')?;
        Some(name.strip_prefix("functions.").unwrap_or(name))
    },
};

/// Reader of a call.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    form: &'static HeadForm,
    head: String,
    arguments: Option<Json>,
}

impl Head {
    /// Starts right after the marker.
    pub(crate) fn new(form: &'static HeadForm) -> Head {
        Head { form, head: String::new(), arguments: None }
    }

    pub(crate) fn push(&mut self, c: char, known: KnownTools, sink: &mut Sink) -> ReadStep {
        if self.arguments.is_none() {
            if c != '{' {
                self.head.push(c);
                return if self.head.len() > HEAD_CHARS_MAX { ReadStep::Fail } else { ReadStep::More };
            }
            let Some((name, id)) = (self.form.read)(&self.head).filter(|(name, _)| known.has(name)) else {
                return ReadStep::Fail;
            };
            sink.start(&name, id);
        }
        let mut out = String::new();
        let scan = self.arguments.get_or_insert_default().push(c, &mut out);
        sink.arguments(&out);
        match scan {
            Scan::Took => ReadStep::More,
            Scan::Ended => {
                sink.end();
                ReadStep::Done
            }
            Scan::EndedBefore | Scan::Bad => ReadStep::Fail,
        }
    }

    /// Begins the call if its name is known and its arguments have not begun.
    pub(crate) fn cut(&self, known: KnownTools, sink: &mut Sink) {
        let name = (self.form.name)(&self.head).map(str::trim).filter(|name| known.has(name));
        if let Some(name) = name.filter(|_| self.arguments.is_none()) {
            sink.start(name, None);
        }
    }
}

fn named(name: &str, id: Option<&str>) -> Named {
    let name = name.trim();
    (!name.is_empty())
        .then(|| (name.to_owned(), id.map(|id| id.trim().to_owned()).filter(|id| !id.is_empty())))
}

/// `name>` as in `<function=name>{…}`.
fn closed(head: &str) -> Named {
    named(head.trim_end().strip_suffix('>')?, None)
}

/// Mistral's `name[ARGS]`, `name[CALL_ID]id[ARGS]`.
fn mistral(head: &str) -> Named {
    let head = head.trim_end();
    let head = head.strip_suffix("[ARGS]").unwrap_or(head);
    match head.split_once("[CALL_ID]") {
        Some((name, id)) => named(name, Some(id)),
        None => named(head, None),
    }
}

/// DeepSeek's `function<｜tool▁sep｜>name\n```json\n`, and the later `name<｜tool▁sep｜>`.
fn deepseek(head: &str) -> Named {
    let (first, rest) = head.split_once("<｜tool▁sep｜>")?;
    match rest.trim() {
        "" => named(first, None),
        rest if first.trim() == "function" => named(rest.strip_suffix("```json").unwrap_or(rest), None),
        _ => None,
    }
}

/// Kimi's `functions.name:0<|tool_call_argument_begin|>`. All of it is the id.
fn kimi(head: &str) -> Named {
    let id = head.trim_end().strip_suffix("<|tool_call_argument_begin|>")?.trim();
    let name = id.rsplit_once(':').map_or(id, |(name, _)| name);
    named(name.strip_prefix("functions.").unwrap_or(name), Some(id))
}

/// Solar Open's `id<|tool_call:name|>name<|tool_call:args|>`.
fn solar_open(head: &str) -> Named {
    let (id, name) = head.split_once("<|tool_call:name|>")?;
    named(name.trim_end().strip_suffix("<|tool_call:args|>")?, Some(id))
}
