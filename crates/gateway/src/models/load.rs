//! `POST /v1/models/load` and `/v1/models/unload`; llama.cpp's router calls them `/models/load` and
//! `/models/unload`.

use std::sync::Arc;

use axum::{Extension, Json, extract::State};
use hanzo_engine_proto::v1;
use serde_json::{Value, json};

use crate::{
    app::App,
    asker::Asker,
    body::{self, IncomingBody},
    error::ApiError,
    fields::{Field, Fields},
    limits::OVERRIDES_MAX,
    names::SentFields,
    request::{either, filled, keep_alive},
    status::model_of_status,
};

/// Loads a model, and answers when it is ready.
pub(crate) async fn load(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: IncomingBody,
) -> Result<Json<Value>, ApiError> {
    admin(&app, &asker, "to load models")?;
    let received = body::read(&app, incoming).await?;
    let ((request, sent), _room) =
        received.into(SentFields::beside(|fields, _| load_request(fields))).await?;
    let (until, mut engine) = (app.until(), app.engine(&asker));
    let answer = until.run(engine.load(request, until.deadline)).await;
    let answer = answer.map_err(|error| error.renamed(|field| sent.name(field)))?;
    let mut shown = json!({"success": true, "load_ms": answer.load_ms});
    shown["model"] = json!(answer.model.map(model_of_status));
    if !answer.clamped.is_empty() {
        shown["clamped"] = json!(answer.clamped);
    }
    Ok(Json(shown))
}

/// Unloads a model, and answers when it has left memory.
pub(crate) async fn unload(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: IncomingBody,
) -> Result<Json<Value>, ApiError> {
    admin(&app, &asker, "to unload models")?;
    let received = body::read(&app, incoming).await?;
    let ((request, sent), _room) =
        received.into(SentFields::beside(|fields, _| unload_request(fields))).await?;
    let (until, mut engine) = (app.until(), app.engine(&asker));
    let answer = until.run(engine.unload(request, until.deadline)).await;
    let answer = answer.map_err(|error| error.renamed(|field| sent.name(field)))?;
    Ok(Json(json!({"success": true, "model": answer.model.map(model_of_status)})))
}

/// Refuses a request without the admin scope before its body is read.
pub(crate) fn admin(app: &App, asker: &Asker, what: &str) -> Result<(), ApiError> {
    asker.pass.admin(what).map_err(|refusal| app.refuse(&refusal))
}

fn load_request(mut fields: Fields) -> Result<v1::LoadRequest, ApiError> {
    let text = |fields: &mut Fields, name: &str| fields.take(name).map(filled).transpose();
    let context = either(&mut fields, "context_tokens_max", "max_model_len")?;
    let request = v1::LoadRequest {
        model: filled(fields.require("model")?)?,
        alias: text(&mut fields, "alias")?.unwrap_or_default(),
        context_tokens_max: context.map(|f| f.integer(1..=u32::MAX)).transpose()?.unwrap_or(0),
        kv_bytes: fields.take("kv_bytes").map(|f| f.integer(1..=u64::MAX)).transpose()?.unwrap_or(0),
        draft_model: text(&mut fields, "draft_model")?.unwrap_or_default(),
        adapters: Vec::new(),
        tool_format: text(&mut fields, "tool_format")?.unwrap_or_default(),
        gpu_layers: fields.take("gpu_layers").map(layers_or_cards).transpose()?.unwrap_or_default(),
        gpu_devices: fields.take("gpu_devices").map(layers_or_cards).transpose()?.unwrap_or_default(),
        overrides: fields.take("overrides").map(|field| overrides(field.object()?)).transpose()?,
        keep_alive: keep_alive(&mut fields)?,
        as_request: false,
    };
    if let Some(field) = fields.take("adapters") {
        let problem =
            "names files on the engine's machine; load the model first, then POST /v1/load_lora_adapter";
        return Err(ApiError::unsupported(&field.path(), problem));
    }
    fields.finish()?;
    Ok(request)
}

/// Reads overrides of a model's settings, except those that name other files.
fn overrides(mut fields: Fields) -> Result<v1::Overrides, ApiError> {
    for name in ["mmproj", "tokenizer", "topology"] {
        if let Some(field) = fields.take(name) {
            let problem = "not supported here; use `hanzo-engine load`, the configuration or gRPC";
            return Err(ApiError::unsupported(&field.path(), problem));
        }
    }
    let text = |fields: &mut Fields, name: &str| fields.take(name).map(filled).transpose();
    let number = |fields: &mut Fields, name: &str| fields.take(name).map(|f| f.number(..)).transpose();
    let mut kv = Vec::new();
    if let Some(field) = fields.take("kv") {
        for one in field.list_up_to(OVERRIDES_MAX, "keys")? {
            kv.push(one.string()?);
        }
    }
    let overrides = v1::Overrides {
        chat_template: text(&mut fields, "chat_template")?.unwrap_or_default(),
        tokenizer: String::new(),
        kv,
        rope_scaling: text(&mut fields, "rope_scaling")?.unwrap_or_default(),
        rope_scale: number(&mut fields, "rope_scale")?.unwrap_or(0.0),
        rope_freq_base: number(&mut fields, "rope_freq_base")?.unwrap_or(0.0),
        yarn_orig_ctx: fields
            .take("yarn_orig_ctx")
            .map(|f| f.integer(0..=u32::MAX))
            .transpose()?
            .unwrap_or(0),
        yarn_attn_factor: number(&mut fields, "yarn_attn_factor")?.unwrap_or(0.0),
        yarn_beta_fast: number(&mut fields, "yarn_beta_fast")?.unwrap_or(0.0),
        yarn_beta_slow: number(&mut fields, "yarn_beta_slow")?.unwrap_or(0.0),
        // Number of bits, or the name of a type.
        isq: fields.take("isq").map(bits_or_type).transpose()?.unwrap_or_default(),
        topology: Vec::new(),
        mmproj: String::new(),
        imatrix: String::new(),
    };
    fields.finish()?;
    Ok(overrides)
}

fn bits_or_type(field: Field) -> Result<String, ApiError> {
    match field.value().is_number() {
        true => Ok(field.integer(1..=16_u32)?.to_string()),
        false => filled(field),
    }
}

/// Reads a number or a word. The engine checks the word.
fn layers_or_cards(field: Field) -> Result<String, ApiError> {
    match field.value().is_number() {
        true => Ok(field.integer(0..=u32::MAX)?.to_string()),
        false => filled(field),
    }
}

fn unload_request(mut fields: Fields) -> Result<v1::UnloadRequest, ApiError> {
    let model = filled(fields.require("model")?)?;
    let force = fields.flag("force")?;
    fields.finish()?;
    Ok(v1::UnloadRequest { model, force })
}
