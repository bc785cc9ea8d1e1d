//! Tests of sounds in a worker: samples arrive in parts and segments leave, with several requests at once, until a
//! client disconnects. The transcripts themselves are tested in the runtime.

use std::path::Path;

use hanzo_engine_runtime::transcript::Transcript;
use hanzo_engine_runtime::whisper::TranscribeOptions;
use tokio::sync::mpsc;

use super::*;
use crate::{
    on_demand::Demand,
    registry::{Capability, InUse},
    transcribe::{SOUND_CHUNKS, TranscribeRequest, Transcription},
};

fn sound(samples: usize) -> Vec<f32> {
    (0..samples).map(|at| (at as f32 * 0.05).sin() * 0.3).collect()
}

async fn rig() -> Rig {
    let rig = Rig::start_with(|config| config.engine.kv_bytes = None).await;
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/whisper/small");
    let loaded = rig.load(&model.display().to_string(), "ear").await.unwrap().model.unwrap();
    assert_eq!(loaded.capabilities().collect::<Vec<_>>(), [v1::Capability::Transcribe]);
    rig
}

async fn ear(rig: &Rig) -> InUse {
    let demand = Demand::default();
    rig.handle.core().models.serving("", Capability::Transcribe, demand).await.unwrap()
}

fn asked(options: TranscribeOptions) -> TranscribeRequest {
    TranscribeRequest { options, priority: 0, client: None, arrived: Instant::now(), deadline: None }
}

fn german() -> TranscribeOptions {
    TranscribeOptions { language: "de".into(), temperatures: vec![0.0], ..TranscribeOptions::default() }
}

async fn all(mut heard: Transcription) -> Vec<Transcript> {
    let mut all = Vec::new();
    while let Some(event) = in_time(heard.next()).await {
        all.push(event.unwrap());
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn sounds_are_written_down_side_by_side() {
    let rig = rig().await;
    let ear = ear(&rig).await;
    let mut running = Vec::new();
    for seconds in [0, 13, 2, 7] {
        let (sender, sound_in) = mpsc::channel(SOUND_CHUNKS);
        let heard = ear.transcribe(asked(german()), sound_in).await.unwrap();
        tokio::spawn(async move {
            for part in sound(16_000 * seconds).chunks(9_999) {
                sender.send(part.to_vec()).await.unwrap();
            }
        });
        running.push((seconds, tokio::spawn(all(heard))));
    }
    for (seconds, heard) in running {
        let heard = heard.await.unwrap();
        let started = Transcript::Started { language: "de".into(), probability: 1.0 };
        assert_eq!(heard[0], started);
        let Some(Transcript::Finished { samples, .. }) = heard.last() else { panic!("{heard:?}") };
        assert_eq!(*samples, 16_000 * seconds as u64);
        assert!(seconds == 0 || heard.len() > 2, "{seconds} s: {heard:?}");
    }
    assert_eq!(rig.stats("ear").await.status.unwrap().requests_running, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_is_forgotten_and_a_sender_without_end_is_held_back() {
    let rig = rig().await;
    let ear = ear(&rig).await;
    let (sender, sound_in) = mpsc::channel(SOUND_CHUNKS);
    let mut heard = ear.transcribe(asked(german()), sound_in).await.unwrap();
    let endless = tokio::spawn(async move {
        let mut sent = 0u64;
        while sender.send(sound(16_000)).await.is_ok() {
            sent += 1;
        }
        sent
    });
    in_time(heard.next()).await.unwrap().unwrap();
    drop(heard);
    // Its samples are not taken any more, and the sender notices.
    let sent = in_time(endless).await.unwrap();
    assert!(sent < 1_000, "{sent} seconds were taken");
    rig.until("the place is free", async |rig| rig.stats("ear").await.status.unwrap().requests_running == 0)
        .await;
    let refused =
        ear.transcribe(asked(TranscribeOptions { language: "xx".into(), ..german() }), mpsc::channel(1).1);
    let Err(error) = refused.await else { panic!("there is no such language") };
    assert!(error.to_string().contains("language"), "{error}");
}
