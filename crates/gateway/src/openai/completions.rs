//! `POST /v1/completions`: the answer's shape, streamed and whole. Its request is read in `openai::plan`.

use std::sync::Arc;

use axum::{Extension, extract::State, response::Response};
use serde::Serialize;

use crate::{
    app::App,
    body::{self, Incoming},
    config::Config,
    error::ApiError,
    fields::Fields,
    openai::{
        answer::answer,
        events::{
            CompletionLogprobs, TextOffset, Timings, Usage, completion_logprobs, finish_reason, timings,
            usage,
        },
        frames::Frames,
        generation::Event,
        plan::{self, Streaming},
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
    let read = move |fields: Fields<'_>, config: &Config| plan::completion(fields, config, &id);
    let ((plan, logprobs), room) = body::read(&app, incoming).await?.into(read).await?;
    let shape = Text {
        offsets: vec![TextOffset::default(); plan.requests.len() * plan.choices as usize],
        logprobs,
        streaming: plan.streaming,
    };
    answer(&app, plan, room, peer, shape).await
}

struct Text {
    offsets: Vec<TextOffset>, // by index
    logprobs: Option<u32>,    // alternatives of each token
    streaming: Streaming,
}

/// A whole completion and a chunk of one look the same, but that a chunk's choice may not have finished.
#[derive(Serialize)]
struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'a str,
    choices: Vec<Choice>,
    /// Absent where no usage was asked for; null until the last chunk where it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
}

#[derive(Serialize)]
struct Choice {
    index: u32,
    text: String,
    logprobs: Option<CompletionLogprobs>,
    finish_reason: Option<&'static str>,
}

impl Text {
    fn completion<'a>(&self, head: &'a Head, used: &UsageCount, choices: Vec<Choice>) -> Completion<'a> {
        Completion {
            id: &head.id,
            object: "text_completion",
            created: head.created,
            model: &head.model,
            system_fingerprint: &head.fingerprint,
            choices,
            usage: self.streaming.usage_so_far(used),
            timings: None,
        }
    }
}

impl Shape for Text {
    const ID_PREFIX: &'static str = "cmpl";
    type Choice = Choice;

    fn event(&mut self, head: &Head, used: &UsageCount, event: Event, frames: &mut Frames) {
        match event {
            Event::Started => {}
            Event::Delta { index, delta } => {
                let offset = &mut self.offsets[index as usize];
                let logprobs = self.logprobs.filter(|_| !delta.logprobs.is_empty());
                let logprobs = logprobs.map(|top| completion_logprobs(&delta.logprobs, top, offset));
                // A completion has one text: what a model reasons is part of it.
                let text = delta.reasoning + &delta.text;
                if !text.is_empty() || logprobs.is_some() {
                    frames.data(&self.completion(
                        head,
                        used,
                        vec![Choice { index, text, logprobs, finish_reason: None }],
                    ));
                }
            }
            Event::Finished { index, reason, timings: spent } => {
                let choice = Choice {
                    index,
                    text: String::new(),
                    logprobs: None,
                    finish_reason: Some(finish_reason(reason)),
                };
                let chunk = self.completion(head, used, vec![choice]);
                frames.data(&Completion { timings: spent.as_ref().map(timings), ..chunk });
            }
        }
    }

    fn usage(&mut self, head: &Head, used: &UsageCount, frames: &mut Frames) {
        frames
            .data(&Completion { usage: Some(Some(usage(used))), ..self.completion(head, used, Vec::new()) });
    }

    fn choice(&self, index: u32, whole: CollectedChoice) -> Choice {
        Choice {
            index,
            logprobs: self
                .logprobs
                .map(|top| completion_logprobs(&whole.logprobs, top, &mut TextOffset::default())),
            text: whole.reasoning + &whole.text,
            finish_reason: Some(finish_reason(whole.reason)),
        }
    }

    fn envelope(&self, head: &Head, used: &UsageCount) -> impl Serialize {
        Completion {
            usage: Some(Some(usage(used))),
            timings: used.timings.as_ref().map(timings),
            ..self.completion(head, used, Vec::new())
        }
    }
}
