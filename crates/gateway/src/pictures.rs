//! Images in messages: conversion of `data:` URIs and base64 to the contract's media. Nothing is read from the
//! network or the disk here: images given by URL are fetched before the engine is asked (`media_hosts`). The
//! engine detects the format.

use hanzo_engine_media::{PictureError, decode_base64, from_data_uri};
use hanzo_engine_proto::v1::{self, content_part::Part};

use crate::{
    declare::{Declaration as _, Natural as _, Raw, fields},
    error::ApiError,
    fields::{Field, Fields},
    limits::{PICTURE_BYTES_MAX, URL_BYTES_MAX},
    media_bounds::{BoundFields, MediaBounds, agreed, refuse_others},
    media_url::{NAMED_PICTURE, is_web},
    unsupported::MEDIA_BOUNDS,
};

/// Maximum frames of a video: an engine accepts no more images in a chat.
const FRAMES_MAX: usize = 16;

fields! {
    /// Image of a content part, in OpenAI's form.
    #[derive(Clone, Copy)]
    pub(crate) struct PictureFields<'a> {
        ..bounds: BoundFields<'a>,
        /// URL of the image, or an object with it.
        image_url?: Field<'a> = Raw("ImageUrl | string"),
        /// Resolution at which the model sees the image.
        detail?: Field<'a> = Raw(DETAIL),
    }
}

fields! {
    /// URL of an image.
    pub(crate) struct ImageUrl<'a> inert [&MEDIA_BOUNDS] {
        ..bounds: BoundFields<'a>,
        /// Data URI, or a URL whose host the server allows.
        url: Field<'a> = Raw("string 1.."),
        /// Resolution at which the model sees the image.
        detail?: Field<'a> = Raw(DETAIL),
    }
}

const DETAIL: &str = "\"auto\" | \"low\" | \"high\" | \"original\"";

impl PictureFields<'_> {
    /// Refuses these fields where no image is.
    pub(crate) fn none(self) -> Result<(), ApiError> {
        match self.image_url.or(self.detail) {
            Some(field) => Err(field.error("only allowed with an image")),
            None => self.bounds.none(),
        }
    }

    /// Reads the image of `part`, whose fields these are.
    pub(crate) fn picture(self, part: Field) -> Result<v1::ContentPart, ApiError> {
        let field = given(self.image_url, part, "image_url")?;
        let inner = (!field.value().is_string()).then(|| ImageUrl::of(field)).transpose()?;
        let bounds = self.bounds.with(inner.as_ref().map(|inner| inner.bounds).unwrap_or_default())?;
        let detail = agreed(inner.as_ref().and_then(|inner| inner.detail), self.detail, "detail")?;
        let detail = detail.map_or(Ok("auto"), |field| field.word(&["auto", "low", "high", "original"]))?;
        // `high` is already every pixel that a vision tower takes.
        let detail = if detail == "original" { "high" } else { detail };
        Ok(bounded(of_uri(inner.map_or(field, |inner| inner.url), detail)?, bounds))
    }
}

/// Field of a content part that its type requires.
pub(crate) fn given<'a>(field: Option<Field<'a>>, part: Field, name: &str) -> Result<Field<'a>, ApiError> {
    field.ok_or_else(|| ApiError::field(&format!("{}.{name}", part.path()), "required"))
}

/// Reads the content part of the templates of transformers: a `data:` URI, a URL, or plain base64.
pub(crate) fn transformers(field: Field, bounds: BoundFields) -> Result<v1::ContentPart, ApiError> {
    Ok(bounded(alone(field)?, bounds.with(BoundFields::default())?))
}

/// Reads a video as a list of frames, in the format of Qwen's services: `video`, a list of URLs. They become
/// consecutive images.
pub(crate) fn frames(field: Field, bounds: BoundFields) -> Result<Vec<v1::ContentPart>, ApiError> {
    let bounds = bounds.with(BoundFields::default())?;
    if !field.value().is_array() {
        return Err(
            field.error("expected a list of frames, each a picture's URL: files of films are not read")
        );
    }
    let frames = field.list_up_to(FRAMES_MAX, "frames")?;
    let frames = frames.map(|frame| Ok(bounded(of_uri(frame, "auto")?, bounds)));
    let frames = frames.collect::<Result<Vec<_>, ApiError>>()?;
    match frames.is_empty() {
        true => Err(field.error("has no frames")),
        false => Ok(frames),
    }
}

/// Reads Anthropic's block: a `source` of base64 or a URL, with Qwen's bounds in it or next to it.
pub(crate) fn anthropic(fields: &mut Fields) -> Result<v1::ContentPart, ApiError> {
    let mut source = fields.require("source")?.object()?;
    refuse_others(fields)?;
    refuse_others(&mut source)?;
    let bounds = BoundFields::read(fields)?.with(BoundFields::read(&mut source)?)?;
    let kind = source.require("type")?;
    let media = match &*kind.text()? {
        "base64" => {
            // The format is detected from the file's first bytes.
            source.take("media_type").map(Field::text).transpose()?;
            let field = source.require("data")?;
            let bytes = decode_base64(&field.text()?, PICTURE_BYTES_MAX);
            media(bytes.map_err(|error| refused(&field, &error))?, "")
        }
        "url" => of_uri(source.require("url")?, "")?,
        _ => {
            let problem =
                "only base64 and url are supported: no files are kept here, so send the picture itself";
            return Err(ApiError::unsupported(&kind.path(), problem));
        }
    };
    source.finish()?;
    Ok(bounded(media, bounds))
}

/// Reads an image that is the whole field: a `data:` URI, a URL, or plain base64.
pub(crate) fn alone(field: Field) -> Result<v1::Media, ApiError> {
    let is_named =
        |text: &str| is_web(text) || text.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("data:"));
    if is_named(&field.text()?) {
        return of_uri(field, "");
    }
    let bytes = decode_base64(&field.text()?, PICTURE_BYTES_MAX);
    Ok(media(bytes.map_err(|error| refused(&field, &error))?, ""))
}

fn of_uri(field: Field, detail: &str) -> Result<v1::Media, ApiError> {
    let text = field.text()?;
    if is_web(&text) {
        if text.len() > URL_BYTES_MAX {
            return Err(field.error(format!("is a URL of more than {URL_BYTES_MAX} bytes")));
        }
        let mime_type = format!("{NAMED_PICTURE}{}", field.path());
        return Ok(v1::Media { mime_type, ..media(text.into_owned().into_bytes(), detail) });
    }
    let bytes = from_data_uri(&text, "image/png", PICTURE_BYTES_MAX);
    Ok(media(bytes.map_err(|error| refused(&field, &error))?, detail))
}

fn refused(field: &Field, error: &PictureError) -> ApiError {
    field.error(error.to_string())
}

fn media(data: Vec<u8>, detail: &str) -> v1::Media {
    v1::Media { data: data.into(), detail: detail.to_owned(), ..v1::Media::default() }
}

fn bounded(media: v1::Media, bounds: MediaBounds) -> v1::ContentPart {
    let MediaBounds { min_pixels, max_pixels } = bounds;
    v1::ContentPart { part: Some(Part::Media(Box::new(v1::Media { min_pixels, max_pixels, ..media }))) }
}
