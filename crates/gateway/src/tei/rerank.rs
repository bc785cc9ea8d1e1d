//! `POST /rerank`: TEI's format if the body has `texts`, else that of Jina, Cohere and vLLM.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::State,
    response::{IntoResponse as _, Response},
};
use hanzo_engine_proto::v1::Capability;
use serde::Serialize;

use crate::{
    app::App,
    asker::Asker,
    body::{self, IncomingBody, ReceivedBody},
    error::ApiError,
    names::SentFields,
    scores,
    select::select,
    tei::{error::TeiError, words},
    vectors::calls::Caller,
};

/// Handler of the route.
pub(crate) async fn either(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: IncomingBody,
) -> Result<Response, ApiError> {
    let received = body::read(&app, incoming).await?;
    let (received, texts) = received.peek(|fields, _| Ok(fields.has("texts"))).await?;
    if texts {
        return Ok(answer(&app, &asker, received).await.into_response());
    }
    scores::rerank::answer(&app, &asker, received, "1").await
}

#[derive(Serialize)]
struct Rank {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    score: f32,
}

/// Ranks the texts of a body.
pub(super) async fn answer(app: &App, asker: &Asker, received: ReceivedBody) -> Result<Response, TeiError> {
    let ((asked, sent), room) = received.into(SentFields::beside(words::ranking)).await?;
    let (mut request, texts, return_text) = asked;
    request.model = select(app, asker, request.model, &[Capability::Rerank]).await?.model;
    let mut shown: Vec<Option<String>> =
        if return_text { texts.iter().cloned().map(Some).collect() } else { Vec::new() };
    let name = move |field: &str| match field.strip_prefix("documents") {
        Some(index) => Some(format!("texts{index}")),
        None => sent.name(field),
    };
    let (scores, _) = Caller::new(app, asker, room).rerank(request, texts, name).await?;
    let rank = |index: usize| Rank {
        index,
        text: shown.get_mut(index).and_then(Option::take),
        score: scores[index],
    };
    let ranks: Vec<Rank> = scores::rerank::best(&scores, 0).into_iter().map(rank).collect();
    Ok(Json(ranks).into_response())
}
