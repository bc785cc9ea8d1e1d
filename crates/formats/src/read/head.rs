//! Calls whose name stands in a head of their own, with the arguments as a JSON object after it.

use super::{Known, Step};
use crate::{
    json::{Json, Scan},
    limits::HEAD_CHARS_MAX,
    piece::Sink,
};

/// The name and perhaps the id in a head, which is all between the marker and the first brace.
pub(crate) type ReadHead = fn(&str) -> Option<(String, Option<String>)>;

/// One call.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    read: ReadHead,
    head: String,
    arguments: Option<Json>,
}

impl Head {
    /// Right after the marker.
    pub(crate) fn new(read: ReadHead) -> Head {
        Head { read, head: String::new(), arguments: None }
    }

    pub(crate) fn push(&mut self, c: char, known: Known, sink: &mut Sink) -> Step {
        if self.arguments.is_none() {
            if c != '{' {
                self.head.push(c);
                return if self.head.len() > HEAD_CHARS_MAX { Step::Fail } else { Step::More };
            }
            let Some((name, id)) = (self.read)(&self.head).filter(|(name, _)| known.has(name)) else {
                return Step::Fail;
            };
            sink.start(&name, id);
        }
        let mut out = String::new();
        let scan = self.arguments.get_or_insert_default().push(c, &mut out);
        sink.arguments(&out);
        match scan {
            Scan::Took => Step::More,
            Scan::Ended => {
                sink.end();
                Step::Done
            }
            Scan::EndedBefore | Scan::Bad => Step::Fail,
        }
    }
}

fn named(name: &str, id: Option<&str>) -> Option<(String, Option<String>)> {
    let name = name.trim();
    (!name.is_empty())
        .then(|| (name.to_owned(), id.map(|id| id.trim().to_owned()).filter(|id| !id.is_empty())))
}

/// `name>` as in `<function=name>{…}`.
pub(crate) fn closed(head: &str) -> Option<(String, Option<String>)> {
    named(head.trim_end().strip_suffix('>')?, None)
}

/// Mistral's `name[ARGS]`, `name[CALL_ID]id[ARGS]`.
pub(crate) fn mistral(head: &str) -> Option<(String, Option<String>)> {
    let head = head.trim_end();
    let head = head.strip_suffix("[ARGS]").unwrap_or(head);
    match head.split_once("[CALL_ID]") {
        Some((name, id)) => named(name, Some(id)),
        None => named(head, None),
    }
}

/// DeepSeek's `function<｜tool▁sep｜>name\n```json\n`, and the later `name<｜tool▁sep｜>`.
pub(crate) fn deepseek(head: &str) -> Option<(String, Option<String>)> {
    let (first, rest) = head.split_once("<｜tool▁sep｜>")?;
    match rest.trim() {
        "" => named(first, None),
        rest if first.trim() == "function" => named(rest.strip_suffix("```json").unwrap_or(rest), None),
        _ => None,
    }
}

/// Kimi's `functions.name:0<|tool_call_argument_begin|>`: the id is all of it.
pub(crate) fn kimi(head: &str) -> Option<(String, Option<String>)> {
    let id = head.trim_end().strip_suffix("<|tool_call_argument_begin|>")?.trim();
    let name = id.rsplit_once(':').map_or(id, |(name, _)| name);
    named(name.strip_prefix("functions.").unwrap_or(name), Some(id))
}
