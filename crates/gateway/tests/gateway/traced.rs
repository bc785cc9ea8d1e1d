//! What is told of a request beside its answer: its trace, the engine's times, the line of the log.

use std::{cell::RefCell, io, rc::Rc, sync::Once};

use axum::http::HeaderValue;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::{
    PATIENCE, Server,
    fake::{Step, delta, hello, started},
    http::{Live, get, json_request, post, send},
    script,
};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const TIMING: &str = "queue;dur=1.0, prefill;dur=2.0, decode;dur=3.0";

fn chat(stream: bool) -> Request<Full<Bytes>> {
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "stream": stream});
    json_request("/v1/chat/completions", body.to_string())
}

/// What is logged on this thread.
#[derive(Clone, Default)]
struct Log(Rc<RefCell<Vec<u8>>>);

thread_local! {
    /// Who hears what this thread logs.
    static HEARS: RefCell<Option<Log>> = const { RefCell::new(None) };
}

/// A log is heard until this is dropped.
struct Heard;

/// Writes to the log that hears this thread.
struct Ear;

impl Log {
    fn lines(&self) -> Vec<Value> {
        let text = String::from_utf8(self.0.borrow().clone()).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| line["message"] == "request").collect()
    }

    /// Has everything from now on written here. One subscriber hears all threads: those of single threads make `tracing` forget
    /// which places are heard when others end.
    fn begin(&self) -> Heard {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| tracing_subscriber::fmt().json().flatten_event(true).with_writer(|| Ear).init());
        HEARS.set(Some(self.clone()));
        Heard
    }
}

impl Drop for Heard {
    fn drop(&mut self) {
        HEARS.set(None);
    }
}

impl io::Write for Ear {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        HEARS.with_borrow(|log| {
            if let Some(log) = log {
                log.0.borrow_mut().extend_from_slice(bytes);
            }
        });
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_trace_goes_on_to_the_engine_as_it_came() {
    let server = Server::start(script(hello)).await;
    let mut request = chat(false);
    request.headers_mut().insert("traceparent", HeaderValue::from_static(PARENT));
    assert_eq!(send(server.address, request).await.status, 200);
    let mut request = chat(true);
    request.headers_mut().insert("traceparent", HeaderValue::from_static("00-what-is-this"));
    assert_eq!(send(server.address, request).await.status, 200);
    assert_eq!(server.fake.traces(), [Some(PARENT.to_owned()), None]);
}

#[tokio::test]
async fn the_engines_times_are_told_where_they_are_known() {
    let server = Server::start(script(hello)).await;
    let answer = send(server.address, chat(false)).await;
    assert_eq!(answer.header("server-timing"), Some(TIMING));
    let answer = send(server.address, chat(true)).await;
    assert_eq!((answer.header("server-timing"), answer.header("trailer")), (None, None));
    assert_eq!(get(server.address, "/v1/models").await.header("server-timing"), None);

    // Behind a stream, for who reads that.
    let stream = TcpStream::connect(server.address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut request = chat(true);
    request.headers_mut().insert("host", HeaderValue::from_static("localhost"));
    request.headers_mut().insert("te", HeaderValue::from_static("trailers"));
    let answer = sender.send_request(request).await.unwrap();
    assert_eq!(answer.headers().get("trailer").unwrap(), "server-timing");
    let collected = answer.into_body().collect().await.unwrap();
    assert_eq!(collected.trailers().unwrap().get("server-timing").unwrap(), TIMING);
    assert!(String::from_utf8(collected.to_bytes().to_vec()).unwrap().contains("[DONE]"));
}

#[tokio::test]
async fn one_line_tells_of_each_request() {
    let log = Log::default();
    let _logged = log.begin();
    let server = Server::start(script(|request| {
        let hangs = request.choices == 1 && request.stop.as_ref().is_some_and(|s| s.max_tokens == Some(9));
        if hangs { Ok(vec![started(), delta(0, "a"), Step::Hang]) } else { hello(request) }
    }))
    .await;
    let mut request = chat(false);
    request.headers_mut().insert("traceparent", HeaderValue::from_static(PARENT));
    request.headers_mut().insert("x-request-id", HeaderValue::from_static("mine"));
    send(server.address, request).await;
    post(server.address, "/v1/chat/completions", &json!({"messages": []})).await;
    get(server.address, "/health").await;
    let cut = json!({"messages": [{"role": "user", "content": "hi"}], "stream": true, "max_tokens": 9});
    let mut live = Live::open(server.address, json_request("/v1/chat/completions", cut.to_string())).await;
    live.read_until("\"a\"").await;
    live.leave();
    server.fake.stream_over().await;
    let told = async {
        while log.lines().len() < 3 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, told).await.unwrap_or_else(|_| panic!("{:?}", log.lines()));
    let lines = log.lines();
    let [ok, refused, left] = &lines[..] else { panic!("{lines:?}") };
    for (name, expected) in [
        ("request_id", json!("mine")),
        ("trace_id", json!("4bf92f3577b34da6a3ce929d0e0e4736")),
        ("method", json!("POST")),
        ("route", json!("/v1/chat/completions")),
        ("status", json!(200)),
        ("outcome", json!("ok")),
        ("model", json!("owner/ready")),
        ("prompt_tokens", json!(7)),
        ("cached_tokens", json!(3)),
        ("completion_tokens", json!(2)),
        ("queue_ms", json!(1.0)),
        ("prefill_ms", json!(2.0)),
        ("decode_ms", json!(3.0)),
    ] {
        assert_eq!(ok[name], expected, "{name} of {ok}");
    }
    assert!(ok["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0));
    assert_eq!((&refused["status"], &refused["outcome"]), (&json!(400), &json!("refused")));
    assert_eq!((&left["status"], &left["outcome"]), (&json!(200), &json!("left")));
}

#[tokio::test]
async fn the_line_can_be_left_out() {
    let log = Log::default();
    let _logged = log.begin();
    let server = Server::with(script(hello), |config| config.access_log = false).await;
    assert_eq!(send(server.address, chat(false)).await.status, 200);
    let text = get(server.address, "/metrics").await.text;
    assert!(text.contains("/v1/chat/completions"), "it is counted, so it has ended");
    assert!(log.lines().is_empty(), "{:?}", log.lines());
}
