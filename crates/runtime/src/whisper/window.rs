//! Decoding of one window: tries at rising temperatures until one is neither repetitive nor unlikely. Then its
//! timestamps cut the text into segments, and tell where the next window starts (openai-whisper's `transcribe.py`).

use super::rules::{self, Drawn};
use super::vocabulary::{DecodingOptions, Vocabulary};
use crate::sampler::Random;

/// Compression ratio above which a text repeats itself.
const COMPRESSION_MAX: f32 = 2.4;
/// Average log probability below which a text counts as guessed.
const LOGPROB_MIN: f32 = -1.0;
/// Probability of no speech above which a window with a guessed text counts as silent.
const NO_SPEECH_MAX: f32 = 0.6;

/// Try at one temperature.
#[derive(Debug)]
pub(crate) struct Try {
    /// Tokens before the text.
    pub(crate) prompt: Vec<u32>,
    /// Index of the token that starts the text; its logits tell whether there is speech.
    pub(crate) start: usize,
    pub(crate) drawn: Vec<Drawn>,
    tokens: Vec<u32>,
    temperature: f32,
    random: Random,
    no_speech: f32,
    logprobs: f64,
}

/// Result of decoding a window once.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WindowResult {
    /// Tokens without the end.
    pub(crate) drawn: Vec<Drawn>,
    pub(crate) text: String,
    pub(crate) temperature: f32,
    pub(crate) average_logprob: f32,
    pub(crate) compression_ratio: f32,
    pub(crate) no_speech: f32,
}

/// Decision after a try.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// Take its text.
    Take(WindowResult),
    /// The window has no speech.
    Silence,
    /// Try again at a higher temperature.
    Again,
}

/// Part of a window's tokens that is one segment.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Part {
    pub(crate) drawn: Vec<Drawn>,
    /// Units of 20 ms from the window's start.
    pub(crate) start: u32,
    pub(crate) end: u32,
}

/// Parts of a window, and the frames they cover.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WindowParts {
    pub(crate) parts: Vec<Part>,
    /// Frames to the next window.
    pub(crate) frames: usize,
    /// The text ends with a timestamp.
    pub(crate) ends_with_moment: bool,
}

impl Try {
    /// Starts a try for a window in a language, after `history`.
    pub(crate) fn new(
        vocabulary: &Vocabulary,
        asked: &DecodingOptions,
        language: Option<u32>,
        history: &[u32],
        temperature: f32,
        seed: u64,
    ) -> Try {
        let mut prompt = Vec::new();
        if !history.is_empty() {
            let kept = history.len().min(vocabulary.prompt_max());
            prompt.push(vocabulary.previous);
            prompt.extend(&history[history.len() - kept..]);
        }
        let start = prompt.len();
        prompt.extend(vocabulary.beginning(language, asked.translate));
        Try {
            prompt,
            start,
            drawn: Vec::new(),
            tokens: Vec::new(),
            temperature,
            random: Random::new(seed),
            no_speech: 0.0,
            logprobs: 0.0,
        }
    }

    /// Takes the logits at the text's start: the probability of no speech.
    pub(crate) fn hear(&mut self, vocabulary: &Vocabulary, logits: &[f32]) {
        self.no_speech = rules::probability(logits, vocabulary.no_speech);
    }

    /// Samples the next token. Returns whether another follows; `None` if the logits are not numbers.
    pub(crate) fn draw(&mut self, vocabulary: &Vocabulary, logits: &mut [f32]) -> Option<bool> {
        if logits.iter().any(|logit| logit.is_nan()) {
            return None;
        }
        rules::rule(vocabulary, &self.tokens, logits);
        let drawn = rules::draw(logits, self.temperature, &mut self.random)?;
        self.logprobs += f64::from(drawn.logprob);
        if drawn.token == vocabulary.end {
            return Some(false);
        }
        self.tokens.push(drawn.token);
        self.drawn.push(drawn);
        let room = vocabulary.tokens_max - self.prompt.len();
        Some(self.tokens.len() < vocabulary.drawn_max().min(room))
    }

    /// Judges the try; `last` if there is no higher temperature.
    pub(crate) fn judge(self, vocabulary: &Vocabulary, last: bool) -> Verdict {
        let text = vocabulary.text(&self.tokens).trim().to_owned();
        let average_logprob = (self.logprobs / (self.tokens.len() + 1) as f64) as f32;
        let compression_ratio = rules::compression_ratio(&text);
        let silent = self.no_speech > NO_SPEECH_MAX;
        if silent && average_logprob < LOGPROB_MIN {
            return Verdict::Silence;
        }
        let fails = compression_ratio > COMPRESSION_MAX || average_logprob < LOGPROB_MIN;
        if fails && !last {
            return Verdict::Again;
        }
        Verdict::Take(WindowResult {
            drawn: self.drawn,
            text,
            temperature: self.temperature,
            average_logprob,
            compression_ratio,
            no_speech: self.no_speech,
        })
    }
}

/// Cuts a window of `frames` frames at the boundaries of its segments.
pub(crate) fn cut(vocabulary: &Vocabulary, drawn: &[Drawn], frames: usize) -> WindowParts {
    let first = vocabulary.first_timestamp;
    let moment = |drawn: &Drawn| drawn.token.checked_sub(first);
    let is_moment: Vec<bool> = drawn.iter().map(|drawn| moment(drawn).is_some()).collect();
    let ends_with_moment = matches!(is_moment[..], [.., false, true]);
    let mut slices: Vec<usize> = (1..drawn.len()).filter(|&at| is_moment[at - 1] && is_moment[at]).collect();
    if slices.is_empty() {
        let last = drawn.iter().rev().find_map(moment).filter(|&last| last > 0);
        let part = Part { drawn: drawn.to_vec(), start: 0, end: last.unwrap_or(frames as u32 / 2) };
        return WindowParts { parts: vec![part], frames, ends_with_moment };
    }
    if ends_with_moment {
        slices.push(drawn.len());
    }
    let (mut parts, mut from) = (Vec::new(), 0);
    for to in slices {
        let drawn = &drawn[from..to];
        let at = |drawn: Option<&Drawn>| drawn.and_then(moment).unwrap_or(0);
        parts.push(Part { drawn: drawn.to_vec(), start: at(drawn.first()), end: at(drawn.last()) });
        from = to;
    }
    // Sound after the last whole segment is transcribed again with the next window.
    let covered = if ends_with_moment { frames } else { 2 * moment(&drawn[from - 1]).unwrap_or(0) as usize };
    let covered = if covered == 0 { frames } else { covered.min(frames) };
    WindowParts { parts, frames: covered, ends_with_moment }
}
