//! Pictures in messages: `data:` URIs and base64 to the contract's media. Nothing is fetched, from the network or from this
//! machine; what a picture is, the engine finds out.

use hanzo_engine_media::{PictureError, decode_base64, from_data_uri};
use hanzo_engine_proto::v1::{self, content_part::Part};

use crate::{
    error::ApiError,
    fields::{Field, Fields},
    limits::PICTURE_BYTES_MAX,
};

/// OpenAI's part: `image_url` is an object with `url` and `detail`, or the URL itself, and `detail` beside it.
pub(crate) fn openai(fields: &mut Fields) -> Result<v1::ContentPart, ApiError> {
    let field = fields.require("image_url")?;
    if field.value().is_string() {
        let detail = detail(fields)?;
        return of_uri(field, detail);
    }
    let mut object = field.object()?;
    let detail = detail(&mut object)?;
    of_uri(object.require("url")?, detail)
}

/// Anthropic's block: a `source` of base64.
pub(crate) fn anthropic(fields: &mut Fields) -> Result<v1::ContentPart, ApiError> {
    let mut source = fields.require("source")?.object()?;
    let kind = source.require("type")?;
    if &*kind.text()? != "base64" {
        let problem = "only base64 is supported: nothing is fetched, so send the picture itself";
        return Err(ApiError::unsupported(&kind.path(), problem));
    }
    let field = source.require("data")?;
    let bytes = decode_base64(&field.text()?, PICTURE_BYTES_MAX);
    Ok(part(bytes.map_err(|error| refused(&field, &error))?, ""))
}

fn of_uri(field: Field, detail: &str) -> Result<v1::ContentPart, ApiError> {
    let bytes = from_data_uri(&field.text()?, PICTURE_BYTES_MAX);
    Ok(part(bytes.map_err(|error| refused(&field, &error))?, detail))
}

fn detail(fields: &mut Fields) -> Result<&'static str, ApiError> {
    fields.take("detail").map_or(Ok("auto"), |field| field.word(&["auto", "low", "high"]))
}

fn refused(field: &Field, error: &PictureError) -> ApiError {
    field.error(error.to_string())
}

fn part(data: Vec<u8>, detail: &str) -> v1::ContentPart {
    let media = v1::Media { data: data.into(), detail: detail.to_owned(), ..v1::Media::default() };
    v1::ContentPart { part: Some(Part::Media(media)) }
}
