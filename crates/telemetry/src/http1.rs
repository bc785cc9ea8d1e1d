//! HTTP client that opens a connection for each request, in plaintext or over TLS: enough for a batch of spans
//! every few seconds.

use std::{io, time::Duration};

use bytes::Bytes;
use hanzo_engine_access::ClientTls;
use http::{HeaderValue, Request, Response, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use opentelemetry_http::{HttpClient, HttpError, ResponseBodyTooLarge};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    runtime::Handle,
};
use tokio_rustls::TlsConnector;

/// Maximum bytes of a response.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// Sends requests on the async runtime, whichever thread waits for them.
#[derive(Debug)]
pub(crate) struct Http1 {
    pub(crate) runtime: Handle,
    pub(crate) tls: ClientTls,
    pub(crate) timeout: Duration,
}

#[tonic::async_trait]
impl HttpClient for Http1 {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (timeout, work) = (self.timeout, send(request, self.tls.clone()));
        // The caller is a separate thread, which lacks the runtime's timers.
        self.runtime.spawn(async move { tokio::time::timeout(timeout, work).await }).await??
    }
}

async fn send(mut request: Request<Bytes>, tls: ClientTls) -> Result<Response<Bytes>, HttpError> {
    let uri = std::mem::take(request.uri_mut());
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
    let secure = uri.scheme_str() == Some("https");
    let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
    if let Some(authority) = uri.authority() {
        request.headers_mut().insert(header::HOST, HeaderValue::from_str(authority.as_str())?);
    }
    *request.uri_mut() = Uri::from(uri.into_parts().path_and_query.ok_or("no path")?);
    let stream = TcpStream::connect((host.as_str(), port)).await?;
    if !secure {
        return exchange(stream, request).await;
    }
    let name = ServerName::try_from(host).map_err(io::Error::other)?;
    let stream = TlsConnector::from(tls.config(&[b"http/1.1"])?).connect(name, stream).await?;
    exchange(stream, request).await
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: Request<Bytes>,
) -> Result<Response<Bytes>, HttpError> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let answer = sender.send_request(request.map(Full::new)).await?;
    let (head, body) = answer.into_parts();
    let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
    connection.abort();
    let body = body.map_err(|error| match error.is::<http_body_util::LengthLimitError>() {
        true => Box::new(ResponseBodyTooLarge::new()) as HttpError,
        false => error,
    })?;
    Ok(Response::from_parts(head, body.to_bytes()))
}
