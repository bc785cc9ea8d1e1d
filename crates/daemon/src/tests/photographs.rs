//! Tests of photographs with 12 megapixels: every family accepts a JPEG and a PNG of that size. Token counts equal
//! those of transformers' processors (tests/data/vision/make_large.py). The operator's limits apply if the request
//! does not say.

use std::collections::BTreeMap;
use std::fs;

use super::talks::{media_part, text_part};
use super::*;

const WIDTH: u32 = 4000;
const HEIGHT: u32 = 3000;

/// PNG of that size with few colours.
fn large_png() -> Vec<u8> {
    let row = |y: u32| (0..WIDTH).flat_map(move |x| [(x / 500) as u8 * 30, (y / 500) as u8 * 40, 90]);
    let pixels: Vec<u8> = (0..HEIGHT).flat_map(row).collect();
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, WIDTH, HEIGHT);
    encoder.set_color(png::ColorType::Rgb);
    encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
    file
}

fn vision(name: &str) -> String {
    data(&format!("vision/{name}"))
}

fn large_jpeg() -> Vec<u8> {
    fs::read(vision("large.jpg")).unwrap()
}

/// Question about a picture, as used for the golden numbers.
fn asked(model: &str, media: v1::Media) -> v1::InferRequest {
    let content = vec![media_part(media), text_part("What is this?")];
    let message = v1::Message { role: "user".into(), content, ..Default::default() };
    let request = chat(v1::Chat { messages: vec![message], ..Default::default() }, 2);
    v1::InferRequest { model: model.into(), ..request }
}

/// Number of prompt tokens of an answered request.
async fn prompt_tokens(rig: &Rig, model: &str, media: v1::Media) -> u32 {
    let events = rig.events(asked(model, media)).await;
    let finished = events.iter().find_map(|event| match event {
        Event::Finished(finished) => finished.usage,
        _ => None,
    });
    finished.unwrap_or_else(|| panic!("{model} did not answer: {events:?}")).prompt_tokens
}

#[tokio::test(flavor = "multi_thread")]
async fn every_family_answers_to_photographs_of_twelve_megapixels() {
    let counts: BTreeMap<String, u32> =
        serde_json::from_slice(&fs::read(vision("large.json")).unwrap()).unwrap();
    assert_eq!(counts.len(), 12);
    let files = [("JPEG", large_jpeg()), ("PNG", large_png())];
    let rig = Rig::start_with(|config| config.engine.kv_bytes = None).await;
    let mut wrong = Vec::new();
    for (case, expected) in &counts {
        rig.load(&vision(case), case).await.unwrap();
        for (kind, data) in &files {
            let media = v1::Media { data: data.clone().into(), ..Default::default() };
            let found = prompt_tokens(&rig, case, media).await;
            if found != *expected {
                wrong.push(format!("{case} {kind}: {found}, transformers counts {expected}"));
            }
        }
        rig.client().unload(v1::UnloadRequest { model: case.clone(), force: false }).await.unwrap();
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    rig.stopped().await;
}

/// The tiny Qwen has patches of 16 x 16 pixels and a default limit of 9,000 pixels. Checks the tokens of a 4:3
/// picture at each limit.
#[tokio::test(flavor = "multi_thread")]
async fn an_operators_bounds_hold_where_the_request_says_nothing() {
    const USUAL: u64 = 40_000;
    const MOST: u64 = 100_000;
    let rig = Rig::start_with(|config| {
        config.engine.kv_bytes = None;
        config.engine.picture_pixels = Some(USUAL);
        config.engine.picture_pixels_max = Some(MOST);
    })
    .await;
    for case in ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"] {
        rig.load(&vision(case), case).await.unwrap();
        let count = async |detail: &str, max_pixels: Option<u64>| {
            let (data, detail) = (large_jpeg().into(), detail.to_owned());
            prompt_tokens(&rig, case, v1::Media { data, detail, max_pixels, ..Default::default() }).await
        };
        let around = count("", Some(256)).await - 1;
        let rows = async |detail: &str, max_pixels| count(detail, max_pixels).await - around;
        // `smart_resize` turns 4000 x 3000 into 224 x 160 for 40,000 pixels, 96 x 80 for 9,000, and 352 x 272 for
        // 100,000.
        assert_eq!(rows("", None).await, 14 * 10, "{case}: the operator's default");
        assert_eq!(rows("low", None).await, 14 * 10, "{case}: low is not more than the default");
        assert_eq!(rows("high", None).await, 6 * 5, "{case}: high is the model's own bound");
        assert_eq!(rows("", Some(9_000)).await, 6 * 5, "{case}: a request's bound");
        assert_eq!(rows("", Some(80_000)).await, 20 * 15, "{case}: a request goes over the default");
        assert_eq!(rows("", Some(10_000_000)).await, 22 * 17, "{case}: and not over the limit");
    }
    rig.stopped().await;
}
