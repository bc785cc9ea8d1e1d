//! State in the format of llama.cpp's server: `/props`, `/slots` and `/lora-adapters`. Requests have no fixed
//! slots here, so `/slots` shows only how many of the possible requests run.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{RawQuery, State},
};
use hanzo_engine_proto::v1::{Capability, ModelStatus};
use serde_json::{Value, json};

use super::settings;
use crate::{app::App, asker::Asker, error::ApiError, query, select::sole};

/// Status of a loaded model, or of the only one that can complete, embed or rerank.
async fn status(app: &App, asker: &Asker, model: &str) -> Result<ModelStatus, ApiError> {
    if model.is_empty() {
        let stats =
            sole(app, asker, &[Capability::Completion, Capability::Embed, Capability::Rerank]).await?;
        return Ok(stats.status.unwrap_or_default());
    }
    let shown = app.engine(asker).show(model.to_owned()).await?;
    shown.status.ok_or_else(|| ApiError::model_not_found(model, "it is not in memory"))
}

/// Reads the model in the query, and which of `flags` it contains.
fn read(app: &App, query: Option<&str>, flags: &[&str]) -> Result<(String, Vec<String>), ApiError> {
    let (mut model, mut given) = (String::new(), Vec::new());
    for (name, value) in query::pairs(query) {
        match name.as_str() {
            "model" => model = value,
            name if flags.contains(&name) => given.push(name.to_owned()),
            // Parameter of llama.cpp's router. A model is never loaded just to describe it.
            "autoload" => {}
            _ if app.config.lenient => {}
            name => return Err(ApiError::field(name, "unknown parameter")),
        }
    }
    Ok((model, given))
}

/// `GET /props`: description of the model, and its default sampling settings.
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
        // Paths of files are not revealed over HTTP.
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

/// `GET /slots`: one slot for each request that can run at once; as many are busy as requests run.
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

/// `GET /lora-adapters`: adapters of the model. A request names one as `model:adapter`.
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

/// Refuses routes that change settings or save slots: the operator changes settings, and every request can use
/// the prefix cache.
pub(crate) async fn refused() -> ApiError {
    ApiError::not_here()
}
