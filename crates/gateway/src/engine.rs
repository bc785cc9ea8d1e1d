//! The gateway's client of `hanzo.engine.v1`: one lazily opened connection that all requests share, or the engine itself
//! where it is in this process.

use std::{convert::Infallible, time::Duration};

use futures_util::{Stream, TryStreamExt as _};
use hanzo_engine_access::{ClientTls, Pass, Refusal, Secret, Spend, lazy_channel, with_key};
use hanzo_engine_proto::v1::{self, engine_client::EngineClient};
use prometheus::IntCounterVec;
use tokio::time::Instant;
use tonic::{
    Code, Request, Response, Status,
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

/// A handle on the engine for one who asks, who is refused here what a key may not do; cloning it is cheap.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    client: EngineClient<Carrier>,
    remote: bool,
    pass: Pass,
    refusals: Option<IntCounterVec>, // by reason
}

impl Engine {
    /// A client of the engine at `uri`. It connects with the first call, and again after a failure.
    /// `key` is this gateway's own.
    pub(crate) fn connect_lazy(
        uri: &str,
        key: Option<&Secret>,
        tls: &ClientTls,
    ) -> Result<Engine, GatewayError> {
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
            // An idle gateway sends nothing.
            .keep_alive_while_idle(false);
        let channel = lazy_channel(&endpoint, tls)?.map_request(with_key(key));
        Ok(Engine::over(BoxCloneSyncService::new(channel), true))
    }

    /// A client of the engine in this process.
    pub(crate) fn local(engine: impl LocalEngine) -> Engine {
        Engine::over(BoxCloneSyncService::new(engine.map_err(|never| match never {})), false)
    }

    fn over(carrier: Carrier, remote: bool) -> Engine {
        let client = EngineClient::new(carrier).max_decoding_message_size(ENGINE_MESSAGE_BYTES_MAX);
        Engine { client, remote, pass: Pass::anyone(), refusals: None }
    }

    /// The same engine for who has that pass; what is refused is counted.
    pub(crate) fn of(&self, pass: Pass, refusals: IntCounterVec) -> Engine {
        Engine { pass, refusals: Some(refusals), ..self.clone() }
    }

    fn refused(&self, refusal: Refusal) -> Status {
        if let Some(refusals) = &self.refusals {
            refusals.with_label_values(&[refusal.code()]).inc();
        }
        refusal.into()
    }

    fn use_model(&self, model: &str) -> Result<(), Status> {
        self.pass.use_model(model).map_err(|refusal| self.refused(refusal))
    }

    fn admin(&self, what: &str) -> Result<(), Status> {
        self.pass.admin(what).map_err(|refusal| self.refused(refusal))
    }

    /// What the engine said.
    fn said<T>(&self, answer: Result<Response<T>, Status>) -> Result<T, Status> {
        answer.map(Response::into_inner).map_err(|status| of_the_gateway(self.remote, status))
    }

    /// Starts a generation. Dropping the future or the stream cancels it in the engine.
    pub(crate) async fn infer(
        &mut self,
        mut request: v1::InferRequest,
        deadline: Option<Instant>,
    ) -> Result<impl Stream<Item = Result<v1::InferEvent, Status>> + Send + use<>, Status> {
        self.use_model(&request.model)?;
        request.priority = self.pass.priority(request.priority);
        let mut spend = Spend::new(self.pass.clone(), request.choices.max(1) as usize);
        let answer = self.client.infer(timed(request, deadline)).await;
        let (events, remote) = (self.said(answer)?, self.remote);
        Ok(events
            .inspect_ok(move |event| spend.see(event))
            .map_err(move |status| of_the_gateway(remote, status)))
    }

    /// Embeds. Dropping the future cancels it in the engine.
    pub(crate) async fn embed(
        &mut self,
        mut request: v1::EmbedRequest,
        deadline: Option<Instant>,
    ) -> Result<v1::EmbedResponse, Status> {
        self.use_model(&request.model)?;
        request.priority = self.pass.priority(request.priority);
        let answer = self.client.embed(timed(request, deadline)).await;
        let answer = self.said(answer)?;
        self.pass.spend(answer.prompt_tokens);
        Ok(answer)
    }

    /// Scores documents against a query. Dropping the future cancels it in the engine.
    pub(crate) async fn rerank(
        &mut self,
        mut request: v1::RerankRequest,
        deadline: Option<Instant>,
    ) -> Result<v1::RerankResponse, Status> {
        self.use_model(&request.model)?;
        request.priority = self.pass.priority(request.priority);
        let answer = self.client.rerank(timed(request, deadline)).await;
        let answer = self.said(answer)?;
        self.pass.spend(answer.prompt_tokens);
        Ok(answer)
    }

    /// Scores texts by labels. Dropping the future cancels it in the engine.
    pub(crate) async fn classify(
        &mut self,
        mut request: v1::ClassifyRequest,
        deadline: Option<Instant>,
    ) -> Result<v1::ClassifyResponse, Status> {
        self.use_model(&request.model)?;
        request.priority = self.pass.priority(request.priority);
        let answer = self.client.classify(timed(request, deadline)).await;
        let answer = self.said(answer)?;
        self.pass.spend(answer.prompt_tokens);
        Ok(answer)
    }

    /// Every loaded model, now.
    pub(crate) async fn stats(&mut self) -> Result<v1::StatsResponse, Status> {
        let answer = within(ENGINE_STATE_TIMEOUT, self.client.stats(v1::StatsRequest::default())).await;
        let mut stats = self.said(answer)?;
        stats
            .models
            .retain(|model| model.status.as_ref().is_none_or(|status| self.pass.sees_model(&status.name)));
        Ok(stats)
    }

    /// Every stored model.
    pub(crate) async fn list(&mut self) -> Result<v1::ListResponse, Status> {
        let answer = within(ENGINE_STATE_TIMEOUT, self.client.list(v1::ListRequest::default())).await;
        let mut list = self.said(answer)?;
        list.models.retain(|model| self.pass.sees_model(&model.name));
        Ok(list)
    }

    /// One model by any of its names. Never by a path: an HTTP client is not to look around on the engine's disk.
    pub(crate) async fn show(&mut self, model: String) -> Result<v1::ShowResponse, Status> {
        self.use_model(&model)?;
        let show = self.client.show(v1::ShowRequest { model, known_only: true });
        let answer = within(ENGINE_STATE_TIMEOUT, show).await;
        self.said(answer)
    }

    /// Loads an adapter. Its files are read first, which takes as long as it takes.
    pub(crate) async fn load_adapter(
        &mut self,
        request: v1::LoadAdapterRequest,
    ) -> Result<v1::LoadAdapterResponse, Status> {
        self.admin("to load adapters")?;
        let answer = self.client.load_adapter(request).await;
        self.said(answer)
    }

    /// Takes an adapter away.
    pub(crate) async fn unload_adapter(
        &mut self,
        request: v1::UnloadAdapterRequest,
    ) -> Result<v1::UnloadAdapterResponse, Status> {
        self.admin("to unload adapters")?;
        let answer = within(ENGINE_STATE_TIMEOUT, self.client.unload_adapter(request)).await;
        self.said(answer)
    }

    /// Text or a chat to token ids.
    pub(crate) async fn tokenize(
        &mut self,
        request: v1::TokenizeRequest,
    ) -> Result<v1::TokenizeResponse, Status> {
        self.use_model(&request.model)?;
        let answer = within(ENGINE_TOKENS_TIMEOUT, self.client.tokenize(request)).await;
        self.said(answer)
    }

    /// Token ids to text.
    pub(crate) async fn detokenize(
        &mut self,
        request: v1::DetokenizeRequest,
    ) -> Result<v1::DetokenizeResponse, Status> {
        self.use_model(&request.model)?;
        let answer = within(ENGINE_TOKENS_TIMEOUT, self.client.detokenize(request)).await;
        self.said(answer)
    }
}

/// The same status; where a remote engine does not know this gateway, no client can help it.
fn of_the_gateway(remote: bool, status: Status) -> Status {
    match status.code() {
        Code::Unauthenticated if remote => Status::unavailable(
            "the engine wants another key of this gateway than it has: set engine_api_key (--engine-api-key)",
        ),
        _ => status,
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
) -> Result<Response<T>, Status> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer,
        Err(_) => {
            let message = format!("the engine did not answer within {} seconds", limit.as_secs());
            Err(Status::deadline_exceeded(message))
        }
    }
}
