//! Tests of gRPC over TLS and of client certificates, and of silent connections to both ports.

use std::path::{Path, PathBuf};

use hanzo_engine_access::{ClientTls, channel};
use tonic::transport::Endpoint;

use super::*;

fn data(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../access/testdata")).join(name)
}

/// Starts a daemon with this configuration and without models. Returns its handle and the sender that stops it.
async fn served(change: impl FnOnce(&mut Config)) -> (DaemonHandle, oneshot::Sender<()>, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::default();
    (config.server.grpc_port, config.server.admin_port) = (0, 0);
    config.store.dir = Some(dir.path().join("store"));
    config.engine.memory_budget_bytes = Some(2 << 30);
    change(&mut config);
    let daemon = Daemon::bind_on(config, DemoDevice::new()).await.unwrap();
    let handle = daemon.handle();
    let (stop, stopped) = oneshot::channel::<()>();
    tokio::spawn(daemon.serve(async { drop(stopped.await) }));
    (handle, stop, dir)
}

async fn asks(handle: &DaemonHandle, scheme: &str, tls: ClientTls) -> bool {
    let uri = format!("{scheme}://127.0.0.1:{}", handle.grpc_addr().port());
    let endpoint = Endpoint::from_shared(uri).unwrap();
    let Ok(channel) = in_time(channel(&endpoint, &tls)).await.unwrap() else { return false };
    in_time(EngineClient::new(channel).stats(v1::StatsRequest::default())).await.is_ok()
}

fn trusting() -> ClientTls {
    ClientTls { ca: Some(data("authority.pem")), ..ClientTls::default() }
}

#[tokio::test]
async fn grpc_is_spoken_by_tls() {
    let (handle, _stop, _dir) = served(|config| {
        let server = &mut config.server;
        (server.tls_cert, server.tls_key) = (Some(data("server.pem")), Some(data("server.key.pem")));
    })
    .await;
    assert!(asks(&handle, "https", trusting()).await);
    assert!(!asks(&handle, "http", ClientTls::default()).await, "in the clear");
    let strange = ClientTls { ca: Some(data("stranger-authority.pem")), ..ClientTls::default() };
    assert!(!asks(&handle, "https", strange).await, "an authority that has not signed it");
}

#[tokio::test]
async fn a_gateway_shows_its_certificate() {
    let (handle, _stop, _dir) = served(|config| {
        let server = &mut config.server;
        (server.tls_cert, server.tls_key) = (Some(data("server.pem")), Some(data("server.key.pem")));
        server.tls_client_ca = Some(data("authority.pem"));
    })
    .await;
    let showing = |name: &str| ClientTls {
        cert: Some(data(&format!("{name}.pem"))),
        key: Some(data(&format!("{name}.key.pem"))),
        ..trusting()
    };
    assert!(asks(&handle, "https", showing("client")).await);
    assert!(!asks(&handle, "https", showing("stranger")).await);
    assert!(!asks(&handle, "https", trusting()).await);
}

#[tokio::test]
async fn a_grpc_port_bears_so_many_connections() {
    let (handle, _stop, _dir) = served(|config| config.server.connections_max = 2).await;
    // Silent connections give way to others.
    let mut silent = Vec::new();
    for _ in 0..3 {
        silent.push(TcpStream::connect(handle.grpc_addr()).await.unwrap());
    }
    assert!(asks(&handle, "http", ClientTls::default()).await);
    let begun = async || {
        let mut stream = TcpStream::connect(handle.grpc_addr()).await.unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        let mut settings = [0; 9];
        in_time(stream.read_exact(&mut settings)).await.unwrap();
        stream
    };
    let mut held = vec![begun().await];
    assert!(asks(&handle, "http", ClientTls::default()).await);
    held.push(begun().await);
    // A connection above the limit waits until another has closed.
    let asked = async { asks(&handle, "http", ClientTls::default()).await };
    let mut asked = Box::pin(asked);
    assert!(timeout(Duration::from_millis(700), &mut asked).await.is_err(), "a third connection is answered");
    drop(held);
    assert!(in_time(asked).await);
}
