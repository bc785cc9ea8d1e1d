//! What llama.cpp's server tells of itself: `/props`, `/slots` and `/lora-adapters`. Here answers have no places of their own: what
//! `/slots` lists is how many run of those that can, not who is where.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{RawQuery, State},
};
use hanzo_engine_proto::v1::{Capability, ModelStatus};
use serde_json::{Value, json};

use super::settings;
use crate::{app::App, asker::Asker, error::ApiError, query, select::sole};

/// A model in memory, or the only one that writes.
async fn status(app: &App, asker: &Asker, model: &str) -> Result<ModelStatus, ApiError> {
    if model.is_empty() {
        let stats =
            sole(app, asker, &[Capability::Completion, Capability::Embed, Capability::Rerank]).await?;
        return Ok(stats.status.unwrap_or_default());
    }
    let shown = app.engine(asker).show(model.to_owned()).await?;
    shown.status.ok_or_else(|| ApiError::model_not_found(model, "it is not in memory"))
}

/// The model that the query names, and whether it has `flag`.
fn read(app: &App, query: Option<&str>, flags: &[&str]) -> Result<(String, Vec<String>), ApiError> {
    let (mut model, mut given) = (String::new(), Vec::new());
    for (name, value) in query::pairs(query) {
        match name.as_str() {
            "model" => model = value,
            name if flags.contains(&name) => given.push(name.to_owned()),
            // Of llama.cpp's router: what is not in memory is not loaded to tell of it.
            "autoload" => {}
            _ if app.config.lenient => {}
            name => return Err(ApiError::field(name, "unknown parameter")),
        }
    }
    Ok((model, given))
}

/// `GET /props`: what the model is, and how its tokens are drawn where a request says nothing.
pub(crate) async fn props(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, ApiError> {
    let (model, _) = read(&app, query.as_deref(), &[])?;
    let status = status(&app, &asker, &model).await?;
    let shown = app.engine(&asker).show(status.name.clone()).await?;
    let text = status.text.clone().unwrap_or_default();
    let sampling = text.sampling.unwrap_or_default();
    let asked = settings::asked(&Default::default(), false);
    let can = |wanted: Capability| status.capabilities().any(|capability| capability == wanted);
    Ok(Json(json!({
        "default_generation_settings": {
            "params": settings::together(settings::sampling(&sampling), asked),
            "n_ctx": status.context_tokens_max,
        },
        "total_slots": text.sequences_max,
        "model_alias": status.name,
        "model_ftype": status.quantization,
        // Where files lie is told to nobody over HTTP.
        "model_path": status.name,
        "modalities": {"vision": can(Capability::Vision), "video": false, "audio": can(Capability::Audio)},
        "endpoint_slots": true,
        "endpoint_props": false,
        "endpoint_metrics": true,
        "chat_template": shown.chat_template,
        "bos_token": text.bos_token,
        "eos_token": text.eos_token,
        "build_info": concat!("hanzo-engine ", env!("CARGO_PKG_VERSION")),
        "is_sleeping": false,
    })))
}

/// `GET /slots`: so many as answers run at once, of which as many are busy as run.
pub(crate) async fn slots(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, ApiError> {
    let (model, flags) = read(&app, query.as_deref(), &["fail_on_no_slot"])?;
    let status = status(&app, &asker, &model).await?;
    let slots = status.text.as_ref().map_or(0, |text| text.sequences_max);
    if !flags.is_empty() && status.requests_running >= slots {
        return Err(ApiError::busy("no slot available"));
    }
    let slot = |id: u32| {
        json!({
            "id": id,
            "n_ctx": status.context_tokens_max,
            "speculative": !status.draft_model.is_empty(),
            "is_processing": id < status.requests_running,
        })
    };
    Ok(Json((0..slots).map(slot).collect()))
}

/// `GET /lora-adapters`: those of the model, which a request names as `model:adapter`.
pub(crate) async fn adapters(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, ApiError> {
    let (model, _) = read(&app, query.as_deref(), &[])?;
    let status = status(&app, &asker, &model).await?;
    let adapter = |(id, name): (usize, &str)| json!({"id": id, "path": name, "scale": 0.0});
    Ok(Json(status.adapters.iter().map(|adapter| adapter.name.as_str()).enumerate().map(adapter).collect()))
}

/// What llama.cpp's server does here and this one does not: its settings are the operator's, and what is cached is found by every request.
pub(crate) async fn refused() -> ApiError {
    ApiError::not_here()
}
