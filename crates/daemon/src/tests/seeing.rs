//! Tests of hanzo-see (models/hanzo-see) over gRPC: one held-out question of each kind, also with the pictures
//! swapped.

use std::{collections::BTreeMap, fs};

use hanzo_engine_media::decode_base64;
use serde_json::Value;

use super::talks::{media_part, text_part};
use super::*;

/// First held-out question of each kind. (kind, line)
fn questions() -> BTreeMap<String, Value> {
    let lines = fs::read_to_string(data("heldout_pictures.jsonl")).unwrap();
    let mut found = BTreeMap::new();
    for line in lines.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        found.entry(line["kind"].as_str().unwrap().to_owned()).or_insert(line);
    }
    found
}

/// Question of a line about its pictures, or about the pictures in swapped order.
fn asked(line: &Value, swapped: bool) -> v1::InferRequest {
    let picture = |of: &Value| {
        let data = decode_base64(of.as_str().unwrap(), 1 << 20).unwrap();
        media_part(v1::Media { data: data.into(), ..Default::default() })
    };
    let mut content: Vec<_> = line["pictures"].as_array().unwrap().iter().map(picture).collect();
    if swapped {
        content.reverse();
    }
    content.push(text_part(line["question"].as_str().unwrap()));
    let message = v1::Message { role: "user".into(), content, ..Default::default() };
    chat(v1::Chat { messages: vec![message], ..Default::default() }, 60)
}

#[tokio::test(flavor = "multi_thread")]
async fn held_out_pictures_are_answered() {
    let rig = Rig::start_with(|config| config.engine.kv_bytes = None).await;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/hanzo-see");
    rig.load(&folder.display().to_string(), "see").await.unwrap();
    let questions = questions();
    assert_eq!(questions.len(), 14);
    let mut jobs: Vec<_> = questions.values().map(|line| (line, false)).collect();
    jobs.push((&questions["which"], true));
    let answers = jobs.iter().map(|(line, swapped)| rig.events(asked(line, *swapped)));
    let answers = futures_util::future::join_all(answers).await;
    for (events, (line, swapped)) in answers.iter().zip(jobs) {
        let expected = line[if swapped { "swapped" } else { "answer" }].as_str().unwrap();
        assert_eq!(said(events, 0).trim(), expected, "{}", line["question"]);
    }
    assert_ne!(questions["which"]["answer"], questions["which"]["swapped"]);
}
