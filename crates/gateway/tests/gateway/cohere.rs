//! `/v2/embed`, in Cohere's words: what the engine is asked, what is answered, and what is refused by name.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use base64::Engine as _;
use hanzo_engine_proto::v1::{self, TruncateSide, content_part::Part, embed_input::Input};
use serde_json::{Value, json};

use crate::{
    Server, embeddings,
    http::{Answer, json_request, send},
    vectors::{DIMENSIONS, all_kinds, vector},
};

const URI: &str = "data:image/png;base64,AQID";

/// Asks, under ids that are in the order of the questions.
async fn embed(server: &Server, body: Value) -> Answer {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    let mut request = json_request("/v2/embed", body.to_string());
    let id = format!("q-{:06}", ASKED.fetch_add(1, SeqCst));
    request.headers_mut().insert("x-request-id", id.parse().unwrap());
    send(server.address, request).await
}

/// What `ClientV2.embed` of the official package sends.
fn texts() -> Value {
    json!({"model": "owner/embeds", "input_type": "search_document", "texts": ["ab", "abc"],
        "embedding_types": ["float"], "truncate": "END"})
}

#[tokio::test]
async fn texts_are_answered_in_every_kind_that_is_asked_for() {
    let server = embeddings::start().await;
    let answer = embed(&server, texts()).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let body = answer.json();
    let expected = [b"ab".as_slice(), b"abc"].map(|text| vector(text, DIMENSIONS, true));
    let floats = |value: &Value| -> Vec<Vec<f32>> { serde_json::from_value(value.clone()).unwrap() };
    assert_eq!(floats(&body["embeddings"]["float"]), expected);
    assert_eq!(body["embeddings"].as_object().unwrap().len(), 1);
    assert_eq!(body["texts"], json!(["ab", "abc"]));
    assert_eq!(body["response_type"], "embeddings_by_type");
    assert_eq!(
        body["meta"],
        json!({"api_version": {"version": "2"}, "billed_units": {"input_tokens": 5, "images": 0}})
    );
    assert!(body["id"].as_str().is_some_and(|id| !id.is_empty()));
    let mut all = texts();
    all["embedding_types"] = json!(["float", "base64", "binary", "ubinary"]);
    let body = embed(&server, all).await.json();
    assert_eq!(floats(&body["embeddings"]["float"]), expected);
    let packed: Vec<u8> = expected[1].iter().flat_map(|number| number.to_le_bytes()).collect();
    let encoded = base64::engine::general_purpose::STANDARD.encode(packed);
    assert_eq!(body["embeddings"]["base64"][1], encoded);
    let signs =
        expected[1].iter().enumerate().map(|(at, &number)| i32::from(number > 0.0) << (7 - at)).sum::<i32>();
    assert_eq!(body["embeddings"]["ubinary"][1], json!([signs]));
    assert_eq!(body["embeddings"]["binary"][1], json!([signs - 128]));
    // None named: float.
    let body = embed(&server, json!({"texts": ["ab"]})).await.json();
    assert_eq!(floats(&body["embeddings"]["float"]), expected[..1]);
}

#[tokio::test]
async fn what_texts_are_for_is_the_models_prompt() {
    let server = embeddings::start().await;
    let mut stats = all_kinds();
    let prompt_names = ["document", "query"].map(str::to_owned).to_vec();
    for model in &mut stats.models {
        let status = model.status.as_mut().unwrap();
        status.embedder = Some(v1::Embedder { prompt_names: prompt_names.clone(), ..Default::default() });
    }
    for (input_type, expected) in [
        (json!("search_query"), "query"),
        (json!("search_document"), "document"),
        (json!("clustering"), ""),
        (json!(null), ""),
    ] {
        server.fake.set_stats(Ok(stats.clone()));
        let mut body = texts();
        body["input_type"] = input_type.clone();
        assert_eq!(embed(&server, body).await.status, 200);
        assert_eq!(server.fake.embeds().pop().unwrap().prompt_name, expected, "{input_type}");
    }
    // A model without any makes no difference.
    server.fake.set_stats(Ok(all_kinds()));
    assert_eq!(embed(&server, texts()).await.status, 200);
    assert_eq!(server.fake.embeds().pop().unwrap().prompt_name, "");
}

#[tokio::test]
async fn pictures_and_what_is_both_arrive() {
    let server = embeddings::start().await;
    let body = json!({"model": "owner/embeds", "input_type": "image", "images": [URI, URI], "embedding_types": ["float"]});
    let answer = embed(&server, body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let answered = answer.json();
    assert_eq!(answered["embeddings"]["float"].as_array().unwrap().len(), 2);
    assert_eq!(answered["meta"]["billed_units"]["images"], 2);
    assert!(answered.get("texts").is_none());
    let request = server.fake.embeds().remove(0);
    for input in &request.inputs {
        let Some(Input::Picture(picture)) = &input.input else { panic!("{input:?}") };
        assert_eq!(picture.data.to_vec(), [1, 2, 3]);
    }
    let text = json!({"type": "text", "text": "a cat"});
    let picture = json!({"type": "image_url", "image_url": {"url": URI}});
    let inputs = json!([{"content": [text]}, {"content": [picture]}, {"content": [text, picture]}]);
    let body = json!({"model": "owner/embeds", "input_type": "search_document", "inputs": inputs, "output_dimension": 3, "truncate": "START"});
    let answer = embed(&server, body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(answer.json()["meta"]["billed_units"]["images"], 2);
    let request = server.fake.embeds().pop().unwrap();
    assert_eq!(
        (request.dimensions, request.truncate, request.truncate_side()),
        (3, true, TruncateSide::Left)
    );
    assert!(matches!(&request.inputs[0].input, Some(Input::Text(text)) if text == "a cat"));
    assert!(matches!(&request.inputs[1].input, Some(Input::Picture(_))));
    let Some(Input::Chat(chat)) = &request.inputs[2].input else { panic!("{:?}", request.inputs[2]) };
    assert_eq!((chat.messages.len(), chat.messages[0].role.as_str()), (1, "user"));
    let [first, second] = &chat.messages[0].content[..] else { panic!("{chat:?}") };
    assert!(matches!(&first.part, Some(Part::Text(text)) if text == "a cat"));
    assert!(matches!(&second.part, Some(Part::Media(_))));
}

#[tokio::test]
async fn what_cannot_be_done_is_refused_by_name() {
    let server = embeddings::start().await;
    let with = |name: &str, value: Value| {
        let mut body = texts();
        body[name] = value;
        body
    };
    for (body, param) in [
        (json!({"model": "owner/embeds"}), "texts"),
        (with("images", json!([URI])), "images"),
        (with("inputs", json!([{"content": []}])), "inputs"),
        (with("texts", json!([])), "texts"),
        (with("texts", json!(["a", ""])), "texts[1]"),
        (with("texts", json!(vec!["a"; 97])), "texts"),
        (with("input_type", json!("poetry")), "input_type"),
        (with("embedding_types", json!([])), "embedding_types"),
        (with("embedding_types", json!(["float", "int8"])), "embedding_types[1]"),
        (with("embedding_types", json!(["half"])), "embedding_types[0]"),
        (with("truncate", json!("MIDDLE")), "truncate"),
        (with("output_dimension", json!(0)), "output_dimension"),
        (with("max_tokens", json!(7)), "max_tokens"),
        (with("colour", json!("red")), "colour"),
        (json!({"images": ["data:image/png;base64,*"]}), "images[0]"),
        (json!({"images": [7]}), "images[0]"),
        (json!({"inputs": [{"content": []}]}), "inputs[0].content"),
        (json!({"inputs": [{"content": [{"type": "audio"}]}]}), "inputs[0].content[0].type"),
        (json!({"inputs": [{"content": [{"type": "text"}]}]}), "inputs[0].content[0].text"),
        (
            json!({"inputs": [{"content": [{"type": "text", "text": "a", "image_url": {"url": URI}}]}]}),
            "inputs[0].content[0].image_url",
        ),
        (
            json!({"inputs": [{"content": [{"type": "image_url", "text": "a", "image_url": {"url": URI}}]}]}),
            "inputs[0].content[0].text",
        ),
    ] {
        let answer = embed(&server, body.clone()).await;
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(param)), "{body}");
    }
    assert!(server.fake.embeds().is_empty());
}
