//! Tests of pictures over gRPC against golden answers and embeddings (tests/data/vision), and of errors that name
//! the invalid picture.

use hanzo_engine_runtime::Task;

use super::talks::{answers_are_the_librarys, media_part, text_part};
use super::*;

/// `texture` of tests/data/vision/make_vision.py, as a PNG.
pub(super) fn png(width: u32, height: u32) -> Vec<u8> {
    let value = |x: u64, y: u64, c: u64| {
        let edge = if (x / 7 + y / 5 + c).is_multiple_of(2) { 60 } else { 0 };
        let noise = (x * 7919 + y * 104_729 + c * 1_299_709) % 31;
        ((x * (3 + c) + y * (5 - c)) % 256 / 2 + edge + noise).min(255) as u8
    };
    let rows = 0..u64::from(height);
    let pixels: Vec<u8> = rows
        .flat_map(|y| (0..u64::from(width)).flat_map(move |x| (0..3).map(move |c| value(x, y, c))))
        .collect();
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
    file
}

fn picture(data: Vec<u8>) -> v1::ContentPart {
    media_part(v1::Media { data: data.into(), ..Default::default() })
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_model_says_of_pictures_is_the_librarys() {
    let cases = ["smolvlm", "idefics3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl"];
    let part = |[width, height]: [usize; 2]| picture(png(width as u32, height as u32));
    answers_are_the_librarys("vision", &cases, v1::Capability::Vision, part).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_seen_is_refused_by_its_place() {
    let rig = Rig::start_with(|config| config.engine.kv_bytes = None).await;
    rig.load(&data("vision/smolvlm"), "sees").await.unwrap();
    rig.load(DEMO_MODEL, "blind").await.unwrap();
    let ask = async |model: &str, parts: Vec<v1::ContentPart>| {
        let message = v1::Message { role: "user".into(), content: parts, ..Default::default() };
        let asked = chat(v1::Chat { messages: vec![message], ..Default::default() }, 4);
        rig.infer(v1::InferRequest { model: model.into(), ..asked }).await.map(drop)
    };
    let whole = png(40, 30);
    let place = "chat.messages[0].content[1]: ";
    let refused = ask("blind", vec![text_part("x"), picture(whole.clone())]).await.unwrap_err();
    check_refused(&refused, Code::InvalidArgument, place);
    assert!(refused.message().contains("reads no pictures"), "{refused:?}");
    for broken in [whole[..whole.len() / 2].to_vec(), b"no picture".to_vec(), Vec::new()] {
        let refused = ask("sees", vec![text_part("x"), picture(broken)]).await.unwrap_err();
        check_refused(&refused, Code::InvalidArgument, place);
    }
    let many = ask("sees", vec![picture(whole.clone()); 17]).await.unwrap_err();
    check_refused(&many, Code::InvalidArgument, "chat.messages[0].content[16]: ");
    // A text that spells the placeholder stays text.
    ask("sees", vec![text_part("an <image> of what?")]).await.unwrap();
    ask("sees", vec![text_part("an <image>"), picture(whole.clone())]).await.unwrap();
    // Other requests may hold all memory for pictures; requests without pictures need none.
    let core = rig.handle.core().clone();
    let sees = core.models.registry.serving("sees", crate::registry::Capability::Chat).unwrap();
    // The earlier requests were answered, and release their memory a little later.
    let all = || sees.frames.hold(usize::MAX);
    rig.until("all of it is free", async |_| all().is_some()).await;
    let held = all().unwrap();
    let refused = ask("sees", vec![picture(whole.clone())]).await.unwrap_err();
    check_refused(&refused, Code::ResourceExhausted, "the pictures of model sees's requests take ");
    assert!(metadata(&refused, "retry-after-ms").is_some());
    ask("sees", vec![text_part("a")]).await.unwrap();
    drop(held);
    ask("sees", vec![picture(whole)]).await.unwrap();
    drop(sees);
    rig.stopped().await;
}

/// Tokens of a chat with pictures are counted without generating any.
#[tokio::test(flavor = "multi_thread")]
async fn the_tokens_of_a_chat_with_pictures_are_counted() {
    let rig = Rig::start_with(|config| config.engine.kv_bytes = None).await;
    rig.load(DEMO_MODEL, "blind").await.unwrap();
    let message = |parts| v1::Message { role: "user".into(), content: parts, ..Default::default() };
    let seen = |sizes: &[(u32, u32)]| {
        let pictures = sizes.iter().map(|&(width, height)| picture(png(width, height)));
        let parts = [text_part("What is it?")].into_iter().chain(pictures).collect();
        v1::Chat { messages: vec![message(parts)], ..Default::default() }
    };
    let counted = async |model: &str, chat: v1::Chat| {
        let input = Some(v1::tokenize_request::Input::Chat(chat));
        let asked = v1::TokenizeRequest { model: model.into(), input, ..Default::default() };
        rig.client().tokenize(asked).await.map(|response| response.into_inner().ids.len())
    };
    for case in ["smolvlm", "qwen2_vl"] {
        rig.load(&data(&format!("vision/{case}")), case).await.unwrap();
        for sizes in [&[][..], &[(40, 30)], &[(40, 30), (64, 64)]] {
            let asked = v1::InferRequest { model: case.into(), ..chat(seen(sizes), 1) };
            let prompt_tokens = started(&rig.events(asked).await).prompt_tokens;
            let count = counted(case, seen(sizes)).await.unwrap();
            assert_eq!(count, prompt_tokens as usize, "{case} with {sizes:?}");
        }
    }
    let refused = counted("blind", seen(&[(40, 30)])).await.unwrap_err();
    check_refused(&refused, Code::InvalidArgument, "chat.messages[0].content[1]: ");
    rig.stopped().await;
}

/// Golden embeddings of a vision model: inputs, and the features that the library computes.
fn vectors(case: &str) -> (Vec<v1::EmbedInput>, Vec<Vec<f32>>) {
    use v1::embed_input::Input;
    let golden = std::fs::read(std::path::Path::new(&data(&format!("vision/{case}"))).join("golden.json"));
    let golden: serde_json::Value = serde_json::from_slice(&golden.unwrap()).unwrap();
    let list = |part: &str| golden[part].as_array().unwrap().clone();
    let text = |of: &serde_json::Value| Input::Text(of["text"].as_str().unwrap().to_owned());
    let picture = |of: &serde_json::Value| {
        let [width, height] = [0, 1].map(|side| of["size"][side].as_u64().unwrap() as u32);
        Input::Picture(v1::Media { data: png(width, height).into(), ..Default::default() })
    };
    let inputs =
        list("pictures").iter().map(picture).chain(list("texts").iter().map(text)).collect::<Vec<_>>();
    let vectors = list("pictures").into_iter().chain(list("texts")).map(|of| {
        of["vector"].as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
    });
    (inputs.into_iter().map(|input| v1::EmbedInput { input: Some(input) }).collect(), vectors.collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn vectors_of_pictures_and_texts_are_of_one_space() {
    let rig = Rig::start().await;
    for case in ["clip", "siglip"] {
        let loaded = rig.load(&data(&format!("vision/{case}")), case).await.unwrap().model.unwrap();
        assert_eq!(loaded.capabilities, [v1::Capability::Vision, v1::Capability::Embed].map(i32::from));
        assert!(loaded.inputs_not_read.is_empty());
        let embedder = loaded.embedder.unwrap();
        assert!(embedder.normalizes && embedder.pooling == "lasttoken");
        let (inputs, expected) = vectors(case);
        let request = v1::EmbedRequest {
            model: case.into(),
            inputs,
            normalize: Some(false),
            truncate: true,
            ..Default::default()
        };
        let answer = rig.client().embed(request.clone()).await.unwrap().into_inner();
        assert_eq!(answer.embeddings.len(), expected.len());
        for (index, (found, expected)) in answer.embeddings.iter().zip(&expected).enumerate() {
            let range = expected.iter().fold(0.0f32, |most, number| most.max(number.abs()));
            let apart = found.values.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(apart < 2e-4 * range, "{case} {index} is {apart} apart");
            assert!(found.values.len() == expected.len() && found.tokens > 0);
        }
        assert_eq!(answer.prompt_tokens, answer.embeddings.iter().map(|one| one.tokens).sum::<u32>());
        let own = v1::EmbedRequest { normalize: None, ..request };
        let own = rig.client().embed(own).await.unwrap().into_inner();
        for one in own.embeddings {
            let length = one.values.iter().map(|number| number * number).sum::<f32>();
            assert!((length - 1.0).abs() < 1e-5, "{length}");
        }
    }
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_picture_that_becomes_no_vector_is_refused_by_its_place() {
    use v1::embed_input::Input;
    let rig = Rig::start_with(|config| config.engine.kv_bytes = None).await;
    rig.load(&data("vision/clip"), "clip").await.unwrap();
    rig.load(&data("vision/smolvlm"), "chats").await.unwrap();
    rig.load(&data("encoders/bert-mean"), "blind").await.unwrap();
    let of = |input| v1::EmbedInput { input: Some(input) };
    let picture = |media: v1::Media| of(Input::Picture(media));
    let whole = v1::Media { data: png(40, 30).into(), ..Default::default() };
    let text = of(Input::Text("a".into()));
    let ask = async |request: v1::EmbedRequest| rig.client().embed(request).await.map(drop);
    let request = |model: &str, media: v1::Media| v1::EmbedRequest {
        model: model.into(),
        inputs: vec![text.clone(), picture(media)],
        ..Default::default()
    };
    for (request, reason) in [
        (request("blind", whole.clone()), "reads no pictures"),
        (request("chats", whole.clone()), "takes pictures in chats"),
        (request("clip", v1::Media { data: b"none".as_slice().into(), ..Default::default() }), "picture"),
        (request("clip", v1::Media { mime_type: "audio/wav".into(), ..whole.clone() }), "audio/wav"),
        (request("clip", v1::Media { max_pixels: Some(9000), ..whole.clone() }), "picture"),
        (v1::EmbedRequest { output: 2, ..request("clip", whole.clone()) }, "one vector"),
    ] {
        let refused = ask(request).await.unwrap_err();
        check_refused(&refused, Code::InvalidArgument, "inputs[1]: ");
        assert!(refused.message().contains(reason), "{refused:?}");
    }
    let detail = v1::Media { detail: "sharp".into(), ..whole.clone() };
    check_refused(
        &ask(request("clip", detail)).await.unwrap_err(),
        Code::InvalidArgument,
        "inputs[1].detail: ",
    );
    // They share the memory limit with pictures in chats.
    let core = rig.handle.core().clone();
    let clip = core.models.registry.serving("clip", crate::registry::Capability::Task(Task::Embed)).unwrap();
    let all = || clip.frames.hold(usize::MAX);
    rig.until("all of it is free", async |_| all().is_some()).await;
    let held = all().unwrap();
    let refused = ask(request("clip", whole.clone())).await.unwrap_err();
    check_refused(&refused, Code::ResourceExhausted, "the pictures of model clip's requests take ");
    drop(held);
    ask(request("clip", whole)).await.unwrap();
    drop(clip);
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_with_a_picture_becomes_a_vector() {
    use v1::embed_input::Input;
    let rig = Rig::start_with(|config| config.engine.kv_bytes = None).await;
    rig.load(&data("vision/qwen3_vl"), "reads").await.unwrap();
    rig.load(&data("encoders/bert-mean"), "blind").await.unwrap();
    let expected =
        std::fs::read(std::path::Path::new(&data("vision/qwen3_vl")).join("vectors.json")).unwrap();
    let expected: Vec<Vec<f32>> = serde_json::from_slice(&expected).unwrap();
    let chat = |parts: Vec<v1::ContentPart>| {
        let message = v1::Message { role: "user".into(), content: parts, ..Default::default() };
        let chat =
            v1::Chat { messages: vec![message], add_generation_prompt: Some(true), ..Default::default() };
        v1::EmbedInput { input: Some(Input::Chat(chat)) }
    };
    let ask = async |model: &str, inputs: Vec<v1::EmbedInput>| {
        let request = v1::EmbedRequest { model: model.into(), inputs, ..Default::default() };
        rig.client().embed(request).await.map(tonic::Response::into_inner)
    };
    let whole = chat(vec![picture(png(64, 64)), text_part("What is this?")]);
    let answer = ask("reads", vec![whole.clone()]).await.unwrap();
    let (found, expected) = (&answer.embeddings[0].values, &expected[0]);
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
    let near = dot(found, expected) / (dot(found, found) * dot(expected, expected)).sqrt();
    assert!(near > 0.9999, "{near}");
    let place = "inputs[1].chat.messages[0].content[0]: ";
    let broken = chat(vec![picture(b"none".to_vec())]);
    check_refused(
        &ask("reads", vec![whole.clone(), broken]).await.unwrap_err(),
        Code::InvalidArgument,
        place,
    );
    let text = v1::EmbedInput { input: Some(Input::Text("a".into())) };
    check_refused(&ask("blind", vec![text.clone(), whole]).await.unwrap_err(), Code::InvalidArgument, place);
    let templated = ask("blind", vec![text, chat(vec![text_part("b")])]).await.unwrap_err();
    assert!(templated.message().contains("template"), "{templated:?}");
    rig.stopped().await;
}
