//! LLaVA with its text models' templates, which do not support pictures, and vocabularies without an image token.

use super::*;
use crate::gguf::{Array, Metadata, Value as Setting};

/// Template in Vicuna's style, with texts as contents.
const VICUNA: &str = "{% for message in messages %}{{ message['role'] | upper }}: {{ message['content'] }} {% endfor %}\
                      {% if add_generation_prompt %}ASSISTANT:{% endif %}";

#[test]
fn pictures_stand_where_they_were_sent_where_a_template_writes_no_place() {
    for case in ["llava", "llava_next"] {
        let overrides = Overrides { chat_template: Some(VICUNA.to_owned()), ..Overrides::default() };
        let opened = OpenedModel::open_with(&folder(case).join("text.gguf"), &overrides).unwrap();
        let text = opened.text_model().unwrap();
        let talk = &talks(case)[0];
        // A picture and a question give the same prompt as with the template that supports pictures.
        assert_eq!(prompt(&text, talk).0, talk.tokens, "{case}");
        // Two pictures with words between them, one of which is a placeholder.
        let talk = &talks(case)[1];
        let (tokens, spans) = prompt(&text, talk);
        assert!(spans.len() >= talk.pictures.len());
        let rows: usize = spans.iter().map(|span| span.tokens).sum();
        let place = files(&opened).spec.image_token;
        let ends: usize = spans
            .iter()
            .map(|span| (span.first..span.first + span.tokens).filter(|&at| span.is_token(at)).count())
            .sum();
        assert_eq!(tokens.iter().filter(|&&token| token == place).count(), rows, "{ends} of them end lines");
        // Without pictures nothing is in their place.
        let mut chat = talk.chat.clone();
        (chat.pictures, chat.messages[0].content) = (0, "Hi \u{fdd0}".to_owned());
        let rendered = text.prompt_from_chat(&chat, 1024, &|| false).unwrap();
        assert!(!rendered.tokens.contains(&place), "a letter is a letter");
    }
}

#[test]
fn a_vocabulary_without_a_place_has_one_in_the_token_that_no_text_becomes() {
    let (text, _) = crate::gguf::open(&folder("llava").join("text.gguf")).unwrap();
    let (tower, _) = crate::gguf::open(&folder("llava").join("mmproj.gguf")).unwrap();
    let spec = OpenedModel::open(&folder("llava").join("text.gguf")).unwrap().decoder().unwrap().spec.clone();
    let with = |unknown: Option<u32>| {
        let mut words = Metadata::clone(&text.metadata);
        words.set("tokenizer.ggml.tokens", Setting::Array(Array::String(Vec::new())));
        if let Some(token) = unknown {
            words.set("tokenizer.ggml.unknown_token_id", Setting::U32(token));
        }
        TowerFiles::of_mmproj(tower.clone(), &words, &spec)
    };
    assert_eq!(with(Some(3)).unwrap().spec.image_token, 3);
    assert!(with(None).unwrap_err().to_string().contains("token <image>"));
}

/// Ollama's templates leave pictures to the program in every family.
#[test]
fn a_template_of_texts_alone_will_do_for_every_family() {
    for case in OF_FILES {
        let path = folder(case).join("text.gguf");
        let overrides = Overrides { chat_template: Some(VICUNA.to_owned()), ..Overrides::default() };
        let talk = &talks(case)[0];
        let of = |opened: OpenedModel| prompt(&opened.text_model().unwrap(), talk);
        let (own, plain) =
            (of(OpenedModel::open(&path).unwrap()), of(OpenedModel::open_with(&path, &overrides).unwrap()));
        assert_eq!(own.1.len(), plain.1.len(), "{case}");
        // A picture is surrounded by the tokens of the family's own template and processor.
        let beside = match case {
            _ if case == "gemma3" || case.starts_with("qwen") => 1,
            _ => 0,
        };
        let around = |(tokens, spans): &(Vec<u32>, Vec<MediaSpan>)| {
            let end = spans.last().map_or(0, |span| span.first + span.tokens);
            tokens[spans[0].first - beside..end + beside].to_vec()
        };
        assert_eq!(around(&own), around(&plain), "{case}");
    }
}
