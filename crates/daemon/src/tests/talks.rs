//! Golden conversations with pictures or sounds (tests/data), over gRPC.

use std::fs;

use serde_json::Value;
use v1::content_part::Part;

use super::*;

pub(super) fn text_part(text: &str) -> v1::ContentPart {
    v1::ContentPart { part: Some(Part::Text(text.to_owned())) }
}

pub(super) fn media_part(media: v1::Media) -> v1::ContentPart {
    v1::ContentPart { part: Some(Part::Media(Box::new(media))) }
}

/// Golden conversation of `kind` as a request, with its tokens and the answer's. `part` builds the media of its two
/// numbers.
fn golden(
    kind: &str,
    case: &str,
    number: usize,
    part: impl Fn([usize; 2]) -> v1::ContentPart,
) -> (v1::InferRequest, Vec<u32>, Vec<u32>) {
    let all = fs::read(data(&format!("{kind}/{case}/golden.json"))).unwrap();
    let talk = serde_json::from_slice::<Value>(&all).unwrap()[number].clone();
    let tokens = |key: &str| -> Vec<u32> {
        talk[key].as_array().unwrap().iter().map(|token| token.as_u64().unwrap() as u32).collect()
    };
    let part = |of: &Value| match of.as_str() {
        Some(text) => text_part(text),
        None => part([0, 1].map(|which| of[which].as_u64().unwrap() as usize)),
    };
    let message = |of: &Value| v1::Message {
        role: of["role"].as_str().unwrap().to_owned(),
        content: of["parts"].as_array().unwrap().iter().map(part).collect(),
        ..Default::default()
    };
    let messages = talk["messages"].as_array().unwrap().iter().map(message).collect();
    let stop = v1::StopConditions { max_tokens: Some(32), ignore_eos: true, ..Default::default() };
    let request =
        v1::InferRequest { stop: Some(stop), ..chat(v1::Chat { messages, ..Default::default() }, 32) };
    (request, tokens("tokens"), tokens("greedy"))
}

/// Checks that the models of the folders `cases` of `kind` have the capability `can` and answer their conversations
/// like the reference library, all at once.
pub(super) async fn answers_are_the_librarys(
    kind: &str,
    cases: &[&str],
    can: v1::Capability,
    part: impl Fn([usize; 2]) -> v1::ContentPart,
) {
    let rig = Rig::start_with(|config| config.engine.kv_bytes = None).await;
    for &case in cases {
        let loaded = rig.load(&data(&format!("{kind}/{case}")), case).await.unwrap().model.unwrap();
        assert!(loaded.capabilities().any(|its| its == can), "{loaded:?}");
        assert!(loaded.inputs_not_read.is_empty());
        let asked: Vec<_> = (0..3).map(|number| golden(kind, case, number, &part)).collect();
        let answers = asked
            .iter()
            .map(|(request, ..)| rig.events(v1::InferRequest { model: case.into(), ..request.clone() }));
        for (events, (_, prompt, greedy)) in futures_util::future::join_all(answers).await.iter().zip(&asked)
        {
            assert_eq!(&tokens(events, 0), greedy, "{case}");
            assert_eq!(finished(events, 0).usage.unwrap().prompt_tokens as usize, prompt.len(), "{case}");
        }
    }
}
