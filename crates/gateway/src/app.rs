//! Shared state of all handlers.

use std::sync::Arc;

use hanzo_engine_access::{Access, Refusal};
use hanzo_engine_mcp::{Servers, ServersConfig};
use hanzo_engine_telemetry::Traces;
use tokio::sync::Semaphore;

use crate::{
    answers::Answers,
    asker::Asker,
    bodies::Bodies,
    cloud::Cloud,
    config::Config,
    current_settings::CurrentSettings,
    drain::Drain,
    engine::Engine,
    error::{ApiError, GatewayError},
    hosts::Hosts,
    limits::BODIES_READ_MAX,
    media_hosts::MediaHosts,
    metrics::Metrics,
    response_store::Responses,
    until::Until,
};

/// State of the gateway. It holds nothing of a single request. Only responses on disk outlive the process.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) config: CurrentSettings,
    engine: Engine,
    /// Accepted API keys.
    pub(crate) access: Arc<Access>,
    pub(crate) metrics: Metrics,
    pub(crate) drain: Drain,
    /// Memory for request bodies: `Config::bodies_bytes_max` in total.
    pub(crate) bodies: Bodies,
    /// Memory for audio files that arrive before the fields of their form: as much again.
    pub(crate) sounds: Bodies,
    /// Permits to parse large bodies.
    pub(crate) bodies_read: Arc<Semaphore>,
    /// Memory for collected answers.
    pub(crate) answers: Answers,
    /// Accepted values of `Host`.
    pub(crate) hosts: Hosts,
    /// Hosts from which images may be fetched.
    pub(crate) media_hosts: MediaHosts,
    /// MCP servers whose tools models may call.
    pub(crate) mcp_servers: Option<Arc<Servers>>,
    /// Upstream server that may answer instead of the engine.
    pub(crate) cloud: Option<Arc<Cloud>>,
    /// Memory for embeddings: `Config::embeddings_bytes_max` bytes in total.
    pub(crate) vectors: Arc<Semaphore>,
    /// Stored responses.
    pub(crate) responses: Responses,
    /// Tracer of request spans.
    pub(crate) traces: Traces,
}

impl App {
    /// Creates the state without connecting to anything.
    pub(crate) fn new(config: Config, engine: Engine, access: Arc<Access>) -> Result<App, GatewayError> {
        let failed = |e: prometheus::Error| GatewayError::Config(format!("metrics: {e}"));
        let metrics = Metrics::new().map_err(failed)?;
        engine.register(&metrics).map_err(failed)?;
        let mcp_servers = match &config.mcp_config {
            Some(path) if config.enable_mcp => {
                let servers = ServersConfig::read(path);
                let servers = servers.map_err(|e| GatewayError::Config(format!("mcp_config: {e}")))?;
                Some(Arc::new(Servers::start(servers)))
            }
            _ => None,
        };
        let traces = Traces::open(&config.traces(), "engine-gateway")?;
        let cloud = Cloud::of(&config.cloud(), metrics.cloud_requests_total.clone())?.map(Arc::new);
        Ok(App {
            engine,
            traces,
            cloud,
            mcp_servers,
            access,
            metrics,
            drain: Drain::default(),
            bodies: Bodies::new(config.bodies_bytes_max, config.body_bytes_max),
            sounds: Bodies::new(config.bodies_bytes_max.max(config.sound_bytes_max), config.sound_bytes_max),
            bodies_read: Arc::new(Semaphore::new(BODIES_READ_MAX)),
            answers: Answers::new(config.answers_bytes_max),
            hosts: Hosts::of(config.address(), &config.allowed_hosts),
            media_hosts: MediaHosts::of(&config.media_hosts)?,
            vectors: Arc::new(Semaphore::new(config.embeddings_bytes_max)),
            responses: Responses::open(&config)?,
            config: CurrentSettings::new(config),
        })
    }

    /// Engine limited to what the requester may use. Handlers use no other.
    pub(crate) fn engine(&self, asker: &Asker) -> Engine {
        self.engine.of(asker, self.metrics.refusals_total.clone(), self.cloud.clone())
    }

    /// Engine for requests about the server itself.
    pub(crate) fn own_engine(&self) -> Engine {
        self.engine.clone()
    }

    /// Time limit of a request that begins now.
    pub(crate) fn until(&self) -> Until {
        Until::new(self.config.request_timeout_s, self.drain.cut())
    }

    /// Counts a refusal and returns it as an error.
    pub(crate) fn refuse(&self, refusal: &Refusal) -> ApiError {
        self.metrics.refusals_total.with_label_values(&[refusal.code()]).inc();
        ApiError::refusal(refusal)
    }
}
