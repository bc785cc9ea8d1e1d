//! `POST /v1/rerank`, `/v2/rerank`, and `/rerank` if the body has `documents`: the format that Jina, Cohere and
//! vLLM share.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{MatchedPath, State},
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
    request_id::random_id,
    scores::{
        list::ScoreUsage,
        tasks::{self, RerankTask},
    },
    select::select,
    vectors::calls::Caller,
};

/// Number of documents that Cohere bills as one search.
const SEARCH_DOCUMENTS: usize = 100;

/// Handler of `/v1/rerank` and `/v2/rerank`.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    path: MatchedPath,
    incoming: IncomingBody,
) -> Result<Response, ApiError> {
    let version = if path.as_str().starts_with("/v2") { "2" } else { "1" };
    answer(&app, &asker, body::read(&app, incoming).await?, version).await
}

#[derive(Serialize)]
struct RerankAnswer {
    id: String,
    model: String,
    results: Vec<RankedDocument>,
    usage: ScoreUsage,
    meta: Meta,
}

#[derive(Serialize)]
struct RankedDocument {
    index: usize,
    relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<Document>,
}

#[derive(Serialize)]
struct Document {
    text: String,
}

/// Cohere's metadata: the version of its API, and what it would bill.
#[derive(Serialize)]
struct Meta {
    api_version: ApiVersion,
    billed_units: BilledUnits,
    tokens: Tokens,
}

#[derive(Serialize)]
struct ApiVersion {
    version: &'static str,
}

#[derive(Serialize)]
struct BilledUnits {
    search_units: usize,
}

#[derive(Serialize)]
struct Tokens {
    input_tokens: u64,
}

/// Ranks the documents of a body.
pub(crate) async fn answer(
    app: &App,
    asker: &Asker,
    received: ReceivedBody,
    version: &'static str,
) -> Result<Response, ApiError> {
    let ((asked, sent), room) = received.into(SentFields::beside(tasks::ranking)).await?;
    let RerankTask { mut request, documents, top_n, return_documents } = asked;
    request.model = select(app, asker, request.model, &[Capability::Rerank]).await?.model;
    let mut texts: Vec<Option<String>> =
        if return_documents { documents.iter().cloned().map(Some).collect() } else { Vec::new() };
    let search_units = documents.len().div_ceil(SEARCH_DOCUMENTS);
    let name = move |field: &str| sent.name(field);
    let (scores, spent) = Caller::new(app, asker, room).rerank(request, documents, name).await?;
    let ranked = |index: usize| RankedDocument {
        index,
        relevance_score: scores[index],
        document: texts.get_mut(index).and_then(Option::take).map(|text| Document { text }),
    };
    let answer = RerankAnswer {
        id: format!("rerank-{}", random_id()),
        results: best(&scores, top_n).into_iter().map(ranked).collect(),
        usage: ScoreUsage::from(&spent),
        meta: Meta {
            api_version: ApiVersion { version },
            billed_units: BilledUnits { search_units },
            tokens: Tokens { input_tokens: spent.prompt_tokens },
        },
        model: spent.model,
    };
    Ok(Json(answer).into_response())
}

/// Indices of the `top_n` best scores, the best first; 0: all. Among equal scores the lower index comes first.
pub(crate) fn best(scores: &[f32], top_n: u32) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    // The sort is stable.
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    if top_n > 0 {
        order.truncate(top_n as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::best;

    #[test]
    fn the_best_first_and_ties_by_index() {
        let scores = [0.5, 0.9, 0.5, -1.0, 0.9];
        assert_eq!(best(&scores, 0), [1, 4, 0, 2, 3]);
        assert_eq!(best(&scores, 2), [1, 4]);
        assert_eq!(best(&scores, 99).len(), 5);
    }
}
