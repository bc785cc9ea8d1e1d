//! Pictures of a chat, as they came: each with the field it stands in, for whoever refuses it.

use hanzo_engine_media::{Detail, Look};
use hanzo_engine_proto::v1;
use hanzo_engine_runtime::vision::PICTURE;

use crate::{
    error::{Error, quote},
    limits::CHAT_PICTURES_MAX,
    prompt::RequestedPicture,
};

/// Takes a picture out of a message's part, and leaves what stands for it in the message's text.
pub(super) fn take(
    field: String,
    wire: v1::Media,
    content: &mut String,
    pictures: &mut Vec<RequestedPicture>,
) -> Result<(), Error> {
    let kind = wire.mime_type.as_str();
    if !kind.is_empty() && !kind.starts_with("image/") {
        let reason = format!("{} is not read by this build; send text or a picture", quote(kind));
        return Err(Error::field(field, reason));
    }
    if pictures.len() == CHAT_PICTURES_MAX {
        let reason = format!("is one more than the {CHAT_PICTURES_MAX} pictures that a chat may have");
        return Err(Error::field(field, reason));
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
    let look = Look { detail, pixels_min: wire.min_pixels, pixels_max: wire.max_pixels };
    content.push(PICTURE);
    pictures.push(RequestedPicture { field, bytes: wire.data.into(), look });
    Ok(())
}

/// That no text of a chat with pictures has what stands for one.
pub(super) fn check_texts(messages: &[v1::Message]) -> Result<(), Error> {
    let has = |part: &v1::ContentPart| match &part.part {
        Some(v1::content_part::Part::Text(text)) => text.contains(PICTURE),
        _ => false,
    };
    let at = messages.iter().enumerate().find_map(|(at, message)| {
        let part = message.content.iter().position(has)?;
        Some(format!("chat.messages[{at}].content[{part}]"))
    });
    match at {
        None => Ok(()),
        Some(field) => {
            Err(Error::field(field, "has U+FDD0, which is no character; leave it out beside pictures"))
        }
    }
}

/// Whether a message has pictures.
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
    fn a_picture_that_cannot_be_taken_is_named_by_its_place() {
        let (mut content, mut pictures) = ("a".to_owned(), Vec::new());
        let mut take = |media| {
            take("here".to_owned(), media, &mut content, &mut pictures).map_err(|error| error.to_string())
        };
        let sound = take(media("audio/wav", "")).unwrap_err();
        assert!(sound.starts_with("here: ") && sound.contains("not read"), "{sound}");
        assert!(take(media("image/png", "closely")).unwrap_err().starts_with("here.detail: "));
        for detail in ["", "auto", "low", "high"].repeat(4) {
            take(media("", detail)).unwrap();
        }
        assert!(take(media("", "")).unwrap_err().contains("16 pictures"));
        assert_eq!(content, format!("a{}", String::from(PICTURE).repeat(16)));
        let details = [1, 2].map(|at: usize| pictures[at].look.detail);
        assert_eq!((details[0], details[1], pictures.len()), (Detail::Own, Detail::Low, 16));
    }

    #[test]
    fn no_text_beside_pictures_spells_one() {
        use v1::content_part::Part;
        let text = |text: &str| part(Part::Text(text.into()));
        let picture = part(Part::Media(media("", "")));
        assert!(are_in(&picture) && !are_in(&text("a")));
        assert!(check_texts(&[picture.clone(), text("a")]).is_ok());
        let refused = check_texts(&[picture, text("a\u{fdd0}")]).unwrap_err().to_string();
        assert!(
            refused.starts_with("chat.messages[1].content[0]: ") && refused.contains("U+FDD0"),
            "{refused}"
        );
    }
}
