//! One client must not take what is everybody's: a small request beside one that asks for all it can, and beside streams
//! that nobody reads.

use std::time::{Duration, Instant};

use hanzo_engine_tests::rig::{Rig, chat_body};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// Sequences that run at once, by default.
const SLOTS: usize = 64;
const SMALL_REQUESTS: usize = 20;
/// What a small request may take beside others, in 19 of 20 cases.
const SMALL_MAX: Duration = Duration::from_secs(1);
/// On a machine that others keep busy: times what it takes alone. 64 sequences beside it make a step some ten times as long.
const TIMES_ALONE_MAX: u32 = 40;

/// Seconds of small requests, one after the other, shortest first.
async fn small_requests(rig: &Rig) -> Vec<Duration> {
    let mut times = Vec::new();
    for number in 0..SMALL_REQUESTS {
        let since = Instant::now();
        let more = json!({"max_tokens": 8, "ignore_eos": true, "temperature": 0});
        let (status, _, answer) = rig.chat(&format!("What is {number} + 1?"), more).await;
        assert_eq!((status, &answer["usage"]["completion_tokens"]), (200, &json!(8)), "{answer}");
        times.push(since.elapsed());
    }
    times.sort_unstable();
    times
}

fn check(what: &str, alone: &[Duration], beside: &[Duration]) {
    let (median, p95) = (alone[SMALL_REQUESTS / 2], beside[SMALL_REQUESTS * 95 / 100 - 1]);
    eprintln!("a small request {what}: p95 {p95:?}, worst {:?}; alone, median {median:?}", beside.last());
    let most = SMALL_MAX.max(median * TIMES_ALONE_MAX);
    assert!(p95 <= most, "{what}: {p95:?}, and {median:?} alone");
}

/// A stream that is asked for, and of which only the beginning is read.
async fn stream(rig: &Rig, more: Value) -> TcpStream {
    let mut body = chat_body("Count for ever.", more);
    body["stream"] = true.into();
    let body = body.to_string();
    let mut stream = TcpStream::connect(rig.http).await.expect("the gateway listens");
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).await.expect("it is sent");
    stream
}

async fn has_begun(stream: &mut TcpStream) {
    let mut beginning = [0; 12];
    stream.read_exact(&mut beginning).await.expect("an answer begins");
    assert_eq!(&beginning, b"HTTP/1.1 200");
}

fn long() -> Value {
    json!({"max_tokens": 3900, "ignore_eos": true, "temperature": 1})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_request_beside_one_that_asks_for_all_there_is() {
    let rig = Rig::start().await;
    let alone = small_requests(&rig).await;
    let mut more = long();
    more["n"] = SLOTS.into();
    let mut greedy = stream(&rig, more).await;
    has_begun(&mut greedy).await;
    rig.until("all its choices run", async |rig| running(rig).await >= 0.9 * SLOTS as f64).await;
    check("beside all the choices there may be", &alone, &small_requests(&rig).await);
    drop(greedy);
    rig.until("it has left", async |rig| rig.blocks_used().await == 0).await;
    rig.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_request_beside_streams_that_nobody_reads() {
    let rig = Rig::start_in_one().await;
    let alone = small_requests(&rig).await;
    let mut unread = Vec::new();
    for _ in 0..SLOTS {
        unread.push(stream(&rig, long()).await);
    }
    for stream in &mut unread {
        has_begun(stream).await;
    }
    rig.until("all of them run", async |rig| running(rig).await >= 0.9 * SLOTS as f64).await;
    check("beside streams that nobody reads", &alone, &small_requests(&rig).await);
    drop(unread);
    rig.until("they have left", async |rig| rig.blocks_used().await == 0).await;
    rig.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn choices_beyond_what_runs_at_once_are_refused_by_name() {
    let rig = Rig::start_with(|config| config.engine.sequences_max = 6).await;
    let (status, _, answer) = rig.chat("hi", json!({"n": 7, "max_tokens": 2})).await;
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("n")), "{answer}");
    let message = answer["error"]["message"].as_str().expect("a message");
    assert!(message.starts_with("n: must be at most 6") && message.ends_with("not 7"), "{message}");
    let (status, _, answer) = rig.chat("hi", json!({"n": 6, "max_tokens": 2})).await;
    assert_eq!((status, answer["choices"].as_array().map(Vec::len)), (200, Some(6)), "{answer}");
    rig.ended().await;
}

/// Sequences of the last step.
async fn running(rig: &Rig) -> f64 {
    let text = rig.metrics().await;
    let line = text.lines().find(|line| line.starts_with("hanzo_engine_batch_size{")).unwrap_or_default();
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).unwrap_or_default()
}
