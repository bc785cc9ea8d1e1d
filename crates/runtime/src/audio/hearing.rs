//! Sounds in prompts. Samples become Whisper's frames as they arrive. The placeholder that a chat template writes
//! is repeated once for each row that the tower makes.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use thiserror::Error;

use super::spec::{FRAMES_OF_ROW, Family, SAMPLES_MIN};
use super::{AudioFiles, AudioSpec};
use crate::error::{LoadError, RequestError};
use crate::media::MediaSpan;
use crate::mel::{FRAME, HOP, MelBank, MelFrames, SAMPLE_RATE, SILENCE, normalize};
use crate::tokenizer::Tokenizer;

/// Longest padding, in seconds, that an encoder adds to the end of a sound.
const PADDING_S: f64 = 0.1;
/// Number of samples that are mirrored at the end of a sound's windows.
const MIRRORED: usize = FRAME / 2;

/// Prepares the sounds in a model's prompts.
#[derive(Debug)]
pub struct SoundPreprocessor {
    spec: AudioSpec,
    bank: MelBank,
    /// Digest of the settings on which a window's rows depend besides its frames.
    settings: [u8; 32],
}

/// Builder of a [`PreparedSound`] from samples as they arrive: 16 kHz, one channel.
#[derive(Debug)]
pub struct SoundBuilder<'a> {
    hearing: &'a SoundPreprocessor,
    frames: MelFrames,
    out: Vec<f32>,  // (frames, mels)
    last: Vec<f32>, // the last samples, one more than are mirrored
    samples: usize,
}

/// Sound as frames of its windows, ready for the tower.
#[derive(Clone, Debug, PartialEq)]
pub struct PreparedSound {
    windows: Vec<Window>,
}

#[derive(Clone, Debug, PartialEq)]
struct Window {
    /// Mel frames, `(frames, mels)`, f32 in little endian.
    frames: Vec<u8>,
    /// Rows that the text model gets for the window.
    tokens: usize,
}

/// Error: the sound is too short to make a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("is of {samples} samples at 16 kHz, of which this model hears nothing; send {least} or more")]
pub struct TooShort {
    samples: usize,
    least: usize,
}

impl SoundPreprocessor {
    /// Builds the preparation for a tower beside a text model with this tokenizer.
    ///
    /// # Errors
    /// [`LoadError::Unsupported`] if the tokenizer does not know the sound's placeholder as a control token.
    pub(crate) fn new(
        files: &AudioFiles,
        tokenizer: &Tokenizer,
        file: &str,
    ) -> Result<SoundPreprocessor, LoadError> {
        let spec = files.spec.clone();
        if !tokenizer.is_special(spec.audio_token) {
            return Err(LoadError::Unsupported {
                file: file.to_owned(),
                key: "tokenizer".into(),
                value: format!("audio_token_id {}", spec.audio_token),
                reason: "it is no control token of this tokenizer, and a sound's place".into(),
            });
        }
        let settings = Sha256::digest(format!("{spec:?}")).into();
        Ok(SoundPreprocessor { bank: MelBank::new(spec.mels), spec, settings })
    }

    /// Longest sound, in seconds, whose rows fit a prompt of at most `tokens_max` tokens.
    pub fn seconds_max(&self, tokens_max: usize) -> f64 {
        let window = self.spec.samples() as f64 / SAMPLE_RATE as f64;
        if self.spec.windows_max == 1 {
            return window + PADDING_S;
        }
        let windows = match self.spec.whole_windows() {
            true => tokens_max / self.rows_of_window(),
            false => tokens_max.div_ceil(self.rows_of_window()),
        };
        windows.min(self.spec.windows_max) as f64 * window
    }

    /// Rows that the text model gets for a whole window.
    fn rows_of_window(&self) -> usize {
        self.spec.rows / self.spec.joined
    }

    /// Starts a sound.
    pub fn listen(&self) -> SoundBuilder<'_> {
        SoundBuilder {
            hearing: self,
            frames: MelFrames::new(),
            out: Vec::new(),
            last: Vec::new(),
            samples: 0,
        }
    }

    /// Whether a span is a window of this tower.
    pub(crate) fn fits(&self, span: &MediaSpan) -> bool {
        let bytes_of_frame = self.spec.mels * size_of::<f32>();
        let frames = span.pixels.len() / bytes_of_frame;
        span.pixels.len().is_multiple_of(bytes_of_frame)
            && self.spec.fits(frames)
            && self.spec.rows_of(frames) / self.spec.joined == span.tokens
            && !span.in_plane
            && !span.mutual
    }

    /// Expands each placeholder that the template wrote into the rows of one sound, in order. Returns the tokens
    /// and the sounds' spans.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] if the number of placeholders and sounds differ.
    pub fn place(
        &self,
        tokens: &[u32],
        sounds: Vec<PreparedSound>,
    ) -> Result<(Vec<u32>, Vec<MediaSpan>), RequestError> {
        let (placeholder, count) = (self.spec.audio_token, sounds.len());
        let places = tokens.iter().filter(|&&token| token == placeholder).count();
        if places != count {
            let reason = format!("the chat template has places for {places} sounds, and there are {count}");
            return Err(RequestError::invalid("chat.messages", reason));
        }
        let (mut all, mut spans) = (Vec::with_capacity(tokens.len()), Vec::new());
        let mut sounds = sounds.into_iter();
        for &token in tokens {
            if token != placeholder {
                all.push(token);
                continue;
            }
            for window in sounds.next().into_iter().flat_map(|sound| sound.windows) {
                spans.push(self.span(window, all.len()));
                all.resize(all.len() + spans.last().map_or(0, |span| span.tokens), placeholder);
            }
        }
        Ok((all, spans))
    }

    fn span(&self, Window { frames, tokens }: Window, first: usize) -> MediaSpan {
        let digest = Sha256::new().chain_update(self.settings).chain_update(&frames).finalize();
        MediaSpan {
            remembered: [0; 2],
            first,
            tokens,
            digest: digest.into(),
            rows: Arc::default(),
            pixels: frames.into(),
            grid: [1, tokens as u32],
            whole: [1, tokens as u32],
            ..MediaSpan::default()
        }
    }
}

impl SoundBuilder<'_> {
    /// Adds samples. If a sound is a single window, samples after the window are ignored: they are padding that an
    /// encoder added at the end.
    pub fn push(&mut self, samples: &[f32]) {
        let spec = &self.hearing.spec;
        let room = if spec.windows_max > 1 { samples.len() } else { spec.samples() - self.samples };
        let samples = &samples[..samples.len().min(room)];
        self.samples += samples.len();
        self.frames.push(&self.hearing.bank, samples, &mut self.out);
        self.last.extend_from_slice(samples);
        self.last.drain(..self.last.len().saturating_sub(MIRRORED + 1));
    }

    /// Minimum number of rows of the text model for the samples so far.
    pub fn rows(&self) -> usize {
        let hearing = self.hearing;
        match hearing.spec.family {
            Family::Qwen2Audio => self.samples.div_ceil(HOP).div_ceil(FRAMES_OF_ROW) / hearing.spec.joined,
            Family::Voxtral => self.samples.div_ceil(hearing.spec.samples()) * hearing.rows_of_window(),
            Family::Qwen3Asr => hearing.spec.rows_of(self.samples / HOP),
        }
    }

    /// Ends the sound and returns all its windows, as transformers' `WhisperFeatureExtractor` makes them from a
    /// sound padded with silence.
    ///
    /// # Errors
    /// [`TooShort`].
    pub fn finish(mut self) -> Result<PreparedSound, TooShort> {
        let (samples, spec) = (self.samples, &self.hearing.spec);
        let own_rows = samples.div_ceil(HOP).div_ceil(FRAMES_OF_ROW);
        let least = if spec.windows_max > 1 { 1 } else { (2 * spec.joined - 2) * HOP + 1 };
        if samples < least {
            return Err(TooShort { samples, least });
        }
        if spec.ends_with_sound() {
            return Ok(self.finish_with_sound());
        }
        let windows = samples.div_ceil(spec.samples());
        let end = windows * spec.samples();
        // Frames that lie past these samples contain only silence.
        let silence = (end - samples).min(FRAME);
        self.push(&vec![0.0; silence]);
        if samples + silence == end {
            self.mirror();
        }
        let mut frames = self.out;
        frames.resize(windows * spec.frames() * spec.mels, SILENCE);
        normalize(&mut frames);
        let kept = match spec.whole_windows() {
            true => spec.frames(),
            // The last row's convolution reads one frame more than the row's own.
            false => (FRAMES_OF_ROW * own_rows + 1).min(spec.frames()),
        };
        let window = |frames: &[f32]| Window {
            frames: frames[..kept * spec.mels].iter().flat_map(|number| number.to_le_bytes()).collect(),
            tokens: spec.rows_of(kept) / spec.joined,
        };
        Ok(PreparedSound { windows: frames.chunks_exact(spec.frames() * spec.mels).map(window).collect() })
    }
}

impl SoundBuilder<'_> {
    /// Mirrors the sound at its end, for the last frames.
    fn mirror(&mut self) {
        let mirrored: Vec<f32> = self.last.iter().rev().skip(1).copied().collect();
        self.frames.push(&self.hearing.bank, &mirrored, &mut self.out);
    }

    /// Returns all windows of a sound whose frames end with it, as `Qwen3ASRFeatureExtractor` makes them.
    fn finish_with_sound(mut self) -> PreparedSound {
        let spec = &self.hearing.spec;
        self.push(&vec![0.0; SAMPLES_MIN.saturating_sub(self.samples)]);
        self.mirror();
        let mut frames = self.out;
        frames.truncate(self.samples / HOP * spec.mels);
        normalize(&mut frames);
        let window = |frames: &[f32]| Window {
            tokens: spec.rows_of(frames.len() / spec.mels),
            frames: frames.iter().flat_map(|number| number.to_le_bytes()).collect(),
        };
        PreparedSound { windows: frames.chunks(spec.frames() * spec.mels).map(window).collect() }
    }
}

impl PreparedSound {
    /// Rows of the text model.
    pub fn rows(&self) -> usize {
        self.windows.iter().map(|window| window.tokens).sum()
    }
}
