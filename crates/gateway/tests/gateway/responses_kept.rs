//! Responses that are kept: what may be asked of them, by whom, and for how long.

use hanzo_engine_access::{KeysFile, Record};
use http_body_util::Full;
use hyper::{Method, Request};
use serde_json::{Value, json};

use crate::{
    Server,
    fake::hello,
    http::{Answer, get, json_request, post, send},
    responses::{body, events},
    responses_input::shown,
    script,
};

const PATH: &str = "/v1/responses";

async fn delete(server: &Server, path: &str) -> Answer {
    let request = Request::builder().method(Method::DELETE).uri(path);
    send(server.address, request.body(Full::<bytes::Bytes>::default()).unwrap()).await
}

async fn made(server: &Server, more: Value) -> Value {
    let answer = post(server.address, PATH, &body(more)).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()
}

fn id(response: &Value) -> String {
    response["id"].as_str().unwrap().to_owned()
}

/// What the model was shown of the request that had that many messages.
fn messages(server: &Server, count: usize) -> Vec<String> {
    let of = |request: hanzo_engine_proto::v1::InferRequest| match request.prompt {
        Some(hanzo_engine_proto::v1::infer_request::Prompt::Chat(chat)) => chat.messages,
        other => panic!("{other:?}"),
    };
    let all: Vec<_> = server.fake.seen().into_iter().map(of).collect();
    let found = all.iter().find(|messages| messages.len() == count);
    found.unwrap_or_else(|| panic!("{all:?}")).iter().map(shown).collect()
}

fn keyed(path: &str, key: &str, body: Option<&Value>) -> Request<Full<bytes::Bytes>> {
    let mut request = match body {
        Some(body) => json_request(path, body.to_string()),
        None => Request::get(path).body(Full::default()).unwrap(),
    };
    request.headers_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
    request
}

#[tokio::test]
async fn a_response_is_followed_by_its_id() {
    let server = Server::start(script(hello)).await;
    let first = made(&server, json!({"instructions": "once", "input": "a"})).await;
    let streamed = body(
        json!({"previous_response_id": id(&first), "input": [{"role": "user", "content": "b"}], "stream": true}),
    );
    let answer = post(server.address, PATH, &streamed).await;
    let second = events(&answer).pop().unwrap()["response"].clone();
    assert_eq!(second["previous_response_id"], id(&first));
    let third =
        made(&server, json!({"previous_response_id": id(&second), "instructions": "now", "input": "c"}))
            .await;
    // Instructions are of their request alone.
    let expected = ["system: now", "user: a", "assistant: Hello", "user: b", "assistant: Hello", "user: c"];
    assert_eq!(messages(&server, 6), expected);
    // A part of the way is gone, and the rest stands.
    assert_eq!(delete(&server, &format!("{PATH}/{}", id(&first))).await.status, 200);
    made(&server, json!({"previous_response_id": id(&third), "input": "d"})).await;
    assert_eq!(messages(&server, 7).last().unwrap(), "user: d");
    // From one response two may go on.
    made(&server, json!({"previous_response_id": id(&second), "input": "other"})).await;
    assert_eq!(messages(&server, 5).last().unwrap(), "user: other");
}

#[tokio::test]
async fn what_is_kept_is_shown_listed_and_removed() {
    let server = Server::start(script(hello)).await;
    let first = made(&server, json!({"input": "a"})).await;
    let item = json!({"type": "function_call_output", "call_id": "c", "output": "o"});
    let input =
        json!([{"id": "mine", "role": "user", "content": "b"}, {"role": "assistant", "content": "x"}, item]);
    let second = made(&server, json!({"previous_response_id": id(&first), "input": input})).await;
    let path = format!("{PATH}/{}", id(&second));
    let shown = get(server.address, &path).await;
    assert_eq!((shown.status, shown.json()), (200, second.clone()));
    let items = |query: &str| {
        let path = format!("{path}/input_items{query}");
        let address = server.address;
        async move { get(address, &path).await }
    };
    let all = items("?order=asc").await.json();
    let kinds: Vec<&Value> = all["data"].as_array().unwrap().iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["message", "message", "message", "message", "function_call_output"]);
    let data = all["data"].as_array().unwrap();
    let own = |response: &Value, kind: &str, place: usize| {
        format!("{kind}_{}{place:04x}", id(response).trim_start_matches("resp_"))
    };
    assert_eq!(
        data[0],
        json!({"id": own(&first, "msg", 0), "type": "message", "status": "completed", "role": "user", "content": [{"type": "input_text", "text": "a"}]})
    );
    assert_eq!(data[1], first["output"][0]);
    assert_eq!(
        data[2],
        json!({"id": "mine", "type": "message", "status": "completed", "role": "user", "content": [{"type": "input_text", "text": "b"}]})
    );
    assert_eq!(data[3]["content"], json!([{"type": "output_text", "text": "x", "annotations": []}]));
    assert_eq!(data[4]["id"], own(&second, "fco", 2));
    assert_eq!(
        (&all["first_id"], &all["last_id"], &all["has_more"]),
        (&data[0]["id"], &data[4]["id"], &json!(false))
    );
    // By pages, the last first.
    let page = items("?limit=2").await.json();
    assert_eq!((&page["data"][0], &page["has_more"]), (&data[4], &json!(true)));
    let rest =
        items(&format!("?limit=3&after={}&include%5B%5D=x", page["last_id"].as_str().unwrap())).await.json();
    assert_eq!(
        (&rest["data"][0], &rest["last_id"], &rest["has_more"]),
        (&data[2], &data[0]["id"], &json!(false))
    );
    for (query, param) in [
        ("?limit=0", "limit"),
        ("?limit=101", "limit"),
        ("?order=up", "order"),
        ("?after=x", "after"),
        ("?odd=1", "odd"),
    ] {
        let answer = items(query).await;
        assert_eq!((answer.status, answer.json()["error"]["param"].as_str()), (400, Some(param)), "{query}");
    }
    let streamed = get(server.address, &format!("{path}?stream=true&starting_after=3")).await;
    assert_eq!((streamed.status, &streamed.json()["error"]["param"]), (400, &json!("stream")));
    let cancelled = post(server.address, &format!("{path}/cancel"), &json!({})).await;
    assert!(cancelled.status == 400 && cancelled.text.contains("Cannot cancel"), "{}", cancelled.text);
    let gone = delete(&server, &path).await;
    assert_eq!(
        (gone.status, gone.json()),
        (200, json!({"id": id(&second), "object": "response", "deleted": true}))
    );
    for answer in [
        delete(&server, &path).await,
        get(server.address, &path).await,
        items("").await,
        post(server.address, &format!("{path}/cancel"), &json!({})).await,
        get(server.address, &format!("{PATH}/resp_..%2Fetc")).await,
    ] {
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (404, &json!("response_not_found")));
    }
    let follows = post(server.address, PATH, &body(json!({"previous_response_id": id(&second)}))).await;
    let error = &follows.json()["error"];
    assert_eq!((follows.status, &error["code"]), (400, &json!("previous_response_not_found")));
    assert_eq!(error["param"], "previous_response_id");
}

#[tokio::test]
async fn an_item_is_named_instead_of_being_sent() {
    let server = Server::start(script(hello)).await;
    let first = made(&server, json!({"input": "a"})).await;
    let said = first["output"][0]["id"].clone();
    for reference in [
        json!({"type": "item_reference", "id": said}),
        json!({"id": said}),
        json!({"type": null, "id": said}),
    ] {
        let input = json!([{"role": "user", "content": "a"}, reference, {"role": "user", "content": "b"}]);
        let second = made(&server, json!({"input": input})).await;
        assert_eq!(messages(&server, 3), ["user: a", "assistant: Hello", "user: b"]);
        let items =
            get(server.address, &format!("{PATH}/{}/input_items?order=asc", id(&second))).await.json();
        assert_eq!(items["data"][1], first["output"][0]);
    }
    for unknown in ["msg_1", &format!("msg_{}0000", "0".repeat(32)), &format!("{}9", said.as_str().unwrap())]
    {
        let input = json!([{"type": "item_reference", "id": unknown}]);
        let answer = post(server.address, PATH, &body(json!({ "input": input }))).await;
        assert_eq!(
            (answer.status, &answer.json()["error"]["param"]),
            (404, &json!("input[0].id")),
            "{unknown}"
        );
    }
}

#[tokio::test]
async fn nothing_is_kept_that_is_not_to_be() {
    let server = Server::start(script(hello)).await;
    let response = made(&server, json!({"store": false})).await;
    assert_eq!(response["store"], false);
    assert_eq!(get(server.address, &format!("{PATH}/{}", id(&response))).await.status, 404);
    let off = Server::with(script(hello), |config| config.responses_max = 0).await;
    assert_eq!(made(&off, json!({})).await["store"], false);
    let asked = post(off.address, PATH, &body(json!({"store": true}))).await;
    assert_eq!((asked.status, &asked.json()["error"]["param"]), (400, &json!("store")));
    // One that is larger than all room says that it is not there.
    let small = Server::with(script(hello), |config| config.responses_bytes_max = Some(2000)).await;
    assert_eq!(made(&small, json!({"input": "x".repeat(3000)})).await["store"], false);
    let last =
        events(&post(small.address, PATH, &body(json!({"input": "x".repeat(3000), "stream": true}))).await)
            .pop();
    assert_eq!(last.unwrap()["response"]["store"], false);
}

#[tokio::test]
async fn the_least_recently_used_is_forgotten_first() {
    let server = Server::with(script(hello), |config| config.responses_max = 2).await;
    let first = made(&server, json!({})).await;
    let second = made(&server, json!({})).await;
    assert_eq!(get(server.address, &format!("{PATH}/{}", id(&first))).await.status, 200);
    made(&server, json!({})).await;
    assert_eq!(get(server.address, &format!("{PATH}/{}", id(&first))).await.status, 200);
    assert_eq!(get(server.address, &format!("{PATH}/{}", id(&second))).await.status, 404);
}

#[tokio::test]
async fn a_response_belongs_to_the_key_that_made_it() {
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys.json");
    let key = |name: &str| {
        let record = Record { name: name.to_owned(), ..Record::default() };
        KeysFile::create(&keys, record).unwrap().text().to_owned()
    };
    let (alice, bob) = (&key("alice"), &key("bob"));
    let server = Server::with(script(hello), |config| config.api_keys_file = Some(keys.clone())).await;
    let first = send(server.address, keyed(PATH, alice, Some(&body(json!({}))))).await.json();
    let (path, said) = (format!("{PATH}/{}", id(&first)), first["output"][0]["id"].clone());
    assert_eq!(send(server.address, keyed(&path, alice, None)).await.status, 200);
    for path in [&path, &format!("{path}/input_items")] {
        assert_eq!(send(server.address, keyed(path, bob, None)).await.status, 404, "{path}");
    }
    let follows = body(json!({"previous_response_id": id(&first)}));
    assert_eq!(send(server.address, keyed(PATH, bob, Some(&follows))).await.status, 400);
    let names = body(json!({"input": [{"type": "item_reference", "id": said}]}));
    assert_eq!(send(server.address, keyed(PATH, bob, Some(&names))).await.status, 404);
    let mut removes = keyed(&path, bob, None);
    *removes.method_mut() = Method::DELETE;
    assert_eq!(send(server.address, removes).await.status, 404);
    assert_eq!(send(server.address, keyed(PATH, alice, Some(&follows))).await.status, 200);
}

#[tokio::test]
async fn responses_on_disk_outlive_the_gateway() {
    let dir = tempfile::tempdir().unwrap();
    let start = || Server::with(script(hello), |config| config.responses_dir = Some(dir.path().join("kept")));
    let mut before = start().await;
    let first = made(&before, json!({"input": "a"})).await;
    before.stop();
    before.stopped().await;
    let after = start().await;
    assert_eq!(get(after.address, &format!("{PATH}/{}", id(&first))).await.json(), first);
    made(&after, json!({"previous_response_id": id(&first), "input": "b"})).await;
    assert_eq!(messages(&after, 3), ["user: a", "assistant: Hello", "user: b"]);
}

#[tokio::test]
async fn tokens_are_counted_with_what_came_before() {
    let server = Server::start(script(hello)).await;
    let first = made(&server, json!({"input": "a"})).await;
    let count = async |more: Value| {
        let answer = post(server.address, &format!("{PATH}/input_tokens"), &body(more)).await;
        (answer.status, answer.json())
    };
    // The fake's tokens are the bytes of what it was shown.
    let text = |messages: usize, tools: &str| format!("^<{messages} messages, {tools} tools>").len();
    let counted = |tokens: usize| (200, json!({"object": "response.input_tokens", "input_tokens": tokens}));
    assert_eq!(count(json!({"instructions": "i"})).await, counted(text(2, "")));
    assert_eq!(count(json!({"previous_response_id": id(&first)})).await, counted(text(3, "")));
    let (status, error) = count(json!({"previous_response_id": "resp_1"})).await;
    assert_eq!((status, &error["error"]["code"]), (400, &json!("previous_response_not_found")));
    assert_eq!(count(json!({"temperature": 1})).await.0, 400);
}

#[tokio::test]
async fn what_is_kept_counts_as_if_it_had_been_sent() {
    let server = Server::with(script(hello), |config| config.body_bytes_max = 6000).await;
    let first = made(&server, json!({"input": "x".repeat(3000)})).await;
    let follow = async |letters: usize| {
        let more = json!({"previous_response_id": id(&first), "input": "x".repeat(letters)});
        post(server.address, PATH, &body(more)).await
    };
    assert_eq!(follow(10).await.status, 200);
    let large = follow(2500).await;
    assert_eq!(
        (large.status, &large.json()["error"]["code"]),
        (413, &json!("body_too_large")),
        "{}",
        large.text
    );
    // A short name of a long item, again and again.
    let item = format!("msg_{}0000", id(&first).trim_start_matches("resp_"));
    for (times, status) in [(1, 200), (2, 413)] {
        let input = vec![json!({"type": "item_reference", "id": item}); times];
        assert_eq!(
            post(server.address, PATH, &body(json!({ "input": input }))).await.status,
            status,
            "{times}"
        );
    }
    // Nothing is left of what was held.
    for _ in 0..60 {
        assert_eq!(follow(10).await.status, 200);
    }
}
