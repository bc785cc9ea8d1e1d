//! `GET /v1/models` and `GET /v1/models/{id}`: the models that are loaded, then those that are stored.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State, rejection::PathRejection},
};
use serde::Serialize;
use serde_json::{Value, json};
use tonic::Status;

use crate::{
    app::App,
    convert::{model_of_show, models_of},
    error::ApiError,
};

/// One model. The fields after `owned_by` are extensions: a client of OpenAI's reads past them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Model {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    pub(crate) created: i64, // Unix seconds
    pub(crate) owned_by: String,
    /// `ready`, `loading`, `draining` or `failed` of a model that was loaded, `stored` of one that is not: it answers no
    /// request until it is.
    pub(crate) state: &'static str,
    /// The same in the words of llama.cpp's router.
    pub(crate) status: RouterStatus,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// Tokens of prompt and completion together, of a model in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_model_len: Option<u32>,
}

/// Whether a model is in memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct RouterStatus {
    pub(crate) value: &'static str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) failed: bool,
}

/// `GET /v1/models`.
pub(crate) async fn list(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    Ok(Json(json!({"object": "list", "data": models(&app).await?})))
}

/// `GET /v1/models/{id}`. The id may contain slashes, and may be any name that the engine knows the model by.
pub(crate) async fn show(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Model>, ApiError> {
    let Path(id) = id.map_err(|rejection| ApiError::field("model", rejection.body_text()))?;
    if let Some(model) = models(&app).await?.into_iter().find(|model| model.id == id) {
        return Ok(Json(model));
    }
    Ok(Json(model_of_show(id.clone(), app.engine.clone().show(id).await?)))
}

async fn models(app: &App) -> Result<Vec<Model>, Status> {
    let (mut one, mut other) = (app.engine.clone(), app.engine.clone());
    let (stats, list) = tokio::try_join!(one.stats(), other.list())?;
    Ok(models_of(stats, list))
}
