//! `POST /v1/score` (and `/score`) in vLLM's format: relevance of the texts in each pair, by a reranker or by
//! the cosine similarity of an embedder's vectors.

use std::sync::Arc;

use axum::{Extension, Json, extract::State};
use hanzo_engine_proto::v1::Capability;
use serde::Serialize;

use crate::{
    app::App,
    asker::Asker,
    body::{self, IncomingBody},
    error::ApiError,
    names::SentFields,
    scores::{
        list::ScoreList,
        tasks::{self, ScoreTask},
    },
    select::select,
    vectors::calls::Caller,
};

/// Handler of the route.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: IncomingBody,
) -> Result<Json<ScoreList<Datum>>, ApiError> {
    let read = SentFields::beside(tasks::scoring);
    let ((asked, sent), room) = body::read(&app, incoming).await?.into(read).await?;
    let ScoreTask { mut request, raw_scores_given, pairs } = asked;
    let selected = select(&app, &asker, request.model, &[Capability::Rerank, Capability::Embed]).await?;
    request.model = selected.model;
    let caller = Caller::new(&app, &asker, room);
    let (scores, spent) = match selected.capability {
        Capability::Embed if raw_scores_given => {
            let problem = "not supported with a model that embeds: its score is a cosine";
            return Err(ApiError::unsupported("raw_scores", problem));
        }
        Capability::Embed => pairs.cosines(&caller, tasks::embedding(request), sent).await?,
        _ => pairs.ranked(&caller, request, sent).await?,
    };
    let datum = |(index, score)| Datum { index, object: "score", score };
    let data = scores.into_iter().enumerate().map(datum).collect();
    Ok(Json(ScoreList::new("score", spent, data)))
}

/// Score of a pair.
#[derive(Serialize)]
pub(crate) struct Datum {
    index: usize,
    object: &'static str,
    score: f32,
}
