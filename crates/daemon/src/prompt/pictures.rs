//! Pictures of a request: decoded and prepared as the model's own processor does, before anything waits for a worker.

use hanzo_engine_media::{Limits, Look, Prepared, decode};
use hanzo_engine_runtime::{MediaSpan, RequestError, TextModel};

use crate::error::Error;

/// A picture as it was sent.
#[derive(Clone)]
pub(crate) struct RequestedPicture {
    /// Where it stands in the request.
    pub(crate) field: String,
    /// Its file.
    pub(crate) bytes: Vec<u8>,
    /// How it is looked at.
    pub(crate) look: Look,
}

impl std::fmt::Debug for RequestedPicture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} bytes, {:?})", self.field, self.bytes.len(), self.look)
    }
}

/// What the model's tower is to see of them. A prompt has at most `tokens_max` tokens, so pictures that need more are refused
/// before all of them are held.
///
/// # Errors
/// [`Error::Field`] naming the picture: of a model that sees nothing, or one that cannot be read.
pub(super) fn prepared(
    pictures: Vec<RequestedPicture>,
    model: &TextModel,
    tokens_max: usize,
    interrupted: &dyn Fn() -> bool,
) -> Result<Vec<Prepared>, Error> {
    let mut all = Vec::with_capacity(pictures.len());
    let mut rows = 0;
    for RequestedPicture { field, bytes, look } in pictures {
        let Some(sight) = &model.sight else {
            let reason =
                format!("{} reads no pictures; send text, or name a model that does", model.info.name);
            return Err(Error::field(field, reason));
        };
        if interrupted() {
            return Err(RequestError::Interrupted.into());
        }
        let refused = |error: hanzo_engine_media::PictureError| {
            Error::field(field.clone(), format!("the picture {error}"))
        };
        let picture = decode(&bytes, &Limits::default()).map_err(refused)?;
        let picture = sight.prepare(picture, look).map_err(refused)?;
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

/// A prompt's tokens with pictures in their places, and what is seen there.
///
/// # Errors
/// The runtime's, where the template has no place for each.
pub(super) fn placed(
    tokens: Vec<u32>,
    pictures: Vec<Prepared>,
    model: &TextModel,
) -> Result<(Vec<u32>, Vec<MediaSpan>), RequestError> {
    match &model.sight {
        Some(sight) if !pictures.is_empty() => sight.place(&tokens, pictures, &model.tokenizer),
        _ => Ok((tokens, Vec::new())),
    }
}
