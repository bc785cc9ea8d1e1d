//! vLLM's routes `POST /v1/load_lora_adapter` and `POST /v1/unload_lora_adapter`. A path names files on the
//! engine's machine, so both are refused unless the operator allows them.

use std::sync::Arc;

use axum::{Extension, extract::State};
use hanzo_engine_proto::v1;

use crate::{
    app::App,
    asker::Asker,
    body::{self, IncomingBody},
    declare::{Declaration as _, fields},
    error::ApiError,
    fields::Fields,
    names::SentFields,
    unsupported::{ADAPTER_NUMBER, ADAPTER_PLACE},
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

fields! {
    /// Body of `POST /v1/load_lora_adapter`.
    pub(crate) struct LoadAdapterRequest inert [&ADAPTER_PLACE] {
        /// Name of the adapter, which requests put behind the model's and a colon.
        lora_name: String,
        /// Path on the engine's machine.
        lora_path: String,
        /// Model that the adapter is of, required if several are loaded.
        base_model_name?: String,
    }
}

fields! {
    /// Body of `POST /v1/unload_lora_adapter`.
    pub(crate) struct UnloadAdapterRequest inert [&ADAPTER_NUMBER] {
        /// Name of the adapter.
        lora_name: String,
        /// Model that the adapter is of, required if several are loaded.
        base_model_name?: String,
    }
}

fn load_request(mut fields: Fields) -> Result<v1::LoadAdapterRequest, ApiError> {
    let given = LoadAdapterRequest::read(&mut fields)?;
    fields.finish()?;
    let adapter = v1::AdapterSource { name: given.lora_name, path: given.lora_path };
    let model = given.base_model_name.unwrap_or_default();
    Ok(v1::LoadAdapterRequest { model, adapter: Some(adapter) })
}

fn unload_request(mut fields: Fields) -> Result<v1::UnloadAdapterRequest, ApiError> {
    let given = UnloadAdapterRequest::read(&mut fields)?;
    fields.finish()?;
    let model = given.base_model_name.unwrap_or_default();
    Ok(v1::UnloadAdapterRequest { model, name: given.lora_name })
}
