//! Reload of settings while models are served: applies those that can change, and names the others.

use std::sync::PoisonError;

use hanzo_engine_process::settings::SettingsChange;

use crate::{
    Config, DaemonError,
    config::{EngineSection, LogConfig, ServerConfig},
    daemon::DaemonHandle,
};

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
        let next = taken(&now, read);
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

/// Returns `now` with the reloadable settings of `read`.
fn taken(now: &Config, read: &Config) -> Config {
    let (server, engine) = (read.server.clone(), read.engine.clone());
    Config {
        server: ServerConfig {
            api_key: server.api_key,
            api_keys_file: server.api_keys_file,
            insecure: server.insecure,
            drain_s: server.drain_s,
            ..now.server.clone()
        },
        engine: EngineSection {
            context_tokens_max: engine.context_tokens_max,
            queue_requests_max: engine.queue_requests_max,
            sequences_max: engine.sequences_max,
            step_tokens_max: engine.step_tokens_max,
            kv_bytes: engine.kv_bytes,
            kv_type: engine.kv_type,
            gpu_layers: engine.gpu_layers,
            split_mode: engine.split_mode,
            prefix_cache: engine.prefix_cache,
            context_shift: engine.context_shift,
            picture_pixels: engine.picture_pixels,
            picture_pixels_max: engine.picture_pixels_max,
            speculation: engine.speculation,
            on_demand: engine.on_demand,
            keep_alive: engine.keep_alive,
            ..now.engine.clone()
        },
        log: LogConfig { level: read.log.level.clone(), ..now.log.clone() },
        ..now.clone()
    }
}
