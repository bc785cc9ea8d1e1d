//! The tokens of a picture through a whole request: what each surface reports as the prompt's tokens, and what it counts without an
//! answer, is what transformers' processor makes of the scaled picture.

use std::{fs, path::Path};

use hanzo_engine_daemon::config::ModelConfig;
use hanzo_engine_tests::rig::Rig;
use serde_json::{Value, json};

/// Tokens around the picture, of the question that tests/data/vision/make_large.py counts.
const AROUND: u64 = 30;

/// Bytes in base64.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let letters = bytes.chunks(3).flat_map(|chunk| {
        let word =
            chunk.iter().fold(0u32, |word, &byte| word << 8 | u32::from(byte)) << (8 * (3 - chunk.len()));
        (0..4).map(move |at| match at <= chunk.len() {
            true => char::from(LETTERS[(word >> (18 - 6 * at)) as usize & 63]),
            false => '=',
        })
    });
    letters.collect()
}

/// A request of each surface about the picture, with bounds beside it: its path, its body, and where the answer has the tokens.
fn requests(model: &str, picture: &str, bounds: &Value) -> Vec<(&'static str, Value, &'static str)> {
    const QUESTION: &str = "What is this?";
    let with = |mut part: Value| {
        for (name, value) in bounds.as_object().into_iter().flatten() {
            part[name] = value.clone();
        }
        part
    };
    let url = format!("data:image/jpeg;base64,{picture}");
    let chat = json!([{"role": "user", "content": [
        {"type": "image_url", "image_url": with(json!({"url": url}))}, {"type": "text", "text": QUESTION},
    ]}]);
    let input = json!([{"role": "user", "content": [
        with(json!({"type": "input_image", "image_url": url})), {"type": "input_text", "text": QUESTION},
    ]}]);
    let source = json!({"type": "base64", "media_type": "image/jpeg", "data": picture});
    let messages = json!([{"role": "user", "content": [
        with(json!({"type": "image", "source": source})), {"type": "text", "text": QUESTION},
    ]}]);
    vec![
        (
            "/v1/chat/completions",
            json!({"model": model, "messages": chat, "max_tokens": 2}),
            "/usage/prompt_tokens",
        ),
        (
            "/v1/responses",
            json!({"model": model, "input": input, "max_output_tokens": 16}),
            "/usage/input_tokens",
        ),
        (
            "/v1/messages",
            json!({"model": model, "messages": messages, "max_tokens": 2}),
            "/usage/input_tokens",
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn every_surface_counts_the_tokens_of_a_scaled_picture() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/vision");
    let picture = base64(&fs::read(folder.join("large.jpg")).unwrap());
    let families = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"];
    let rig = Rig::start_with(|config| {
        let model = |name: &&str| ModelConfig {
            source: folder.join(name).display().to_string(),
            alias: Some((*name).to_owned()),
            ..ModelConfig::default()
        };
        config.models = families.iter().map(model).collect();
    })
    .await;
    for family in families {
        // Rows of what `smart_resize` makes of 4000 x 3000 pixels.
        for (bounds, rows) in [(json!({}), 6 * 5), (json!({"max_pixels": 2_304}), 3 * 2)] {
            for (path, body, at) in requests(family, &picture, &bounds) {
                let (status, _, answer) = rig.send(path, Some(body)).await;
                assert_eq!(status, 200, "{family} {path}: {answer}");
                let tokens = |at: &str| answer.pointer(at).and_then(Value::as_u64).unwrap_or_default();
                // Messages tells those of the cache apart.
                let found = tokens(at) + tokens("/usage/cache_read_input_tokens");
                assert_eq!(found, AROUND + rows, "{family} {path} {bounds}: {answer}");
            }
        }
    }
    rig.ended().await;
}
