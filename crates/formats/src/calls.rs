//! Finds the calls in an answer: text is looked through for the markers that begin one, which is then read by its
//! family's reader. What turns out to be no call is text again, from its marker on.

use crate::{
    format::Syntax,
    piece::Sink,
    read::{Known, Reader, Step},
};

/// An answer in the middle of being read.
#[derive(Clone, Debug)]
pub(crate) struct Calls {
    syntax: &'static Syntax,
    state: State,
    /// White space, and marks that mean nothing alone, that may stand before a call.
    gap: String,
    /// Text was told.
    said: bool,
    /// A call ended, and no text came since.
    after_call: bool,
}

#[derive(Clone, Debug)]
enum State {
    /// Text. Held back: what may be the beginning of a marker.
    Text { held: String },
    /// A call, and all that was written of it since its marker, or since the last call that ended in it.
    Call { reader: Box<Reader>, raw: String, ended: u32 },
}

impl Calls {
    pub(crate) fn new(syntax: &'static Syntax) -> Calls {
        Calls {
            syntax,
            state: State::Text { held: String::new() },
            gap: String::new(),
            said: false,
            after_call: false,
        }
    }

    pub(crate) fn push(&mut self, text: &str, known: Known, sink: &mut Sink) {
        text.chars().for_each(|c| self.character(c, known, sink));
    }

    fn character(&mut self, c: char, known: Known, sink: &mut Sink) {
        match &mut self.state {
            State::Text { held } if held.is_empty() && !self.syntax.may_begin(c) => self.plain(c, sink),
            State::Text { held } => {
                held.push(c);
                self.look(known, sink);
            }
            State::Call { reader, raw, ended } => {
                raw.push(c);
                let step = reader.push(c, known, sink);
                if sink.calls() > *ended {
                    *ended = sink.calls();
                    raw.clear();
                    self.gap.clear();
                    self.after_call = true;
                }
                match step {
                    Step::More => {}
                    Step::Done => self.state = State::Text { held: String::new() },
                    Step::DoneBefore => {
                        self.state = State::Text { held: String::new() };
                        self.character(c, known, sink);
                    }
                    Step::Fail => {
                        let mut raw = std::mem::take(raw);
                        raw.pop();
                        self.state = State::Text { held: String::new() };
                        sink.give_up();
                        self.is_text(&raw, sink);
                        // It may begin another.
                        self.character(c, known, sink);
                    }
                }
            }
        }
    }

    /// Decides on what is held, as far as that is possible.
    fn look(&mut self, known: Known, sink: &mut Sink) {
        loop {
            let State::Text { held } = &mut self.state else { return };
            let Some(first) = held.chars().next() else { return };
            if let Some((marker, begin)) = self.syntax.openers.iter().find(|(marker, _)| held == marker) {
                let raw = (*marker).to_owned();
                let (reader, ended) = (Box::new(begin()), sink.calls());
                self.state = State::Call { reader, raw, ended };
                return;
            }
            let longer = |marker: &str| marker.len() > held.len() && marker.starts_with(held.as_str());
            if self.syntax.markers().any(longer) {
                return;
            }
            // The longest mark that it begins with; what stands behind is looked at again.
            let marks = self.syntax.marks.iter().filter(|mark| held.starts_with(**mark));
            if let Some(mark) = marks.max_by_key(|mark| mark.len()) {
                if !self.after_call {
                    self.gap.push_str(mark);
                }
                let rest = held.split_off(mark.len());
                held.clear();
                rest.chars().for_each(|c| self.character(c, known, sink));
                return;
            }
            if let Some((bare, begin)) = self.syntax.bare
                && bare == first
                && !self.said
            {
                let rest = std::mem::take(held);
                let ended = sink.calls();
                self.state = State::Call { reader: Box::new(begin()), raw: String::new(), ended };
                // One character begins no marker, so this is all of it.
                rest.chars().for_each(|c| self.character(c, known, sink));
                return;
            }
            held.remove(0);
            self.plain(first, sink);
        }
    }

    /// A character that begins no call.
    fn plain(&mut self, c: char, sink: &mut Sink) {
        if c.is_whitespace() {
            self.gap.push(c);
        } else {
            self.is_text(c.encode_utf8(&mut [0; 4]), sink);
        }
    }

    fn is_text(&mut self, text: &str, sink: &mut Sink) {
        if !text.is_empty() {
            sink.text(&std::mem::take(&mut self.gap));
            sink.text(text);
            (self.said, self.after_call) = (true, false);
        }
    }

    pub(crate) fn finish(&mut self, sink: &mut Sink) {
        match std::mem::replace(&mut self.state, State::Text { held: String::new() }) {
            // Half a mark behind a call means no more than the whole.
            State::Text { held }
                if self.after_call && self.syntax.marks.iter().any(|mark| mark.starts_with(&held)) => {}
            State::Text { held } => self.is_text(&held, sink),
            State::Call { reader, .. } if reader.finish() => {}
            State::Call { raw, .. } => {
                sink.give_up();
                self.is_text(&raw, sink);
            }
        }
        // Beside calls, space is nothing; alone, it is what was said.
        if !self.after_call {
            sink.text(&std::mem::take(&mut self.gap));
        }
    }
}
