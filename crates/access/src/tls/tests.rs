//! Tests of TLS on a port: renewed certificates, client certificates, and silent clients.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject as _};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{ClientTls, ServerTls, TlsSettings};
use crate::{Limits, connections};

const PATIENCE: Duration = Duration::from_secs(20);

fn data(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata")).join(name)
}

fn settings() -> TlsSettings {
    TlsSettings { cert: Some(data("server.pem")), key: Some(data("server.key.pem")), client_ca: None }
}

fn trusting() -> ClientTls {
    ClientTls { ca: Some(data("authority.pem")), ..ClientTls::default() }
}

/// Starts an echo server with these settings.
async fn echo(settings: TlsSettings, first: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let tls = ServerTls::open(settings, &[b"h2", b"http/1.1"]).unwrap();
    let limits = Limits { connections_max: 64, of_address_max: 64, first };
    let mut accepted = connections(listener, tls, limits);
    tokio::spawn(async move {
        while let Some(connection) = accepted.recv().await {
            tokio::spawn(async move {
                let (mut read, mut write) = tokio::io::split(connection);
                let _ = tokio::io::copy(&mut read, &mut write).await;
            });
        }
    });
    address
}

async fn connect(address: SocketAddr, tls: &ClientTls) -> std::io::Result<TlsStream<TcpStream>> {
    let config = tls.config(&[b"h2"]).unwrap();
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    timeout(PATIENCE, TlsConnector::from(config).connect(name, stream)).await.expect("a handshake")
}

/// Whether the server echoes what the client sends.
async fn answers(address: SocketAddr, tls: &ClientTls) -> bool {
    let Ok(mut stream) = connect(address, tls).await else { return false };
    let mut back = [0; 5];
    // In TLS 1.3 a server rejects the client's certificate only after the handshake.
    let exchange = async {
        stream.write_all(b"hello").await?;
        stream.read_exact(&mut back).await
    };
    timeout(PATIENCE, exchange).await.expect("an answer").is_ok() && &back == b"hello"
}

#[tokio::test]
async fn a_renewed_certificate_is_taken_while_it_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    fs::copy(data("server.pem"), &cert).unwrap();
    fs::copy(data("server.key.pem"), &key).unwrap();
    let tls = TlsSettings { cert: Some(cert.clone()), key: Some(key.clone()), client_ca: None };
    let address = echo(tls, PATIENCE).await;
    let shown = async || {
        let stream = connect(address, &trusting()).await.unwrap();
        let shown = stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        shown
    };
    let of = |name: &str| CertificateDer::from_pem_file(data(name)).unwrap();
    let mut old = connect(address, &trusting()).await.unwrap();
    assert_eq!(shown().await, of("server.pem"));
    // A certificate and a key that do not match change nothing.
    fs::copy(data("renewed.pem"), &cert).unwrap();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(shown().await, of("server.pem"));
    fs::copy(data("renewed.key.pem"), &key).unwrap();
    let renewed = async {
        while shown().await != of("renewed.pem") {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, renewed).await.expect("the certificate is not followed");
    // Open connections stay usable.
    old.write_all(b"hello").await.unwrap();
    let mut back = [0; 5];
    timeout(PATIENCE, old.read_exact(&mut back)).await.unwrap().unwrap();
}

#[tokio::test]
async fn clients_show_a_certificate_of_the_authority() {
    let settings = TlsSettings { client_ca: Some(data("authority.pem")), ..settings() };
    let address = echo(settings, PATIENCE).await;
    let showing = |name: &str| ClientTls {
        cert: Some(data(&format!("{name}.pem"))),
        key: Some(data(&format!("{name}.key.pem"))),
        ..trusting()
    };
    assert!(answers(address, &showing("client")).await);
    assert!(!answers(address, &trusting()).await, "one without a certificate");
    assert!(!answers(address, &showing("stranger")).await, "one of another authority");
    // A server certificate does not count as a client's.
    assert!(!answers(address, &showing("server")).await, "one for another use");
}

#[tokio::test]
async fn a_server_of_another_authority_or_name_is_not_trusted() {
    let address = echo(settings(), PATIENCE).await;
    assert!(answers(address, &trusting()).await);
    let strange = ClientTls { ca: Some(data("stranger-authority.pem")), ..ClientTls::default() };
    assert!(connect(address, &strange).await.is_err());
    let config = trusting().config(&[]).unwrap();
    let stream = TcpStream::connect(address).await.unwrap();
    let other = ServerName::try_from("example.com").unwrap();
    assert!(TlsConnector::from(config).connect(other, stream).await.is_err());
}

#[tokio::test]
async fn whoever_shakes_no_hands_goes_and_keeps_nobody_out() {
    let address = echo(settings(), Duration::from_millis(300)).await;
    let mut silent = Vec::new();
    for bytes in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02", &[0xff; 4096]] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // The connection may be closed already.
        let _ = stream.write_all(bytes).await;
        silent.push(stream);
    }
    assert!(answers(address, &trusting()).await);
    for mut stream in silent {
        let mut rest = Vec::new();
        // It may end with an alert, a reset or nothing, but it is closed.
        let _ = timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("it stays");
    }
    // After the handshake, too, the client must send something.
    let mut stream = connect(address, &trusting()).await.unwrap();
    let mut rest = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("it stays");
}

#[test]
fn files_that_cannot_be_used_are_named_and_not_shown() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        Some(path)
    };
    let key_text = fs::read_to_string(data("server.key.pem")).unwrap();
    let secret = key_text.lines().nth(1).unwrap();
    let broken = key_text.replace("BEGIN PRIVATE KEY", "BEGIN PRIVATE KEYS");
    for (settings, says) in [
        (TlsSettings { key: None, ..settings() }, "tls_key"),
        (TlsSettings { cert: None, ..settings() }, "tls_cert"),
        (TlsSettings { cert: Some("/no/such.pem".into()), ..settings() }, "/no/such.pem"),
        (TlsSettings { key: Some(dir.path().to_owned()), ..settings() }, "is not a file"),
        (TlsSettings { cert: file("empty.pem", ""), ..settings() }, "empty.pem: has no certificate"),
        (
            TlsSettings { cert: file("swapped.pem", &key_text), ..settings() },
            "swapped.pem: has no certificate",
        ),
        (TlsSettings { key: Some(data("server.pem")), ..settings() }, "server.pem: has no private key"),
        (TlsSettings { key: file("broken.pem", &broken), ..settings() }, "broken.pem: has no private key"),
        (TlsSettings { key: Some(data("renewed.key.pem")), ..settings() }, "server.pem with its key"),
        (TlsSettings { client_ca: file("none.pem", "nothing"), ..settings() }, "none.pem"),
    ] {
        let error = settings.read(&[]).unwrap_err().to_string();
        assert!(error.contains(says), "{says}: {error}");
        assert!(!error.contains(secret), "a key is shown: {error}");
    }
}

#[tokio::test]
async fn a_pinned_certificate_is_the_one_that_is_shown() {
    let address = echo(settings(), PATIENCE).await;
    let connect = async |pinned: &str, name: &'static str| {
        let stream = TcpStream::connect(address).await.unwrap();
        let tls = TlsConnector::from(crate::pinned(&data(pinned)).unwrap());
        timeout(PATIENCE, tls.connect(ServerName::try_from(name).unwrap(), stream))
            .await
            .expect("a handshake")
    };
    let mut stream = connect("server.pem", "a-name-that-is-not-in-it").await.unwrap();
    stream.write_all(b"hello").await.unwrap();
    let mut back = [0; 5];
    timeout(PATIENCE, stream.read_exact(&mut back)).await.unwrap().unwrap();
    // Another certificate of the same authority, for the same name.
    let other = connect("renewed.pem", "localhost").await.unwrap_err().to_string();
    assert!(other.contains("it shows another certificate"), "{other}");
    let none = crate::pinned(&data("server.key.pem")).unwrap_err().to_string();
    assert!(none.contains("has no certificate"), "{none}");
}
