//! The calls LoadAdapter, UnloadAdapter and ListAdapters.

use std::{sync::Arc, time::Instant};

use hanzo_engine_proto::v1;
use tonic::Request;

use super::{Core, answer_by, deadline, within};
use crate::{
    convert::{reply, request},
    error::Error,
    keep_alive::KeepAlive,
};

/// Loads an adapter.
pub(super) async fn load(
    core: &Arc<Core>,
    request: Request<v1::LoadAdapterRequest>,
) -> Result<v1::LoadAdapterResponse, Error> {
    let _active = core.drain.enter()?;
    let by = answer_by(deadline(&request, Instant::now())?);
    let v1::LoadAdapterRequest { model, adapter } = request.into_inner();
    let wanted = adapter.ok_or_else(|| Error::field("adapter", "must be set: its name and path"))?;
    let (model, view) =
        within(by, core.models.load_adapter(&model, request::adapter(wanted))).await.map_err(of_adapter)?;
    // If the model were unloaded when idle, the adapter would be lost.
    core.models.registry.keep(&model, KeepAlive::Pinned);
    Ok(v1::LoadAdapterResponse { adapter: Some(reply::adapter(&model, &view)) })
}

/// Adds the path of the field in this request.
fn of_adapter(error: Error) -> Error {
    match error {
        Error::Field { field, reason } if field == "name" || field == "path" => {
            Error::Field { field: format!("adapter.{field}"), reason }
        }
        other => other,
    }
}

/// Unloads an adapter.
pub(super) async fn unload(
    core: &Arc<Core>,
    request: v1::UnloadAdapterRequest,
) -> Result<v1::UnloadAdapterResponse, Error> {
    let v1::UnloadAdapterRequest { model, name } = request;
    if name.is_empty() {
        return Err(Error::field("name", "must name an adapter"));
    }
    let (model, view) = core.models.unload_adapter(&model, &name).await?;
    Ok(v1::UnloadAdapterResponse { adapter: Some(reply::adapter(&model, &view)) })
}

/// Lists the adapters of every model, or of one.
pub(super) async fn list(core: &Arc<Core>, model: &str) -> Result<v1::ListAdaptersResponse, Error> {
    let views = match model {
        "" => core.models.registry.views(),
        model => vec![core.models.registry.view(&core.models.loaded_name(model).await)?],
    };
    let adapters = views.iter().filter_map(|view| Some((&view.name, view.worker.as_ref()?)));
    let adapters = adapters
        .flat_map(|(model, worker)| worker.adapters.iter().map(move |view| reply::adapter(model, view)));
    Ok(v1::ListAdaptersResponse { adapters: adapters.collect() })
}
