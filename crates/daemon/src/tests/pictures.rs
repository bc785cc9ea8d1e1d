//! Pictures over gRPC: answers of a model that sees are the golden ones (tests/data/vision), and what cannot be seen is refused
//! by its place.

use super::talks::{answers_are_the_librarys, media_part, text_part};
use super::*;

/// As `texture` in tests/data/vision/make_vision.py, as a PNG.
fn png(width: u32, height: u32) -> Vec<u8> {
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
    // A text that spells the placeholder is a text.
    ask("sees", vec![text_part("an <image> of what?")]).await.unwrap();
    ask("sees", vec![text_part("an <image>"), picture(whole.clone())]).await.unwrap();
    // Frames have a room, which others may hold; who brings none needs none of it.
    let core = rig.handle.core().clone();
    let sees = core.models.registry.serving("sees", crate::registry::Capability::Chat).unwrap();
    // The requests before have ended for who asked, and give back what they held a little after.
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
