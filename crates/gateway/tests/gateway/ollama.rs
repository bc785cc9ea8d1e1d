//! Ollama's API to the letter: answers whole and in lines, what is refused, and the routes about models.

use hanzo_engine_proto::v1::{self, FinishReason, constraint::Of, infer_request::Prompt};
use hyper::Request;
use serde_json::{Value, json};
use tonic::Status;

use crate::{
    Server,
    fake::{Step, delta, finished, hello, logprob, part, ready_stats, reasoning, started, with_logprobs},
    http::{Answer, get, json_request, post, send},
    keys::Keys,
    script,
};

fn chat(more: Value) -> Value {
    let mut body = json!({"model": "owner/ready", "messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn prompt(more: Value) -> Value {
    let mut body = json!({"model": "owner/ready", "prompt": "hi", "stream": false});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Thoughts, words, two calls and one that is none.
fn called() -> Vec<Step> {
    vec![
        started(),
        reasoning(0, "Hm"),
        reasoning(0, "m."),
        delta(0, "I look."),
        part(0, "c1", "weather", "{\"zone\":1,", false),
        part(0, "", "", "\"city\":\"Rome\"}", false),
        part(1, "c2", "none", "{", false),
        part(1, "", "", "", true),
        delta(0, "<call>"),
        part(2, "c3", "time", "{}", false),
        finished(0, FinishReason::ToolCalls, 9),
    ]
}

/// The lines of a stream, each with its time taken off.
fn lines(answer: &Answer) -> Vec<Value> {
    let line = |line: &str| {
        let mut line: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        assert_eq!(line["model"], "owner/ready", "{line}");
        let at = line.as_object_mut().unwrap().remove("created_at").unwrap();
        assert!(at.as_str().unwrap().ends_with('Z'), "{at}");
        line
    };
    answer.text.lines().map(line).collect()
}

/// The numbers at the end of an answer, of which those that are measured here are taken off.
fn end(mut line: Value) -> Value {
    let fields = line.as_object_mut().unwrap();
    let (total, load) = (fields.remove("total_duration").unwrap(), fields.remove("load_duration").unwrap());
    assert!(total.as_u64().unwrap() > load.as_u64().unwrap(), "{total} {load}");
    line
}

fn counts(mut line: Value, eval_count: u32) -> Value {
    let own = json!({"prompt_eval_count": 7, "prompt_eval_duration": 2_000_000, "eval_count": eval_count, "eval_duration": 3_000_000});
    line.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
    line
}

#[tokio::test]
async fn a_chat_streams_lines_unless_asked_otherwise() {
    let server = Server::start(script(|_| Ok(called()))).await;
    let answer = post(server.address, "/api/chat", &chat(json!({}))).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/x-ndjson")));
    let mut lines = lines(&answer);
    let last = end(lines.pop().unwrap());
    let message = |message: Value| json!({"model": "owner/ready", "message": message, "done": false});
    let weather = json!({"id": "c1", "function": {"index": 0, "name": "weather", "arguments": {"zone": 1, "city": "Rome"}}});
    let time = json!({"id": "c3", "function": {"index": 1, "name": "time", "arguments": {}}});
    let expected = [
        message(json!({"role": "assistant", "content": "", "thinking": "Hm"})),
        message(json!({"role": "assistant", "content": "", "thinking": "m."})),
        message(json!({"role": "assistant", "content": "I look."})),
        message(json!({"role": "assistant", "content": "", "tool_calls": [weather]})),
        message(json!({"role": "assistant", "content": "<call>"})),
        message(json!({"role": "assistant", "content": "", "tool_calls": [time]})),
    ];
    assert_eq!(lines, expected);
    let done = json!({"model": "owner/ready", "message": {"role": "assistant", "content": ""}, "done": true, "done_reason": "stop"});
    assert_eq!(last, counts(done, 9));

    let whole = post(server.address, "/api/chat", &chat(json!({"stream": false}))).await;
    assert_eq!(whole.header("content-type"), Some("application/json"));
    let mut whole = whole.json();
    assert!(whole.as_object_mut().unwrap().remove("created_at").is_some());
    let message = json!({"role": "assistant", "content": "I look.<call>", "thinking": "Hmm.", "tool_calls": [weather, time]});
    let done = json!({"model": "owner/ready", "message": message, "done": true, "done_reason": "stop"});
    assert_eq!(end(whole), counts(done, 9));
}

#[tokio::test]
async fn what_a_chat_says_reaches_the_engine() {
    let server = Server::start(script(hello)).await;
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    let schema = json!({"type": "object", "properties": {"b": {}, "a": {}}});
    let body = chat(json!({
        "stream": false, "tools": [tool], "format": schema, "think": false, "keep_alive": "10m", "shift": true,
        "options": {"temperature": 0.5, "num_predict": 12, "stop": ["x"], "num_keep": 3, "num_ctx": 4096, "seed": 4},
        "logprobs": true, "top_logprobs": 2,
    }));
    assert_eq!(post(server.address, "/api/chat", &body).await.status, 200);
    let asked = server.fake.seen().remove(0);
    let (drawn, stop) = (asked.sampling.clone().unwrap(), asked.stop.clone().unwrap());
    assert_eq!((drawn.temperature, drawn.seed), (Some(0.5), Some(4)));
    assert_eq!((stop.max_tokens, stop.strings), (Some(12), vec!["x".to_owned()]));
    assert_eq!(
        (asked.keep_alive.as_deref(), asked.keep_tokens, asked.context_shift),
        (Some("10m"), Some(3), Some(true))
    );
    assert_eq!((asked.logprobs, asked.top_logprobs), (true, 2));
    assert_eq!(asked.constraint.unwrap().of, Some(Of::JsonSchema(schema.to_string())));
    let Some(Prompt::Chat(prompt)) = asked.prompt else { panic!("no chat") };
    assert_eq!(prompt.template_kwargs_json, r#"{"enable_thinking":false}"#);
    assert_eq!(prompt.tools_json, [tool.to_string()]);

    let begun = json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": "The"}]);
    post(server.address, "/api/chat", &chat(json!({"messages": begun, "format": "json"}))).await;
    let asked = server.fake.seen().pop().unwrap();
    let begun = server
        .fake
        .seen()
        .into_iter()
        .find(|r| r.constraint == Some(v1::Constraint { of: Some(Of::JsonObject(true)) }));
    let Some(Prompt::Chat(prompt)) = begun.unwrap_or(asked).prompt else { panic!("no chat") };
    assert!(prompt.continue_final_message && prompt.add_generation_prompt == Some(false));
}

#[tokio::test]
async fn a_prompt_is_answered_in_its_own_field() {
    let server = Server::start(script(|_| {
        let top = vec![logprob("Hi", -0.5, Vec::new())];
        Ok(vec![
            started(),
            reasoning(0, "Hm"),
            with_logprobs(0, "Hi", vec![logprob("Hi", -0.5, top)]),
            finished(0, FinishReason::Length, 2),
        ])
    }))
    .await;
    let answer =
        post(server.address, "/api/generate", &prompt(json!({"logprobs": true, "top_logprobs": 1}))).await;
    let mut whole = answer.json();
    assert!(whole.as_object_mut().unwrap().remove("created_at").is_some(), "{}", answer.text);
    let token = json!({"token": "Hi", "logprob": -0.5, "bytes": [72, 105]});
    let mut shown = token.clone();
    shown["top_logprobs"] = json!([token]);
    let done = json!({"model": "owner/ready", "response": "Hi", "thinking": "Hm", "done": true, "logprobs": [shown], "done_reason": "length"});
    assert_eq!(end(whole), counts(done, 2));
    let streamed = post(server.address, "/api/generate", &prompt(json!({"stream": true}))).await;
    let said: Vec<Value> = lines(&streamed)
        .iter()
        .map(|line| json!([line["response"], line["thinking"], line["done"]]))
        .collect();
    assert_eq!(said, [json!(["", "Hm", false]), json!(["Hi", null, false]), json!(["", null, true])]);
}

#[tokio::test]
async fn a_model_without_a_template_goes_on_from_the_text() {
    let server = Server::start(script(|request| match &request.prompt {
        Some(Prompt::Chat(_)) => Err(Status::failed_precondition("model: owner/ready has no chat template")),
        _ => hello(request),
    }))
    .await;
    let answer = post(server.address, "/api/generate", &prompt(json!({"system": "Be."}))).await;
    assert_eq!((answer.status, &answer.json()["response"]), (200, &json!("Hello")), "{}", answer.text);
    let texts = server.fake.seen().into_iter().filter_map(|r| match r.prompt {
        Some(Prompt::Text(text)) => Some(text),
        _ => None,
    });
    assert_eq!(texts.collect::<Vec<_>>(), ["Be.\n\nhi"]);
    // A chat has no such way out.
    let refused = post(server.address, "/api/chat", &chat(json!({}))).await;
    assert_eq!(
        (refused.status, refused.json()),
        (400, json!({"error": "model: owner/ready has no chat template"}))
    );
}

#[tokio::test]
async fn a_chat_that_does_not_fit_loses_its_oldest_messages() {
    // Four messages fit, and the fake's tokens say so too: they are its text's bytes.
    let server = Server::start(script(|request| match &request.prompt {
        Some(Prompt::Chat(chat)) if chat.messages.len() > 4 => {
            let mut map = tonic::metadata::MetadataMap::new();
            map.insert("error-code", "context_length_exceeded".parse().unwrap());
            Err(Status::with_metadata(
                tonic::Code::InvalidArgument,
                "prompt: 9 tokens, the context is 4",
                map,
            ))
        }
        _ => hello(request),
    }))
    .await;
    server.fake.fit_messages(4);
    let say = |role: &str, text: &str| json!({"role": role, "content": text});
    let call = json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]});
    let messages = json!([
        say("system", "s"),
        say("user", "1"),
        call,
        say("tool", "2"),
        say("user", "3"),
        say("assistant", "4"),
        say("user", "5"),
    ]);
    let answer =
        post(server.address, "/api/chat", &chat(json!({"messages": messages, "stream": false}))).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let chats: Vec<Vec<String>> = server
        .fake
        .seen()
        .into_iter()
        .map(|r| match r.prompt {
            Some(Prompt::Chat(chat)) => chat
                .messages
                .into_iter()
                .map(|m| format!("{}{:?}", m.role, m.content.first().and_then(|p| p.part.clone())))
                .collect(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(chats.iter().map(Vec::len).max(), Some(7));
    let kept = chats.iter().min_by_key(|chat| chat.len()).unwrap();
    assert_eq!(kept.len(), 4, "{kept:?}");
    assert!(
        kept[0].starts_with("system") && kept[1].contains("\"3\"") && kept[3].contains("\"5\""),
        "{kept:?}"
    );
    let whole =
        post(server.address, "/api/chat", &chat(json!({"messages": messages, "truncate": false}))).await;
    assert_eq!(whole.status, 400, "{}", whole.text);
}

#[tokio::test]
async fn asking_nothing_loads_and_no_time_unloads() {
    let server = Server::start(script(hello)).await;
    for (path, body) in [
        ("/api/generate", json!({"model": "owner/ready", "keep_alive": -1})),
        ("/api/chat", json!({"model": "owner/ready", "messages": [], "keep_alive": -1})),
    ] {
        let answer = post(server.address, path, &body).await;
        let shown = answer.json();
        assert_eq!(
            (answer.status, &shown["done"], &shown["done_reason"]),
            (200, &json!(true), &json!("load")),
            "{}",
            answer.text
        );
        assert_eq!(server.fake.tokenized().pop().unwrap().keep_alive.as_deref(), Some("-1"));
        let mut body = body;
        body["keep_alive"] = json!("0s");
        let answer = post(server.address, path, &body).await;
        assert_eq!(
            (answer.status, &answer.json()["done_reason"]),
            (200, &json!("unload")),
            "{}",
            answer.text
        );
    }
    assert_eq!(server.fake.unloads(), ["owner/ready", "owner/ready"]);
    // What is not loaded is gone already.
    let gone = post(server.address, "/api/generate", &json!({"model": "a-stored", "keep_alive": 0})).await;
    assert_eq!((gone.status, &gone.json()["done_reason"]), (200, &json!("unload")));
    let none = post(server.address, "/api/generate", &json!({"model": "nobody", "keep_alive": 0})).await;
    assert_eq!(none.status, 404, "{}", none.text);
    assert!(server.fake.seen().is_empty(), "tokens were computed");
}

#[tokio::test]
async fn a_name_that_is_tagged_latest_is_found_without_it() {
    let server = Server::start(script(hello)).await;
    for (asked, known) in
        [("owner/ready:latest", "owner/ready"), ("Ready:latest", "Ready"), ("owner/ready", "owner/ready")]
    {
        let answer = post(server.address, "/api/generate", &prompt(json!({"model": asked}))).await;
        assert_eq!((answer.status, &answer.json()["model"]), (200, &json!(asked)), "{}", answer.text);
        assert!(server.fake.seen().iter().any(|request| request.model == known), "{asked}");
    }
}

#[tokio::test]
async fn what_cannot_be_done_is_a_400_that_names_it() {
    let server = Server::start(script(|request| {
        let media = |chat: &v1::Chat| chat.messages.iter().any(|m| m.content.len() > 1);
        match &request.prompt {
            Some(Prompt::Chat(chat)) if media(chat) => Err(Status::invalid_argument(
                "chat.messages[0].content[0]: media is not in this build; send text",
            )),
            _ if request.sampling.as_ref().unwrap().min_p == Some(0.5) => {
                Err(Status::invalid_argument("sampling.min_p: not today"))
            }
            _ => hello(request),
        }
    }))
    .await;
    let image = "aGVsbG8=";
    for (path, body, status, error) in [
        (
            "/api/chat",
            chat(json!({"messages": [{"role": "user", "content": "x", "images": [image]}]})),
            400,
            "messages[0].images[0]: media is not in this build",
        ),
        ("/api/generate", prompt(json!({"images": [image]})), 400, "images[0]: media is not in this build"),
        ("/api/chat", chat(json!({"think": true})), 400, "think: \"owner/ready\" does not support thinking"),
        (
            "/api/chat",
            chat(json!({"options": {"num_ctx": 8192}})),
            400,
            "options.num_ctx: 8192 is over the context of owner/ready, which is 4096",
        ),
        ("/api/chat", chat(json!({"options": {"min_p": 0.5}})), 400, "options.min_p: not today"),
        ("/api/chat", chat(json!({"unknown": 1})), 400, "unknown: unknown field"),
        ("/api/chat", json!({"messages": []}), 400, "model is required"),
        (
            "/api/generate",
            prompt(json!({"template": "{{ .Prompt }}"})),
            400,
            "template: templates in Go's language",
        ),
        ("/api/create", json!({"model": "x"}), 400, "from: required"),
        (
            "/api/create",
            json!({"model": "x", "files": {"a": "sha256:0"}}),
            400,
            "files.a: expected the digest",
        ),
        (
            "/api/create",
            json!({"model": "x", "from": "owner/ready", "files": {"a": format!("sha256:{}", "0".repeat(64))}}),
            400,
            "files: not beside from",
        ),
        (
            "/api/create",
            json!({"model": "x", "from": "owner/ready", "quantize": "q4_0"}),
            400,
            "quantize: not",
        ),
        ("/api/create", json!({"model": "x", "from": "nobody"}), 404, "model 'nobody' not found"),
        (
            "/api/create",
            json!({"model": "x", "from": "owner/ready", "parameters": {"tfs": 1}}),
            400,
            "parameters.tfs: no",
        ),
        (
            "/api/create",
            json!({"model": "a-stored", "from": "owner/ready"}),
            409,
            "the name a-stored is another",
        ),
        (
            "/api/create",
            json!({"model": "x", "from": "owner/ready", "messages": [{"role": "tool", "content": ""}]}),
            400,
            "messages[0].role",
        ),
        (
            "/api/create",
            json!({"model": "x", "from": "owner/ready", "no_such": 1}),
            400,
            "no_such: unknown field",
        ),
        ("/api/push", json!({"model": "x"}), 400, "push: models are not pushed"),
        ("/api/show", json!({"model": "nobody"}), 404, "model 'nobody' not found, try pulling it first"),
        ("/api/copy", json!({"source": "nobody", "destination": "y"}), 404, "model 'nobody' not found"),
        ("/api/pull", json!({"model": "missing"}), 404, "model 'missing' not found"),
        ("/api/pull", json!({"model": "/etc/x"}), 400, "model: names a file of the engine's machine"),
        (
            "/api/pull",
            json!({"model": "x.org/a/b", "insecure": true}),
            400,
            "insecure: registries are asked over TLS",
        ),
        ("/api/nowhere", json!({}), 404, "no such route"),
        ("/api/tags", json!({}), 405, "\"/api/tags\" does not take \"POST\""),
    ] {
        let answer = post(server.address, path, &body).await;
        let shown = answer.json();
        assert_eq!(
            (answer.status, shown.as_object().unwrap().len()),
            (status, 1),
            "{path} {body}: {}",
            answer.text
        );
        assert!(shown["error"].as_str().unwrap().starts_with(error), "{path} {body}: {}", answer.text);
    }
}

#[tokio::test]
async fn a_stream_that_fails_says_so_in_its_last_line() {
    let server = Server::start(script(|_| {
        Ok(vec![started(), delta(0, "Hi"), Step::Fail(Status::unavailable("the worker is gone"))])
    }))
    .await;
    let answer = post(server.address, "/api/chat", &chat(json!({}))).await;
    let lines: Vec<&str> = answer.text.lines().collect();
    assert_eq!((answer.status, lines.len()), (200, 2), "{}", answer.text);
    assert_eq!(serde_json::from_str::<Value>(lines[1]).unwrap(), json!({"error": "the worker is gone"}));
}

#[tokio::test]
async fn texts_become_vectors() {
    let server = Server::start(script(hello)).await;
    let body = json!({"model": "owner/ready", "input": ["one", "three"], "dimensions": 2, "keep_alive": 60, "options": {"num_ctx": 512}});
    let answer = post(server.address, "/api/embed", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let shown = answer.json();
    assert_eq!((&shown["model"], shown["embeddings"].as_array().unwrap().len()), (&json!("owner/ready"), 2));
    assert!(
        shown["prompt_eval_count"].as_u64().unwrap() > 0 && shown["total_duration"].as_u64().unwrap() > 0
    );
    let asked = server.fake.embeds().remove(0);
    assert_eq!(
        (asked.normalize, asked.truncate, asked.dimensions, asked.keep_alive.as_deref()),
        (Some(true), true, 2, Some("60"))
    );
    let old =
        post(server.address, "/api/embeddings", &json!({"model": "owner/ready", "prompt": "one"})).await;
    assert!(!old.json()["embedding"].as_array().unwrap().is_empty(), "{}", old.text);
    for (path, body, empty) in [
        (
            "/api/embed",
            json!({"model": "owner/ready", "input": []}),
            json!({"model": "owner/ready", "embeddings": []}),
        ),
        ("/api/embeddings", json!({"model": "owner/ready"}), json!({"embedding": []})),
    ] {
        assert_eq!(post(server.address, path, &body).await.json(), empty);
    }
    let empty =
        post(server.address, "/api/embed", &json!({"model": "owner/ready", "input": ["a", ""]})).await;
    assert_eq!((empty.status, empty.json()), (400, json!({"error": "input[1]: must not be empty"})));
}

#[tokio::test]
async fn models_are_listed_with_tags_and_shown() {
    let server = Server::start(script(hello)).await;
    let tags = get(server.address, "/api/tags").await.json();
    let names: Vec<&str> =
        tags["models"].as_array().unwrap().iter().map(|m| m["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a-stored:latest", "mine:latest", "owner/ready:latest"]);
    assert_eq!(tags["models"][0]["digest"].as_str().unwrap().len(), 64);
    let ps = get(server.address, "/api/ps").await.json();
    assert_eq!(
        (&ps["models"][0]["model"], &ps["models"][0]["context_length"]),
        (&json!("owner/ready:latest"), &json!(4096))
    );
    assert!(ps["models"][0]["expires_at"].as_str().unwrap().starts_with("2100-"));
    assert!(
        get(server.address, "/api/version").await.json()["version"].as_str().unwrap().split('.').count() >= 3
    );
    let show = post(server.address, "/api/show", &json!({"model": "a-stored", "verbose": true})).await.json();
    let details = json!({"parent_model": "", "format": "gguf", "family": "qwen3", "families": ["qwen3"], "parameter_size": "751.63M", "quantization_level": "Q8_0"});
    assert_eq!((&show["details"], &show["system"]), (&details, &json!("Be kind.")));
    assert_eq!(show["capabilities"], json!(["completion", "tools", "insert", "thinking"]));
    assert_eq!(show["model_info"]["qwen3.context_length"], 40_960);
    assert_eq!(show["parameters"].as_str().unwrap().lines().count(), 3);
    assert_eq!(show["modified_at"], "2023-11-14T22:13:20.123000Z");
    let head = send(
        server.address,
        Request::head("/api/version").body(http_body_util::Empty::<bytes::Bytes>::new()).unwrap(),
    )
    .await;
    assert_eq!(head.status, 200);
}

#[tokio::test]
async fn models_are_pulled_named_and_removed() {
    let server = Server::start(script(hello)).await;
    let answer = post(server.address, "/api/pull", &json!({"model": "small"})).await;
    let told: Vec<Value> = answer.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let digest = format!("sha256:{}", "ab".repeat(32));
    let bar = |completed: u64| json!({"status": "pulling abababababab", "digest": digest, "total": 100, "completed": completed});
    let expected = [
        json!({"status": "pulling manifest"}),
        bar(40),
        bar(100),
        json!({"status": "verifying sha256 digest"}),
        json!({"status": "writing manifest"}),
        json!({"status": "success"}),
    ];
    assert_eq!(told, expected);
    let once = post(server.address, "/api/pull", &json!({"name": "hf.co/a/b", "stream": false})).await;
    assert_eq!(once.json(), json!({"status": "success"}));
    let broken = post(server.address, "/api/pull", &json!({"model": "breaks"})).await;
    assert!(broken.text.ends_with("{\"error\":\"the registry is gone\"}\n"), "{}", broken.text);
    let asked: Vec<String> = server.fake.pulls().into_iter().map(|pull| pull.reference).collect();
    assert_eq!(asked, ["ollama://small", "hf://a/b", "ollama://breaks"]);

    let copied =
        post(server.address, "/api/copy", &json!({"source": "a-stored:latest", "destination": "own:latest"}))
            .await;
    assert_eq!((copied.status, copied.text.as_str()), (200, ""));
    assert_eq!(
        server.fake.store().copies(),
        [v1::CopyRequest { model: "a-stored".to_owned(), alias: "own".to_owned() }]
    );
    let delete = |model: &str| {
        let mut request = json_request("/api/delete", json!({"model": model}).to_string());
        *request.method_mut() = hyper::Method::DELETE;
        send(server.address, request)
    };
    // What is not in memory needs not leave it, nor does the model of another name that goes.
    assert_eq!(delete("a-stored:latest").await.status, 200);
    assert_eq!(delete("another-name").await.status, 200);
    assert_eq!(server.fake.unloads(), [""; 0]);
    assert_eq!(delete("owner/ready").await.status, 200);
    assert_eq!(server.fake.unloads(), ["owner/ready"]);
    let none = delete("nobody").await;
    assert_eq!(none.status, 404);
    assert!(none.json()["error"].as_str().unwrap().starts_with("model 'nobody' not found"), "{}", none.text);
}

#[tokio::test]
async fn a_command_line_needs_no_media_type_and_a_page_does() {
    let server = Server::start(script(hello)).await;
    let ask = |headers: &[(&'static str, &str)], path: &str, body: Value| {
        let mut request = json_request(path, body.to_string());
        request.headers_mut().insert("content-type", "application/x-www-form-urlencoded".parse().unwrap());
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        send(server.address, request)
    };
    assert_eq!(ask(&[], "/api/generate", prompt(json!({}))).await.status, 200);
    for (header, status) in [
        (("origin", "https://evil.example"), 403),
        (("sec-fetch-site", "cross-site"), 403),
        (("origin", "http://localhost"), 415),
        (("referer", "https://evil.example/x"), 415),
    ] {
        assert_eq!(ask(&[header], "/api/generate", prompt(json!({}))).await.status, status, "{header:?}");
    }
    assert_eq!(ask(&[], "/v1/chat/completions", chat(json!({}))).await.status, 415);
}

#[tokio::test]
async fn what_is_the_operators_wants_the_admin_scope() {
    let keys = Keys::new();
    let (user, admin) = (keys.add("user", |_| {}), keys.add("boss", |record| record.admin = true));
    let server = keys.serve().await;
    let ask = |method: &'static str, path: &str, key: &str, body: Value| {
        let mut request = json_request(path, body.to_string());
        *request.method_mut() = method.parse().unwrap();
        request.headers_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
        send(server.address, request)
    };
    for (method, path, body) in [
        ("POST", "/api/pull", json!({"model": "small"})),
        ("POST", "/api/copy", json!({"source": "a-stored", "destination": "own"})),
        ("POST", "/api/create", json!({"model": "made", "from": "a-stored", "stream": false})),
        ("DELETE", "/api/delete", json!({"model": "a-stored"})),
        ("POST", "/api/generate", json!({"model": "owner/ready", "keep_alive": 0})),
    ] {
        let refused = ask(method, path, &user, body.clone()).await;
        assert_eq!(
            (refused.status, refused.json().as_object().unwrap().len()),
            (403, 1),
            "{path}: {}",
            refused.text
        );
        assert_eq!(ask(method, path, &admin, body).await.status, 200, "{path}");
        let none = ask(method, path, "wrong", json!({})).await;
        assert_eq!((none.status, none.json()["error"].is_string()), (401, true), "{path}");
    }
    // Files that models are made of are the operator's to bring, and to ask for.
    let blob = format!("/api/blobs/sha256:{}", "0".repeat(64));
    for (key, statuses) in [(&user, [403, 403]), (&admin, [201, 200])] {
        assert_eq!(ask("POST", &blob, key, json!({})).await.status, statuses[0]);
        assert_eq!(ask("HEAD", &blob, key, json!({})).await.status, statuses[1]);
    }
    assert_eq!(ask("POST", "/api/chat", &user, chat(json!({}))).await.status, 200);
    assert_eq!(ready_stats().models.len(), 1);
}
