//! `/v1/audio/transcriptions` and `/v1/audio/translations`: every shape, every refusal, files in any order of the form, of any
//! size, and clients that leave.

use std::{convert::Infallible, sync::atomic::Ordering::SeqCst, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http_body_util::Full;
use hyper::Request;
use serde_json::json;

use crate::{
    PATIENCE, Server,
    fake::hello,
    http::{Answer, Live, send},
    script,
};

const PATH: &str = "/v1/audio/transcriptions";

/// Fields and files of a form, in order; a file has a name.
fn form(parts: &[(&str, Option<&str>, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, file, bytes) in parts {
        let file =
            file.map_or(String::new(), |file| format!("; filename=\"{file}\"\r\nContent-Type: audio/wav"));
        body.extend(format!("--xx\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n").bytes());
        body.extend_from_slice(bytes);
        body.extend(b"\r\n");
    }
    body.extend(b"--xx--\r\n");
    body
}

fn request(path: &str, body: Vec<u8>) -> Request<Full<Bytes>> {
    let kind = "multipart/form-data; boundary=xx";
    Request::post(path).header("content-type", kind).body(Full::new(body.into())).unwrap()
}

const FILE: (&str, Option<&str>, &[u8]) = ("file", Some("a.wav"), b"a sound");
const MODEL: (&str, Option<&str>, &[u8]) = ("model", None, b"hears");

/// A request for a file's text.
pub(crate) fn asked(fields: &[(&str, &str)]) -> Request<Full<Bytes>> {
    let mut parts = vec![MODEL];
    parts.extend(fields.iter().map(|(name, value)| (*name, None, value.as_bytes())));
    parts.push(FILE);
    request(PATH, form(&parts))
}

async fn ask(server: &Server, fields: &[(&str, &str)]) -> Answer {
    send(server.address, asked(fields)).await
}

#[tokio::test]
async fn answers_are_in_openais_shapes() {
    let server = Server::start(script(hello)).await;
    let answer = ask(&server, &[]).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let usage = json!({"type": "duration", "seconds": 3.0});
    assert_eq!(answer.json(), json!({"text": "Guten Tag. Auf Wiedersehen.", "usage": usage}));
    let answer = ask(&server, &[("response_format", "text"), ("temperature", "0.4")]).await;
    assert_eq!(answer.text, "Guten Tag. Auf Wiedersehen.\n");
    assert_eq!(answer.header("content-type"), Some("text/plain; charset=utf-8"));
    let answer = ask(&server, &[("response_format", "srt"), ("language", "de")]).await;
    let srt = "1\n00:00:00,000 --> 00:00:01,250\nGuten Tag.\n\n2\n00:00:01,500 --> 00:00:02,750\nAuf Wiedersehen.\n\n";
    assert_eq!(answer.text, srt);
    let answer = ask(&server, &[("response_format", "vtt"), ("prompt", "Namen")]).await;
    assert!(
        answer.text.starts_with("WEBVTT\n\n00:00:00.000 --> 00:00:01.250\nGuten Tag.\n\n"),
        "{}",
        answer.text
    );
    let both = [("timestamp_granularities[]", "word"), ("timestamp_granularities[]", "segment")];
    let answer = ask(&server, &[("response_format", "verbose_json"), both[0], both[1]]).await.json();
    assert_eq!((&answer["task"], &answer["language"]), (&json!("transcribe"), &json!("german")));
    assert_eq!(answer["duration"], 3.0);
    assert_eq!(answer["words"][1], json!({"word": "Tag.", "start": 0.0, "end": 0.5}));
    let segment = json!({
        "id": 1, "seek": 0, "start": 1.5, "end": 2.75, "text": " Auf Wiedersehen.", "tokens": [7], "temperature": 0.0,
        "avg_logprob": -0.25, "compression_ratio": 1.5, "no_speech_prob": 0.125,
    });
    assert_eq!(answer["segments"][1], segment);
    let answer = ask(&server, &[("response_format", "verbose_json"), both[0]]).await.json();
    assert!(answer.get("segments").is_none() && answer["words"].is_array(), "{answer}");
    let answer = ask(&server, &[("include[]", "logprobs")]).await.json();
    let logprob = json!({"token": " Guten Tag.", "logprob": -0.5, "bytes": b" Guten Tag.".to_vec()});
    assert_eq!(answer["logprobs"][0], logprob);

    let answer = ask(&server, &[("stream", "true"), ("include[]", "logprobs")]).await;
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    let events = answer.events();
    assert_eq!(events[0], json!({"type": "transcript.text.delta", "delta": "Guten Tag."}));
    assert_eq!(events[1]["delta"], " Auf Wiedersehen.");
    assert_eq!(events.len(), 3, "{events:?}");
    assert_eq!(
        (&events[2]["type"], &events[2]["text"]),
        (&json!("transcript.text.done"), &json!("Guten Tag. Auf Wiedersehen."))
    );
    assert_eq!(
        (&events[2]["usage"]["total_tokens"], &events[2]["logprobs"][1]["logprob"]),
        (&json!(13), &json!(-0.5))
    );

    let translated = form(&[FILE, MODEL, ("response_format", None, b"verbose_json")]);
    let answer = send(server.address, request("/v1/audio/translations", translated)).await.json();
    assert_eq!((&answer["task"], &answer["language"]), (&json!("translate"), &json!("english")));

    let heard = server.fake.heard.whole.lock().unwrap().clone();
    assert!(heard.iter().all(|(config, file)| config.model == "hears" && file == b"a sound"));
    assert!(heard.iter().all(|(config, _)| config.file_name == "a.wav" && config.mime_type == "audio/wav"));
    assert_eq!((&heard[1].0.temperatures[..], heard[2].0.language.as_str()), (&[0.4][..], "de"));
    assert_eq!(heard[3].0.prompt, "Namen");
    assert!(heard[4].0.word_timestamps && !heard[3].0.word_timestamps && heard[6].0.logprobs);
    assert!(heard.last().unwrap().0.translate);
}

#[tokio::test]
async fn what_cannot_be_honoured_is_refused_by_name() {
    let server = Server::start(script(hello)).await;
    let check =
        async |parts: &[(&str, Option<&str>, &[u8])], status: u16, param: Option<&str>, says: &str| {
            let answer = send(server.address, request(PATH, form(parts))).await;
            let error = answer.json()["error"].clone();
            assert_eq!((answer.status, error["param"].as_str()), (status, param), "{error}");
            assert!(error["message"].as_str().unwrap().contains(says), "{error}");
        };
    let field = |name, value: &'static str| (name, None, value.as_bytes());
    check(&[MODEL], 400, Some("file"), "required").await;
    check(&[MODEL, FILE, FILE], 400, Some("file"), "twice").await;
    check(&[MODEL, MODEL, FILE], 400, Some("model"), "twice").await;
    check(&[MODEL, field("colour", "red"), FILE], 400, Some("colour"), "unknown field").await;
    check(&[FILE, MODEL, field("colour", "red")], 400, Some("colour"), "unknown field").await;
    check(&[MODEL, field("temperature", "hot"), FILE], 400, Some("temperature"), "number").await;
    check(&[MODEL, field("temperature", "1.5"), FILE], 400, Some("temperature"), "1").await;
    check(&[MODEL, field("response_format", "xml"), FILE], 400, Some("response_format"), "verbose_json")
        .await;
    check(&[MODEL, field("stream", "perhaps"), FILE], 400, Some("stream"), "boolean").await;
    check(
        &[MODEL, field("include[]", "logprobs"), field("response_format", "srt"), FILE],
        400,
        Some("include"),
        "json",
    )
    .await;
    check(
        &[MODEL, field("timestamp_granularities[]", "word"), FILE],
        400,
        Some("timestamp_granularities"),
        "verbose_json",
    )
    .await;
    check(
        &[MODEL, field("stream", "true"), field("response_format", "vtt"), FILE],
        400,
        Some("stream"),
        "json",
    )
    .await;
    check(&[MODEL, field("known_speaker_names[]", "A"), FILE], 400, Some("known_speaker_names"), "").await;
    check(&[MODEL, ("file", Some("a.mp4"), b"mute film")], 400, Some("file"), "no audio track").await;
    check(&[MODEL, ("file", Some("a.mp4"), b"")], 400, Some("file"), "is empty").await;
    check(&[field("model", "nobody"), FILE], 404, Some("model"), "not loaded").await;
    let language = [field("language", "de"), FILE, MODEL];
    let answer = send(server.address, request("/v1/audio/translations", form(&language))).await;
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("language")));
    // What is no form.
    let post = |kind: &str, body: &'static str| {
        Request::post(PATH).header("content-type", kind).body(Full::new(Bytes::from(body))).unwrap()
    };
    assert_eq!(send(server.address, post("application/json", "{}")).await.status, 415);
    assert_eq!(send(server.address, post("multipart/form-data", "--xx--")).await.status, 415);
    let multipart = "multipart/form-data; boundary=xx";
    for body in
        ["", "no form", "--xx\r\n\r\n", "--xx\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nabc"]
    {
        let answer = send(server.address, post(multipart, body)).await;
        assert_eq!(answer.status, 400, "{body:?}: {}", answer.text);
    }
    assert_eq!(server.fake.heard.running.load(SeqCst), 0);
}

#[tokio::test]
async fn a_file_comes_before_or_behind_its_fields_and_is_not_held_where_it_is_large() {
    let server = Server::with(script(hello), |config| config.sound_bytes_max = 3_000_000).await;
    let large: Vec<u8> = (0..2_900_000_u32).map(|n| (n % 251) as u8).collect();
    let file = ("file", Some("b.flac"), &large[..]);
    let language = ("language", None, &b"de"[..]);
    for parts in [[MODEL, language, file], [file, MODEL, language]] {
        let answer = send(server.address, request(PATH, form(&parts))).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let heard = server.fake.heard.whole.lock().unwrap().pop().unwrap();
        assert!(heard.1 == large && heard.0.language == "de" && heard.0.file_name == "b.flac");
    }
    // It has begun by the time that this comes.
    let answer = send(server.address, request(PATH, form(&[MODEL, file, language]))).await;
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("language")));
    let small = ("file", Some("b.flac"), &large[..200_000]);
    let answer = send(server.address, request(PATH, form(&[MODEL, small, language]))).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let huge = vec![1; 3_100_000];
    for parts in [[MODEL, ("file", Some("c.wav"), &huge[..])], [("file", Some("c.wav"), &huge[..]), MODEL]] {
        let answer = send(server.address, request(PATH, form(&parts))).await;
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (413, &json!("body_too_large")));
        // What is left of it is not read, so the next request needs another connection.
        assert_eq!(answer.header("connection"), Some("close"));
    }
    until_none_is_heard(&server).await;
}

/// No request is left with the engine.
async fn until_none_is_heard(server: &Server) {
    let none = async {
        while server.fake.heard.running.load(SeqCst) > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, none).await.expect("a request is left with the engine");
}

#[tokio::test]
async fn bombs_and_endless_forms_end() {
    let server = Server::with(script(hello), |config| config.sound_bytes_max = 2_000_000).await;
    let many: Vec<(String, Vec<u8>)> = (0..200).map(|n| (format!("f{n}"), b"x".to_vec())).collect();
    let many: Vec<_> = many.iter().map(|(name, value)| (name.as_str(), None, &value[..])).collect();
    let long = vec![b'x'; 100_000];
    let mut header = b"--xx\r\nContent-Disposition: form-data; name=\"".to_vec();
    header.extend(vec![b'n'; 1_500_000]);
    for body in [form(&many), form(&[MODEL, ("prompt", None, &long)]), header] {
        let answer = send(server.address, request(PATH, body)).await;
        assert_eq!(answer.status, 400, "{}", answer.text);
    }
    // A file that never ends, of a client that reads no answer until it has sent all.
    let head = form(&[MODEL, ("file", Some("a.wav"), b"")]);
    let head = head[..head.len() - 10].to_vec();
    let pieces =
        stream::iter([Bytes::from(head)]).chain(stream::repeat(Bytes::from(vec![7; 60_000])).take(300));
    let endless = Body::from_stream(pieces.map(Ok::<_, Infallible>));
    let kind = "multipart/form-data; boundary=xx";
    let asked = Request::post(PATH).header("content-type", kind).body(endless).unwrap();
    let answer = send(server.address, asked).await;
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (413, &json!("body_too_large")));
    until_none_is_heard(&server).await;
}

#[tokio::test]
async fn who_leaves_leaves_nothing() {
    let server = Server::start(script(hello)).await;
    let large = vec![7; 600_000];
    let all = form(&[MODEL, ("file", Some("a.wav"), &large)]);
    let begun = stream::iter([Bytes::from(all[..all.len() - 50].to_vec())]).chain(stream::pending());
    let kind = "multipart/form-data; boundary=xx";
    let body = Body::from_stream(begun.map(Ok::<_, Infallible>));
    let asked = Request::post(PATH).header("content-type", kind).body(body).unwrap();
    let address = server.address;
    let waiting = tokio::spawn(async move { Live::open(address, asked).await });
    let begun = async {
        while server.fake.heard.running.load(SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, begun).await.expect("the engine was not asked while the file came");
    waiting.abort();
    until_none_is_heard(&server).await;
}
