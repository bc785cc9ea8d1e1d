//! Sounds in chats: as OpenAI's and vLLM's clients write them, in both of OpenAI's forms of a conversation.

use hanzo_engine_proto::v1::{content_part::Part, infer_request::Prompt};
use serde_json::{Value, json};

use crate::{Server, fake::hello, http::post, script};

/// Three letters.
const DATA: &str = "YWJj";

fn chat(part: Value) -> (&'static str, Value) {
    (
        "/v1/chat/completions",
        json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "what?"}, part]}]}),
    )
}

fn response(part: Value) -> (&'static str, Value) {
    let content = json!([{"type": "input_text", "text": "what?"}, part]);
    ("/v1/responses", json!({"input": [{"role": "user", "content": content}]}))
}

/// What the engine is played, and as what; or the field that is refused, and why.
async fn check((path, body): (&str, Value)) -> Result<(String, String), (String, String)> {
    let server = Server::start(script(hello)).await;
    let answer = post(server.address, path, &body).await;
    if answer.status != 200 {
        assert_eq!(answer.status, 400, "{}", answer.text);
        let error = answer.json()["error"].clone();
        let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
        return Err((text("param"), text("message")));
    }
    let Some(Prompt::Chat(mut chat)) = server.fake.seen().remove(0).prompt else { panic!("not a chat") };
    let mut content = chat.messages.remove(0).content;
    match (content.remove(1).part, content.remove(0).part) {
        (Some(Part::Media(media)), Some(Part::Text(text))) if text == "what?" => {
            Ok((String::from_utf8_lossy(&media.data).into_owned(), media.mime_type.clone()))
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn sounds_are_parts_of_messages() {
    let sound =
        |format: &str| json!({"type": "input_audio", "input_audio": {"data": DATA, "format": format}});
    let is = |kind: &str| Ok(("abc".to_owned(), kind.to_owned()));
    for format in ["wav", "mp3", "flac", "ogg", "opus", "webm", "m4a", "mp4", "aac", "aiff"] {
        assert_eq!(check(chat(sound(format))).await, is(&format!("audio/{format}")));
    }
    assert_eq!(check(response(sound("mp3"))).await, is("audio/mp3"));
    // The media type is not believed.
    for uri in ["data:audio/wav;base64,YWJj", "data:;base64,YWJj", "data:image/png;base64,YWJj"] {
        assert_eq!(check(chat(json!({"type": "audio_url", "audio_url": {"url": uri}}))).await, is("audio/*"));
        assert_eq!(check(chat(json!({"type": "audio_url", "audio_url": uri}))).await, is("audio/*"));
    }
}

#[tokio::test]
async fn sounds_that_cannot_be_played_are_refused_by_their_place() {
    let sound = |audio: Value| json!({"type": "input_audio", "input_audio": audio});
    let url = |url: &str| json!({"type": "audio_url", "audio_url": {"url": url}});
    let large = "A".repeat((25 << 20) / 3 * 4 + 8);
    for (part, place, says) in [
        (json!({"type": "input_audio"}), "input_audio", "required"),
        (sound(json!({"data": DATA})), "input_audio.format", "required"),
        (sound(json!({"data": DATA, "format": "pcm16"})), "input_audio.format", "expected one of wav, mp3"),
        (sound(json!({"format": "wav"})), "input_audio.data", "required"),
        (
            sound(json!({"data": "", "format": "wav"})),
            "input_audio.data",
            "is empty; send the bytes of a sound",
        ),
        (sound(json!({"data": "*", "format": "wav"})), "input_audio.data", "is not base64"),
        (url("data:audio/wav,abc"), "audio_url.url", "send data:audio/wav;base64"),
        (url("file:///etc/passwd"), "audio_url.url", "nothing is fetched"),
        (url("http://a/b.wav"), "audio_url.url", "nothing is fetched here"),
        (json!({"type": "audio_url"}), "audio_url", "required"),
    ] {
        let (param, message) = check(chat(part.clone())).await.unwrap_err();
        assert_eq!(param, format!("messages[0].content[1].{place}"), "{part}: {message}");
        assert!(message.contains(says), "{part}: {message}");
    }
    let server = Server::with(script(hello), |config| {
        (config.body_bytes_max, config.bodies_bytes_max) = (64 << 20, 64 << 20);
    })
    .await;
    let (path, body) = chat(sound(json!({"data": large, "format": "wav"})));
    let answer = post(server.address, path, &body).await;
    let error = answer.json()["error"].clone();
    assert_eq!((answer.status, &error["param"]), (400, &json!("messages[0].content[1].input_audio.data")));
    assert!(error["message"].as_str().unwrap().contains("at most 26214400 are taken"), "{error}");
    let (param, _) = check(response(sound(json!({"data": "*", "format": "wav"})))).await.unwrap_err();
    assert_eq!(param, "input[0].content[1].input_audio.data");
    // Nobody else's message has one.
    for (path, body, param) in [
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "assistant", "content": [sound(json!({"data": DATA, "format": "wav"}))]}]}),
            "messages[0].content[0].type",
        ),
        (
            "/v1/responses",
            json!({"input": [{"role": "assistant", "content": [sound(json!({"data": DATA, "format": "wav"}))]}]}),
            "input[0].content[0].type",
        ),
    ] {
        assert_eq!(check((path, body)).await.unwrap_err().0, param);
    }
}
