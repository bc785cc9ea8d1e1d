//! Finds the calls in an answer: text is looked through for the markers that begin one, which is then read by its
//! family's reader. What turns out to be no call is text again, from its marker on.

use crate::{
    format::Syntax,
    piece::{End, LocatedText, Sink},
    read::{Known, Reader, Step},
};

/// An answer in the middle of being read.
#[derive(Clone, Debug)]
pub(crate) struct Calls {
    syntax: &'static Syntax,
    state: State,
    /// White space, and marks that mean nothing alone, that may stand before a call.
    gap: Vec<LocatedText>,
    /// Text was told.
    said: bool,
    /// A call ended, and no text came since.
    after_call: bool,
}

#[derive(Clone, Debug)]
enum State {
    /// Text. Held back: the possible beginning of a marker.
    Text { held: LocatedText },
    /// A call, and all that was written of it since its marker, or since the last call that ended in it.
    Call { reader: Box<Reader>, raw: LocatedText, ended: u32 },
}

/// Text at the beginning of an answer whose calls begin with a name on a line.
enum FirstLine {
    /// The name of a tool, a line break and a brace.
    Name,
    /// A piece of that.
    MayBeName,
    Other,
}

fn first_line(text: &str, known: Known) -> FirstLine {
    let of = |name: &str| match text.strip_prefix(name) {
        None if name.starts_with(text) => FirstLine::MayBeName,
        None => FirstLine::Other,
        Some("") => FirstLine::MayBeName,
        Some(rest) if !rest.starts_with('\n') => FirstLine::Other,
        Some(rest) => match rest.trim_start() {
            "" => FirstLine::MayBeName,
            "{" => FirstLine::Name,
            _ => FirstLine::Other,
        },
    };
    let mut all = known.tools.iter().map(|tool| of(&tool.name));
    let found = all.find(|found| !matches!(found, FirstLine::Other));
    found.unwrap_or(FirstLine::Other)
}

impl State {
    fn text() -> State {
        State::Text { held: LocatedText::default() }
    }
}

impl Calls {
    pub(crate) fn new(syntax: &'static Syntax) -> Calls {
        Calls { syntax, state: State::text(), gap: Vec::new(), said: false, after_call: false }
    }

    /// Reads text whose first byte stands at a place of the output.
    pub(crate) fn push(&mut self, at: usize, text: &str, known: Known, sink: &mut Sink) {
        text.char_indices().for_each(|(offset, c)| self.character(c, at + offset, known, sink));
    }

    /// The place in the output before which nothing can become text any more, unless text behind it does too, of an output of
    /// which `read` bytes were read.
    pub(crate) fn settled(&self, read: usize) -> usize {
        match (&self.state, self.gap.first()) {
            // The gap before a call is text where the call is.
            (State::Call { raw, .. }, _) => raw.at,
            (State::Text { .. }, Some(gap)) => gap.at,
            (State::Text { held }, None) if held.text.is_empty() => read,
            (State::Text { held }, None) => held.at,
        }
    }

    fn character(&mut self, c: char, at: usize, known: Known, sink: &mut Sink) {
        match &mut self.state {
            State::Text { held }
                if held.text.is_empty()
                    && !self.syntax.may_begin(c)
                    && (self.said || self.syntax.named.is_none() || !known.may_begin(&c.to_string())) =>
            {
                self.plain(c, at, sink);
            }
            State::Text { held } => {
                if held.text.is_empty() {
                    held.at = at;
                }
                held.text.push(c);
                self.look(known, sink);
            }
            State::Call { reader, raw, ended } => {
                raw.text.push(c);
                let step = reader.push(c, known, sink);
                if sink.calls() > *ended {
                    *ended = sink.calls();
                    *raw = LocatedText::at(at + c.len_utf8());
                    self.gap.clear();
                    self.after_call = true;
                }
                match step {
                    Step::More => {}
                    Step::Done => self.state = State::text(),
                    Step::DoneBefore => {
                        self.state = State::text();
                        self.character(c, at, known, sink);
                    }
                    Step::Fail => {
                        let mut raw = std::mem::take(raw);
                        raw.text.pop();
                        self.state = State::text();
                        sink.give_up();
                        self.is_text(&raw, sink);
                        // It may begin another.
                        self.character(c, at, known, sink);
                    }
                }
            }
        }
    }

    /// Decides on what is held, as far as that is possible.
    fn look(&mut self, known: Known, sink: &mut Sink) {
        loop {
            let State::Text { held } = &mut self.state else { return };
            let Some(first) = held.text.chars().next() else { return };
            if let Some((_, begin)) = self.syntax.openers.iter().find(|(marker, _)| held.text == *marker) {
                let (reader, raw) = (Box::new(begin()), std::mem::take(held));
                self.state = State::Call { reader, raw, ended: sink.calls() };
                return;
            }
            if let Some(begin) = self.syntax.named.filter(|_| !self.said) {
                match first_line(&held.text, known) {
                    FirstLine::Name => {
                        let LocatedText { at, text } = std::mem::take(held);
                        let (reader, raw) = (Box::new(begin()), LocatedText::at(at));
                        self.state = State::Call { reader, raw, ended: sink.calls() };
                        self.push(at, &text, known, sink);
                        return;
                    }
                    FirstLine::MayBeName => return,
                    FirstLine::Other => {}
                }
            }
            let longer =
                |marker: &str| marker.len() > held.text.len() && marker.starts_with(held.text.as_str());
            if self.syntax.markers().any(longer) {
                return;
            }
            // The longest mark that it begins with; what stands behind is looked at again.
            let marks = self.syntax.marks.iter().filter(|mark| held.text.starts_with(**mark));
            if let Some(mark) = marks.max_by_key(|mark| mark.len()) {
                let LocatedText { at, text } = std::mem::take(held);
                if !self.after_call {
                    self.add_to_gap(at, mark);
                }
                self.push(at + mark.len(), &text[mark.len()..], known, sink);
                return;
            }
            if let Some((bare, begin)) = self.syntax.bare
                && bare == first
                && !self.said
            {
                let LocatedText { at, text } = std::mem::take(held);
                let (reader, raw) = (Box::new(begin()), LocatedText::at(at));
                self.state = State::Call { reader, raw, ended: sink.calls() };
                // One character begins no marker, so this is all of it.
                self.push(at, &text, known, sink);
                return;
            }
            held.text.remove(0);
            let at = held.at;
            held.at += first.len_utf8();
            self.plain(first, at, sink);
        }
    }

    /// A character that begins no call.
    fn plain(&mut self, c: char, at: usize, sink: &mut Sink) {
        let text = String::from(c);
        if c.is_whitespace() {
            self.add_to_gap(at, &text);
        } else {
            self.is_text(&LocatedText { at, text }, sink);
        }
    }

    fn add_to_gap(&mut self, at: usize, text: &str) {
        match self.gap.last_mut() {
            Some(last) if last.at + last.text.len() == at => last.text.push_str(text),
            _ => self.gap.push(LocatedText { at, text: text.to_owned() }),
        }
    }

    fn tell_gap(&mut self, sink: &mut Sink) {
        self.gap.drain(..).for_each(|gap| sink.text(gap.at, &gap.text));
    }

    fn is_text(&mut self, written: &LocatedText, sink: &mut Sink) {
        if !written.text.is_empty() {
            self.tell_gap(sink);
            sink.text(written.at, &written.text);
            (self.said, self.after_call) = (true, false);
        }
    }

    /// The output has ended. A call that has begun stays one, with the arguments so far. Of a call that has not begun, an
    /// output that was cut shows nothing.
    pub(crate) fn finish(&mut self, end: End, known: Known, sink: &mut Sink) {
        let cut = end == End::Cut;
        match std::mem::replace(&mut self.state, State::text()) {
            // Half a mark behind a call means no more than the whole.
            State::Text { held }
                if self.after_call && self.syntax.marks.iter().any(|mark| mark.starts_with(&held.text)) => {}
            State::Text { held } if cut && self.is_markup(&held.text) => self.gap.clear(),
            State::Text { held } if cut && self.may_be_named(&held.text, known) => {
                // The whole name on its line begins the call.
                if held.text.contains('\n') {
                    sink.start(held.text.trim(), None);
                }
                self.gap.clear();
            }
            State::Text { held } => self.is_text(&held, sink),
            State::Call { reader, .. } if reader.finish() => {}
            State::Call { mut reader, raw, .. } => {
                if cut || sink.is_open() {
                    reader.cut(known, sink);
                }
                if sink.is_open() || cut && (self.after_call || reader.may_be_call(known)) {
                    self.gap.clear();
                } else {
                    self.is_text(&raw, sink);
                }
            }
        }
        // Marks that were to begin a call mean nothing without it.
        if cut && self.gap.iter().any(|gap| gap.text.contains('<')) {
            self.gap.clear();
        }
        // Beside calls, space is nothing; alone, it is what was said.
        if !self.after_call {
            self.tell_gap(sink);
        }
    }

    /// Whether a text is a piece of what begins a call with a name.
    fn may_be_named(&self, text: &str, known: Known) -> bool {
        let is_open = self.syntax.named.is_some() && !self.said && !text.is_empty();
        is_open && matches!(first_line(text, known), FirstLine::MayBeName)
    }

    /// Whether a text is the beginning of a mark that stands before a call.
    fn is_markup(&self, text: &str) -> bool {
        let openers = self.syntax.openers.iter().map(|(marker, _)| *marker);
        let marks = self.syntax.marks.iter().copied().filter(|mark| mark.starts_with('<'));
        !text.is_empty() && openers.chain(marks).any(|mark| mark.starts_with(text))
    }
}
