//! Readers of calls for each family, from the marker on. Every reader takes one character at a time, so that
//! the result does not depend on how the text was split.

pub(crate) mod head;
pub(crate) mod literal;
pub(crate) mod object;
pub(crate) mod tagged;

use crate::{piece::Sink, tools::Tool};

/// Result of a character in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadStep {
    /// The character belongs to the call.
    More,
    /// The character ends the call.
    Done,
    /// The call ended before the character.
    DoneBefore,
    /// The text is no call.
    Fail,
}

/// Tools that may be called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownTools<'a> {
    pub(crate) tools: &'a [Tool],
}

impl<'a> KnownTools<'a> {
    /// Returns the tool with that name.
    pub(crate) fn tool(&self, name: &str) -> Option<&'a Tool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    /// Returns true if a tool's name begins with `name`.
    pub(crate) fn may_begin(&self, name: &str) -> bool {
        self.tools.iter().any(|tool| tool.name.starts_with(name))
    }

    /// Returns true if there is a tool with that name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.tool(name).is_some()
    }
}

/// Reader of a call.
#[derive(Clone, Debug)]
pub(crate) enum CallReader {
    Object(object::Object),
    Head(head::Head),
    Tagged(tagged::TaggedReader),
    Literal(literal::Calls),
    /// Mistral's two forms begin alike. The next character decides between calls as JSON and a header.
    Mistral(Option<Box<CallReader>>),
    /// LFM2's two forms: Python calls, or JSON if its template or system prompt uses that.
    Lfm2(String, Option<Box<CallReader>>),
}

impl CallReader {
    pub(crate) fn push(&mut self, c: char, known: KnownTools, sink: &mut Sink) -> ReadStep {
        match self {
            CallReader::Object(object) => object.push(c, known, sink),
            CallReader::Head(head) => head.push(c, known, sink),
            CallReader::Tagged(tagged) => tagged.push(c, known, sink),
            CallReader::Literal(calls) => calls.push(c, known, sink),
            CallReader::Mistral(Some(reader)) | CallReader::Lfm2(_, Some(reader)) => {
                reader.push(c, known, sink)
            }
            CallReader::Lfm2(held, form @ None) => {
                held.push(c);
                let begun = held.trim_start();
                let of = match begun.trim_start_matches(['[', ' ', '\n']).chars().next() {
                    None => return ReadStep::More,
                    Some('{') => CallReader::Object(object::Object::new()),
                    Some(_) => CallReader::Literal(literal::Calls::new(&literal::BRACKETS)),
                };
                let (held, reader) = (std::mem::take(held), form.insert(Box::new(of)));
                for c in held.chars() {
                    let step = reader.push(c, known, sink);
                    if step != ReadStep::More {
                        return step;
                    }
                }
                ReadStep::More
            }
            CallReader::Mistral(None) if c.is_whitespace() => ReadStep::More,
            CallReader::Mistral(form @ None) => {
                let of = match c {
                    '[' | '{' => CallReader::Object(object::Object::new()),
                    _ => CallReader::Head(head::Head::new(&head::MISTRAL)),
                };
                form.insert(Box::new(of)).push(c, known, sink)
            }
        }
    }

    /// Ends the text. Returns true if everything read is complete calls.
    pub(crate) fn finish(&self) -> bool {
        match self {
            CallReader::Object(object) => object.is_between(),
            CallReader::Literal(calls) => calls.is_between(),
            CallReader::Mistral(Some(reader)) | CallReader::Lfm2(_, Some(reader)) => reader.finish(),
            CallReader::Head(_)
            | CallReader::Tagged(_)
            | CallReader::Mistral(None)
            | CallReader::Lfm2(_, None) => false,
        }
    }

    /// Ends the output within a call. Emits its name and arguments as far as known and not emitted yet.
    pub(crate) fn cut(&mut self, known: KnownTools, sink: &mut Sink) {
        match self {
            CallReader::Object(object) => object.cut(sink),
            CallReader::Head(head) => head.cut(known, sink),
            CallReader::Tagged(tagged) => tagged.cut(sink),
            CallReader::Literal(calls) => calls.cut(sink),
            CallReader::Mistral(Some(reader)) | CallReader::Lfm2(_, Some(reader)) => reader.cut(known, sink),
            CallReader::Mistral(None) | CallReader::Lfm2(_, None) => {}
        }
    }

    /// Returns true if the text, in which no call has begun, may continue as one.
    pub(crate) fn may_be_call(&self, known: KnownTools) -> bool {
        match self {
            CallReader::Object(object) => object.may_be_call(known),
            CallReader::Literal(calls) => calls.may_be_call(known),
            CallReader::Mistral(Some(reader)) | CallReader::Lfm2(_, Some(reader)) => {
                reader.may_be_call(known)
            }
            // Their marks occur nowhere else.
            CallReader::Head(_)
            | CallReader::Tagged(_)
            | CallReader::Mistral(None)
            | CallReader::Lfm2(_, None) => true,
        }
    }
}
