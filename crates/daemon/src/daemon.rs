//! The daemon: binds everything first, serves until told to stop, then drains within a deadline.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc, RwLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use futures_util::future::BoxFuture;
use hanzo_engine_access::{Access, AccessError, ServerTls, TlsError};
use hanzo_engine_kernels_cuda::Driver;
use hanzo_engine_ops::KernelError;
use hanzo_engine_process::tasks;
use hanzo_engine_proto::v1::{
    self, engine_server::EngineServer, speech_server::SpeechServer, store_server::StoreServer,
};
use hanzo_engine_sound::Limits;
use hanzo_engine_store::{Store, StoreError};
use hanzo_engine_telemetry::Traces;
use prometheus::proto::MetricFamily;
use tokio::{
    net::TcpListener,
    task::{JoinSet, spawn_blocking},
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tonic::{
    Status,
    body::Body,
    codec::CompressionEncoding,
    codegen::http,
    transport::server::{Router, Server},
};
use tonic_health::pb::health_server::{Health, HealthServer};
use tower::util::BoxCloneSyncService;

#[cfg(target_os = "linux")]
use crate::isolated::IsolatedDevice;
use crate::{
    Config, ConfigError, admin,
    budget::{self, Budget},
    config::{EngineSection, Isolation, MetricsCompat, ServerConfig, StoreConfig},
    convert::{client::Clients, reply},
    cpu::Cpu,
    device::Device,
    devices::{self, Chosen, DevicePlace, OnCard, UsableGpu},
    drain::Drain,
    health,
    limits::{
        ARCHIVE_MESSAGE_BYTES_MAX, FLUSH_GRACE, HTTP2_KEEPALIVE, HTTP2_KEEPALIVE_TIMEOUT, PREFIX_DISK_FLUSH,
        SOUND_MESSAGE_BYTES_MAX, STREAMS_PER_CONNECTION_MAX,
    },
    load_request::{LoadRequest, configured},
    load_waits::{LoadTimes, Waiters},
    metrics::Metrics,
    models::Models,
    nvml::Cards,
    ports,
    prefix_disk::PrefixDisk,
    pulls::Pulls,
    registry::Registry,
    reloadable_settings::ReloadableSettings,
    service::{
        Both, Core, EngineService, Envelope, GuardedService, LocalInfer, SpeechService, StoreService,
        local_infer,
    },
    voice_activity::VoiceActivity,
};

/// Reason why the daemon cannot start, or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The keys cannot be used.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// TLS cannot be set up.
    #[error("TLS: {0}")]
    Tls(#[from] TlsError),
    /// An address cannot be bound.
    #[error(
        "cannot listen on {address} for {what}: {source}; choose another port ({key}), or 0 for any that is free"
    )]
    Bind {
        /// Host and port.
        address: SocketAddr,
        /// Name of the listener.
        what: &'static str,
        /// The configuration key of the port.
        key: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no home directory to keep the store in.
    #[error("no home directory to keep the model store in: set HANZO_MODELS_DIR, or store.dir")]
    NoStoreDirectory,
    /// The system does not say how much memory there is.
    #[error("cannot tell how much memory is available: set engine.memory_budget_bytes")]
    NoMemoryBudget,
    /// The device cannot be used.
    #[error(transparent)]
    Device(#[from] KernelError),
    /// The search for GPUs failed.
    #[error("cannot look for cards: {0}; set engine.devices to cpu")]
    Cards(String),
    /// A server ended on its own.
    #[error("the {what} server ended: {reason}")]
    Server {
        /// Name of the server.
        what: &'static str,
        /// Reason.
        reason: String,
    },
}

/// Daemon that has bound its addresses and opened its store. No model is loaded yet.
pub struct Daemon {
    config: Config,
    handle: DaemonHandle,
    grpc: TcpListener,
    tls: Option<Arc<ServerTls>>,
    admin: TcpListener,
    /// Reason why models run on the CPU although GPUs were searched for.
    no_cards: Option<String>,
    // Closes the workers when the daemon is dropped, whether it was served or not.
    _close: CloseOnDrop,
}

/// Handle of a running daemon.
#[derive(Clone)]
pub struct DaemonHandle {
    core: Arc<Core>,
    access: Arc<Access>,
    settings: ReloadableSettings,
    grpc_addr: SocketAddr,
    admin_addr: SocketAddr,
}

/// Place for a device that computes in host memory, with its memory budget.
fn host_place(engine: &EngineSection, device: Arc<dyn Device>) -> Result<DevicePlace, DaemonError> {
    let bytes = engine.models_bytes().or_else(budget::default_bytes).ok_or(DaemonError::NoMemoryBudget)?;
    Ok(DevicePlace { device, budget: Budget::new(bytes) })
}

struct CloseOnDrop(Arc<Models>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Daemon {
    /// Opens the store and binds both ports.
    ///
    /// # Errors
    /// [`DaemonError`], with advice on what to do.
    pub fn bind(config: Config) -> BoxFuture<'static, Result<Daemon, DaemonError>> {
        Box::pin(Self::bind_chosen(config))
    }

    async fn bind_chosen(config: Config) -> Result<Daemon, DaemonError> {
        config.check()?;
        let engine = &config.engine;
        // A driver may take seconds to start, and longer if it compiles kernels for the first time.
        let section = engine.clone();
        let chosen = spawn_blocking(move || devices::choose(&section, &Driver::default())).await;
        let Chosen { cards, cpu, no_cards } =
            chosen.map_err(|error| DaemonError::Cards(error.to_string()))??;
        let mut places = Vec::new();
        let weights = engine.encoder_weights;
        let processor = || Cpu::new(engine.threads).map(|cpu| cpu.with_encoder_weights(weights));
        let processor = cpu.then(processor).transpose()?;
        // Later GPUs may hold the first layers of a model that does not fit on this one.
        let all: Vec<OnCard> = cards.iter().map(|found| found.card.clone()).collect();
        for (at, UsableGpu { card, budget_bytes }) in cards.into_iter().enumerate() {
            let card = card.beside(processor.as_ref()).beside_cards(all[at + 1..].to_vec());
            let device: Arc<dyn Device> = match engine.isolation {
                #[cfg(target_os = "linux")]
                Some(Isolation::Process) => Arc::new(IsolatedDevice::on_card(engine, &config.log, card)),
                _ => Arc::new(card),
            };
            places.push(DevicePlace { device, budget: Budget::new(budget_bytes) });
        }
        if let Some(processor) = processor {
            let device: Arc<dyn Device> = match engine.isolation {
                #[cfg(target_os = "linux")]
                Some(Isolation::Process) => Arc::new(IsolatedDevice::new(engine, &config.log)?),
                _ => Arc::new(processor),
            };
            places.push(host_place(engine, device)?);
        }
        Ok(Daemon { no_cards, ..Self::bind_in(config, places).await? })
    }

    /// Same as [`Daemon::bind`], on another device.
    #[cfg(test)]
    pub(crate) async fn bind_on(config: Config, device: Arc<dyn Device>) -> Result<Daemon, DaemonError> {
        config.check()?;
        let place = host_place(&config.engine, device)?;
        Self::bind_in(config, vec![place]).await
    }

    pub(crate) async fn bind_in(config: Config, places: Vec<DevicePlace>) -> Result<Daemon, DaemonError> {
        let access = Arc::new(Access::open(config.server.access())?);
        let tls = ServerTls::open(config.server.tls(), &[b"h2"])?;
        let listening = &config.server;
        let grpc = bind(listening, listening.grpc_port, "gRPC", "server.grpc_port").await?;
        let admin = bind(listening, listening.admin_port, "the admin port", "server.admin_port").await?;
        let (store, store_missing) = open_store(config.store.clone()).await?;
        let prefix_disk = open_prefix_disk(&config.engine).await?;
        let metrics = Metrics::new(places.iter().map(|place| place.budget.total_bytes()).sum());
        if let Some(disk) = &prefix_disk {
            metrics.add(|registry| disk.register(registry));
        }
        let configured = configured(&config.models);
        let models = Arc::new(Models {
            registry: Registry::new(),
            places,
            metrics,
            store: store.clone(),
            store_missing: store_missing.clone(),
            section: RwLock::new(config.engine.clone()),
            prefix_disk,
            starting: AtomicUsize::new(configured.iter().filter(|model| model.at_start).count()),
            configured,
            room: tokio::sync::Mutex::default(),
            waiters: Waiters::default(),
            load_times: LoadTimes::default(),
        });
        let core = Arc::new(Core {
            models: models.clone(),
            pulls: Pulls::new(store, store_missing),
            drain: Drain::new(),
            started: Instant::now(),
            clients: Clients::default(),
            cards: Arc::new(Cards::of_the_driver()),
            traces: Traces::open(&config.traces, "engined").map_err(ConfigError::from)?,
            voice_activity: VoiceActivity::open(config.server.voice_activity.as_deref())?,
        });
        let address = |listener: &TcpListener, what| {
            let failed = |error: io::Error| DaemonError::Server { what, reason: error.to_string() };
            listener.local_addr().map_err(failed)
        };
        let (grpc_addr, admin_addr) = (address(&grpc, "gRPC")?, address(&admin, "admin")?);
        let settings = ReloadableSettings::new(config.clone(), tls.clone());
        let handle = DaemonHandle { core, access, settings, grpc_addr, admin_addr };
        Ok(Daemon { config, handle, grpc, tls, admin, no_cards: None, _close: CloseOnDrop(models) })
    }

    /// Summary in one line of the repairs made when the store was opened, if any.
    pub fn mended(&self) -> Option<String> {
        let store = self.handle.core.models.store.as_ref()?;
        store.mended().map(|repaired| repaired.summary(store.dir()))
    }

    /// Address of the gRPC listener.
    pub fn grpc_addr(&self) -> SocketAddr {
        self.handle.grpc_addr
    }

    /// Address of the admin listener with `/metrics`, `/healthz` and `/readyz`.
    pub fn admin_addr(&self) -> SocketAddr {
        self.handle.admin_addr
    }

    /// The services Engine, Store and Speech without a connection, but encoded, while the daemon is served. Its drain includes them.
    pub fn engine(&self) -> BoxCloneSyncService<http::Request<Body>, http::Response<Body>, Infallible> {
        let (core, bytes_max) = (&self.handle.core, self.config.server.message_bytes_max);
        let first = Both { first: engine_server(core, bytes_max), other: store_server(core, bytes_max) };
        BoxCloneSyncService::new(Both { first, other: speech_server(core, &self.config.server) })
    }

    /// The call Infer without a connection. Its message and its events are handed over in memory, within the same limit
    /// of the message's size.
    pub fn infer(&self) -> LocalInfer {
        local_infer(&self.handle.core, self.config.server.message_bytes_max)
    }

    /// Access control, shared with a front end in this process.
    pub fn access(&self) -> Arc<Access> {
        self.handle.access()
    }

    /// Handle that outlives [`Daemon::serve`].
    pub fn handle(&self) -> DaemonHandle {
        self.handle.clone()
    }

    /// Calls [`DaemonHandle::load`].
    ///
    /// # Errors
    /// The status that a client would receive.
    pub fn load<'a>(&'a self, source: &'a str) -> BoxFuture<'a, Result<v1::ModelStatus, Status>> {
        self.handle.load(source)
    }

    /// Starts loading the configured models and serves until `shutdown`. Then refuses new requests, gives running
    /// ones `server.drain_s` to finish, and ends the rest with UNAVAILABLE.
    ///
    /// # Errors
    /// [`DaemonError::Server`] if a server ends on its own.
    pub fn serve(
        self,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> BoxFuture<'static, Result<(), DaemonError>> {
        Box::pin(self.serve_until(Box::pin(shutdown)))
    }

    async fn serve_until(self, shutdown: BoxFuture<'static, ()>) -> Result<(), DaemonError> {
        let Daemon { config, handle, grpc, tls, admin, no_cards, _close } = self;
        if let Some(why) = no_cards {
            tracing::info!("models run on the processor: {why}");
        }
        let DaemonHandle { core, .. } = &handle;
        let (models, drain) = (&core.models, &core.drain);
        let closing = CancellationToken::new();
        let mut servers = JoinSet::new();
        let (reporter, health) = tonic_health::server::health_reporter();
        handle.access.follow();
        let router = router(&handle, health, &config.server)?;
        servers.spawn(ports::grpc(grpc, tls, ports::limits(&config.server), router, closing.clone()));
        let following = health::follow(reporter, models.clone(), drain.clone());
        servers.spawn(async move {
            following.await;
            Ok(())
        });
        let routes = admin::routes(core.clone(), handle.access(), &config.server);
        servers.spawn(ports::admin(admin, routes, closing.clone()));
        for request in models.configured.iter().filter(|request| request.at_start) {
            tasks::spawn(load_wanted(models.clone(), request.clone()));
        }

        tokio::select! {
            () = shutdown => {}
            Some(ended) = servers.join_next() => return Err(ended_early(ended)),
        }
        let time = handle.drain();
        tracing::info!(drain_s = time.as_secs(), "draining");
        drain.begin(time);
        if timeout(time, drain.idle()).await.is_err() {
            tracing::warn!("the drain's deadline is over; what still runs is ended");
        }
        models.close();
        core.pulls.close();
        // Let the last statuses reach their clients.
        let _ = timeout(FLUSH_GRACE, drain.idle()).await;
        closing.cancel();
        let ended = async { while servers.join_next().await.is_some() {} };
        let _ = timeout(FLUSH_GRACE, ended).await;
        // Model processes write their prefix cache to disk before they exit.
        let leaving = if models.prefix_disk.is_some() { PREFIX_DISK_FLUSH } else { Duration::ZERO };
        let _ = timeout(FLUSH_GRACE + leaving, models.closed()).await;
        if let Some(disk) = models.prefix_disk.clone() {
            let flush = tokio::task::spawn_blocking(move || disk.flush(PREFIX_DISK_FLUSH));
            let _ = timeout(PREFIX_DISK_FLUSH, flush).await;
        }
        core.traces.close().await;
        tracing::info!("stopped");
        Ok(())
    }
}

impl DaemonHandle {
    /// Address of the gRPC listener.
    pub fn grpc_addr(&self) -> SocketAddr {
        self.grpc_addr
    }

    /// Address of the admin listener with `/metrics`, `/healthz` and `/readyz`.
    pub fn admin_addr(&self) -> SocketAddr {
        self.admin_addr
    }

    /// Loads a model by its name in the store, a path or [`crate::DEMO_MODEL`], and waits until it is ready.
    ///
    /// # Errors
    /// The status that a client of the Load call would receive.
    pub fn load<'a>(&'a self, source: &'a str) -> BoxFuture<'a, Result<v1::ModelStatus, Status>> {
        Box::pin(async move {
            let request = LoadRequest { source: source.to_owned(), ..LoadRequest::default() };
            let (view, _) = self.core.models.load(request).await?;
            Ok(reply::model_status(&view))
        })
    }

    pub(crate) fn settings(&self) -> &ReloadableSettings {
        &self.settings
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Access control.
    pub(crate) fn access(&self) -> Arc<Access> {
        self.access.clone()
    }

    /// State of all models, in order of name.
    pub fn models(&self) -> Vec<v1::ModelStatus> {
        self.core.models.registry.views().iter().map(reply::model_status).collect()
    }

    /// Time that running requests may take after the shutdown signal, from the current settings.
    pub fn drain(&self) -> Duration {
        Duration::from_secs(self.settings.drain_s())
    }

    /// Metrics under vLLM's names, as with `server.metrics_compat`, for another port of this process.
    pub fn metrics_of_vllm(&self) -> Vec<MetricFamily> {
        let models = &self.core.models;
        let families =
            models.metrics.gather(&models.registry.views(), self.is_ready(), Some(MetricsCompat::Vllm));
        families.into_iter().filter(|family| family.name().starts_with("vllm:")).collect()
    }

    /// Whether any model's worker has work but makes no progress. Used by the watchdog.
    pub fn is_stuck(&self) -> bool {
        self.core.models.registry.is_stuck()
    }

    /// Whether a model is ready, as `/readyz` reports.
    pub fn is_ready(&self) -> bool {
        !self.core.drain.is_draining() && self.core.models.is_ready()
    }
}

async fn bind(
    server: &ServerConfig,
    port: u16,
    what: &'static str,
    key: &'static str,
) -> Result<TcpListener, DaemonError> {
    // Already checked with the rest of the configuration.
    let ip =
        server.ip().ok_or(ConfigError::Value { key: "server.host", reason: "is no address".to_owned() })?;
    let address = SocketAddr::new(ip, port);
    TcpListener::bind(address).await.map_err(|source| DaemonError::Bind { address, what, key, source })
}

/// Opens the store, or returns the reason why there is none.
async fn open_store(config: StoreConfig) -> Result<(Option<Store>, String), DaemonError> {
    let open = move || -> Result<Store, DaemonError> {
        let dir: PathBuf =
            config.dir.or_else(hanzo_engine_store::default_dir).ok_or(DaemonError::NoStoreDirectory)?;
        let store = Store::open(&dir)?;
        if let Some(repaired) = store.mended() {
            tracing::warn!("{}", repaired.summary(store.dir()));
        }
        Ok(store)
    };
    let opened = tasks::blocking(open).await;
    let opened = opened.map_err(|error| DaemonError::Server { what: "store", reason: error.to_string() })?;
    match opened {
        Ok(store) => Ok((Some(store), String::new())),
        Err(error) if config.optional => {
            tracing::warn!(%error, "going on without the model store");
            Ok((None, error.to_string()))
        }
        Err(error) => Err(error),
    }
}

fn engine_server(core: &Arc<Core>, message_bytes_max: usize) -> Envelope<EngineServer<EngineService>> {
    let service = EngineServer::new(EngineService(core.clone()))
        .accept_compressed(CompressionEncoding::Gzip)
        .send_compressed(CompressionEncoding::Gzip)
        .max_decoding_message_size(message_bytes_max)
        // Responses may be longer: prompts are echoed and logits listed.
        .max_encoding_message_size(usize::MAX);
    Envelope { service, message_bytes_max }
}

fn store_server(core: &Arc<Core>, message_bytes_max: usize) -> Envelope<StoreServer<StoreService>> {
    let message_bytes_max = message_bytes_max.max(ARCHIVE_MESSAGE_BYTES_MAX);
    let service = StoreServer::new(StoreService(core.clone()))
        .accept_compressed(CompressionEncoding::Gzip)
        .send_compressed(CompressionEncoding::Gzip)
        .max_decoding_message_size(message_bytes_max);
    Envelope { service, message_bytes_max }
}

fn speech_server(core: &Arc<Core>, config: &ServerConfig) -> Envelope<SpeechServer<SpeechService>> {
    let sounds = Limits { bytes_max: config.sound_bytes_max, seconds_max: config.sound_s_max as f64 };
    let message_bytes_max = config.message_bytes_max.max(2 * SOUND_MESSAGE_BYTES_MAX);
    let service = SpeechServer::new(SpeechService { core: core.clone(), sounds })
        .accept_compressed(CompressionEncoding::Gzip)
        .send_compressed(CompressionEncoding::Gzip)
        .max_decoding_message_size(message_bytes_max);
    Envelope { service, message_bytes_max }
}

fn router(
    handle: &DaemonHandle,
    health: HealthServer<impl Health>,
    config: &ServerConfig,
) -> Result<Router, DaemonError> {
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(v1::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let failed = |error: tonic_reflection::server::Error| DaemonError::Server {
        what: "reflection",
        reason: error.to_string(),
    };
    let DaemonHandle { core, access, .. } = handle;
    fn guarded<S>(service: S, core: &Core, access: &Arc<Access>) -> GuardedService<S> {
        GuardedService { service, access: access.clone(), metrics: core.models.metrics.clone() }
    }
    let engine = guarded(engine_server(core, config.message_bytes_max), core, access);
    let store = guarded(store_server(core, config.message_bytes_max), core, access);
    let speech = guarded(speech_server(core, config), core, access);
    let server = Server::builder()
        .http2_keepalive_interval(Some(HTTP2_KEEPALIVE))
        .http2_keepalive_timeout(Some(HTTP2_KEEPALIVE_TIMEOUT))
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
        .add_service(engine)
        .add_service(store)
        .add_service(speech)
        // Open to all clients, like probes.
        .add_service(health)
        .add_service(guarded(reflection().build_v1().map_err(failed)?, core, access))
        .add_service(guarded(reflection().build_v1alpha().map_err(failed)?, core, access));
    Ok(server)
}

/// Opens the directory that keeps KV cache blocks, if configured.
async fn open_prefix_disk(engine: &EngineSection) -> Result<Option<Arc<PrefixDisk>>, DaemonError> {
    let (Some(dir), bytes_max) = (engine.prefix_cache_dir.clone(), engine.prefix_cache_bytes) else {
        return Ok(None);
    };
    let opened = tokio::task::spawn_blocking(move || {
        PrefixDisk::open(&dir, bytes_max).map_err(|error| {
            let reason = format!("{}: {error}", dir.display());
            ConfigError::Value { key: "engine.prefix_cache_dir", reason }
        })
    });
    let ended = |error: tokio::task::JoinError| DaemonError::Server {
        what: "prefix cache",
        reason: error.to_string(),
    };
    Ok(Some(opened.await.map_err(ended)??))
}

fn ended_early(ended: Result<Result<(), DaemonError>, tokio::task::JoinError>) -> DaemonError {
    let reason = match ended {
        Ok(Ok(())) => "without a reason".to_owned(),
        Ok(Err(error)) => return error,
        Err(error) => error.to_string(),
    };
    DaemonError::Server { what: "gRPC or admin", reason }
}

/// Loads a configured model. A failure is logged and shown as the model's state; the other models still load.
async fn load_wanted(models: Arc<Models>, request: LoadRequest) {
    let source = request.source.clone();
    if let Err(error) = models.load_configured(request).await {
        tracing::error!(model = source, %error, "a model of the configuration was not loaded");
    }
    models.starting.fetch_sub(1, Relaxed);
}
