//! Pictures and sounds of a chat as received, each with its field's name for errors.

use hanzo_engine_media::{Detail, PictureOptions};
use hanzo_engine_proto::v1;
use hanzo_engine_runtime::media::{PICTURE, SOUND};

use crate::{
    error::{Error, quote},
    limits::{CHAT_PICTURES_MAX, CHAT_SOUNDS_MAX},
    prompt::{RequestedMedia, RequestedPicture, RequestedSound},
};

/// Extracts a picture or a sound from a part of a message, and leaves its placeholder in the message's text.
pub(super) fn take(
    field: String,
    wire: v1::Media,
    content: &mut String,
    media: &mut RequestedMedia,
) -> Result<(), Error> {
    let RequestedMedia { pictures, sounds } = media;
    let kind = wire.mime_type.as_str();
    if kind.starts_with("audio/") {
        return take_sound(field, wire, content, sounds);
    }
    if !kind.is_empty() && !kind.starts_with("image/") {
        let reason = format!("{} is not read by this build; send text, a picture or a sound", quote(kind));
        return Err(Error::field(field, reason));
    }
    if pictures.len() == CHAT_PICTURES_MAX {
        let reason = format!("is one more than the {CHAT_PICTURES_MAX} pictures that a chat may have");
        return Err(Error::field(field, reason));
    }
    pictures.push(picture(field, wire)?);
    content.push(PICTURE);
    Ok(())
}

/// Converts the picture of a field.
pub(super) fn picture(field: String, wire: v1::Media) -> Result<RequestedPicture, Error> {
    let kind = wire.mime_type.as_str();
    if !kind.is_empty() && !kind.starts_with("image/") {
        return Err(Error::field(field, format!("{} is no picture's", quote(kind))));
    }
    let detail = match wire.detail.as_str() {
        "" | "auto" => Detail::Own,
        "low" => Detail::Low,
        "high" => Detail::High,
        other => {
            let reason = format!("must be auto, low or high, not {}", quote(other));
            return Err(Error::field(format!("{field}.detail"), reason));
        }
    };
    let options = PictureOptions { detail, pixels_min: wire.min_pixels, pixels_max: wire.max_pixels };
    Ok(RequestedPicture { field, bytes: wire.data.into(), options })
}

fn take_sound(
    field: String,
    wire: v1::Media,
    content: &mut String,
    sounds: &mut Vec<RequestedSound>,
) -> Result<(), Error> {
    if sounds.len() == CHAT_SOUNDS_MAX {
        let reason = format!("is one more than the {CHAT_SOUNDS_MAX} sounds that a chat may have");
        return Err(Error::field(field, reason));
    }
    let of_pictures = [
        ("detail", !wire.detail.is_empty()),
        ("min_pixels", wire.min_pixels.is_some()),
        ("max_pixels", wire.max_pixels.is_some()),
    ];
    if let Some((name, _)) = of_pictures.into_iter().find(|(_, is_set)| *is_set) {
        return Err(Error::field(format!("{field}.{name}"), "must be unset of a sound"));
    }
    content.push(SOUND);
    sounds.push(RequestedSound { field, bytes: wire.data.into(), mime_type: wire.mime_type });
    Ok(())
}

/// Refuses a chat with pictures or sounds whose text contains a media placeholder.
pub(super) fn check_texts(messages: &[v1::Message]) -> Result<(), Error> {
    let has = |part: &v1::ContentPart| match &part.part {
        Some(v1::content_part::Part::Text(text)) => text.contains([PICTURE, SOUND]),
        _ => false,
    };
    let at = messages.iter().enumerate().find_map(|(at, message)| {
        let part = message.content.iter().position(has)?;
        Some(format!("chat.messages[{at}].content[{part}]"))
    });
    match at {
        None => Ok(()),
        Some(field) => Err(Error::field(
            field,
            "has U+FDD0 or U+FDD1, which are no characters; leave them out beside pictures and sounds",
        )),
    }
}

/// Checks whether a message has pictures or sounds.
pub(super) fn are_in(message: &v1::Message) -> bool {
    message.content.iter().any(|part| matches!(part.part, Some(v1::content_part::Part::Media(_))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn media(mime_type: &str, detail: &str) -> v1::Media {
        v1::Media {
            mime_type: mime_type.into(),
            detail: detail.into(),
            data: vec![1].into(),
            ..Default::default()
        }
    }

    fn part(part: v1::content_part::Part) -> v1::Message {
        let content = vec![v1::ContentPart { part: Some(part) }];
        v1::Message { role: "user".into(), content, ..Default::default() }
    }

    #[test]
    fn what_cannot_be_taken_is_named_by_its_place() {
        let (mut content, mut taken) = ("a".to_owned(), RequestedMedia::default());
        let mut take = |media| {
            take("here".to_owned(), media, &mut content, &mut taken).map_err(|error| error.to_string())
        };
        let film = take(media("video/mp4", "")).unwrap_err();
        assert!(film.starts_with("here: ") && film.contains("not read"), "{film}");
        assert!(take(media("image/png", "closely")).unwrap_err().starts_with("here.detail: "));
        assert!(take(media("audio/wav", "low")).unwrap_err().starts_with("here.detail: "));
        for detail in ["", "auto", "low", "high"].repeat(4) {
            take(media("", detail)).unwrap();
            take(media("audio/*", "")).unwrap();
        }
        assert!(take(media("", "")).unwrap_err().contains("16 pictures"));
        assert!(take(media("audio/*", "")).unwrap_err().contains("16 sounds"));
        assert_eq!(content, format!("a{}", String::from_iter([PICTURE, SOUND]).repeat(16)));
        let RequestedMedia { pictures, sounds } = taken;
        let details = [1, 2].map(|at: usize| pictures[at].options.detail);
        assert_eq!((details, pictures.len(), sounds.len()), ([Detail::Own, Detail::Low], 16, 16));
    }

    #[test]
    fn no_text_beside_pictures_spells_one() {
        use v1::content_part::Part;
        let text = |text: &str| part(Part::Text(text.into()));
        let picture = part(Part::Media(Box::new(media("", ""))));
        assert!(are_in(&picture) && !are_in(&text("a")));
        assert!(check_texts(&[picture.clone(), text("a")]).is_ok());
        assert!(check_texts(&[picture.clone(), text("a\u{fdd1}")]).is_err());
        let refused = check_texts(&[picture, text("a\u{fdd0}")]).unwrap_err().to_string();
        assert!(
            refused.starts_with("chat.messages[1].content[0]: ") && refused.contains("U+FDD0"),
            "{refused}"
        );
    }
}
