//! The port itself: TLS in front of HTTP/1.1 and HTTP/2, connections that say nothing or too much, and pages of other
//! origins.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use hanzo_engine_access::ClientTls;
use hanzo_engine_gateway::Config;
use http_body_util::{BodyExt as _, Empty};
use hyper::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{
    PATIENCE, Server,
    fake::hello,
    http::{get, send},
    script,
};

fn data(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../access/testdata")).join(name)
}

fn with_tls(config: &mut Config) {
    (config.tls_cert, config.tls_key) = (Some(data("server.pem")), Some(data("server.key.pem")));
}

async fn shaken(server: &Server, tls: ClientTls, protocol: &[u8]) -> std::io::Result<TlsStream<TcpStream>> {
    let config = ClientTls { ca: Some(data("authority.pem")), ..tls }.config(&[protocol]).unwrap();
    let stream = TcpStream::connect(server.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    timeout(PATIENCE, TlsConnector::from(Arc::clone(&config)).connect(name, stream))
        .await
        .expect("a handshake")
}

async fn over_http1(server: &Server, tls: ClientTls) -> Option<u16> {
    let stream = shaken(server, tls, b"http/1.1").await.ok()?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.ok()?;
    tokio::spawn(connection);
    let request = Request::get("/version").header("host", "localhost").body(Empty::<Bytes>::new()).unwrap();
    let answer = timeout(PATIENCE, sender.send_request(request)).await.expect("an answer").ok()?;
    let status = answer.status().as_u16();
    answer.into_body().collect().await.ok()?;
    Some(status)
}

#[tokio::test]
async fn https_is_spoken_in_both_versions() {
    let server = Server::with(script(hello), with_tls).await;
    assert_eq!(over_http1(&server, ClientTls::default()).await, Some(200));
    let stream = shaken(&server, ClientTls::default(), b"h2").await.unwrap();
    let io = TokioIo::new(stream);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let uri = "https://localhost/v1/models";
    let request = Request::get(uri).body(Empty::<Bytes>::new()).unwrap();
    let answer = timeout(PATIENCE, sender.send_request(request)).await.expect("an answer").unwrap();
    assert_eq!(answer.status(), 200);
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    assert!(std::str::from_utf8(&body).unwrap().contains("owner/ready"));
    // In the clear nothing is answered.
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut said = Vec::new();
    // It may be cut off as well as closed.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut said)).await.expect("it stays");
    assert!(!said.starts_with(b"HTTP"), "{said:?}");
}

#[tokio::test]
async fn clients_can_be_made_to_show_a_certificate() {
    let server = Server::with(script(hello), |config| {
        with_tls(config);
        config.tls_client_ca = Some(data("authority.pem"));
    })
    .await;
    let showing = |name: &str| ClientTls {
        cert: Some(data(&format!("{name}.pem"))),
        key: Some(data(&format!("{name}.key.pem"))),
        ..ClientTls::default()
    };
    assert_eq!(over_http1(&server, showing("client")).await, Some(200));
    assert_eq!(over_http1(&server, showing("stranger")).await, None);
    assert_eq!(over_http1(&server, ClientTls::default()).await, None);
}

/// What comes of a connection on which that is sent, until the server closes it.
async fn until_closed(server: &Server, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut said = Vec::new();
    // It may be cut off as well as closed.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut said)).await.expect("it stays");
    String::from_utf8_lossy(&said).into_owned()
}

#[tokio::test]
async fn a_connection_that_does_not_begin_is_closed() {
    let server = Server::with(script(hello), |config| config.headers_timeout_s = 1).await;
    let begun = Instant::now();
    for bytes in [&b""[..], b"P", b"PRI * HTTP/2.0\r\n\r\nSM", b"GET / HTTP/1.1\r\nhost: localhost\r\n"] {
        let said = until_closed(&server, bytes).await;
        assert!(said.is_empty() || said.starts_with("HTTP/1.1 408"), "{said}");
    }
    assert!(begun.elapsed() > Duration::from_secs(3), "it is closed at once");
    assert_eq!(get(server.address, "/version").await.status, 200);
}

#[tokio::test]
async fn a_connection_that_asks_for_nothing_is_closed() {
    let server = Server::with(script(hello), |config| config.idle_timeout_s = 1).await;
    let said = until_closed(&server, b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert!(said.starts_with("HTTP/1.1 200"), "{said}");
    let stream = TcpStream::connect(server.address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let ended = tokio::spawn(connection);
    let request = || Request::get("http://localhost/version").body(Empty::<Bytes>::new()).unwrap();
    assert_eq!(sender.send_request(request()).await.unwrap().status(), 200);
    // Whether with a word or without: it ends.
    let _ = timeout(PATIENCE, ended).await.expect("it stays");
}

#[tokio::test]
async fn headers_are_bounded() {
    let server = Server::start(script(hello)).await;
    let one = format!("GET /version HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "x".repeat(1 << 20));
    let said = until_closed(&server, one.as_bytes()).await;
    assert!(said.is_empty() || said.starts_with("HTTP/1.1 431"), "{said}");
    let many: String = (0..10_000).map(|i| format!("x{i}: y\r\n")).collect();
    let many = format!("GET /version HTTP/1.1\r\nhost: localhost\r\n{many}\r\n");
    let said = until_closed(&server, many.as_bytes()).await;
    assert!(said.is_empty() || said.starts_with("HTTP/1.1 431"), "{said}");
    assert_eq!(get(server.address, "/version").await.status, 200);
}

#[tokio::test]
async fn pages_of_other_origins_ask_where_they_are_listed() {
    let server = Server::with(script(hello), |config| {
        config.cors_origins = vec!["https://chat.example.com".to_owned()];
        config.api_key = Some(hanzo_engine_access::Secret::new("long-enough").unwrap());
    })
    .await;
    let ask = async |method: &str, origin: &str, key: bool| {
        let mut request = Request::builder().method(method).uri("/v1/models").header("origin", origin);
        if method == "OPTIONS" {
            request = request
                .header("access-control-request-method", "POST")
                .header("access-control-request-headers", "authorization, content-type, x-stainless-os");
        }
        if key {
            request = request.header("authorization", "Bearer long-enough");
        }
        send(server.address, request.body(Empty::<Bytes>::new()).unwrap()).await
    };
    let origin = "https://chat.example.com";
    let answer = ask("OPTIONS", origin, false).await;
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (204, Some(origin)));
    assert!(answer.header("access-control-allow-methods").unwrap().contains("POST"));
    assert!(answer.header("access-control-allow-headers").unwrap().contains("x-stainless-os"));
    let answer = ask("GET", origin, true).await;
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, Some(origin)));
    assert_eq!(answer.header("vary"), Some("origin"));
    // What is wrong is told to the page too.
    let answer = ask("GET", origin, false).await;
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (401, Some(origin)));
    for other in
        ["https://evil.example", "https://chat.example.com.evil.example", "null", "http://chat.example.com"]
    {
        assert_eq!(ask("OPTIONS", other, false).await.header("access-control-allow-origin"), None, "{other}");
        assert_eq!(ask("GET", other, true).await.header("access-control-allow-origin"), None, "{other}");
    }
    let closed = Server::start(script(hello)).await;
    let request = Request::get("/version").header("origin", origin).body(Empty::<Bytes>::new()).unwrap();
    assert_eq!(send(closed.address, request).await.header("access-control-allow-origin"), None);
}
