//! Fake transcriber for tests of the service around it. For each second of sound, loud or not, it returns a word
//! and its time.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use hanzo_engine_runtime::transcript::{Segment, SpokenToken, Transcript, Word};
use tokio::sync::mpsc;

use crate::{convert::speech::Told, error::Error, served::ServedModel, transcribe::TranscribeRequest};

/// Name of the model that this transcriber replaces.
pub(crate) const NAME: &str = "hears";
/// Number of transcriptions that have not ended.
pub(crate) static RUNNING: AtomicUsize = AtomicUsize::new(0);

struct RunningCount;

impl Drop for RunningCount {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, SeqCst);
    }
}

/// Runs a fake transcription.
pub(super) fn transcribe(
    served: &Arc<ServedModel>,
    asked: TranscribeRequest,
    mut sound: mpsc::Receiver<Vec<f32>>,
) -> Result<mpsc::Receiver<Told>, Error> {
    let options = asked.options;
    if options.translate && options.language == "en" {
        return Err(Error::field("translate", "this model knows English alone"));
    }
    let place = served.enter()?;
    let (to, events) = mpsc::channel(4);
    RUNNING.fetch_add(1, SeqCst);
    let counted = RunningCount;
    tokio::spawn(async move {
        let _held = (place, counted);
        let (mut heard, mut second, mut index) = (Vec::new(), 0, 0);
        let language = if options.language.is_empty() { "en".to_owned() } else { options.language };
        let _ = to.send(Ok(Transcript::Started { language, probability: 0.5 })).await;
        loop {
            let more = tokio::select! {
                more = sound.recv() => more,
                () = to.closed() => return,
            };
            let ended = more.is_none();
            heard.extend(more.unwrap_or_default());
            while heard.len() >= 16_000 || (ended && !heard.is_empty()) {
                let samples: Vec<f32> = heard.drain(..heard.len().min(16_000)).collect();
                let loud = samples.iter().map(|sample| sample * sample).sum::<f32>() / samples.len() as f32;
                let text = if loud > 1e-4 { " loud" } else { " quiet" };
                let (start_s, end_s) =
                    (f64::from(second), f64::from(second) + samples.len() as f64 / 16_000.0);
                second += 1;
                let words = vec![Word { word: text.to_owned(), start_s, end_s, probability: 0.75 }];
                let token = SpokenToken { id: index + 7, bytes: text.into(), logprob: -0.25 };
                let segment = Segment {
                    index,
                    start_s,
                    end_s,
                    text: text.to_owned(),
                    tokens: vec![token],
                    average_logprob: -0.25,
                    compression_ratio: 1.0,
                    words: if options.word_timestamps { words } else { Vec::new() },
                    ..Segment::default()
                };
                index += 1;
                let _ = to.send(Ok(Transcript::Delta(text.to_owned()))).await;
                if to.send(Ok(Transcript::Segment(segment))).await.is_err() {
                    return;
                }
            }
            if ended {
                let samples = u64::from(index) * 16_000;
                let last = Transcript::Finished { samples, prompt_tokens: 3, completion_tokens: index };
                let _ = to.send(Ok(last)).await;
                return;
            }
        }
    });
    Ok(events)
}
