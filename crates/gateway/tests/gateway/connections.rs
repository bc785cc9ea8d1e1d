//! What clients do with connections and bodies: slow ones, half-closed ones, other hosts, odd bytes.

use std::time::{Duration, Instant};

use hanzo_engine_proto::v1::FinishReason;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    PATIENCE, Server,
    fake::{Step, delta, finished, hello, logprob, started, with_logprobs},
    http::{Live, get, json_request, post, post_bytes, send},
    keys::Keys,
    script,
};

/// Sends bytes as they are, and shuts the writing side down where asked; what comes until the server closes.
async fn raw(server: &Server, bytes: &[u8], half_close: bool) -> String {
    let exchange = async {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        if half_close {
            stream.shutdown().await.unwrap();
        }
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    tokio::time::timeout(PATIENCE, exchange).await.expect("the server did not close")
}

fn chat_request(host: &str, stream: bool) -> String {
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "stream": stream}).to_string();
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test]
async fn bodies_that_come_slowly_keep_nobody_out() {
    let server = Server::start(script(hello)).await;
    // Twice as much as there is room for, by what they announce.
    let mut slow = Vec::new();
    for _ in 0..64 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 10000000\r\n\r\n{";
        stream.write_all(head.as_bytes()).await.unwrap();
        slow.push(stream);
    }
    let begun = Instant::now();
    let body = json!({"messages": [{"role": "user", "content": "x".repeat(5_000_000)}]});
    assert_eq!(post(server.address, "/v1/chat/completions", &body).await.status, 200);
    // Seconds are for a machine that is busy; before, it was the minute in which the slow ones ended.
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    // And they end before that.
    let mut answer = [0; 12];
    for stream in &mut slow {
        tokio::time::timeout(PATIENCE, stream.read_exact(&mut answer)).await.expect("408").unwrap();
        assert_eq!(&answer, b"HTTP/1.1 408");
    }
}

#[tokio::test]
async fn bodies_of_one_key_keep_no_other_out() {
    let keys = Keys::new();
    let (slow, quick) = (keys.add("slow", |_| {}), keys.add("quick", |_| {}));
    let server = Server::with(script(hello), |config| {
        config.api_keys_file = Some(keys.path.clone());
        (config.body_bytes_max, config.bodies_bytes_max) = (1_000_000, 8_000_000);
    })
    .await;
    // More than there is room for, from the address that all of them share.
    let mut held = Vec::new();
    for _ in 0..12 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {slow}\r\ncontent-type: application/json\r\ncontent-length: 1000000\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        held.push(tokio::spawn(async move {
            // What there is no room for stays with its client.
            let _ = stream.write_all(&[b' '; 900_000]).await;
            std::future::pending::<TcpStream>().await
        }));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let begun = Instant::now();
    let body = json!({"messages": [{"role": "user", "content": "x".repeat(900_000)}]});
    let mut request = json_request("/v1/chat/completions", body.to_string());
    request.headers_mut().insert("authorization", format!("Bearer {quick}").parse().unwrap());
    assert_eq!(send(server.address, request).await.status, 200);
    // It was the minute in which the slow ones end.
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    held.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn where_a_port_is_full_those_that_do_nothing_make_way() {
    let steps = vec![started(), delta(0, "Hello"), Step::Gate, finished(0, FinishReason::Stop, 1)];
    let script = script(move |_| Ok(steps.clone()));
    let server = Server::with(script, |config| config.connections_max = 16).await;
    let mut live = Live::chat(server.address).await;
    live.read_until("Hello").await;
    // Silent ones, and ones that never come to an end of their headers: more than there are places.
    let mut idle = Vec::new();
    for i in 0..40 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        if i % 2 == 0 {
            stream.write_all(b"GET /alive HTTP/1.1\r\nhost: ").await.unwrap();
        }
        idle.push(stream);
    }
    let begun = Instant::now();
    assert_eq!(get(server.address, "/alive").await.status, 200);
    // Fifths of a second; before, it was two seconds for each sixteen that came earlier.
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    // What is being answered stays.
    server.fake.release();
    live.read_until("[DONE]").await;
}

#[tokio::test]
async fn a_stream_begins_while_its_request_waits() {
    let steps = vec![Step::Gate, started(), delta(0, "Hello"), finished(0, FinishReason::Stop, 1)];
    let server = Server::start(script(move |_| Ok(steps.clone()))).await;
    for path in ["/v1/chat/completions", "/v1/completions"] {
        let prompt = json!({"messages": [{"role": "user", "content": "hi"}], "stream": true});
        let text = json!({"prompt": "hi", "stream": true});
        let body = if path.contains("chat") { prompt } else { text };
        let mut live = Live::open(server.address, crate::http::json_request(path, body.to_string())).await;
        assert_eq!(live.status(), 200);
        let comment = live.read_until(": keep-alive\n\n").await;
        assert!(!comment.contains("data:"), "{comment}");
        server.fake.release();
        assert!(live.read_until("[DONE]").await.contains("Hello"));
    }
}

#[tokio::test]
async fn clients_that_have_shut_down_their_writing_side_are_served() {
    let steps =
        vec![started(), delta(0, "Hel"), Step::Gate, delta(0, "lo"), finished(0, FinishReason::Stop, 2)];
    let server = Server::start(script(move |_| Ok(steps.clone()))).await;
    for stream in [false, true] {
        let fake = server.fake.clone();
        // Longer than it takes to notice that the client has shut down.
        let release = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(2)).await;
            fake.release();
        });
        let answer = raw(&server, chat_request("localhost", stream).as_bytes(), true).await;
        let expected = if stream { "[DONE]" } else { "Hello" };
        assert!(answer.contains("HTTP/1.1 200") && answer.contains(expected), "{answer}");
        release.await.unwrap();
    }
    // What is answered at once has nothing before it.
    let answer = raw(&server, b"GET /alive HTTP/1.1\r\nhost: localhost\r\n\r\n", true).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn a_client_that_leaves_is_noticed_behind_what_has_not_been_read() {
    let steps = vec![started(), delta(0, "Hel"), Step::Hang];
    let server = Server::start(script(move |_| Ok(steps.clone()))).await;
    for next in ["", "GET /alive HTTP/1.1\r\nhost: localhost\r\n\r\n"] {
        let request = chat_request("localhost", false);
        let (begin, end) = request.split_at(request.len() - 10);
        let seen = server.fake.seen().len();
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream.write_all(begin.as_bytes()).await.unwrap();
        // Until it is looked whether the client is still there.
        tokio::time::sleep(Duration::from_millis(700)).await;
        stream.write_all(end.as_bytes()).await.unwrap();
        let asked = async {
            while server.fake.seen().len() == seen {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, asked).await.expect("the engine was not asked");
        stream.write_all(next.as_bytes()).await.unwrap();
        drop(stream);
        assert!(!server.fake.stream_over().await, "{next}");
    }
}

#[tokio::test]
async fn what_is_too_large_holds_no_room() {
    let small = |config: &mut hanzo_engine_gateway::Config| {
        (config.body_bytes_max, config.bodies_bytes_max) = (1_000_000, 1_000_000);
    };
    let server = Server::with(script(hello), small).await;
    // Too large, which only shows when it has come, and it does not end.
    let mut large = TcpStream::connect(server.address).await.unwrap();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    large.write_all(head.as_bytes()).await.unwrap();
    let piece = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
    for _ in 0..64 {
        large.write_all(piece.as_bytes()).await.unwrap();
    }
    let begun = Instant::now();
    let body = json!({"messages": [{"role": "user", "content": "x".repeat(900_000)}]});
    assert_eq!(post(server.address, "/v1/chat/completions", &body).await.status, 200);
    // Before, it was the minute in which the large one ends.
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    drop(large);
}

#[tokio::test]
async fn on_the_loopback_other_hosts_are_refused() {
    let server =
        Server::with(script(hello), |config| config.allowed_hosts = vec!["Engine.lan".to_owned()]).await;
    let port = server.address.port();
    for (host, status) in [
        ("localhost".to_owned(), 200),
        (format!("localhost:{port}"), 200),
        (format!("127.0.0.1:{port}"), 200),
        ("[::1]:1".to_owned(), 200),
        ("engine.lan".to_owned(), 200),
        ("evil.example".to_owned(), 403),
        (format!("evil.example:{port}"), 403),
    ] {
        let answer = raw(&server, chat_request(&host, false).as_bytes(), false).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{host}: {answer}");
        assert!(status == 200 || answer.contains("--allowed-host"), "{answer}");
        let metrics = format!("GET /metrics HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        let answer = raw(&server, metrics.as_bytes(), false).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{host}: {answer}");
    }
}

#[tokio::test]
async fn every_refusal_is_json() {
    let server = Server::start(script(hello)).await;
    for path in
        ["/v1/models/%ff", "/v1/models/a%C3", "/%ff", "/v1/chat/completions?%ff=%", "/v1/models/x%00y"]
    {
        let answer = get(server.address, path).await;
        assert!((400..500).contains(&answer.status), "{path}: {}", answer.status);
        assert_eq!(answer.header("content-type"), Some("application/json"), "{path}");
        assert!(answer.json()["error"]["message"].is_string(), "{path}: {}", answer.text);
    }
}

#[tokio::test]
async fn odd_texts_are_read_or_named() {
    let server = Server::start(script(hello)).await;
    let chat = |content: &str| format!("{{\"messages\":[{{\"role\":\"user\",\"content\":{content}}}]}}");
    let path = "/v1/chat/completions";
    // Half of a pair, as a client sends that cuts its texts anywhere; a byte order mark.
    assert_eq!(post_bytes(server.address, path, chat(r#""a\ud83d""#)).await.status, 200);
    assert_eq!(post_bytes(server.address, path, format!("\u{feff}{}", chat("\"b\""))).await.status, 200);
    let seen: Vec<String> = server.fake.seen().iter().map(|request| format!("{request:?}")).collect();
    assert!(seen.iter().any(|request| request.contains("a\u{fffd}")), "{seen:?}");
    for (body, param) in [
        (chat("1"), Some("messages[0].content")),
        (format!("{{\"messages\":[{}]}}", "{},".repeat(99) + "{}"), Some("messages[0].role")),
        ("{\"messages\":[],\"n\":\"\\uZZZZ\"}".to_owned(), None),
        (format!("{{\"n\":{}}}", "9".repeat(1_000_000)), Some("n")),
        (format!("{{{}\"b\":1}}", "\"a\":1,".repeat(20_000)), None),
        (format!("{{\"a\":{}{}}}", "[".repeat(200), "]".repeat(200)), None),
    ] {
        let answer = post_bytes(server.address, path, body).await;
        assert_eq!(answer.status, 400, "{}", answer.text);
        assert_eq!(answer.json()["error"]["param"], json!(param), "{}", answer.text);
        assert!(answer.text.len() < 2048);
    }
}

#[tokio::test]
async fn an_answer_that_is_not_streamed_is_bounded() {
    let top: Vec<_> = (0..20).map(|i| logprob(&format!("t{i}"), -1.0, vec![])).collect();
    let token = logprob("x", -0.5, top);
    let mut steps = vec![started()];
    steps.extend(std::iter::repeat_n(with_logprobs(0, "x", vec![token; 500]), 60));
    steps.push(finished(0, FinishReason::Length, 30_000));
    let server = Server::start(script(move |_| Ok(steps.clone()))).await;
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}], "logprobs": true});
    let answer = post(server.address, "/v1/chat/completions", &body).await;
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (400, &json!("answer_too_large")));
    assert!(answer.text.contains("stream: true"), "{}", answer.text);
    // As a stream it is not held.
    body["stream"] = Value::Bool(true);
    assert!(post(server.address, "/v1/chat/completions", &body).await.text.ends_with("[DONE]\n\n"));
}
