//! Streaming detection of tool calls in an answer. The text is searched for the marker that begins a call,
//! which the family's reader then parses. Text that turns out to be no call becomes text again, from its marker
//! on.

use crate::{
    format::Syntax,
    piece::{End, LocatedText, Sink},
    read::{CallReader, KnownTools, ReadStep},
};

/// State of parsing an answer.
#[derive(Clone, Debug)]
pub(crate) struct Calls {
    syntax: &'static Syntax,
    state: CallsState,
    /// White space and insignificant marks that may precede a call.
    gap: Vec<LocatedText>,
    /// True if text was emitted.
    said: bool,
    /// True if a call ended and no text followed.
    after_call: bool,
}

#[derive(Clone, Debug)]
enum CallsState {
    /// Text. `held` may be the start of a marker.
    Text { held: LocatedText },
    /// A call. `raw` is its text since the marker, or since the last call that ended in it.
    Call { reader: Box<CallReader>, raw: LocatedText, ended: u32 },
}

/// First line of an answer in a format whose calls begin with a name on a line.
enum FirstLine {
    /// Name of a tool, a line break and a brace.
    Name,
    /// Prefix of such a line.
    MayBeName,
    Other,
}

fn first_line(text: &str, known: KnownTools) -> FirstLine {
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

impl CallsState {
    fn text() -> CallsState {
        CallsState::Text { held: LocatedText::default() }
    }
}

impl Calls {
    pub(crate) fn new(syntax: &'static Syntax) -> Calls {
        Calls { syntax, state: CallsState::text(), gap: Vec::new(), said: false, after_call: false }
    }

    /// Parses text. `at` is the offset of its first byte in the output.
    pub(crate) fn push(&mut self, at: usize, text: &str, known: KnownTools, sink: &mut Sink) {
        text.char_indices().for_each(|(offset, c)| self.character(c, at + offset, known, sink));
    }

    /// Offset in the output before which nothing can become text any more, unless later text does too. `read`
    /// is the number of bytes read so far.
    pub(crate) fn settled(&self, read: usize) -> usize {
        match (&self.state, self.gap.first()) {
            // If the call fails, the gap before it becomes text as well.
            (CallsState::Call { raw, .. }, _) => raw.at,
            (CallsState::Text { .. }, Some(gap)) => gap.at,
            (CallsState::Text { held }, None) if held.text.is_empty() => read,
            (CallsState::Text { held }, None) => held.at,
        }
    }

    fn character(&mut self, c: char, at: usize, known: KnownTools, sink: &mut Sink) {
        match &mut self.state {
            CallsState::Text { held }
                if held.text.is_empty()
                    && !self.syntax.may_begin(c)
                    && (self.said || self.syntax.named.is_none() || !known.may_begin(&c.to_string())) =>
            {
                self.plain(c, at, sink);
            }
            CallsState::Text { held } => {
                if held.text.is_empty() {
                    held.at = at;
                }
                held.text.push(c);
                self.look(known, sink);
            }
            CallsState::Call { reader, raw, ended } => {
                raw.text.push(c);
                let step = reader.push(c, known, sink);
                if sink.calls() > *ended {
                    *ended = sink.calls();
                    *raw = LocatedText::at(at + c.len_utf8());
                    self.gap.clear();
                    self.after_call = true;
                }
                match step {
                    ReadStep::More => {}
                    ReadStep::Done => self.state = CallsState::text(),
                    ReadStep::DoneBefore => {
                        self.state = CallsState::text();
                        self.character(c, at, known, sink);
                    }
                    ReadStep::Fail => {
                        let mut raw = std::mem::take(raw);
                        raw.text.pop();
                        self.state = CallsState::text();
                        sink.give_up();
                        self.is_text(&raw, sink);
                        // The character may begin another call.
                        self.character(c, at, known, sink);
                    }
                }
            }
        }
    }

    /// Decides about the held text, as far as possible.
    fn look(&mut self, known: KnownTools, sink: &mut Sink) {
        loop {
            let CallsState::Text { held } = &mut self.state else { return };
            let Some(first) = held.text.chars().next() else { return };
            if let Some((_, begin)) = self.syntax.openers.iter().find(|(marker, _)| held.text == *marker) {
                let (reader, raw) = (Box::new(begin()), std::mem::take(held));
                self.state = CallsState::Call { reader, raw, ended: sink.calls() };
                return;
            }
            if let Some(begin) = self.syntax.named.filter(|_| !self.said) {
                match first_line(&held.text, known) {
                    FirstLine::Name => {
                        let LocatedText { at, text } = std::mem::take(held);
                        let (reader, raw) = (Box::new(begin()), LocatedText::at(at));
                        self.state = CallsState::Call { reader, raw, ended: sink.calls() };
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
            // Take the longest mark. The text after it is examined again.
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
                self.state = CallsState::Call { reader, raw, ended: sink.calls() };
                // No marker begins with a single held character, so this is all of it.
                self.push(at, &text, known, sink);
                return;
            }
            held.text.remove(0);
            let at = held.at;
            held.at += first.len_utf8();
            self.plain(first, at, sink);
        }
    }

    /// Handles a character that begins no call.
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

    /// Ends the output. A call that has begun remains one, with its arguments so far. If the output was cut,
    /// the markup of a call that has not begun is dropped.
    pub(crate) fn finish(&mut self, end: End, known: KnownTools, sink: &mut Sink) {
        let cut = end == End::Cut;
        match std::mem::replace(&mut self.state, CallsState::text()) {
            // A partial mark after a call is as insignificant as the whole mark.
            CallsState::Text { held }
                if self.after_call && self.syntax.marks.iter().any(|mark| mark.starts_with(&held.text)) => {}
            CallsState::Text { held } if cut && self.is_markup(&held.text) => self.gap.clear(),
            CallsState::Text { held } if cut && self.may_be_named(&held.text, known) => {
                // A complete name on its line begins the call.
                if held.text.contains('\n') {
                    sink.start(held.text.trim(), None);
                }
                self.gap.clear();
            }
            CallsState::Text { held } => self.is_text(&held, sink),
            CallsState::Call { reader, .. } if reader.finish() => {}
            CallsState::Call { mut reader, raw, .. } => {
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
        // Marks for a call are insignificant if no call follows.
        if cut && self.gap.iter().any(|gap| gap.text.contains('<')) {
            self.gap.clear();
        }
        // White space next to calls is insignificant. Otherwise it is part of the answer.
        if !self.after_call {
            self.tell_gap(sink);
        }
    }

    /// Returns true if the text is a prefix of a call that begins with a name.
    fn may_be_named(&self, text: &str, known: KnownTools) -> bool {
        let is_open = self.syntax.named.is_some() && !self.said && !text.is_empty();
        is_open && matches!(first_line(text, known), FirstLine::MayBeName)
    }

    /// Returns true if the text is a prefix of a mark that precedes a call.
    fn is_markup(&self, text: &str) -> bool {
        let openers = self.syntax.openers.iter().map(|(marker, _)| *marker);
        let marks = self.syntax.marks.iter().copied().filter(|mark| mark.starts_with('<'));
        !text.is_empty() && openers.chain(marks).any(|mark| mark.starts_with(text))
    }
}
