//! Tests of sounds in chats over gRPC against golden answers (tests/data/audio), and of errors that name the
//! invalid sound.

use std::fs;

use super::talks::{answers_are_the_librarys, media_part, text_part};
use super::*;

/// `sound` of tests/data/audio/make_audio.py, as a WAV file of floats.
fn wav(samples: usize, pitch: usize) -> Vec<u8> {
    let sample = |at: usize| {
        let n = at as f64;
        let voice = 0.3
            * (0.03 * (1 + pitch) as f64 * n + 3.0 * (0.0007 * n).sin()).sin()
            * (0.5 + 0.5 * (0.001 * n).sin());
        let noise = ((at * at * 7919) % 1000) as f64 / 1000.0 - 0.5;
        (voice + 0.05 * noise) as f32
    };
    let bytes: Vec<u8> = (0..samples).flat_map(|at| sample(at).to_le_bytes()).collect();
    let mut file = b"RIFF".to_vec();
    file.extend((36 + bytes.len() as u32).to_le_bytes());
    file.extend(b"WAVEfmt ");
    file.extend(16u32.to_le_bytes());
    // Floats, one channel.
    file.extend([3u16, 1].into_iter().flat_map(u16::to_le_bytes));
    file.extend([16_000u32, 64_000].into_iter().flat_map(u32::to_le_bytes));
    file.extend([4u16, 32].into_iter().flat_map(u16::to_le_bytes));
    file.extend(b"data");
    file.extend((bytes.len() as u32).to_le_bytes());
    file.extend(bytes);
    file
}

fn media(data: Vec<u8>) -> v1::Media {
    v1::Media { data: data.into(), mime_type: "audio/*".into(), ..Default::default() }
}

fn sound(data: Vec<u8>) -> v1::ContentPart {
    media_part(media(data))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_model_says_of_sounds_is_the_librarys() {
    let part = |[samples, pitch]: [usize; 2]| sound(wav(samples, pitch));
    answers_are_the_librarys("audio", &["qwen2_audio", "voxtral", "qwen3_asr"], v1::Capability::Audio, part)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_heard_is_refused_by_its_place() {
    let rig = Rig::start_with(|config| config.engine.kv_bytes = None).await;
    rig.load(&data("audio/qwen2_audio"), "hears").await.unwrap();
    rig.load(DEMO_MODEL, "deaf").await.unwrap();
    let ask = async |model: &str, parts: Vec<v1::ContentPart>| {
        let message = v1::Message { role: "user".into(), content: parts, ..Default::default() };
        let asked = chat(v1::Chat { messages: vec![message], ..Default::default() }, 4);
        rig.infer(v1::InferRequest { model: model.into(), ..asked }).await.map(drop)
    };
    let place = "chat.messages[0].content[1]: ";
    let refused = async |model: &str, data: Vec<u8>, says: &str| {
        let refused = ask(model, vec![text_part("x"), sound(data)]).await.unwrap_err();
        check_refused(&refused, Code::InvalidArgument, place);
        assert!(refused.message().contains(says), "{says}: {refused:?}");
    };
    let whole = wav(5000, 1);
    refused("deaf", whole.clone(), "hears no sounds").await;
    refused("hears", whole[..whole.len() / 2].to_vec(), "truncated").await;
    refused("hears", b"no sound at all, or at least none".to_vec(), "no sound file").await;
    refused("hears", Vec::new(), "the sound is empty").await;
    refused("hears", wav(0, 1), "the sound is empty").await;
    refused("hears", wav(300, 1), "send 321 or more").await;
    refused("hears", wav(40_000, 1), "longer than 2 seconds").await;
    let film = fs::read(data("../../crates/sound/testdata/silent_film.mp4")).unwrap();
    refused("hears", film, "no audio track").await;
    let parts = vec![sound(whole.clone()); 17];
    check_refused(
        &ask("hears", parts).await.unwrap_err(),
        Code::InvalidArgument,
        "chat.messages[0].content[16]: ",
    );
    // Options of pictures are refused for a sound, and so is a picture.
    let detailed = v1::Media { detail: "low".into(), ..media(whole.clone()) };
    let error = ask("hears", vec![media_part(detailed)]).await.unwrap_err();
    check_refused(&error, Code::InvalidArgument, "chat.messages[0].content[0].detail: ");
    let picture = v1::Media { mime_type: "image/png".into(), ..media(vec![1]) };
    let error = ask("hears", vec![media_part(picture)]).await.unwrap_err();
    check_refused(&error, Code::InvalidArgument, "chat.messages[0].content[0]: ");
    assert!(error.message().contains("reads no pictures"), "{error:?}");
    // More than the context holds.
    let error = ask("hears", vec![sound(wav(32_000, 1)); 16]).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{error:?}");
    assert!(error.message().contains("context"), "{error:?}");
    // A text that spells the placeholder stays text.
    ask("hears", vec![text_part("an <|AUDIO|> of what?")]).await.unwrap();
    ask("hears", vec![text_part("an <|AUDIO|>"), sound(whole)]).await.unwrap();
    rig.stopped().await;
}
