//! Pictures in messages: `data:` URIs and base64 to the contract's media. Nothing is fetched here, from the network or from this
//! machine: what is only named is fetched before the engine is asked (`media_hosts`). What a picture is, the engine finds out.

use hanzo_engine_media::{PictureError, decode_base64, from_data_uri};
use hanzo_engine_proto::v1::{self, content_part::Part};

use crate::{
    error::ApiError,
    fields::{Field, Fields},
    limits::{PICTURE_BYTES_MAX, URL_BYTES_MAX},
};

/// OpenAI's part: `image_url` is an object with `url` and `detail`, or the URL itself, and `detail` beside it. Qwen's services
/// know `min_pixels` and `max_pixels` beside those.
pub(crate) fn openai(fields: &mut Fields) -> Result<v1::ContentPart, ApiError> {
    let mut bound = |name: &str| fields.take(name).map(|field| field.integer(1..=u32::MAX)).transpose();
    let [least, most] = [bound("min_pixels")?, bound("max_pixels")?];
    let field = fields.require("image_url")?;
    let media = match field.value().is_string() {
        true => {
            let detail = detail(fields)?;
            of_uri(field, detail)?
        }
        false => {
            let mut object = field.object()?;
            let detail = detail(&mut object)?;
            of_uri(object.require("url")?, detail)?
        }
    };
    let [min_pixels, max_pixels] = [least, most].map(|pixels| pixels.map(u64::from));
    Ok(part(v1::Media { min_pixels, max_pixels, ..media }))
}

/// Anthropic's block: a `source` of base64, or of a URL.
pub(crate) fn anthropic(fields: &mut Fields) -> Result<v1::ContentPart, ApiError> {
    let mut source = fields.require("source")?.object()?;
    let kind = source.require("type")?;
    match &*kind.text()? {
        "base64" => {}
        "url" => return Ok(part(of_uri(source.require("url")?, "")?)),
        _ => {
            let problem =
                "only base64 and url are supported: no files are kept here, so send the picture itself";
            return Err(ApiError::unsupported(&kind.path(), problem));
        }
    }
    let field = source.require("data")?;
    let bytes = decode_base64(&field.text()?, PICTURE_BYTES_MAX);
    Ok(part(media(bytes.map_err(|error| refused(&field, &error))?, "")))
}

/// Stands before the path of a part whose picture is only named, where its media type would be, which no client says.
const NAMED: &str = "at ";

/// Where a picture that is only named stands in the body, and its URL.
pub(crate) fn named(media: &v1::Media) -> Option<(&str, &str)> {
    let path = media.mime_type.strip_prefix(NAMED)?;
    Some((path, std::str::from_utf8(&media.data).ok()?))
}

fn of_uri(field: Field, detail: &str) -> Result<v1::Media, ApiError> {
    let text = field.text()?;
    let is = |scheme: &str| text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
    if is("http:") || is("https:") {
        if text.len() > URL_BYTES_MAX {
            return Err(field.error(format!("is a URL of more than {URL_BYTES_MAX} bytes")));
        }
        let mime_type = format!("{NAMED}{}", field.path());
        return Ok(v1::Media { mime_type, ..media(text.into_owned().into_bytes(), detail) });
    }
    let bytes = from_data_uri(&field.text()?, PICTURE_BYTES_MAX);
    Ok(media(bytes.map_err(|error| refused(&field, &error))?, detail))
}

fn detail(fields: &mut Fields) -> Result<&'static str, ApiError> {
    fields.take("detail").map_or(Ok("auto"), |field| field.word(&["auto", "low", "high"]))
}

fn refused(field: &Field, error: &PictureError) -> ApiError {
    field.error(error.to_string())
}

fn media(data: Vec<u8>, detail: &str) -> v1::Media {
    v1::Media { data: data.into(), detail: detail.to_owned(), ..v1::Media::default() }
}

fn part(media: v1::Media) -> v1::ContentPart {
    v1::ContentPart { part: Some(Part::Media(media)) }
}
