//! OpenAI's `POST /v1/audio/speech` and `GET /v1/audio/voices`. Audio is sent sentence by sentence as it is
//! produced, as a file or as server-sent events.

use std::{convert::Infallible, io, pin::Pin, sync::Arc, time::Duration};

use axum::{
    Extension, Json,
    body::Body,
    extract::{RawQuery, State},
    http::header,
    response::{IntoResponse as _, Response},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use hanzo_engine_proto::v1::{
    Capability, SoundFormat, SpeakEvent, SpeakRequest, Voice, speak_event::Event, speak_request::Input,
};
use serde_json::{Value, json};
use tonic::Status;

use crate::{
    app::App,
    asker::Asker,
    body::{self, IncomingBody},
    declare::{Declaration as _, Integer, Number, Read, Words, fields},
    error::ApiError,
    fields::{Field, Fields},
    limits::SPEECH_CHARS_MAX,
    openai::frames::Frames,
    query,
    request::{FILLED, QueueFields, filled, model_name},
    select::select,
    until::Until,
};

/// Names of the formats. `aac` is one of OpenAI's that no encoder here writes.
const FORMATS: [(&str, SoundFormat); 6] = [
    ("mp3", SoundFormat::Mp3),
    ("opus", SoundFormat::Opus),
    ("flac", SoundFormat::Flac),
    ("wav", SoundFormat::Wav),
    ("pcm", SoundFormat::Pcm),
    ("aac", SoundFormat::Unspecified),
];

/// Parsed request.
struct SpeechTask {
    /// Without the request's id and client.
    request: SpeakRequest,
    events: bool,
}

/// Synthesizes a text.
pub(crate) async fn speak(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: IncomingBody,
) -> Result<Response, ApiError> {
    let received = body::read(&app, incoming).await?;
    let (SpeechTask { mut request, events }, room) = received.into(|fields, _| read(fields)).await?;
    request.request_id = asker.id.as_str().to_owned();
    request.client = asker.id.client();
    request.model = select(&app, &asker, request.model, &[Capability::Speak]).await?.model;
    let phonemes = matches!(request.input, Some(Input::Phonemes(_)));
    let until = app.until();
    let mut engine = app.engine(&asker);
    let said =
        until.run(engine.speak(request, until.deadline)).await.map_err(|error| named(error, phonemes))?;
    let mut sound = Sound { events: Box::pin(said), until, phonemes };
    // A text that cannot be spoken is refused before the first byte.
    let Some(Event::Started(started)) = sound.next().await? else {
        return Err(ApiError::internal("the engine began with something else than the beginning"));
    };
    let first = sound.next().await?;
    drop(room);
    let state = Some((first, sound));
    if events {
        let silence = Duration::from_secs(app.config.sse_keep_alive_s);
        let frames = stream::unfold(state, move |state| async move { Some(frame(state?, silence).await) });
        let headers = [
            (header::CONTENT_TYPE, "text/event-stream"),
            (header::CACHE_CONTROL, "no-cache"),
            // nginx would buffer the events otherwise.
            (header::HeaderName::from_static("x-accel-buffering"), "no"),
        ];
        return Ok((headers, Body::from_stream(frames)).into_response());
    }
    let bytes = stream::unfold(state, |state| async { bytes(state?).await });
    Ok(([(header::CONTENT_TYPE, started.mime_type)], Body::from_stream(bytes)).into_response())
}

/// Audio stream from the engine. Dropping it ends the engine's work.
struct Sound {
    events: Pin<Box<dyn Stream<Item = Result<SpeakEvent, Status>> + Send>>,
    until: Until,
    phonemes: bool,
}

impl Sound {
    /// Next event, within the request's time limit.
    async fn next(&mut self) -> Result<Option<Event>, ApiError> {
        loop {
            let next = self.until.run(async { self.events.next().await.transpose() }).await;
            match next.map_err(|error| named(error, self.phonemes))? {
                Some(SpeakEvent { event: None, .. }) => {} // a kind unknown to this version
                next => return Ok(next.and_then(|next| next.event)),
            }
        }
    }
}

/// Renames the engine's fields in an error to the client's names.
fn named(error: ApiError, phonemes: bool) -> ApiError {
    error.renamed(|field| {
        Some(match field {
            "text" | "input" if phonemes => "phonemes".to_owned(),
            "text" => "input".to_owned(),
            "format" => "response_format".to_owned(),
            other => other.to_owned(),
        })
    })
}

/// Event already received, and the rest of the stream.
type Rest = (Option<Event>, Sound);

/// Next bytes of the file. If the audio fails midway, the connection ends with an error.
async fn bytes((early, mut sound): Rest) -> Option<(Result<Bytes, io::Error>, Option<Rest>)> {
    let mut event = Ok(early);
    loop {
        match event {
            Ok(Some(Event::Data(data))) => return Some((Ok(data), Some((None, sound)))),
            Ok(Some(Event::Finished(_))) => return None,
            Ok(Some(Event::Started(_)) | None) => {}
            Err(error) => return Some((Err(broken(&error)), None)),
        }
        event = sound.next().await.and_then(|event| event.map(Some).ok_or_else(ended));
    }
}

fn ended() -> ApiError {
    ApiError::internal("the engine's stream ended before the text had")
}

fn broken(error: &ApiError) -> io::Error {
    tracing::warn!(status = error.status().as_u16(), "speech failed");
    io::Error::other(error.json().to_string())
}

/// Next of OpenAI's events, and the stream unless it has ended. After `silence` without one, a comment.
async fn frame((early, mut sound): Rest, silence: Duration) -> (Result<Bytes, Infallible>, Option<Rest>) {
    let mut frames = Frames::default();
    let event = match early {
        Some(event) => Ok(Some(event)),
        None => match tokio::time::timeout(silence, sound.next()).await {
            Ok(event) => event,
            Err(_) => return (Ok(Bytes::from_static(b": keep-alive\n\n")), Some((None, sound))),
        },
    };
    let event = event.and_then(|event| event.ok_or_else(ended));
    let mut rest = None;
    match event {
        Ok(Event::Data(data)) => {
            frames.data(&json!({"type": "speech.audio.delta", "audio": BASE64_STANDARD.encode(data)}));
            rest = Some((None, sound));
        }
        Ok(Event::Finished(finished)) => {
            // Audio output counts no tokens: the model produces samples.
            let input = finished.input_tokens;
            let usage = json!({"input_tokens": input, "output_tokens": 0, "total_tokens": input});
            let unknown = finished.unknown_words;
            frames.data(&json!({"type": "speech.audio.done", "usage": usage, "unknown_words": unknown}));
        }
        Ok(Event::Started(_)) => rest = Some((None, sound)),
        Err(error) => {
            tracing::warn!(status = error.status().as_u16(), "speech failed");
            frames.data(&error.json());
        }
    }
    (Ok(frames.bytes().into()), rest)
}

fields! {
    /// Body of `POST /v1/audio/speech`.
    pub(crate) struct SpeechRequest {
        ..queue: QueueFields,
        /// Text to say, of at most 16384 characters.
        input?: String = Read("string 1..", bounded),
        /// Sounds to say in place of a text, in the model's own signs.
        phonemes?: String = Read("string 1..", bounded),
        /// Name of the model; the only one that speaks if absent.
        model?: String = Read("string 1..512", model_name),
        /// Voice of the model, OpenAI's name for one, or a blend such as af_heart:0.7+af_bella:0.3; the model's first if
        /// absent.
        voice?: String = FILLED,
        /// Speed, as a multiple of the usual one.
        speed?: f32 = Number(0.25..=4.0),
        /// Format of the file; mp3 if absent. aac is refused.
        response_format?: SoundFormat = Read(
            "\"mp3\" | \"opus\" | \"flac\" | \"wav\" | \"pcm\"", format_of
        ),
        /// Whether sound comes as a file, or as events with parts of it in base64.
        stream_format?: &'static str = Words(["audio", "sse"]),
        /// Language of the text, such as en-us; the voice's if absent.
        language?: String = FILLED,
        /// Instructions on how to say it. They are refused where the model takes none.
        instructions?: String,
        /// Seed of what is drawn.
        seed?: u64 = Integer(0..=u64::MAX),
    }
}

fn read(mut fields: Fields<'_>) -> Result<SpeechTask, ApiError> {
    let given = SpeechRequest::read(&mut fields)?;
    fields.finish()?;
    let input = match (given.input, given.phonemes) {
        (Some(_), Some(_)) => {
            return Err(ApiError::field("phonemes", "stands for input; send one of them"));
        }
        (None, Some(phonemes)) => Input::Phonemes(phonemes),
        (Some(text), None) => Input::Text(text),
        (None, None) => return Err(ApiError::field("input", "required")),
    };
    let request = SpeakRequest {
        model: given.model.unwrap_or_default(),
        input: Some(input),
        voice: given.voice.unwrap_or_default(),
        speed: given.speed,
        format: given.response_format.unwrap_or(SoundFormat::Mp3).into(),
        language: given.language.unwrap_or_default(),
        seed: given.seed,
        instructions: given.instructions.unwrap_or_default(),
        priority: given.queue.priority.unwrap_or(0),
        keep_alive: given.queue.keep_alive,
        ..SpeakRequest::default()
    };
    Ok(SpeechTask { request, events: given.stream_format == Some("sse") })
}

/// Reads a text of a bounded length.
fn bounded(field: Field) -> Result<String, ApiError> {
    let text = filled(field)?;
    match text.chars().count() {
        count if count > SPEECH_CHARS_MAX => {
            Err(field.error(format!("has {count} characters; at most {SPEECH_CHARS_MAX} are allowed")))
        }
        _ => Ok(text),
    }
}

fn format_of(field: Field<'_>) -> Result<SoundFormat, ApiError> {
    let word = field.word(&FORMATS.map(|(word, _)| word))?;
    let format = FORMATS.iter().find(|(known, _)| *known == word).map(|(_, format)| *format);
    format.filter(|format| *format != SoundFormat::Unspecified).ok_or_else(|| {
        ApiError::unsupported(
            &field.path(),
            "aac is written by nothing here; use mp3, opus, flac, wav or pcm",
        )
    })
}

/// Lists the voices of a model.
pub(crate) async fn voices(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, ApiError> {
    let mut model = String::new();
    for (name, value) in query::pairs(query.as_deref()) {
        match name.as_str() {
            "model" => model = value,
            _ if app.config.lenient => {}
            name => return Err(ApiError::field(name, "unknown parameter")),
        }
    }
    let model = select(&app, &asker, model, &[Capability::Speak]).await?.model;
    let until = app.until();
    let engine = app.engine(&asker);
    let answer = until.run(engine.voices(model, until.deadline)).await?;
    let voices: Vec<Value> = answer.voices.iter().map(voice).collect();
    Ok(Json(json!({"object": "list", "model": answer.model, "voices": voices})))
}

fn voice(voice: &Voice) -> Value {
    json!({
        "id": voice.name,
        "name": voice.name,
        "language": voice.language,
        "gender": voice.gender,
        "aliases": voice.aliases,
    })
}
