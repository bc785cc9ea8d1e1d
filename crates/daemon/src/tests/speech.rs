//! Tests of transcription over gRPC with a fake transcriber that returns a word per second: input, named errors,
//! and cleanup after clients disconnect.

use std::sync::atomic::Ordering::SeqCst;

use futures_util::{Stream, StreamExt as _, stream};
use v1::{
    TranscribeConfig, TranscribeRequest, speech_client::SpeechClient, transcribe_event::Event as Said,
    transcribe_request::Part,
};

use super::*;
use crate::service::stand_in::{NAME, RUNNING};

/// 16-bit PCM at 16 kHz: a tone or silence, each for this many seconds.
fn wav(parts: &[(bool, u32)]) -> Vec<u8> {
    let parts: Vec<_> = parts.iter().map(|&(loud, seconds)| (loud, 1000 * seconds)).collect();
    wav_ms(&parts)
}

/// Same, with milliseconds.
fn wav_ms(parts: &[(bool, u32)]) -> Vec<u8> {
    let samples: Vec<u8> = parts
        .iter()
        .flat_map(|&(loud, ms)| (0..ms * 16).map(move |n| (loud, n)))
        .flat_map(|(loud, n)| {
            let tone = (n as f32 * 0.2).sin() * 8000.0;
            (if loud { tone as i16 } else { 0 }).to_le_bytes()
        })
        .collect();
    let mut file = b"RIFF".to_vec();
    file.extend((samples.len() as u32 + 36).to_le_bytes());
    file.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
    file.extend(16_000_u32.to_le_bytes());
    file.extend(32_000_u32.to_le_bytes());
    file.extend(b"\x02\0\x10\0data");
    file.extend((samples.len() as u32).to_le_bytes());
    file.extend(samples);
    file
}

fn config(config: TranscribeConfig) -> TranscribeRequest {
    TranscribeRequest { part: Some(Part::Config(config)) }
}

fn data(bytes: &[u8]) -> TranscribeRequest {
    TranscribeRequest { part: Some(Part::Data(bytes.to_vec().into())) }
}

fn hears() -> TranscribeConfig {
    TranscribeConfig { model: NAME.into(), ..Default::default() }
}

/// Complete request.
fn whole(asked: TranscribeConfig, file: &[u8]) -> impl Stream<Item = TranscribeRequest> + Send + use<> {
    let pieces: Vec<_> = file.chunks(50_000).map(data).collect();
    stream::iter([config(asked)]).chain(stream::iter(pieces))
}

async fn rig(change: impl FnOnce(&mut Config)) -> Rig {
    let rig = Rig::start_with(change).await;
    rig.load(DEMO_MODEL, NAME).await.unwrap();
    rig
}

async fn said(
    rig: &Rig,
    requests: impl Stream<Item = TranscribeRequest> + Send + 'static,
) -> Result<Vec<Said>, Status> {
    let mut client = SpeechClient::new(rig.channel.clone());
    let mut events = in_time(client.transcribe(requests)).await?.into_inner();
    let mut all = Vec::new();
    while let Some(event) = in_time(events.message()).await? {
        all.push(event.event.unwrap());
    }
    Ok(all)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_said_is_written_down_where_it_was_said() {
    let rig = rig(|_| ()).await;
    let file = wav(&[(true, 2), (false, 10), (true, 1)]);
    let asked = TranscribeConfig { word_timestamps: true, logprobs: true, language: "de".into(), ..hears() };
    let events = said(&rig, whole(asked, &file)).await.unwrap();
    let [Said::Started(started), .., Said::Finished(finished)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((started.language.as_str(), started.model.as_str()), ("de", NAME));
    assert!(!started.request_id.is_empty());
    let deltas: String = events
        .iter()
        .filter_map(|e| if let Said::Delta(d) = e { Some(d.text.as_str()) } else { None })
        .collect();
    assert_eq!(finished.text, deltas.trim());
    assert!((finished.duration_s - 13.0).abs() < 1e-6, "{finished:?}");
    let segments: Vec<_> =
        events.iter().filter_map(|e| if let Said::Segment(s) = e { Some(s.clone()) } else { None }).collect();
    // The pause is removed except for its edges, and times refer to the original file.
    assert!((3..=5).contains(&segments.len()), "{segments:?}");
    let last = segments.iter().rfind(|segment| segment.text == " loud").unwrap();
    assert!((last.start_s - 12.0).abs() < 0.9 && last.end_s <= 13.0, "{last:?}");
    assert_eq!((last.words[0].start_s, last.words[0].end_s), (last.start_s, last.end_s));
    assert_eq!(last.tokens[0].logprob, -0.25);

    // With the sound unchanged, if requested, and without parts that were not requested.
    let asked = TranscribeConfig { voice_activity: Some(false), ..hears() };
    let events = said(&rig, whole(asked, &file)).await.unwrap();
    let texts: Vec<_> = events
        .iter()
        .filter_map(|e| if let Said::Segment(s) = e { Some(s.text.as_str()) } else { None })
        .collect();
    assert_eq!(texts.len(), 13);
    assert_eq!(texts.iter().filter(|text| **text == " loud").count(), 3);

    // A segment begins and ends with the speech in it, whether pauses are removed or not.
    for voice_activity in [true, false] {
        let file = wav_ms(&[(false, 5_300), (true, 400), (false, 11_600), (true, 400), (false, 5_100)]);
        let asked = TranscribeConfig {
            voice_activity: Some(voice_activity),
            word_timestamps: voice_activity,
            ..hears()
        };
        let events = said(&rig, whole(asked, &file)).await.unwrap();
        let segments: Vec<_> = events
            .iter()
            .filter_map(|e| if let Said::Segment(s) = e { Some((s.start_s, s.end_s)) } else { None })
            .collect();
        for (start, end) in [(5.3, 5.7), (17.3, 17.7)] {
            let near = |(a, b): &&(f64, f64)| (a - start).abs() < 0.06 && (b - end).abs() < 0.06;
            assert!(segments.iter().any(|s| near(&s)), "{voice_activity} {start}: {segments:?}");
        }
        assert!(segments.iter().all(|(start, end)| start <= end && *end <= 22.8), "{segments:?}");
    }

    // Silence gives an empty text, without calling the model.
    let events = said(&rig, whole(hears(), &wav(&[(false, 30)]))).await.unwrap();
    let Said::Finished(finished) = events.last().unwrap() else { panic!("{events:?}") };
    assert_eq!((finished.text.as_str(), finished.duration_s), ("", 30.0));
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_heard_is_refused_by_name() {
    let rig = rig(|config| (config.server.sound_bytes_max, config.server.sound_s_max) = (200_000, 8)).await;
    rig.load(DEMO_MODEL, "deaf").await.unwrap();
    let short = wav(&[(true, 1)]);
    let refused =
        async |asked: TranscribeConfig, file: &[u8]| said(&rig, whole(asked, file)).await.unwrap_err();
    let deaf = TranscribeConfig { model: "deaf".into(), ..Default::default() };
    check_refused(&refused(deaf, &short).await, Code::FailedPrecondition, "model deaf cannot transcribe");
    let gone = TranscribeConfig { model: "nobody".into(), ..Default::default() };
    check_refused(&refused(gone, &short).await, Code::NotFound, "model: ");
    let hot = TranscribeConfig { temperatures: vec![0.0, f32::NAN], ..hears() };
    check_refused(&refused(hot, &short).await, Code::InvalidArgument, "temperatures: ");
    let english = TranscribeConfig { translate: true, language: "en".into(), ..hears() };
    check_refused(&refused(english, &short).await, Code::InvalidArgument, "translate: ");
    for (file, begins) in [
        (&b""[..], "data: is empty"),
        (b"no sound at all, but a text of some length", "data: is no sound file"),
        (&short[..20_000], "data: ends after 0.6 of 1.0 seconds"),
        (&wav(&[(true, 9)])[..], "data: is longer than 8 seconds"),
    ] {
        check_refused(&refused(hears(), file).await, Code::InvalidArgument, begins);
    }
    let mut said_short = wav(&[(true, 7)]);
    // A file of unknown length: the bytes that arrive count.
    said_short[4..8].fill(0xff);
    said_short[40..44].fill(0xff);
    let status = refused(hears(), &said_short).await;
    check_refused(&status, Code::ResourceExhausted, "data: has more than 200000 bytes");
    assert_eq!(metadata(&status, "error-code").as_deref(), Some("message_too_large"));
    // Messages in the wrong order, or repeated.
    let refused = async |parts: Vec<TranscribeRequest>| said(&rig, stream::iter(parts)).await.unwrap_err();
    check_refused(&refused(vec![data(&short)]).await, Code::InvalidArgument, "config: ");
    check_refused(&refused(vec![]).await, Code::InvalidArgument, "config: ");
    let twice = vec![config(hears()), data(&short[..100]), config(hears())];
    check_refused(&refused(twice).await, Code::InvalidArgument, "config: ");
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_leaves_nothing() {
    let rig = rig(|_| ()).await;
    let before = RUNNING.load(SeqCst);
    let mut client = SpeechClient::new(rig.channel.clone());
    // An upload that never ends: the sound so far is transcribed meanwhile.
    let file = wav(&[(true, 20)]);
    // The call ends once the client has dropped both of its sides.
    let (sends, pending) = tokio::sync::mpsc::channel::<TranscribeRequest>(1);
    let begun = whole(hears(), &file[..200_000]).chain(tokio_stream::wrappers::ReceiverStream::new(pending));
    let mut events = in_time(client.transcribe(begun)).await.unwrap().into_inner();
    let first = in_time(events.message()).await.unwrap().unwrap();
    assert!(matches!(first.event, Some(Said::Started(_))));
    let second = in_time(events.message()).await.unwrap().unwrap();
    assert!(matches!(second.event, Some(Said::Delta(_))));
    drop((events, sends));
    rig.until("it has ended", async |_| RUNNING.load(SeqCst) <= before).await;
    // The same for a request whose deadline has passed.
    let mut late = tonic::Request::new(whole(hears(), &file[..100_000]).chain(stream::pending()));
    late.set_timeout(Duration::from_millis(300));
    let ended = async {
        let mut events = client.transcribe(late).await?.into_inner();
        while events.message().await?.is_some() {}
        Ok::<_, Status>(())
    };
    let status = in_time(ended).await.unwrap_err();
    assert!([Code::DeadlineExceeded, Code::Cancelled].contains(&status.code()), "{status:?}");
    rig.stopped().await;
}
