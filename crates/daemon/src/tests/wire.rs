//! Tests of properties that every gRPC client relies on: field names in errors, sizes, compression, enumerations,
//! and warnings about reduced values.

use std::collections::BTreeMap;

use futures_util::TryStreamExt as _;
use hanzo_engine_proto::v1::infer_request::Prompt;
use prost::Message as _;
use prost_types::{DescriptorProto, FileDescriptorSet, field_descriptor_proto::Type};
use tonic::codec::CompressionEncoding;
use tower::ServiceExt as _;

use super::*;

/// Whether `path` (`chat.messages[0].role`) leads to a field or a oneof of a message in the contract.
fn is_in_contract(message: &str, path: &str) -> bool {
    let files = FileDescriptorSet::decode(v1::FILE_DESCRIPTOR_SET).unwrap();
    let messages: Vec<DescriptorProto> = files.file.into_iter().flat_map(|file| file.message_type).collect();
    let mut at = messages.iter().find(|one| one.name() == message);
    for step in path.split('.') {
        let name = step.split('[').next().unwrap();
        let Some(message) = at else { return false };
        let Some(field) = message.field.iter().find(|field| field.name() == name) else {
            return message.oneof_decl.iter().any(|oneof| oneof.name() == name) && !step.contains('[');
        };
        let of = field.type_name().rsplit('.').next().unwrap().to_owned();
        at = match field.r#type() {
            Type::Message => messages.iter().find(|one| one.name() == of),
            _ => None,
        };
    }
    true
}

fn named(status: &Status) -> &str {
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    status.message().split(": ").next().unwrap()
}

#[test]
fn paths_are_looked_up_in_the_contract() {
    for path in ["choices", "sampling.top_p", "stop.strings", "chat.messages[3].content[0]", "prompt", "chat"]
    {
        assert!(is_in_contract("InferRequest", path), "{path}");
    }
    for path in ["n", "temperature", "messages", "stop.max", "chat.messages[0].nothing", "sampling.top_p.x"] {
        assert!(!is_in_contract("InferRequest", path), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_field_that_a_generations_error_names_is_the_contracts() {
    let rig = Rig::start_with(|config| config.engine.sequences_max = 16).await;
    rig.load(DEMO_MODEL, "").await.unwrap();
    let sampling = |change: fn(&mut v1::Sampling)| {
        let mut request = text("a", 1);
        change(request.sampling.get_or_insert_default());
        request
    };
    let stop = |change: fn(&mut v1::StopConditions)| {
        let mut request = text("a", 1);
        change(request.stop.get_or_insert_default());
        request
    };
    let of_chat = |change: fn(&mut v1::Chat)| {
        let mut asked = question("hi");
        change(&mut asked);
        chat(asked, 1)
    };
    let tokens = |ids| v1::InferRequest { prompt: Some(Prompt::Tokens(v1::TokenIds { ids })), ..text("", 1) };
    let cases = [
        ("sampling.temperature", sampling(|s| s.temperature = Some(-1.0))),
        ("sampling.top_p", sampling(|s| s.top_p = Some(2.0))),
        ("sampling.min_p", sampling(|s| s.min_p = Some(2.0))),
        ("sampling.repetition_penalty", sampling(|s| s.repetition_penalty = Some(0.0))),
        ("sampling.frequency_penalty", sampling(|s| s.frequency_penalty = Some(3.0))),
        ("sampling.presence_penalty", sampling(|s| s.presence_penalty = Some(-3.0))),
        ("sampling.typical_p", sampling(|s| s.typical_p = Some(0.0))),
        ("sampling.top_n_sigma", sampling(|s| s.top_n_sigma = Some(-1.0))),
        ("sampling.xtc_probability", sampling(|s| s.xtc_probability = Some(1.5))),
        ("sampling.xtc_threshold", sampling(|s| s.xtc_threshold = Some(-0.5))),
        ("sampling.dynatemp_range", sampling(|s| s.dynatemp_range = Some(3.0))),
        ("sampling.dynatemp_exponent", sampling(|s| s.dynatemp_exponent = Some(f32::NAN))),
        ("sampling.mirostat", sampling(|s| s.mirostat = Some(1))),
        ("sampling.mirostat_tau", sampling(|s| (s.mirostat, s.mirostat_tau) = (Some(2), Some(-1.0)))),
        ("sampling.mirostat_eta", sampling(|s| (s.mirostat, s.mirostat_eta) = (Some(2), Some(2.0)))),
        ("sampling.dry_multiplier", sampling(|s| s.dry_multiplier = Some(-1.0))),
        ("sampling.dry_base", sampling(|s| s.dry_base = Some(0.5))),
        ("sampling.dry_penalty_last_n", sampling(|s| s.dry_penalty_last_n = Some(-2))),
        ("sampling.dry_sequence_breakers", sampling(|s| s.dry_sequence_breakers = vec![String::new()])),
        ("sampling.repeat_last_n", sampling(|s| s.repeat_last_n = Some(-2))),
        ("sampling.logit_bias", sampling(|s| s.logit_bias = [(1 << 30, 1.0)].into())),
        ("sampling.logit_bias", sampling(|s| s.logit_bias = [(1, 500.0)].into())),
        ("stop.max_tokens", stop(|s| s.max_tokens = Some(0))),
        ("stop.min_tokens", stop(|s| (s.min_tokens, s.max_tokens) = (9, Some(3)))),
        ("stop.strings", stop(|s| s.strings = vec!["x".into(); 17])),
        ("stop.strings", stop(|s| s.strings = vec![String::new()])),
        ("stop.token_ids", stop(|s| s.token_ids = vec![1; 257])),
        ("stop.token_ids", stop(|s| s.token_ids = vec![1 << 30])),
        ("choices", v1::InferRequest { choices: 1000, ..text("a", 1) }),
        ("choices", v1::InferRequest { choices: 17, ..text("a", 1) }),
        ("top_logprobs", v1::InferRequest { top_logprobs: 1, ..text("a", 1) }),
        ("top_logprobs", v1::InferRequest { logprobs: true, top_logprobs: 21, ..text("a", 1) }),
        ("suffix", v1::InferRequest { suffix: "x".into(), ..text("a", 1) }),
        ("prompt", v1::InferRequest { prompt: None, ..text("a", 1) }),
        ("prompt", tokens(vec![])),
        ("prompt", tokens(vec![1 << 30])),
        ("prompt", tokens(vec![5; 10_000])),
        ("chat.messages", of_chat(|chat| chat.messages.clear())),
        ("chat.messages", of_chat(|chat| chat.messages = vec![chat.messages[0].clone(); 16_385])),
        ("chat.messages[0].role", of_chat(|chat| chat.messages[0].role = "wizard".into())),
        ("chat.messages[0].content[0]", of_chat(|chat| chat.messages[0].content[0].part = None)),
        (
            "chat.messages[0].tool_calls[0].name",
            of_chat(|chat| chat.messages[0].tool_calls.push(v1::ToolCall::default())),
        ),
        ("chat.tools_json", of_chat(|chat| chat.tools_json = vec!["{}".into(); 1_025])),
        ("chat.tools_json[0]", of_chat(|chat| chat.tools_json = vec!["[]".into()])),
        ("chat.template_kwargs_json", of_chat(|chat| chat.template_kwargs_json = "[]".into())),
        (
            "chat.continue_final_message",
            of_chat(|chat| {
                chat.continue_final_message = true;
                chat.add_generation_prompt = Some(true);
            }),
        ),
    ];
    for (field, request) in cases {
        let status = rig.infer(request).await.unwrap_err();
        assert_eq!(named(&status), field, "{status:?}");
        assert!(is_in_contract("InferRequest", field), "{field}");
    }
    let ask =
        |input, add_special_tokens| v1::TokenizeRequest { input, add_special_tokens, ..Default::default() };
    let a_chat = Some(v1::tokenize_request::Input::Chat(question("hi")));
    let no_chat = Some(v1::tokenize_request::Input::Chat(v1::Chat::default()));
    for (field, request) in [
        ("input", ask(None, None)),
        ("add_special_tokens", ask(a_chat, Some(true))),
        ("chat.messages", ask(no_chat, None)),
    ] {
        let status = rig.client().tokenize(request).await.unwrap_err();
        assert_eq!(named(&status), field, "{status:?}");
        assert!(is_in_contract("TokenizeRequest", field), "{field}");
    }
    let unknown = v1::DetokenizeRequest { ids: vec![1 << 30], ..Default::default() };
    assert_eq!(named(&rig.client().detokenize(unknown).await.unwrap_err()), "ids");
    assert!(is_in_contract("DetokenizeRequest", "ids"));
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn values_that_an_enumeration_does_not_have_are_refused() {
    let rig = Rig::start().await;
    let input = v1::EmbedInput { input: Some(v1::embed_input::Input::Text("a".into())) };
    let embed = v1::EmbedRequest { inputs: vec![input], ..Default::default() };
    for (field, request) in [
        ("output", v1::EmbedRequest { output: 77, ..embed.clone() }),
        ("truncate_side", v1::EmbedRequest { truncate_side: -1, ..embed.clone() }),
        ("truncate_side", v1::EmbedRequest { truncate: true, truncate_side: 3, ..embed.clone() }),
        ("dimensions", v1::EmbedRequest { dimensions: 1 << 20, ..embed.clone() }),
        ("prompt_name", v1::EmbedRequest { prompt_name: "none".into(), ..embed.clone() }),
        ("inputs", v1::EmbedRequest { inputs: vec![], ..embed.clone() }),
        ("inputs[0]", v1::EmbedRequest { inputs: vec![v1::EmbedInput::default()], ..embed.clone() }),
    ] {
        let status = rig.client().embed(request).await.unwrap_err();
        assert_eq!(named(&status), field, "{status:?}");
        let field = field.split('[').next().unwrap();
        assert!(is_in_contract("EmbedRequest", field), "{field}");
    }
    assert_eq!(rig.client().embed(embed).await.unwrap().into_inner().embeddings.len(), 1);
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_over_the_limit_is_resource_exhausted_and_says_the_limit() {
    let rig = Rig::start_with(|config| config.server.message_bytes_max = 100_000).await;
    rig.load(DEMO_MODEL, "").await.unwrap();
    let large = || text(&"x ".repeat(60_000), 1);
    let plain = rig.infer(large()).await.unwrap_err();
    let mut client = rig.client().send_compressed(CompressionEncoding::Gzip);
    let compressed = in_time(client.infer(large())).await.unwrap_err();
    for status in [plain, compressed] {
        check_refused(&status, Code::ResourceExhausted, "the message is over the limit of 100000 bytes");
        assert_eq!(metadata(&status, "error-code").as_deref(), Some("message_too_large"));
    }
    rig.events(text("a", 1)).await;
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_in_memory_has_the_same_events_and_the_same_limit() {
    let rig = Rig::start_with(|config| config.server.message_bytes_max = 100_000).await;
    rig.load(DEMO_MODEL, "").await.unwrap();
    let infer = crate::service::local_infer(rig.handle.core(), 100_000);
    let call = |request| infer.clone().oneshot(tonic::Request::new(request));
    let events: Vec<_> = in_time(call(endless(20))).await.unwrap().try_collect().await.unwrap();
    let events: Vec<_> = events.into_iter().filter_map(|event| event.event).collect();
    assert_eq!(tokens(&events, 0), tokens(&rig.events(endless(20)).await, 0));
    let refused = in_time(call(text(&"x ".repeat(60_000), 1))).await.map(drop).unwrap_err();
    check_refused(&refused, Code::ResourceExhausted, "the message is over the limit of 100000 bytes");
    assert_eq!(metadata(&refused, "error-code").as_deref(), Some("message_too_large"));
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_compresses_is_answered_so_and_nobody_else() {
    let rig = Rig::start().await;
    let plain = tokens(&rig.events(endless(20)).await, 0);
    let gzip = CompressionEncoding::Gzip;
    let sends = rig.client().send_compressed(gzip).accept_compressed(gzip);
    let takes = rig.client().accept_compressed(gzip);
    for (mut client, encoding) in [(sends, Some("gzip")), (takes, None)] {
        let answer = in_time(client.infer(endless(20))).await.unwrap();
        let said = answer.metadata().get("grpc-encoding").map(|value| value.to_str().unwrap().to_owned());
        assert_eq!(said.as_deref(), encoding);
        assert_eq!(tokens(&collect(answer.into_inner()).await.unwrap(), 0), plain);
    }
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_says_that_it_has_less_than_was_asked_for() {
    let rig = Rig::start_with(|_| ()).await;
    let load = async |alias: &str, context_tokens_max| {
        let request = v1::LoadRequest {
            model: DEMO_MODEL.into(),
            alias: alias.into(),
            context_tokens_max,
            ..Default::default()
        };
        in_time(rig.client().load(request)).await.unwrap().into_inner()
    };
    let more = load("more", 1 << 20).await;
    let context = more.model.unwrap().context_tokens_max;
    assert_eq!(
        more.clamped,
        format!("context_tokens_max: 1048576 were asked for; this model's context is {context}")
    );
    assert_eq!(load("more", 1 << 20).await.clamped, more.clamped, "though it was loaded already");
    assert_eq!(
        (load("less", 512).await.clamped, load("any", 0).await.clamped),
        (String::new(), String::new())
    );
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_of_a_model_go_with_it_and_raise_no_others() {
    let rig = Rig::start().await;
    let scrape = async || rig.admin("/metrics").await.1;
    // Counting series with their values.
    let counted = |text: &str| -> BTreeMap<String, f64> {
        let counts = |line: &&str| {
            line.split('{').next().is_some_and(|name| name.ends_with("_total") || name.ends_with("_count"))
        };
        let series = |line: &str| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            (series.to_owned(), value.parse().unwrap())
        };
        text.lines().filter(|line| !line.starts_with('#')).filter(counts).map(series).collect()
    };
    rig.events(endless(3)).await;
    let before = counted(&scrape().await);
    for round in 0..4 {
        let alias = format!("made-up-{round}");
        rig.load(DEMO_MODEL, &alias).await.unwrap();
        rig.events(v1::InferRequest { model: alias.clone(), ..endless(10) }).await;
        let tokens = format!("hanzo_engine_tokens_generated_total{{model=\"{alias}\"}}");
        assert_eq!(counted(&scrape().await).get(&tokens), Some(&10.0));
        let request = v1::UnloadRequest { model: alias.clone(), force: false };
        in_time(rig.client().unload(request)).await.unwrap();
        rig.until("its series are gone", async |_| !scrape().await.contains(&alias)).await;
        // No rate or increase sees the unload.
        assert_eq!(counted(&scrape().await), before);
    }
    // The series of a loaded model keep counting.
    rig.events(endless(3)).await;
    let tokens = format!("hanzo_engine_tokens_generated_total{{model=\"{DEMO_MODEL}\"}}");
    assert_eq!(counted(&scrape().await).get(&tokens), Some(&6.0));
    rig.stopped().await;
}
