//! `POST /v1/classify` (and `/classify`) in vLLM's format.

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
        rerank::best,
        tasks::{self, ClassifyTask},
    },
    select::select,
    vectors::{calls::Caller, inputs::field_name},
};

/// Handler of the route.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: IncomingBody,
) -> Result<Json<ScoreList<Datum>>, ApiError> {
    let read = SentFields::beside(tasks::classifying);
    let ((asked, sent), room) = body::read(&app, incoming).await?.into(read).await?;
    let ClassifyTask { mut request, inputs, single } = asked;
    request.model = select(&app, &asker, request.model, &[Capability::Classify]).await?.model;
    let name = move |field: &str| field_name(field, "input", single, &sent);
    let (classifications, spent) = Caller::new(&app, &asker, room).classify(request, inputs, name).await?;
    let datum = |(index, classification)| {
        let (labels, probs) = tasks::labels(classification);
        let label = best(&probs, 1).first().map(|i| labels[*i].clone()).unwrap_or_default();
        Datum { index, label, num_classes: probs.len(), probs }
    };
    let data = classifications.into_iter().enumerate().map(datum).collect();
    Ok(Json(ScoreList::new("classify", spent, data)))
}

/// Class of one text.
#[derive(Serialize)]
pub(crate) struct Datum {
    index: usize,
    label: String,   // the most likely label
    probs: Vec<f32>, // of each label, in the model's order
    num_classes: usize,
}
