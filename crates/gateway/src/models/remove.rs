//! `DELETE /v1/models/{id}`: removes a stored model, with OpenAI's response. A loaded model stays loaded.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, State, rejection::PathRejection},
};
use serde_json::{Value, json};

use super::load::admin;
use crate::{app::App, asker::Asker, error::ApiError};

/// Handler of the route. The id may contain slashes and may be an alias.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    admin(&app, &asker, "to remove models")?;
    let Path(id) = id.map_err(|rejection| ApiError::field("model", rejection.body_text()))?;
    let removed = app.engine(&asker).remove(id.clone()).await?;
    let name = removed.model.map(|model| model.name).filter(|name| !name.is_empty()).unwrap_or(id);
    let mut answer =
        json!({"id": name, "object": "model", "deleted": true, "freed_bytes": removed.freed_bytes});
    if !removed.alias_of.is_empty() {
        // An alias was removed; the model itself stays.
        answer["alias_of"] = json!(removed.alias_of);
    }
    Ok(Json(answer))
}
