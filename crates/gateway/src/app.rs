//! What every handler shares: the gateway's state.

use std::sync::Arc;

use hanzo_engine_access::{Access, Refusal};
use hanzo_engine_mcp::{Servers, ServersConfig};
use hanzo_engine_telemetry::Traces;
use tokio::sync::Semaphore;

use crate::{
    answers::Answers,
    asker::Asker,
    bodies::Bodies,
    cloud::{Cloud, CloudSettings},
    config::Config,
    drain::Drain,
    engine::Engine,
    error::{ApiError, GatewayError},
    hosts::Hosts,
    limits::BODIES_READ_MAX,
    media_hosts::MediaHosts,
    metrics::Metrics,
    reload::Settings,
    responses::store::Responses,
};

/// The gateway's state. Nothing in it belongs to one request, and nothing but responses on disk outlives the process.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) config: Settings,
    engine: Engine,
    /// Who may ask.
    pub(crate) access: Arc<Access>,
    pub(crate) metrics: Metrics,
    pub(crate) drain: Drain,
    /// Room for request bodies: `Config::bodies_bytes_max` in all.
    pub(crate) bodies: Bodies,
    /// Room for sound files that come before the fields of their form: the same again.
    pub(crate) sounds: Bodies,
    /// Larger bodies that are being read.
    pub(crate) bodies_read: Arc<Semaphore>,
    /// Room for answers that are collected.
    pub(crate) answers: Answers,
    /// The hosts that are answered to.
    pub(crate) hosts: Hosts,
    /// The hosts that pictures are fetched from.
    pub(crate) media_hosts: MediaHosts,
    /// The MCP servers whose tools models may call.
    pub(crate) mcp_servers: Option<Arc<Servers>>,
    /// Another server that answers in this one's place.
    pub(crate) cloud: Option<Arc<Cloud>>,
    /// Bytes of vectors that may be held: `Config::embeddings_bytes_max` in all.
    pub(crate) vectors: Arc<Semaphore>,
    /// Answers that are kept.
    pub(crate) responses: Responses,
    /// Where requests' spans are made.
    pub(crate) traces: Traces,
}

impl App {
    /// The state for `config` and an engine; connects to nothing.
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
        let cloud =
            Cloud::of(&CloudSettings::of(&config), metrics.cloud_requests_total.clone())?.map(Arc::new);
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
            hosts: Hosts::of(&config),
            media_hosts: MediaHosts::of(&config)?,
            vectors: Arc::new(Semaphore::new(config.embeddings_bytes_max)),
            responses: Responses::open(&config)?,
            config: Settings::new(config),
        })
    }

    /// The engine, as far as who asks may use it: a handler has no other.
    pub(crate) fn engine(&self, asker: &Asker) -> Engine {
        self.engine.of(asker, self.metrics.refusals_total.clone(), self.cloud.clone())
    }

    /// The engine for what is about the server itself.
    pub(crate) fn own_engine(&self) -> Engine {
        self.engine.clone()
    }

    /// The answer to what a key may not do, which is counted.
    pub(crate) fn refuse(&self, refusal: &Refusal) -> ApiError {
        self.metrics.refusals_total.with_label_values(&[refusal.code()]).inc();
        ApiError::refusal(refusal)
    }
}
