//! Listeners of the daemon: limits of connections, TLS, and timeouts.

use std::{net::SocketAddr, sync::Arc};

use axum::extract::ConnectInfo;
use hanzo_engine_access::{Limits, ServerTls, connections};
use hanzo_engine_process::tasks;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use tokio::net::TcpListener;
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Router;

use crate::{
    DaemonError,
    config::ServerConfig,
    limits::{
        ADDRESS_SHARE, ADMIN_CONNECTION_TIME, ADMIN_CONNECTIONS_MAX, ADMIN_HEADERS_BYTES_MAX, FLUSH_GRACE,
        HEADERS_TIMEOUT,
    },
};

/// Serves gRPC until `closing`.
pub(crate) async fn grpc(
    listener: TcpListener,
    tls: Option<Arc<ServerTls>>,
    limits: Limits,
    router: Router,
    closing: CancellationToken,
) -> Result<(), DaemonError> {
    let incoming = ReceiverStream::new(connections(listener, tls, limits)).map(Ok::<_, std::io::Error>);
    let served = router.serve_with_incoming_shutdown(incoming, closing.cancelled_owned()).await;
    served.map_err(|error| DaemonError::Server { what: "gRPC", reason: error.to_string() })
}

/// Limits of the gRPC port.
pub(crate) fn limits(config: &ServerConfig) -> Limits {
    Limits {
        connections_max: config.connections_max,
        of_address_max: config.connections_max.div_ceil(ADDRESS_SHARE),
        first: HEADERS_TIMEOUT,
    }
}

/// Serves the admin port until `closing`: HTTP without TLS, for probes and Prometheus.
pub(crate) async fn admin(
    listener: TcpListener,
    routes: axum::Router,
    closing: CancellationToken,
) -> Result<(), DaemonError> {
    let limits = Limits {
        connections_max: ADMIN_CONNECTIONS_MAX,
        of_address_max: ADMIN_CONNECTIONS_MAX.div_ceil(ADDRESS_SHARE),
        first: HEADERS_TIMEOUT,
    };
    let mut accepted = connections(listener, None, limits);
    let graceful = GracefulShutdown::new();
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_TIMEOUT)
        .max_buf_size(ADMIN_HEADERS_BYTES_MAX);
    loop {
        let connection = tokio::select! {
            () = closing.cancelled() => break,
            Some(connection) = accepted.recv() => connection,
        };
        let from: SocketAddr = connection.from();
        let routes = routes.clone().layer(axum::Extension(ConnectInfo(from)));
        let served = builder.serve_connection(TokioIo::new(connection), TowerToHyperService::new(routes));
        let served = graceful.watch(served.into_owned());
        // No response of this port takes long.
        tasks::spawn(tokio::time::timeout(ADMIN_CONNECTION_TIME, served));
    }
    drop(accepted);
    // Running responses may finish; idle connections are closed.
    let _ = tokio::time::timeout(FLUSH_GRACE, graceful.shutdown()).await;
    Ok(())
}
