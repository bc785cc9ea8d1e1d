//! The server: its listener, its connections, and its shutdown.

use std::{
    convert::Infallible, fmt::Display, future::Future, net::SocketAddr, pin::pin, sync::Arc, time::Duration,
};

use axum::{Router, body::Body};
use futures_util::future::BoxFuture;
use hanzo_engine_access::{
    Access, Connection, OpeningStream, Permit, ServerTls, Stream, connections, connections_until,
};
use hanzo_engine_process::tasks;
use hyper::{
    Request, Response, Version,
    body::Incoming,
    header::{self, HeaderValue},
    service::{Service, service_fn},
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use prometheus::proto::MetricFamily;
use tokio::{net::TcpListener, sync::mpsc::Receiver};
use tokio_util::sync::CancellationToken;

use crate::{
    app::App,
    busy::Busy,
    carrier::{LocalEngine, LocalInfer},
    config::Config,
    engine::Engine,
    error::GatewayError,
    fleet::{Resolve, SystemResolver},
    limits::{ENGINE_PING_TIMEOUT, HEADERS_BYTES_MAX, LINGER_TIMEOUT, STREAMS_PER_CONNECTION_MAX},
    listener::{self, Socket},
    mcp::Mcp,
    peer::{self, Peer},
    read_deadline::ReadDeadline,
    reload::Reload,
    routes::{mcp_router, router},
    track,
};

/// Gateway that is bound to its port but does not serve yet.
#[derive(Debug)]
pub struct Gateway {
    socket: Socket,
    mcp: Option<(TcpListener, SocketAddr)>, // separate port
    tls: Option<Arc<ServerTls>>,
    app: Arc<App>,
}

impl Gateway {
    /// Binds the port; port 0 picks a free one. The engine is connected at the first request, so it may start
    /// later.
    ///
    /// # Errors
    /// [`GatewayError`] if a setting is out of range, the address is in use, or the engine's URI is invalid.
    pub fn bind(config: Config) -> BoxFuture<'static, Result<Gateway, GatewayError>> {
        Gateway::bind_resolving(config, Arc::new(SystemResolver))
    }

    /// Like [`Gateway::bind`], but resolves the names in `config.upstreams` with `resolver`.
    ///
    /// # Errors
    /// As for [`Gateway::bind`].
    pub fn bind_resolving(
        config: Config,
        resolver: Arc<dyn Resolve>,
    ) -> BoxFuture<'static, Result<Gateway, GatewayError>> {
        Box::pin(async move {
            let config = config.checked()?;
            let key = config.engine_api_key.as_ref().or(config.api_key.as_ref());
            let tls = config.engine_tls();
            let engine = match config.targets()? {
                targets if targets.is_empty() => Engine::connect_lazy(&config.engine, key, &tls)?,
                targets => Engine::connect_all(targets, resolver, key, &tls).await?,
            };
            let access = Arc::new(Access::open(config.access())?);
            access.follow();
            Gateway::bind_with(config, engine, access).await
        })
    }

    /// Like [`Gateway::bind`], for an engine in this process: calls go to it directly, generations to `infer`, and
    /// `config.engine` is not used. `access` holds the keys of both ports and replaces the keys of `config`.
    ///
    /// # Errors
    /// As for [`Gateway::bind`].
    pub fn bind_to(
        config: Config,
        engine: impl LocalEngine,
        infer: LocalInfer,
        access: Arc<Access>,
    ) -> BoxFuture<'static, Result<Gateway, GatewayError>> {
        Gateway::bind_before(config, Engine::local(engine, infer), access)
    }

    fn bind_before(
        config: Config,
        engine: Engine,
        access: Arc<Access>,
    ) -> BoxFuture<'static, Result<Gateway, GatewayError>> {
        Box::pin(async move { Gateway::bind_with(config.checked()?, engine, access).await })
    }

    async fn bind_with(
        mut config: Config,
        engine: Engine,
        access: Arc<Access>,
    ) -> Result<Gateway, GatewayError> {
        let ip = config.address().ok_or_else(|| GatewayError::Config(format!("host: {}", config.host)))?;
        let address = SocketAddr::new(ip, config.port);
        let tls = ServerTls::open(config.tls(), &[b"h2", b"http/1.1"])?;
        let socket = listener::bind(&config, address).await?;
        if socket.is_shared {
            config.host = socket.address.ip().to_string();
        }
        let app = Arc::new(App::new(config, engine, access)?);
        let mcp = match app.config.mcp_enabled {
            true => Some(listen(SocketAddr::new(ip, app.config.mcp_port)).await?),
            false => None,
        };
        Ok(Gateway { socket, mcp, tls, app })
    }

    /// Adds metrics to `/metrics`, such as those of an engine in this process, for scrapers that read only one
    /// port.
    pub fn tell_also(&self, metrics: impl Fn() -> Vec<MetricFamily> + Send + Sync + 'static) {
        self.app.metrics.tell_also(Box::new(metrics));
    }

    /// Address of the separate MCP port, if there is one.
    pub fn mcp_addr(&self) -> Option<SocketAddr> {
        self.mcp.as_ref().map(|(_, address)| *address)
    }

    /// Listening address, with the port that was picked.
    pub fn local_addr(&self) -> SocketAddr {
        self.socket.address
    }

    /// Handle to change the settings while it serves.
    pub fn reload(&self) -> Reload {
        Reload { app: Arc::clone(&self.app), tls: self.tls.clone() }
    }

    /// Serves until `shutdown` resolves, then drains: `/ready` and new requests get 503. Running requests may
    /// take `drain_s` seconds more and then end with an error. On a socket held by systemd nothing is refused:
    /// the gateway stops accepting, and new clients wait for its successor.
    ///
    /// # Errors
    /// None once bound; the type allows for later ones.
    pub fn serve(
        self,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> BoxFuture<'static, Result<(), GatewayError>> {
        self.serve_boxed(Box::pin(shutdown))
    }

    fn serve_boxed(self, shutdown: BoxFuture<'static, ()>) -> BoxFuture<'static, Result<(), GatewayError>> {
        Box::pin(self.serve_until(shutdown))
    }

    async fn serve_until(self, shutdown: BoxFuture<'static, ()>) -> Result<(), GatewayError> {
        let Gateway { socket, mcp: of_mcp, tls, app, .. } = self;
        let accepts = CancellationToken::new();
        let stop = accepts.clone().cancelled_owned();
        let mut accepted = connections_until(socket.listener, tls.clone(), app.config.limits(), stop);
        let mut accepted_for_mcp =
            of_mcp.map(|(listener, _)| connections(listener, tls, app.config.limits()));
        let mcp = Mcp::new(&app);
        let connections = Connections {
            router: router(Arc::clone(&app), mcp.clone()),
            mcp_router: mcp_router(Arc::clone(&app), mcp),
            app: Arc::clone(&app),
            graceful: GracefulShutdown::new(),
            closed: CancellationToken::new(),
            accepts: accepts.clone(),
        };
        // Ends all connections and sessions even if this future is dropped.
        let _closed = connections.closed.clone().drop_guard();
        let _cut = app.drain.cut().drop_guard();
        let mut drained = pin!(async {
            shutdown.await;
            if socket.is_shared {
                accepts.cancel();
                let deadline = Duration::from_secs(app.config.drain_s);
                // Accepted connections are answered before anything is refused.
                let _ = tokio::time::timeout(deadline, app.drain.quiet()).await;
            }
            app.drain.run(Duration::from_secs(app.config.drain_s)).await;
        });
        loop {
            tokio::select! {
                () = &mut drained => break,
                // The sender accepts for as long as the receiver exists.
                Some(connection) = accepted.recv() => connections.serve(connection, &connections.router),
                Some(connection) = next(&mut accepted_for_mcp) => {
                    connections.serve(connection, &connections.mcp_router);
                }
            }
        }
        drop((accepted, accepted_for_mcp));
        if tokio::time::timeout(LINGER_TIMEOUT, connections.graceful.shutdown()).await.is_err() {
            tracing::warn!("closing connections whose clients do not read");
        }
        if let Some(servers) = &app.mcp_servers {
            servers.close().await;
        }
        app.traces.close().await;
        Ok(())
    }
}

async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), GatewayError> {
    let bound = TcpListener::bind(address).await;
    let listener = bound.map_err(|source| GatewayError::Bind { address, source })?;
    let local_addr = listener.local_addr().map_err(|source| GatewayError::Bind { address, source })?;
    Ok((listener, local_addr))
}

/// Next connection of a port that may not exist.
async fn next(accepted: &mut Option<Receiver<Connection>>) -> Option<Connection> {
    match accepted {
        Some(accepted) => accepted.recv().await,
        None => std::future::pending().await,
    }
}

/// Resolves when an idle connection must leave because its place is needed.
async fn makes_way(permit: &Permit, busy: &Busy) {
    loop {
        busy.idle_for(Duration::ZERO).await;
        let idle = permit.idle();
        tokio::select! {
            () = idle.makes_way() => if busy.is_idle() { return },
            () = busy.resumed() => {}
        }
    }
}

/// Shared state for serving connections.
struct Connections {
    router: Router,
    mcp_router: Router,
    app: Arc<App>,
    graceful: GracefulShutdown,
    closed: CancellationToken,
    accepts: CancellationToken, // cancelled: another process accepts from the socket now
}

impl Connections {
    fn serve(&self, connection: Connection, router: &Router) {
        let from = connection.from();
        let headers = Duration::from_secs(self.app.config.headers_timeout_s);
        let idle = Duration::from_secs(self.app.config.idle_timeout_s);
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(headers).max_buf_size(HEADERS_BYTES_MAX);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
            .max_header_list_size(HEADERS_BYTES_MAX as u32)
            .keep_alive_interval(ENGINE_PING_TIMEOUT)
            .keep_alive_timeout(ENGINE_PING_TIMEOUT);
        let (peer, busy) = (Peer::default(), Busy::default());
        let (stream, permit) = connection.into_parts();
        match stream {
            Stream::Plain(stream) => {
                let socket = peer::Socket::new(stream);
                builder.http1().half_close(true);
                let service = self.service(router, from, Some(peer.clone()), busy.clone());
                let io = TokioIo::new(OpeningStream::new(ReadDeadline::new(socket.clone(), idle), headers));
                let served = builder.serve_connection(io, service).into_owned();
                let gone = async move { peer.gone(socket).await };
                self.run(self.graceful.watch(served), gone, busy, permit);
            }
            // A client that closes its half of TLS has left, because nothing can be sent unencrypted.
            Stream::Tls(stream) => {
                let service = self.service(router, from, None, busy.clone());
                let io = TokioIo::new(OpeningStream::new(ReadDeadline::new(stream, idle), headers));
                let served = builder.serve_connection(io, service).into_owned();
                self.run(self.graceful.watch(served), std::future::pending(), busy, permit);
            }
        }
    }

    /// Service that answers the requests of a connection.
    fn service(
        &self,
        router: &Router,
        from: SocketAddr,
        peer: Option<Peer>,
        busy: Busy,
    ) -> impl Service<Request<Incoming>, Response = Response<Body>, Error = Infallible, Future: Send + 'static>
    + Send
    + 'static
    + use<> {
        let (router, share) = (TowerToHyperService::new(router.clone()), self.app.bodies.share());
        let accepts = self.accepts.clone();
        service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(share.clone());
            request.extensions_mut().insert(track::ClientAddress(from.ip()));
            request.extensions_mut().insert(busy.works());
            // HTTP/2 reports the end of a stream itself, and HTTP/1.0 has no interim responses.
            let peer_speaks_http1 = request.version() <= Version::HTTP_11;
            let peer = peer.as_ref().filter(|_| request.version() == Version::HTTP_11);
            let awaited = peer.map(Peer::asks);
            if let Some(peer) = peer {
                request.extensions_mut().insert(peer.clone());
            }
            let answer = router.call(request);
            let accepts = accepts.clone();
            async move {
                let mut answer = answer.await;
                drop(awaited);
                if accepts.is_cancelled()
                    && peer_speaks_http1
                    && let Ok(answer) = &mut answer
                {
                    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
                }
                answer
            }
        })
    }

    /// Serves a connection until it ends, its client is `gone`, or it has been idle for a while.
    fn run<E: Display + Send + 'static>(
        &self,
        served: impl Future<Output = Result<(), E>> + Send + 'static,
        gone: impl Future<Output = ()> + Send + 'static,
        busy: Busy,
        permit: Permit,
    ) {
        let (closed, idle) = (self.closed.clone(), Duration::from_secs(self.app.config.idle_timeout_s));
        tasks::spawn(async move {
            tokio::select! {
                biased;
                ended = closed.run_until_cancelled_owned(served) => {
                    if let Some(Err(error)) = ended {
                        tracing::debug!(%error, "connection ended");
                    }
                }
                () = gone => tracing::debug!("the client has gone"),
                () = busy.idle_for(idle) => tracing::debug!("a connection was idle"),
                () = makes_way(&permit, &busy) => tracing::debug!("an idle connection makes way for others"),
            }
            drop(permit);
        });
    }
}
