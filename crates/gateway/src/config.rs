//! Settings of the gateway: defaults, then a TOML or YAML file, then `HANZO_ENGINE_GATEWAY_*`, then flags.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use figment::{
    Figment,
    providers::{Env, Serialized},
};
use hanzo_engine_access::{Access, AccessSettings, ClientTls, Limits, Secret, TlsSettings};
pub use hanzo_engine_process::settings::LogFormat;
use hanzo_engine_process::{
    settings,
    settings::{Bounds, DeclaredSettings, EngineGateway, SAME, out_of_bounds, parse_host, reason, text},
};
use hanzo_engine_telemetry::{Protocol, TracesConfig};
use serde::Serialize;
use serde_json::Value;

use crate::{
    cloud_settings::{self, CloudSettings},
    cors,
    error::GatewayError,
    fleet::{Upstream, one_or_list},
    limits::{ADDRESS_SHARE, SECONDS_MAX, UPSTREAMS_MAX},
    media_hosts,
};

settings! {
    /// Settings of the gateway.
    pub struct Config("") {
        /// Address to listen on: an IP address or `localhost`.
        host: String = "127.0.0.1".to_owned() => shared("server.host")
            .gateway("", "Address to listen on [default: 127.0.0.1]");
        /// TCP port to listen on; 0 picks a free one.
        port: u16 = 36900 => serve("", "Port of the HTTP API; 0 for any free one [default: 36900]")
            .with(|arg| arg.short('p').env("HANZO_ENGINE_SERVER_PORT"))
            .gateway("", "Port to listen on; 0 picks a free one [default: 36900]");
        /// Accepted names in the header `Host`, in addition to those of the loopback. Unset: only those while
        /// `host` is a loopback address, else any name.
        allowed_hosts: Vec<String> = Vec::new() => same("server.allowed_hosts").named("allowed-host")
            .gateway("NAME", "Accepted name in the header Host in addition to localhost, such as a proxy's; repeatable")
            .example(["engine.example.com"]);
        /// API key with all permissions. Also read from `HANZO_ENGINE_API_KEY`.
        api_key: Option<Secret> = None => reloaded()
            .secret(&["HANZO_ENGINE_GATEWAY_API_KEY", "HANZO_ENGINE_API_KEY", "HANZO_ENGINE_AUTH_TOKEN"])
            .flag::<EngineGateway>("KEY", "Key that every request must have. Prefer HANZO_ENGINE_API_KEY, which \
                                           process lists do not show", text).example("a-key-of-8-characters-or-more");
        /// File of API keys with permissions and limits, written by `hanzo-engine keys`. Reloaded when it changes.
        api_keys_file: Option<PathBuf> = None => reloaded().same("server.api_keys_file")
            .gateway("FILE", "File of API keys with permissions, written by `hanzo-engine keys create`; reloaded \
                              when it changes").example("/etc/hanzo-engine/keys.json");
        /// Certificate of the server for HTTPS, followed by its intermediates; unset: plain HTTP. Reloaded when it
        /// changes.
        tls_cert: Option<PathBuf> = None => shared("server.tls_cert")
            .gateway("FILE", "Certificate for HTTPS (PEM, with intermediates); reloaded when it changes")
            .example("/etc/hanzo-engine/cert.pem");
        /// Private key of the certificate.
        tls_key: Option<PathBuf> = None => shared("server.tls_key")
            .gateway("FILE", "Private key of the certificate (PEM)").example("/etc/hanzo-engine/key.pem");
        /// Authorities of client certificates. If set, each client must show a certificate of one of them.
        tls_client_ca: Option<PathBuf> = None => shared("server.tls_client_ca")
            .gateway("FILE", "Authorities of client certificates (PEM); each client must show a certificate of one \
                              of them").example("/etc/hanzo-engine/clients.pem");
        /// Origins whose web pages may send requests, such as `https://chat.example.com`; `*`: any.
        cors_origins: Vec<String> = Vec::new() => named("cors-origin")
            .gateway("ORIGIN", "Origin whose web pages may send requests, such as https://chat.example.com, or * for \
                                any; repeatable [default: none]")
            .serve("ORIGIN", "Origin whose pages may send requests, such as https://chat.example.com, or * for any; \
                              repeatable [default: none]").example(["https://chat.example.com"]);
        /// Hosts from which images and audio may be fetched by URL, such as `pictures.example.com`, optionally with
        /// `:PORT`. All their addresses must be public. Unset: nothing is fetched.
        media_hosts: Vec<String> = Vec::new()
            => gateway("HOST", "Host from which images and audio may be fetched by URL, such as \
                                pictures.example.com, optionally with :PORT; repeatable [default: none]")
            .serve("HOST", "Host, such as pictures.example.com, optionally with :PORT, from which pictures and \
                            sounds named by URL may be fetched; repeatable [default: none]")
            .example(["pictures.example.com"]);
        /// Listen on addresses other than the loopback's even if no key is required.
        insecure: bool = false => reloaded().same("server.insecure")
            .gateway("", "Listen on addresses other than the loopback's without a key; for private networks only");
        /// Require a key for `/metrics`, `/health` and `/version` too, which reveal models and load.
        private_metrics: bool = false => reloaded().same("server.private_metrics")
            .gateway("", "Require a key for /metrics, /health and /version too");
        /// Log one line for each finished request: client, model, status, tokens and times.
        access_log: bool = true => reloaded().named("no-access-log").gateway("", "Do not log a line for each request");
        /// Address of the engine's gRPC: `http://HOST:PORT`, `https://HOST:PORT` or `unix:PATH`.
        engine: String = "http://127.0.0.1:36901".to_owned()
            => gateway("URI", "Address of the engine's gRPC [default: http://127.0.0.1:36901]");
        /// Several engines, instead of `engine`: a list, or one text with commas. Each is `HOST:PORT`, `http://…`,
        /// `https://…`, `dns://NAME:PORT` or `unix:PATH`. Every address of a name is an engine; names are resolved
        /// repeatedly.
        #[serde(deserialize_with = "one_or_list")]
        upstreams: Vec<String> = Vec::new() => named("upstream")
            .gateway("URI", "Engine to use, one of several, instead of --engine: HOST:PORT, http://…, https://…, \
                             dns://NAME:PORT or unix:PATH; repeatable, or with commas. Every address of a name is an \
                             engine").with(|arg| arg.value_delimiter(','))
            .example(["dns://engined.example.com:36901"]);
        /// Authorities for the engine's certificate; unset: the system's.
        engine_ca: Option<PathBuf> = None
            => gateway("FILE", "Authorities (PEM) for the certificate of an engine at https:// [default: the system's]")
            .example("/etc/hanzo-engine/engine-ca.pem");
        /// Client certificate for the engine.
        engine_cert: Option<PathBuf> = None => gateway("FILE", "Client certificate (PEM) for the engine")
            .example("/etc/hanzo-engine/gateway.pem");
        /// Private key of the client certificate.
        engine_cert_key: Option<PathBuf> = None => gateway("FILE", "Private key of the client certificate (PEM)")
            .example("/etc/hanzo-engine/gateway-key.pem");
        /// API key of the gateway for the engine; it needs no admin scope. Unset: `api_key`.
        engine_api_key: Option<Secret> = None => secret(&["HANZO_ENGINE_GATEWAY_ENGINE_API_KEY"])
            .flag::<EngineGateway>("KEY", "Key of this gateway for the engine, also \
                                           HANZO_ENGINE_GATEWAY_ENGINE_API_KEY [default: --api-key]", text)
            .example("a-key-of-8-characters-or-more");
        /// Upstream server that speaks OpenAI's API, such as `https://api.openai.com/v1`. It answers chats,
        /// completions and embeddings of the models below. Each request sent there is logged, and its answer has
        /// the header `X-Hanzo-Sent-To`. Unset: nothing is sent elsewhere.
        cloud_url: Option<String> = None
            => gateway("URL", "Upstream server that speaks OpenAI's API, such as https://api.openai.com/v1, for the \
                               models of --cloud-model and --cloud-overflow. Its key is \
                               HANZO_ENGINE_GATEWAY_CLOUD_API_KEY [default: none]")
            .example("https://api.openai.com/v1");
        /// API key of the gateway for the upstream server.
        cloud_api_key: Option<Secret> = None => secret(&["HANZO_ENGINE_GATEWAY_CLOUD_API_KEY"])
            .example("a-key-of-8-characters-or-more");
        /// Models that the upstream server always answers: `NAME`, or `NAME=UPSTREAM-NAME`. A list, or one text
        /// with commas.
        #[serde(deserialize_with = "one_or_list")]
        cloud_models: Vec<String> = Vec::new() => named("cloud-model")
            .gateway("NAME", "Model that --cloud-url always answers: NAME, or NAME=UPSTREAM-NAME; repeatable, or \
                              with commas").with(|arg| arg.value_delimiter(',').requires("cloud_url"))
            .example(["gpt-4o"]);
        /// Models that the upstream server answers when the engine's queue is full or no engine is available; same
        /// format.
        #[serde(deserialize_with = "one_or_list")]
        cloud_overflow: Vec<String> = Vec::new()
            => gateway("NAME", "Model that --cloud-url answers when the queue is full or no engine is available; \
                                repeatable, or with \
                                commas").with(|arg| arg.value_delimiter(',').requires("cloud_url"))
            .example(["assistant=gpt-4o-mini"]);
        /// Ignore unknown request fields instead of answering 400.
        lenient: bool = false => reloaded().gateway("", "Ignore unknown request fields instead of answering 400")
            .serve("", "Ignore unknown fields of HTTP requests instead of answering 400");
        /// Serve a web page at `GET /` to chat and to watch the engine.
        page: bool = true => named("no-page").gateway("", "Do not serve the web page at /").serve("", SAME);
        /// Let HTTP clients load and unload adapters, by paths on the engine's machine.
        adapter_updates: bool = false => reloaded()
            .gateway("", "Let HTTP clients load adapters from paths on the engine's machine, and unload them")
            .serve("", "Let HTTP clients load adapters from paths on this machine, and unload them");
        /// Maximum size of a request body, in bytes.
        body_bytes_max: usize = 10_000_000 => within(1..=u64::MAX);
        /// Maximum bytes of request bodies in memory, over all requests; more wait. At least `body_bytes_max`.
        bodies_bytes_max: usize = 256_000_000 => bounded(0..=u32::MAX as u64, "must be under 4 GiB");
        /// Maximum size of an audio file to transcribe, in bytes; the engine has its own limit. Files that arrive
        /// before the fields of their form are buffered, together in up to `bodies_bytes_max` more.
        sound_bytes_max: usize = 26_214_400 => bounded(1..=u32::MAX as u64 >> 1, "must be 1 byte to 2 GiB");
        /// Seconds within which a request's body must arrive.
        body_timeout_s: u64 = 60 => reloaded().within(1..=SECONDS_MAX);
        /// Maximum connections at once; more wait in the listener's backlog. When nearly all are in use, the
        /// longest idle ones are closed. One address may have a quarter of them.
        connections_max: usize = 4096 => within(1..=u64::MAX);
        /// Seconds for a connection's TLS handshake, for its first bytes, and for the headers of a request.
        headers_timeout_s: u64 = 60 => reloaded().within(1..=SECONDS_MAX);
        /// Seconds after which a connection is closed if it is idle, or if its client reads nothing of its answer.
        idle_timeout_s: u64 = 120 => reloaded().within(1..=SECONDS_MAX);
        /// Maximum stop strings of a request.
        stop_strings_max: usize = 16 => reloaded();
        /// Maximum choices (`n`) of a prompt.
        choices_max: u32 = 128 => reloaded().within(1..=u64::MAX);
        /// Maximum prompts of a `/v1/completions` request.
        prompts_max: usize = 1024 => reloaded().within(1..=u64::MAX);
        /// Maximum prompts of a `/v1/completions` request that run at the same time.
        prompts_running_max: usize = 8 => reloaded().within(1..=u64::MAX);
        /// Maximum texts of a request to embed, rerank, compare or classify.
        embedding_inputs_max: usize = 2048 => reloaded().within(1..=u64::MAX);
        /// Maximum bytes of embeddings in memory, over all requests, so that a request that fails midway gets an
        /// error status. An answer that does not fit is streamed, and breaks off if it fails.
        embeddings_bytes_max: usize = 256_000_000 => bounded(0..=u32::MAX as u64, "must be under 4 GiB");
        /// Maximum bytes of unstreamed answers in memory, over all requests, in addition to the first megabyte of
        /// each.
        answers_bytes_max: usize = 256 << 20 => bounded(0..=u32::MAX as u64, "must be under 4 GiB");
        /// Directory of stored responses (`/v1/responses`), which then survive a restart; unset: they are kept in
        /// memory.
        responses_dir: Option<PathBuf> = None
            => gateway("DIR", "Directory of stored responses, which then survive a restart [default: kept in memory]")
            .serve("DIR", "Keep stored responses in this directory, so that they are found after a restart [default: \
                           in memory]").example("/var/lib/hanzo-engine/responses");
        /// Maximum bytes of stored responses; the least recently used are removed first. 0: none is stored. Unset:
        /// 64 MiB, or 1 GiB in `responses_dir`.
        responses_bytes_max: Option<usize> = None => example(67108864);
        /// Maximum number of stored responses. 0: none is stored.
        responses_max: usize = 10_000;
        /// Seconds of silence on a stream after which a keep-alive comment is sent.
        sse_keep_alive_s: u64 = 15 => reloaded().within(1..=SECONDS_MAX);
        /// Let models call the tools of the servers in `mcp_config`.
        enable_mcp: bool = false
            => gateway("", "Let models call the tools of the MCP servers in --mcp-config").serve("", SAME)
            .with(|arg| arg.requires("mcp_config"));
        /// File of MCP servers, in the format of Claude Desktop: `{"mcpServers": {NAME: {"command": …} or {"url":
        /// …}}}`.
        mcp_config: Option<PathBuf> = None
            => gateway("FILE", "File of MCP servers, in the format of Claude Desktop: {\"mcpServers\": {NAME: \
                                {\"command\": …} or {\"url\": …}}}")
            .serve("FILE", "MCP servers, in the format of Claude Desktop: {\"mcpServers\": {NAME: {\"command\": …} or \
                            {\"url\": …}}}").with(|arg| arg.requires("enable_mcp"))
            .example("/etc/hanzo-engine/mcp.json");
        /// Serve MCP on `mcp_port` too; `/mcp` of the HTTP port always serves it.
        mcp_enabled: bool = false
            => gateway("", "Serve MCP on a separate port too; /mcp of the HTTP port always serves it")
            .serve("", "Serve MCP on a separate port too; the HTTP port always serves it at /mcp");
        /// TCP port for MCP alone; 0 picks a free one.
        mcp_port: u16 = 3691 => gateway("PORT", "Port for MCP with --mcp-enabled; 0 picks a free one [default: 3691]")
            .serve("PORT", "Port of MCP with --mcp-enabled; 0 for any free one [default: 3691]");
        /// Maximum MCP sessions at once; an idle one is ended to make room.
        mcp_sessions_max: usize = 1024 => within(1..=u64::MAX);
        /// Seconds after which an idle MCP session ends.
        mcp_idle_s: u64 = 3600 => within(1..=SECONDS_MAX);
        /// Seconds that running requests may take after the shutdown signal.
        drain_s: u64 = 30 => reloaded().shared("server.drain_s").within(0..=SECONDS_MAX)
            .gateway("SECONDS", "Seconds that running requests may take after SIGTERM or SIGQUIT [default: 30]");
        /// Log level (`error`, `warn`, `info`, `debug`, `trace`), or a filter such as
        /// `info,hanzo_engine_gateway=debug`. Also read from `HANZO_ENGINE_LOG_LEVEL`.
        log_level: String = "info".to_owned() => reloaded()
            .gateway("LEVEL", "Log level (error, warn, info, debug, trace), or a filter such as \
                               hanzo_engine_gateway=debug [default: \
                               info]").with(|arg| arg.env("HANZO_ENGINE_LOG_LEVEL"));
        /// Format of the log: `pretty` for people, or `json`.
        log_format: LogFormat = LogFormat::Pretty => gateway("FORMAT", "Format of the log [default: pretty]")
            .with(|arg| arg.env("HANZO_ENGINE_LOG_FORMAT"));
        /// OTLP endpoint for traces of requests, such as `http://localhost:4317`; unset:
        /// `OTEL_EXPORTER_OTLP_ENDPOINT`, or no traces.
        traces_endpoint: Option<String> = None => shared("traces.endpoint")
            .gateway("URL", "OTLP endpoint for traces of requests, such as http://localhost:4317 [default: \
                             OTEL_EXPORTER_OTLP_ENDPOINT]").example("http://localhost:4317");
        /// Protocol of the traces: `grpc` or `http/protobuf`; unset: `OTEL_EXPORTER_OTLP_PROTOCOL`, or `grpc`.
        traces_protocol: Option<Protocol> = None => shared("traces.protocol").example("grpc");
        /// Share of requests to trace, from 0 to 1. A request that is part of a trace already follows that trace's
        /// decision. Unset: `OTEL_TRACES_SAMPLER`, or all.
        traces_ratio: Option<f64> = None => shared("traces.ratio").example(0.1);
        /// Seconds after which a generation, embedding or scoring request ends with 504; unset: no limit.
        request_timeout_s: Option<u64> = None => reloaded().within(0..=SECONDS_MAX)
            .gateway("SECONDS", "Seconds after which a request to the engine ends with 504 [default: no limit]")
            .example(600);
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
            figment = figment.merge(settings::file(path));
        }
        // Read separately: a key may look like a number, and no error may repeat it.
        let secrets: Vec<_> = Self::settings().into_iter().filter(|setting| setting.is_secret).collect();
        for setting in &secrets {
            if let Some(secret) = Secret::of_first_env(setting.variables).map_err(GatewayError::Config)? {
                figment = figment.merge((setting.key, secret.text()));
            }
        }
        let secrets: Vec<_> = secrets.iter().map(|setting| setting.key).collect();
        let config: Config = figment
            .merge(Env::prefixed("HANZO_ENGINE_GATEWAY_").ignore(&secrets))
            .merge(Serialized::defaults(flags))
            .extract()
            .map_err(|error| GatewayError::Config(reason::<Config>(&error)))?;
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
        if self.bodies_bytes_max < self.body_bytes_max {
            return refuse("bodies_bytes_max: must be at least body_bytes_max");
        }
        if let Some((key, Bounds { range, text }, value)) = out_of_bounds(&Self::settings(), &self.values()) {
            return refuse(&match text {
                "" if value < *range.start() => format!("{key}: must be at least {}", range.start()),
                "" => format!("{key}: must be at most {}", range.end()),
                text => format!("{key}: {text}"),
            });
        }
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
        Ok(self)
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
        parse_host(&self.host).ok()
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
