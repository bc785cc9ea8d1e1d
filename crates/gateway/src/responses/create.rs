//! `POST /v1/responses`. Its request is read in `responses::request`, its answer written in `responses::reply`.

use std::sync::Arc;

use axum::{Extension, extract::State, response::Response};

use super::{
    conversation::Before,
    kept::{Kept, response_of},
    reply::{Keeping, Reply},
    request::{self, Named, Read},
    store::Responses,
    truncation::drop_oldest,
};
use crate::{
    answers,
    app::App,
    asker::Asker,
    body::{self, Incoming},
    config::Config,
    error::ApiError,
    fields::Fields,
    limits::TRUNCATION_STEPS_MAX,
    openai::{
        answer::stream,
        frames::Frames,
        generation::Generation,
        plan::Plan,
        shape::{Head, Shape as _},
    },
};

/// What of a request's names is kept.
#[derive(Debug, Default)]
pub(super) struct Found {
    previous: Option<Arc<Kept>>,
    items: std::collections::HashMap<String, String>,
}

impl Found {
    /// Looks up what a request names, among what its asker has made.
    pub(super) async fn of(responses: &Responses, owner: &str, named: Named) -> Found {
        let mut found = Found::default();
        if let Some(id) = &named.previous {
            found.previous = responses.load(owner, id).await;
        }
        let mut last: Option<(String, Option<Arc<Kept>>)> = None;
        for id in named.items {
            let Some(response) = response_of(&id) else { continue };
            // Items of one response stand beside each other.
            let kept = match last.take() {
                Some((known, kept)) if known == response => kept,
                _ => responses.load(owner, &response).await,
            };
            if let Some(item) = kept.as_ref().and_then(|kept| kept.item(&id)) {
                found.items.insert(id, item);
            }
            last = Some((response, kept));
        }
        found
    }

    /// The items of the response that is followed, and those before it, as members of an array.
    fn before(&self) -> String {
        let Some(kept) = &self.previous else { return String::new() };
        let output = kept.output();
        let lists = [kept.input.as_str(), output.as_str()];
        let inner =
            lists.map(|list| list.trim_start_matches('[').strip_suffix(']').unwrap_or_default().to_owned());
        inner.into_iter().filter(|list| !list.is_empty()).collect::<Vec<_>>().join(",")
    }

    /// The same, for reading.
    pub(super) fn known(&mut self) -> Before<'_> {
        Before { previous: self.previous.as_deref(), items: std::mem::take(&mut self.items) }
    }
}

/// Whose what an asker makes is: the key's, by its name.
pub(super) fn owner(asker: &Asker) -> String {
    asker.pass.name().unwrap_or_default().to_owned()
}

/// The route's handler.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: Incoming,
) -> Result<Response, ApiError> {
    let (peer, id) = (incoming.peer(), asker.id.clone());
    let received = body::read(&app, incoming).await?;
    let (received, named) = received.peek(|fields, _| request::named(fields)).await?;
    let (owner, keeps) = (owner(&asker), app.responses.are_kept());
    let mut found = Found::of(&app.responses, &owner, named).await;
    let before = found.before();
    let read =
        move |fields: Fields<'_>, config: &Config| request::read(fields, config, &id, &found.known(), keeps);
    let (Read { plan, asked, truncates }, room) = received.into(read).await?;
    let (streamed, streaming) = (plan.stream, plan.streaming);
    let mut generation = start(&app, &asker, plan, truncates).await?;
    let keeping = asked.frame.store.then(|| Keeping {
        responses: app.responses.clone(),
        owner,
        before,
        _room: Some(room),
    });
    let mut reply = Reply::new(asked, keeping, app.answers.room());
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

/// Starts the plan. Where it `truncates` and does not fit, the oldest messages are left out until it does.
async fn start(app: &App, asker: &Asker, mut plan: Plan, truncates: bool) -> Result<Generation, ApiError> {
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
