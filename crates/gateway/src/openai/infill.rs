//! `POST /infill`, llama.cpp's route for filling in the middle: completions, answered in its server's words; of several a list. Its
//! request is read in `openai::plan`.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::State,
    response::{IntoResponse as _, Response},
};
use hanzo_engine_proto::v1::{self, FinishReason};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    app::App,
    asker::Asker,
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
};

/// The route's handler.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: Incoming,
) -> Result<Response, ApiError> {
    let (peer, id) = (incoming.peer(), asker.id.clone());
    let read = move |fields: Fields<'_>, config: &Config| plan::infill(fields, config, &id);
    let ((plan, fields), room) = body::read(&app, incoming).await?.into(read).await?;
    let several = plan.choices > 1;
    let reads_only = plan.line_limits.is_some_and(|limits| limits.reads_only);
    let mut shape = Infill { predicted: vec![0; plan.choices as usize], several, reads_only, fields };
    if plan.stream {
        return answer(&app, &asker, plan, room, peer, shape).await;
    }
    let mut generation = Generation::start(&app, &asker, plan).await?;
    drop(room);
    let mut all = vec![(String::new(), FinishReason::Stop); shape.predicted.len()];
    let mut room = app.answers.room();
    while let Some(event) = generation.next().await {
        match event? {
            // Of a prompt that nobody asked to be scored nothing comes.
            Event::Started | Event::Scored { .. } | Event::Server(_) => {}
            Event::Delta { index, delta } => {
                shape.count(index, &delta);
                room.grow(delta.text.len())?;
                all[index as usize].0.push_str(&delta.text);
            }
            Event::Finished { index, reason, .. } => all[index as usize].1 = reason,
        }
    }
    let (model, used) = (std::mem::take(&mut generation.model), &generation.used);
    let whole = |(index, (content, reason))| shape.whole(&model, index, content, reason, used);
    let mut all: Vec<Value> = (0..).zip(all).map(whole).collect();
    Ok(match several {
        true => Json(all).into_response(),
        false => Json(all.pop()).into_response(),
    })
}

/// What is answered of middles.
struct Infill {
    /// The tokens of each so far.
    predicted: Vec<u32>,
    several: bool,
    /// Nothing is generated that counts.
    reads_only: bool,
    /// The paths of the fields that a whole answer shows; empty: all.
    fields: Vec<String>,
}

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
    timings: Option<InfillTimings>,
}

/// Where the time went, in llama.cpp's words beside this server's.
#[derive(Serialize)]
struct InfillTimings {
    #[serde(flatten)]
    timings: Timings,
    cache_n: u32,
    prompt_n: u32,
    prompt_ms: f64,
    prompt_per_token_ms: f64,
    prompt_per_second: f64,
    predicted_n: u32,
    predicted_ms: f64,
    predicted_per_token_ms: f64,
    predicted_per_second: f64,
}

impl InfillTimings {
    fn new(spent: &v1::Timings, predicted_n: u32, used: &UsageCount) -> InfillTimings {
        let prompt_n = used.prompt_tokens().saturating_sub(used.cached_tokens());
        let each = |ms: f64, tokens: u32| ms / f64::from(tokens.max(1));
        InfillTimings {
            timings: timings(spent),
            cache_n: used.cached_tokens(),
            prompt_n,
            prompt_ms: spent.prefill_ms,
            prompt_per_token_ms: each(spent.prefill_ms, prompt_n),
            prompt_per_second: spent.prefill_tokens_per_s,
            predicted_n,
            predicted_ms: spent.decode_ms,
            predicted_per_token_ms: each(spent.decode_ms, predicted_n),
            predicted_per_second: spent.decode_tokens_per_s,
        }
    }
}

impl Infill {
    fn count(&mut self, index: u32, delta: &v1::Delta) {
        let tokens = u32::try_from(delta.token_ids.len()).unwrap_or(u32::MAX);
        let predicted = &mut self.predicted[index as usize];
        *predicted = predicted.saturating_add(tokens);
    }

    fn piece(&self, index: u32, content: String, stop: bool, used: &UsageCount) -> Piece {
        let tokens_predicted = match () {
            () if self.reads_only => 0,
            () if self.several => self.predicted[index as usize],
            () => used.completion_tokens(),
        };
        Piece { index, content, stop, tokens_predicted, tokens_evaluated: used.prompt_tokens() }
    }

    fn whole(
        &self,
        model: &str,
        index: u32,
        content: String,
        reason: FinishReason,
        used: &UsageCount,
    ) -> Value {
        let piece = self.piece(index, content, true, used);
        let spent = used.timings.as_ref();
        let whole = json!(Whole {
            timings: spent.map(|spent| InfillTimings::new(spent, piece.tokens_predicted, used)),
            piece,
            model,
            stop_type: if reason == FinishReason::Length { "limit" } else { "eos" },
            truncated: false,
            tokens_cached: used.cached_tokens(),
        });
        match self.fields.is_empty() {
            true => whole,
            false => self.fields.iter().filter_map(|path| Some((path.clone(), at(&whole, path)?))).collect(),
        }
    }
}

/// What is at that path, if there is such a thing.
fn at(whole: &Value, path: &str) -> Option<Value> {
    path.split('/').try_fold(whole, |value, name| value.as_object()?.get(name)).cloned()
}

impl Shape for Infill {
    const ID_PREFIX: &'static str = "infill-";
    type Choice = String;

    fn event(&mut self, head: &Head, used: &UsageCount, event: Event, frames: &mut Frames) {
        match event {
            Event::Started | Event::Scored { .. } | Event::Server(_) => {}
            Event::Delta { index, delta } => {
                self.count(index, &delta);
                if !delta.text.is_empty() {
                    frames.data(&self.piece(index, delta.text, false, used));
                }
            }
            Event::Finished { index, reason, .. } => {
                frames.data(&self.whole(&head.model, index, String::new(), reason, used));
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
