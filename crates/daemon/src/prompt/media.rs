//! Pictures and sounds of a chat: from the received files to their places in the prompt.

use hanzo_engine_media::PreparedPicture;
use hanzo_engine_runtime::{
    EmbedInput, MediaSpan, RequestError, TextModel,
    audio::PreparedSound,
    chat::{Chat, Message},
    tokenizer::CutSide,
};

use super::{RequestedPicture, RequestedSound, pictures, sounds};
use crate::{error::Error, served::ServedModel};

/// Pictures and sounds of a chat, each kind in its order.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestedMedia {
    pub(crate) pictures: Vec<RequestedPicture>,
    pub(crate) sounds: Vec<RequestedSound>,
}

/// Pictures and sounds preprocessed for the model's encoders.
pub(crate) struct PreparedMedia {
    pictures: Vec<PreparedPicture>,
    sounds: Vec<PreparedSound>,
}

impl RequestedMedia {
    /// Whether there are no pictures or sounds.
    pub(crate) fn is_empty(&self) -> bool {
        self.pictures.is_empty() && self.sounds.is_empty()
    }

    /// Preprocesses everything for a prompt of at most `tokens_max` tokens.
    ///
    /// # Errors
    /// [`Error::Field`] naming an item that the model does not support or that cannot be read.
    pub(crate) fn perceived(
        self,
        model: &TextModel,
        tokens_max: usize,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<PreparedMedia, Error> {
        Ok(PreparedMedia {
            pictures: pictures::prepared(self.pictures, model, tokens_max, interrupted)?,
            sounds: sounds::heard(self.sounds, model, tokens_max, interrupted)?,
        })
    }
}

/// Converts a conversation to an embedding input: its tokens, with pictures and sounds among them.
///
/// # Errors
/// [`Error::Field`] naming an item that cannot be used, and errors of the runtime.
pub(crate) fn embedded(
    chat: Chat,
    media: RequestedMedia,
    served: &ServedModel,
    interrupted: &dyn Fn() -> bool,
) -> Result<EmbedInput, Error> {
    let (text, tokens_max) = (&served.text, served.embedder.tokens_max);
    let perceived = media.perceived(text, tokens_max, interrupted)?;
    let prompt = text.prompt_from_chat(&chat, tokens_max, interrupted)?;
    let (tokens, media) = perceived.placed(prompt.tokens, text)?;
    Ok(served.embedder.chat(tokens, media)?)
}

/// Maximum number of truncations until a text fits.
const CUTS_MAX: usize = 8;

/// Converts a user's text or pictures to an embedding input for a model with the instruction `told`. Truncates the
/// text if `cut` is set.
///
/// # Errors
/// Errors of [`embedded`].
pub(crate) fn represented(
    said: String,
    media: RequestedMedia,
    told: String,
    cut: Option<CutSide>,
    served: &ServedModel,
    interrupted: &dyn Fn() -> bool,
) -> Result<EmbedInput, Error> {
    let message = |role: &str, content: String| Message { role: role.into(), content, ..Message::default() };
    let pictures = media.pictures.len();
    let chat = |said: String| Chat {
        messages: vec![message("system", told.clone()), message("user", said)],
        add_generation_prompt: true,
        pictures,
        ..Chat::default()
    };
    let (text, tokens_max) = (&served.text, served.embedder.tokens_max);
    let tokens_of = |said: &str| -> Result<usize, Error> {
        Ok(text.prompt_from_chat(&chat(said.to_owned()), tokens_max, interrupted)?.tokens.len())
    };
    let mut said = said;
    if let Some(side) = cut.filter(|_| media.is_empty()) {
        let mut room = tokens_max.saturating_sub(tokens_of("")?);
        for _ in 0..CUTS_MAX {
            let (tokens, count) = text.tokenizer.encode_cut(&said, room, side, interrupted)?;
            if tokens.len() == count {
                break;
            }
            let kept = text.tokenizer.decode(&tokens, true);
            // The text may be tokenized differently within a conversation.
            let beyond = tokens_of(&kept)?.saturating_sub(tokens_max);
            if beyond == 0 {
                said = kept;
                break;
            }
            room = room.saturating_sub(beyond);
        }
    }
    embedded(chat(said), media, served, interrupted)
}

/// Adds the model's embedding instruction to a conversation without a system prompt, as with other inputs.
pub(crate) fn told(mut chat: Chat, told: Option<String>) -> Chat {
    if let Some(told) = told
        && chat.messages.iter().all(|message| message.role == "user")
    {
        let system = Message { role: "system".into(), content: told, ..Message::default() };
        chat.messages.insert(0, system);
        chat.add_generation_prompt = true;
    }
    chat
}

impl PreparedMedia {
    /// Places everything in a prompt's tokens, and returns the tokens and the spans.
    ///
    /// # Errors
    /// An error of the runtime if the template lacks a place for an item.
    pub(super) fn placed(
        self,
        tokens: Vec<u32>,
        model: &TextModel,
    ) -> Result<(Vec<u32>, Vec<MediaSpan>), RequestError> {
        // A model has a single encoder.
        match self.sounds.is_empty() {
            true => pictures::placed(tokens, self.pictures, model),
            false => sounds::placed(tokens, self.sounds, model),
        }
    }
}

/// Checks that a prompt with pictures or sounds was not truncated and will not be shifted.
///
/// # Errors
/// [`Error::Field`].
pub(crate) fn check_whole(media: &[MediaSpan], is_cut: bool, shifts: bool) -> Result<(), Error> {
    if shifts && !media.is_empty() {
        let reason =
            "must be unset or false beside pictures and sounds: a prompt that has some is kept whole";
        return Err(Error::field("context_shift", reason));
    }
    if is_cut && !media.is_empty() {
        let reason = "must be unset beside pictures and sounds: a prompt that has some is not cut";
        return Err(Error::field("truncate_prompt_tokens", reason));
    }
    Ok(())
}
