//! Conversion of transcription messages.

use std::sync::{Arc, Mutex, PoisonError};

use hanzo_engine_proto::v1::{self, transcribe_event::Event};
use hanzo_engine_runtime::transcript::{Segment, SpokenToken, Transcript, Word};
use hanzo_engine_runtime::whisper::{SAMPLE_RATE, TranscribeOptions};
use hanzo_engine_sound::{Hint, SoundError, TimeMap};

use crate::{
    error::{Error, random_u64},
    limits::{LANGUAGE_BYTES_MAX, SPEECH_PROMPT_BYTES_MAX, TEMPERATURES_MAX},
};

/// Converts the options of a transcription, and the hint about its sound file.
pub(crate) fn options(config: &v1::TranscribeConfig) -> Result<(TranscribeOptions, Hint), Error> {
    let long = |field: &str, text: &str, max: usize| match text.len() > max {
        true => Err(Error::field(field, format!("must have at most {max} bytes, not {}", text.len()))),
        false => Ok(()),
    };
    long("language", &config.language, LANGUAGE_BYTES_MAX)?;
    long("prompt", &config.prompt, SPEECH_PROMPT_BYTES_MAX)?;
    if config.temperatures.len() > TEMPERATURES_MAX {
        let count = config.temperatures.len();
        return Err(Error::field("temperatures", format!("must be at most {TEMPERATURES_MAX}, not {count}")));
    }
    if let Some(wrong) = config.temperatures.iter().find(|t| !(0.0..=1.0).contains(*t)) {
        return Err(Error::field("temperatures", format!("must each be 0 to 1, not {wrong}")));
    }
    let options = TranscribeOptions {
        language: config.language.clone(),
        translate: config.translate,
        prompt: config.prompt.clone(),
        temperatures: config.temperatures.clone(),
        word_timestamps: config.word_timestamps,
        condition_on_previous_text: config.condition_on_previous_text,
        seed: config.seed.unwrap_or_else(random_u64),
    };
    let hint = Hint { file_name: config.file_name.clone(), mime_type: config.mime_type.clone() };
    Ok((options, hint))
}

impl From<SoundError> for Error {
    fn from(error: SoundError) -> Self {
        match error {
            SoundError::TooManyBytes { .. } => Error::SoundTooLarge { reason: error.to_string() },
            other => Error::field("data", other.to_string()),
        }
    }
}

/// Event of a transcription, or the error that ended it.
pub(crate) type Told = Result<Transcript, Error>;

/// Map from the model's times to times in the received sound, as far as it was decoded.
pub(crate) type SharedMap = Arc<Mutex<TimeMap>>;

/// Builder of messages from a transcription's events.
pub(crate) struct TranscriptBuilder {
    pub(crate) request_id: String,
    pub(crate) model: String,
    pub(crate) map: SharedMap,
    pub(crate) logprobs: bool,
    /// Text so far.
    text: String,
    segments: u32,
    pub(crate) started: bool,
    pub(crate) prompt_tokens: u32,
    pub(crate) completion_tokens: u32,
    speech_s: f64,
}

/// Data for the final message that only the service knows.
pub(crate) struct ServiceTimes {
    /// Length of the sound.
    pub(crate) seconds: f64,
    pub(crate) queue_ms: f64,
    pub(crate) total_ms: f64,
}

impl TranscriptBuilder {
    /// Creates a builder before any event.
    pub(crate) fn new(
        request_id: String,
        model: String,
        map: SharedMap,
        logprobs: bool,
    ) -> TranscriptBuilder {
        TranscriptBuilder {
            request_id,
            model,
            map,
            logprobs,
            text: String::new(),
            segments: 0,
            started: false,
            prompt_tokens: 0,
            completion_tokens: 0,
            speech_s: 0.0,
        }
    }

    /// Converts an event. The last one has no message yet: `finish` builds it once the sound's length is known.
    pub(crate) fn event(&mut self, said: Transcript) -> Option<v1::TranscribeEvent> {
        let event = match said {
            Transcript::Started { language, probability } => return Some(self.start(language, probability)),
            Transcript::Delta(text) => Event::Delta(v1::TranscribeDelta { text }),
            Transcript::Segment(segment) => Event::Segment(self.segment(segment)),
            Transcript::Finished { samples, prompt_tokens, completion_tokens } => {
                self.speech_s = samples as f64 / SAMPLE_RATE as f64;
                (self.prompt_tokens, self.completion_tokens) = (prompt_tokens, completion_tokens);
                return None;
            }
        };
        Some(v1::TranscribeEvent { event: Some(event) })
    }

    /// Message that the transcription has begun.
    pub(crate) fn start(&mut self, language: String, probability: f32) -> v1::TranscribeEvent {
        self.started = true;
        let (request_id, model) = (self.request_id.clone(), self.model.clone());
        let started =
            v1::TranscribeStarted { request_id, model, language, language_probability: probability };
        v1::TranscribeEvent { event: Some(Event::Started(started)) }
    }

    /// Message that the transcription has finished.
    pub(crate) fn finish(&self, times: &ServiceTimes) -> v1::TranscribeEvent {
        let finished = v1::TranscribeFinished {
            duration_s: times.seconds,
            text: self.text.trim().to_owned(),
            speech_s: self.speech_s.min(times.seconds),
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.completion_tokens,
            queue_ms: times.queue_ms,
            total_ms: times.total_ms,
        };
        v1::TranscribeEvent { event: Some(Event::Finished(finished)) }
    }

    fn segment(&mut self, segment: Segment) -> v1::TranscriptSegment {
        self.text.push_str(&segment.text);
        self.segments += 1;
        // Both ends of a removed silence are known once the model has heard the sound after it.
        let map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        let token = |token: SpokenToken| v1::TranscriptToken {
            token_id: token.id,
            token: token.bytes.into(),
            logprob: if self.logprobs { token.logprob } else { 0.0 },
        };
        let (start_s, end_s) = map.segment(segment.start_s, segment.end_s);
        let word = |word: Word| {
            let (start_s, end_s) = map.word(word.start_s, word.end_s);
            v1::TranscriptWord { word: word.word, start_s, end_s, probability: word.probability }
        };
        let words: Vec<_> = segment.words.into_iter().map(word).collect();
        // A segment's times enclose its words.
        let start_s = words.first().map_or(start_s, |word| word.start_s);
        let end_s = words.last().map_or(end_s, |word| word.end_s.max(start_s));
        v1::TranscriptSegment {
            index: segment.index,
            start_s,
            end_s,
            text: segment.text,
            tokens: segment.tokens.into_iter().map(token).collect(),
            temperature: segment.temperature,
            average_logprob: segment.average_logprob,
            compression_ratio: segment.compression_ratio,
            no_speech_probability: segment.no_speech_probability,
            words,
            seek: (map.start(f64::from(segment.seek) / 100.0) * 100.0).round() as u32,
        }
    }
}
