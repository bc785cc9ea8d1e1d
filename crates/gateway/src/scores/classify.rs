//! `POST /v1/classify` (and `/classify`) in vLLM's shape.

use std::sync::Arc;

use axum::{Extension, Json, body::Body, extract::State, http::HeaderMap};
use hanzo_engine_proto::v1::{self, Capability};
use serde::Serialize;
use serde_json::Value;

use crate::{
    app::App,
    body,
    error::ApiError,
    openai::{convert, embeddings::field_name, unsupported},
    request_id::RequestId,
    scores::{List, rerank::best},
    select::select,
    vectors::{calls::Asker, request},
};

/// The route's handler.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<List<Datum>>, ApiError> {
    let mut fields = body::read(&app, &headers, body).await?;
    let model = convert::model(&mut fields)?;
    let input = fields.require("input")?;
    let (single, inputs) = match input.value() {
        Value::String(_) => (true, vec![request::filled(input)?]),
        Value::Array(_) => {
            let inputs = request::elements(input, app.config.embedding_inputs_max)?;
            (false, inputs.into_iter().map(request::filled).collect::<Result<_, _>>()?)
        }
        _ => return Err(input.error("expected a string or an array of strings")),
    };
    let inputs = inputs.into_iter().map(|text| v1::ClassifyInput { text, pair: None }).collect();
    let truncation = request::truncation(&mut fields)?;
    let base = v1::ClassifyRequest {
        raw_scores: fields.flag("raw_scores")?,
        truncate: truncation.truncate,
        truncate_side: truncation.side.into(),
        priority: convert::priority(&mut fields)?,
        ..v1::ClassifyRequest::default()
    };
    unsupported::scores(&mut fields)?;
    fields.finish()?;
    let model = select(&app, model, &[Capability::Classify]).await?.model;
    let base = v1::ClassifyRequest { model, ..base };
    let name = move |field: &str| field_name(field, "input", single);
    let (classifications, spent) = Asker::new(&app, &id).classify(base, inputs, name).await?;
    let datum = |(index, c): (usize, v1::Classification)| {
        let scores: Vec<f32> = c.labels.iter().map(|l| l.score).collect();
        let best = best(&scores, 1);
        let label = best.first().map(|i| c.labels[*i].label.as_str());
        let label = label.unwrap_or_default().to_owned();
        Datum { index, label, num_classes: scores.len(), probs: scores }
    };
    let data = classifications.into_iter().enumerate().map(datum).collect();
    Ok(Json(List::new("classify", spent, data)))
}

/// One text's class.
#[derive(Serialize)]
pub(crate) struct Datum {
    index: usize,
    label: String,   // the most likely one
    probs: Vec<f32>, // of each label, in the model's order
    num_classes: usize,
}
