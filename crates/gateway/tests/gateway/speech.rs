//! `/v1/audio/speech` and `/v1/audio/voices`: the file, the events, what is asked of the engine, what is refused, and clients that leave.

use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use hanzo_engine_proto::v1::{SoundFormat, speak_request::Input};
use serde_json::{Value, json};

use crate::{
    PATIENCE, Server,
    fake::hello,
    http::{Live, get, json_request, post, send},
    keys::Keys,
    script,
};

const PATH: &str = "/v1/audio/speech";

fn asks(more: Value) -> Value {
    let mut body = json!({"model": "speaks", "input": "Hello.", "voice": "alloy"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

async fn open(server: &Server, text: &str) -> Live {
    let body = asks(json!({"input": text}));
    Live::open(server.address, json_request(PATH, body.to_string())).await
}

#[tokio::test]
async fn a_text_becomes_a_file_or_events() {
    let server = Server::start(script(hello)).await;
    let answer = post(server.address, PATH, &asks(json!({}))).await;
    assert_eq!((answer.status, answer.text.as_str()), (200, "one two"));
    assert_eq!(answer.header("content-type"), Some("audio/mpeg"));
    let more = json!({"stream_format": "sse", "response_format": "pcm", "speed": 1.5, "seed": 7, "language": "en-gb"});
    let answer = post(server.address, PATH, &asks(more)).await;
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    let usage = json!({"input_tokens": 5, "output_tokens": 0, "total_tokens": 5});
    assert_eq!(
        answer.events(),
        [
            json!({"type": "speech.audio.delta", "audio": "b25lIA=="}),
            json!({"type": "speech.audio.delta", "audio": "dHdv"}),
            json!({"type": "speech.audio.done", "usage": usage, "unknown_words": ["xyzzy"]}),
        ]
    );
    let asked = server.fake.heard.texts.lock().unwrap().clone();
    assert_eq!(
        (asked[0].format(), asked[0].speed, asked[0].voice.as_str()),
        (SoundFormat::Mp3, None, "alloy")
    );
    assert_eq!(asked[0].input, Some(Input::Text("Hello.".to_owned())));
    assert_eq!(
        (asked[1].format(), asked[1].speed, asked[1].seed, asked[1].language.as_str()),
        (SoundFormat::Pcm, Some(1.5), Some(7), "en-gb")
    );
    let answer = post(server.address, PATH, &json!({"model": "speaks", "phonemes": "həlˈO"})).await;
    assert_eq!(answer.status, 200);
    let last = server.fake.heard.texts.lock().unwrap().last().cloned().unwrap();
    assert_eq!((last.input, last.voice.as_str()), (Some(Input::Phonemes("həlˈO".to_owned())), ""));
    let answer = get(server.address, "/v1/audio/voices?model=speaks").await.json();
    assert_eq!(answer["voices"][1]["aliases"], json!(["echo"]));
    assert_eq!((&answer["object"], &answer["model"]), (&json!("list"), &json!("speaks")));
}

#[tokio::test]
async fn what_cannot_be_said_is_refused_by_name() {
    let server = Server::start(script(hello)).await;
    for (more, field) in [
        (json!({"response_format": "aac"}), "response_format"),
        (json!({"response_format": "midi"}), "response_format"),
        (json!({"speed": 0.2}), "speed"),
        (json!({"stream_format": "lines"}), "stream_format"),
        (json!({"phonemes": "a"}), "phonemes"),
        (json!({"input": ""}), "input"),
        (json!({"input": "a".repeat(16_385)}), "input"),
        (json!({"input": "unsayable"}), "input"),
        (json!({"instructions": "softly"}), "instructions"),
        (json!({"pitch": 1}), "pitch"),
    ] {
        let answer = post(server.address, PATH, &asks(more)).await;
        assert_eq!(
            (answer.status, &answer.json()["error"]["param"]),
            (400, &json!(field)),
            "{}",
            answer.text
        );
    }
    let answer = post(server.address, PATH, &json!({"model": "speaks", "phonemes": "unsayable"})).await;
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("phonemes")));
    // What fails later ends badly: a file without its end, events with the error.
    let answer = post(server.address, PATH, &asks(json!({"input": "breaks", "stream_format": "sse"}))).await;
    assert!(
        answer.text.contains("\"error\"") && !answer.text.contains("speech.audio.done"),
        "{}",
        answer.text
    );
    let body = asks(json!({"input": "breaks"})).to_string();
    // Its head may not have been sent by then.
    if let Ok(mut live) = Live::tried(server.address, json_request(PATH, body)).await {
        assert!(live.breaks_off().await);
    }
}

#[tokio::test]
async fn who_leaves_is_not_spoken_to() {
    let server = Server::start(script(hello)).await;
    let mut live = open(&server, "forever").await;
    live.read_until("one ").await;
    assert_eq!(server.fake.heard.running.load(SeqCst), 1);
    live.leave();
    let gone = async {
        while server.fake.heard.running.load(SeqCst) > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("the engine's work ends");
}

#[tokio::test]
async fn a_client_that_leaves_pays_for_the_sound_that_was_made() {
    let keys = Keys::new();
    let key = keys.add("one", |record| record.tokens_per_minute = Some(10_000));
    let server = keys.serve().await;
    let request = |path: &str, body: &Value| {
        let mut request = json_request(path, body.to_string());
        request.headers_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
        request
    };
    let left = async || {
        let mut request = request("/v1/models", &json!({}));
        *request.method_mut() = "GET".parse().unwrap();
        let answer = send(server.address, request).await;
        answer.header("x-ratelimit-remaining-tokens").unwrap().parse::<u32>().unwrap()
    };
    for stream_format in ["audio", "sse"] {
        let before = left().await;
        let body = asks(json!({"input": "forever", "stream_format": stream_format}));
        let mut live = Live::open(server.address, request(PATH, &body)).await;
        live.read_until(if stream_format == "sse" { "speech.audio.delta" } else { "one " }).await;
        live.leave();
        let gone = async {
            while server.fake.heard.running.load(SeqCst) > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, gone).await.expect("the engine's work ends");
        assert!(left().await < before, "{stream_format}: nothing was charged");
    }
}
