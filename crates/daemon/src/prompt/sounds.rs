//! Sounds of a request, decoded and preprocessed as the model's own feature extractor does. This runs before the
//! job is queued.

use std::io::Cursor;

use hanzo_engine_runtime::{MediaSpan, RequestError, TextModel, audio::PreparedSound};
use hanzo_engine_sound::{Hint, Limits, Sound, SoundError};

use crate::{error::Error, limits::CHAT_SOUND_BYTES_MAX};

/// Sound as it was received.
#[derive(Clone)]
pub(crate) struct RequestedSound {
    /// Field of the request.
    pub(crate) field: String,
    /// Contents of its file.
    pub(crate) bytes: Vec<u8>,
    /// MIME type that the request gives.
    pub(crate) mime_type: String,
}

impl std::fmt::Debug for RequestedSound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} bytes, {:?})", self.field, self.bytes.len(), self.mime_type)
    }
}

/// Preprocesses sounds for the model's audio encoder. A prompt has at most `tokens_max` tokens, so sounds that need
/// more are refused before all of them are in memory.
///
/// # Errors
/// [`Error::Field`] naming the sound, if the model has no audio encoder or the sound cannot be read.
pub(super) fn heard(
    sounds: Vec<RequestedSound>,
    model: &TextModel,
    tokens_max: usize,
    interrupted: &dyn Fn() -> bool,
) -> Result<Vec<PreparedSound>, Error> {
    let mut all = Vec::with_capacity(sounds.len());
    let mut rows = 0;
    for RequestedSound { field, bytes, mime_type } in sounds {
        let Some(hearing) = &model.hearing else {
            let reason = format!(
                "{} hears no sounds{}; send text, or name a model that does",
                model.info.name,
                model.info.why_not_read("audio")
            );
            return Err(Error::field(field, reason));
        };
        let refused = |error: SoundError| Error::field(field.clone(), format!("the sound {error}"));
        let limits = Limits { bytes_max: CHAT_SOUND_BYTES_MAX, seconds_max: hearing.seconds_max(tokens_max) };
        let hint = Hint { file_name: String::new(), mime_type };
        let mut sound = Sound::open(Cursor::new(bytes), &hint, &limits).map_err(refused)?;
        let mut listening = hearing.listen();
        while let Some(chunk) = sound.next_chunk().map_err(refused)? {
            if interrupted() {
                return Err(RequestError::Interrupted.into());
            }
            listening.push(&chunk);
            let prompt_tokens = rows + listening.rows();
            if prompt_tokens > tokens_max {
                let (completion_tokens, context_tokens_max) = (0, tokens_max);
                return Err(RequestError::ContextLength {
                    prompt_tokens,
                    completion_tokens,
                    context_tokens_max,
                }
                .into());
            }
        }
        let sound =
            listening.finish().map_err(|error| Error::field(field.clone(), format!("the sound {error}")))?;
        rows += sound.rows();
        all.push(sound);
    }
    Ok(all)
}

/// Places sounds in a prompt's tokens, and returns the tokens and the spans.
///
/// # Errors
/// An error of the runtime if the template lacks a place for a sound.
pub(super) fn placed(
    tokens: Vec<u32>,
    sounds: Vec<PreparedSound>,
    model: &TextModel,
) -> Result<(Vec<u32>, Vec<MediaSpan>), RequestError> {
    match &model.hearing {
        Some(hearing) if !sounds.is_empty() => hearing.place(&tokens, sounds),
        _ => Ok((tokens, Vec::new())),
    }
}
