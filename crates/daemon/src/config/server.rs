//! Settings of the server: addresses, keys, TLS and shutdown.

use std::{net::IpAddr, path::PathBuf};

use hanzo_engine_access::{AccessSettings, Secret, TlsSettings};
use hanzo_engine_process::{
    settings,
    settings::{EngineDaemon, SAME, Serve, parse_host, parser, text},
};
use serde::{Deserialize, Serialize};

use crate::limits;

/// Upper limit of `message_bytes_max`.
const MESSAGE_BYTES_LIMIT: u64 = 1 << 30;
/// Upper limit of `connections_max`.
const CONNECTIONS_LIMIT: u64 = 1 << 20;

settings! {
    /// Settings of sockets, keys and shutdown.
    pub struct ServerConfig("server.") {
        /// Address to listen on: an IP address or `localhost`.
        host: String = "127.0.0.1".to_owned() => engined("", "Address to listen on")
            .flag::<Serve>("ADDRESS", "Address to listen on; 0.0.0.0 for all [default: 127.0.0.1]",
                           |arg| arg.value_parser(parser(parse_host)));
        /// Names in `Host` that the admin port accepts beside the loopback names. If `host` is a loopback address, only
        /// the loopback names are accepted by default; otherwise any name is, unless some are given here.
        allowed_hosts: Vec<String> = Vec::new() => named("allowed-host")
            .serve("NAME", "Name accepted in the Host header besides localhost, such as a proxy's; repeatable")
            .example(["engine.example.com"]);
        /// Key that allows everything. In the environment also `HANZO_ENGINE_API_KEY`.
        api_key: Option<Secret> = None => reloaded()
            .secret(&["HANZO_ENGINE_SERVER_API_KEY", "HANZO_ENGINE_API_KEY", "HANZO_ENGINE_AUTH_TOKEN"])
            .flag::<EngineDaemon>("KEY", "Key that every call must have; better set as HANZO_ENGINE_API_KEY, which \
                                          process lists do not show", text)
            .flag::<Serve>("KEY", "Key that every request must have; better set as HANZO_ENGINE_API_KEY, which \
                                   process lists do not show", text).example("a-key-of-8-characters-or-more");
        /// Path of the key file, with the permissions of each key, written by `hanzo-engine keys`. Reloaded when it
        /// changes.
        api_keys_file: Option<PathBuf> = None => reloaded()
            .engined("FILE", "File of keys with their permissions, as written by `hanzo-engine keys create`; \
                              reloaded when it changes").serve("FILE", SAME).example("/etc/hanzo-engine/keys.json");
        /// TLS certificate chain for gRPC: the certificate, then its intermediates; unset: plain text. The files are
        /// reloaded when they change.
        tls_cert: Option<PathBuf> = None
            => engined("FILE", "TLS certificate chain for gRPC (PEM: the certificate, then its intermediates); \
                                reloaded when it changes")
            .serve("FILE", "TLS certificate chain for HTTPS and gRPC (PEM, with intermediates); reloaded when it \
                            changes").example("/etc/hanzo-engine/cert.pem");
        /// Private key of the certificate.
        tls_key: Option<PathBuf> = None
            => engined("FILE", "Private key of the certificate (PEM)").serve("FILE", SAME)
            .example("/etc/hanzo-engine/key.pem");
        /// Certificate authorities for clients. A client, such as a gateway, must present a certificate of one of them.
        tls_client_ca: Option<PathBuf> = None
            => engined("FILE", "Certificate authorities for clients (PEM): a client, such as a gateway, must present \
                                a certificate of one of them")
            .serve("FILE", "Certificate authorities for clients (PEM): a client must present a certificate of one of \
                            them").example("/etc/hanzo-engine/clients.pem");
        /// Allow listening on non-loopback addresses without requiring a key.
        insecure: bool = false => reloaded()
            .engined("", "Listen on non-loopback addresses without a key; for private networks only").serve("", SAME);
        /// Require a key for the admin port's `/metrics` too, which shows models and load.
        private_metrics: bool = false => engined("", "Require a key for the admin port's /metrics too")
            .serve("", "Require a key for /metrics, /health and /version too");
        /// Export `/metrics` under another engine's names too: `vllm`, whose names Kubernetes' inference gateways read.
        metrics_compat: Option<MetricsCompat> = None
            => engined("ENGINE", "Export /metrics under another engine's names too: vllm")
            .serve("ENGINE", "Export the admin port's /metrics under another engine's names too: vllm")
            .example("vllm");
        /// TCP port of gRPC; 0 picks a free one.
        grpc_port: u16 = 36901
            => engined("", "Port of gRPC; 0 for any free one [default: 36901]").serve("PORT", SAME);
        /// TCP port of `/metrics`, `/healthz` and `/readyz`; 0 picks a free one.
        admin_port: u16 = 36902
            => engined("", "Port of /metrics, /healthz and /readyz; 0 for any free one [default: 36902]")
            .serve("PORT", SAME);
        /// Seconds that running requests may take after the shutdown signal.
        drain_s: u64 = 30 => reloaded().within(0..=limits::DRAIN_S_LIMIT).named("drain")
            .engined("", "Seconds that running requests may take after SIGTERM, SIGQUIT or Ctrl-C [default: 30]");
        /// Maximum size of a gRPC message in bytes: enough for the largest picture and its request.
        message_bytes_max: usize = 32 << 20 => within(1..=MESSAGE_BYTES_LIMIT);
        /// Maximum size of a sound file to transcribe, in bytes.
        sound_bytes_max: u64 = 25 << 20 => within(1..=limits::SOUND_BYTES_LIMIT);
        /// Maximum length of such a sound in seconds.
        sound_s_max: u64 = 4 * 3600 => within(1..=limits::SOUND_S_LIMIT);
        /// Weights of Silero VAD (`silero_vad_16k.safetensors` from its authors) for voice activity detection; unset:
        /// detection by energy.
        voice_activity: Option<PathBuf> = None => example("/var/lib/hanzo-engine/silero_vad_16k.safetensors");
        /// Maximum number of open gRPC connections; more wait in the listener's backlog. One address may hold a quarter
        /// of them.
        connections_max: usize = 1024 => within(1..=CONNECTIONS_LIMIT);
    }
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

    /// Checks that the values agree; otherwise the key of the first that does not, and the reason.
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
        Ok(())
    }
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
