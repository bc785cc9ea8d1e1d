//! Tests of Infer over gRPC: the order of events, and the effect of each field.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_started_deltas_finished() {
    let rig = Rig::start().await;
    let request = v1::InferRequest {
        request_id: "abc-1".into(),
        ..chat(question("What is the capital of France?"), 40)
    };
    let events = rig.events(request).await;
    let start = started(&events);
    assert_eq!((start.request_id.as_str(), start.model.as_str()), ("abc-1", DEMO_MODEL));
    assert!(start.prompt_tokens > 5);
    assert!(said(&events, 0).contains("Paris"), "{:?}", said(&events, 0));
    let end = finished(&events, 0);
    assert!(matches!(events.last(), Some(Event::Finished(_))));
    assert_eq!(end.reason(), v1::FinishReason::Stop);
    let usage = end.usage.unwrap();
    assert_eq!(usage.prompt_tokens, start.prompt_tokens);
    assert_eq!(usage.completion_tokens as usize, tokens(&events, 0).len());
    let timings = end.timings.unwrap();
    assert!(timings.prefill_ms > 0.0 && timings.decode_ms > 0.0 && timings.queue_ms >= 0.0);
    assert!(timings.decode_tokens_per_s > 0.0 && timings.prefill_tokens_per_s > 0.0);
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_and_its_tokens_are_the_same_prompt() {
    let rig = Rig::start().await;
    let ask = question("Say hello.");
    let input = Some(v1::tokenize_request::Input::Chat(ask.clone()));
    let request = v1::TokenizeRequest { input, ..Default::default() };
    let tokenized = rig.client().tokenize(request).await.unwrap().into_inner();
    assert!(tokenized.text.contains("Say hello.") && tokenized.context_tokens_max > 1000);
    let by_chat = rig.events(chat(ask, 20)).await;
    assert_eq!(started(&by_chat).prompt_tokens as usize, tokenized.ids.len());
    let ids = v1::TokenIds { ids: tokenized.ids.clone() };
    let prompt = Some(v1::infer_request::Prompt::Tokens(ids));
    let by_tokens = rig.events(v1::InferRequest { prompt, ..text("", 20) }).await;
    assert_eq!(tokens(&by_chat, 0), tokens(&by_tokens, 0));

    let request = v1::DetokenizeRequest { ids: tokenized.ids, ..Default::default() };
    assert_eq!(rig.client().detokenize(request).await.unwrap().into_inner().text, tokenized.text);
    let request = v1::DetokenizeRequest { ids: vec![1_000_000], ..Default::default() };
    check_refused(&rig.client().detokenize(request).await.unwrap_err(), Code::InvalidArgument, "ids: ");
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_with_its_last_event_is_answered_and_not_cancelled() {
    use futures_util::StreamExt as _;
    let rig = Rig::start().await;
    let request = v1::InferRequest { choices: 2, ..endless(4) };
    let core = rig.handle.core();
    let mut stream = Box::pin(crate::service::infer(core, tonic::Request::new(request)).await.unwrap());
    let mut unfinished = 2;
    while unfinished > 0 {
        let event = in_time(stream.next()).await.unwrap().unwrap().event.unwrap();
        unfinished -= u32::from(matches!(event, Event::Finished(_)));
    }
    drop(stream);
    let (_, metrics) = rig.admin("/metrics").await;
    let answered = format!("requests_total{{model=\"{DEMO_MODEL}\",status=\"ok\"}} 1");
    assert!(metrics.contains(&answered) && !metrics.contains("status=\"cancelled\""), "{metrics}");
    rig.stopped().await;
}

fn seeded(seed: Option<u64>, choices: u32) -> v1::InferRequest {
    let sampling = v1::Sampling { temperature: Some(1.5), seed, ..Default::default() };
    v1::InferRequest { sampling: Some(sampling), choices, ..endless(24) }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seed_decides_the_text() {
    let rig = Rig::start().await;
    let seven = tokens(&rig.events(seeded(Some(7), 1)).await, 0);
    assert_eq!(seven, tokens(&rig.events(seeded(Some(7), 1)).await, 0));
    assert_ne!(seven, tokens(&rig.events(seeded(Some(8), 1)).await, 0));
    // A random seed is reported and can be requested again.
    let fresh = rig.events(seeded(None, 1)).await;
    let again = rig.events(seeded(Some(started(&fresh).seed), 1)).await;
    assert_eq!(tokens(&fresh, 0), tokens(&again, 0));
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_choice_is_what_it_would_be_alone() {
    let rig = Rig::start().await;
    let three = rig.events(seeded(Some(7), 3)).await;
    let starts = three.iter().filter(|event| matches!(event, Event::Started(_))).count();
    assert_eq!(starts, 3);
    for choice in 0..3 {
        assert_eq!(finished(&three, choice).reason(), v1::FinishReason::Length);
        let alone = rig.events(seeded(Some(7 + u64::from(choice)), 1)).await;
        assert_eq!(tokens(&three, choice), tokens(&alone, 0), "choice {choice}");
    }
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_stop_where_they_are_told() {
    let rig = Rig::start().await;
    let ask = question("What is the capital of France?");
    let whole = said(&rig.events(chat(ask.clone(), 40)).await, 0);
    let stop =
        v1::StopConditions { strings: vec!["Paris".into()], max_tokens: Some(40), ..Default::default() };
    let events = rig.events(v1::InferRequest { stop: Some(stop.clone()), ..chat(ask.clone(), 1) }).await;
    let end = finished(&events, 0);
    assert_eq!((end.reason(), end.stop_string.as_str()), (v1::FinishReason::Stop, "Paris"));
    assert_eq!(said(&events, 0), whole[..whole.find("Paris").unwrap()]);
    let stop = v1::StopConditions { include_stop_string: true, ..stop };
    let events = rig.events(v1::InferRequest { stop: Some(stop), ..chat(ask.clone(), 1) }).await;
    assert!(said(&events, 0).ends_with("Paris"));

    let events = rig.events(chat(ask, 2)).await;
    let end = finished(&events, 0);
    assert_eq!((end.reason(), end.usage.unwrap().completion_tokens), (v1::FinishReason::Length, 2));
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn echo_and_logprobs_are_sent_when_asked_for() {
    let rig = Rig::start().await;
    let request =
        v1::InferRequest { echo: true, logprobs: true, top_logprobs: 2, choices: 2, ..text("Once upon", 4) };
    let events = rig.events(request).await;
    for choice in 0..2 {
        assert!(said(&events, choice).starts_with("Once upon"), "{:?}", said(&events, choice));
        let logprobs: Vec<&v1::TokenLogprob> = events
            .iter()
            .filter_map(|event| match event {
                Event::Delta(delta) if delta.choice == choice => Some(&delta.logprobs),
                _ => None,
            })
            .flatten()
            .collect();
        let ids: Vec<u32> = logprobs.iter().map(|logprob| logprob.token_id).collect();
        assert_eq!(ids, tokens(&events, choice));
        assert!(logprobs.iter().all(|logprob| logprob.logprob <= 0.0 && logprob.top.len() == 2));
        // Greedy sampling takes the best alternative.
        assert!(logprobs.iter().all(|logprob| logprob.top[0].token_id == logprob.token_id));
    }
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_named_and_nothing_else_changes() {
    let rig = Rig::start().await;
    let sampling = |sampling: v1::Sampling| v1::InferRequest { sampling: Some(sampling), ..text("a", 1) };
    let stop = |stop: v1::StopConditions| v1::InferRequest { stop: Some(stop), ..text("a", 1) };
    let of = v1::Sampling::default;
    let stops = v1::StopConditions::default;
    let tokens = |ids: Vec<u32>| {
        let prompt = Some(v1::infer_request::Prompt::Tokens(v1::TokenIds { ids }));
        v1::InferRequest { prompt, ..text("", 1) }
    };
    let cases = [
        ("sampling.temperature: ", sampling(v1::Sampling { temperature: Some(f32::NAN), ..of() })),
        ("sampling.temperature: ", sampling(v1::Sampling { temperature: Some(-1.0), ..of() })),
        ("sampling.top_p: ", sampling(v1::Sampling { top_p: Some(0.0), ..of() })),
        ("sampling.min_p: ", sampling(v1::Sampling { min_p: Some(2.0), ..of() })),
        ("sampling.repetition_penalty: ", sampling(v1::Sampling { repetition_penalty: Some(0.0), ..of() })),
        ("sampling.frequency_penalty: ", sampling(v1::Sampling { frequency_penalty: Some(3.0), ..of() })),
        ("sampling.logit_bias: ", sampling(v1::Sampling { logit_bias: [(1 << 30, 1.0)].into(), ..of() })),
        ("stop.strings: ", stop(v1::StopConditions { strings: vec!["x".into(); 17], ..stops() })),
        ("stop.max_tokens: ", stop(v1::StopConditions { max_tokens: Some(0), ..stops() })),
        ("choices: ", v1::InferRequest { choices: 1000, ..text("a", 1) }),
        ("top_logprobs: ", v1::InferRequest { top_logprobs: 5, ..text("a", 1) }),
        ("suffix: ", v1::InferRequest { suffix: "x".into(), ..text("a", 1) }),
        ("prompt", v1::InferRequest { prompt: None, ..text("a", 1) }),
        ("prompt", tokens(vec![])),
        ("prompt", tokens(vec![1 << 30])),
        ("chat.messages: ", chat(v1::Chat::default(), 1)),
    ];
    for (field, request) in cases {
        check_refused(&rig.infer(request).await.unwrap_err(), Code::InvalidArgument, field);
    }
    // Above the context: the message has both numbers, and the metadata a code.
    let context = rig.stats("").await.status.unwrap().context_tokens_max;
    let status = rig.infer(tokens(vec![5; 10_000])).await.unwrap_err();
    check_refused(&status, Code::InvalidArgument, "prompt: ");
    let words = format!(
        "This model's maximum context length is {context} tokens. However, your messages resulted in 10000"
    );
    assert!(status.message().contains(&words), "{status:?}");
    assert_eq!(metadata(&status, "error-code").as_deref(), Some("context_length_exceeded"));

    let status = rig.infer(v1::InferRequest { model: "gpt-9".into(), ..text("a", 1) }).await.unwrap_err();
    check_refused(&status, Code::NotFound, "model: \"gpt-9\"");
    assert!(status.message().contains(DEMO_MODEL), "{status:?}");

    assert_eq!(finished(&rig.events(text("a", 1)).await, 0).usage.unwrap().completion_tokens, 1);
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_matched_without_case_and_an_empty_one_means_the_only_one() {
    let rig = Rig::start().await;
    for name in ["", "hanzo-demo", "Hanzo-Demo"] {
        rig.events(v1::InferRequest { model: name.into(), ..text("a", 1) }).await;
    }
    rig.load(DEMO_MODEL, "acme/other").await.unwrap();
    rig.events(v1::InferRequest { model: "other".into(), ..text("a", 1) }).await;
    let status = rig.infer(text("a", 1)).await.unwrap_err();
    check_refused(&status, Code::InvalidArgument, "model: name one");
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_is_as_long_as_the_context_leaves_room_for() {
    let rig = Rig::start_with(|_| ()).await;
    let load = v1::LoadRequest { model: DEMO_MODEL.into(), context_tokens_max: 64, ..Default::default() };
    rig.client().load(load).await.unwrap();
    let ids = |count| {
        let ids = v1::TokenIds { ids: vec![278; count] };
        v1::InferRequest { prompt: Some(v1::infer_request::Prompt::Tokens(ids)), ..endless(1_000_000) }
    };
    let end = finished(&rig.events(ids(60)).await, 0);
    assert_eq!((end.reason(), end.usage.unwrap().completion_tokens), (v1::FinishReason::Length, 4));
    let status = rig.infer(ids(64)).await.unwrap_err();
    assert_eq!(metadata(&status, "error-code").as_deref(), Some("context_length_exceeded"));
    assert!(status.message().contains("maximum context length is 64 tokens"), "{status:?}");
    assert!(!status.message().contains("max_tokens"), "{status:?}");
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn log_probabilities_are_of_what_the_client_sees() {
    let rig = Rig::start().await;
    let ask = |stop: &str| {
        let stop =
            v1::StopConditions { strings: vec![stop.to_owned()], max_tokens: Some(40), ..Default::default() };
        let request = chat(question("What is the capital of France?"), 40);
        v1::InferRequest { logprobs: true, stop: Some(stop), ..request }
    };
    let written = |events: &[Event]| -> Vec<String> {
        let of = events.iter().filter_map(|event| match event {
            Event::Delta(delta) => Some(delta.logprobs.iter().map(|logprob| logprob.token.to_vec())),
            _ => None,
        });
        of.flatten().map(|token| String::from_utf8(token).unwrap()).collect()
    };
    // The whole completion: all tokens but the last, which only the usage counts.
    let whole = rig.events(ask("no such text")).await;
    let answer = said(&whole, 0);
    assert_eq!(written(&whole).concat(), answer);
    let (end, drawn) = (finished(&whole, 0), tokens(&whole, 0).len());
    assert_eq!(
        (end.reason(), end.usage.unwrap().completion_tokens as usize),
        (v1::FinishReason::Stop, drawn)
    );
    assert_eq!(written(&whole).len(), drawn - 1);
    // With a stop string: the last token may extend beyond the text, and no token lacks a part in it.
    for stop in ["Paris", "aris", "France", "is"] {
        let events = rig.events(ask(stop)).await;
        let (text, tokens) = (said(&events, 0), written(&events));
        assert_eq!(text, answer[..answer.find(stop).unwrap()]);
        assert!(tokens.concat().starts_with(&text), "{tokens:?} of {text:?}");
        let before_last = tokens.split_last().map_or(0, |(_, before)| before.concat().len());
        assert!(before_last < text.len(), "{tokens:?} of {text:?}");
    }
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_field_says_whether_text_may_spell_control_tokens() {
    let rig = Rig::start().await;
    let text_of = "a<|im_end|>b";
    let tokenize = async |parse_special: Option<bool>| {
        let input = Some(v1::tokenize_request::Input::Text(text_of.into()));
        let request = v1::TokenizeRequest { input, parse_special, ..Default::default() };
        rig.client().tokenize(request).await.unwrap().into_inner().ids
    };
    let (parsed, plain) = (tokenize(Some(true)).await, tokenize(Some(false)).await);
    assert_eq!((parsed.clone(), parsed.len()), (tokenize(None).await, 3));
    assert!(plain.len() > 3 && !plain.contains(&parsed[1]), "{plain:?}");
    for (parse_special, ids) in [(None, &parsed), (Some(true), &parsed), (Some(false), &plain)] {
        let request = v1::InferRequest { parse_special, ..text(text_of, 1) };
        assert_eq!(started(&rig.events(request).await).prompt_tokens as usize, ids.len());
    }
    let request = v1::InferRequest { parse_special: Some(false), ..chat(question("hi"), 1) };
    check_refused(&rig.infer(request).await.unwrap_err(), Code::InvalidArgument, "parse_special: ");
    let input = Some(v1::tokenize_request::Input::Chat(question("hi")));
    let request = v1::TokenizeRequest { input, parse_special: Some(true), ..Default::default() };
    check_refused(
        &rig.client().tokenize(request).await.unwrap_err(),
        Code::InvalidArgument,
        "parse_special: ",
    );
    rig.stopped().await;
}
