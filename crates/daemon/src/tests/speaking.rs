//! Tests of speech synthesis with a tiny Kokoro and a tiny VITS with random weights, the golden ones of
//! `crates/voice/testdata`.

use std::{fs, path::Path};

use hanzo_engine_proto::v1::{speak_event::Event, speak_request::Input, speech_client::SpeechClient};

use serde_json::json;

use super::*;

/// Starts a daemon with the model `speaker`.
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
            Event::Started(started) => {
                assert!([24_000, 16_000].contains(&started.sample_rate), "{started:?}")
            }
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

fn text_of(text: &str) -> v1::SpeakRequest {
    v1::SpeakRequest { input: Some(Input::Text(text.to_owned())), ..Default::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vits_of_either_form_speaks() {
    let rig = Rig::start_with(|_| ()).await;
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../voice/testdata");
    let piper = rig.dir.path().join("piper");
    fs::create_dir_all(&piper).unwrap();
    fs::copy(golden.join("vits_piper.onnx"), piper.join("tiny.onnx")).unwrap();
    let signs: serde_json::Map<_, _> = "_^$ abcdefghijklmnopqrstuvwxyz"
        .chars()
        .zip(0..)
        .map(|(sign, id)| (sign.to_string(), json!([id])))
        .collect();
    let settings = json!({
        "audio": {"sample_rate": 16_000},
        "espeak": {"voice": "en-us"},
        "inference": {"noise_scale": 0.6, "noise_w": 0.7, "length_scale": 1.0},
        "phoneme_id_map": signs,
        "num_speakers": 1,
        "dataset": "tiny",
    });
    fs::write(piper.join("tiny.onnx.json"), settings.to_string()).unwrap();
    let mut client = SpeechClient::new(rig.channel.clone());
    for (path, name, voices, architecture) in [
        (golden.join("vits"), "letters", vec!["default"], "vits"),
        (golden.join("vits_many"), "many", vec!["0", "1", "2"], "vits"),
        (piper.clone(), "folder", vec!["tiny"], "piper"),
        (piper.join("tiny.onnx"), "file", vec!["tiny"], "piper"),
    ] {
        rig.load(path.to_str().unwrap(), name).await.unwrap();
        let status = rig.stats(name).await.status.unwrap();
        assert!(status.capabilities.contains(&i32::from(v1::Capability::Speak)), "{status:?}");
        assert_eq!(status.architecture, architecture, "{name}");
        let asked = v1::VoicesRequest { model: name.into() };
        let known = client.voices(asked).await.unwrap().into_inner().voices;
        assert_eq!(known.iter().map(|voice| voice.name.as_str()).collect::<Vec<_>>(), voices, "{name}");
        let ask = |request: v1::SpeakRequest| v1::SpeakRequest { model: name.into(), ..request };
        let (wav, finished) = said(&mut client, ask(text_of("Hi, abide us!"))).await;
        assert_eq!(&wav[..4], b"RIFF");
        assert_eq!(u32::from_le_bytes(wav[24..28].try_into().unwrap()), 16_000, "{name}");
        let samples = (wav.len() - 44) / 2;
        assert!(
            (finished.duration_s - samples as f64 / 16_000.0).abs() < 1e-9 && samples > 100,
            "{finished:?}"
        );
        assert_eq!(wav, said(&mut client, ask(text_of("Hi, abide us!"))).await.0, "{name}: the same seed");
        // Headerless PCM has OpenAI's sample rate, whatever the model's.
        let asked = v1::SpeakRequest { format: v1::SoundFormat::Pcm.into(), ..text_of("Hi, abide us!") };
        let (pcm, same) = said(&mut client, ask(asked)).await;
        assert_eq!(pcm.len() / 2, (samples * 24_000).div_ceil(16_000), "{name}");
        assert!((same.duration_s - finished.duration_s).abs() < 1e-9, "{name}");
        let slow = v1::SpeakRequest { speed: Some(0.25), ..text_of("Hi, abide us!") };
        let slow = said(&mut client, ask(slow)).await.1.duration_s;
        assert!(slow > 2.0 * finished.duration_s, "{name}: {slow} s, and {} s", finished.duration_s);
        let by_signs = said(&mut client, ask(phonemes("abide us"))).await.1;
        assert!(by_signs.input_tokens == 8 && by_signs.duration_s > 0.0, "{by_signs:?}");
        if let Some(other) = voices.get(1) {
            let other = v1::SpeakRequest { voice: (*other).into(), ..text_of("Hi, abide us!") };
            assert_ne!(said(&mut client, ask(other)).await.0, wav, "{name}: another voice");
            let blend = v1::SpeakRequest { voice: "0:1+2:1".into(), ..text_of("Hi") };
            assert!(said(&mut client, ask(blend)).await.1.duration_s > 0.0);
        }
        let french = v1::SpeakRequest { language: "xx".into(), ..text_of("Bonjour") };
        let status = in_time(client.speak(ask(french))).await.unwrap_err();
        check_refused(&status, Code::InvalidArgument, "language: \"xx\": the model speaks");
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
        language: "xx".into(),
        input: Some(Input::Text("Bonjour".into())),
        ..Default::default()
    };
    check(refused(other).await, "language: ");
    // A speech model does nothing else, and its error says so.
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
