//! What goes wrong behind and in front of the gateway: refusals of the engine, broken streams, clients that
//! leave, deadlines, and shutting down.

use bytes::Bytes;
use hanzo_engine_gateway::{Config, Gateway};
use hanzo_engine_proto::v1::FinishReason;
use http_body_util::Full;
use hyper::Request;
use serde_json::json;
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
};
use tonic::{Code, Status, metadata::MetadataMap};

use crate::{
    Server,
    fake::{Step, delta, finished, hello, started},
    http::{Answer, Live, get, post, send},
    script,
};

async fn chat(server: &Server, stream: bool) -> Answer {
    let messages = json!([{"role": "user", "content": "hi"}]);
    let body = json!({"model": "m", "messages": messages, "temperature": 1, "n": 1, "stream": stream});
    post(server.address, "/v1/chat/completions", &body).await
}

fn status(code: Code, message: &str, metadata: &[(&'static str, &str)]) -> Status {
    let mut map = MetadataMap::new();
    for (key, value) in metadata {
        map.insert(*key, value.parse().unwrap());
    }
    Status::with_metadata(code, message, map)
}

#[tokio::test]
async fn refusals_of_the_engine_have_their_own_http_status() {
    let context = [("error-code", "context_length_exceeded")];
    let cases = [
        (status(Code::InvalidArgument, "temperature: no", &[]), 400, None, Some("temperature"), None),
        (status(Code::InvalidArgument, "choices: too many", &[]), 400, None, Some("n"), None),
        (
            status(Code::InvalidArgument, "prompt: 9 + 9 tokens are over the context of 16", &context),
            400,
            Some("context_length_exceeded"),
            Some("messages"),
            None,
        ),
        (
            status(Code::FailedPrecondition, "it embeds", &[]),
            400,
            Some("model_not_capable"),
            Some("model"),
            None,
        ),
        // The gateway's key, not the client's.
        (status(Code::Unauthenticated, "no key", &[]), 503, Some("unavailable"), None, Some("1")),
        (
            status(Code::NotFound, "no model x; loaded: y", &[]),
            404,
            Some("model_not_found"),
            Some("model"),
            None,
        ),
        (
            status(Code::ResourceExhausted, "queue full", &[("retry-after-ms", "2500")]),
            429,
            Some("overloaded"),
            None,
            Some("3"),
        ),
        (status(Code::ResourceExhausted, "queue full", &[]), 429, Some("overloaded"), None, Some("1")),
        (status(Code::Internal, "secret", &[]), 500, Some("internal_error"), None, None),
        (status(Code::Unimplemented, "later", &[]), 501, Some("not_implemented"), None, None),
        (
            status(Code::Unavailable, "loading", &[("retry-after-ms", "9000")]),
            503,
            Some("unavailable"),
            None,
            Some("9"),
        ),
        (
            status(Code::Aborted, "the worker failed under it", &[("retry-after-ms", "1200")]),
            503,
            Some("unavailable"),
            None,
            Some("2"),
        ),
        (status(Code::DeadlineExceeded, "late", &[]), 504, Some("deadline_exceeded"), None, None),
    ];
    for (refusal, http, code, param, retry_after) in cases {
        // Refused at once, or as the first thing on the stream, when an answer that is streamed has begun.
        for at_once in [true, false] {
            let refusal = refusal.clone();
            let script =
                script(
                    move |_| {
                        if at_once { Err(refusal.clone()) } else { Ok(vec![Step::Fail(refusal.clone())]) }
                    },
                );
            let server = Server::start(script).await;
            for stream in [false, true] {
                let answer = chat(&server, stream).await;
                if stream && !at_once {
                    assert_eq!(answer.status, 200, "{}", answer.text);
                    let error = &answer.events()[0]["error"];
                    assert_eq!((error["code"].as_str(), error["param"].as_str()), (code, param));
                    assert!(
                        !answer.text.contains("secret") && !answer.text.contains("[DONE]"),
                        "{}",
                        answer.text
                    );
                    continue;
                }
                assert_eq!(answer.status, http, "{}", answer.text);
                assert_eq!(answer.header("content-type"), Some("application/json"));
                assert_eq!(answer.header("retry-after"), retry_after, "{http}");
                let error = &answer.json()["error"];
                assert_eq!((error["code"].as_str(), error["param"].as_str()), (code, param));
                assert!(!answer.text.contains("secret"), "{}", answer.text);
            }
        }
    }
}

#[tokio::test]
async fn a_worker_that_dies_under_a_request_says_on_every_surface_that_it_can_be_sent_again() {
    const SAID: &str = "the model's worker failed while it had the request, and is started again";
    // Of what is not streamed nothing was sent, however much was written.
    for written in [vec![], vec![started()], vec![started(), delta(0, "Hel")]] {
        let died = Step::Fail(status(Code::Aborted, SAID, &[("retry-after-ms", "1000")]));
        let steps = [written, vec![died]].concat();
        let server = Server::start(script(move |_| Ok(steps.clone()))).await;
        let messages = json!([{"role": "user", "content": "hi"}]);
        let unavailable = Some(("/error/code", "unavailable"));
        let chat = json!({"model": "owner/ready", "messages": messages});
        for (path, body, message, says) in [
            ("/v1/chat/completions", chat.clone(), "/error/message", unavailable),
            (
                "/v1/completions",
                json!({"model": "owner/ready", "prompt": "hi"}),
                "/error/message",
                unavailable,
            ),
            ("/v1/responses", json!({"model": "owner/ready", "input": "hi"}), "/error/message", unavailable),
            (
                "/v1/messages",
                json!({"model": "owner/ready", "max_tokens": 5, "messages": messages}),
                "/error/message",
                Some(("/error/type", "overloaded_error")),
            ),
            (
                "/api/chat",
                json!({"model": "owner/ready", "messages": messages, "stream": false}),
                "/error",
                None,
            ),
            (
                "/api/generate",
                json!({"model": "owner/ready", "prompt": "hi", "stream": false}),
                "/error",
                None,
            ),
            ("/completion", json!({"prompt": "hi"}), "/error/message", unavailable),
        ] {
            let answer = post(server.address, path, &body).await;
            assert_eq!(
                (answer.status, answer.header("retry-after")),
                (503, Some("1")),
                "{path}: {}",
                answer.text
            );
            let told = answer.json();
            let at = |pointer: &str| told.pointer(pointer).and_then(|value| value.as_str());
            assert_eq!(at(message), Some(SAID), "{path}: {told}");
            assert!(says.is_none_or(|(pointer, word)| at(pointer) == Some(word)), "{path}: {told}");
        }
    }
}

#[tokio::test]
async fn an_engine_that_is_not_there_is_503() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let server = Server::with(script(hello), |config| config.engine = format!("http://{free}")).await;
    for stream in [false, true] {
        let answer = chat(&server, stream).await;
        assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{}", answer.text);
        assert!(answer.json()["error"]["message"].as_str().unwrap().contains("engine cannot be reached"));
    }
    assert_eq!(get(server.address, "/v1/models").await.status, 503);
    assert_eq!(get(server.address, "/ready").await.status, 503);
    assert_eq!(get(server.address, "/health").await.status, 503);
    assert_eq!(get(server.address, "/alive").await.status, 200);
}

#[tokio::test]
async fn a_failure_in_the_middle_ends_a_stream_with_an_error_event() {
    let failing = |end: Vec<Step>| {
        let steps = [vec![started(), delta(0, "Hel")], end].concat();
        script(move |_| Ok(steps.clone()))
    };
    let error = || finished(0, FinishReason::Error, 0);
    for (end, code, http) in [
        (vec![Step::Fail(Status::unavailable("worker died"))], "unavailable", 503),
        (vec![error(), Step::Fail(Status::unavailable("worker died"))], "unavailable", 503),
        (vec![Step::Fail(Status::internal("secret"))], "internal_error", 500),
        // The contract broken: no end, an event of no choice, an event after the end.
        (vec![], "internal_error", 500),
        (vec![error()], "internal_error", 500),
        (vec![delta(1, "x")], "internal_error", 500),
        (vec![delta(u32::MAX, "x")], "internal_error", 500),
        (vec![finished(0, FinishReason::Unspecified, 1)], "internal_error", 500),
        (vec![finished(0, FinishReason::Stop, 1), delta(0, "x")], "internal_error", 500),
    ] {
        let server = Server::start(failing(end.clone())).await;
        let answer = chat(&server, true).await;
        assert_eq!(answer.status, 200);
        let events = answer.events();
        assert_eq!(events[1]["choices"][0]["delta"]["content"], "Hel");
        assert_eq!(events.last().unwrap()["error"]["code"], code, "{end:?}: {}", answer.text);
        assert!(!answer.text.contains("[DONE]") && !answer.text.contains("secret"), "{}", answer.text);
        // The same, collected.
        let answer = chat(&server, false).await;
        assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (http, Some(code)), "{end:?}");
    }
}

#[tokio::test]
async fn a_connection_lost_in_the_middle_is_unavailable() {
    let server = Server::start(script(|_| Ok(vec![started(), delta(0, "Hel"), Step::Hang]))).await;
    // A second gateway, whose connection to the same engine can be cut.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let between = listener.local_addr().unwrap();
    let engine = server.fake.address;
    let wire = tokio::spawn(async move {
        let (mut near, _) = listener.accept().await.unwrap();
        let mut far = TcpStream::connect(engine).await.unwrap();
        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
    });
    let cut_off = Server::with(script(hello), |config| config.engine = format!("http://{between}")).await;
    let mut live = Live::chat(cut_off.address).await;
    live.read_until("Hel").await;
    wire.abort();
    let events = live.rest().await.events();
    assert_eq!(events.last().unwrap()["error"]["code"], "unavailable", "{events:?}");
}

#[tokio::test]
async fn one_prompt_that_fails_fails_the_request_and_stops_the_others() {
    use hanzo_engine_proto::v1::infer_request::Prompt;
    let server = Server::start(script(|request| match &request.prompt {
        Some(Prompt::Text(text)) if text == "bad" => {
            Ok(vec![started(), Step::Gate, Step::Fail(Status::resource_exhausted("queue full"))])
        }
        _ => Ok(vec![started(), delta(0, "x"), Step::Hang]),
    }))
    .await;
    let address = server.address;
    let body = json!({"prompt": ["good", "bad"]});
    let answer = tokio::spawn(async move { post(address, "/v1/completions", &body).await });
    while server.fake.seen().len() < 2 {
        tokio::task::yield_now().await;
    }
    server.fake.release();
    assert_eq!(answer.await.unwrap().status, 429);
    assert!(!server.fake.stream_over().await && !server.fake.stream_over().await);
}

#[tokio::test]
async fn a_client_that_leaves_cancels_in_the_engine() {
    let server = Server::start(script(|_| Ok(vec![started(), delta(0, "Hel"), Step::Hang]))).await;
    // In the middle of a stream.
    let mut live = Live::chat(server.address).await;
    live.read_until("Hel").await;
    live.leave();
    assert!(!server.fake.stream_over().await);
    // While it waits for a whole answer.
    let address = server.address;
    let body = json!({"messages": [{"role": "user", "content": "hi"}]});
    let waiting = tokio::spawn(async move { post(address, "/v1/chat/completions", &body).await });
    while server.fake.seen().len() < 2 {
        tokio::task::yield_now().await;
    }
    waiting.abort();
    drop(waiting.await);
    assert!(!server.fake.stream_over().await);
}

#[tokio::test]
async fn a_client_that_takes_nothing_of_its_answer_is_let_go_and_cancels() {
    // More than sockets and buffers hold.
    let mut steps = vec![started()];
    steps.extend((0..400).map(|_| delta(0, &"much ".repeat(10_000))));
    steps.push(Step::Hang);
    let script = script(move |_| Ok(steps.clone()));
    let server = Server::with(script, |config| config.idle_timeout_s = 1).await;
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "stream": true}).to_string();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json";
    let request = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    silent.write_all(request.as_bytes()).await.unwrap();
    assert!(!server.fake.stream_over().await);
}

#[tokio::test]
async fn a_client_that_leaves_before_the_first_event_cancels_too() {
    let server = Server::start(script(|_| Ok(vec![Step::Hang]))).await;
    let address = server.address;
    let mut live = Live::chat(address).await;
    live.read_until(": keep-alive\n\n").await;
    live.leave();
    assert!(!server.fake.stream_over().await);
    let body = json!({"messages": [{"role": "user", "content": "hi"}]});
    let waiting = tokio::spawn(async move { post(address, "/v1/chat/completions", &body).await });
    while server.fake.seen().len() < 2 {
        tokio::task::yield_now().await;
    }
    waiting.abort();
    drop(waiting.await);
    assert!(!server.fake.stream_over().await);
    // It is counted as a client that left.
    let line = r#"hanzo_engine_http_requests_total{route="/v1/chat/completions",status="499"} 1"#;
    while !get(address, "/metrics").await.text.contains(line) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn silence_is_filled_with_comments() {
    let steps =
        vec![started(), delta(0, "Hel"), Step::Gate, delta(0, "lo"), finished(0, FinishReason::Stop, 2)];
    let server = Server::with(script(move |_| Ok(steps.clone())), |config| config.sse_keep_alive_s = 1).await;
    let mut live = Live::chat(server.address).await;
    let begin = live.read_until(": keep-alive\n\n").await;
    assert!(begin.contains("Hel"));
    server.fake.release();
    // Nothing was lost while it waited.
    let end = live.read_until("[DONE]").await;
    assert!(end.contains("\"lo\""), "{end}");
}

#[tokio::test]
async fn deadlines() {
    let hanging = |_: &_| Ok(vec![started(), delta(0, "Hel"), Step::Hang]);
    let server = Server::with(script(hanging), |config| config.request_timeout_s = Some(1)).await;
    let answer = chat(&server, false).await;
    assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (504, Some("deadline_exceeded")));
    assert!(!server.fake.stream_over().await);
    let events = chat(&server, true).await.events();
    assert_eq!(events.last().unwrap()["error"]["code"], "deadline_exceeded");
    assert!(!server.fake.stream_over().await);
    assert!(server.fake.timeouts().iter().all(Option::is_some), "{:?}", server.fake.timeouts());
    // Before the first event too: a stream has begun when the engine has accepted it.
    let server =
        Server::with(script(|_| Ok(vec![Step::Hang])), |config| config.request_timeout_s = Some(1)).await;
    let events = chat(&server, true).await.events();
    assert_eq!(events.last().unwrap()["error"]["code"], "deadline_exceeded");
    // Not invented where none is configured.
    let server = Server::start(script(hello)).await;
    chat(&server, false).await;
    assert_eq!(server.fake.timeouts(), [None]);
}

#[tokio::test]
async fn draining_lets_streams_finish_and_refuses_new_requests() {
    let steps =
        vec![started(), delta(0, "Hel"), Step::Gate, delta(0, "lo"), finished(0, FinishReason::Stop, 2)];
    let mut server = Server::start(script(move |_| Ok(steps.clone()))).await;
    let mut live = Live::chat(server.address).await;
    live.read_until("Hel").await;
    server.stop();
    while get(server.address, "/ready").await.status == 200 {
        tokio::task::yield_now().await;
    }
    let answer = chat(&server, false).await;
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")));
    assert_eq!(get(server.address, "/v1/models").await.status, 503);
    assert_eq!(get(server.address, "/health").await.json()["status"], "draining");
    server.fake.release();
    let answer = live.rest().await;
    assert_eq!(answer.events().last().unwrap(), "[DONE]");
    server.stopped().await;
}

#[tokio::test]
async fn the_drain_deadline_ends_streams_with_an_error() {
    let steps = vec![started(), delta(0, "Hel"), Step::Hang];
    let mut server = Server::with(script(move |_| Ok(steps.clone())), |config| config.drain_s = 0).await;
    let mut live = Live::chat(server.address).await;
    live.read_until("Hel").await;
    let address = server.address;
    let body = json!({"messages": [{"role": "user", "content": "hi"}]});
    let whole = tokio::spawn(async move { post(address, "/v1/chat/completions", &body).await });
    while server.fake.seen().len() < 2 {
        tokio::task::yield_now().await;
    }
    server.stop();
    let events = live.rest().await.events();
    assert_eq!(events.last().unwrap()["error"]["code"], "unavailable");
    assert_eq!(whole.await.unwrap().status, 503);
    assert!(!server.fake.stream_over().await && !server.fake.stream_over().await);
    server.stopped().await;
}

#[tokio::test]
async fn an_idle_gateway_stops_at_once() {
    let mut server = Server::with(script(hello), |config| config.drain_s = 3600).await;
    assert_eq!(chat(&server, true).await.status, 200);
    server.stop();
    server.stopped().await;
}

#[tokio::test]
async fn what_cannot_be_bound_is_said() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap();
    let config = Config { port: address.port(), ..Config::default() };
    let error = Gateway::bind(config).await.unwrap_err().to_string();
    assert!(error.contains(&address.to_string()), "{error}");
    for engine in ["ftp://x", "not a uri", "http://"] {
        let config = Config { port: 0, engine: engine.to_owned(), ..Config::default() };
        let error = Gateway::bind(config).await.unwrap_err().to_string();
        assert!(error.contains(engine), "{error}");
    }
}

#[tokio::test]
async fn directories_of_the_server_stay_there() {
    let said = "model: /var/lib/hanzo-engine/models/blobs/sha256-12: the file ends early; see https://example.com/a/b";
    for code in [Code::NotFound, Code::FailedPrecondition, Code::InvalidArgument, Code::Unavailable] {
        let server = Server::start(script(move |_| Err(Status::new(code, said)))).await;
        for (path, body) in [
            ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "hi"}]})),
            ("/api/chat", json!({"model": "a", "messages": [{"role": "user", "content": "hi"}]})),
            ("/v1/messages", json!({"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]})),
        ] {
            let answer = post(server.address, path, &body).await;
            assert!(!answer.text.contains("/var/lib") && !answer.text.contains("blobs/"), "{}", answer.text);
            assert!(answer.text.contains("sha256-12: the file ends early"), "{}", answer.text);
            assert!(answer.text.contains("https://example.com/a/b"), "{}", answer.text);
        }
    }
}

#[tokio::test]
async fn a_client_of_grpc_is_told_of_the_other_port() {
    let server = Server::start(script(hello)).await;
    let request = Request::post("/hanzo.engine.v1.Engine/Stats").header("content-type", "application/grpc");
    let request = request.header("te", "trailers").body(Full::<Bytes>::default()).unwrap();
    let answer = send(server.address, request).await;
    assert_eq!((answer.status, answer.header("grpc-status")), (200, Some("12")));
    assert!(answer.header("grpc-message").unwrap().contains("36901"), "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/grpc"));
}
