//! What the gateway adds to each token of a stream, and to the first, beside the same engine asked over gRPC. A measurement, which says
//! nothing on a busy machine: `cargo test --release -p hanzo-engine-gateway --test gateway overhead -- --ignored --nocapture`.

use std::time::{Duration, Instant};

use hanzo_engine_proto::v1::{self, FinishReason, engine_client::EngineClient};
use serde_json::json;

use crate::{
    Server,
    fake::{Step, delta, finished, started},
    http::{Live, json_request},
    script,
};

const ROUNDS: usize = 40;
const TOKENS: usize = 100;

/// Microseconds.
fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn overhead_of_a_token_and_of_the_first() {
    let mut steps = vec![started(), delta(0, "first")];
    for _ in 0..TOKENS {
        steps.extend([Step::Gate, delta(0, "token")]);
    }
    steps.push(finished(0, FinishReason::Stop, 2));
    let server = Server::start(script(move |_| Ok(steps.clone()))).await;
    let mut client = EngineClient::connect(server.fake.uri()).await.unwrap();
    let request = v1::InferRequest {
        choices: 1,
        prompt: Some(v1::infer_request::Prompt::Text("hi".to_owned())),
        ..Default::default()
    };
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "stream": true}).to_string();
    let (mut first, mut each) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    // In pairs, one after the other; the first are for warmth.
    for round in 0..ROUNDS + 4 {
        let mut times = [Vec::new(), Vec::new()];
        let begun = Instant::now();
        let mut events = client.infer(request.clone()).await.unwrap().into_inner();
        // That it has begun, and the first token.
        events.message().await.unwrap().unwrap();
        events.message().await.unwrap().unwrap();
        times[0].push(micros(begun.elapsed()));
        for _ in 0..TOKENS {
            let begun = Instant::now();
            server.fake.release();
            events.message().await.unwrap().unwrap();
            times[0].push(micros(begun.elapsed()));
        }
        drop(events);
        let begun = Instant::now();
        // With a connection of its own, as a client that asks once has.
        let mut live = Live::open(server.address, json_request("/v1/chat/completions", body.clone())).await;
        live.read_until("first").await;
        times[1].push(micros(begun.elapsed()));
        for _ in 0..TOKENS {
            let begun = Instant::now();
            server.fake.release();
            live.read_until("token").await;
            times[1].push(micros(begun.elapsed()));
        }
        live.read_until("[DONE]").await;
        for (at, times) in times.into_iter().enumerate().filter(|_| round >= 4) {
            first[at].push(times[0]);
            each[at].extend_from_slice(&times[1..]);
        }
    }
    let [(direct_first, http_first), (direct, http)] =
        [first, each].map(|[direct, http]| (median(direct), median(http)));
    println!(
        "first token: gRPC {direct_first:.0} µs, HTTP {http_first:.0} µs, {:.0} µs more",
        http_first - direct_first
    );
    println!(
        "each token:  gRPC {direct:.0} µs, HTTP {http:.0} µs, {:.0} µs more (p50 of {})",
        http - direct,
        ROUNDS * TOKENS
    );
    assert!(http - direct <= 100.0 && http_first - direct_first <= 1000.0);
}
