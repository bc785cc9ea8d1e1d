//! Fields of an audio form: OpenAI's and extensions.

use hanzo_engine_proto::v1::TranscribeConfig;
use serde_json::Value;

use super::form::{FILE, Form};
use crate::{
    body,
    error::ApiError,
    fields::{Field, Fields},
    request::{keep_alive, model, priority},
    unsupported,
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

/// Parses a form.
pub(crate) fn read(form: &Form, task: Task, lenient: bool) -> Result<TranscriptionRequest, ApiError> {
    let Some(file) = &form.file else { return Err(ApiError::field(FILE, "required")) };
    let text = Value::Object(form.fields.clone()).to_string();
    let fields = Fields::of_body(body::parse(&text)?, lenient)?;
    let mut asked = of_fields(fields, task)?;
    (asked.config.file_name, asked.config.mime_type) = (file.name.clone(), file.mime_type.clone());
    Ok(asked)
}

fn of_fields(mut fields: Fields<'_>, task: Task) -> Result<TranscriptionRequest, ApiError> {
    let model = model(&mut fields)?;
    let prompt = fields.take("prompt").map(Field::string).transpose()?.unwrap_or_default();
    let temperature = fields.take("temperature").map(|field| field.number(0.0..=1.0)).transpose()?;
    let words = ["json", "text", "srt", "verbose_json", "vtt"];
    let format = fields.take("response_format").map(|field| field.word(&words)).transpose()?;
    let format = format.unwrap_or("json");
    let seed = fields.take("seed").map(|field| field.integer(0..=u64::MAX)).transpose()?;
    let voice_activity = fields.take("vad_filter").map(Field::boolean).transpose()?;
    let (mut language, mut stream) = (String::new(), false);
    let (mut logprobs, mut segments, mut by_word) = (false, true, false);
    if task == Task::Transcribe {
        language = fields.take("language").map(Field::string).transpose()?.unwrap_or_default();
        // The engine always splits at silence, whether requested or not.
        if let Some(field) = fields.take("chunking_strategy") {
            field.word(&["auto"])?;
        }
        if let Some(field) = fields.take("stream") {
            stream = field.boolean()?;
            if stream && !matches!(format, "json" | "text") {
                return Err(
                    field.error("an answer in this response_format is not streamed; use json or text")
                );
            }
        }
        if let Some(field) = fields.take("include") {
            logprobs = list(field, &["logprobs"])?.contains(&"logprobs");
            if logprobs && format != "json" {
                return Err(field.error("logprobs are in answers of response_format json alone"));
            }
        }
        if let Some(field) = fields.take("timestamp_granularities") {
            let asked = list(field, &["word", "segment"])?;
            if format != "verbose_json" {
                return Err(field.error("are in answers of response_format verbose_json alone"));
            }
            (segments, by_word) = (asked.contains(&"segment"), asked.contains(&"word"));
        }
    }
    let keep_alive = keep_alive(&mut fields)?;
    let priority = priority(&mut fields)?;
    unsupported::transcription(&mut fields)?;
    fields.finish()?;
    let shape = match format {
        "text" => TranscriptFormat::Text,
        "srt" => TranscriptFormat::Srt,
        "vtt" => TranscriptFormat::Vtt,
        "verbose_json" => TranscriptFormat::Verbose { segments, words: by_word },
        _ => TranscriptFormat::Json { logprobs },
    };
    let config = TranscribeConfig {
        model,
        language,
        translate: task == Task::Translate,
        prompt,
        // 0 means OpenAI's default: the model's own fallback rules.
        temperatures: temperature.filter(|t| *t > 0.0).into_iter().collect(),
        word_timestamps: by_word,
        logprobs,
        voice_activity,
        seed,
        keep_alive,
        priority,
        ..TranscribeConfig::default()
    };
    Ok(TranscriptionRequest { config, shape, stream })
}

/// Reads a list of `words`, or a single one.
fn list(field: Field<'_>, words: &[&'static str]) -> Result<Vec<&'static str>, ApiError> {
    match field.as_list() {
        Some(list) => list.map(|element| element.word(words)).collect(),
        None => Ok(vec![field.word(words)?]),
    }
}
