//! Progress of one sound through a model: its frames, the start of its next window, and the previous text. Its
//! [`Phase`] is what it waits for; the engine advances it.

use super::network::AlignmentKeys;
use super::vocabulary::{DecodingOptions, Vocabulary};
use super::window::{Try, Verdict, WindowParts, WindowResult, cut};
use super::words::{self, AlignmentShape};
use crate::mel::{self, HOP, MelBank, MelFrames, SAMPLE_RATE};
use crate::transcript::{Segment, SpokenToken, Transcript};

/// Above this temperature a window's text is not used as context for the next one.
const CONDITION_TEMPERATURE_MAX: f32 = 0.5;

/// Phase of a sound: what it waits for.
#[derive(Debug)]
pub(super) enum Phase {
    /// Frames, or a slot for its next window.
    Window,
    /// Encoding of its window.
    Heard { slot: usize },
    /// Language detection.
    Language { slot: usize },
    /// Decoding of its window.
    Drawn { slot: usize, attempt: Box<Try>, tried: usize },
    /// Word timestamps.
    Words { slot: usize, tried: Box<WindowResult> },
    /// Nothing: it has ended.
    Over,
}

/// Request for a transcription, and its progress through the sound.
#[derive(Debug)]
pub(super) struct SoundProgress {
    pub(super) asked: DecodingOptions,
    pub(super) phase: Phase,
    pub(super) paused: bool,
    mels: usize,
    mel: MelFrames,
    frames: Vec<f32>, // (frames, mels), of the sound from `seek` on
    samples: u64,
    ended: bool,
    /// Frames before the current window.
    seek: usize,
    /// Frames of the current window that belong to the sound.
    window: usize,
    pub(super) followed: AlignmentKeys,
    pub(super) language: Option<u32>,
    started: bool,
    history: Vec<u32>,
    segments: u32,
    spoken_s: f64,
    prompt_tokens: u32,
    completion_tokens: u32,
}

impl SoundProgress {
    pub(super) fn new(asked: DecodingOptions, mels: usize) -> SoundProgress {
        SoundProgress {
            mels,
            language: asked.language,
            asked,
            phase: Phase::Window,
            paused: false,
            mel: MelFrames::new(),
            frames: Vec::new(),
            samples: 0,
            ended: false,
            seek: 0,
            window: 0,
            followed: AlignmentKeys::default(),
            started: false,
            history: Vec::new(),
            segments: 0,
            spoken_s: 0.0,
            prompt_tokens: 0,
            completion_tokens: 0,
        }
    }

    /// Slot that it holds.
    pub(super) fn slot(&self) -> Option<usize> {
        match self.phase {
            Phase::Heard { slot }
            | Phase::Language { slot }
            | Phase::Drawn { slot, .. }
            | Phase::Words { slot, .. } => Some(slot),
            Phase::Window | Phase::Over => None,
        }
    }

    /// Number of samples that it can use now: those missing from its next window, and one second more for the
    /// frames at its edge.
    pub(super) fn wants(&self, bank: &MelBank, frames: usize) -> usize {
        let have = self.frames.len() / bank.bands();
        if self.ended { 0 } else { (frames + 100).saturating_sub(have) * HOP }
    }

    /// Adds samples; `None` ends the sound.
    pub(super) fn push(&mut self, bank: &MelBank, samples: Option<&[f32]>) {
        match samples {
            Some(samples) => {
                self.samples += samples.len() as u64;
                self.mel.push(bank, samples, &mut self.frames);
            }
            None if self.ended => {}
            None => {
                self.ended = true;
                self.mel.finish(bank, &mut self.frames);
            }
        }
    }

    /// Frames of the sound in its next window, once they are known: those of a whole window, or all that are left.
    /// `None` if there are too few yet.
    fn ahead(&self, mels: usize, frames: usize) -> Option<usize> {
        let have = self.frames.len() / mels;
        if self.ended {
            let all = (self.samples as usize / HOP).saturating_sub(self.seek);
            return Some(all.min(frames));
        }
        (have >= frames).then_some(frames)
    }

    /// Whether a step can start its next window.
    pub(super) fn is_ready(&self, mels: usize, frames: usize) -> bool {
        !self.paused && matches!(self.phase, Phase::Window) && self.ahead(mels, frames).is_some()
    }

    /// Whether nothing is left to transcribe.
    pub(super) fn is_over(&self, mels: usize, frames: usize) -> bool {
        self.is_ready(mels, frames) && self.ahead(mels, frames) == Some(0)
    }

    /// Frames of its next window as the model's input; `None` if the sound is over.
    pub(super) fn begin_window(&mut self, mels: usize, frames: usize) -> Option<Vec<f32>> {
        self.window = self.ahead(mels, frames)?;
        if self.window == 0 {
            return None;
        }
        let have = self.frames.len().min(self.window * mels);
        let mut window = self.frames[..have].to_vec();
        mel::normalize(&mut window);
        // Padded with zeros as in faster-whisper, instead of silence as in OpenAI's code: fewer words of short
        // sounds are wrong.
        window.resize(frames * mels, 0.0);
        Some(window)
    }

    /// Sends the first event once the language is known.
    pub(super) fn start(&mut self, vocabulary: &Vocabulary, probability: f32, events: &mut Vec<Transcript>) {
        if !self.started {
            self.started = true;
            let language = vocabulary.code(self.language).to_owned();
            events.push(Transcript::Started { language, probability });
        }
    }

    /// Starts to decode the window's text, at the temperature of try `tried`.
    pub(super) fn attempt(&mut self, vocabulary: &Vocabulary, slot: usize, tried: usize) {
        let asked = &self.asked;
        let temperature = asked.temperatures[tried];
        let seed = asked.seed.wrapping_add((self.seek as u64) << 8).wrapping_add(tried as u64);
        let mut history = asked.prompt.clone();
        if asked.condition {
            // The prompt stays in front of as much previous text as fits.
            let room = vocabulary.prompt_max().saturating_sub(history.len());
            history.extend(&self.history[self.history.len() - room.min(self.history.len())..]);
        }
        let attempt = Try::new(vocabulary, asked, self.language, &history, temperature, seed);
        self.prompt_tokens += attempt.prompt.len() as u32;
        self.phase = Phase::Drawn { slot, attempt: Box::new(attempt), tried };
    }

    /// Judges a finished try.
    pub(super) fn judge(&mut self, vocabulary: &Vocabulary, events: &mut Vec<Transcript>) {
        let Phase::Drawn { slot, attempt, tried } = std::mem::replace(&mut self.phase, Phase::Window) else {
            return;
        };
        self.completion_tokens += attempt.drawn.len() as u32;
        match attempt.judge(vocabulary, tried + 1 == self.asked.temperatures.len()) {
            Verdict::Again => self.attempt(vocabulary, slot, tried + 1),
            Verdict::Silence => self.advance(self.window),
            Verdict::Take(tried) if self.asked.words => {
                self.phase = Phase::Words { slot, tried: Box::new(tried) };
            }
            Verdict::Take(tried) => {
                let cut = cut(vocabulary, &tried.drawn, self.window);
                self.take(vocabulary, &tried, &cut, None, events);
            }
        }
    }

    /// Tokens of the step for word timestamps, and the number of them before the text.
    pub(super) fn words_step(&self, vocabulary: &Vocabulary, tried: &WindowResult) -> (Vec<u32>, usize) {
        let mut tokens = vocabulary.beginning(self.language, self.asked.translate);
        let before = tokens.len();
        tokens.push(vocabulary.no_timestamps);
        let (text, _) = self.words_text(vocabulary, tried);
        tokens.extend(text);
        tokens.push(vocabulary.end);
        (tokens, before)
    }

    /// Text for word timestamps, that of whole segments, and its probabilities.
    fn words_text(&self, vocabulary: &Vocabulary, tried: &WindowResult) -> (Vec<u32>, Vec<f32>) {
        let cut = cut(vocabulary, &tried.drawn, self.window);
        let text = cut.parts.iter().flat_map(|part| &part.drawn).filter(|drawn| drawn.token < vocabulary.end);
        text.map(|drawn| (drawn.token, drawn.logprob.exp())).unzip()
    }

    /// Computes word timestamps from the `queries` of the tokens of [`SoundProgress::words_step`].
    pub(super) fn find_words(
        &mut self,
        vocabulary: &Vocabulary,
        queries: &[f32],
        before: usize,
        shape: AlignmentShape,
        events: &mut Vec<Transcript>,
    ) {
        let Phase::Words { tried, .. } = std::mem::replace(&mut self.phase, Phase::Window) else { return };
        let keys = std::mem::take(&mut self.followed.keys);
        let looks = words::Looks { keys: &keys, queries, shape, rows_heard: self.window / 2 };
        let (text, probabilities) = self.words_text(vocabulary, &tried);
        let code = vocabulary.code(self.language);
        let timed = words::align(vocabulary, code, &text, &probabilities, before, &looks);
        let cut = cut(vocabulary, &tried.drawn, self.window);
        self.take(vocabulary, &tried, &cut, Some(timed), events);
    }

    /// Takes the segments of a window.
    fn take(
        &mut self,
        vocabulary: &Vocabulary,
        tried: &WindowResult,
        cut: &WindowParts,
        timed: Option<Vec<words::TimedWord>>,
        events: &mut Vec<Transcript>,
    ) {
        let offset_s = self.seek as f64 * HOP as f64 / SAMPLE_RATE as f64;
        let token = |drawn: &super::rules::Drawn| SpokenToken {
            id: drawn.token,
            bytes: match drawn.token < vocabulary.end {
                true => vocabulary.tokenizer.token_bytes(drawn.token).to_vec(),
                false => Vec::new(),
            },
            logprob: drawn.logprob,
        };
        let mut segments: Vec<Segment> = Vec::new();
        let mut counts = Vec::new();
        for part in &cut.parts {
            let ids: Vec<u32> = part.drawn.iter().map(|drawn| drawn.token).collect();
            counts.push(ids.iter().filter(|&&id| id < vocabulary.end).count());
            segments.push(Segment {
                index: 0,
                start_s: offset_s + f64::from(part.start) * 0.02,
                end_s: offset_s + f64::from(part.end) * 0.02,
                text: vocabulary.text(&ids),
                tokens: part.drawn.iter().map(token).collect(),
                temperature: tried.temperature,
                average_logprob: tried.average_logprob,
                compression_ratio: tried.compression_ratio,
                no_speech_probability: tried.no_speech,
                words: Vec::new(),
                seek: self.seek as u32,
            });
        }
        let mut frames = cut.frames;
        if let Some(timed) = timed {
            words::attach(timed, &mut segments, &counts, offset_s, &mut self.spoken_s);
            // The next window starts after the last word, because the last timestamp may be in the middle of one.
            let last = segments.iter().rev().find_map(|segment| segment.words.last()).map(|word| word.end_s);
            if let Some(last) = last.filter(|&last| !cut.ends_with_moment && last > offset_s) {
                let behind = (last * 100.0).round() as usize;
                frames = behind.saturating_sub(self.seek).clamp(1, self.window);
            }
        }
        segments.retain(|segment| segment.start_s != segment.end_s && !segment.text.trim().is_empty());
        if tried.temperature > CONDITION_TEMPERATURE_MAX {
            self.history.clear();
        }
        for mut segment in segments {
            segment.index = self.segments;
            self.segments += 1;
            if self.asked.condition && tried.temperature <= CONDITION_TEMPERATURE_MAX {
                self.history.extend(segment.tokens.iter().map(|token| token.id));
                let over = self.history.len().saturating_sub(vocabulary.prompt_max());
                self.history.drain(..over);
            }
            events.push(Transcript::Delta(segment.text.clone()));
            events.push(Transcript::Segment(segment));
        }
        self.advance(frames);
    }

    /// Advances by `frames` frames.
    fn advance(&mut self, frames: usize) {
        let mels = self.mels;
        let frames = frames.max(1);
        self.seek += frames;
        self.frames.drain(..(frames * mels).min(self.frames.len()));
        self.phase = Phase::Window;
    }

    /// Ends the sound.
    pub(super) fn finish(&mut self, vocabulary: &Vocabulary, events: &mut Vec<Transcript>) {
        self.start(vocabulary, if self.asked.language.is_some() { 1.0 } else { 0.0 }, events);
        self.phase = Phase::Over;
        events.push(Transcript::Finished {
            samples: self.samples,
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.completion_tokens,
        });
    }
}
