//! The gateway's client of `hanzo.engine.v1`: one lazily opened connection that all requests share, or the engine itself
//! where it is in this process.

use std::{convert::Infallible, time::Duration};

use hanzo_engine_proto::v1::{self, engine_client::EngineClient};
use tokio::time::Instant;
use tonic::{
    Request, Response, Status, Streaming,
    body::Body,
    codegen::{Service, http},
    transport::{self, Endpoint},
};
use tower::{ServiceExt as _, util::BoxCloneSyncService};

use crate::{
    error::GatewayError,
    limits::{
        ENGINE_CONNECT_TIMEOUT, ENGINE_MESSAGE_BYTES_MAX, ENGINE_PING_TIMEOUT, ENGINE_STATE_TIMEOUT,
        ENGINE_TOKENS_TIMEOUT,
    },
};

/// An engine in this process: its gRPC service, which is called without a connection.
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

/// What takes a call to the engine.
type Carrier = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, transport::Error>;

/// A handle on the engine; cloning it is cheap.
#[derive(Clone, Debug)]
pub(crate) struct Engine(EngineClient<Carrier>);

impl Engine {
    /// A client of the engine at `uri`. It connects with the first call, and again after a failure.
    pub(crate) fn connect_lazy(uri: &str) -> Result<Engine, GatewayError> {
        let refuse = |reason: String| GatewayError::Engine { uri: uri.to_owned(), reason };
        if !uri.starts_with("http://") && !uri.starts_with("unix:") {
            return Err(refuse("expected http://HOST:PORT or unix:PATH".to_owned()));
        }
        let endpoint = Endpoint::from_shared(uri.to_owned())
            .and_then(|e| e.user_agent(concat!("engine-gateway/", env!("CARGO_PKG_VERSION"))))
            .map_err(|e| refuse(e.to_string()))?
            .connect_timeout(ENGINE_CONNECT_TIMEOUT)
            .http2_keep_alive_interval(ENGINE_PING_TIMEOUT)
            .keep_alive_timeout(ENGINE_PING_TIMEOUT)
            // An idle gateway sends nothing.
            .keep_alive_while_idle(false);
        Ok(Engine::over(BoxCloneSyncService::new(endpoint.connect_lazy())))
    }

    /// A client of the engine in this process.
    pub(crate) fn local(engine: impl LocalEngine) -> Engine {
        Engine::over(BoxCloneSyncService::new(engine.map_err(|never| match never {})))
    }

    fn over(carrier: Carrier) -> Engine {
        Engine(EngineClient::new(carrier).max_decoding_message_size(ENGINE_MESSAGE_BYTES_MAX))
    }

    /// Starts a generation. Dropping the future or the stream cancels it in the engine.
    pub(crate) async fn infer(
        &mut self,
        request: v1::InferRequest,
        deadline: Option<Instant>,
    ) -> Result<Streaming<v1::InferEvent>, Status> {
        self.0.infer(timed(request, deadline)).await.map(Response::into_inner)
    }

    /// Embeds. Dropping the future cancels it in the engine.
    pub(crate) async fn embed(
        &mut self,
        request: v1::EmbedRequest,
        deadline: Option<Instant>,
    ) -> Result<v1::EmbedResponse, Status> {
        self.0.embed(timed(request, deadline)).await.map(Response::into_inner)
    }

    /// Scores documents against a query. Dropping the future cancels it in the engine.
    pub(crate) async fn rerank(
        &mut self,
        request: v1::RerankRequest,
        deadline: Option<Instant>,
    ) -> Result<v1::RerankResponse, Status> {
        self.0.rerank(timed(request, deadline)).await.map(Response::into_inner)
    }

    /// Scores texts by labels. Dropping the future cancels it in the engine.
    pub(crate) async fn classify(
        &mut self,
        request: v1::ClassifyRequest,
        deadline: Option<Instant>,
    ) -> Result<v1::ClassifyResponse, Status> {
        self.0.classify(timed(request, deadline)).await.map(Response::into_inner)
    }

    /// Every loaded model, now.
    pub(crate) async fn stats(&mut self) -> Result<v1::StatsResponse, Status> {
        within(ENGINE_STATE_TIMEOUT, self.0.stats(v1::StatsRequest::default())).await
    }

    /// Every stored model.
    pub(crate) async fn list(&mut self) -> Result<v1::ListResponse, Status> {
        within(ENGINE_STATE_TIMEOUT, self.0.list(v1::ListRequest::default())).await
    }

    /// One model by any of its names. Never by a path: an HTTP client is not to look around on the engine's disk.
    pub(crate) async fn show(&mut self, model: String) -> Result<v1::ShowResponse, Status> {
        within(ENGINE_STATE_TIMEOUT, self.0.show(v1::ShowRequest { model, known_only: true })).await
    }

    /// Loads an adapter. Its files are read first, which takes as long as it takes.
    pub(crate) async fn load_adapter(
        &mut self,
        request: v1::LoadAdapterRequest,
    ) -> Result<v1::LoadAdapterResponse, Status> {
        self.0.load_adapter(request).await.map(Response::into_inner)
    }

    /// Takes an adapter away.
    pub(crate) async fn unload_adapter(
        &mut self,
        request: v1::UnloadAdapterRequest,
    ) -> Result<v1::UnloadAdapterResponse, Status> {
        within(ENGINE_STATE_TIMEOUT, self.0.unload_adapter(request)).await
    }

    /// Text or a chat to token ids.
    pub(crate) async fn tokenize(
        &mut self,
        request: v1::TokenizeRequest,
    ) -> Result<v1::TokenizeResponse, Status> {
        within(ENGINE_TOKENS_TIMEOUT, self.0.tokenize(request)).await
    }

    /// Token ids to text.
    pub(crate) async fn detokenize(
        &mut self,
        request: v1::DetokenizeRequest,
    ) -> Result<v1::DetokenizeResponse, Status> {
        within(ENGINE_TOKENS_TIMEOUT, self.0.detokenize(request)).await
    }
}

/// A call that the engine ends at the deadline too.
fn timed<T>(request: T, deadline: Option<Instant>) -> Request<T> {
    let mut request = Request::new(request);
    if let Some(deadline) = deadline {
        request.set_timeout(deadline.saturating_duration_since(Instant::now()));
    }
    request
}

async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Status> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer.map(Response::into_inner),
        Err(_) => {
            let message = format!("the engine did not answer within {} seconds", limit.as_secs());
            Err(Status::deadline_exceeded(message))
        }
    }
}
