//! `POST /v1/responses`. `responses::request` parses the request, `responses::reply` writes the answer.

use std::{collections::HashMap, sync::Arc};

use axum::{Extension, extract::State, response::Response};

use super::{
    conversation::Before,
    reply::{Reply, StorePlan},
    request::{self, CreateRequest, References},
    truncation::drop_oldest,
};
use crate::{
    answers,
    app::App,
    asker::Asker,
    body::{self, IncomingBody, ReceivedBody},
    config::Config,
    error::ApiError,
    fields::Fields,
    limits::TRUNCATION_STEPS_MAX,
    openai::{
        answer::stream,
        frames::Frames,
        generation::Generation,
        plan::RequestPlan,
        shape::{AnswerShape as _, Head},
        turns::offer,
    },
    response_store::stored::{StoredResponse, response_of},
};

/// Stored response and items that a request references.
#[derive(Debug, Default)]
pub(super) struct ReferencedObjects {
    previous: Option<Arc<StoredResponse>>,
    items: HashMap<String, String>, // by id
}

impl ReferencedObjects {
    /// Looks up what a request references, among the requester's responses. Memory is reserved for it as for
    /// the body.
    pub(super) async fn of(
        app: &App,
        owner: &str,
        received: &mut ReceivedBody,
    ) -> Result<ReferencedObjects, ApiError> {
        let References { previous, items } = received.look(|fields, _| request::named(fields)).await?;
        let (mut found, mut bytes) = (ReferencedObjects::default(), 0);
        if let Some(id) = &previous {
            bytes = app.responses.bytes(id).await;
            received.hold(bytes).await?;
            found.previous = app.responses.load(owner, id).await;
        }
        let mut last: Option<(String, Option<Arc<StoredResponse>>)> = None;
        for id in items {
            let Some(response) = response_of(&id) else { continue };
            // Items of one response are usually adjacent.
            let stored = match last.take() {
                Some((known, stored)) if known == response => stored,
                _ => app.responses.load(owner, &response).await,
            };
            // Repeated references count each time.
            if let Some(item) = found.items.get(&id).cloned().or_else(|| stored.as_ref()?.item(&id)) {
                bytes += item.len();
                received.hold(bytes).await?;
                found.items.insert(id, item);
            }
            last = Some((response, stored));
        }
        Ok(found)
    }

    /// Context for parsing the request.
    pub(super) fn known(&mut self) -> Before<'_> {
        Before { previous: self.previous.as_deref(), items: std::mem::take(&mut self.items) }
    }
}

/// Owner of a requester's responses: the name of its key.
pub(super) fn owner(asker: &Asker) -> String {
    asker.pass.name().unwrap_or_default().to_owned()
}

/// Handler of the route.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: IncomingBody,
) -> Result<Response, ApiError> {
    let (peer, id) = (incoming.peer(), asker.id.clone());
    let mut received = body::read(&app, incoming).await?;
    let (owner, keeps) = (owner(&asker), app.responses.are_kept());
    let mut found = ReferencedObjects::of(&app, &owner, &mut received).await?;
    let before = found.previous.clone();
    let read =
        move |fields: Fields<'_>, config: &Config| request::read(fields, config, &id, &found.known(), keeps);
    let (CreateRequest { mut plan, asked, truncates, server_calls_max }, room) = received.into(read).await?;
    offer(&app, &asker, &mut plan, server_calls_max).await?;
    // The parts of the request to store are held as long as the answer.
    let mut held = app.answers.room();
    held.grow(asked.items.iter().map(|item| item.json.len()).sum())?;
    let (streamed, streaming) = (plan.stream, plan.streaming);
    let mut generation = start(&app, &asker, plan, truncates).await?;
    // The engine has the request, so the body's memory is free.
    drop(room);
    let responses = app.responses.clone();
    let store_plan = asked.frame.store.then_some(StorePlan { responses, owner, before });
    let mut reply = Reply::new(asked, store_plan, held);
    if streamed {
        return Ok(stream(&app, generation, reply, streaming, peer));
    }
    let (mut begun, mut frames): (Option<Head>, Frames) = (None, Frames::default());
    while let Some(event) = generation.next().await {
        let event = event?;
        let head = begun.get_or_insert_with(|| Head::new(Reply::ID_PREFIX, generation.model.clone()));
        reply.event(head, &generation.used, event, &mut frames);
        if let Some(fault) = reply.fault() {
            return Err(fault);
        }
    }
    let head = begun.ok_or_else(|| ApiError::internal("the engine has answered nothing"))?;
    reply.settle(&head, &generation.used).await;
    let (whole, room) = reply.into_whole();
    Ok(answers::whole(whole, room))
}

/// Starts the plan. With `truncates`, a prompt that does not fit loses its oldest messages until it does.
async fn start(
    app: &App,
    asker: &Asker,
    mut plan: RequestPlan,
    truncates: bool,
) -> Result<Generation, ApiError> {
    if !truncates {
        return Generation::start(app, asker, plan).await;
    }
    let mut steps = 0;
    loop {
        match Generation::start(app, asker, plan.clone()).await {
            Err(error)
                if error.code() == Some("context_length_exceeded")
                    && steps < TRUNCATION_STEPS_MAX
                    && plan.messages().is_some_and(drop_oldest) =>
            {
                steps += 1;
            }
            started => return started,
        }
    }
}
