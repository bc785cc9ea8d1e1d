//! Streaming separation of a model's output into reasoning, answer and calls. Everything is read one character
//! at a time, so that the joined pieces do not depend on how the text was split.

use std::{ops::Range, sync::Arc};

use crate::{
    calls::Calls,
    format::ToolFormat,
    harmony::{self, Harmony},
    piece::{End, Piece, Sink},
    read::KnownTools,
    reasoning::{ReasoningMarkers, Section},
    tools::Tool,
};

/// Options for reading an output.
#[derive(Clone, Debug, Default)]
pub struct SplitOptions {
    /// Markers of a reasoning section, if there may be one.
    pub reasoning: Option<ReasoningMarkers>,
    /// True if the prompt opened the section.
    pub starts_in_reasoning: bool,
    /// Format of tool calls.
    pub format: Option<ToolFormat>,
    /// Tools that may be called. Without tools, nothing is a call.
    pub tools: Arc<[Tool]>,
}

/// State of reading an output.
#[derive(Debug)]
pub struct Splitter {
    options: SplitOptions,
    section: Section,
    answer: Answer,
    sink: Sink,
    read: usize, // bytes read
}

#[derive(Debug)]
enum Answer {
    Text,
    Calls(Calls),
    Harmony(Harmony),
}

impl SplitOptions {
    /// Returns true if there is anything to separate.
    pub fn splits(&self) -> bool {
        let channels = self.format == Some(ToolFormat::Harmony);
        self.reasoning.is_some() || channels || self.format.is_some() && !self.tools.is_empty()
    }
}

impl Splitter {
    /// Starts before any text.
    pub fn new(options: SplitOptions) -> Splitter {
        let harmony = options.format == Some(ToolFormat::Harmony);
        let section = match &options.reasoning {
            _ if harmony => Section::Answer,
            None => Section::Answer,
            Some(_) if options.starts_in_reasoning => Section::inside(),
            Some(_) => Section::start(),
        };
        let answer = match options.format.filter(|_| !options.tools.is_empty()) {
            _ if harmony => Answer::Harmony(Harmony::new()),
            Some(format) => Answer::Calls(Calls::new(format.syntax())),
            None => Answer::Text,
        };
        Splitter { options, section, answer, sink: Sink::default(), read: 0 }
    }

    /// Adds text, and returns the pieces that became certain.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        self.read += text.len();
        let answer = match &self.options.reasoning {
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

    /// Parses the last `text.len()` bytes read as part of the answer.
    fn answer(&mut self, text: &str) {
        let known = KnownTools { tools: &self.options.tools };
        let at = self.read - text.len();
        match &mut self.answer {
            Answer::Text => self.sink.text(at, text),
            Answer::Calls(calls) => calls.push(at, text, known, &mut self.sink),
            Answer::Harmony(harmony) => harmony.push(at, text, known, &mut self.sink),
        }
    }

    /// Ends the output, and returns held pieces. A call that has begun remains one, with its arguments so far
    /// and no [`Piece::CallEnd`]. If the output was cut, partial marks and call headers are dropped.
    pub fn finish(&mut self, end: End) -> Vec<Piece> {
        let (mut reasoning, mut answer) = (String::new(), String::new());
        if let Some(markers) = &self.options.reasoning {
            self.section.finish(markers, end, &mut reasoning, &mut answer);
        }
        self.sink.reasoning(&reasoning);
        self.answer(&answer);
        let known = KnownTools { tools: &self.options.tools };
        match &mut self.answer {
            Answer::Text => {}
            Answer::Calls(calls) => calls.finish(end, known, &mut self.sink),
            Answer::Harmony(harmony) => harmony.finish(end, known, &mut self.sink),
        }
        std::mem::take(&mut self.sink.pieces)
    }

    /// Takes the ranges of bytes that became text since the last call, in the order of the text.
    pub fn take_shown(&mut self) -> Vec<Range<usize>> {
        std::mem::take(&mut self.sink.shown)
    }

    /// Returns true if the end of the output so far is held back or within a call: later text decides what it is.
    pub fn is_undecided(&self) -> bool {
        self.settled() < self.read
    }

    /// Offset in the output before which nothing can become text any more, unless later text does too.
    pub fn settled(&self) -> usize {
        match (&self.section, &self.answer) {
            (Section::Start { held } | Section::Reasoning { held, .. }, _) => self.read - held.len(),
            (_, Answer::Text) => self.read,
            (_, Answer::Calls(calls)) => calls.settled(self.read),
            (_, Answer::Harmony(harmony)) => harmony.settled(self.read),
        }
    }

    /// Returns true within reasoning.
    pub fn in_reasoning(&self) -> bool {
        match &self.answer {
            Answer::Harmony(harmony) => harmony.in_reasoning(),
            _ => matches!(self.section, Section::Reasoning { .. }),
        }
    }

    /// Returns true if the next text may be reasoning.
    pub fn may_reason(&self) -> bool {
        match &self.answer {
            Answer::Harmony(_) => true,
            _ => matches!(self.section, Section::Start { .. } | Section::Reasoning { .. }),
        }
    }

    /// Number of complete calls so far.
    pub fn calls(&self) -> u32 {
        self.sink.calls()
    }

    /// Returns true if the text of a control token matters here. Others are left out of the text.
    pub fn is_marker(&self, text: &str) -> bool {
        match (&self.answer, &self.options.reasoning) {
            (Answer::Harmony(_), _) => harmony::MARKS.contains(&text),
            (_, Some(markers)) if markers.is(text) => true,
            (Answer::Calls(_), _) => self.options.format.is_some_and(|format| format.syntax().has(text)),
            (Answer::Text, _) => false,
        }
    }
}
