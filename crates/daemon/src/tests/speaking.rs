//! Texts said by a tiny Kokoro of random weights, whose files are the golden ones of `crates/voice/testdata`.

use std::{fs, path::Path};

use hanzo_engine_proto::v1::{speak_event::Event, speak_request::Input, speech_client::SpeechClient};

use super::*;

/// A daemon with the model `speaker`.
async fn speaking() -> (Rig, SpeechClient<Channel>) {
    let rig = Rig::start_with(|_| ()).await;
    let folder = rig.dir.path().join("speaker");
    fs::create_dir_all(folder.join("voices")).unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../voice/testdata");
    for (from, to) in [
        ("kokoro.json", "config.json"),
        ("kokoro.pth", "kokoro.pth"),
        ("kokoro_voice.pt", "voices/af_heart.pt"),
        ("kokoro_voice.pt", "voices/bm_george.pt"),
    ] {
        fs::copy(golden.join(from), folder.join(to)).unwrap();
    }
    rig.load(folder.to_str().unwrap(), "speaker").await.unwrap();
    let client = SpeechClient::new(rig.channel.clone());
    (rig, client)
}

fn phonemes(text: &str) -> v1::SpeakRequest {
    v1::SpeakRequest { input: Some(Input::Phonemes(text.to_owned())), ..Default::default() }
}

async fn said(client: &mut SpeechClient<Channel>, request: v1::SpeakRequest) -> (Vec<u8>, v1::SpeakFinished) {
    let mut stream = in_time(client.speak(request)).await.unwrap().into_inner();
    let (mut bytes, mut finished) = (Vec::new(), None);
    while let Some(event) = in_time(stream.message()).await.unwrap() {
        match event.event.unwrap() {
            Event::Started(started) => assert_eq!(started.sample_rate, 24_000),
            Event::Data(data) => bytes.extend_from_slice(&data),
            Event::Finished(last) => finished = Some(last),
        }
    }
    (bytes, finished.expect("the last event"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_is_said_and_the_same_seed_says_the_same() {
    let (rig, mut client) = speaking().await;
    let status = rig.stats("speaker").await.status.unwrap();
    assert!(status.capabilities.contains(&i32::from(v1::Capability::Speak)), "{status:?}");
    let voices = client.voices(v1::VoicesRequest::default()).await.unwrap().into_inner().voices;
    let names: Vec<&str> = voices.iter().map(|voice| voice.name.as_str()).collect();
    assert_eq!(names, ["af_heart", "bm_george"]);
    assert_eq!((voices[1].language.as_str(), voices[1].gender.as_str()), ("en-gb", "male"));

    let (wav, finished) = said(&mut client, phonemes("hi, abide us!")).await;
    assert_eq!((&wav[..4], finished.input_tokens), (&b"RIFF"[..], 13));
    let samples = (wav.len() - 44) / 2;
    assert!(
        (finished.duration_s - samples as f64 / 24_000.0).abs() < 1e-9 && samples > 10_000,
        "{finished:?}"
    );
    let again = said(&mut client, phonemes("hi, abide us!")).await.0;
    assert_eq!(wav, again);
    let other = said(&mut client, v1::SpeakRequest { seed: Some(1), ..phonemes("hi, abide us!") }).await.0;
    assert_ne!(wav, other);
    let fast = v1::SpeakRequest { speed: Some(2.0), ..phonemes("hi, abide us!") };
    assert!(said(&mut client, fast).await.1.duration_s < finished.duration_s);
    let blend = v1::SpeakRequest { voice: "af_heart:1+alloy:3".into(), ..phonemes("hi") };
    assert!(said(&mut client, blend).await.1.duration_s > 0.0);
    for (format, begins) in [
        (v1::SoundFormat::Mp3, &b"\xff"[..]),
        (v1::SoundFormat::Opus, b"OggS"),
        (v1::SoundFormat::Flac, b"fLaC"),
    ] {
        let asked = v1::SpeakRequest { format: format.into(), ..phonemes("hi, abide us!") };
        let file = said(&mut client, asked).await.0;
        assert!(file.starts_with(begins) && file.len() < wav.len(), "{format:?}: {}", file.len());
    }
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_said_is_refused_by_name() {
    let (rig, client) = speaking().await;
    let refused = async |request: v1::SpeakRequest| in_time(client.clone().speak(request)).await.unwrap_err();
    let check = |status: Status, begins: &str| check_refused(&status, Code::InvalidArgument, begins);
    check(
        refused(v1::SpeakRequest { voice: "nobody".into(), ..phonemes("hi") }).await,
        "voice: there is no voice",
    );
    check(refused(v1::SpeakRequest { speed: Some(5.0), ..phonemes("hi") }).await, "speed: ");
    check(refused(v1::SpeakRequest { speed: Some(f32::NAN), ..phonemes("hi") }).await, "speed: ");
    check(
        refused(v1::SpeakRequest { instructions: "softly".into(), ..phonemes("hi") }).await,
        "instructions: ",
    );
    check(refused(phonemes("ß")).await, "phonemes: the model has no sign");
    check(refused(phonemes("")).await, "phonemes: must not be empty");
    check(refused(v1::SpeakRequest::default()).await, "input: ");
    let other = v1::SpeakRequest {
        language: "fr".into(),
        input: Some(Input::Text("Bonjour".into())),
        ..Default::default()
    };
    check(refused(other).await, "language: ");
    // One that speaks does nothing else, and says so.
    let status = rig.infer(text("hi", 1)).await.unwrap_err();
    assert!(status.message().contains("say texts"), "{status:?}");
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_is_not_spoken_to() {
    let (rig, mut client) = speaking().await;
    let long = "hi, abide us! ".repeat(200);
    let mut stream = in_time(client.speak(phonemes(&long))).await.unwrap().into_inner();
    in_time(stream.message()).await.unwrap().unwrap();
    drop(stream);
    rig.until("the text is left", async |rig| {
        let stats = rig.stats("speaker").await;
        stats.requests_cancelled == 1 && stats.status.unwrap().requests_running == 0
    })
    .await;
    rig.stopped().await;
}
