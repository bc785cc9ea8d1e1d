//! Choice of the model and the adapter that a request names.

use std::sync::Arc;

use hanzo_engine_runtime::LoadedAdapter;
use hanzo_engine_store::ModelLookup;
use tokio::sync::broadcast::error::RecvError;

use crate::{
    config::OnDemand,
    error::Error,
    load_request::LoadRequest,
    models::{Models, SHUTTING_DOWN},
    name_key::key,
    on_demand::Demand,
    registry::{Capability, InUse},
    served::ServedModel,
};

/// Model chosen for a request, with the adapter to apply.
pub(crate) struct ChosenModel {
    pub(crate) served: InUse,
    pub(crate) adapter: Option<ChosenAdapter>,
}

/// Adapter to apply to a request.
pub(crate) struct ChosenAdapter {
    pub(crate) name: String,
    pub(crate) handle: Arc<LoadedAdapter>,
}

impl ChosenModel {
    /// Name of the responding model: `model`, or `model:adapter`.
    pub(crate) fn name(&self) -> String {
        match &self.adapter {
            Some(adapter) => format!("{}:{}", self.served.name, adapter.name),
            None => self.served.name.clone(),
        }
    }
}

impl ServedModel {
    /// Looks up a loaded adapter by name.
    ///
    /// # Errors
    /// [`Error::NoAdapter`]; [`Error::Loading`] for an adapter that is still being restored after a restart.
    pub(crate) fn adapter(&self, name: &str) -> Result<ChosenAdapter, Error> {
        match self.adapters.get(name) {
            Some((view, handle)) => Ok(ChosenAdapter { name: view.name, handle }),
            None if self.adapters.wanted.has(name) => Err(Error::Loading {
                name: format!("{}:{name}", self.name),
                percent: 0,
                waits: false,
                retry_after_ms: None,
            }),
            None => Err(Error::NoAdapter {
                model: self.name.clone(),
                asked: name.to_owned(),
                loaded: self.adapters.names(),
            }),
        }
    }
}

impl Models {
    /// Resolves the model and the adapter that a request names. A non-empty `adapter` is looked up in the model.
    /// Otherwise the order is: a loaded model named exactly `asked`; `model:adapter`, if that model has or will
    /// have the adapter; a stored model named `asked`; an adapter name that only one model has.
    pub(crate) async fn chosen(
        self: &Arc<Self>,
        asked: &str,
        adapter: &str,
        wanted: Capability,
        demand: Demand<'_>,
    ) -> Result<ChosenModel, Error> {
        if !adapter.is_empty() {
            return self.with_adapter(asked, adapter, wanted, demand).await;
        }
        let name = self.loaded_name(asked).await;
        if !self.registry.has(&name) {
            if let Some((base, adapter)) =
                asked.rsplit_once(':').filter(|(base, name)| !base.is_empty() && !name.is_empty())
            {
                let base = self.loaded_name(base).await;
                // `base` may match only part of a loaded model's name. Check first whether `asked` is a known
                // model.
                let there = self.registry.has(&base);
                if self.has_adapter(&base, adapter) || (there && !self.knows(asked).await) {
                    return self.with_adapter(&base, adapter, wanted, demand).await;
                }
            } else if let Some(chosen) = self.only_adapter(asked) {
                return Ok(chosen);
            } else if let Some(base) = self.only_coming_with(asked)
                && !self.knows(asked).await
            {
                return self.with_adapter(&base, asked, wanted, demand).await;
            }
        }
        Ok(ChosenModel { served: self.serving(asked, wanted, demand).await?, adapter: None })
    }

    /// Resolves a model with one of its adapters. With on-demand loading, waits for an adapter that is loaded
    /// together with its model.
    async fn with_adapter(
        self: &Arc<Self>,
        base: &str,
        adapter: &str,
        wanted: Capability,
        demand: Demand<'_>,
    ) -> Result<ChosenModel, Error> {
        let coming = async {
            loop {
                let served = self.serving(base, wanted, demand).await?;
                let wanted = served.adapters.wanted.clone();
                let mut change = std::pin::pin!(wanted.changed());
                change.as_mut().enable();
                let mut changes = self.registry.changes();
                match served.adapter(adapter) {
                    Ok(adapter) => return Ok(ChosenModel { served, adapter: Some(adapter) }),
                    Err(Error::Loading { .. }) if self.section().on_demand != OnDemand::Never => {}
                    Err(error) => return Err(error),
                }
                // The worker may end meanwhile; the adapter is then loaded with the next worker.
                tokio::select! {
                    () = change => {}
                    change = changes.recv() => {
                        if let Err(RecvError::Closed) = change {
                            return Err(Error::Stopped { what: SHUTTING_DOWN });
                        }
                    }
                }
            }
        };
        match demand.by {
            Some(by) => tokio::time::timeout_at(by.into(), coming).await.unwrap_or_else(|_| {
                let name = format!("{base}:{adapter}");
                Err(Error::Loading { name, percent: 0, waits: false, retry_after_ms: None })
            }),
            None => coming.await,
        }
    }

    /// Checks whether a model has an adapter or is configured to load it.
    fn has_adapter(&self, base: &str, adapter: &str) -> bool {
        match self.registry.all_serving().into_iter().find(|served| key(&served.name) == key(base)) {
            Some(served) => served.adapters.get(adapter).is_some() || served.adapters.wanted.has(adapter),
            None => self.configured(base).is_some_and(|request| comes_with(request, adapter)),
        }
    }

    /// Name of the only configured model, not loaded yet, that comes with this adapter. Nothing if several do.
    fn only_coming_with(&self, adapter: &str) -> Option<String> {
        if self.section().on_demand == OnDemand::Never {
            return None;
        }
        let mut found = self.configured.iter().filter(|request| comes_with(request, adapter));
        let request = found.next().filter(|_| found.next().is_none())?;
        Some(request.alias.clone().unwrap_or_else(|| request.source.clone()))
    }

    /// Checks whether a name is a model's, in the configuration or in the store's index. No model file is opened.
    async fn knows(&self, asked: &str) -> bool {
        if self.configured(asked).is_some() {
            return true;
        }
        let asked = asked.to_owned();
        let found = self.with_store(move |store| store.resolve(&asked)).await;
        matches!(found, Ok(ModelLookup::Stored(_)))
    }

    /// Finds an adapter by name if exactly one model has it.
    fn only_adapter(&self, name: &str) -> Option<ChosenModel> {
        let mut found =
            self.registry.all_serving().into_iter().filter(|served| served.adapters.get(name).is_some());
        let served = found.next().filter(|_| found.next().is_none())?;
        let served = self.registry.serving(&served.name, Capability::Any).ok()?;
        let adapter = served.adapter(name).ok()?;
        Some(ChosenModel { served, adapter: Some(adapter) })
    }
}

fn comes_with(request: &LoadRequest, adapter: &str) -> bool {
    request.adapters.iter().any(|wanted| key(&wanted.name) == key(adapter))
}
