//! Pieces of a model's output as it streams, and the places in the output that its text came from.

use std::ops::Range;

/// A piece of output, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Text of the answer.
    Text(String),
    /// Text of the reasoning section.
    Reasoning(String),
    /// A call begins.
    CallStart {
        /// Counted from 0 in this output.
        index: u32,
        /// The model's own, where its format has one before the arguments.
        id: Option<String>,
        /// The tool.
        name: String,
    },
    /// More of a call's arguments: JSON text.
    Arguments {
        /// Of the call.
        index: u32,
        /// Appended to what came before.
        delta: String,
    },
    /// The call is whole: its arguments are a JSON object.
    CallEnd {
        /// Of the call.
        index: u32,
    },
    /// A call that had begun turned out to be none. All that was written of it follows as text.
    CallBroken {
        /// Of the call; the next that begins has the next index.
        index: u32,
    },
}

/// Reason that an output has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The model ended it.
    Own,
    /// A limit ended it where it stood, such as `max_tokens`.
    Cut,
}

/// Text with its first byte's place in the output.
#[derive(Clone, Debug, Default)]
pub(crate) struct LocatedText {
    pub(crate) at: usize,
    pub(crate) text: String,
}

impl LocatedText {
    /// No text, at a place.
    pub(crate) fn at(at: usize) -> LocatedText {
        LocatedText { at, text: String::new() }
    }
}

/// Collects pieces and joins neighbours of a kind.
#[derive(Debug, Default)]
pub(crate) struct Sink {
    pub(crate) pieces: Vec<Piece>,
    /// Places in the output of the bytes that became text, in the order of the text.
    pub(crate) shown: Vec<Range<usize>>,
    next: u32,
    open: bool,
    ended: u32, // whole calls
}

impl Sink {
    /// Adds text that stands at a place of the output.
    pub(crate) fn text(&mut self, at: usize, more: &str) {
        match self.shown.last_mut() {
            _ if more.is_empty() => {}
            Some(last) if last.end == at => last.end += more.len(),
            _ => self.shown.push(at..at + more.len()),
        }
        match self.pieces.last_mut() {
            _ if more.is_empty() => {}
            Some(Piece::Text(text)) => text.push_str(more),
            _ => self.pieces.push(Piece::Text(more.to_owned())),
        }
    }

    pub(crate) fn reasoning(&mut self, more: &str) {
        match self.pieces.last_mut() {
            _ if more.is_empty() => {}
            Some(Piece::Reasoning(text)) => text.push_str(more),
            _ => self.pieces.push(Piece::Reasoning(more.to_owned())),
        }
    }

    pub(crate) fn start(&mut self, name: &str, id: Option<String>) {
        self.pieces.push(Piece::CallStart { index: self.next, id, name: name.to_owned() });
        self.open = true;
    }

    pub(crate) fn arguments(&mut self, more: &str) {
        match self.pieces.last_mut() {
            _ if more.is_empty() => {}
            Some(Piece::Arguments { delta, .. }) => delta.push_str(more),
            _ => self.pieces.push(Piece::Arguments { index: self.next, delta: more.to_owned() }),
        }
    }

    pub(crate) fn end(&mut self) {
        self.pieces.push(Piece::CallEnd { index: self.next });
        self.open = false;
        self.next += 1;
        self.ended += 1;
    }

    /// Ends a call that is none, if one is open.
    pub(crate) fn give_up(&mut self) {
        if std::mem::take(&mut self.open) {
            self.pieces.push(Piece::CallBroken { index: self.next });
            self.next += 1;
        }
    }

    /// Whether a call has begun and is not whole.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// Whole calls so far.
    pub(crate) fn calls(&self) -> u32 {
        self.ended
    }
}
