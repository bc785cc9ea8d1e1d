//! A model's output as it streams: reasoning, answer and calls, told apart. Every part is read one character at a time,
//! so that pieces, joined, are the same however the text was cut.

use std::sync::Arc;

use crate::{
    calls::Calls,
    format::ToolFormat,
    harmony::{self, Harmony},
    piece::{Piece, Sink},
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
        Splitter { reading, section, answer, sink: Sink::default() }
    }

    /// Adds text, and gives what became certain by it.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
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

    fn answer(&mut self, text: &str) {
        let known = Known { tools: &self.reading.tools };
        match &mut self.answer {
            Answer::Text => self.sink.text(text),
            Answer::Calls(calls) => calls.push(text, known, &mut self.sink),
            Answer::Harmony(harmony) => harmony.push(text, known, &mut self.sink),
        }
    }

    /// The output has ended: gives what was held back.
    pub fn finish(&mut self) -> Vec<Piece> {
        let (mut reasoning, mut answer) = (String::new(), String::new());
        self.section.finish(&mut reasoning, &mut answer);
        self.sink.reasoning(&reasoning);
        self.answer(&answer);
        match &mut self.answer {
            Answer::Text => {}
            Answer::Calls(calls) => calls.finish(&mut self.sink),
            Answer::Harmony(harmony) => harmony.finish(&mut self.sink),
        }
        std::mem::take(&mut self.sink.pieces)
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
