//! Fields of an audio form: OpenAI's and extensions.

use hanzo_engine_proto::v1::TranscribeConfig;
use serde_json::Value;

use super::form::{FILE, Form};
use crate::{
    body,
    declare::{Declaration as _, Integer, Number, Read, Words, fields},
    error::ApiError,
    fields::{Field, Fields},
    request::{QueueFields, model_name},
    unsupported::{HARMLESS, TRANSCRIPTION},
};

/// Task of an audio request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Transcribe,
    Translate,
}

/// Format of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TranscriptFormat {
    Json { logprobs: bool },
    Text,
    Srt,
    Vtt,
    Verbose { segments: bool, words: bool },
}

/// Parsed form.
#[derive(Debug)]
pub(crate) struct TranscriptionRequest {
    /// Without the request's id and client.
    pub(crate) config: TranscribeConfig,
    pub(crate) shape: TranscriptFormat,
    pub(crate) stream: bool,
}

fields! {
    /// Fields of a form with a sound file.
    pub(crate) struct HearingFields {
        ..queue: QueueFields,
        /// Sound file, as a part of the form with a file name.
        file: String,
        /// Name of the model; the only one that transcribes if absent.
        model?: String = Read("string 1..512", model_name),
        /// Text that comes before, as context: names and spelling.
        prompt?: String,
        /// Format of the answer.
        response_format?: &'static str = Words(["json", "text", "srt", "verbose_json", "vtt"]),
        /// Temperature; 0 starts at 0, and raises it where the text repeats itself or is unlikely.
        temperature?: f32 = Number(0.0..=1.0),
        /// Seed of temperatures above 0.
        seed?: u64 = Integer(0..=u64::MAX),
        /// Whether long pauses are left out before the model hears them; true if absent.
        vad_filter?: bool,
    }
}

fields! {
    /// Form of `POST /v1/audio/transcriptions`.
    pub(crate) struct TranscriptionForm inert [&TRANSCRIPTION, &HARMLESS] {
        ..hearing: HearingFields,
        /// Language as a code or an English name; detected in the first 30 seconds if absent.
        language?: String,
        /// Parts of verbose_json: word, segment or both, as `timestamp_granularities[]`.
        timestamp_granularities?: Vec<&'static str> = Read("\"word\" | \"segment\" | string[]", granularities),
        /// Additions to json: logprobs, as `include[]`.
        include?: Vec<&'static str> = Read("\"logprobs\" | string[]", additions),
        /// Whether the text is sent as it is known, as events.
        stream: bool,
        /// Way to split at silence, which the engine always does.
        #[expect(dead_code, reason = "only checked")]
        chunking_strategy?: &'static str = Words(["auto"]),
    }
}

fields! {
    /// Form of `POST /v1/audio/translations`.
    pub(crate) struct TranslationForm inert [&TRANSCRIPTION, &HARMLESS] {
        ..hearing: HearingFields,
    }
}

/// Parses a form.
pub(crate) fn read(form: &Form, task: Task, lenient: bool) -> Result<TranscriptionRequest, ApiError> {
    let Some(file) = &form.file else { return Err(ApiError::field(FILE, "required")) };
    let mut given = form.fields.clone();
    given.insert(FILE.to_owned(), file.name.clone().into());
    let text = Value::Object(given).to_string();
    let fields = Fields::of_body(body::parse(&text)?, lenient)?;
    let mut asked = of_fields(fields, task)?;
    asked.config.mime_type = file.mime_type.clone();
    Ok(asked)
}

fn of_fields(mut fields: Fields<'_>, task: Task) -> Result<TranscriptionRequest, ApiError> {
    let (hearing, language, stream, include, granularities) = match task {
        Task::Transcribe => {
            let form = TranscriptionForm::read(&mut fields)?;
            (form.hearing, form.language, form.stream, form.include, form.timestamp_granularities)
        }
        Task::Translate => (TranslationForm::read(&mut fields)?.hearing, None, false, None, None),
    };
    fields.finish()?;
    let format = hearing.response_format.unwrap_or("json");
    if stream && !matches!(format, "json" | "text") {
        let problem = "an answer in this response_format is not streamed; use json or text";
        return Err(ApiError::field("stream", problem));
    }
    let logprobs = include.is_some_and(|include| include.contains(&"logprobs"));
    if logprobs && format != "json" {
        return Err(ApiError::field("include", "logprobs are in answers of response_format json alone"));
    }
    if granularities.is_some() && format != "verbose_json" {
        let problem = "are in answers of response_format verbose_json alone";
        return Err(ApiError::field("timestamp_granularities", problem));
    }
    let asks = |word| granularities.as_ref().map(|all| all.contains(&word));
    let (segments, by_word) = (asks("segment").unwrap_or(true), asks("word").unwrap_or(false));
    let shape = match format {
        "text" => TranscriptFormat::Text,
        "srt" => TranscriptFormat::Srt,
        "vtt" => TranscriptFormat::Vtt,
        "verbose_json" => TranscriptFormat::Verbose { segments, words: by_word },
        _ => TranscriptFormat::Json { logprobs },
    };
    let config = TranscribeConfig {
        model: hearing.model.unwrap_or_default(),
        language: language.unwrap_or_default(),
        translate: task == Task::Translate,
        prompt: hearing.prompt.unwrap_or_default(),
        // 0 means OpenAI's default: the model's own fallback rules.
        temperatures: hearing.temperature.filter(|t| *t > 0.0).into_iter().collect(),
        word_timestamps: by_word,
        logprobs,
        voice_activity: hearing.vad_filter,
        seed: hearing.seed,
        keep_alive: hearing.queue.keep_alive,
        priority: hearing.queue.priority.unwrap_or(0),
        file_name: hearing.file,
        ..TranscribeConfig::default()
    };
    Ok(TranscriptionRequest { config, shape, stream })
}

fn granularities(field: Field<'_>) -> Result<Vec<&'static str>, ApiError> {
    list(field, &["word", "segment"])
}

fn additions(field: Field<'_>) -> Result<Vec<&'static str>, ApiError> {
    list(field, &["logprobs"])
}

/// Reads a list of `words`, or a single one.
fn list(field: Field<'_>, words: &[&'static str]) -> Result<Vec<&'static str>, ApiError> {
    match field.as_list() {
        Some(list) => list.map(|element| element.word(words)).collect(),
        None => Ok(vec![field.word(words)?]),
    }
}
