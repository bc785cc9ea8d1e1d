//! `POST /predict`: the labels of a text, of a pair of texts, or of a list of either, the most likely first.

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
use serde_json::Value;

use crate::{
    app::App,
    body,
    error::ApiError,
    fields::{Field, Fields},
    openai::{convert, embeddings::field_name},
    request_id::RequestId,
    scores::rerank::best,
    select::select,
    tei::{TeiError, no_parameters},
    vectors::{calls::Asker, request},
};

/// The route's handler.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, TeiError> {
    let mut fields = body::read(&app, &headers, body).await?;
    let model = convert::model(&mut fields)?;
    let model = select(&app, model, &[Capability::Classify]).await?.model;
    answer(&app, &id, model, fields).await
}

#[derive(Serialize)]
struct Prediction {
    score: f32,
    label: String,
}

/// Classifies what a body without its `model` says.
pub(super) async fn answer(
    app: &App,
    id: &RequestId,
    model: String,
    mut fields: Fields,
) -> Result<Response, TeiError> {
    let (inputs, single) = inputs(fields.require("inputs")?, app.config.embedding_inputs_max)?;
    let truncation = request::truncation(&mut fields)?;
    let base = v1::ClassifyRequest {
        model,
        raw_scores: fields.flag("raw_scores")?,
        truncate: truncation.truncate,
        truncate_side: truncation.side.into(),
        priority: convert::priority(&mut fields)?,
        ..v1::ClassifyRequest::default()
    };
    no_parameters(&mut fields)?;
    fields.finish()?;
    let name = move |field: &str| field_name(field, "inputs", single);
    let (classifications, _) = Asker::new(app, id).classify(base, inputs, name).await?;
    let mut predictions: Vec<Vec<Prediction>> = classifications.into_iter().map(predictions).collect();
    match predictions.pop() {
        Some(only) if single => Ok(Json(only).into_response()),
        last => {
            predictions.extend(last);
            Ok(Json(predictions).into_response())
        }
    }
}

fn predictions(classification: v1::Classification) -> Vec<Prediction> {
    let scores: Vec<f32> = classification.labels.iter().map(|l| l.score).collect();
    let prediction = |i: usize| {
        let label = &classification.labels[i];
        Prediction { score: label.score, label: label.label.clone() }
    };
    best(&scores, 0).into_iter().map(prediction).collect()
}

const EXPECTED: &str =
    "expected a string, a pair [string, string], or a list [[string], [string, string], …]";

/// What to classify, and whether it is one. `["a", "b"]` is a pair; a list is a list of lists.
fn inputs(field: Field, max: usize) -> Result<(Vec<v1::ClassifyInput>, bool), ApiError> {
    let first = match field.value() {
        Value::String(_) => {
            return Ok((vec![v1::ClassifyInput { text: request::filled(field)?, pair: None }], true));
        }
        Value::Array(list) => list.first(),
        _ => return Err(field.error(EXPECTED)),
    };
    match first {
        Some(Value::String(_)) => Ok((vec![sequence(field)?], true)),
        Some(Value::Array(_)) => {
            let inputs = request::elements(field, max)?.into_iter().map(sequence);
            Ok((inputs.collect::<Result<_, _>>()?, false))
        }
        None => Err(ApiError::empty(field.path())),
        Some(_) => Err(field.error(EXPECTED)),
    }
}

/// A list of one or two strings.
fn sequence(field: Field) -> Result<v1::ClassifyInput, ApiError> {
    let Value::Array(list) = field.value() else { return Err(field.error(EXPECTED)) };
    if !(1..=2).contains(&list.len()) {
        let problem = format!("has {} elements; a text is one string, a pair two", list.len());
        return Err(field.error(problem));
    }
    let mut strings = field.list()?.into_iter();
    let text = strings.next().map(request::filled).transpose()?.unwrap_or_default();
    Ok(v1::ClassifyInput { text, pair: strings.next().map(request::filled).transpose()? })
}
