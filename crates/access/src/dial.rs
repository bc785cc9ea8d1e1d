//! Client side of gRPC connections to a daemon: a channel in plaintext or over TLS, and the key in each call.

use std::{io, net::SocketAddr, sync::Arc};

use http::{HeaderValue, Request, Uri, header};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::{
    body::Body,
    transport::{Channel, Endpoint, Error},
};
use tower::{Service, service_fn};

use crate::{
    secret::Secret,
    tls::{ClientTls, TlsError},
};

const PORT: u16 = 443;

/// Creates a channel that connects lazily. For `https://` each new connection reads the TLS files again; they
/// must be readable now.
///
/// # Errors
/// [`TlsError`], with the file.
pub fn lazy_channel(endpoint: &Endpoint, tls: &ClientTls) -> Result<Channel, TlsError> {
    match endpoint.uri().scheme_str() {
        Some("https") => Ok(endpoint.connect_with_connector_lazy(connector(tls, None)?)),
        _ => Ok(endpoint.connect_lazy()),
    }
}

/// Like [`lazy_channel`], but connects to address `at` instead of resolving the endpoint's name. A certificate
/// is checked against the name. `at` applies to TLS alone: without it, the endpoint's URI must hold the
/// address.
///
/// # Errors
/// [`TlsError`], with the file.
pub fn lazy_channel_at(endpoint: &Endpoint, tls: &ClientTls, at: SocketAddr) -> Result<Channel, TlsError> {
    match endpoint.uri().scheme_str() {
        Some("https") => Ok(endpoint.connect_with_connector_lazy(connector(tls, Some(at))?)),
        _ => Ok(endpoint.connect_lazy()),
    }
}

/// Like [`lazy_channel`], but connects at once.
///
/// # Errors
/// Fault of the TLS files, or the error of the connection.
pub async fn channel(endpoint: &Endpoint, tls: &ClientTls) -> Result<Result<Channel, Error>, TlsError> {
    match endpoint.uri().scheme_str() {
        Some("https") => Ok(endpoint.connect_with_connector(connector(tls, None)?).await),
        _ => Ok(endpoint.connect().await),
    }
}

/// Interceptor that adds the key to each call as a bearer token.
pub fn with_key(
    key: Option<&Secret>,
) -> impl Fn(Request<Body>) -> Request<Body> + Clone + Send + Sync + use<> {
    // A key consists of visible ASCII characters, so it fits a header.
    let bearer = key.and_then(|key| HeaderValue::try_from(format!("Bearer {}", key.text())).ok());
    let bearer = bearer.map(|mut bearer| {
        bearer.set_sensitive(true);
        bearer
    });
    move |mut request| {
        if let Some(bearer) = &bearer {
            request.headers_mut().insert(header::AUTHORIZATION, bearer.clone());
        }
        request
    }
}

/// Advice for a gRPC call that reached another kind of server, from the text of the transport error. None: the
/// error explains itself.
pub fn mistaken_server(error: &str) -> Option<&'static str> {
    const HTTP: &str = "an HTTP server answers there, and no gRPC; the daemon's gRPC has a port of its own (36901, unless \
                        server.grpc_port or --grpc-port says otherwise)";
    const PLAIN: &str = "the server there speaks no TLS; write http:// in place of https://";
    const WORDS: [(&str, &str); 5] = [
        // The first byte of a JSON or HTML body, where a gRPC message has its compression flag.
        ("invalid compression flag", HTTP),
        ("grpc-status header missing", HTTP),
        // HTTP/1 response to the HTTP/2 preface.
        ("http2 error", HTTP),
        ("invalid HTTP version", HTTP),
        ("InvalidContentType", PLAIN),
    ];
    WORDS.iter().find(|(word, _)| error.contains(word)).map(|(_, said)| *said)
}

type Tls = TokioIo<TlsStream<TcpStream>>;

fn connector(
    tls: &ClientTls,
    at: Option<SocketAddr>,
) -> Result<
    impl Service<Uri, Response = Tls, Error = io::Error, Future: Send> + Clone + Send + 'static + use<>,
    TlsError,
> {
    const PROTOCOLS: &[&[u8]] = &[b"h2"];
    tls.config(PROTOCOLS)?;
    let tls = Arc::new(tls.clone());
    Ok(service_fn(move |uri: Uri| {
        let tls = Arc::clone(&tls);
        async move {
            let host =
                uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
            let stream = match at {
                Some(at) => TcpStream::connect(at).await?,
                None => TcpStream::connect((host.as_str(), uri.port_u16().unwrap_or(PORT))).await?,
            };
            stream.set_nodelay(true)?;
            let name = ServerName::try_from(host).map_err(io::Error::other)?;
            let config = tls.config(PROTOCOLS).map_err(io::Error::other)?;
            Ok(TokioIo::new(TlsConnector::from(config).connect(name, stream).await?))
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::mistaken_server;

    #[test]
    fn another_kind_of_server_is_named() {
        for (error, said) in [
            (
                "protocol error: received message with invalid compression flag: 123 (valid flags are 0 and 1)",
                "HTTP",
            ),
            ("protocol error: received message with invalid compression flag: 60", "HTTP"),
            ("h2 protocol error: http2 error", "HTTP"),
            ("received corrupt message of type InvalidContentType", "http://"),
        ] {
            assert!(mistaken_server(error).is_some_and(|why| why.contains(said)), "{error}");
        }
        assert_eq!(mistaken_server("Connection refused (os error 111)"), None);
    }
}
