//! Pictures of a request, decoded and preprocessed as the model's own processor does. This runs before the job is
//! queued.

use hanzo_engine_media::{Limits, PictureError, PictureOptions, PreparedPicture, decode_until};
use hanzo_engine_runtime::{MediaSpan, RequestError, TextModel, vision::Sight};

use crate::error::Error;

/// Picture as it was received.
#[derive(Clone)]
pub(crate) struct RequestedPicture {
    /// Field of the request.
    pub(crate) field: String,
    /// Contents of its file.
    pub(crate) bytes: Vec<u8>,
    /// Options of its preprocessing.
    pub(crate) options: PictureOptions,
}

impl std::fmt::Debug for RequestedPicture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} bytes, {:?})", self.field, self.bytes.len(), self.options)
    }
}

/// Preprocesses pictures for the model's vision encoder. A prompt has at most `tokens_max` tokens, so pictures that
/// need more are refused before all of them are in memory.
///
/// # Errors
/// [`Error::Field`] naming the picture, if the model has no vision encoder or the picture cannot be read.
pub(super) fn prepared(
    pictures: Vec<RequestedPicture>,
    model: &TextModel,
    tokens_max: usize,
    interrupted: &dyn Fn() -> bool,
) -> Result<Vec<PreparedPicture>, Error> {
    let mut all = Vec::with_capacity(pictures.len());
    let mut rows = 0;
    for picture in pictures {
        if interrupted() {
            return Err(RequestError::Interrupted.into());
        }
        let (sight, picture) = one(picture, model, interrupted)?;
        rows += sight.rows_of(&picture);
        if rows > tokens_max {
            let (prompt_tokens, completion_tokens, context_tokens_max) = (rows, 0, tokens_max);
            return Err(
                RequestError::ContextLength { prompt_tokens, completion_tokens, context_tokens_max }.into()
            );
        }
        all.push(picture);
    }
    Ok(all)
}

/// Preprocesses one picture.
fn one<'m>(
    RequestedPicture { field, bytes, options }: RequestedPicture,
    model: &'m TextModel,
    interrupted: &dyn Fn() -> bool,
) -> Result<(&'m Sight, PreparedPicture), Error> {
    let Some(sight) = &model.sight else {
        let reason = format!(
            "{} reads no pictures{}; send text, or name a model that does",
            model.info.name,
            model.info.why_not_read("images")
        );
        return Err(Error::field(field, reason));
    };
    let refused = |error: PictureError| match error {
        PictureError::Interrupted => RequestError::Interrupted.into(),
        error => Error::field(field.clone(), format!("the picture {error}")),
    };
    let picture = decode_until(&bytes, &Limits::default(), interrupted).map_err(refused)?;
    Ok((sight, sight.prepare(picture, options).map_err(refused)?))
}

/// Preprocesses a picture that is embedded on its own.
///
/// # Errors
/// [`Error::Field`] naming the picture, if the model does not embed pictures or it cannot be read.
/// [`RequestError::Interrupted`].
pub(crate) fn alone(
    picture: RequestedPicture,
    model: &TextModel,
    interrupted: &dyn Fn() -> bool,
) -> Result<MediaSpan, Error> {
    let field = picture.field.clone();
    let (sight, picture) = one(picture, model, interrupted)?;
    let none = || {
        let name = &model.info.name;
        let reason = format!(
            "{name} takes pictures in chats, and makes no vectors of them; send text, or name another"
        );
        Error::field(field, reason)
    };
    sight.alone(picture).ok_or_else(none)
}

/// Places pictures in a prompt's tokens, and returns the tokens and the spans.
///
/// # Errors
/// An error of the runtime if the template lacks a place for a picture.
pub(super) fn placed(
    tokens: Vec<u32>,
    pictures: Vec<PreparedPicture>,
    model: &TextModel,
) -> Result<(Vec<u32>, Vec<MediaSpan>), RequestError> {
    match &model.sight {
        Some(sight) if !pictures.is_empty() => sight.place(&tokens, pictures, &model.tokenizer),
        _ => Ok((tokens, Vec::new())),
    }
}
