//! The calls Load, Unload, List, Show and Remove.

use std::{sync::Arc, time::Instant};

use hanzo_engine_proto::v1;
use hanzo_engine_store::{StoreError, derive_name};
use tonic::Request;

use super::{Core, answer_by, deadline, within};
use crate::{
    DEMO_MODEL,
    blocking::blocking,
    convert::{reply, request},
    error::{Error, Failure},
    name_key::key,
    source::{ArgumentMatch, ModelSource, find},
    views::ModelView,
};

/// Loads a model. The load continues after the caller's deadline.
pub(super) async fn load(
    core: &Arc<Core>,
    request: Request<v1::LoadRequest>,
) -> Result<v1::LoadResponse, Error> {
    let _active = core.drain.enter()?;
    let by = answer_by(deadline(&request, Instant::now())?);
    let request = request::load(request.into_inner())?;
    let context_asked = request.want.context_tokens_max;
    let (view, time) = within(by, core.models.load(request)).await?;
    let load_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let model = reply::model_status(&view);
    // A KV cache that is smaller than requested fails the load. A context longer than the model's is cut with a
    // warning.
    let clamped = match context_asked {
        Some(asked) if view.worker.is_some() && asked > model.context_tokens_max => format!(
            "context_tokens_max: {asked} were asked for; this model's context is {}",
            model.context_tokens_max
        ),
        _ => String::new(),
    };
    Ok(v1::LoadResponse { model: Some(model), load_ms, clamped })
}

/// Unloads a model. This continues after the caller's deadline too.
pub(super) async fn unload(
    core: &Arc<Core>,
    request: Request<v1::UnloadRequest>,
) -> Result<v1::UnloadResponse, Error> {
    let by = answer_by(deadline(&request, Instant::now())?);
    let v1::UnloadRequest { model, force } = request.into_inner();
    let view = within(by, core.models.unload(&model, force)).await?;
    Ok(v1::UnloadResponse { model: Some(reply::model_status(&view)) })
}

/// Lists the store's models, and those loaded from elsewhere.
pub(super) async fn list(core: &Arc<Core>) -> Result<v1::ListResponse, Error> {
    let listing = match core.models.with_store(|store| store.list()).await {
        Err(Error::NoStore { .. }) => Default::default(),
        other => other?,
    };
    for corrupt in &listing.corrupt {
        tracing::warn!(model = corrupt.name, why = corrupt.why, "a record of the store is corrupt");
    }
    let loaded: Vec<ModelView> =
        core.models.registry.views().into_iter().filter(|view| view.worker.is_some()).collect();
    let is_of = |view: &ModelView, path| matches!(&view.source, ModelSource::Path(own) if own == path);
    let stored = listing.models.iter();
    let mut models: Vec<v1::StoredModel> = stored
        .map(|record| reply::stored_model(record, loaded.iter().any(|view| is_of(view, &record.path))))
        .collect();
    let elsewhere =
        loaded.iter().filter(|view| !listing.models.iter().any(|record| is_of(view, &record.path)));
    models
        .extend(elsewhere.map(|view| {
            reply::unstored_model(&view.name, view.info.as_ref(), &view.source.describe(), true)
        }));
    models.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(v1::ListResponse { models })
}

/// Describes a model by its served name, its name in the store, or a path. Nothing is registered.
pub(super) async fn show(core: &Arc<Core>, request: v1::ShowRequest) -> Result<v1::ShowResponse, Error> {
    let v1::ShowRequest { model: asked, known_only } = request;
    let view = core.models.registry.view(&core.models.loaded_name(&asked).await).ok();
    let store = core.models.store.clone();
    blocking(move || {
        let (name, source) = match &view {
            Some(view) => (view.name.clone(), view.source.clone()),
            None => match find(&asked, store.as_ref(), known_only)? {
                ArgumentMatch::Known(resolved) => (resolved.name, resolved.source),
                ArgumentMatch::Path(path) => (derive_name(&path), ModelSource::Path(path)),
            },
        };
        let record = match (&store, &source) {
            (Some(store), ModelSource::Path(path)) => store.find_path(path)?,
            _ => None,
        };
        let files = match (source.open(), &record) {
            (Ok(files), _) => Some(files),
            // A record may outlive its files; their details are then missing.
            (Err(_), Some(_)) => None,
            (Err(error), None) => return Err(Error::Load(Failure::new(error))),
        };
        Ok(reply::show(&name, &source.describe(), record.as_ref(), files.as_ref(), view.as_ref()))
    })
    .await
}

/// Removes a model from the store. If it is loaded, it stays loaded.
pub(super) async fn remove(core: &Arc<Core>, asked: String) -> Result<v1::RemoveResponse, Error> {
    if asked.is_empty() {
        return Err(Error::field("model", "must name a model in the store"));
    }
    let views = core.models.registry.views();
    // Models that List shows although the store has no record of them.
    let unstored = if asked.eq_ignore_ascii_case(DEMO_MODEL) {
        Some(Error::BuiltIn { name: DEMO_MODEL })
    } else {
        let loaded = views.iter().find(|view| view.worker.is_some() && key(&view.name) == key(&asked));
        loaded.map(|view| Error::NotStored { name: view.name.clone(), source_loaded: view.source.describe() })
    };
    let removed =
        core.models.with_store(move |store| store.remove(&asked)).await.map_err(|error| match error {
            Error::Store(inner) if matches!(*inner, StoreError::BadName { .. }) => {
                Error::field("model", inner.to_string())
            }
            Error::Store(inner) if matches!(*inner, StoreError::NotFound { .. }) => {
                unstored.unwrap_or(Error::Store(inner))
            }
            Error::NoStore { reason } => unstored.unwrap_or(Error::NoStore { reason }),
            other => other,
        })?;
    let model = match &removed.record {
        Some(record) => {
            let source = ModelSource::Path(record.path.clone());
            reply::stored_model(
                record,
                views.iter().any(|view| view.worker.is_some() && view.source == source),
            )
        }
        None => reply::unstored_model(&removed.name, None, "", false),
    };
    let alias_of = removed.alias_of.unwrap_or_default();
    Ok(v1::RemoveResponse { model: Some(model), freed_bytes: removed.freed_bytes, alias_of })
}
