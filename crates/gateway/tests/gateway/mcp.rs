//! MCP over HTTP: what each method answers, what a call holds and lets go, whose sessions are whose, and how many there are.

use std::net::SocketAddr;

use hanzo_engine_access::{KeysFile, Record};
use http_body_util::Full;
use hyper::Request;
use serde_json::{Value, json};

use crate::{
    Server,
    fake::{Script, Step, finished, hello, ready_stats, started},
    http::{Answer, Live, get, json_request, send},
    script,
};
use hanzo_engine_proto::v1::{self, FinishReason, infer_event::Event, infer_request::Prompt};

/// A client in the protocol's version of sessions.
pub(crate) struct Client {
    address: SocketAddr,
    session: Option<String>,
    key: Option<String>,
}

impl Client {
    async fn open(server: &Server) -> Client {
        Client::at(server.address, None).await
    }

    async fn with_key(server: &Server, key: Option<&str>) -> Client {
        Client::at(server.address, key).await
    }

    pub(crate) async fn at(address: SocketAddr, key: Option<&str>) -> Client {
        let mut client = Client { address, session: None, key: key.map(str::to_owned) };
        let answer = client.send(&initialize()).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        client.session = answer.header("mcp-session-id").map(str::to_owned);
        assert!(client.session.is_some());
        let begun = client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        assert_eq!(begun.status, 202, "{}", begun.text);
        client
    }

    fn request(&self, body: &Value) -> Request<Full<bytes::Bytes>> {
        let mut request = json_request("/mcp", body.to_string());
        let headers = request.headers_mut();
        headers.insert("accept", "application/json, text/event-stream".parse().unwrap());
        if let Some(session) = &self.session {
            headers.insert("mcp-session-id", session.parse().unwrap());
        }
        if let Some(key) = &self.key {
            headers.insert("authorization", format!("Bearer {key}").parse().unwrap());
        }
        request
    }

    async fn send(&self, body: &Value) -> Answer {
        send(self.address, self.request(body)).await
    }

    /// The messages that come of a request, the answer last.
    pub(crate) async fn ask(&self, method: &str, params: Value) -> Vec<Value> {
        let answer = self.send(&json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        messages(&answer.text)
    }

    async fn result(&self, method: &str, params: Value) -> Value {
        self.ask(method, params).await.pop().unwrap()["result"].take()
    }

    pub(crate) async fn call(&self, tool: &str, arguments: Value) -> Value {
        self.result("tools/call", json!({"name": tool, "arguments": arguments})).await
    }
}

fn initialize() -> Value {
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"},
    }})
}

fn messages(text: &str) -> Vec<Value> {
    let data = text.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim);
    data.filter(|data| !data.is_empty()).map(|data| serde_json::from_str(data).unwrap()).collect()
}

#[tokio::test]
async fn a_tool_answers_what_the_engine_says_and_tells_how_far_it_is() {
    let server = Server::start(script(|_| {
        Ok(vec![started(), token("Hel"), token("lo"), finished(0, FinishReason::Length, 2)])
    }))
    .await;
    let client = Client::open(&server).await;
    let arguments = json!({"model": "m", "prompt": "hi", "system": "be", "max_tokens": 9, "seed": 3});
    let params = json!({"name": "hanzo_infer", "arguments": arguments, "_meta": {"progressToken": "t"}});
    let mut said = client.ask("tools/call", params).await;
    let result = said.pop().unwrap()["result"].take();
    assert_eq!(result["isError"], false);
    assert_eq!(result["content"], json!([{"type": "text", "text": "Hello"}]));
    let structured = &result["structuredContent"];
    assert_eq!((&structured["text"], &structured["finish_reason"]), (&json!("Hello"), &json!("length")));
    assert_eq!(structured["usage"]["completion_tokens"], 2);
    assert!(!said.is_empty());
    let mut reached = 0.0;
    for progress in &said {
        assert_eq!(
            (&progress["method"], &progress["params"]["progressToken"]),
            (&json!("notifications/progress"), &json!("t"))
        );
        assert!(progress["params"]["progress"].as_f64().unwrap() > reached, "{said:?}");
        reached = progress["params"]["progress"].as_f64().unwrap();
        assert_eq!(progress["params"]["total"], 9.0);
    }
    let text: String = said.iter().filter_map(|p| p["params"]["message"].as_str()).collect();
    assert_eq!(text, "Hello");

    let seen = server.fake.seen().pop().unwrap();
    let Some(Prompt::Chat(chat)) = seen.prompt else { panic!("{:?}", seen.prompt) };
    assert_eq!(chat.messages.iter().map(|m| m.role.as_str()).collect::<Vec<_>>(), ["system", "user"]);
    assert_eq!((seen.stop.unwrap().max_tokens, seen.sampling.unwrap().seed), (Some(9), Some(3)));
    // Without a token nobody is told.
    assert_eq!(
        client.ask("tools/call", json!({"name": "hanzo_infer", "arguments": {"prompt": "hi"}})).await.len(),
        1
    );
}

/// How far a model's load is, as a generation tells it.
pub(crate) fn loading(percent: u32, waits: bool) -> Step {
    Step::Send(Event::Loading(v1::Loading { model: "a-stored".to_owned(), percent, waits, left_ms: None }))
}

#[tokio::test]
async fn a_client_hears_how_the_load_goes_that_its_answer_waits_for() {
    let server = Server::start(script(|request| {
        let load = [loading(0, true), loading(40, false)].into_iter().filter(|_| request.load_progress);
        let rest = [started(), token("Hel"), token("lo"), finished(0, FinishReason::Stop, 2)];
        Ok(load.chain([Step::Gate]).chain(rest).collect())
    }))
    .await;
    let client = Client::open(&server).await;
    server.fake.release();
    let call = json!({"name": "hanzo_infer", "arguments": {"model": "a-stored", "prompt": "hi"}});
    // Who has not asked hears nothing, and neither does the engine's stream.
    assert_eq!(client.ask("tools/call", call.clone()).await.len(), 1);
    assert!(!server.fake.seen()[0].load_progress);
    server.fake.release();
    let mut told = call;
    told["_meta"] = json!({"progressToken": "t"});
    let mut said = client.ask("tools/call", told).await;
    assert_eq!(said.pop().unwrap()["result"]["content"][0]["text"], "Hello");
    let heard: Vec<(f64, &str)> = said
        .iter()
        .map(|one| &one["params"])
        .map(|one| (one["progress"].as_f64().unwrap(), one["message"].as_str().unwrap_or_default()))
        .collect();
    assert!(heard.is_sorted_by(|a, b| a.0 < b.0), "{heard:?}");
    assert_eq!(heard[0].1, "a-stored waits until other models have made room for it");
    assert!(heard[0].0 < 1.0 && said[0]["params"].get("total").is_none(), "{said:?}");
    // What was written has nothing of the load in it.
    let written: String = heard.iter().filter(|(at, _)| *at >= 1.0).map(|(_, text)| *text).collect();
    assert_eq!(written, "Hello");
}

#[tokio::test]
async fn so_does_one_whose_vectors_scores_or_load_wait() {
    let server = Server::start(script(hello)).await;
    server.fake.obstruct(|_| Some(Step::Gate));
    let client = Client::open(&server).await;
    let stats = |state: v1::ModelState, load_progress: f32| {
        let mut stats = ready_stats();
        let status = stats.models[0].status.as_mut().unwrap();
        (status.name, status.load_progress) = ("a-stored".to_owned(), load_progress);
        status.set_state(state);
        stats
    };
    for (tool, arguments) in [
        // The store knows it by this name too.
        ("hanzo_embed", json!({"model": "x/other", "input": "a"})),
        ("hanzo_rerank", json!({"model": "a-stored", "query": "q", "documents": ["a", "b"]})),
        ("hanzo_load", json!({"model": "a-stored"})),
    ] {
        server.fake.set_stats(Ok(stats(v1::ModelState::Loading, 0.4)));
        let params = json!({"name": tool, "arguments": arguments, "_meta": {"progressToken": "t"}});
        let call = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params});
        let mut live = Live::open(server.address, client.request(&call)).await;
        let begun = live.read_until("a-stored is loading: 40 %").await;
        assert!(begun.contains("notifications/progress"), "{tool}: {begun}");
        server.fake.set_stats(Ok(stats(v1::ModelState::Ready, 1.0)));
        server.fake.release();
        let answer = messages(&live.rest().await.text).pop().unwrap();
        assert_eq!(answer["result"]["isError"], false, "{tool}: {answer}");
    }
}

#[tokio::test]
async fn what_a_tool_cannot_do_is_told_to_the_model_and_what_is_no_tool_to_the_client() {
    let server = Server::start(script(hello)).await;
    let client = Client::open(&server).await;
    for (tool, arguments, says) in [
        ("hanzo_infer", json!({"prompt": "a", "temperature": 3}), "temperature: "),
        ("hanzo_infer", json!({"prompt": "a", "stream": true}), "stream: unknown"),
        ("hanzo_infer", json!({}), "prompt: required"),
        (
            "hanzo_infer",
            json!({"prompt": "a", "response_schema": {"type": 5}, "stop": vec!["x"; 99]}),
            "stop: ",
        ),
        ("hanzo_embed", json!({"input": []}), "input: "),
        ("hanzo_embed", json!({"input": "a", "encoding_format": "base64"}), "encoding_format: unknown"),
        ("hanzo_rerank", json!({"query": "a"}), "documents: "),
        ("hanzo_list_models", json!({"x": 1}), "x: unknown"),
        ("hanzo_load", json!({}), "model: required"),
    ] {
        let result = client.call(tool, arguments.clone()).await;
        let text = result["content"][0]["text"].as_str().unwrap_or_default();
        assert!(result["isError"] == true && text.starts_with(says), "{tool} {arguments}: {result}");
        assert!(result.get("structuredContent").is_none());
    }
    for (method, params, code) in [
        ("tools/call", json!({"name": "hanzo_nothing", "arguments": {}}), -32602),
        ("tools/list", json!({"cursor": "x"}), -32602),
        ("resources/list", json!({"cursor": "x"}), -32602),
        ("resources/read", json!({"uri": "hanzo://nothing"}), -32002),
        ("prompts/list", json!({}), -32601),
        ("no/such", json!({}), -32601),
    ] {
        let answer = client.ask(method, params).await.pop().unwrap();
        assert_eq!(answer["error"]["code"], code, "{method}: {answer}");
    }
}

#[tokio::test]
async fn vectors_scores_models_and_resources() {
    let server = Server::start(script(hello)).await;
    let client = Client::open(&server).await;
    let embedded = client.call("hanzo_embed", json!({"model": "m", "input": ["a", "bc"]})).await;
    let vectors = embedded["structuredContent"]["embeddings"].as_array().unwrap();
    assert_eq!(vectors.iter().map(|v| v["index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1]);
    assert!(vectors[0]["embedding"][0].is_number());
    let text: Value = serde_json::from_str(embedded["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(text, embedded["structuredContent"]);
    let ranked = client
        .call(
            "hanzo_rerank",
            json!({"model": "m", "query": "q", "documents": ["a", "bcd"], "return_documents": true}),
        )
        .await;
    let results = &ranked["structuredContent"]["results"];
    assert_eq!(results.as_array().unwrap().len(), 2);
    assert!(results[0]["document"].is_string() && results[0]["relevance_score"].is_number(), "{ranked}");
    let models = client.call("hanzo_list_models", json!({})).await["structuredContent"]["models"].take();
    let listed = client.result("resources/list", json!({})).await["resources"].take();
    assert_eq!(listed.as_array().unwrap().len(), models.as_array().unwrap().len() + 2);
    let read = client.result("resources/read", json!({"uri": "hanzo://models"})).await;
    let read: Value = serde_json::from_str(read["contents"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(read["models"], models);
    assert_eq!(client.result("ping", json!({})).await, json!({}));
    assert_eq!(
        client.result("resources/templates/list", json!({})).await["resourceTemplates"][0]["uriTemplate"],
        "hanzo://models/{+name}"
    );
}

/// A token of the only choice.
fn token(text: &str) -> Step {
    let delta = v1::Delta { text: text.to_owned(), token_ids: vec![1], ..v1::Delta::default() };
    Step::Send(Event::Delta(delta))
}

/// Says something, and never ends.
fn endless() -> Script {
    script(|_| Ok(vec![started(), token("a"), Step::Hang]))
}

fn long_call(id: u32) -> Value {
    let params = json!({"name": "hanzo_infer", "arguments": {"prompt": "a"}, "_meta": {"progressToken": id}});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
}

#[tokio::test]
async fn a_call_that_is_cancelled_frees_the_engine_and_so_does_the_end_of_its_session() {
    let server = Server::start(endless()).await;
    for ends_session in [false, true] {
        let client = Client::open(&server).await;
        let mut live = Live::open(server.address, client.request(&long_call(5))).await;
        live.read_until("notifications/progress").await;
        if ends_session {
            let mut end = client.request(&json!({}));
            *end.method_mut() = hyper::Method::DELETE;
            assert_eq!(send(server.address, end).await.status, 204);
        } else {
            let cancel =
                json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}});
            assert_eq!(client.send(&cancel).await.status, 202);
        }
        assert!(!server.fake.stream_over().await, "the engine's stream is dropped");
        // What is there is still there.
        let answer = client.send(&json!({"jsonrpc": "2.0", "id": 1, "method": "ping"})).await;
        assert_eq!(answer.status, if ends_session { 404 } else { 200 });
    }
}

#[tokio::test]
async fn pages_of_others_other_hosts_and_what_is_no_message_are_refused_in_the_protocols_words() {
    let server = Server::start(script(hello)).await;
    let client = Client::open(&server).await;
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    for (origin, status) in [
        ("http://evil.example", 403),
        ("null", 403),
        ("http://localhost:3000", 403),
        ("http://localhost", 200),
    ] {
        let mut request = client.request(&list);
        request.headers_mut().insert("origin", origin.parse().unwrap());
        let answer = send(server.address, request).await;
        assert_eq!(answer.status, status, "{origin}");
        if status == 403 {
            let error = answer.json();
            assert_eq!(
                (&error["jsonrpc"], &error["error"]["data"]["code"]),
                (&json!("2.0"), &json!("origin_not_allowed"))
            );
        }
    }
    for (body, status, code) in [
        ("{", 400, -32700),
        ("[]", 400, -32600),
        ("\"x\"", 400, -32600),
        (&"[".repeat(9999), 400, -32700),
        (&format!("{{\"a\":\"{}\"}}", "x".repeat(11_000_000)), 413, -32000),
    ] {
        let mut request = json_request("/mcp", body.to_owned());
        request.headers_mut().insert("accept", "application/json, text/event-stream".parse().unwrap());
        let answer = send(server.address, request).await;
        assert_eq!((answer.status, answer.json()["error"]["code"].as_i64()), (status, Some(code)));
    }
    let gone =
        Client { address: server.address, session: Some("none".to_owned()), key: None }.send(&list).await;
    assert_eq!((gone.status, &gone.json()["error"]["data"]["code"]), (404, &json!("session_not_found")));
    let none = Client { address: server.address, session: None, key: None }.send(&list).await;
    assert_eq!((none.status, none.json()["error"]["code"].as_i64()), (400, Some(-32000)));
    assert_eq!(get(server.address, "/mcp").await.status, 406);
}

#[tokio::test]
async fn keys_decide_who_sees_which_tools_and_a_session_is_its_openers() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys.json");
    let key = |name: &str, change: &dyn Fn(&mut Record)| {
        let mut record = Record { name: name.to_owned(), ..Record::default() };
        change(&mut record);
        KeysFile::create(&file, record).unwrap().text().to_owned()
    };
    let plain = key("plain", &|record| record.concurrency = Some(1));
    let admin = key("admin", &|record| record.admin = true);
    let server = Server::with(endless(), |config| config.api_keys_file = Some(file.clone())).await;
    let nobody = Client { address: server.address, session: None, key: None }.send(&initialize()).await;
    assert_eq!((nobody.status, &nobody.json()["error"]["data"]["code"]), (401, &json!("invalid_api_key")));

    let client = Client::with_key(&server, Some(&plain)).await;
    let operator = Client::with_key(&server, Some(&admin)).await;
    let tools = |list: Value| list["tools"].as_array().unwrap().len();
    assert_eq!(tools(client.result("tools/list", json!({})).await), 4);
    assert_eq!(tools(operator.result("tools/list", json!({})).await), 7);
    let refused = client.call("hanzo_pull", json!({"model": "a/b"})).await;
    assert_eq!(refused["_meta"]["hanzo.ai/error"]["code"], "insufficient_permissions", "{refused}");
    let stolen =
        Client { address: server.address, session: operator.session.clone(), key: Some(plain.clone()) };
    assert_eq!(stolen.send(&json!({"jsonrpc": "2.0", "id": 1, "method": "ping"})).await.status, 404);

    // A call counts as one of the key's while it runs, and lists do not count.
    let mut live = Live::open(server.address, client.request(&long_call(1))).await;
    live.read_until("notifications/progress").await;
    assert_eq!(tools(client.result("tools/list", json!({})).await), 4);
    let second = client.call("hanzo_list_models", json!({})).await;
    assert_eq!(second["_meta"]["hanzo.ai/error"]["code"], "rate_limit_exceeded", "{second}");
}

#[tokio::test]
async fn sessions_are_bounded_and_an_idle_one_makes_room() {
    let server = Server::with(endless(), |config| config.mcp_sessions_max = 2).await;
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    let (first, second) = (Client::open(&server).await, Client::open(&server).await);
    let mut live = Live::open(server.address, first.request(&long_call(1))).await;
    live.read_until("notifications/progress").await;
    // The first works; the second, though used last, is idle.
    assert_eq!(second.send(&ping).await.status, 200);
    let third = Client::open(&server).await;
    assert_eq!((second.send(&ping).await.status, first.send(&ping).await.status), (404, 200));
    let mut other = Live::open(server.address, third.request(&long_call(1))).await;
    other.read_until("notifications/progress").await;
    let full = Client { address: server.address, session: None, key: None }.send(&initialize()).await;
    assert_eq!((full.status, full.header("retry-after")), (503, Some("1")));
}

#[tokio::test]
async fn a_waiting_stream_ends_with_the_drain_and_so_does_a_call_at_its_deadline() {
    let mut server = Server::with(endless(), |config| config.drain_s = 1).await;
    let client = Client::open(&server).await;
    let mut wait = client.request(&json!({}));
    *wait.method_mut() = hyper::Method::GET;
    *wait.body_mut() = Full::default();
    let waiting = Live::open(server.address, wait).await;
    assert_eq!(waiting.status(), 200);
    let mut live = Live::open(server.address, client.request(&long_call(1))).await;
    live.read_until("notifications/progress").await;
    server.stop();
    waiting.rest().await;
    live.rest().await;
    assert!(!server.fake.stream_over().await);
    server.stopped().await;
}

#[tokio::test]
async fn it_has_a_port_of_its_own_where_that_is_asked_for() {
    let fake = crate::fake::Fake::start(script(hello)).await;
    let config = hanzo_engine_gateway::Config {
        port: 0,
        mcp_enabled: true,
        mcp_port: 0,
        engine: fake.uri(),
        ..hanzo_engine_gateway::Config::default()
    };
    let gateway = hanzo_engine_gateway::Gateway::bind(config).await.unwrap();
    let address = gateway.mcp_addr().unwrap();
    assert_ne!(address, gateway.local_addr());
    let serving = tokio::spawn(gateway.serve(std::future::pending()));
    let mut request = json_request("/mcp", initialize().to_string());
    request.headers_mut().insert("accept", "application/json, text/event-stream".parse().unwrap());
    assert_eq!(send(address, request).await.status, 200);
    assert_eq!(get(address, "/alive").await.status, 200);
    assert_eq!(get(address, "/v1/models").await.status, 404);
    serving.abort();
}
