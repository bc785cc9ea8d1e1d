//! Loading and unloading of LoRA adapters: how one is opened, charged to the memory budget and handed to the
//! worker.

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use hanzo_engine_runtime::{Adapter, AdapterBase, BaseWeights, LoadError};
use tokio::sync::oneshot;

use crate::{
    adapters::{WantedAdapter, WantedAdapters},
    blocking::blocking,
    budget::Reservation,
    error::{Error, Failure, FailureReason},
    limits::ADAPTER_NAME_BYTES_MAX,
    models::{Models, SHUTTING_DOWN},
    registry::Capability,
    served::ServedModel,
    unix_time::now_unix_ms,
    views::AdapterView,
    worker::{AdapterOrder, NotGiven, WorkItem},
};

impl Models {
    /// Loads an adapter into a model and waits until requests may name it. If the same files are already loaded
    /// under that name, answers with that adapter.
    ///
    /// # Errors
    /// An invalid name or file, or memory that the budget does not have. Nothing is kept then.
    pub(crate) async fn load_adapter(
        &self,
        asked: &str,
        wanted: WantedAdapter,
    ) -> Result<(String, AdapterView), Error> {
        check_name(&wanted.name)?;
        let served = self.loaded(asked, Capability::Generate).await?;
        let rows = served.must_generate()?.step_tokens_max;
        let Some(spec) = served.spec.clone() else { return Err(served.cannot("take adapters")) };
        let mut buffers = served.adapters.loads.lock().await;
        let path = wanted.path.clone();
        let (of, files) = (spec.clone(), served.files.clone());
        let (path, adapter) = blocking(move || {
            let again = || Ok(files.open()?.into_decoder().map(BaseWeights::from));
            open(&path, &AdapterBase::reopened(&of, &again))
        })
        .await?;
        if let Some((view, handle)) = served.adapters.get(&wanted.name) {
            if handle.digest == adapter.digest {
                return Ok((served.name.clone(), view));
            }
            let loaded_from = view.path.display().to_string();
            return Err(Error::AdapterTaken { name: view.name, model: served.name.clone(), loaded_from });
        }
        let own = [served.planner.adapter_memory(&spec, &adapter, rows)].into_iter();
        let others = served.planner.adapter_memory_beside(&spec, &adapter, rows);
        let (bytes, buffer_bytes): (Vec<u64>, Vec<u64>) = own.chain(others).unzip();
        if buffers.is_none() {
            *buffers = Some(self.reserve(&served, &wanted.name, &buffer_bytes)?);
        }
        let kept = self.reserve(&served, &wanted.name, &bytes)?;
        let view = AdapterView {
            name: wanted.name.clone(),
            path,
            format: adapter.format,
            rank: adapter.rank,
            bytes: bytes.iter().sum(),
            loaded_at_unix_ms: now_unix_ms(),
        };
        let (reply, replied) = oneshot::channel();
        let order = AdapterOrder { adapter: Box::new(adapter), kept, reply };
        served.worker.give(WorkItem::Adapter(order), Instant::now()).map_err(|error| match error {
            NotGiven::Full => served.queue_full(),
            NotGiven::Left => Error::Stopped { what: "the model's worker ended" },
        })?;
        let loaded = replied.await.map_err(|_| Error::Stopped { what: SHUTTING_DOWN })?;
        let handle = loaded.map_err(|error| Error::Adapter(Failure::new(error)))?;
        served.adapters.add(wanted, view.clone(), handle);
        tracing::info!(
            model = served.name,
            adapter = view.name,
            rank = view.rank,
            memory_bytes = view.bytes,
            "adapter loaded"
        );
        Ok((served.name.clone(), view))
    }

    /// Reserves memory in the model's place (the first element of `bytes`) and in each place beside it (the
    /// others).
    fn reserve(&self, served: &ServedModel, adapter: &str, bytes: &[u64]) -> Result<Reservation, Error> {
        let in_place = |place, bytes| self.reserve_in(place, &served.name, adapter, bytes);
        let (own, others) = bytes.split_first().expect("a model has a place");
        let own = in_place(served.place, *own)?;
        let others = served.beside.iter().zip(others);
        others.map(|(&place, &bytes)| in_place(place, bytes)).try_fold(own, |own, other| Ok(own.with(other?)))
    }

    fn reserve_in(&self, place: usize, model: &str, adapter: &str, bytes: u64) -> Result<Reservation, Error> {
        let reserved = self.places[place].budget.reserve(|free_bytes| match bytes <= free_bytes {
            true => Ok((bytes, ())),
            false => Err(LoadError::DoesNotFit {
                model: format!("adapter {model}:{adapter}"),
                needed_bytes: bytes,
                weights_bytes: bytes,
                kv_bytes: 0,
                scratch_bytes: 0,
                free_bytes,
                hint: "; unload another adapter or a model, or load the model with less kv_bytes".to_owned(),
            }),
        });
        Ok(reserved.map_err(|error| Error::Adapter(Failure::new(error)))?.0)
    }

    /// Removes an adapter from a model. New requests for it are refused; those that run with it finish.
    ///
    /// # Errors
    /// [`Error::NoAdapter`], or [`Error::Loading`] while it is being restored.
    pub(crate) async fn unload_adapter(
        &self,
        asked: &str,
        name: &str,
    ) -> Result<(String, AdapterView), Error> {
        let served = self.loaded(asked, Capability::Any).await?;
        let Some((view, handle)) = served.adapters.remove(name) else {
            return Err(served.adapter(name).err().unwrap_or(Error::Stopped { what: SHUTTING_DOWN }));
        };
        drop(handle);
        // Wake an idle worker so that it frees the adapter too.
        served.worker.waker().wake_by_ref();
        tracing::info!(model = served.name, adapter = view.name, "adapter unloaded");
        Ok((served.name.clone(), view))
    }

    /// Reloads the adapters that a failed worker had.
    pub(crate) async fn restore_adapters(&self, model: &str, wanted: &WantedAdapters) {
        for adapter in wanted.all() {
            let name = adapter.name.clone();
            if let Err(error) = self.load_adapter(model, adapter).await {
                wanted.give_up(&name);
                tracing::error!(model, adapter = name, %error, "an adapter did not come back with its model");
            }
        }
    }
}

fn check_name(name: &str) -> Result<(), Error> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/');
    if name.is_empty() || name.len() > ADAPTER_NAME_BYTES_MAX || !name.bytes().all(plain) {
        let reason =
            format!("must be 1 to {ADAPTER_NAME_BYTES_MAX} of letters, digits, and - _ . / without others");
        return Err(Error::field("name", reason));
    }
    Ok(())
}

fn open(path: &str, base: &AdapterBase<'_>) -> Result<(PathBuf, Adapter), Error> {
    if path.is_empty() {
        let reason =
            "must be a directory that PEFT has saved, or a GGUF file of an adapter, on the daemon's machine";
        return Err(Error::field("path", reason));
    }
    let path = Path::new(path.strip_prefix("file://").unwrap_or(path));
    let failed = |error: LoadError| Error::Adapter(Failure::new(FailureReason::Load(error)));
    let path =
        path.canonicalize().map_err(|source| failed(LoadError::Io { path: path.to_owned(), source }))?;
    let adapter = Adapter::open(&path, base).map_err(failed)?;
    Ok((path, adapter))
}
