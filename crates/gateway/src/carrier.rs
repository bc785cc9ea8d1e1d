//! Transport of calls to an engine: a connection that opens at the first call and again after a failure, or the
//! service itself if the engine runs in this process.

use std::{
    convert::Infallible,
    net::SocketAddr,
    ops::{Deref, DerefMut},
    time::Duration,
};

use futures_util::stream::BoxStream;
use hanzo_engine_access::{ClientTls, Secret, lazy_channel, lazy_channel_at, with_key};
use hanzo_engine_proto::v1::{
    InferEvent, InferRequest, engine_client::EngineClient, speech_client::SpeechClient,
    store_client::StoreClient,
};
use tonic::{
    Request, Response, Status,
    body::Body,
    codegen::{Service, http},
    transport::{self, Endpoint},
};
use tower::{ServiceExt as _, util::BoxCloneSyncService};

use crate::{
    error::GatewayError,
    limits::{ENGINE_CONNECT_TIMEOUT, ENGINE_MESSAGE_BYTES_MAX, ENGINE_PING_TIMEOUT, ENGINE_STATE_TIMEOUT},
};

/// Engine in this process: its gRPC services Engine, Store and Speech, called without a connection.
pub trait LocalEngine:
    Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible, Future: Send + 'static>
    + Clone
    + Send
    + Sync
    + 'static
{
}

impl<S> LocalEngine for S where
    S: Service<
            http::Request<Body>,
            Response = http::Response<Body>,
            Error = Infallible,
            Future: Send + 'static,
        > + Clone
        + Send
        + Sync
        + 'static
{
}

/// Call Infer of an engine in this process. Its message and its events are handed over in memory.
pub type LocalInfer =
    BoxCloneSyncService<Request<InferRequest>, BoxStream<'static, Result<InferEvent, Status>>, Status>;

/// Transport of calls to the engine.
pub(crate) type Carrier = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, transport::Error>;

/// Client of one engine. Dereferences to the client of the service Engine; the other services have names.
/// Cloning is cheap.
#[derive(Clone, Debug)]
pub(crate) struct DaemonClient {
    engine: EngineClient<Carrier>,
    pub(crate) speech: SpeechClient<Carrier>,
    pub(crate) store: StoreClient<Carrier>,
}

impl Deref for DaemonClient {
    type Target = EngineClient<Carrier>;

    fn deref(&self) -> &EngineClient<Carrier> {
        &self.engine
    }
}

impl DerefMut for DaemonClient {
    fn deref_mut(&mut self) -> &mut EngineClient<Carrier> {
        &mut self.engine
    }
}

/// Transport to the engine at `uri`. With `at`, it connects to that address, and `uri` only names the server.
/// `key` is the gateway's own.
///
/// # Errors
/// Fault of the URI or of the TLS files.
pub(crate) fn dial(
    uri: &str,
    at: Option<SocketAddr>,
    key: Option<&Secret>,
    tls: &ClientTls,
) -> Result<Carrier, GatewayError> {
    let refuse = |reason: String| GatewayError::Engine { uri: uri.to_owned(), reason };
    if !["http://", "https://", "unix:"].iter().any(|scheme| uri.starts_with(scheme)) {
        return Err(refuse("expected http://HOST:PORT, https://HOST:PORT or unix:PATH".to_owned()));
    }
    let endpoint = Endpoint::from_shared(uri.to_owned())
        .and_then(|e| e.user_agent(concat!("engine-gateway/", env!("CARGO_PKG_VERSION"))))
        .map_err(|e| refuse(e.to_string()))?
        .connect_timeout(ENGINE_CONNECT_TIMEOUT)
        .http2_keep_alive_interval(ENGINE_PING_TIMEOUT)
        .keep_alive_timeout(ENGINE_PING_TIMEOUT)
        // An idle gateway sends no pings.
        .keep_alive_while_idle(false);
    let channel = match at {
        Some(at) => lazy_channel_at(&endpoint, tls, at)?,
        None => lazy_channel(&endpoint, tls)?,
    };
    Ok(BoxCloneSyncService::new(channel.map_request(with_key(key))))
}

/// Transport to an engine in this process.
pub(crate) fn local(engine: impl LocalEngine) -> Carrier {
    BoxCloneSyncService::new(engine.map_err(|never| match never {}))
}

/// Client that uses a transport.
pub(crate) fn client(carrier: Carrier) -> DaemonClient {
    let speech = SpeechClient::new(carrier.clone()).max_decoding_message_size(ENGINE_MESSAGE_BYTES_MAX);
    let store = StoreClient::new(carrier.clone());
    let engine = EngineClient::new(carrier).max_decoding_message_size(ENGINE_MESSAGE_BYTES_MAX);
    DaemonClient { engine, speech, store }
}

/// Limits the time of a call about state.
pub(crate) async fn within_state<T>(
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<Response<T>, Status> {
    within(ENGINE_STATE_TIMEOUT, call).await
}

/// Limits the time of a call.
pub(crate) async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<Response<T>, Status> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer,
        Err(_) => {
            let message = format!("the engine did not answer within {} seconds", limit.as_secs());
            Err(Status::deadline_exceeded(message))
        }
    }
}
