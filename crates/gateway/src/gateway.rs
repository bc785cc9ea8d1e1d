//! The server: one listener, its connections, and the way down.

use std::{
    future::Future,
    net::{IpAddr, SocketAddr},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use axum::Router;
use hyper::{
    Request, Version,
    body::Incoming,
    service::{Service as _, service_fn},
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_util::sync::CancellationToken;

use crate::{
    app::App,
    config::Config,
    engine::{Engine, LocalEngine},
    error::GatewayError,
    limits::{ACCEPT_PAUSE, ENGINE_PING_TIMEOUT, HEADERS_TIMEOUT, LINGER_TIMEOUT},
    peer::{Peer, Socket},
    request_id::Client,
    routes::router,
};

/// A gateway that is bound to its port and does not serve yet.
#[derive(Debug)]
pub struct Gateway {
    listener: TcpListener,
    local_addr: SocketAddr,
    app: Arc<App>,
}

impl Gateway {
    /// Binds the port; port 0 picks a free one. The engine is connected to with the first request, so it may
    /// start later.
    ///
    /// # Errors
    /// [`GatewayError`] where a setting is out of range, the address is taken, or the engine's URI is not one.
    pub async fn bind(config: Config) -> Result<Gateway, GatewayError> {
        let config = config.checked()?;
        let engine = Engine::connect_lazy(&config.engine)?;
        Gateway::bind_with(config, engine).await
    }

    /// As [`Gateway::bind`], before an engine in this process: calls go to it directly, and `config.engine` is not used.
    ///
    /// # Errors
    /// As for [`Gateway::bind`].
    pub async fn bind_to(config: Config, engine: impl LocalEngine) -> Result<Gateway, GatewayError> {
        Gateway::bind_with(config.checked()?, Engine::local(engine)).await
    }

    async fn bind_with(config: Config, engine: Engine) -> Result<Gateway, GatewayError> {
        let ip = config.address().ok_or_else(|| GatewayError::Config(format!("host: {}", config.host)))?;
        let address = SocketAddr::new(ip, config.port);
        let app = Arc::new(App::new(config, engine)?);
        let bound = TcpListener::bind(address).await;
        let listener = bound.map_err(|source| GatewayError::Bind { address, source })?;
        let local_addr = listener.local_addr().map_err(|source| GatewayError::Bind { address, source })?;
        Ok(Gateway { listener, local_addr, app })
    }

    /// Where it listens, with the port that was picked.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Serves until `shutdown` resolves, then drains: `/ready` and new requests get 503, running ones go on
    /// for up to `drain_s` seconds and then end with an error.
    ///
    /// # Errors
    /// None once bound; the type leaves room.
    pub async fn serve(
        self,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), GatewayError> {
        let Gateway { listener, app, .. } = self;
        let drain_s = Duration::from_secs(app.config.drain_s);
        let permits = Arc::new(Semaphore::new(app.config.connections_max));
        let connections = Connections {
            router: router(Arc::clone(&app)),
            app: Arc::clone(&app),
            graceful: GracefulShutdown::new(),
            closed: CancellationToken::new(),
        };
        // Also when this future is dropped, no connection stays behind.
        let _closed = connections.closed.clone().drop_guard();
        let mut drained = pin!(async {
            shutdown.await;
            app.drain.run(drain_s).await;
        });
        loop {
            tokio::select! {
                () = &mut drained => break,
                (stream, from, permit) = accept(&listener, &permits) => connections.serve(stream, from, permit),
            }
        }
        drop(listener);
        if tokio::time::timeout(LINGER_TIMEOUT, connections.graceful.shutdown()).await.is_err() {
            tracing::warn!("closing connections whose clients do not read");
        }
        Ok(())
    }
}

async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> (TcpStream, IpAddr, Option<OwnedSemaphorePermit>) {
    // The semaphore is never closed: None cannot come, and would mean no limit.
    let permit = Arc::clone(permits).acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, from)) => return (stream, from.ip(), permit),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// What every connection is served with.
struct Connections {
    router: Router,
    app: Arc<App>,
    graceful: GracefulShutdown,
    closed: CancellationToken,
}

impl Connections {
    fn serve(&self, stream: TcpStream, from: IpAddr, permit: Option<OwnedSemaphorePermit>) {
        // Tokens are small writes that must not wait for each other.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "no TCP_NODELAY");
        }
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADERS_TIMEOUT).half_close(true);
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(ENGINE_PING_TIMEOUT)
            .keep_alive_timeout(ENGINE_PING_TIMEOUT);
        let (router, share) = (TowerToHyperService::new(self.router.clone()), self.app.bodies.share());
        let (peer, client) = (Peer::default(), Client::of(from));
        let of_requests = peer.clone();
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(share.clone());
            request.extensions_mut().insert(client.clone());
            // HTTP/2 says itself what becomes of a stream, and HTTP/1.0 knows no interim responses.
            let awaited = (request.version() == Version::HTTP_11).then(|| of_requests.asks());
            if awaited.is_some() {
                request.extensions_mut().insert(of_requests.clone());
            }
            let answer = router.call(request);
            async move {
                let answer = answer.await;
                drop(awaited);
                answer
            }
        });
        let socket = Socket::new(stream);
        let connection = builder.serve_connection(TokioIo::new(socket.clone()), service).into_owned();
        let connection = self.graceful.watch(connection);
        let closed = self.closed.clone();
        tokio::spawn(async move {
            tokio::select! {
                biased;
                ended = closed.run_until_cancelled_owned(connection) => {
                    if let Some(Err(error)) = ended {
                        tracing::debug!(error, "connection ended");
                    }
                }
                () = peer.gone(socket) => tracing::debug!("the client has gone"),
            }
            drop(permit);
        });
    }
}
