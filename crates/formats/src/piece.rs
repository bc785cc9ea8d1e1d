//! Pieces of a streamed output, and the offsets in the output of their text.

use std::ops::Range;

/// Piece of output, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Text of the answer.
    Text(String),
    /// Text of the reasoning section.
    Reasoning(String),
    /// Start of a call.
    CallStart {
        /// Index of the call in this output, from 0.
        index: u32,
        /// Id written by the model, if its format has one before the arguments.
        id: Option<String>,
        /// Name of the tool.
        name: String,
    },
    /// Part of a call's arguments: JSON text.
    Arguments {
        /// Index of the call.
        index: u32,
        /// Text to append.
        delta: String,
    },
    /// End of a call. Its arguments are a complete JSON object.
    CallEnd {
        /// Index of the call.
        index: u32,
    },
    /// A call turned out to be none. All of its text follows as text.
    CallBroken {
        /// Index of the call. The next call has the next index.
        index: u32,
    },
}

/// Reason for the end of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The model ended it.
    Own,
    /// A limit such as `max_tokens` cut it.
    Cut,
}

/// Text, with the offset of its first byte in the output.
#[derive(Clone, Debug, Default)]
pub(crate) struct LocatedText {
    pub(crate) at: usize,
    pub(crate) text: String,
}

impl LocatedText {
    /// Empty text at an offset.
    pub(crate) fn at(at: usize) -> LocatedText {
        LocatedText { at, text: String::new() }
    }
}

/// Collects pieces and joins adjacent ones of the same kind.
#[derive(Debug, Default)]
pub(crate) struct Sink {
    pub(crate) pieces: Vec<Piece>,
    /// Ranges of the output that became text, in the order of the text.
    pub(crate) shown: Vec<Range<usize>>,
    next: u32,
    open: bool,
    ended: u32, // number of complete calls
}

impl Sink {
    /// Adds text. `at` is its offset in the output.
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

    /// Ends an open call that turned out to be none.
    pub(crate) fn give_up(&mut self) {
        if std::mem::take(&mut self.open) {
            self.pieces.push(Piece::CallBroken { index: self.next });
            self.next += 1;
        }
    }

    /// Returns true within a call.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// Number of complete calls so far.
    pub(crate) fn calls(&self) -> u32 {
        self.ended
    }
}
