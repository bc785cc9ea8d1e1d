//! Pictures and sounds of a chat: from what was sent to what a prompt has in their places.

use hanzo_engine_media::Prepared;
use hanzo_engine_runtime::{
    EmbedInput, MediaSpan, RequestError, TextModel,
    audio::Heard,
    chat::{Chat, Message},
    tokenizer::CutSide,
};

use super::{RequestedPicture, RequestedSound, pictures, sounds};
use crate::{error::Error, served::Served};

/// What a chat shows and plays to a model, of each kind in its order.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestedMedia {
    pub(crate) pictures: Vec<RequestedPicture>,
    pub(crate) sounds: Vec<RequestedSound>,
}

/// The same, as the model's towers take it.
pub(super) struct Perceived {
    pictures: Vec<Prepared>,
    sounds: Vec<Heard>,
}

impl RequestedMedia {
    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.pictures.is_empty() && self.sounds.is_empty()
    }

    /// Where one of them stands in the request, and what it is.
    pub(crate) fn any(self) -> Option<(String, &'static str)> {
        let picture = self.pictures.into_iter().next().map(|picture| (picture.field, "pictures"));
        picture.or_else(|| self.sounds.into_iter().next().map(|sound| (sound.field, "sounds")))
    }

    /// Prepares all of it, of which a prompt of at most `tokens_max` tokens has the rows.
    ///
    /// # Errors
    /// [`Error::Field`] naming what the model does not take, or cannot be read.
    pub(super) fn perceived(
        self,
        model: &TextModel,
        tokens_max: usize,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Perceived, Error> {
        Ok(Perceived {
            pictures: pictures::prepared(self.pictures, model, tokens_max, interrupted)?,
            sounds: sounds::heard(self.sounds, model, tokens_max, interrupted)?,
        })
    }
}

/// A conversation that is to be embedded, as tokens and what is perceived among them.
///
/// # Errors
/// [`Error::Field`] naming what cannot be perceived, and the runtime's.
pub(crate) fn embedded(
    (chat, media): (Chat, RequestedMedia),
    served: &Served,
    interrupted: &dyn Fn() -> bool,
) -> Result<EmbedInput, Error> {
    let (text, tokens_max) = (&served.text, served.embedder.tokens_max);
    let perceived = media.perceived(text, tokens_max, interrupted)?;
    let prompt = text.prompt_from_chat(&chat, tokens_max, interrupted)?;
    let (tokens, media) = perceived.placed(prompt.tokens, text)?;
    Ok(served.embedder.chat(tokens, media)?)
}

/// How often a text is cut until it fits.
const CUTS_MAX: usize = 8;

/// What a user says or shows, as an input of a model that is told `told` of it. A text is cut where that is asked for.
///
/// # Errors
/// As [`embedded`].
pub(crate) fn represented(
    (said, media): (String, RequestedMedia),
    told: String,
    cut: Option<CutSide>,
    served: &Served,
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
            // Within a conversation it may be cut into other tokens.
            let beyond = tokens_of(&kept)?.saturating_sub(tokens_max);
            if beyond == 0 {
                said = kept;
                break;
            }
            room = room.saturating_sub(beyond);
        }
    }
    embedded((chat(said), media), served, interrupted)
}

/// A conversation as it is embedded: one without a system prompt, of a model that is told something of inputs, is an input like others.
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

impl Perceived {
    /// A prompt's tokens with all of it in its places, and what is perceived there.
    ///
    /// # Errors
    /// The runtime's, where the template has no place for each.
    pub(super) fn placed(
        self,
        tokens: Vec<u32>,
        model: &TextModel,
    ) -> Result<(Vec<u32>, Vec<MediaSpan>), RequestError> {
        // A model has one tower.
        match self.sounds.is_empty() {
            true => pictures::placed(tokens, self.pictures, model),
            false => sounds::placed(tokens, self.sounds, model),
        }
    }
}

/// That a prompt with pictures or sounds was not cut, and nothing of it will be dropped.
///
/// # Errors
/// [`Error::Field`].
pub(super) fn check_whole(media: &[MediaSpan], is_cut: bool, shifts: bool) -> Result<(), Error> {
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
