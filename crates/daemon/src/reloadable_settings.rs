//! Current settings of a running daemon. A reload replaces them.

use std::sync::{Arc, Mutex, PoisonError};

use hanzo_engine_access::ServerTls;

use crate::Config;

/// Current settings, and the certificates that are reloaded with them.
#[derive(Clone)]
pub(crate) struct ReloadableSettings {
    pub(crate) now: Arc<Mutex<Config>>,
    pub(crate) tls: Option<Arc<ServerTls>>,
}

impl ReloadableSettings {
    pub(crate) fn new(config: Config, tls: Option<Arc<ServerTls>>) -> ReloadableSettings {
        ReloadableSettings { now: Arc::new(Mutex::new(config)), tls }
    }

    /// Seconds that running requests may take after the shutdown signal.
    pub(crate) fn drain_s(&self) -> u64 {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).server.drain_s
    }
}
