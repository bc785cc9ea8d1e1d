//! `POST /completion` and `/completions`, which continue texts, and `POST /infill`, which fills in the middle.
//! Answers have the format of llama.cpp's server; several are a list.

use std::sync::Arc;

use axum::{Extension, extract::State, response::Response};

use crate::{
    app::App,
    asker::Asker,
    body::{self, IncomingBody},
    config::Config,
    error::ApiError,
    fields::Fields,
    llamacpp::{
        answer::{Llama, collect},
        ask::{self, CompletionRequest},
    },
    openai::{answer::answer, generation::Generation},
    request_id::RequestId,
};

/// Continues texts.
pub(crate) async fn completion(
    app: State<Arc<App>>,
    asker: Extension<Asker>,
    incoming: IncomingBody,
) -> Result<Response, ApiError> {
    run(app, asker, incoming, ask::completion).await
}

/// Fills in the middle of a text.
pub(crate) async fn infill(
    app: State<Arc<App>>,
    asker: Extension<Asker>,
    incoming: IncomingBody,
) -> Result<Response, ApiError> {
    run(app, asker, incoming, ask::infill).await
}

async fn run(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: IncomingBody,
    read: fn(Fields<'_>, &Config, &RequestId) -> Result<CompletionRequest, ApiError>,
) -> Result<Response, ApiError> {
    let (peer, id) = (incoming.peer(), asker.id.clone());
    let read = move |fields: Fields<'_>, config: &Config| read(fields, config, &id);
    let (CompletionRequest { plan, shown }, room) = body::read(&app, incoming).await?.into(read).await?;
    let (stream, choices) = (plan.stream, plan.requests.len() * plan.choices as usize);
    let mut shape = Llama::new(&plan, shown);
    if stream {
        return answer(&app, &asker, plan, room, peer, shape).await;
    }
    let generation = Generation::start(&app, &asker, plan).await?;
    drop(room);
    collect(&app, generation, &mut shape, choices).await
}
