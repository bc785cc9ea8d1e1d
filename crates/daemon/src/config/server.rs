//! Settings of the server: addresses, keys, TLS and shutdown.

use std::{net::IpAddr, path::PathBuf};

use hanzo_engine_access::{AccessSettings, Secret, TlsSettings};
use serde::{Deserialize, Serialize};

use crate::limits;

/// Environment variables for the API key; the first that is set is used.
const API_KEY: [&str; 3] = ["HANZO_ENGINE_SERVER_API_KEY", "HANZO_ENGINE_API_KEY", "HANZO_ENGINE_AUTH_TOKEN"];
/// Upper limit of `message_bytes_max`.
const MESSAGE_BYTES_LIMIT: usize = 1 << 30;
/// Upper limit of `connections_max`.
const CONNECTIONS_LIMIT: usize = 1 << 20;

/// Settings of sockets, keys and shutdown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// Address to listen on: an IP address or `localhost`.
    pub host: String,
    /// Names in `Host` that the admin port accepts beside the loopback names. If `host` is a loopback address, only
    /// the loopback names are accepted by default; otherwise any name is, unless some are given here.
    pub allowed_hosts: Vec<String>,
    /// Key that allows everything. In the environment also `HANZO_ENGINE_API_KEY`.
    pub api_key: Option<Secret>,
    /// Path of the key file, with the permissions of each key, written by `hanzo-engine keys`. Reloaded when it
    /// changes.
    pub api_keys_file: Option<PathBuf>,
    /// TLS certificate chain for gRPC: the certificate, then its intermediates; unset: plain text. The files are
    /// reloaded when they change.
    pub tls_cert: Option<PathBuf>,
    /// Private key of the certificate.
    pub tls_key: Option<PathBuf>,
    /// Certificate authorities for clients. A client, such as a gateway, must present a certificate of one of them.
    pub tls_client_ca: Option<PathBuf>,
    /// Allow listening on non-loopback addresses without requiring a key.
    pub insecure: bool,
    /// Require a key for the admin port's `/metrics` too, which shows models and load.
    pub private_metrics: bool,
    /// Export `/metrics` under another engine's names too: `vllm`, whose names Kubernetes' inference gateways read.
    pub metrics_compat: Option<MetricsCompat>,
    /// TCP port of gRPC; 0 picks a free one.
    pub grpc_port: u16,
    /// TCP port of `/metrics`, `/healthz` and `/readyz`; 0 picks a free one.
    pub admin_port: u16,
    /// Seconds that running requests may take after the shutdown signal.
    pub drain_s: u64,
    /// Maximum size of a gRPC message in bytes: enough for the largest picture and its request.
    pub message_bytes_max: usize,
    /// Maximum size of a sound file to transcribe, in bytes.
    pub sound_bytes_max: u64,
    /// Maximum length of such a sound in seconds.
    pub sound_s_max: u64,
    /// Weights of Silero VAD (`silero_vad_16k.safetensors` from its authors) for voice activity detection; unset:
    /// detection by energy.
    pub voice_activity: Option<PathBuf>,
    /// Maximum number of open gRPC connections; more wait in the listener's backlog. One address may hold a quarter
    /// of them.
    pub connections_max: usize,
}

/// Additional naming scheme of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MetricsCompat {
    /// vLLM's names, such as `vllm:num_requests_waiting`.
    Vllm,
}

impl std::str::FromStr for MetricsCompat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "vllm" => Ok(MetricsCompat::Vllm),
            _ => Err(format!("{} is none of vllm", crate::error::quote(text))),
        }
    }
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            allowed_hosts: Vec::new(),
            api_key: None,
            api_keys_file: None,
            tls_cert: None,
            tls_key: None,
            tls_client_ca: None,
            insecure: false,
            private_metrics: false,
            metrics_compat: None,
            grpc_port: 36901,
            admin_port: 36902,
            drain_s: 30,
            message_bytes_max: 32 << 20,
            sound_bytes_max: 25 << 20,
            sound_s_max: 4 * 3600,
            voice_activity: None,
            connections_max: 1024,
        }
    }
}

impl ServerConfig {
    /// The address to bind.
    pub(crate) fn ip(&self) -> Option<IpAddr> {
        parse_host(&self.host).ok()
    }

    /// Settings of access: the keys' sources.
    pub fn access(&self) -> AccessSettings {
        AccessSettings { api_key: self.api_key.clone(), api_keys_file: self.api_keys_file.clone() }
    }

    /// Settings of TLS.
    pub fn tls(&self) -> TlsSettings {
        TlsSettings {
            cert: self.tls_cert.clone(),
            key: self.tls_key.clone(),
            client_ca: self.tls_client_ca.clone(),
        }
    }

    /// Removes keys and TLS. For a daemon that only this process calls.
    pub fn open(&mut self) {
        (self.api_key, self.api_keys_file, self.private_metrics) = (None, None, false);
        (self.tls_cert, self.tls_key, self.tls_client_ca) = (None, None, None);
    }

    /// Checks that every value is in its range; otherwise the key of the first that is not, and the reason.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        let refuse = |key, reason: String| Err((key, reason));
        let Some(ip) = self.ip() else {
            return refuse("server.host", format!("must be an IP address or localhost, not {:?}", self.host));
        };
        if !ip.is_loopback()
            && !self.insecure
            && !self.access().wants_keys()
            && !self.tls().wants_certificates()
        {
            let reason = format!(
                "{} is reached from other machines, and no key is wanted: set server.api_keys_file (--api-keys-file) to \
                 what `hanzo-engine keys create` makes, or server.api_key; or say server.insecure (--insecure) where the \
                 network is private",
                self.host
            );
            return refuse("server.host", reason);
        }
        if let Err(error) = self.tls().check() {
            return refuse("server", error.to_string());
        }
        if !(1..=CONNECTIONS_LIMIT).contains(&self.connections_max) {
            let reason = format!("must be 1 to {CONNECTIONS_LIMIT}, not {}", self.connections_max);
            return refuse("server.connections_max", reason);
        }
        if !(1..=MESSAGE_BYTES_LIMIT).contains(&self.message_bytes_max) {
            let reason = format!("must be 1 to {MESSAGE_BYTES_LIMIT}, not {}", self.message_bytes_max);
            return refuse("server.message_bytes_max", reason);
        }
        if !(1..=limits::SOUND_BYTES_LIMIT).contains(&self.sound_bytes_max) {
            let reason = format!("must be 1 to {}, not {}", limits::SOUND_BYTES_LIMIT, self.sound_bytes_max);
            return refuse("server.sound_bytes_max", reason);
        }
        if !(1..=limits::SOUND_S_LIMIT).contains(&self.sound_s_max) {
            let reason = format!("must be 1 to {}, not {}", limits::SOUND_S_LIMIT, self.sound_s_max);
            return refuse("server.sound_s_max", reason);
        }
        if self.drain_s > limits::DRAIN_S_LIMIT {
            let reason = format!("must be at most {}, not {}", limits::DRAIN_S_LIMIT, self.drain_s);
            return refuse("server.drain_s", reason);
        }
        Ok(())
    }
}

/// Parses a host: an IP address or `localhost`.
///
/// # Errors
/// If the text is neither an IP address nor `localhost`.
pub fn parse_host(text: &str) -> Result<IpAddr, String> {
    if text.eq_ignore_ascii_case("localhost") {
        return Ok(IpAddr::from([127, 0, 0, 1]));
    }
    let address = text.trim_start_matches('[').trim_end_matches(']');
    address.parse().map_err(|_| format!("{text:?} is neither an IP address nor localhost"))
}

/// Reads the key from the environment.
pub(super) fn api_key_of_env() -> Result<Option<Secret>, String> {
    Secret::of_first_env(&API_KEY)
}

#[cfg(test)]
#[expect(clippy::result_large_err, reason = "the closures' error type is figment's")]
mod tests {
    use std::path::Path;

    use figment::{Figment, Jail, providers::Serialized};

    use crate::Config;

    #[test]
    fn a_key_is_read_as_it_is_and_never_shown() {
        Jail::expect_with(|jail| {
            let load = |flags: Figment| Config::load(None, flags);
            // A value that other settings would parse as a number.
            jail.set_env("HANZO_ENGINE_AUTH_TOKEN", "00012345678e5");
            let config = load(Figment::new()).unwrap();
            assert_eq!(config.server.api_key.as_ref().map(|key| key.text()), Some("00012345678e5"));
            assert!(!format!("{config:?}").contains("12345678"));
            jail.set_env("HANZO_ENGINE_API_KEY", "of-everything");
            jail.set_env("HANZO_ENGINE_SERVER_API_KEY", "of-the-daemon");
            let key = load(Figment::new()).unwrap().server.api_key;
            assert_eq!(key.as_ref().map(|key| key.text()), Some("of-the-daemon"));
            let flags = Figment::from(Serialized::default("server.api_key", "of-the-flags"));
            assert_eq!(
                load(flags).unwrap().server.api_key.as_ref().map(|key| key.text()),
                Some("of-the-flags")
            );
            jail.set_env("HANZO_ENGINE_SERVER_API_KEY", "tiny");
            let error = load(Figment::new()).unwrap_err().to_string();
            assert!(error.contains("HANZO_ENGINE_SERVER_API_KEY") && !error.contains("tiny"), "{error}");
            Ok(())
        });
    }

    #[test]
    fn other_machines_need_a_key_or_a_word() {
        Jail::expect_with(|jail| {
            jail.create_file("open.toml", "[server]\nhost = \"::\"\n")?;
            jail.create_file("said.toml", "[server]\nhost = \"::\"\ninsecure = true\n")?;
            jail.create_file("keyed.toml", "[server]\nhost = \"::\"\napi_keys_file = \"keys.json\"\n")?;
            let load = |name: &str| Config::load(Some(Path::new(name)), Figment::new());
            let error = load("open.toml").unwrap_err().to_string();
            assert!(error.contains("--insecure") && error.contains("keys create"), "{error}");
            assert!(load("said.toml").is_ok() && load("keyed.toml").is_ok());
            jail.set_env("HANZO_ENGINE_API_KEY", "");
            assert!(load("open.toml").is_err());
            jail.set_env("HANZO_ENGINE_API_KEY", "long-enough");
            assert!(load("open.toml").is_ok());
            Ok(())
        });
    }
}
