//! Reload of settings while requests are answered: changes that can be applied are, and the others are
//! reported.

use std::sync::Arc;

use hanzo_engine_access::ServerTls;
use hanzo_engine_process::settings::{DeclaredSettings as _, SettingsChange};

use crate::{app::App, config::Config, error::GatewayError};

/// Handle to reload the settings of a running gateway.
#[derive(Clone, Debug)]
pub struct Reload {
    pub(crate) app: Arc<App>,
    pub(crate) tls: Option<Arc<ServerTls>>,
}

impl Reload {
    /// Applies what can change of `read`: keys, and limits of requests, connections and the drain. The caller
    /// sets the log level. Key and certificate files are read again. Must run in an async runtime.
    ///
    /// # Errors
    /// [`GatewayError`] if the resulting settings are invalid. Then everything stays as it was.
    pub fn reload(&self, read: Config) -> Result<SettingsChange, GatewayError> {
        let now: &Config = &self.app.config;
        let next = now.reloaded(&read).checked()?;
        self.app.access.set(next.access())?;
        if let Some(tls) = &self.tls {
            tls.reload();
        }
        let mut changed = SettingsChange::between(&now.values(), &next.values(), &read.values());
        if now.api_key.is_some() && next.api_key.is_some() && now.api_key != next.api_key {
            // Both versions are shown as hidden, so the comparison does not see the change.
            changed.taken.push("api_key".to_owned());
        }
        if *now != next {
            self.app.config.replace(next);
        }
        Ok(changed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hanzo_engine_access::Access;
    use serde_json::json;

    use super::Reload;
    use crate::{app::App, config::Config, engine::Engine};

    #[tokio::test]
    async fn limits_and_keys_are_taken_and_the_rest_is_named() {
        let config = |flags| Config::load(None, flags).unwrap();
        let first = config(json!({"api_key": "first-key-of-it"}));
        let engine = Engine::connect_lazy(&first.engine, None, &first.engine_tls()).unwrap();
        let access = Arc::new(Access::open(first.access()).unwrap());
        let app = Arc::new(App::new(first, engine, access).unwrap());
        let reload = Reload { app: app.clone(), tls: None };
        let before: &Config = &app.config;

        let read = config(json!({"api_key": "other-key-of-it", "choices_max": 3, "port": 1, "drain_s": 5}));
        let changed = reload.reload(read.clone()).unwrap();
        assert_eq!(changed.taken, ["choices_max", "drain_s", "api_key"]);
        assert_eq!(changed.at_restart, ["port"]);
        assert_eq!((app.config.choices_max, app.config.drain_s, app.config.port), (3, 5, 36900));
        assert_eq!(before.choices_max, Config::default().choices_max, "who looked before has what held then");

        let wrong = Config { api_keys_file: Some("/no/such/file".into()), choices_max: 9, ..read };
        assert!(reload.reload(wrong).unwrap_err().to_string().contains("/no/such/file"));
        assert_eq!(app.config.choices_max, 3);
    }
}
