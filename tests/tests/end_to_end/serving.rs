//! Through the gateway and the daemon, over sockets.

use std::sync::Arc;

use hanzo_engine_proto::v1::{InferRequest, StopConditions, TokenIds, infer_request::Prompt};
use hanzo_engine_tests::rig::{Rig, chat_body, streamed_text};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};

const FRANCE: &str = "What is the capital of France?";
const COUNT: &str = "Count from 1 to 40.";

#[tokio::test(flavor = "multi_thread")]
async fn answers_and_streams_the_same() {
    answer_and_stream(Rig::start().await).await;
    answer_and_stream(Rig::start_in_one().await).await;
}

async fn answer_and_stream(rig: Rig) {
    let (status, _, answer) = rig.chat(FRANCE, json!({})).await;
    assert_eq!(status, 200, "{answer}");
    let text = answer["choices"][0]["message"]["content"].as_str().expect("a text");
    assert!(text.contains("Paris"), "{text}");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["usage"]["prompt_tokens"], 19);

    let (events, done) = rig.chat_stream(FRANCE, json!({"stream_options": {"include_usage": true}})).await;
    assert!(done);
    assert_eq!(streamed_text(&events, 0), text);
    let usage = &events.last().expect("events")["usage"];
    assert_eq!(usage["total_tokens"], answer["usage"]["total_tokens"]);

    // The second time the prompt's only full block is found in the cache.
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 16);
    rig.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn text_survives_stops_and_seeds() {
    let rig = Rig::start().await;
    let (_, _, whole) = rig.chat("Explain paged attention.", json!({})).await;
    let whole = whole["choices"][0]["message"]["content"].as_str().expect("a text").to_string();
    // A stop string that spans tokens, wherever it is cut.
    for at in (8..whole.len().min(80)).step_by(9) {
        let stop: String = whole[at..].chars().take(7).collect();
        let (_, _, cut) = rig.chat("Explain paged attention.", json!({"stop": stop})).await;
        let want = whole.split(&stop).next().expect("a split has a first part");
        assert_eq!(cut["choices"][0]["message"]["content"], want, "stop at {stop:?}");
        assert_eq!(cut["choices"][0]["finish_reason"], "stop");
    }
    let ask = async |seed: u64| {
        let more = json!({"seed": seed, "temperature": 1.0, "max_tokens": 40});
        rig.chat("Tell me a story about a fox named Mia.", more).await.2["choices"][0]["message"].clone()
    };
    let first = ask(1).await;
    assert_eq!(ask(1).await, first);
    let mut others = Vec::new();
    for seed in 2..6 {
        others.push(ask(seed).await);
    }
    assert!(others.iter().any(|other| *other != first), "four seeds gave one text");
    rig.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thirty_two_streams_and_sixteen_killed() {
    kill_sixteen(Rig::start().await).await;
    kill_sixteen(Rig::start_in_one().await).await;
}

async fn kill_sixteen(rig: Rig) {
    let rig = Arc::new(rig);
    let before = rig.blocks_used().await;
    let asked: Vec<(String, Value)> = (0..32)
        .map(|i| {
            (
                format!("What is {} + {}?", 11 + i, 60 - i),
                json!({"max_tokens": 5 + 3 * i, "ignore_eos": true}),
            )
        })
        .collect();
    let mut alone = Vec::new();
    for (question, more) in &asked {
        alone.push(rig.chat(question, more.clone()).await.2["choices"][0].clone());
    }

    // Sixteen connections that will be cut in the middle of their streams.
    let mut doomed = Vec::new();
    for _ in 0..16 {
        let body =
            chat_body(COUNT, json!({"stream": true, "max_tokens": 3000, "ignore_eos": true})).to_string();
        let mut socket = TcpStream::connect(rig.http).await.expect("the gateway listens");
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        socket.write_all(format!("{head}{body}").as_bytes()).await.expect("written");
        doomed.push(socket);
    }
    for socket in &mut doomed {
        let mut seen = Vec::new();
        while !seen.windows(9).any(|w| w == b"\"content\"") {
            assert!(socket.read_buf(&mut seen).await.expect("a stream") > 0, "ended early");
        }
    }
    assert!(rig.blocks_used().await > before);

    let mut streams = JoinSet::new();
    for (i, (question, more)) in asked.into_iter().enumerate() {
        let rig = rig.clone();
        streams.spawn(async move { (i, rig.chat_stream(&question, more).await) });
    }
    drop(doomed);
    while let Some(joined) = streams.join_next().await {
        let (i, (events, done)) = joined.expect("no panic");
        assert!(done);
        assert_eq!(streamed_text(&events, 0), alone[i]["message"]["content"].as_str().expect("a text"));
        let reason =
            events.iter().filter_map(|event| event["choices"][0]["finish_reason"].as_str()).next_back();
        assert_eq!(reason, alone[i]["finish_reason"].as_str());
    }
    rig.until("the killed streams' blocks are free", async |rig| rig.blocks_used().await == before).await;
    Arc::into_inner(rig).expect("all clients are done").ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_is_429_and_then_all_is_well() {
    let rig = Rig::start_with(|config| {
        config.engine.queue_requests_max = 3;
        config.engine.sequences_max = 1;
    })
    .await;
    let rig = Arc::new(rig);
    let mut clients = JoinSet::new();
    for _ in 0..24 {
        let rig = rig.clone();
        clients.spawn(async move { rig.chat(COUNT, json!({"max_tokens": 150, "ignore_eos": true})).await });
    }
    let (mut served, mut refused) = (0, 0);
    while let Some(joined) = clients.join_next().await {
        let (status, headers, body) = joined.expect("no panic");
        match status {
            200 => served += 1,
            429 => {
                refused += 1;
                let seconds =
                    headers["retry-after"].to_str().expect("ASCII").parse::<u32>().expect("seconds");
                assert!(seconds >= 1, "{body}");
                assert_eq!(body["error"]["type"], "rate_limit_error", "{body}");
                assert_eq!(body["error"]["code"], "overloaded", "{body}");
                let message = body["error"]["message"].as_str().expect("a message");
                assert!(message.contains("hanzo-demo has 3 requests waiting"), "{message}");
            }
            other => panic!("{other}: {body}"),
        }
    }
    assert!(served >= 3 && refused >= 1, "{served} served, {refused} refused");
    assert_eq!(served + refused, 24, "each was answered one way or the other");
    assert_eq!(rig.chat("Hello!", json!({})).await.0, 200);
    Arc::into_inner(rig).expect("all clients are done").ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_lets_streams_finish() {
    drain_beside_a_stream(Rig::start().await).await;
    drain_beside_a_stream(Rig::start_in_one().await).await;
}

async fn drain_beside_a_stream(mut rig: Rig) {
    let body = chat_body(COUNT, json!({"stream": true, "max_tokens": 400, "ignore_eos": true})).to_string();
    let mut socket = TcpStream::connect(rig.http).await.expect("the gateway listens");
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all(format!("{head}{body}").as_bytes()).await.expect("written");
    let mut seen = Vec::new();
    while !seen.windows(9).any(|w| w == b"\"content\"") {
        assert!(socket.read_buf(&mut seen).await.expect("a stream") > 0, "ended early");
    }
    rig.begin_stop();
    socket.read_to_end(&mut seen).await.expect("the rest");
    let text = String::from_utf8(seen).expect("UTF-8");
    assert!(
        text.contains("data: [DONE]") && text.contains("\"length\""),
        "{}",
        &text[text.len().saturating_sub(600)..]
    );
    rig.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_tokens_by_grpc() {
    let rig = Rig::start().await;
    let mut client = rig.grpc().await;
    let mut infer = async |prompt: Prompt| {
        let request = InferRequest {
            model: hanzo_engine_daemon::DEMO_MODEL.into(),
            prompt: Some(prompt),
            stop: Some(StopConditions { max_tokens: Some(24), ..StopConditions::default() }),
            ..InferRequest::default()
        };
        let mut stream = client.infer(request).await.expect("accepted").into_inner();
        let mut tokens = Vec::new();
        while let Some(event) = stream.message().await.expect("no error") {
            if let Some(hanzo_engine_proto::v1::infer_event::Event::Delta(delta)) = event.event {
                tokens.extend(delta.token_ids);
            }
        }
        tokens
    };
    let text = "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
    let ids = vec![4088, 278, 198, 702, 0, 4089, 198, 4088, 290, 198, 4090, 256, 4091, 256];
    let by_text = infer(Prompt::Text(text.into())).await;
    assert!(!by_text.is_empty());
    assert_eq!(infer(Prompt::Tokens(TokenIds { ids })).await, by_text);
    rig.ended().await;
}
