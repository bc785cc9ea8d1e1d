//! Connections of commands to the running daemon, to the store, or to a daemon in this process.

use crate::args::{EngineArgs, KvTypeName, StoreArgs};
use crate::error::CliError;
use crate::term::{harmless, tell};
use figment::Figment;
use figment::providers::Serialized;
use hanzo_engine_access::{ClientTls, Secret, channel, mistaken_server, with_key};
use hanzo_engine_daemon::config::LogConfig;
use hanzo_engine_daemon::{Config, Daemon, DaemonError, log};
use hanzo_engine_process::tasks;
use hanzo_engine_proto::v1::{
    StatsRequest, engine_client::EngineClient, speech_client::SpeechClient, store_client::StoreClient,
};
use std::convert::Infallible;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http;
use tonic::transport::{Endpoint, Uri};
use tonic::{Code, Request, Status};
use tower::ServiceExt as _;
use tower::util::BoxCloneSyncService;

/// Default address of a daemon.
const ADDRESS: &str = "http://127.0.0.1:36901";
/// Timeout of a connection to a daemon.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Timeout of the probe that checks for a daemon.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum bytes of a response, such as a model's details with its chat template, or a batch of vectors.
pub(crate) const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Transport of calls to a daemon: a connection, with the key that the daemon wants, or the daemon of this
/// process.
pub(crate) type Carrier =
    BoxCloneSyncService<http::Request<Body>, http::Response<Body>, tonic::transport::Error>;
/// Client of a daemon's engine service.
pub(crate) type Client = EngineClient<Carrier>;
/// Client of a daemon's store service.
pub(crate) type StoreApi = StoreClient<Carrier>;

/// Client of a daemon's speech service.
pub(crate) type SpeechApi = SpeechClient<Carrier>;

/// Connection to a running daemon.
pub(crate) struct DaemonConnection {
    /// Client of its engine.
    pub(crate) client: Client,
    /// Client of its store.
    pub(crate) store: StoreApi,
    /// Client of its speech service.
    pub(crate) speech: SpeechApi,
    /// True if it runs on this machine, so that its paths are valid here.
    pub(crate) here: bool,
}

/// Value of `--engine` for no daemon at all.
const NONE: &str = "none";

/// Connects to the daemon. A named daemon must answer. Without a name, the default address is tried and may be
/// silent.
pub(crate) async fn find(args: &EngineArgs) -> Result<Option<DaemonConnection>, CliError> {
    match args.engine.as_deref() {
        Some(NONE) => Ok(None),
        // An empty variable counts as unset.
        None | Some("") => match connect(ADDRESS, &Credentials::of(args)?).await {
            // A daemon runs. Another one in this process would only find the store locked.
            Err(error @ CliError::Key { .. }) => Err(error),
            found => Ok(found.ok()),
        },
        Some(address) => connect(address, &Credentials::of(args)?).await.map(Some),
    }
}

/// Connects as [`find`] does, for commands that only a running daemon can serve.
pub(crate) async fn need(args: &EngineArgs) -> Result<DaemonConnection, CliError> {
    match args.engine.as_deref() {
        Some(NONE) => {
            Err(CliError::Usage("this asks a running daemon: --engine none leaves nobody to ask".into()))
        }
        address => {
            let address = address.filter(|address| !address.is_empty()).unwrap_or(ADDRESS);
            connect(address, &Credentials::of(args)?).await
        }
    }
}

/// Configures a gateway in this process to use the daemon at `in_process`, or else the one that [`find`] finds.
pub(crate) fn gateway_config(
    args: &EngineArgs,
    in_process: Option<&str>,
) -> Result<hanzo_engine_gateway::Config, CliError> {
    let unset = hanzo_engine_gateway::Config::default();
    if let Some(address) = in_process {
        return Ok(hanzo_engine_gateway::Config { engine: address.to_owned(), ..unset });
    }
    let address = args.engine.as_deref().filter(|address| !address.is_empty()).unwrap_or(ADDRESS);
    let engine = if address.contains("://") { address.to_owned() } else { format!("http://{address}") };
    let Credentials { key, tls } = Credentials::of(args)?;
    let ClientTls { ca, cert, key: cert_key } = tls;
    Ok(hanzo_engine_gateway::Config {
        engine,
        engine_api_key: key,
        engine_ca: ca,
        engine_cert: cert,
        engine_cert_key: cert_key,
        ..unset
    })
}

/// Credentials for a daemon.
#[derive(Default)]
pub(crate) struct Credentials {
    key: Option<Secret>,
    tls: ClientTls,
}

impl Credentials {
    fn of(args: &EngineArgs) -> Result<Self, CliError> {
        let key = key(args.api_key.as_deref())?;
        // An empty variable names no file.
        let file = |path: &Option<PathBuf>| path.clone().filter(|path| !path.as_os_str().is_empty());
        let tls = ClientTls {
            ca: file(&args.engine_ca),
            cert: file(&args.engine_cert),
            key: file(&args.engine_cert_key),
        };
        Ok(Self { key, tls })
    }
}

/// Key for a daemon, from the flag or an environment variable.
pub(crate) fn key(typed: Option<&str>) -> Result<Option<Secret>, CliError> {
    match typed.filter(|key| !key.is_empty()) {
        Some(key) => {
            Secret::new(key).map(Some).map_err(|reason| CliError::Usage(format!("--api-key: {reason}")))
        }
        None => Secret::of_first_env(&["HANZO_ENGINE_API_KEY", "HANZO_ENGINE_AUTH_TOKEN"])
            .map_err(CliError::Usage),
    }
}

/// Client of a daemon in this process.
pub(crate) fn local<S>(engine: S) -> Client
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send + 'static,
{
    let carrier = BoxCloneSyncService::new(engine.map_err(|never| match never {}));
    EngineClient::new(carrier).max_decoding_message_size(MESSAGE_BYTES_MAX)
}

/// Connects to the daemon at `address` and checks that it answers as one.
pub(crate) async fn connect(address: &str, credentials: &Credentials) -> Result<DaemonConnection, CliError> {
    let no_daemon = |why: String| CliError::NoDaemon { address: address.to_owned(), why };
    let with_scheme = if address.contains("://") { address.to_owned() } else { format!("http://{address}") };
    let uri: Uri = with_scheme
        .parse()
        .map_err(|_| no_daemon("this is no address such as http://127.0.0.1:36901".into()))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(no_daemon("the address must begin with http:// or https://".into()));
    }
    let here = uri.host().is_some_and(|host| {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    });
    let endpoint = Endpoint::from(uri).connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true);
    let opened = channel(&endpoint, &credentials.tls).await?;
    let channel = opened.map_err(|error| no_daemon(of_server(root_cause(&error))))?;
    let channel = BoxCloneSyncService::new(channel.map_request(with_key(credentials.key.as_ref())));
    let store = StoreClient::new(channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let speech = SpeechClient::new(channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let mut client = EngineClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
    // Something listens. Probe whether it is a daemon.
    let probe = client.stats(Request::new(StatsRequest::default()));
    match tokio::time::timeout(PROBE_TIMEOUT, probe).await {
        Ok(Ok(_)) => Ok(DaemonConnection { client, store, speech, here }),
        Ok(Err(status)) if status.code() == Code::Unauthenticated => {
            let why = match &credentials.key {
                Some(_) => "the daemon there wants another key than it was sent",
                None => "the daemon there wants a key",
            };
            Err(CliError::Key { address: address.to_owned(), why: why.to_owned() })
        }
        Ok(Err(status)) => Err(no_daemon(match mistaken_server(status.message()) {
            Some(why) => why.to_owned(),
            // The connection itself broke, as a plaintext connection to a TLS server does.
            None if std::error::Error::source(&status).is_some() => {
                format!("the connection ended: {}; a server with TLS wants https://", root_cause(&status))
            }
            None => format!("the server there said: {}", status.message()),
        })),
        Err(_) => Err(no_daemon("what listens there says nothing".into())),
    }
}

/// Converts the status of a failed call: the daemon's message, or the loss of the connection.
pub(crate) fn failed(status: Status) -> CliError {
    match std::error::Error::source(&status) {
        Some(source) => CliError::Lost(of_server(root_cause(source))),
        None => CliError::Engine(status),
    }
}

/// Returns the reason, or advice if another kind of server answers.
fn of_server(reason: String) -> String {
    mistaken_server(&reason).map_or(reason, str::to_owned)
}

/// Innermost reason: "Connection refused", not "transport error".
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// Daemon in this process, on free ports of the loopback address, until it is dropped or closed.
pub(crate) struct InProcess {
    /// Client of its engine.
    pub(crate) client: Client,
    /// Client of its store.
    pub(crate) store: StoreApi,
    /// Client of its speech service.
    pub(crate) speech: SpeechApi,
    /// Address of its gRPC port.
    pub(crate) address: String,
    stop: CancellationToken,
    served: JoinHandle<Result<(), DaemonError>>,
}

impl InProcess {
    /// Starts a daemon. With `store_optional`, continues without the store if another process has it. `kv_type`
    /// overrides the environment.
    pub(crate) async fn start(
        model_dir: Option<PathBuf>,
        store_optional: bool,
        kv_type: Option<KvTypeName>,
    ) -> Result<Self, CliError> {
        // Overrides the environment, whose settings are for a daemon that serves others.
        let mut config = Config::load(None, Figment::from(Serialized::default("server.host", "127.0.0.1")))?;
        config.server.open();
        (config.server.grpc_port, config.server.admin_port) = (0, 0);
        config.server.drain_s = 0;
        config.models.clear();
        config.store.optional = store_optional;
        if let Some(dir) = model_dir {
            config.store.dir = Some(dir);
        }
        if let Some(KvTypeName(kv_type)) = kv_type {
            config.engine.kv_type = kv_type;
        }
        let daemon = Daemon::bind(config).await?;
        if let Some(mended) = daemon.mended() {
            tell(&format!("warning: {}\n", harmless(&mended)));
        }
        let address = format!("http://{}", daemon.grpc_addr());
        let stop = CancellationToken::new();
        let served = tasks::spawn(daemon.serve(stop.clone().cancelled_owned()));
        let DaemonConnection { client, store, speech, .. } =
            connect(&address, &Credentials::default()).await?;
        Ok(Self { client, store, speech, address, stop, served })
    }

    /// Stops it and waits until its files and memory are released.
    pub(crate) async fn close(self) -> Result<(), CliError> {
        self.stop.cancel();
        match self.served.await {
            Ok(ended) => Ok(ended?),
            Err(panicked) => Err(CliError::Start(format!("the daemon in this process failed: {panicked}"))),
        }
    }
}

/// Access to the store: through the running daemon, or through one in this process that opens the store during
/// the command.
pub(crate) struct StoreAccess {
    /// Client for pulls.
    pub(crate) client: Client,
    /// Client for other operations on the store.
    pub(crate) store: StoreApi,
    /// True if its paths are valid on this machine.
    pub(crate) here: bool,
    in_process: Option<InProcess>,
}

impl StoreAccess {
    /// Connects to a running daemon, or starts one.
    pub(crate) async fn open(engine: &EngineArgs, store: &StoreArgs) -> Result<Self, CliError> {
        match find(engine).await? {
            Some(DaemonConnection { client, store, here, .. }) => {
                Ok(Self { client, store, here, in_process: None })
            }
            None => {
                log::init(&LogConfig { level: "error".to_owned(), ..LogConfig::default() })?;
                Self::open_here(store.model_dir.clone(), false).await
            }
        }
    }

    /// Opens the store on this machine even if a daemon runs. Does not start logging. See [`InProcess::start`].
    pub(crate) async fn open_here(dir: Option<PathBuf>, store_optional: bool) -> Result<Self, CliError> {
        let daemon = InProcess::start(dir, store_optional, None).await?;
        let (client, store) = (daemon.client.clone(), daemon.store.clone());
        Ok(Self { client, store, here: true, in_process: Some(daemon) })
    }

    /// Releases the store, also after a failure: another process may wait for it.
    pub(crate) async fn close<T>(self, done: Result<T, CliError>) -> Result<T, CliError> {
        let closed = match self.in_process {
            Some(daemon) => daemon.close().await,
            None => Ok(()),
        };
        let done = done?;
        closed?;
        Ok(done)
    }
}
