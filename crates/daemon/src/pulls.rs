//! The daemon's way to the store's pulls: one puller, made when somebody first asks for it.

use std::{
    path::Path,
    sync::{Arc, OnceLock},
};

use hanzo_engine_runtime::Opened;
use hanzo_engine_store::{Description, Inspect, PullError, PullTotals, Puller, Settings, Store};

use crate::error::Error;

/// See the module.
pub(crate) struct Pulls {
    store: Option<Store>,
    /// Why there is no store.
    store_missing: String,
    puller: OnceLock<Puller>,
}

impl Pulls {
    pub(crate) fn new(store: Option<Store>, store_missing: String) -> Self {
        Self { store, store_missing, puller: OnceLock::new() }
    }

    /// The puller.
    ///
    /// # Errors
    /// [`Error::NoStore`]; [`Error::Pull`] when the environment's settings cannot be read.
    pub(crate) fn puller(&self) -> Result<Puller, Error> {
        if let Some(puller) = self.puller.get() {
            return Ok(puller.clone());
        }
        let no_store = || Error::NoStore { reason: self.store_missing.clone() };
        let made = puller(self.store.clone().ok_or_else(no_store)?)?;
        // Of two that were made at once, the first is everybody's.
        Ok(self.puller.get_or_init(|| made).clone())
    }

    /// What has become of all pulls of this daemon.
    pub(crate) fn totals(&self) -> PullTotals {
        self.puller.get().map(Puller::totals).unwrap_or_default()
    }

    /// Ends every pull. What they fetched stays on the disk for the next daemon.
    pub(crate) fn close(&self) {
        if let Some(puller) = self.puller.get() {
            puller.close();
        }
    }
}

/// A puller into `store` that is set as the environment says, and reads what it pulled with this program's runtime.
/// For whoever opens the store without a daemon.
///
/// # Errors
/// [`PullError::Setting`] for a variable that cannot be read, [`PullError::Internal`].
pub fn puller(store: Store) -> Result<Puller, PullError> {
    Puller::new(store, Settings::from_env()?, Some(inspect()))
}

/// Reads what a model's files say of it.
pub(crate) fn inspect() -> Inspect {
    Arc::new(|path: &Path| describe(path))
}

/// What a model's files say of it.
fn describe(path: &Path) -> Result<Description, String> {
    let info = Opened::open(path).map_err(|error| error.to_string())?.info().clone();
    Ok(Description {
        format: info.format.to_owned(),
        architecture: info.architecture,
        quantization: info.quantization,
        parameters: info.parameters,
        context_tokens_max: info.context_tokens_max,
        license: info.license,
    })
}
