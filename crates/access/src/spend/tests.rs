//! Tests of token reservations: refused, reserved and given back tokens.

use std::{sync::Arc, time::Duration};

use hanzo_engine_proto::v1::{
    Delta, EmbedInput, EmbedRequest, Finished, InferEvent, InferRequest, Started, StopConditions, TokenIds,
    Usage, embed_input::Input, infer_event::Event, infer_request::Prompt,
};

use super::{MeteredEvents, Spend};
use crate::{
    Pass, Record, Refusal, TokensFault,
    key::KeyDigest,
    pass::Holder,
    reservation::{INPUTS_OVER, InputsNeed, Need, Reservation, bound_inputs, inputs_bound},
};

fn pass(tokens_per_minute: Option<u32>) -> Pass {
    let record = Record { name: "a".to_owned(), tokens_per_minute, ..Record::default() };
    let digest = KeyDigest::of("a").unwrap();
    Pass::of(Arc::new(Holder {
        digest,
        record,
        random: true,
        usage: Arc::default(),
        revocation: Default::default(),
    }))
}

fn left(pass: &Pass) -> u32 {
    pass.standing().tokens.unwrap().remaining
}

fn request(prompt: usize, max_tokens: Option<u32>, choices: u32) -> InferRequest {
    InferRequest {
        prompt: Some(Prompt::Tokens(TokenIds { ids: vec![1; prompt] })),
        stop: Some(StopConditions { max_tokens, ..StopConditions::default() }),
        choices,
        ..InferRequest::default()
    }
}

fn event(event: Event) -> InferEvent {
    InferEvent { event: Some(event) }
}

fn started(prompt_tokens: u32) -> InferEvent {
    event(Event::Started(Started { prompt_tokens, ..Started::default() }))
}

fn delta(choice: u32, tokens: usize) -> InferEvent {
    event(Event::Delta(Delta { choice, token_ids: vec![1; tokens], ..Delta::default() }))
}

fn finished(choice: u32, completion_tokens: u32) -> InferEvent {
    let usage = Some(Usage { completion_tokens, ..Usage::default() });
    event(Event::Finished(Finished { choice, usage, ..Finished::default() }))
}

#[test]
fn a_request_that_no_minute_has_the_tokens_for_is_refused_with_advice() {
    let pass = pass(Some(50));
    for (mut request, field, most) in [
        (request(10, Some(9_600), 1), "max_tokens: ", "at most 40 tokens"),
        (request(10, Some(21), 2), "max_tokens: ", "at most 40 tokens"),
        (request(10, Some(u32::MAX), u32::MAX), "max_tokens: ", "at most 40 tokens"),
        (request(51, None, 1), "prompt: ", "send at most 50 tokens"),
        (request(51, Some(1), 1), "prompt: ", "send at most 50 tokens"),
    ] {
        let refusal = Spend::reserve(pass.clone(), &mut request).unwrap_err();
        let message = refusal.to_string();
        assert!(message.starts_with(field) && message.contains(most), "{message}");
        assert!(message.contains("50 tokens per minute") && refusal.retry_after().is_none(), "{message}");
        assert_eq!(left(&pass), 50, "nothing is taken");
    }
    let fault = Spend::reserve(pass, &mut request(51, None, 1)).unwrap_err();
    assert!(matches!(fault, Refusal::TooManyTokens { fault: TokensFault::Prompt, .. }));
}

#[test]
fn prompts_that_no_minute_has_the_tokens_for_together_are_refused() {
    let pass = pass(Some(50));
    let all = |tokens, count| Spend::check_all(&pass, &vec![request(tokens, None, 1); count]);
    assert_eq!(all(11, 4), Ok(()), "with one token of each answer");
    assert!(matches!(all(12, 4), Err(Refusal::TooManyTokens { limit: 50, .. })));
    assert!(matches!(all(30, 2), Err(Refusal::TooManyTokens { fault: TokensFault::Prompt, .. })));
    assert_eq!(left(&pass), 50, "nothing is taken");
    assert_eq!(Spend::check_all(&self::pass(None), &[request(1_000, None, 9)]), Ok(()));
}

#[test]
fn tokens_are_reserved_before_and_settled_after() {
    let pass = pass(Some(100));
    let mut spend = Spend::reserve(pass.clone(), &mut request(10, Some(20), 2)).unwrap();
    assert_eq!(left(&pass), 50);
    // A second request is told how long to wait if nothing is given back before.
    let Err(Refusal::Tokens { retry_after, .. }) =
        Spend::reserve(pass.clone(), &mut request(10, Some(80), 1))
    else {
        panic!("90 tokens where 50 are left")
    };
    assert!((23..=24).contains(&retry_after.as_secs()), "{retry_after:?}");
    for event in [started(10), started(10), delta(0, 5), delta(1, 1), delta(7, 1_000), finished(0, 5)] {
        spend.see(&event).unwrap();
    }
    assert_eq!(left(&pass), 50, "one choice runs");
    spend.see(&finished(1, 2)).unwrap();
    assert_eq!(left(&pass), 100 - 10 - 5 - 2, "the last has finished");
    drop(spend);
    assert_eq!(left(&pass), 83);
    // A client that disconnects has paid for what it received.
    let mut spend = Spend::reserve(pass.clone(), &mut request(3, Some(50), 1)).unwrap();
    spend.see(&started(3)).unwrap();
    spend.see(&delta(0, 4)).unwrap();
    drop(spend);
    assert_eq!(left(&pass), 83 - 7);
}

#[test]
fn an_answer_without_a_bound_gets_what_the_key_has() {
    let bound = |pass: &Pass, prompt| {
        let mut request = request(prompt, None, 1);
        let spend = Spend::reserve(pass.clone(), &mut request);
        spend.map(|spend| (request.completion_tokens_max, spend))
    };
    let pass = self::pass(Some(100));
    let (most, spend) = bound(&pass, 10).unwrap();
    assert_eq!((most, left(&pass)), (90, 0));
    drop(spend);
    // The maximum is no bound either: clients state no limit so.
    let mut endless = request(10, Some(u32::MAX), 1);
    let spend = Spend::reserve(pass.clone(), &mut endless).unwrap();
    assert_eq!((endless.completion_tokens_max, endless.stop.unwrap().max_tokens), (90, Some(u32::MAX)));
    drop(spend);
    let _others = pass.reserve(Need { prompt: 0, completion: 50 }).unwrap();
    let (most, spend) = bound(&pass, 10).unwrap();
    assert_eq!(most, 40);
    drop(spend);
    // It waits at least for a quarter of its maximum.
    let _more = pass.reserve(Need { prompt: 0, completion: 30 }).unwrap();
    assert!(matches!(bound(&pass, 10), Err(Refusal::Tokens { .. })));
    // A key with many tokens can run several such requests at once.
    let pass = self::pass(Some(100_000));
    let _running: Vec<_> = (0..3).map(|_| bound(&pass, 10).unwrap()).collect();
    assert!(bound(&pass, 10).is_ok());
    // Without a limit, nothing changes.
    let mut free = request(10, None, 1);
    Spend::reserve(self::pass(None), &mut free).unwrap();
    assert_eq!(free, request(10, None, 1));
}

#[tokio::test]
async fn a_prompt_that_is_longer_than_it_seemed_ends_the_generation_or_is_paid_for() {
    use tonic::codegen::tokio_stream::{StreamExt as _, iter};
    let text = |bytes: usize| InferRequest {
        prompt: Some(Prompt::Text("x".repeat(bytes))),
        ..request(0, Some(10), 1)
    };
    let pass = pass(Some(100));
    let over = |spend: Spend, prompt: u32| {
        let events = [started(prompt), delta(0, 10), finished(0, 10)];
        let metered: MeteredEvents<_> = spend.over(iter(events.map(Ok)));
        metered.collect::<Vec<_>>()
    };
    // 300 bytes are estimated as 60 tokens; the engine counts 300.
    let events = over(Spend::reserve(pass.clone(), &mut text(300)).unwrap(), 300).await;
    assert_eq!(events.len(), 1);
    let status = events[0].as_ref().unwrap_err();
    assert!(status.message().starts_with("prompt: this key has 100 tokens per minute"), "{status}");
    assert_eq!(left(&pass), 100);
    let events = over(Spend::reserve(pass.clone(), &mut text(300)).unwrap(), 70).await;
    assert_eq!((events.len(), left(&pass)), (3, 20));
}

#[test]
fn any_number_of_choices_takes_no_memory_before_they_come() {
    let mut request = request(1, None, u32::MAX);
    let mut spend = Spend::reserve(Pass::anyone(), &mut request).unwrap();
    spend.see(&delta(u32::MAX - 1, 1)).unwrap();
    spend.see(&delta(u32::MAX, 1)).unwrap();
    assert_eq!(spend.charged.len(), 1);
}

#[test]
fn unforeseen_tokens_are_charged_while_there_are_some() {
    let pass = pass(Some(100));
    let mut reservation: Reservation = pass.reserve(Need { prompt: 0, completion: 40 }).unwrap();
    reservation.charge_more(60).unwrap();
    reservation.charge_more(40).unwrap();
    let Err(Refusal::Tokens { retry_after, .. }) = reservation.charge_more(50) else {
        panic!("none is left")
    };
    assert!(retry_after > Duration::from_secs(28), "{retry_after:?}");
}

#[test]
fn inputs_take_no_more_tokens_than_were_reserved_for_them() {
    let input = |bytes: usize| EmbedInput { input: Some(Input::Text("x".repeat(bytes))) };
    let embed = |bytes: &[usize], truncate| {
        let inputs = bytes.iter().map(|&bytes| input(bytes)).collect();
        InputsNeed::embed(&EmbedRequest { inputs, truncate, ..EmbedRequest::default() })
    };
    let pass = pass(Some(1_000));
    // All that the inputs may take is reserved while they are counted, and no more is charged than they took.
    let mut short = pass.reserve_inputs(embed(&[100, 200], false)).unwrap();
    let reserved = short.inputs_bound().unwrap();
    assert!((300..1_000).contains(&reserved), "{reserved}");
    assert_eq!(left(&pass), 1_000 - reserved);
    short.charge(70);
    drop(short);
    assert_eq!(left(&pass), 930);
    // A client that leaves pays the estimate.
    drop(pass.reserve_inputs(embed(&[100], false)).unwrap());
    assert_eq!(left(&pass), 910);
    // Nobody knows how long an input is that may be truncated. It gets all that is left.
    let long = pass.reserve_inputs(embed(&[1_000_000], true)).unwrap();
    assert_eq!((long.inputs_bound(), left(&pass)), (Some(910), 0));
    assert!(matches!(pass.reserve_inputs(embed(&[10], true)), Err(Refusal::Tokens { .. })));
    let call = bound_inputs(tonic::Request::new(()), long.inputs_bound());
    assert_eq!(inputs_bound(call.metadata()), Some(910));
    let over = || {
        let mut status = tonic::Status::invalid_argument("inputs: take over 910 tokens");
        status.metadata_mut().insert("error-code", INPUTS_OVER.parse().unwrap());
        status
    };
    // A later minute may have enough tokens, and a full one has all that there are.
    assert!(matches!(long.failed(over()), Ok(Refusal::Tokens { limit: 1_000, .. })));
    assert_eq!(left(&pass), 910);
    let fresh = self::pass(Some(50));
    let whole = fresh.reserve_inputs(embed(&[1_000], true)).unwrap();
    let refusal = whole.failed(over()).unwrap();
    assert!(matches!(refusal, Refusal::TooManyTokens { limit: 50, fault: TokensFault::Prompt, .. }));
    // Any other error stays as it is, and costs nothing.
    let other = fresh.reserve_inputs(embed(&[10], false)).unwrap();
    assert_eq!(other.failed(tonic::Status::internal("x")).unwrap_err().code(), tonic::Code::Internal);
    assert_eq!(left(&fresh), 50);
    assert_eq!(self::pass(None).reserve_inputs(embed(&[10], false)).unwrap().inputs_bound(), None);
}
