//! Audio in messages: conversion of base64 and `data:` URIs to the contract's media. As with images, nothing is
//! fetched here, and the engine detects the format.

use hanzo_engine_media::{PictureError, decode_base64, from_data_uri};
use hanzo_engine_proto::v1::{self, content_part::Part};

use crate::{
    declare::{Natural as _, Raw, Words, fields},
    error::ApiError,
    fields::Field,
    limits::{SOUND_BYTES_MAX, URL_BYTES_MAX},
    media_url::{NAMED_SOUND, is_web},
};

/// Allowed values of `format`: file types that can be read.
const FORMATS: [&str; 10] = ["wav", "mp3", "flac", "ogg", "opus", "webm", "m4a", "mp4", "aac", "aiff"];
/// Media type of audio of unknown format.
const ANY: &str = "audio/*";

fields! {
    /// Sound of a content part, in OpenAI's form.
    pub(crate) struct InputAudio<'a> {
        /// File in base64.
        data: Field<'a> = Raw("string 1.."),
        /// Type of the file. Its own first bytes are believed.
        format: &'static str = Words(FORMATS),
    }
}

/// Reads OpenAI's `input_audio`: an object with `data`, in base64, and `format`.
pub(crate) fn openai(field: Field) -> Result<v1::ContentPart, ApiError> {
    let InputAudio { data: field, format } = InputAudio::of(field)?;
    let bytes = decode_base64(&field.text()?, SOUND_BYTES_MAX).map_err(|error| refused(&field, error))?;
    Ok(part(bytes, format!("audio/{format}")))
}

/// Reads vLLM's `audio_url`: an object with `url`, or the URL itself.
pub(crate) fn by_url(mut field: Field) -> Result<v1::ContentPart, ApiError> {
    if !field.value().is_string() {
        let mut inner = field.object()?;
        field = inner.require("url")?;
        inner.finish()?;
    }
    let text = field.text()?;
    if is_web(&text) {
        if text.len() > URL_BYTES_MAX {
            return Err(field.error(format!("is a URL of more than {URL_BYTES_MAX} bytes")));
        }
        let mime_type = format!("{}{}", NAMED_SOUND, field.path());
        return Ok(part(text.into_owned().into_bytes(), mime_type));
    }
    let bytes = from_data_uri(&text, "audio/wav", SOUND_BYTES_MAX).map_err(|error| refused(&field, error))?;
    Ok(part(bytes, ANY.to_owned()))
}

/// Media type of fetched audio.
pub(crate) fn of_fetched() -> String {
    ANY.to_owned()
}

fn refused(field: &Field, error: PictureError) -> ApiError {
    field.error(match error {
        PictureError::Empty => "is empty; send the bytes of a sound file".to_owned(),
        PictureError::TooManyBytes { bytes, max } => {
            format!(
                "has {bytes} bytes, and at most {max} are taken; send it compressed (mp3, opus) or in parts"
            )
        }
        other => other.to_string(),
    })
}

fn part(data: Vec<u8>, mime_type: String) -> v1::ContentPart {
    let media = v1::Media { data: data.into(), mime_type, ..v1::Media::default() };
    v1::ContentPart { part: Some(Part::Media(Box::new(media))) }
}
