//! Access to the store's pulls: one puller, created on first use.

use std::{
    path::Path,
    sync::{Arc, OnceLock},
};

use hanzo_engine_runtime::OpenedModel;
use hanzo_engine_store::{Description, Inspect, PullError, PullTotals, Puller, Store, StoreSettings};

use crate::error::Error;

/// Puller of a daemon, created on first use.
pub(crate) struct Pulls {
    store: Option<Store>,
    /// Reason why there is no store.
    store_missing: String,
    puller: OnceLock<Puller>,
}

impl Pulls {
    pub(crate) fn new(store: Option<Store>, store_missing: String) -> Self {
        Self { store, store_missing, puller: OnceLock::new() }
    }

    /// Returns the puller.
    ///
    /// # Errors
    /// [`Error::NoStore`]; [`Error::Pull`] if settings in the environment are invalid.
    pub(crate) fn puller(&self) -> Result<Puller, Error> {
        if let Some(puller) = self.puller.get() {
            return Ok(puller.clone());
        }
        let no_store = || Error::NoStore { reason: self.store_missing.clone() };
        let made = puller(self.store.clone().ok_or_else(no_store)?)?;
        // If two were created at once, all callers use the first.
        Ok(self.puller.get_or_init(|| made).clone())
    }

    /// Totals of all pulls of this daemon.
    pub(crate) fn totals(&self) -> PullTotals {
        self.puller.get().map(Puller::totals).unwrap_or_default()
    }

    /// Stops every pull. Fetched parts stay on disk for the next daemon.
    pub(crate) fn close(&self) {
        if let Some(puller) = self.puller.get() {
            puller.close();
        }
    }
}

/// Creates a puller into `store`, configured from the environment, which inspects pulled models with this program's
/// runtime. For programs that open the store without a daemon.
///
/// # Errors
/// [`PullError::Setting`] for an invalid variable, [`PullError::Internal`].
pub fn puller(store: Store) -> Result<Puller, PullError> {
    Puller::new(store, StoreSettings::from_env()?, Some(inspect()))
}

/// Function that inspects a model's files.
pub(crate) fn inspect() -> Inspect {
    Arc::new(|path: &Path| describe(path))
}

/// Inspects a model's files.
fn describe(path: &Path) -> Result<Description, String> {
    let info = OpenedModel::open(path).map_err(|error| error.to_string())?.info().clone();
    Ok(Description {
        format: info.format.to_owned(),
        architecture: info.architecture,
        quantization: info.quantization,
        parameters: info.parameters,
        context_tokens_max: info.context_tokens_max,
        license: info.license,
    })
}
