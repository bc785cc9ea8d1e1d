//! Whole transcription in each of OpenAI's response formats.

use axum::{
    Json,
    http::header,
    response::{IntoResponse as _, Response},
};
use hanzo_engine_proto::v1::{TranscriptSegment, TranscriptToken, transcribe_event::Event};
use serde_json::{Value, json};

use super::{
    languages,
    request::{Task, TranscriptFormat},
    subtitles::{srt, vtt},
    work::whole,
};

/// Response of a transcription in the requested format.
pub(crate) fn response(events: &[Event], shape: TranscriptFormat, task: Task) -> Response {
    let said = whole(events);
    let finished = said.finished.cloned().unwrap_or_default();
    let segments = &said.segments;
    let usage = json!({"type": "duration", "seconds": finished.duration_s});
    match shape {
        TranscriptFormat::Json { logprobs } => {
            let mut body = json!({"text": finished.text, "usage": usage});
            if logprobs {
                let tokens = segments.iter().flat_map(|segment| &segment.tokens);
                body["logprobs"] = tokens.filter_map(logprob).collect();
            }
            Json(body).into_response()
        }
        TranscriptFormat::Verbose { segments: with_segments, words } => {
            let language = match task {
                Task::Translate => "english".to_owned(),
                Task::Transcribe => languages::name(said.started.map_or("", |started| &started.language)),
            };
            let mut body = json!({
                "task": if task == Task::Translate { "translate" } else { "transcribe" },
                "language": language,
                "duration": finished.duration_s,
                "text": finished.text,
            });
            if with_segments {
                body["segments"] = segments.iter().map(|segment| verbose(segment)).collect();
            }
            if words {
                let words = segments.iter().flat_map(|segment| &segment.words);
                let word = |word: &hanzo_engine_proto::v1::TranscriptWord| json!({"word": word.word.trim(), "start": millis(word.start_s), "end": millis(word.end_s)});
                body["words"] = words.map(word).collect();
            }
            body["usage"] = usage;
            Json(body).into_response()
        }
        TranscriptFormat::Text => text(format!("{}\n", finished.text)),
        TranscriptFormat::Srt => text(srt(segments.iter().copied())),
        TranscriptFormat::Vtt => text(vtt(segments.iter().copied())),
    }
}

fn text(body: String) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response()
}

/// Rounds to milliseconds; finer digits carry no information.
fn millis(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

fn verbose(segment: &TranscriptSegment) -> Value {
    json!({
        "id": segment.index,
        "seek": segment.seek,
        "start": millis(segment.start_s),
        "end": millis(segment.end_s),
        "text": segment.text,
        "tokens": segment.tokens.iter().map(|token| token.token_id).collect::<Vec<_>>(),
        "temperature": segment.temperature,
        "avg_logprob": segment.average_logprob,
        "compression_ratio": segment.compression_ratio,
        "no_speech_prob": segment.no_speech_probability,
    })
}

/// Token with its log probability. None: it has no text, such as a timestamp.
pub(crate) fn logprob(token: &TranscriptToken) -> Option<Value> {
    let text = String::from_utf8_lossy(&token.token);
    let shown = json!({"token": text, "logprob": token.logprob, "bytes": token.token.to_vec()});
    (!token.token.is_empty()).then_some(shown)
}
