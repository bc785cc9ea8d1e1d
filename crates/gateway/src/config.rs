//! What an operator can set: defaults, then a TOML or YAML file, then `HANZO_ENGINE_GATEWAY_*`, then flags.

use std::{net::IpAddr, path::Path};

use figment::{
    Figment,
    providers::{Env, Format, Serialized, Toml, Yaml},
};
use serde::{Deserialize, Serialize};

use crate::{error::GatewayError, limits::SECONDS_MAX};

/// The gateway's settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Address to listen on: an IP address or `localhost`.
    pub host: String,
    /// TCP port to listen on; 0 picks a free one.
    pub port: u16,
    /// Names in `Host` that are answered to beside the loopback's own, which are all while `host` is of the loopback;
    /// elsewhere any name is, unless some are given here.
    pub allowed_hosts: Vec<String>,
    /// Where the engine's gRPC is: `http://HOST:PORT` or `unix:PATH`.
    pub engine: String,
    /// Ignore request fields that the gateway does not know, instead of answering 400.
    pub lenient: bool,
    /// Let HTTP clients load and unload adapters: what they load are paths on the engine's machine.
    pub adapter_updates: bool,
    /// Largest request body, in bytes.
    pub body_bytes_max: usize,
    /// Bytes of request bodies held at once, over all requests; more wait. At least `body_bytes_max`.
    pub bodies_bytes_max: usize,
    /// Seconds in which a request's body must have arrived.
    pub body_timeout_s: u64,
    /// Connections held at once; more wait in the listener's backlog.
    pub connections_max: usize,
    /// Stop strings of one request.
    pub stop_strings_max: usize,
    /// Choices (`n`) of one prompt.
    pub choices_max: u32,
    /// Prompts of one `/v1/completions` request.
    pub prompts_max: usize,
    /// Prompts of one `/v1/completions` request that run at the same time.
    pub prompts_running_max: usize,
    /// Texts of one request to embed, to rank, to compare or to classify.
    pub embedding_inputs_max: usize,
    /// Bytes of vectors held at once, over all requests, so that a request that fails half-way has a status of its
    /// own; an answer that does not fit is sent as it comes, and breaks off where it fails.
    pub embeddings_bytes_max: usize,
    /// Bytes of answers collected at once, over all requests that are not streamed, beyond the first megabyte of each.
    pub answers_bytes_max: usize,
    /// Seconds of silence on a stream after which a keep-alive comment is sent.
    pub sse_keep_alive_s: u64,
    /// Seconds that requests may go on after the shutdown signal.
    pub drain_s: u64,
    /// Seconds after which a generation, or a request for vectors or scores, ends with 504; unset: no limit.
    pub request_timeout_s: Option<u64>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            host: "127.0.0.1".to_owned(),
            port: 36900,
            allowed_hosts: Vec::new(),
            engine: "http://127.0.0.1:36901".to_owned(),
            lenient: false,
            adapter_updates: false,
            body_bytes_max: 10_000_000,
            bodies_bytes_max: 256_000_000,
            body_timeout_s: 60,
            connections_max: 4096,
            stop_strings_max: 16,
            choices_max: 128,
            prompts_max: 1024,
            prompts_running_max: 8,
            embedding_inputs_max: 2048,
            embeddings_bytes_max: 256_000_000,
            answers_bytes_max: 256 << 20,
            sse_keep_alive_s: 15,
            drain_s: 30,
            request_timeout_s: None,
        }
    }
}

impl Config {
    /// Merges the defaults, `file` (TOML, or YAML where its name ends in `.yaml` or `.yml`), the environment
    /// `HANZO_ENGINE_GATEWAY_*` and `flags` (a struct or map of the fields that are set), each over the one
    /// before.
    ///
    /// # Errors
    /// [`GatewayError::Config`] where the file cannot be read, or a value is of the wrong type, unknown or out
    /// of range.
    pub fn load(file: Option<&Path>, flags: impl Serialize) -> Result<Config, GatewayError> {
        // Whoever sets it expects to be protected.
        if std::env::var_os("HANZO_ENGINE_AUTH_TOKEN").is_some() {
            let reason = "HANZO_ENGINE_AUTH_TOKEN: this build cannot check keys; unset it, and put a proxy that does in front";
            return Err(GatewayError::Config(reason.to_owned()));
        }
        let mut figment = Figment::from(Serialized::defaults(Config::default()));
        if let Some(path) = file {
            let yaml = path.extension().is_some_and(|e| e == "yaml" || e == "yml");
            figment = if yaml {
                figment.merge(Yaml::file_exact(path))
            } else {
                figment.merge(Toml::file_exact(path))
            };
        }
        let config: Config = figment
            .merge(Env::prefixed("HANZO_ENGINE_GATEWAY_"))
            .merge(Serialized::defaults(flags))
            .extract()
            .map_err(|e| GatewayError::Config(e.to_string()))?;
        config.checked()
    }

    /// The configuration itself, where all values are in range.
    pub(crate) fn checked(self) -> Result<Config, GatewayError> {
        let refuse = |what: &str| Err(GatewayError::Config(what.to_owned()));
        if self.address().is_none() {
            return refuse("host: expected an IP address or localhost");
        }
        if self.bodies_bytes_max < self.body_bytes_max {
            return refuse("bodies_bytes_max: must be at least body_bytes_max");
        }
        if self.bodies_bytes_max > tokio::sync::Semaphore::MAX_PERMITS.min(u32::MAX as usize) {
            return refuse("bodies_bytes_max: must be under 4 GiB");
        }
        if self.embeddings_bytes_max > tokio::sync::Semaphore::MAX_PERMITS.min(u32::MAX as usize) {
            return refuse("embeddings_bytes_max: must be under 4 GiB");
        }
        if self.answers_bytes_max > u32::MAX as usize {
            return refuse("answers_bytes_max: must be under 4 GiB");
        }
        if self.request_timeout_s == Some(0) {
            return refuse("request_timeout_s: must be at least 1; leave it out for no limit");
        }
        let seconds = [
            ("body_timeout_s", self.body_timeout_s),
            ("sse_keep_alive_s", self.sse_keep_alive_s),
            ("drain_s", self.drain_s),
            ("request_timeout_s", self.request_timeout_s.unwrap_or(0)),
        ];
        if let Some((name, _)) = seconds.iter().find(|(_, value)| *value > SECONDS_MAX) {
            return refuse(&format!("{name}: must be at most {SECONDS_MAX}"));
        }
        let at_least_one = [
            ("body_bytes_max", self.body_bytes_max),
            ("connections_max", self.connections_max),
            ("choices_max", self.choices_max as usize),
            ("prompts_max", self.prompts_max),
            ("prompts_running_max", self.prompts_running_max),
            ("embedding_inputs_max", self.embedding_inputs_max),
            ("sse_keep_alive_s", usize::from(self.sse_keep_alive_s > 0)),
            ("body_timeout_s", usize::from(self.body_timeout_s > 0)),
        ];
        if let Some((name, _)) = at_least_one.iter().find(|(_, value)| *value == 0) {
            return refuse(&format!("{name}: must be at least 1"));
        }
        Ok(self)
    }

    /// The address to bind; `None` where `host` is neither an address nor `localhost`.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        if self.host.eq_ignore_ascii_case("localhost") {
            return Some(IpAddr::from([127, 0, 0, 1]));
        }
        self.host.trim_start_matches('[').trim_end_matches(']').parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use serde_json::json;

    use super::Config;

    #[test]
    fn the_file_is_over_the_defaults_and_flags_are_over_the_file() {
        for (suffix, text) in
            [(".toml", "port = 1\nchoices_max = 3\n"), (".yaml", "port: 1\nchoices_max: 3\n")]
        {
            let mut file = tempfile::Builder::new().suffix(suffix).tempfile().unwrap();
            file.write_all(text.as_bytes()).unwrap();
            let config = Config::load(Some(file.path()), json!({"port": 2})).unwrap();
            let expected = Config { port: 2, choices_max: 3, ..Config::default() };
            assert_eq!(config, expected, "{suffix}");
        }
    }

    #[test]
    fn what_is_unknown_or_out_of_range_is_refused_by_name() {
        for (flags, name) in [
            (json!({"prot": 2}), "prot"),
            (json!({"port": "many"}), "port"),
            (json!({"host": "example.com/x"}), "host"),
            (json!({"choices_max": 0}), "choices_max"),
            (json!({"embedding_inputs_max": 0}), "embedding_inputs_max"),
            (json!({"embeddings_bytes_max": u64::MAX}), "embeddings_bytes_max"),
            (json!({"answers_bytes_max": 1_u64 << 32}), "answers_bytes_max"),
            (json!({"request_timeout_s": 0}), "request_timeout_s"),
            (json!({"request_timeout_s": u64::MAX}), "request_timeout_s"),
            (json!({"drain_s": u64::MAX}), "drain_s"),
            (json!({"bodies_bytes_max": 5}), "bodies_bytes_max"),
        ] {
            let error = Config::load(None, &flags).unwrap_err().to_string();
            assert!(error.contains(name), "{flags}: {error}");
        }
        assert!(Config::load(Some("/no/such/file.toml".as_ref()), json!({})).is_err());
    }
}
