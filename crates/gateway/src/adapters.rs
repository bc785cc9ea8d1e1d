//! vLLM's routes `POST /v1/load_lora_adapter` and `POST /v1/unload_lora_adapter`. A path names files on the
//! engine's machine, so both are refused unless the operator allows them.

use std::sync::Arc;

use axum::{Extension, extract::State};
use hanzo_engine_proto::v1;

use crate::{
    app::App,
    asker::Asker,
    body::{self, IncomingBody},
    error::ApiError,
    fields::Fields,
    names::SentFields,
};

/// Loads an adapter for a model.
pub(crate) async fn load(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: IncomingBody,
) -> Result<String, ApiError> {
    allowed(&app, &asker)?;
    let received = body::read(&app, incoming).await?;
    let read = SentFields::beside(|fields, _| load_request(fields));
    let ((request, sent), _room) = received.into(read).await?;
    let name = request.adapter.as_ref().map_or_else(String::new, |adapter| adapter.name.clone());
    let answer = app.engine(&asker).load_adapter(request).await;
    answer.map_err(|status| ApiError::from(status).renamed(|field| sent.name(field)))?;
    Ok(format!("Success: LoRA adapter '{name}' added successfully."))
}

/// Unloads an adapter of a model.
pub(crate) async fn unload(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: IncomingBody,
) -> Result<String, ApiError> {
    allowed(&app, &asker)?;
    let received = body::read(&app, incoming).await?;
    let read = SentFields::beside(|fields, _| unload_request(fields));
    let ((request, sent), _room) = received.into(read).await?;
    let name = request.name.clone();
    let answer = app.engine(&asker).unload_adapter(request).await;
    answer.map_err(|status| ApiError::from(status).renamed(|field| sent.name(field)))?;
    Ok(format!("Success: LoRA adapter '{name}' removed successfully."))
}

fn allowed(app: &App, asker: &Asker) -> Result<(), ApiError> {
    if !app.config.adapter_updates {
        return Err(ApiError::adapter_updates());
    }
    asker.pass.admin("to load and unload adapters").map_err(|refusal| app.refuse(&refusal))
}

/// Reads `lora_name`, `lora_path`, and the model, required if several are loaded. `load_inplace`, which would
/// replace an adapter, is refused.
fn load_request(mut fields: Fields) -> Result<v1::LoadAdapterRequest, ApiError> {
    let name = fields.require("lora_name")?.string()?;
    let path = fields.require("lora_path")?.string()?;
    let model = base_model(&mut fields)?;
    if fields.flag("load_inplace")? {
        return Err(ApiError::field("load_inplace", "cannot be honoured; unload the adapter first"));
    }
    fields.finish()?;
    Ok(v1::LoadAdapterRequest { model, adapter: Some(v1::AdapterSource { name, path }) })
}

/// Reads `lora_name`, and the model, required if several are loaded. The adapter's number, used by vLLM only,
/// is ignored.
fn unload_request(mut fields: Fields) -> Result<v1::UnloadAdapterRequest, ApiError> {
    let name = fields.require("lora_name")?.string()?;
    let model = base_model(&mut fields)?;
    let _number = fields.take("lora_int_id");
    fields.finish()?;
    Ok(v1::UnloadAdapterRequest { model, name })
}

/// Base model of the adapter; empty: the only one.
fn base_model(fields: &mut Fields) -> Result<String, ApiError> {
    match fields.take("base_model_name") {
        Some(field) => Ok(field.string()?),
        None => Ok(String::new()),
    }
}
