//! A model's output as it streams: reasoning, answer and calls, told apart. Every part is read one character at a time,
//! so that pieces, joined, are the same however the text was cut.

use std::{ops::Range, sync::Arc};

use crate::{
    calls::Calls,
    format::ToolFormat,
    harmony::{self, Harmony},
    piece::{End, Piece, Sink},
    read::Known,
    reasoning::{ReasoningMarkers, Section},
    tools::Tool,
};

/// How an output is to be read.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// The markers of a reasoning section, if there may be one.
    pub reasoning: Option<ReasoningMarkers>,
    /// The prompt opened the section.
    pub starts_in_reasoning: bool,
    /// How the model writes calls.
    pub format: Option<ToolFormat>,
    /// The tools that may be called; with none, nothing is a call.
    pub tools: Arc<[Tool]>,
}

/// An output in the middle of being read.
#[derive(Debug)]
pub struct Splitter {
    reading: Reading,
    section: Section,
    answer: Answer,
    sink: Sink,
    read: usize, // bytes
}

#[derive(Debug)]
enum Answer {
    Text,
    Calls(Calls),
    Harmony(Harmony),
}

impl Reading {
    /// Whether there is anything to be told apart.
    pub fn splits(&self) -> bool {
        let channels = self.format == Some(ToolFormat::Harmony);
        self.reasoning.is_some() || channels || self.format.is_some() && !self.tools.is_empty()
    }
}

impl Splitter {
    /// Before anything was written.
    pub fn new(reading: Reading) -> Splitter {
        let harmony = reading.format == Some(ToolFormat::Harmony);
        let section = match &reading.reasoning {
            _ if harmony => Section::Answer,
            None => Section::Answer,
            Some(_) if reading.starts_in_reasoning => Section::inside(),
            Some(_) => Section::start(),
        };
        let answer = match reading.format.filter(|_| !reading.tools.is_empty()) {
            _ if harmony => Answer::Harmony(Harmony::new()),
            Some(format) => Answer::Calls(Calls::new(format.syntax())),
            None => Answer::Text,
        };
        Splitter { reading, section, answer, sink: Sink::default(), read: 0 }
    }

    /// Adds text, and gives what became certain by it.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        self.read += text.len();
        let answer = match &self.reading.reasoning {
            Some(markers) if !matches!(self.section, Section::Answer) => {
                let (mut reasoning, mut answer) = (String::new(), String::new());
                self.section.push(markers, text, &mut reasoning, &mut answer);
                self.sink.reasoning(&reasoning);
                answer
            }
            _ => {
                self.answer(text);
                return std::mem::take(&mut self.sink.pieces);
            }
        };
        self.answer(&answer);
        std::mem::take(&mut self.sink.pieces)
    }

    /// Reads the last bytes so far as part of the answer.
    fn answer(&mut self, text: &str) {
        let known = Known { tools: &self.reading.tools };
        let at = self.read - text.len();
        match &mut self.answer {
            Answer::Text => self.sink.text(at, text),
            Answer::Calls(calls) => calls.push(at, text, known, &mut self.sink),
            Answer::Harmony(harmony) => harmony.push(at, text, known, &mut self.sink),
        }
    }

    /// The output has ended: gives what was held back. A call that has begun stays one, with the arguments so far and no
    /// [`Piece::CallEnd`]. An output that was cut shows nothing of a mark or of a call's head.
    pub fn finish(&mut self, end: End) -> Vec<Piece> {
        let (mut reasoning, mut answer) = (String::new(), String::new());
        if let Some(markers) = &self.reading.reasoning {
            self.section.finish(markers, end, &mut reasoning, &mut answer);
        }
        self.sink.reasoning(&reasoning);
        self.answer(&answer);
        let known = Known { tools: &self.reading.tools };
        match &mut self.answer {
            Answer::Text => {}
            Answer::Calls(calls) => calls.finish(end, known, &mut self.sink),
            Answer::Harmony(harmony) => harmony.finish(end, known, &mut self.sink),
        }
        std::mem::take(&mut self.sink.pieces)
    }

    /// Places of the bytes that became text since this was last asked for, in the order of the text.
    pub fn take_shown(&mut self) -> Vec<Range<usize>> {
        std::mem::take(&mut self.sink.shown)
    }

    /// The place in the output before which nothing can become text any more, unless text behind it does too.
    pub fn settled(&self) -> usize {
        match (&self.section, &self.answer) {
            (Section::Start { held } | Section::Reasoning { held, .. }, _) => self.read - held.len(),
            (_, Answer::Text) => self.read,
            (_, Answer::Calls(calls)) => calls.settled(self.read),
            (_, Answer::Harmony(harmony)) => harmony.settled(self.read),
        }
    }

    /// Whether what comes is reasoning.
    pub fn in_reasoning(&self) -> bool {
        match &self.answer {
            Answer::Harmony(harmony) => harmony.in_reasoning(),
            _ => matches!(self.section, Section::Reasoning { .. }),
        }
    }

    /// Whether what comes may be reasoning.
    pub fn may_reason(&self) -> bool {
        match &self.answer {
            Answer::Harmony(_) => true,
            _ => matches!(self.section, Section::Start { .. } | Section::Reasoning { .. }),
        }
    }

    /// Whole calls so far.
    pub fn calls(&self) -> u32 {
        self.sink.calls()
    }

    /// Whether the text of a control token means something here; others are left out of a text.
    pub fn is_marker(&self, text: &str) -> bool {
        match (&self.answer, &self.reading.reasoning) {
            (Answer::Harmony(_), _) => harmony::MARKS.contains(&text),
            (_, Some(markers)) if markers.is(text) => true,
            (Answer::Calls(_), _) => self.reading.format.is_some_and(|format| format.syntax().has(text)),
            (Answer::Text, _) => false,
        }
    }
}
