//! `POST /infill`, llama.cpp's route for filling in the middle: a completion, answered in its server's words. Its request is read in
//! `openai::plan`.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::State,
    response::{IntoResponse as _, Response},
};
use hanzo_engine_proto::v1::{self, FinishReason};
use serde::Serialize;

use crate::{
    app::App,
    body::{self, Incoming},
    config::Config,
    error::ApiError,
    fields::Fields,
    openai::{
        answer::answer,
        events::{Timings, timings},
        frames::Frames,
        generation::{Event, Generation},
        plan,
        shape::{CollectedChoice, Head, Shape},
        usage_count::UsageCount,
    },
    request_id::RequestId,
};

/// The route's handler.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    incoming: Incoming,
) -> Result<Response, ApiError> {
    let peer = incoming.peer();
    let read = move |fields: Fields<'_>, config: &Config| plan::infill(fields, config, &id);
    let (plan, room) = body::read(&app, incoming).await?.into(read).await?;
    if plan.stream {
        return answer(&app, plan, room, peer, Infill).await;
    }
    let mut generation = Generation::start(&app, plan).await?;
    drop(room);
    let (mut content, mut reason) = (String::new(), FinishReason::Stop);
    let mut room = app.answers.room();
    while let Some(event) = generation.next().await {
        match event? {
            // Of a prompt that nobody asked to be scored nothing comes.
            Event::Started | Event::Scored { .. } => {}
            Event::Delta { delta, .. } => {
                room.grow(delta.text.len())?;
                content.push_str(&delta.text);
            }
            Event::Finished { reason: ended, .. } => reason = ended,
        }
    }
    let model = std::mem::take(&mut generation.model);
    Ok(Json(Whole::new(&model, content, reason, &generation.used)).into_response())
}

struct Infill;

/// A piece of the middle.
#[derive(Serialize)]
struct Piece {
    index: u32,
    content: String,
    stop: bool,
    tokens_predicted: u32,
    tokens_evaluated: u32,
}

/// The end of a stream, or the whole middle.
#[derive(Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    piece: Piece,
    model: &'a str,
    /// `eos` or `limit`.
    stop_type: &'static str,
    truncated: bool,
    tokens_cached: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
}

impl Piece {
    fn new(content: String, stop: bool, used: &UsageCount) -> Piece {
        Piece {
            index: 0,
            content,
            stop,
            tokens_predicted: used.completion_tokens(),
            tokens_evaluated: used.prompt_tokens(),
        }
    }
}

impl<'a> Whole<'a> {
    fn new(model: &'a str, content: String, reason: FinishReason, used: &UsageCount) -> Whole<'a> {
        Whole {
            piece: Piece::new(content, true, used),
            model,
            stop_type: if reason == FinishReason::Length { "limit" } else { "eos" },
            truncated: false,
            tokens_cached: used.cached_tokens(),
            timings: used.timings.as_ref().map(timings),
        }
    }
}

impl Shape for Infill {
    const ID_PREFIX: &'static str = "infill";
    type Choice = String;

    fn event(&mut self, head: &Head, used: &UsageCount, event: Event, frames: &mut Frames) {
        match event {
            Event::Started | Event::Scored { .. } => {}
            Event::Delta { delta, .. } if delta.text.is_empty() => {}
            Event::Delta { delta, .. } => frames.data(&Piece::new(delta.text, false, used)),
            Event::Finished { reason, .. } => {
                frames.data(&Whole::new(&head.model, String::new(), reason, used));
            }
        }
    }

    /// Nothing of the prompt is shown.
    fn scored(&mut self, _: u32, _: v1::PromptLogprobs) {}

    /// The last piece has said it.
    fn usage(&mut self, _: &Head, _: &UsageCount, _: &mut Frames) {}

    fn choice(&self, _: u32, whole: CollectedChoice) -> String {
        whole.text
    }

    fn envelope(&self, head: &Head, _: &UsageCount) -> impl Serialize {
        head.model.clone()
    }
}
