//! `GET /v1/models` and `GET /v1/models/{id}`: loaded models, then stored ones.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, State, rejection::PathRejection},
};
use serde_json::{Value, json};
use tonic::Status;

use crate::{
    app::App,
    asker::Asker,
    error::ApiError,
    status::{ModelObject, model_elsewhere, model_of_show, models_of},
};

/// Handler of `GET /v1/models`.
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
) -> Result<Json<Value>, ApiError> {
    Ok(Json(json!({"object": "list", "data": models(&app, &asker).await?})))
}

/// `GET /v1/models/{id}`. The id may contain slashes, and may be any name by which the engine knows the model.
pub(crate) async fn show(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<ModelObject>, ApiError> {
    let Path(id) = id.map_err(|rejection| ApiError::field("model", rejection.body_text()))?;
    if let Some(model) = models(&app, &asker).await?.into_iter().find(|model| model.id == id) {
        return Ok(Json(model));
    }
    Ok(Json(model_of_show(id.clone(), app.engine(&asker).show(id).await?)))
}

/// Lists loaded models, then stored ones, then those of the upstream server.
pub(crate) async fn models(app: &App, asker: &Asker) -> Result<Vec<ModelObject>, Status> {
    let (mut one, mut other) = (app.engine(asker), app.engine(asker));
    let (stats, list) = tokio::try_join!(one.stats(), other.list())?;
    let mut models = models_of(stats, list);
    let elsewhere = app.cloud.iter().flat_map(|cloud| cloud.models());
    for (name, by) in elsewhere.filter(|(name, _)| asker.pass.sees_model(name)) {
        // Requests go upstream even if a local model has that name.
        models.retain(|model| !model.id.eq_ignore_ascii_case(name));
        models.push(model_elsewhere(name, by));
    }
    Ok(models)
}
