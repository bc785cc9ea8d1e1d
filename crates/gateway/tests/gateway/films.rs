//! Films in chats: their frames, as Qwen's services have them.

use hanzo_engine_proto::v1::{content_part::Part, infer_request::Prompt};
use serde_json::{Value, json};

use crate::{Server, fake::hello, http::post, responses_input::shown, script};

const URI: &str = "data:image/png;base64,YWJj";

fn chat(part: Value) -> Value {
    json!({"messages": [{"role": "user", "content": [part, {"type": "text", "text": "what?"}]}]})
}

#[tokio::test]
async fn frames_of_a_film_are_pictures_one_after_the_other() {
    let server = Server::start(script(hello)).await;
    let film =
        json!({"type": "video", "video": [URI, "data:image/jpeg;base64,ZGVm"], "max_pixels": 9000, "fps": 2});
    let answer = post(server.address, "/v1/chat/completions", &chat(film)).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let Some(Prompt::Chat(chat)) = server.fake.seen().remove(0).prompt else { panic!("not a chat") };
    assert!(matches!(chat.messages[0].content[0].part, Some(Part::Media(_))));
    assert_eq!(shown(&chat.messages[0]), "user: <abc auto [0, 9000]>|<def auto [0, 9000]>|what?");
}

#[tokio::test]
async fn films_that_are_no_frames_are_refused_by_their_place() {
    let server = Server::start(script(hello)).await;
    for (part, place, says) in [
        (json!({"type": "video"}), "video", "required"),
        (json!({"type": "video", "video": "data:video/mp4;base64,YWJj"}), "video", "a list of frames"),
        (json!({"type": "video", "video": []}), "video", "no frames"),
        (json!({"type": "video", "video": vec![URI; 17]}), "video", "more than 16 frames"),
        (json!({"type": "video", "video": [URI, "data:image/png;base64,*"]}), "video[1]", "base64"),
        (json!({"type": "video", "video": [URI], "min_pixels": 0}), "min_pixels", ""),
        (json!({"type": "video_url", "video_url": {"url": URI}}), "type", "video_url is not supported"),
    ] {
        let answer = post(server.address, "/v1/chat/completions", &chat(part)).await;
        assert_eq!(answer.status, 400, "{}", answer.text);
        let error = answer.json()["error"].clone();
        let param = error["param"].as_str().unwrap_or_default();
        assert!(param == format!("messages[0].content[0].{place}"), "{error}");
        assert!(error["message"].as_str().unwrap_or_default().contains(says), "{error}");
    }
}
