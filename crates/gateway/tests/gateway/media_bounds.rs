//! Bounds of pictures: honoured or refused by name, in each dialect and each place that a client may write them.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use hanzo_engine_proto::v1::{content_part::Part, infer_request::Prompt};
use serde_json::{Map, Value, json};

use crate::{
    Server,
    fake::hello,
    http::{json_request, post, send},
    script,
};

const URI: &str = "data:image/png;base64,YWJj";
const SOUND: &str = "data:audio/wav;base64,YWJj";

/// A dialect: its route, and the place of a part in its body.
struct Dialect {
    path: &'static str,
    place: &'static str,
    body: fn(Value) -> Value,
}

const CHAT: Dialect = Dialect {
    path: "/v1/chat/completions",
    place: "messages[0].content[0]",
    body: |part| json!({"messages": [{"role": "user", "content": [part]}]}),
};
const RESPONSES: Dialect = Dialect {
    path: "/v1/responses",
    place: "input[0].content[0]",
    body: |part| json!({"input": [{"role": "user", "content": [part]}]}),
};
const MESSAGES: Dialect = Dialect {
    path: "/v1/messages",
    place: "messages[0].content[0]",
    body: |part| json!({"max_tokens": 9, "messages": [{"role": "user", "content": [part]}]}),
};

/// Each kind of part, and the object inside it that holds the data, if one does.
fn parts() -> Vec<(&'static Dialect, Value, &'static str)> {
    let source = json!({"type": "base64", "media_type": "image/png", "data": "YWJj"});
    let by_url = json!({"type": "url", "url": URI});
    vec![
        (&CHAT, json!({"type": "image_url", "image_url": {"url": URI}}), "image_url"),
        (&CHAT, json!({"type": "image_url", "image_url": URI}), ""),
        (&CHAT, json!({"type": "input_image", "image_url": {"url": URI}}), "image_url"),
        (&CHAT, json!({"type": "image", "image": URI}), ""),
        (&CHAT, json!({"type": "image", "url": "YWJj"}), ""),
        (&CHAT, json!({"type": "video", "video": [URI, URI]}), ""),
        (&RESPONSES, json!({"type": "input_image", "image_url": URI}), ""),
        (&RESPONSES, json!({"type": "input_image", "image_url": {"url": URI}}), "image_url"),
        (&MESSAGES, json!({"type": "image", "source": source}), "source"),
        (&MESSAGES, json!({"type": "image", "source": by_url}), "source"),
    ]
}

fn sounds() -> Vec<(&'static Dialect, Value, &'static str)> {
    let data = json!({"data": "YWJj", "format": "wav"});
    vec![
        (&CHAT, json!({"type": "input_audio", "input_audio": data}), "input_audio"),
        (&CHAT, json!({"type": "audio_url", "audio_url": {"url": SOUND}}), "audio_url"),
        (&RESPONSES, json!({"type": "input_audio", "input_audio": data}), "input_audio"),
    ]
}

fn with(mut object: Value, inner: &str, name: &str, value: &Value) -> Value {
    let at = if inner.is_empty() { &mut object } else { &mut object[inner] };
    let members: &mut Map<String, Value> = at.as_object_mut().unwrap();
    members.insert(name.to_owned(), value.clone());
    object
}

/// The bounds of each picture that the engine is sent, or the field that the request is refused for.
async fn check(server: &Server, path: &str, body: &Value) -> Result<Vec<[u64; 2]>, String> {
    // What the engine has seen is in the order of these ids.
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let mut request = json_request(path, body.to_string());
    let id = format!("bounds-{:06}", COUNT.fetch_add(1, SeqCst));
    request.headers_mut().insert("x-request-id", id.parse().unwrap());
    let answer = send(server.address, request).await;
    if answer.status != 200 {
        assert_eq!(answer.status, 400, "{}", answer.text);
        let error = &answer.json()["error"];
        // Anthropic's errors have no place for the field but their words.
        let message = error["message"].as_str().unwrap();
        let said = message.split(": ").next().unwrap();
        return Err(error["param"].as_str().unwrap_or(said).to_owned());
    }
    let Some(Prompt::Chat(chat)) = server.fake.seen().pop().unwrap().prompt else { panic!("no chat") };
    let media =
        chat.messages.iter().flat_map(|message| &message.content).filter_map(|part| match &part.part {
            Some(Part::Media(media)) => {
                Some([media.min_pixels, media.max_pixels].map(|pixels| pixels.unwrap_or(0)))
            }
            _ => None,
        });
    Ok(media.collect())
}

#[tokio::test]
async fn bounds_of_one_picture_are_honoured_in_it_and_beside_it() {
    let server = Server::start(script(hello)).await;
    for (dialect, part, inner) in parts() {
        let count = part["video"].as_array().map_or(1, Vec::len);
        for place in ["", inner] {
            for (name, bounds) in [("min_pixels", [784, 0]), ("max_pixels", [0, 784])] {
                let body = (dialect.body)(with(part.clone(), place, name, &json!(784)));
                assert_eq!(check(&server, dialect.path, &body).await, Ok(vec![bounds; count]), "{body}");
            }
        }
        if !inner.is_empty() {
            let both = with(part.clone(), "", "max_pixels", &json!(1));
            let both = (dialect.body)(with(both, inner, "max_pixels", &json!(2)));
            let refused = format!("{}.max_pixels", dialect.place);
            assert_eq!(check(&server, dialect.path, &both).await, Err(refused), "{both}");
        }
    }
}

#[tokio::test]
async fn other_bounds_and_unknown_keys_are_refused_by_name() {
    let server = Server::start(script(hello)).await;
    for (dialect, part, inner) in parts().into_iter().chain(sounds()) {
        let join = |name: &str| match inner {
            "" => format!("{}.{name}", dialect.place),
            inner => format!("{}.{inner}.{name}", dialect.place),
        };
        if !inner.is_empty() {
            for name in ["max_pixel", "resized_height", "num_frames", "fps", "sampling_rate", "anything"] {
                let body = (dialect.body)(with(part.clone(), inner, name, &json!(2)));
                assert_eq!(check(&server, dialect.path, &body).await, Err(join(name)), "{body}");
            }
        }
        for name in
            ["resized_height", "resized_width", "total_pixels", "nframes", "max_frames", "sampling_rate"]
        {
            let body = (dialect.body)(with(part.clone(), "", name, &json!(2)));
            let refused = format!("{}.{name}", dialect.place);
            assert_eq!(check(&server, dialect.path, &body).await, Err(refused), "{body}");
        }
    }
}

#[tokio::test]
async fn bounds_of_a_request_are_those_of_each_picture_without_its_own() {
    let server = Server::start(script(hello)).await;
    for (dialect, part, _) in parts() {
        let count = part["video"].as_array().map_or(1, Vec::len);
        let plain = (dialect.body)(part.clone());
        let own = (dialect.body)(with(part, "", "max_pixels", &json!(5000)));
        for (body, kwargs, bounds) in [
            (&plain, json!({}), Ok([0, 0])),
            (&plain, json!(null), Ok([0, 0])),
            (&plain, json!({"max_pixels": 9000}), Ok([0, 9000])),
            (&plain, json!({"min_pixels": 784, "max_pixels": 9000}), Ok([784, 9000])),
            (&plain, json!({"size": {"shortest_edge": 784, "longest_edge": 9000}}), Ok([784, 9000])),
            (&own, json!({"min_pixels": 784, "max_pixels": 9000}), Ok([784, 5000])),
            (&plain, json!({"max_pixels": 0}), Err("max_pixels")),
            (&plain, json!({"max_pixels": "many"}), Err("max_pixels")),
            (&plain, json!({"num_crops": 4}), Err("num_crops")),
            (&plain, json!({"do_resize": false}), Err("do_resize")),
            (&plain, json!({"size": {"height": 4}}), Err("size.height")),
            (&plain, json!([]), Err("")),
        ] {
            let body = with(body.clone(), "", "mm_processor_kwargs", &kwargs);
            let expected = bounds
                .map(|bounds| vec![bounds; count])
                .map_err(|name| format!("mm_processor_kwargs.{name}").trim_end_matches('.').to_owned());
            assert_eq!(check(&server, dialect.path, &body).await, expected, "{body}");
        }
        for (kwargs, refused) in [
            (json!({}), None),
            (json!({"video": {}}), None),
            (json!({"video": {"num_frames": 8}}), Some("media_io_kwargs.video.num_frames")),
            (json!({"image": {"image_mode": "L"}}), Some("media_io_kwargs.image.image_mode")),
            (json!({"audio": 1}), Some("media_io_kwargs.audio")),
        ] {
            let body = with(plain.clone(), "", "media_io_kwargs", &kwargs);
            let said = check(&server, dialect.path, &body).await;
            assert_eq!(said.err().as_deref(), refused, "{body}");
        }
    }
}

#[tokio::test]
async fn routes_without_pictures_of_a_chat_refuse_bounds_by_name() {
    let server = Server::start(script(hello)).await;
    for (path, body) in [
        ("/v1/completions", json!({"prompt": "a"})),
        ("/completion", json!({"prompt": "a"})),
        ("/v1/embeddings", json!({"input": "a"})),
        ("/v1/score", json!({"text_1": "a", "text_2": "b"})),
    ] {
        for name in ["mm_processor_kwargs", "media_io_kwargs"] {
            let body = with(body.clone(), "", name, &json!({"max_pixels": 9000}));
            let answer = post(server.address, path, &body).await;
            assert_eq!(
                (answer.status, answer.json()["error"]["param"].as_str()),
                (400, Some(name)),
                "{path}"
            );
        }
    }
}
