//! `POST /v1/completions`: format of the answer, streamed and whole. `openai::plan` parses the request.

use std::sync::Arc;

use axum::{Extension, extract::State, response::Response};
use hanzo_engine_proto::v1;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    app::App,
    asker::Asker,
    body::{self, IncomingBody, ReceivedBody},
    config::Config,
    error::ApiError,
    fields::Fields,
    forward,
    openai::{
        answer::answer,
        events::{
            CompletionLogprobs, PromptLogprobs, TextOffset, Timings, Usage, completion_logprobs,
            finish_reason, timings, usage,
        },
        frames::Frames,
        generation::Event,
        plan::{self, ShownLogprobs, StreamOptions},
        shape::{AnswerShape, CollectedChoice, Head},
        usage_count::UsageCount,
    },
    peer::Peer,
};

/// Handler of the route.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: IncomingBody,
) -> Result<Response, ApiError> {
    let peer = incoming.peer();
    let received = body::read(&app, incoming).await?;
    let here = |received| run(&app, &asker, peer.clone(), received);
    forward::or_there(&app, &asker, peer.clone(), "completions", received, here).await
}

async fn run(
    app: &App,
    asker: &Asker,
    peer: Option<Peer>,
    received: ReceivedBody,
) -> Result<Response, ApiError> {
    let id = asker.id.clone();
    let read = move |fields: Fields<'_>, config: &Config| plan::completion(fields, config, &id);
    let ((plan, logprobs), room) = received.into(read).await?;
    let shape = TextCompletion {
        offsets: vec![TextOffset::default(); plan.requests.len() * plan.choices as usize],
        prompts: vec![v1::PromptLogprobs::default(); plan.requests.len()],
        choices: plan.choices,
        logprobs,
        streaming: plan.streaming,
    };
    answer(app, asker, plan, room, peer, shape).await
}

struct TextCompletion {
    offsets: Vec<TextOffset>,         // by index
    prompts: Vec<v1::PromptLogprobs>, // by prompt, if the answer is collected
    choices: u32,                     // of each prompt
    logprobs: ShownLogprobs,
    streaming: StreamOptions,
}

/// Completion or event of one. They differ only in that an event's choice may be unfinished.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Completion<'a> {
    id: &'a str,
    #[schemars(extend("enum" = ["text_completion"]))]
    object: &'static str,
    /// Unix time in seconds.
    created: u64,
    /// Model that answers.
    model: &'a str,
    /// Name of the engine's build and of the model's files.
    system_fingerprint: &'a str,
    /// Texts, or new parts of them.
    #[schemars(with = "Vec<serde_json::Value>")]
    choices: Vec<Choice>,
    /// Usage, if it was requested. All events but the last have null.
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
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<PromptLogprobs>,
    finish_reason: Option<&'static str>,
}

impl Choice {
    fn new(index: u32, text: String) -> Choice {
        Choice { index, text, logprobs: None, prompt_logprobs: None, finish_reason: None }
    }
}

impl TextCompletion {
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

impl AnswerShape for TextCompletion {
    const ID_PREFIX: &'static str = "cmpl-";
    type Choice = Choice;

    fn event(&mut self, head: &Head, used: &UsageCount, event: Event, frames: &mut Frames) {
        match event {
            Event::Loading(_) | Event::Started { .. } | Event::Server(_) => {}
            Event::Scored { index, scored } => {
                let Some(top) = self.logprobs.top.filter(|_| self.logprobs.with_prompt) else { return };
                for index in index..index + self.choices {
                    let offset = &mut self.offsets[index as usize];
                    let logprobs = Some(CompletionLogprobs::of_prompt(&scored, top, offset));
                    let choice = Choice { logprobs, ..Choice::new(index, String::new()) };
                    frames.data(&self.completion(head, used, vec![choice]));
                }
            }
            Event::Delta { index, delta } => {
                let offset = &mut self.offsets[index as usize];
                let logprobs = self.logprobs.top.filter(|_| !delta.logprobs.is_empty());
                let logprobs = logprobs.map(|top| completion_logprobs(&delta.logprobs, top, offset));
                // A completion has a single text, so reasoning is part of it.
                let text = delta.reasoning + &delta.text;
                if !text.is_empty() || logprobs.is_some() {
                    frames.data(&self.completion(
                        head,
                        used,
                        vec![Choice { logprobs, ..Choice::new(index, text) }],
                    ));
                }
            }
            Event::Finished { index, reason, timings: spent, .. } => {
                let finish_reason = Some(finish_reason(reason));
                let choice = Choice { finish_reason, ..Choice::new(index, String::new()) };
                let chunk = self.completion(head, used, vec![choice]);
                frames.data(&Completion { timings: spent.as_ref().map(timings), ..chunk });
            }
        }
    }

    fn scored(&mut self, index: u32, scored: v1::PromptLogprobs) {
        let prompt = &mut self.prompts[(index / self.choices) as usize];
        prompt.first = prompt.first.take().or(scored.first);
        prompt.tokens.extend(scored.tokens);
    }

    fn usage(&mut self, head: &Head, used: &UsageCount, frames: &mut Frames) {
        frames
            .data(&Completion { usage: Some(Some(usage(used))), ..self.completion(head, used, Vec::new()) });
    }

    fn choice(&self, index: u32, whole: CollectedChoice) -> Choice {
        let prompt = &self.prompts[(index / self.choices) as usize];
        let logprobs = self.logprobs.top.map(|top| {
            let mut offset = TextOffset::default();
            let mut all = match self.logprobs.with_prompt {
                true => CompletionLogprobs::of_prompt(prompt, top, &mut offset),
                false => CompletionLogprobs::none(),
            };
            all.append(completion_logprobs(&whole.logprobs, top, &mut offset));
            all
        });
        Choice {
            logprobs,
            prompt_logprobs: self.logprobs.of_prompt.then(|| PromptLogprobs(prompt.tokens.clone())),
            finish_reason: Some(finish_reason(whole.reason)),
            ..Choice::new(index, whole.reasoning + &whole.text)
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
