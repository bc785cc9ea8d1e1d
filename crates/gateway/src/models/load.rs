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
    declare::{Declaration as _, Integer, Number, Read, fields},
    error::ApiError,
    fields::{Field, Fields},
    limits::OVERRIDES_MAX,
    names::SentFields,
    request::{FILLED, filled, one_of, stay},
    status::model_of_status,
    unsupported::{MODEL_FILES, MODEL_LOAD},
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

fields! {
    /// Body of `POST /v1/models/load`.
    pub(crate) struct ModelLoadRequest inert [&MODEL_LOAD] {
        /// Name of a stored model; no path.
        model: String = FILLED,
        /// Name under which it is served.
        alias?: String = FILLED,
        /// Maximum tokens of prompt and answer together.
        context_tokens_max?: u32 = Integer(1..=u32::MAX),
        /// vLLM's name of context_tokens_max.
        max_model_len?: u32 = Integer(1..=u32::MAX),
        /// Bytes of the KV cache.
        kv_bytes?: u64 = Integer(1..=u64::MAX),
        /// Smaller model that drafts for it.
        draft_model?: String = FILLED,
        /// Format in which it writes tool calls.
        tool_format?: String = FILLED,
        /// Number of its last layers that are on a card: auto, all or a number.
        gpu_layers?: String = Read("string | integer 0..4294967295", layers_or_cards),
        /// Devices of the engine that it may be on, such as cuda:1 or 0,1.
        gpu_devices?: String = Read("string | integer 0..4294967295", layers_or_cards),
        /// Settings in place of those in its files.
        overrides?: ModelOverrides,
        /// Time that it stays when nobody uses it.
        keep_alive?: String = Read("string | number", stay),
    }
}

fields! {
    /// Settings of a model in place of those in its files.
    pub(crate) struct ModelOverrides inert [&MODEL_FILES] {
        /// Chat template in Jinja.
        chat_template?: String = FILLED,
        /// Metadata, as KEY=TYPE:VALUE.
        kv?: Vec<String> = Read("string[]", keys),
        /// Way in which the context is stretched.
        rope_scaling?: String = Read("\"none\" | \"linear\" | \"yarn\"", filled),
        /// Factor by which it is stretched.
        rope_scale?: f32 = Number(..),
        /// Base of the rotary embedding.
        rope_freq_base?: f32 = Number(..),
        /// Tokens of the context before the stretch.
        yarn_orig_ctx?: u32 = Integer(0..=u32::MAX),
        /// Attention factor of YaRN.
        yarn_attn_factor?: f32 = Number(..),
        /// Fast beta of YaRN.
        yarn_beta_fast?: f32 = Number(..),
        /// Slow beta of YaRN.
        yarn_beta_slow?: f32 = Number(..),
        /// Type that matrices are quantised to, or its bits.
        isq?: String = Read("string | integer 1..16", bits_or_type),
    }
}

fields! {
    /// Body of `POST /v1/models/unload`.
    pub(crate) struct ModelUnloadRequest {
        /// Name of the model.
        model: String = FILLED,
        /// Whether running requests end with an error.
        force: bool,
    }
}

fn load_request(mut fields: Fields) -> Result<v1::LoadRequest, ApiError> {
    let given = ModelLoadRequest::read(&mut fields)?;
    fields.finish()?;
    let context =
        one_of(("context_tokens_max", given.context_tokens_max), ("max_model_len", given.max_model_len))?;
    Ok(v1::LoadRequest {
        model: given.model,
        alias: given.alias.unwrap_or_default(),
        context_tokens_max: context.unwrap_or(0),
        kv_bytes: given.kv_bytes.unwrap_or(0),
        draft_model: given.draft_model.unwrap_or_default(),
        adapters: Vec::new(),
        tool_format: given.tool_format.unwrap_or_default(),
        gpu_layers: given.gpu_layers.unwrap_or_default(),
        gpu_devices: given.gpu_devices.unwrap_or_default(),
        overrides: given.overrides.map(ModelOverrides::overrides),
        keep_alive: given.keep_alive,
        as_request: false,
    })
}

impl ModelOverrides {
    fn overrides(self) -> v1::Overrides {
        v1::Overrides {
            chat_template: self.chat_template.unwrap_or_default(),
            kv: self.kv.unwrap_or_default(),
            rope_scaling: self.rope_scaling.unwrap_or_default(),
            rope_scale: self.rope_scale.unwrap_or(0.0),
            rope_freq_base: self.rope_freq_base.unwrap_or(0.0),
            yarn_orig_ctx: self.yarn_orig_ctx.unwrap_or(0),
            yarn_attn_factor: self.yarn_attn_factor.unwrap_or(0.0),
            yarn_beta_fast: self.yarn_beta_fast.unwrap_or(0.0),
            yarn_beta_slow: self.yarn_beta_slow.unwrap_or(0.0),
            // Number of bits, or the name of a type.
            isq: self.isq.unwrap_or_default(),
            ..v1::Overrides::default()
        }
    }
}

fn keys(field: Field) -> Result<Vec<String>, ApiError> {
    field.list_up_to(OVERRIDES_MAX, "keys")?.map(Field::string).collect()
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
    let ModelUnloadRequest { model, force } = ModelUnloadRequest::read(&mut fields)?;
    fields.finish()?;
    Ok(v1::UnloadRequest { model, force })
}
