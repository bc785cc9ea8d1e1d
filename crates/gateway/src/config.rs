//! Settings of the gateway: defaults, then a TOML or YAML file, then `HANZO_ENGINE_GATEWAY_*`, then flags.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use figment::{
    Figment,
    providers::{Env, Format, Serialized, Toml, Yaml},
};
use hanzo_engine_access::{Access, AccessSettings, ClientTls, Limits, Secret, TlsSettings};
use hanzo_engine_process::settings;
use hanzo_engine_telemetry::{Protocol, TracesConfig};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    cloud_settings::{self, CloudSettings},
    cors,
    error::GatewayError,
    fleet::{Upstream, one_or_list},
    limits::{ADDRESS_SHARE, SECONDS_MAX, UPSTREAMS_MAX},
    media_hosts,
};

/// Settings that are keys, and the environment variables to read them from; the first one set is used.
const SECRETS: [(&str, &[&str]); 3] = [
    ("api_key", &["HANZO_ENGINE_GATEWAY_API_KEY", "HANZO_ENGINE_API_KEY", "HANZO_ENGINE_AUTH_TOKEN"]),
    ("engine_api_key", &["HANZO_ENGINE_GATEWAY_ENGINE_API_KEY"]),
    ("cloud_api_key", &["HANZO_ENGINE_GATEWAY_CLOUD_API_KEY"]),
];

/// Settings of the gateway.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Address to listen on: an IP address or `localhost`.
    pub host: String,
    /// TCP port to listen on; 0 picks a free one.
    pub port: u16,
    /// Accepted names in the header `Host`, in addition to those of the loopback. Unset: only those while
    /// `host` is a loopback address, else any name.
    pub allowed_hosts: Vec<String>,
    /// API key with all permissions. Also read from `HANZO_ENGINE_API_KEY`.
    pub api_key: Option<Secret>,
    /// File of API keys with permissions and limits, written by `hanzo-engine keys`. Reloaded when it changes.
    pub api_keys_file: Option<PathBuf>,
    /// Certificate of the server for HTTPS, followed by its intermediates; unset: plain HTTP. Reloaded when it
    /// changes.
    pub tls_cert: Option<PathBuf>,
    /// Private key of the certificate.
    pub tls_key: Option<PathBuf>,
    /// Authorities of client certificates. If set, each client must show a certificate of one of them.
    pub tls_client_ca: Option<PathBuf>,
    /// Origins whose web pages may send requests, such as `https://chat.example.com`; `*`: any.
    pub cors_origins: Vec<String>,
    /// Hosts from which images and audio may be fetched by URL, such as `pictures.example.com`, optionally with
    /// `:PORT`. All their addresses must be public. Unset: nothing is fetched.
    pub media_hosts: Vec<String>,
    /// Listen on addresses other than the loopback's even if no key is required.
    pub insecure: bool,
    /// Require a key for `/metrics`, `/health` and `/version` too, which reveal models and load.
    pub private_metrics: bool,
    /// Log one line for each finished request: client, model, status, tokens and times.
    pub access_log: bool,
    /// Address of the engine's gRPC: `http://HOST:PORT`, `https://HOST:PORT` or `unix:PATH`.
    pub engine: String,
    /// Several engines, instead of `engine`: a list, or one text with commas. Each is `HOST:PORT`, `http://…`,
    /// `https://…`, `dns://NAME:PORT` or `unix:PATH`. Every address of a name is an engine; names are resolved
    /// repeatedly.
    #[serde(deserialize_with = "one_or_list")]
    pub upstreams: Vec<String>,
    /// Authorities for the engine's certificate; unset: the system's.
    pub engine_ca: Option<PathBuf>,
    /// Client certificate for the engine.
    pub engine_cert: Option<PathBuf>,
    /// Private key of the client certificate.
    pub engine_cert_key: Option<PathBuf>,
    /// API key of the gateway for the engine; it needs no admin scope. Unset: `api_key`.
    pub engine_api_key: Option<Secret>,
    /// Upstream server that speaks OpenAI's API, such as `https://api.openai.com/v1`. It answers chats,
    /// completions and embeddings of the models below. Each request sent there is logged, and its answer has
    /// the header `X-Hanzo-Sent-To`. Unset: nothing is sent elsewhere.
    pub cloud_url: Option<String>,
    /// API key of the gateway for the upstream server.
    pub cloud_api_key: Option<Secret>,
    /// Models that the upstream server always answers: `NAME`, or `NAME=UPSTREAM-NAME`. A list, or one text
    /// with commas.
    #[serde(deserialize_with = "one_or_list")]
    pub cloud_models: Vec<String>,
    /// Models that the upstream server answers when the engine's queue is full or no engine is available; same
    /// format.
    #[serde(deserialize_with = "one_or_list")]
    pub cloud_overflow: Vec<String>,
    /// Ignore unknown request fields instead of answering 400.
    pub lenient: bool,
    /// Serve a web page at `GET /` to chat and to watch the engine.
    pub page: bool,
    /// Let HTTP clients load and unload adapters, by paths on the engine's machine.
    pub adapter_updates: bool,
    /// Maximum size of a request body, in bytes.
    pub body_bytes_max: usize,
    /// Maximum bytes of request bodies in memory, over all requests; more wait. At least `body_bytes_max`.
    pub bodies_bytes_max: usize,
    /// Maximum size of an audio file to transcribe, in bytes; the engine has its own limit. Files that arrive
    /// before the fields of their form are buffered, together in up to `bodies_bytes_max` more.
    pub sound_bytes_max: usize,
    /// Seconds within which a request's body must arrive.
    pub body_timeout_s: u64,
    /// Maximum connections at once; more wait in the listener's backlog. When nearly all are in use, the
    /// longest idle ones are closed. One address may have a quarter of them.
    pub connections_max: usize,
    /// Seconds for a connection's TLS handshake, for its first bytes, and for the headers of a request.
    pub headers_timeout_s: u64,
    /// Seconds after which a connection is closed if it is idle, or if its client reads nothing of its answer.
    pub idle_timeout_s: u64,
    /// Maximum stop strings of a request.
    pub stop_strings_max: usize,
    /// Maximum choices (`n`) of a prompt.
    pub choices_max: u32,
    /// Maximum prompts of a `/v1/completions` request.
    pub prompts_max: usize,
    /// Maximum prompts of a `/v1/completions` request that run at the same time.
    pub prompts_running_max: usize,
    /// Maximum texts of a request to embed, rerank, compare or classify.
    pub embedding_inputs_max: usize,
    /// Maximum bytes of embeddings in memory, over all requests, so that a request that fails midway gets an
    /// error status. An answer that does not fit is streamed, and breaks off if it fails.
    pub embeddings_bytes_max: usize,
    /// Maximum bytes of unstreamed answers in memory, over all requests, in addition to the first megabyte of
    /// each.
    pub answers_bytes_max: usize,
    /// Directory of stored responses (`/v1/responses`), which then survive a restart; unset: they are kept in
    /// memory.
    pub responses_dir: Option<PathBuf>,
    /// Maximum bytes of stored responses; the least recently used are removed first. 0: none is stored. Unset:
    /// 64 MiB, or 1 GiB in `responses_dir`.
    pub responses_bytes_max: Option<usize>,
    /// Maximum number of stored responses. 0: none is stored.
    pub responses_max: usize,
    /// Seconds of silence on a stream after which a keep-alive comment is sent.
    pub sse_keep_alive_s: u64,
    /// Let models call the tools of the servers in `mcp_config`.
    pub enable_mcp: bool,
    /// File of MCP servers, in the format of Claude Desktop: `{"mcpServers": {NAME: {"command": …} or {"url":
    /// …}}}`.
    pub mcp_config: Option<PathBuf>,
    /// Serve MCP on `mcp_port` too; `/mcp` of the HTTP port always serves it.
    pub mcp_enabled: bool,
    /// TCP port for MCP alone; 0 picks a free one.
    pub mcp_port: u16,
    /// Maximum MCP sessions at once; an idle one is ended to make room.
    pub mcp_sessions_max: usize,
    /// Seconds after which an idle MCP session ends.
    pub mcp_idle_s: u64,
    /// Seconds that running requests may take after the shutdown signal.
    pub drain_s: u64,
    /// Log level (`error`, `warn`, `info`, `debug`, `trace`), or a filter such as
    /// `info,hanzo_engine_gateway=debug`. Also read from `HANZO_ENGINE_LOG_LEVEL`.
    pub log_level: String,
    /// Format of the log: `pretty` for people, or `json`.
    pub log_format: LogFormat,
    /// OTLP endpoint for traces of requests, such as `http://localhost:4317`; unset:
    /// `OTEL_EXPORTER_OTLP_ENDPOINT`, or no traces.
    pub traces_endpoint: Option<String>,
    /// Protocol of the traces: `grpc` or `http/protobuf`; unset: `OTEL_EXPORTER_OTLP_PROTOCOL`, or `grpc`.
    pub traces_protocol: Option<Protocol>,
    /// Share of requests to trace, from 0 to 1. A request that is part of a trace already follows that trace's
    /// decision. Unset: `OTEL_TRACES_SAMPLER`, or all.
    pub traces_ratio: Option<f64>,
    /// Seconds after which a generation, embedding or scoring request ends with 504; unset: no limit.
    pub request_timeout_s: Option<u64>,
}

/// Format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Human-readable lines.
    #[default]
    Pretty,
    /// JSON object on each line.
    Json,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            host: "127.0.0.1".to_owned(),
            port: 36900,
            allowed_hosts: Vec::new(),
            api_key: None,
            api_keys_file: None,
            tls_cert: None,
            tls_key: None,
            tls_client_ca: None,
            cors_origins: Vec::new(),
            media_hosts: Vec::new(),
            insecure: false,
            private_metrics: false,
            access_log: true,
            engine_ca: None,
            engine_cert: None,
            engine_cert_key: None,
            engine_api_key: None,
            engine: "http://127.0.0.1:36901".to_owned(),
            cloud_url: None,
            cloud_api_key: None,
            cloud_models: Vec::new(),
            cloud_overflow: Vec::new(),
            upstreams: Vec::new(),
            lenient: false,
            page: true,
            adapter_updates: false,
            body_bytes_max: 10_000_000,
            bodies_bytes_max: 256_000_000,
            sound_bytes_max: 26_214_400,
            body_timeout_s: 60,
            connections_max: 4096,
            headers_timeout_s: 60,
            idle_timeout_s: 120,
            stop_strings_max: 16,
            choices_max: 128,
            prompts_max: 1024,
            prompts_running_max: 8,
            embedding_inputs_max: 2048,
            embeddings_bytes_max: 256_000_000,
            answers_bytes_max: 256 << 20,
            responses_dir: None,
            responses_bytes_max: None,
            responses_max: 10_000,
            sse_keep_alive_s: 15,
            enable_mcp: false,
            mcp_config: None,
            mcp_enabled: false,
            mcp_port: 3691,
            mcp_sessions_max: 1024,
            mcp_idle_s: 3600,
            drain_s: 30,
            log_level: "info".to_owned(),
            log_format: LogFormat::Pretty,
            traces_endpoint: None,
            traces_protocol: None,
            traces_ratio: None,
            request_timeout_s: None,
        }
    }
}

impl Config {
    /// Merges defaults, `file` (TOML, or YAML if its name ends in `.yaml` or `.yml`), the environment variables
    /// `HANZO_ENGINE_GATEWAY_*` and `flags` (a struct or map of the given fields). Later sources override
    /// earlier ones.
    ///
    /// # Errors
    /// [`GatewayError::Config`] if the file cannot be read, or a value has the wrong type, is unknown or is out
    /// of range.
    pub fn load(file: Option<&Path>, flags: impl Serialize) -> Result<Config, GatewayError> {
        let mut figment = Figment::from(Serialized::defaults(Config::default()));
        if let Some(path) = file {
            let yaml = path.extension().is_some_and(|e| e == "yaml" || e == "yml");
            figment = if yaml {
                figment.merge(Yaml::file_exact(path))
            } else {
                figment.merge(Toml::file_exact(path))
            };
        }
        // Read separately: a key may look like a number, and no error may repeat it.
        for (field, names) in SECRETS {
            if let Some(secret) = Secret::of_first_env(names).map_err(GatewayError::Config)? {
                figment = figment.merge((field, secret.text()));
            }
        }
        let fields = SECRETS.map(|(field, _)| field);
        let config: Config = figment
            .merge(Env::prefixed("HANZO_ENGINE_GATEWAY_").ignore(&fields))
            .merge(Serialized::defaults(flags))
            .extract()
            .map_err(|error| GatewayError::Config(reason(&error)))?;
        config.checked()
    }

    /// Effective settings as TOML. Keys are hidden.
    pub fn print(&self) -> String {
        settings::toml(&self.values())
    }

    /// Settings as a tree; keys are hidden.
    pub(crate) fn values(&self) -> Value {
        // All map keys are text, so this cannot fail.
        serde_json::to_value(self).unwrap_or_default()
    }

    /// Checks that the configured key and certificate files are usable. Nothing is bound or changed.
    ///
    /// # Errors
    /// [`GatewayError`] of the first unusable file.
    pub fn check_files(&self) -> Result<(), GatewayError> {
        Access::open(self.access())?;
        self.tls().check_files()?;
        if self.engine_tls() != ClientTls::default() {
            self.engine_tls().config(&[b"h2"])?;
        }
        Ok(())
    }

    /// Checks that all values are in range.
    pub(crate) fn checked(self) -> Result<Config, GatewayError> {
        let refuse = |what: &str| Err(GatewayError::Config(what.to_owned()));
        if self.address().is_none() {
            return refuse("host: expected an IP address or localhost");
        }
        let private = self.address().is_some_and(|ip| ip.is_loopback());
        if !private && !self.insecure && !self.access().wants_keys() && !self.tls().wants_certificates() {
            let problem = format!(
                "host: {} is reached from other machines, and no key is wanted: set api_keys_file (--api-keys-file) to \
                 what `hanzo-engine keys create` makes, or api_key; or say insecure (--insecure) where the network is private",
                self.host
            );
            return refuse(&problem);
        }
        self.check_sizes()?;
        if self.enable_mcp != self.mcp_config.is_some() {
            return refuse("enable_mcp, mcp_config (--enable-mcp, --mcp-config): they need each other");
        }
        if self.request_timeout_s == Some(0) {
            return refuse("request_timeout_s: must be at least 1; leave it out for no limit");
        }
        self.traces()
            .check()
            .map_err(|error| GatewayError::Config(error.to_string().replace("traces.", "traces_")))?;
        self.tls().check().map_err(|error| GatewayError::Config(error.to_string()))?;
        if self.engine_cert.is_some() != self.engine_cert_key.is_some() {
            return refuse("engine_cert: it and engine_cert_key need each other");
        }
        let targets = self.targets()?;
        let tls = match &targets[..] {
            [] => self.engine.starts_with("https://"),
            targets => targets.iter().any(Upstream::tls),
        };
        if self.engine_tls() != ClientTls::default() && !tls {
            return refuse("engine_ca, engine_cert: only an engine at https:// is spoken to by TLS");
        }
        cloud_settings::check(&self.cloud()).map_err(GatewayError::Config)?;
        cors::check(&self.cors_origins).map_err(GatewayError::Config)?;
        media_hosts::check(&self.media_hosts).map_err(GatewayError::Config)?;
        self.check_times_and_counts()?;
        Ok(self)
    }

    /// Checks the bounds of bodies and answers, in bytes.
    fn check_sizes(&self) -> Result<(), GatewayError> {
        let refuse = |what: &str| Err(GatewayError::Config(what.to_owned()));
        if self.bodies_bytes_max < self.body_bytes_max {
            return refuse("bodies_bytes_max: must be at least body_bytes_max");
        }
        if self.bodies_bytes_max > tokio::sync::Semaphore::MAX_PERMITS.min(u32::MAX as usize) {
            return refuse("bodies_bytes_max: must be under 4 GiB");
        }
        if !(1..=u32::MAX as usize >> 1).contains(&self.sound_bytes_max) {
            return refuse("sound_bytes_max: must be 1 byte to 2 GiB");
        }
        if self.embeddings_bytes_max > tokio::sync::Semaphore::MAX_PERMITS.min(u32::MAX as usize) {
            return refuse("embeddings_bytes_max: must be under 4 GiB");
        }
        if self.answers_bytes_max > u32::MAX as usize {
            return refuse("answers_bytes_max: must be under 4 GiB");
        }
        Ok(())
    }

    /// Checks times in seconds, and counts that must not be 0.
    fn check_times_and_counts(&self) -> Result<(), GatewayError> {
        let refuse = |what: &str| Err(GatewayError::Config(what.to_owned()));
        let seconds = [
            ("headers_timeout_s", self.headers_timeout_s),
            ("idle_timeout_s", self.idle_timeout_s),
            ("body_timeout_s", self.body_timeout_s),
            ("sse_keep_alive_s", self.sse_keep_alive_s),
            ("mcp_idle_s", self.mcp_idle_s),
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
            ("mcp_sessions_max", self.mcp_sessions_max),
            ("mcp_idle_s", usize::from(self.mcp_idle_s > 0)),
            ("sse_keep_alive_s", usize::from(self.sse_keep_alive_s > 0)),
            ("body_timeout_s", usize::from(self.body_timeout_s > 0)),
            ("headers_timeout_s", usize::from(self.headers_timeout_s > 0)),
            ("idle_timeout_s", usize::from(self.idle_timeout_s > 0)),
        ];
        if let Some((name, _)) = at_least_one.iter().find(|(_, value)| *value == 0) {
            return refuse(&format!("{name}: must be at least 1"));
        }
        Ok(())
    }

    /// Settings of traces.
    pub fn traces(&self) -> TracesConfig {
        let (endpoint, protocol) = (self.traces_endpoint.clone(), self.traces_protocol);
        TracesConfig { endpoint, protocol, ratio: self.traces_ratio }
    }

    /// Sources of API keys.
    pub fn access(&self) -> AccessSettings {
        AccessSettings { api_key: self.api_key.clone(), api_keys_file: self.api_keys_file.clone() }
    }

    /// TLS files of the HTTPS port.
    pub fn tls(&self) -> TlsSettings {
        TlsSettings {
            cert: self.tls_cert.clone(),
            key: self.tls_key.clone(),
            client_ca: self.tls_client_ca.clone(),
        }
    }

    /// TLS files for the connection to the engine.
    pub(crate) fn engine_tls(&self) -> ClientTls {
        ClientTls {
            ca: self.engine_ca.clone(),
            cert: self.engine_cert.clone(),
            key: self.engine_cert_key.clone(),
        }
    }

    /// Settings of the upstream server.
    pub(crate) fn cloud(&self) -> CloudSettings {
        CloudSettings {
            url: self.cloud_url.clone(),
            key: self.cloud_api_key.clone(),
            models: self.cloud_models.clone(),
            overflow: self.cloud_overflow.clone(),
        }
    }

    /// Engines listed in `upstreams`.
    pub(crate) fn targets(&self) -> Result<Vec<Upstream>, GatewayError> {
        let refuse = |problem: String| GatewayError::Config(format!("upstreams: {problem}"));
        if self.upstreams.len() > UPSTREAMS_MAX {
            return Err(refuse(format!("at most {UPSTREAMS_MAX}")));
        }
        self.upstreams.iter().map(|text| Upstream::parse(text).map_err(refuse)).collect()
    }

    /// Connection limits of the port.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            connections_max: self.connections_max,
            of_address_max: self.connections_max.div_ceil(ADDRESS_SHARE),
            first: Duration::from_secs(self.headers_timeout_s),
        }
    }

    /// Address to bind; `None`: `host` is neither an IP address nor `localhost`.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        if self.host.eq_ignore_ascii_case("localhost") {
            return Some(IpAddr::from([127, 0, 0, 1]));
        }
        self.host.trim_start_matches('[').trim_end_matches(']').parse().ok()
    }
}

/// Error text with the key and the reason, without figment's description of the source. For an unknown key it
/// suggests a similar one.
fn reason(error: &figment::Error) -> String {
    match &error.kind {
        figment::error::Kind::UnknownField(field, known) => {
            let everywhere = settings::keys(&Config::default().values());
            settings::unknown_key(&error.path.join("."), field, known, &everywhere)
        }
        kind if error.path.is_empty() => kind.to_string(),
        kind => format!("{}: {kind}", error.path.join(".")),
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
    fn engines_are_a_list_or_a_text_with_commas() {
        for written in [json!(["a:1", "b:2"]), json!("a:1, b:2"), json!(["a:1,b:2"])] {
            let config = Config::load(None, json!({"upstreams": written})).unwrap();
            assert_eq!(config.upstreams, ["a:1", "b:2"]);
        }
    }

    #[test]
    fn what_is_unknown_or_out_of_range_is_refused_by_name() {
        for (flags, name) in [
            (json!({"prot": 2}), "prot: unknown key; did you mean port?"),
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
            (json!({"host": "0.0.0.0"}), "--insecure"),
            (json!({"host": "::"}), "--api-keys-file"),
            (json!({"api_key": "short"}), "api_key"),
            (json!({"tls_cert": "cert.pem"}), "tls_key"),
            (json!({"tls_key": "key.pem"}), "tls_cert"),
            (json!({"tls_client_ca": "ca.pem"}), "tls_client_ca"),
            (json!({"engine_ca": "ca.pem"}), "engine_ca"),
            (json!({"upstreams": ["https://a:1"], "engine_cert": "cert.pem"}), "engine_cert_key"),
            (json!({"upstreams": ["a:1"], "engine_ca": "ca.pem"}), "engine_ca"),
            (json!({"upstreams": ["ftp://a:1"]}), "upstreams"),
            (json!({"upstreams": 7}), "upstreams"),
            (json!({"engine": "https://engine:1", "engine_cert": "cert.pem"}), "engine_cert_key"),
            (json!({"cors_origins": ["chat.example.com"]}), "cors_origins"),
            (json!({"media_hosts": ["*"]}), "media_hosts"),
            (json!({"headers_timeout_s": 0}), "headers_timeout_s"),
            (json!({"idle_timeout_s": 0}), "idle_timeout_s"),
            (json!({"engine_api_key": 12_345_678}), "engine_api_key"),
            (json!({"cloud_models": ["a"]}), "cloud_models: it needs cloud_url"),
            (json!({"cloud_api_key": "long-enough"}), "cloud_api_key: it needs"),
            (json!({"cloud_url": "https://x/v1"}), "cloud_url: nothing goes there"),
            (json!({"cloud_url": "ftp://x/v1", "cloud_models": ["a"]}), "cloud_url"),
            (json!({"cloud_url": "https://a:b@x/v1", "cloud_models": ["a"]}), "cloud_url"),
            (
                json!({"cloud_url": "http://x/v1", "cloud_models": "a", "cloud_api_key": "long-enough"}),
                "would go in the clear",
            ),
            (json!({"cloud_url": "https://x/v1", "cloud_models": ["a="]}), "cloud_models"),
            (json!({"cloud_url": "https://x/v1", "cloud_models": "a,b", "cloud_overflow": "b"}), "in both"),
        ] {
            let error = Config::load(None, &flags).unwrap_err().to_string();
            assert!(error.contains(name), "{flags}: {error}");
        }
        for kept in [
            json!({"host": "0.0.0.0", "insecure": true}),
            json!({"host": "0.0.0.0", "api_key": "long-enough"}),
            json!({"host": "::", "api_keys_file": "keys.json"}),
            json!({"cloud_url": "http://127.0.0.1:1/v1", "cloud_models": "a,b=c", "cloud_api_key": "long-enough"}),
            json!({"cloud_url": "http://[::1]:1", "cloud_overflow": ["a"], "cloud_api_key": "long-enough"}),
        ] {
            assert!(Config::load(None, &kept).is_ok(), "{kept}");
        }
        assert!(Config::load(Some("/no/such/file.toml".as_ref()), json!({})).is_err());
    }
}
