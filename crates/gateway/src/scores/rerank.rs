//! `POST /v1/rerank`, `/v2/rerank`, and `/rerank` where the body has `documents`: the shape that Jina, Cohere and
//! vLLM share.

use std::sync::Arc;

use axum::{
    Extension, Json,
    body::Body,
    extract::{MatchedPath, State},
    http::HeaderMap,
    response::{IntoResponse as _, Response},
};
use hanzo_engine_proto::v1::{self, Capability, TruncateSide};
use serde::Serialize;
use serde_json::Value;

use crate::{
    app::App,
    body,
    error::ApiError,
    fields::{Field, Fields},
    openai::{convert, unsupported},
    request_id::{RequestId, random_id},
    scores::Usage,
    select::select,
    vectors::{calls::Asker, request},
};

/// Documents that Cohere counts as one search.
const SEARCH_DOCUMENTS: usize = 100;

/// The handler of `/v1/rerank` and `/v2/rerank`.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    path: MatchedPath,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let version = if path.as_str().starts_with("/v2") { "2" } else { "1" };
    answer(&app, &id, body::read(&app, &headers, body).await?, version).await
}

#[derive(Serialize)]
struct Answer {
    id: String,
    model: String,
    results: Vec<Ranked>,
    usage: Usage,
    meta: Meta,
}

#[derive(Serialize)]
struct Ranked {
    index: usize,
    relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<Document>,
}

#[derive(Serialize)]
struct Document {
    text: String,
}

/// Cohere's: of which of its versions this is the shape, and what it would count.
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
    id: &RequestId,
    mut fields: Fields,
    version: &'static str,
) -> Result<Response, ApiError> {
    let model = convert::model(&mut fields)?;
    let query = request::filled(fields.require("query")?)?;
    let documents = request::elements(fields.require("documents")?, app.config.embedding_inputs_max)?;
    let documents: Vec<String> = documents.into_iter().map(document).collect::<Result<_, _>>()?;
    let top_n = fields.take("top_n").map(|f| f.integer(0..=u32::MAX)).transpose()?.unwrap_or(0);
    let return_documents = fields.flag("return_documents")?;
    let base = options(&mut fields)?;
    let instruction = request::either(&mut fields, "instruction", "task_instruction")?;
    let instruction = instruction.map(request::filled).transpose()?.unwrap_or_default();
    unsupported::scores(&mut fields)?;
    fields.finish()?;
    let model = select(app, model, &[Capability::Rerank]).await?.model;
    let base = v1::RerankRequest { model, query, instruction, ..base };
    let mut texts: Vec<Option<String>> =
        if return_documents { documents.iter().cloned().map(Some).collect() } else { Vec::new() };
    let search_units = documents.len().div_ceil(SEARCH_DOCUMENTS);
    let (scores, spent) = Asker::new(app, id).rerank(base, documents, str::to_owned).await?;
    let ranked = |index: usize| Ranked {
        index,
        relevance_score: scores[index],
        document: texts.get_mut(index).and_then(Option::take).map(|text| Document { text }),
    };
    let answer = Answer {
        id: format!("rerank-{}", random_id()),
        results: best(&scores, top_n).into_iter().map(ranked).collect(),
        usage: Usage::from(&spent),
        meta: Meta {
            api_version: ApiVersion { version },
            billed_units: BilledUnits { search_units },
            tokens: Tokens { input_tokens: spent.prompt_tokens },
        },
        model: spent.model,
    };
    Ok(Json(answer).into_response())
}

/// The fields of what is scored by a reranker that are the same on all surfaces.
pub(crate) fn options(fields: &mut Fields) -> Result<v1::RerankRequest, ApiError> {
    Ok(v1::RerankRequest {
        raw_scores: fields.flag("raw_scores")?,
        truncate: right_truncation(fields)?,
        priority: convert::priority(fields)?,
        ..v1::RerankRequest::default()
    })
}

/// Whether documents that are too long are cut, which is done at their end.
fn right_truncation(fields: &mut Fields) -> Result<bool, ApiError> {
    let named = ["truncation_direction", "truncation_side"].into_iter().find(|name| fields.has(name));
    let truncation = request::truncation(fields)?;
    if truncation.side == TruncateSide::Left {
        let problem = "not supported by this build: documents are cut at their end";
        return Err(ApiError::unsupported(named.unwrap_or("truncate"), problem));
    }
    Ok(truncation.truncate)
}

/// A document: a string, or an object with a `text`.
fn document(field: Field) -> Result<String, ApiError> {
    match field.value() {
        Value::Object(_) => {
            let mut object = field.object()?;
            let text = object.require("text")?.string()?;
            object.finish()?;
            Ok(text)
        }
        Value::String(_) => field.string(),
        _ => Err(field.error("expected a string or an object with a text")),
    }
}

/// The indices of the `top_n` best scores, all of them where it is 0, the best first. Of equal ones the lower index
/// is first.
pub(crate) fn best(scores: &[f32], top_n: u32) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    // A stable sort.
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
