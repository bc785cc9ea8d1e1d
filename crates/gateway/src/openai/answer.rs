//! Runs a plan, and answers with a stream of events or one JSON object. Both are made from the same generation.

use std::time::Duration;

use axum::response::Response;
use hanzo_engine_proto::v1;

use crate::{
    answers::{self, AnswerRoom},
    app::App,
    asker::Asker,
    bodies::Room,
    error::ApiError,
    limits::LOGPROB_BYTES,
    openai::{
        generation::{Event, Generation},
        plan::{RequestPlan, StreamOptions},
        shape::{AnswerShape, CollectedChoice, Head},
        sse,
    },
    peer::Peer,
};

/// Runs a plan and answers in its format. A stream begins when the engine has accepted the request, which may
/// still be queued. So a refusal has its own HTTP status, and a later error is an event of the stream.
pub(crate) async fn answer<S: AnswerShape>(
    app: &App,
    asker: &Asker,
    plan: RequestPlan,
    room: Room,
    peer: Option<Peer>,
    mut shape: S,
) -> Result<Response, ApiError> {
    let (streamed, streaming) = (plan.stream, plan.streaming);
    let mut generation = Generation::start(app, asker, plan).await?;
    // The engine has the request, so the body's memory is free.
    drop(room);
    if streamed {
        return Ok(stream(app, generation, shape, streaming, peer));
    }
    let (choices, room) = collect(app, &mut generation, &mut shape).await?;
    let head = Head::new(S::ID_PREFIX, std::mem::take(&mut generation.model));
    let envelope = serde_json::to_string(&shape.envelope(&head, &generation.used));
    let envelope = envelope.map_err(|e| ApiError::internal(&e.to_string()))?;
    Ok(answers::respond("choices", &envelope, choices, move |index, whole| shape.choice(index, whole), room))
}

/// Streams the events of a generation.
pub(crate) fn stream<S: AnswerShape>(
    app: &App,
    generation: Generation,
    shape: S,
    streaming: StreamOptions,
    peer: Option<Peer>,
) -> Response {
    let keep_alive = Duration::from_secs(app.config.sse_keep_alive_s);
    sse::response(generation, shape, streaming, keep_alive, peer)
}

/// Collects all choices of a generation, and the memory reserved for them.
pub(crate) async fn collect<S: AnswerShape>(
    app: &App,
    generation: &mut Generation,
    shape: &mut S,
) -> Result<(Vec<CollectedChoice>, AnswerRoom), ApiError> {
    let mut choices: Vec<CollectedChoice> = Vec::new();
    choices.resize_with(generation.finished.len(), CollectedChoice::default);
    let mut room = app.answers.room();
    while let Some(event) = generation.next().await {
        match event? {
            Event::Loading(_) | Event::Started { .. } => {}
            Event::Server(call) => {
                let held = call.outcome.as_ref().map_or(0, |outcome| outcome.text.len());
                room.grow(call.arguments.len() + held)?;
                shape.server_call(*call);
            }
            Event::Scored { index, scored } => {
                room.grow(logprobs_size(&scored.tokens))?;
                shape.scored(index, scored);
            }
            Event::Delta { index, delta } => {
                room.grow(size(&delta))?;
                let choice = &mut choices[index as usize];
                choice.text.push_str(&delta.text);
                choice.reasoning.push_str(&delta.reasoning);
                choice.logprobs.extend(delta.logprobs);
                choice.add_calls(delta.tool_calls);
            }
            Event::Finished { index, reason, stop_string, .. } => {
                let choice = &mut choices[index as usize];
                (choice.reason, choice.stop_string) = (reason, stop_string);
            }
        }
    }
    Ok((choices, room))
}

/// Estimated bytes of a part of a collected answer.
fn size(delta: &v1::Delta) -> usize {
    let call = |call: &v1::ToolCallDelta| call.id.len() + call.name.len() + call.arguments_json.len();
    let calls: usize = delta.tool_calls.iter().map(call).sum();
    delta.text.len() + delta.reasoning.len() + calls + logprobs_size(&delta.logprobs)
}

fn logprobs_size(tokens: &[v1::TokenLogprob]) -> usize {
    tokens.iter().map(|token| (1 + token.top.len()) * LOGPROB_BYTES).sum()
}
