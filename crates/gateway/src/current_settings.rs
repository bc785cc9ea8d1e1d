//! Current settings of a running gateway. A reload replaces them while requests are answered.

use std::{
    ops::Deref,
    sync::{PoisonError, RwLock},
};

use crate::config::Config;

/// Current settings. A reader keeps the version that it got for as long as it wants. Replaced versions are
/// never freed: about a kilobyte for each change by the operator.
#[derive(Debug)]
pub(crate) struct CurrentSettings(RwLock<&'static Config>);

impl CurrentSettings {
    pub(crate) fn new(config: Config) -> CurrentSettings {
        CurrentSettings(RwLock::new(Box::leak(Box::new(config))))
    }

    /// Replaces the settings. Earlier readers keep their version.
    pub(crate) fn replace(&self, next: Config) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Box::leak(Box::new(next));
    }
}

impl Deref for CurrentSettings {
    type Target = Config;

    fn deref(&self) -> &Config {
        *self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}
