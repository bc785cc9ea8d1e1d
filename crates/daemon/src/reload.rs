//! Reload of settings while models are served: applies those that can change, and names the others.

use std::sync::PoisonError;

use hanzo_engine_process::settings::{DeclaredSettings as _, SettingsChange};

use crate::{Config, DaemonError, daemon::DaemonHandle};

impl DaemonHandle {
    /// Applies the settings of `read` that can change while models are served: keys, the drain's time, and the
    /// options of later loads. The caller sets the log level. Reloads the files of keys and certificates. Must be
    /// called within an async runtime.
    ///
    /// # Errors
    /// [`DaemonError`] if the new settings are invalid; nothing is changed then.
    pub fn reload(&self, read: &Config) -> Result<SettingsChange, DaemonError> {
        let settings = self.settings();
        let mut now = settings.now.lock().unwrap_or_else(PoisonError::into_inner);
        let next = now.reloaded(read);
        next.check()?;
        self.access().set(next.server.access())?;
        if let Some(tls) = &settings.tls {
            tls.reload();
        }
        let section = &self.core().models.section;
        *section.write().unwrap_or_else(PoisonError::into_inner) = next.engine.clone();
        let mut changed = SettingsChange::between(&now.values(), &next.values(), &read.values());
        if now.server.api_key.is_some()
            && next.server.api_key.is_some()
            && now.server.api_key != next.server.api_key
        {
            // Both are shown only as hidden, so the comparison above misses the change.
            changed.taken.push("server.api_key".to_owned());
        }
        *now = next;
        Ok(changed)
    }
}
