//! `POST /rerank`: TEI's where the body has `texts`, the shape of Jina, Cohere and vLLM where it has not.

use std::sync::Arc;

use axum::{
    Extension, Json,
    body::Body,
    extract::State,
    http::HeaderMap,
    response::{IntoResponse as _, Response},
};
use hanzo_engine_proto::v1::{self, Capability};
use serde::Serialize;

use crate::{
    app::App,
    body,
    error::ApiError,
    fields::{Field, Fields},
    openai::convert,
    request_id::RequestId,
    scores,
    select::select,
    tei::TeiError,
    vectors::{calls::Asker, request},
};

/// The route's handler.
pub(crate) async fn either(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let fields = body::read(&app, &headers, body).await?;
    if fields.has("texts") {
        return Ok(answer(&app, &id, fields).await.into_response());
    }
    scores::rerank::answer(&app, &id, fields, "1").await
}

#[derive(Serialize)]
struct Rank {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    score: f32,
}

/// Ranks the texts of a body.
pub(super) async fn answer(app: &App, id: &RequestId, mut fields: Fields) -> Result<Response, TeiError> {
    let model = convert::model(&mut fields)?;
    let query = request::filled(fields.require("query")?)?;
    let texts = request::elements(fields.require("texts")?, app.config.embedding_inputs_max)?;
    let texts: Vec<String> = texts.into_iter().map(Field::string).collect::<Result<_, _>>()?;
    let return_text = fields.flag("return_text")?;
    let base = scores::rerank::options(&mut fields)?;
    fields.finish()?;
    let model = select(app, model, &[Capability::Rerank]).await?.model;
    let base = v1::RerankRequest { model, query, ..base };
    let mut shown: Vec<Option<String>> =
        if return_text { texts.iter().cloned().map(Some).collect() } else { Vec::new() };
    let name = |field: &str| field.replacen("documents", "texts", 1);
    let (scores, _) = Asker::new(app, id).rerank(base, texts, name).await?;
    let rank = |index: usize| Rank {
        index,
        text: shown.get_mut(index).and_then(Option::take),
        score: scores[index],
    };
    let ranks: Vec<Rank> = scores::rerank::best(&scores, 0).into_iter().map(rank).collect();
    Ok(Json(ranks).into_response())
}
