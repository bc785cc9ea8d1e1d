//! Readers of calls for each family, from the marker on. Every reader takes one character at a time, so that
//! the result does not depend on how the text was split.

pub(crate) mod head;
pub(crate) mod literal;
pub(crate) mod object;
pub(crate) mod tagged;

use crate::{piece::Sink, tools::Tool};

/// Result of a character in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
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
pub(crate) struct Known<'a> {
    pub(crate) tools: &'a [Tool],
}

impl<'a> Known<'a> {
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
pub(crate) enum Reader {
    Object(object::Object),
    Head(head::Head),
    Tagged(tagged::Tagged),
    Literal(literal::Calls),
    /// Mistral's two forms begin alike. The next character decides between calls as JSON and a header.
    Mistral(Option<Box<Reader>>),
    /// LFM2's two forms: Python calls, or JSON if its template or system prompt uses that.
    Lfm2(String, Option<Box<Reader>>),
}

impl Reader {
    pub(crate) fn push(&mut self, c: char, known: Known, sink: &mut Sink) -> Step {
        match self {
            Reader::Object(object) => object.push(c, known, sink),
            Reader::Head(head) => head.push(c, known, sink),
            Reader::Tagged(tagged) => tagged.push(c, known, sink),
            Reader::Literal(calls) => calls.push(c, known, sink),
            Reader::Mistral(Some(reader)) | Reader::Lfm2(_, Some(reader)) => reader.push(c, known, sink),
            Reader::Lfm2(held, form @ None) => {
                held.push(c);
                let begun = held.trim_start();
                let of = match begun.trim_start_matches(['[', ' ', '\n']).chars().next() {
                    None => return Step::More,
                    Some('{') => Reader::Object(object::Object::new()),
                    Some(_) => Reader::Literal(literal::Calls::new(&literal::BRACKETS)),
                };
                let (held, reader) = (std::mem::take(held), form.insert(Box::new(of)));
                for c in held.chars() {
                    let step = reader.push(c, known, sink);
                    if step != Step::More {
                        return step;
                    }
                }
                Step::More
            }
            Reader::Mistral(None) if c.is_whitespace() => Step::More,
            Reader::Mistral(form @ None) => {
                let of = match c {
                    '[' | '{' => Reader::Object(object::Object::new()),
                    _ => Reader::Head(head::Head::new(&head::MISTRAL)),
                };
                form.insert(Box::new(of)).push(c, known, sink)
            }
        }
    }

    /// Ends the text. Returns true if everything read is complete calls.
    pub(crate) fn finish(&self) -> bool {
        match self {
            Reader::Object(object) => object.is_between(),
            Reader::Literal(calls) => calls.is_between(),
            Reader::Mistral(Some(reader)) | Reader::Lfm2(_, Some(reader)) => reader.finish(),
            Reader::Head(_) | Reader::Tagged(_) | Reader::Mistral(None) | Reader::Lfm2(_, None) => false,
        }
    }

    /// Ends the output within a call. Emits its name and arguments as far as known and not emitted yet.
    pub(crate) fn cut(&mut self, known: Known, sink: &mut Sink) {
        match self {
            Reader::Object(object) => object.cut(sink),
            Reader::Head(head) => head.cut(known, sink),
            Reader::Tagged(tagged) => tagged.cut(sink),
            Reader::Literal(calls) => calls.cut(sink),
            Reader::Mistral(Some(reader)) | Reader::Lfm2(_, Some(reader)) => reader.cut(known, sink),
            Reader::Mistral(None) | Reader::Lfm2(_, None) => {}
        }
    }

    /// Returns true if the text, in which no call has begun, may continue as one.
    pub(crate) fn may_be_call(&self, known: Known) -> bool {
        match self {
            Reader::Object(object) => object.may_be_call(known),
            Reader::Literal(calls) => calls.may_be_call(known),
            Reader::Mistral(Some(reader)) | Reader::Lfm2(_, Some(reader)) => reader.may_be_call(known),
            // Their marks occur nowhere else.
            Reader::Head(_) | Reader::Tagged(_) | Reader::Mistral(None) | Reader::Lfm2(_, None) => true,
        }
    }
}
