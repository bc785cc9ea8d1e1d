//! `POST /predict`: labels of a text, of a pair of texts, or of a list of either, the most likely first.

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
    names::SentFields,
    request::model,
    scores::{
        rerank::best,
        tasks::{ClassifyTask, labels},
    },
    select::select,
    tei::{error::TeiError, words},
    vectors::{calls::Caller, inputs::field_name},
};

/// Handler of the route.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: IncomingBody,
) -> Result<Response, TeiError> {
    let (received, model) =
        body::read(&app, incoming).await?.peek(|mut fields, _| model(&mut fields)).await?;
    let model = select(&app, &asker, model, &[Capability::Classify]).await?.model;
    answer(&app, &asker, model, received).await
}

#[derive(Serialize)]
struct Prediction {
    score: f32,
    label: String,
}

/// Classifies the inputs of a body with that model.
pub(super) async fn answer(
    app: &App,
    asker: &Asker,
    model: String,
    received: ReceivedBody,
) -> Result<Response, TeiError> {
    let ((asked, sent), room) = received.into(SentFields::beside(words::predicting)).await?;
    let ClassifyTask { mut request, inputs, single } = asked;
    request.model = model;
    let name = move |field: &str| field_name(field, "inputs", single, &sent);
    let (classifications, _) = Caller::new(app, asker, room).classify(request, inputs, name).await?;
    let mut predictions: Vec<Vec<Prediction>> = classifications
        .into_iter()
        .map(labels)
        .map(|(labels, scores)| predictions(&labels, &scores))
        .collect();
    match predictions.pop() {
        Some(only) if single => Ok(Json(only).into_response()),
        last => {
            predictions.extend(last);
            Ok(Json(predictions).into_response())
        }
    }
}

/// Sorts predictions by score, the highest first.
fn predictions(labels: &[String], scores: &[f32]) -> Vec<Prediction> {
    let prediction = |i: usize| Prediction { score: scores[i], label: labels[i].clone() };
    best(scores, 0).into_iter().map(prediction).collect()
}
