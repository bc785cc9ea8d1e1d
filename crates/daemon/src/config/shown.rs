//! Inspection of a configuration without serving: printing it, and checking its files.

use std::path::Path;

use hanzo_engine_access::Access;
use hanzo_engine_process::settings;
use serde_json::Value;

use super::{Config, ConfigError};

impl Config {
    /// Prints the effective configuration as TOML: defaults, file, environment and flags together. Keys are hidden.
    pub fn print(&self) -> String {
        settings::toml(&self.values())
    }

    /// The configuration as a tree; keys are hidden.
    pub fn values(&self) -> Value {
        // Cannot fail: map keys are strings, and numbers are finite.
        serde_json::to_value(self).unwrap_or_default()
    }

    /// Checks that the files it names can be used: keys, certificates and model files. Nothing is bound, loaded or
    /// changed.
    ///
    /// # Errors
    /// [`ConfigError::File`] with the first file that cannot.
    pub fn check_files(&self) -> Result<(), ConfigError> {
        let refuse = |key: String, reason: String| ConfigError::File { key, reason };
        let keys = Access::open(self.server.access());
        keys.map_err(|error| refuse("server.api_keys_file".to_owned(), error.to_string()))?;
        let tls = self.server.tls().check_files();
        tls.map_err(|error| refuse("server.tls_cert".to_owned(), error.to_string()))?;
        for (at, model) in self.models.iter().enumerate() {
            let read = model.overrides.message();
            read.map_err(|reason| refuse(format!("models.{at}.overrides"), reason))?;
            let draft = model.draft_model.as_ref().map(|source| ("draft_model", source));
            let adapters = model.adapters.values().map(|path| ("adapters", path));
            for (key, path) in [("source", &model.source)].into_iter().chain(draft).chain(adapters) {
                // A relative path may be a name in the store, which may be pulled later.
                if Path::new(path).is_absolute() && !Path::new(path).exists() {
                    return Err(refuse(
                        format!("models.{at}.{key}"),
                        format!("{path}: there is no such file"),
                    ));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::result_large_err, reason = "the closures' error type is figment's")]
mod tests {
    use std::path::Path;

    use figment::Figment;

    use crate::Config;

    #[test]
    fn what_is_printed_is_read_as_the_same_and_hides_keys() {
        figment::Jail::expect_with(|jail| {
            jail.set_env("HANZO_ENGINE_API_KEY", "correct-horse");
            let text = "[server]\ndrain_s = 7\n[engine]\nkeep_alive = \"90s\"\n[[models]]\nsource = \"m\"\n[models.adapters]\n\"a b\" = \"/p\"\n[models.overrides]\nrope_scale = 2.0\n";
            jail.create_file("a.toml", text)?;
            let mut config = Config::load(Some(Path::new("a.toml")), Figment::new()).unwrap();
            let printed = config.print();
            assert!(printed.contains("api_key = \"***\"") && !printed.contains("horse"), "{printed}");
            jail.create_file("b.toml", &printed.replace("api_key = \"***\"\n", ""))?;
            jail.set_env("HANZO_ENGINE_API_KEY", "");
            config.server.api_key = None;
            assert_eq!(Config::load(Some(Path::new("b.toml")), Figment::new()).unwrap(), config);
            Ok(())
        });
    }

    #[test]
    fn files_that_cannot_be_used_are_named_with_their_key() {
        let load = |section: serde_json::Value| {
            let flags = Figment::from(figment::providers::Serialized::defaults(section));
            Config::load(None, flags).unwrap().check_files()
        };
        figment::Jail::expect_with(|_| {
            load(serde_json::json!({"models": [{"source": "a-name"}]})).unwrap();
            for (section, key) in [
                (serde_json::json!({"server": {"api_keys_file": "/no/keys"}}), "server.api_keys_file"),
                (serde_json::json!({"server": {"tls_cert": "/no/c", "tls_key": "/no/k"}}), "server.tls_cert"),
                (serde_json::json!({"models": [{"source": "/no/model.gguf"}]}), "models.0.source"),
                (
                    serde_json::json!({"models": [{"source": "m", "overrides": {"chat_template": "/no/t"}}]}),
                    "models.0.overrides",
                ),
            ] {
                let error = load(section).unwrap_err().to_string();
                assert!(error.starts_with(key) && error.contains("/no/"), "{error}");
            }
            Ok(())
        });
    }
}
