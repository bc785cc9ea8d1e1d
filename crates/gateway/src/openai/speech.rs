//! `POST /v1/audio/speech`: a text said, in the shape of OpenAI's; and `GET /v1/audio/voices`. Sound goes out as it comes, sentence
//! by sentence, as a file or as server-sent events.

use std::sync::Arc;

use axum::{
    Extension, Json,
    body::Body,
    extract::State,
    http::{Uri, header},
    response::{IntoResponse as _, Response},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, TryStreamExt as _, stream};
use hanzo_engine_proto::v1::{self, SoundFormat, speak_event::Event, speak_request::Input};
use serde_json::{Value, json};

use crate::{
    app::App,
    asker::Asker,
    body::{self, Incoming},
    config::Config,
    error::ApiError,
    fields::{Field, Fields},
    limits::SPEECH_CHARS_MAX,
    names::SentFields,
    request::{filled, keep_alive, model, priority},
    until::Until,
};

/// What formats are called.
const FORMATS: [(&str, SoundFormat); 6] = [
    ("mp3", SoundFormat::Mp3),
    ("wav", SoundFormat::Wav),
    ("pcm", SoundFormat::Pcm),
    ("flac", SoundFormat::Flac),
    ("opus", SoundFormat::Opus),
    ("aac", SoundFormat::Unspecified),
];
/// OpenAI's names of its own models: whoever sends one means the model that speaks here.
const OPENAI_MODELS: [&str; 3] = ["tts-1", "tts-1-hd", "gpt-4o-mini-tts"];

/// What a body asks for.
struct Asked {
    request: v1::SpeakRequest,
    events: bool,
}

/// The route's handler.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: Incoming,
) -> Result<Response, ApiError> {
    let received = body::read(&app, incoming).await?;
    let ((Asked { mut request, events }, sent), room) = received.into(SentFields::beside(read)).await?;
    request.request_id = asker.id.as_str().to_owned();
    let phonemes = matches!(request.input, Some(Input::Phonemes(_)));
    let named = move |error: ApiError| {
        error.renamed(|field| match field {
            "text" | "phonemes" if phonemes => sent.name("phonemes"),
            "text" => sent.name("input"),
            "format" => sent.name("response_format"),
            other => sent.name(other),
        })
    };
    let until = Until::of(&app);
    let engine = app.engine(&asker);
    let mut said = until.run(engine.speak(request, until.deadline)).await.map_err(&named)?;
    drop(room);
    // What cannot be said is refused before the first byte.
    let Some(Event::Started(started)) = until.run(next(&mut said)).await.map_err(&named)? else {
        return Err(ApiError::from(tonic::Status::internal("the engine began with something else")));
    };
    let first = until.run(next(&mut said)).await.map_err(&named)?;
    let rest = stream::iter(first.map(Ok)).chain(said.try_filter_map(|event| async { Ok(event.event) }));
    let rest = bounded(rest, until);
    if events {
        let frames = rest.map(|event| Ok::<_, std::io::Error>(frame(event)));
        let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
        return Ok((headers, Body::from_stream(frames)).into_response());
    }
    // A file that ends early says so by ending badly.
    let bytes = rest.try_filter_map(|event| async {
        Ok(match event {
            Event::Data(data) => Some(data),
            Event::Started(_) | Event::Finished(_) => None,
        })
    });
    let bytes = bytes.map_err(|error| std::io::Error::other(error.json().to_string()));
    Ok(([(header::CONTENT_TYPE, started.mime_type)], Body::from_stream(bytes)).into_response())
}

async fn next(
    said: &mut (impl Stream<Item = Result<v1::SpeakEvent, tonic::Status>> + Unpin),
) -> Result<Option<Event>, tonic::Status> {
    Ok(said.try_next().await?.and_then(|event| event.event))
}

/// The events until the deadline.
fn bounded(
    events: impl Stream<Item = Result<Event, tonic::Status>> + Send + 'static,
    until: Until,
) -> impl Stream<Item = Result<Event, ApiError>> + Send {
    stream::unfold(Some((Box::pin(events), until)), |state| async {
        let (mut events, until) = state?;
        match until.run(async { events.try_next().await }).await {
            Ok(Some(event)) => Some((Ok(event), Some((events, until)))),
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    })
}

/// OpenAI's events.
fn frame(event: Result<Event, ApiError>) -> Bytes {
    let told = match event {
        Ok(Event::Data(data)) => json!({"type": "speech.audio.delta", "audio": BASE64_STANDARD.encode(data)}),
        Ok(Event::Finished(finished)) => {
            // As many tokens of sound as OpenAI counts cannot be told; frames are no tokens.
            let input = finished.input_tokens;
            let usage = json!({"input_tokens": input, "output_tokens": 0, "total_tokens": input});
            json!({"type": "speech.audio.done", "usage": usage, "unknown_words": finished.unknown_words})
        }
        Ok(Event::Started(_)) => return Bytes::new(),
        Err(error) => error.json(),
    };
    Bytes::from(format!("data: {told}\n\n"))
}

fn read(mut fields: Fields<'_>, _config: &Config) -> Result<Asked, ApiError> {
    let model = model(&mut fields)?;
    let model = if OPENAI_MODELS.contains(&model.as_str()) { String::new() } else { model };
    let text = fields.take("input");
    let phonemes = fields.take("phonemes");
    let bounded = |field: Field| {
        let text = filled(field)?;
        match text.chars().count() {
            count if count > SPEECH_CHARS_MAX => {
                Err(field.error(format!("has {count} characters; at most {SPEECH_CHARS_MAX} are allowed")))
            }
            _ => Ok(text),
        }
    };
    let input = match (text, phonemes) {
        (Some(_), Some(phonemes)) => return Err(phonemes.error("stands for input; send one of them")),
        (None, Some(phonemes)) => Input::Phonemes(bounded(phonemes)?),
        (Some(text), None) => Input::Text(bounded(text)?),
        (None, None) => return Err(ApiError::field("input", "required")),
    };
    let voice = fields.take("voice").map(filled).transpose()?.unwrap_or_default();
    let speed = fields.take("speed").map(|field| field.number(0.25..=4.0)).transpose()?;
    let format = match fields.take("response_format") {
        None => SoundFormat::Mp3,
        Some(field) => {
            let word = field.word(&FORMATS.map(|(word, _)| word))?;
            let format = FORMATS.iter().find(|(known, _)| *known == word).map(|(_, format)| *format);
            match format {
                Some(format @ (SoundFormat::Mp3 | SoundFormat::Wav | SoundFormat::Pcm)) => format,
                _ => {
                    return Err(ApiError::unsupported(
                        &field.path(),
                        "is none of mp3, wav and pcm, which this build makes",
                    ));
                }
            }
        }
    };
    let stream_format =
        fields.take("stream_format").map(|field| field.word(&["audio", "sse"])).transpose()?;
    let instructions = fields.take("instructions").map(Field::string).transpose()?.unwrap_or_default();
    let language = fields.take("language").map(filled).transpose()?.unwrap_or_default();
    let seed = fields.take("seed").map(|field| field.integer(0..=u64::MAX)).transpose()?;
    let request = v1::SpeakRequest {
        model,
        input: Some(input),
        voice,
        speed,
        format: format.into(),
        language,
        seed,
        instructions,
        priority: priority(&mut fields)?,
        keep_alive: keep_alive(&mut fields)?,
        ..v1::SpeakRequest::default()
    };
    fields.finish()?;
    Ok(Asked { request, events: stream_format == Some("sse") })
}

/// The voices of a model.
pub(crate) async fn voices(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    uri: Uri,
) -> Result<Json<Value>, ApiError> {
    let mut pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    let model = pairs.find(|(name, _)| *name == "model").map(|(_, value)| value.replace("%2F", "/"));
    let model = model.unwrap_or_default();
    let until = Until::of(&app);
    let answer = until.run(app.engine(&asker).voices(model)).await?;
    let voice = |voice: &v1::Voice| json!({"id": voice.name, "name": voice.name, "language": voice.language, "gender": voice.gender, "aliases": voice.aliases});
    let voices: Vec<Value> = answer.voices.iter().map(voice).collect();
    Ok(Json(json!({"object": "list", "model": answer.model, "voices": voices})))
}
