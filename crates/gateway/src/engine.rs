//! Client of the engine's contract `hanzo.engine.v1`: one lazily opened connection shared by all requests,
//! several daemons of which each call goes to one (`fleet`), or an engine in this process.

use std::sync::Arc;

use futures_util::{Stream, StreamExt as _, TryStreamExt as _, future::Either, stream};
use hanzo_engine_access::{
    ClientTls, InputsNeed, Need, Pass, Refusal, Reservation, Secret, Spend, bound_inputs,
};
use hanzo_engine_proto::v1;
use hanzo_engine_telemetry::TraceContext;
use prometheus::IntCounterVec;
use tokio::time::Instant;
use tonic::{Code, Response, Status};
use tower::ServiceExt as _;

use crate::{
    asker::Asker,
    carrier::{DaemonClient, LocalEngine, LocalInfer, client, dial, local, within, within_state},
    cloud::{Cloud, Payer},
    error::{ApiError, GatewayError},
    fleet::{Fleet, Has, MemberView, Resolve, Route, Upstream},
    head::Head,
    limits::ENGINE_TOKENS_TIMEOUT,
    metrics::Metrics,
    record::Record,
    silence::{events_while_alive, while_alive},
};

mod operator;
mod speech;

/// Engine as a requester may use it; requests that its key does not allow are refused here. Cloning is cheap.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    link: Link,
    local: Option<LocalInfer>, // None: the engine is in another process
    pass: Pass,
    refusals: Option<IntCounterVec>, // by reason
    record: Record,
    trace: Option<TraceContext>,
    cloud: Option<Arc<Cloud>>,
}

/// Connection to one engine or several.
#[derive(Clone, Debug)]
enum Link {
    One(DaemonClient),
    Fleet(Arc<Fleet>),
}

impl Link {
    /// Calls the engine, or a daemon that has the model.
    async fn ask<R, T, F>(
        &self,
        model: &str,
        request: R,
        call: impl Fn(DaemonClient, R) -> F,
    ) -> Result<Response<T>, Status>
    where
        R: Clone,
        F: Future<Output = Result<Response<T>, Status>>,
    {
        match self {
            Link::One(client) => while_alive(client, call(client.clone(), request)).await,
            Link::Fleet(fleet) => fleet.ask(Route::to(model), request, call).await,
        }
    }

    /// Calls the engine, or every daemon whose state of the model is `wanted`.
    async fn ask_all<R, T, F>(
        &self,
        model: &str,
        wanted: impl Fn(Has) -> bool,
        request: R,
        call: impl Fn(DaemonClient, R) -> F,
    ) -> Result<Response<T>, Status>
    where
        R: Clone,
        F: Future<Output = Result<Response<T>, Status>>,
    {
        match self {
            Link::One(client) => while_alive(client, call(client.clone(), request)).await,
            Link::Fleet(fleet) => fleet.ask_all(model, wanted, request, call).await,
        }
    }
}

impl Engine {
    /// Client of the engine at `uri`. It connects at the first call, and again after a failure. `key` is the
    /// gateway's own.
    pub(crate) fn connect_lazy(
        uri: &str,
        key: Option<&Secret>,
        tls: &ClientTls,
    ) -> Result<Engine, GatewayError> {
        Ok(Engine::over(Link::One(client(dial(uri, None, key, tls)?)), None))
    }

    /// Client of the daemons at `targets`. A single fixed target gets a plain connection.
    pub(crate) async fn connect_all(
        targets: Vec<Upstream>,
        resolver: Arc<dyn Resolve>,
        key: Option<&Secret>,
        tls: &ClientTls,
    ) -> Result<Engine, GatewayError> {
        if let [Upstream::Fixed(uri)] = &targets[..] {
            return Engine::connect_lazy(uri, key, tls);
        }
        let fleet = Fleet::start(targets, resolver, key, tls).await?;
        Ok(Engine::over(Link::Fleet(fleet), None))
    }

    /// Client of an engine in this process. `infer` answers generations, `engine` all other calls.
    pub(crate) fn local(engine: impl LocalEngine, infer: LocalInfer) -> Engine {
        Engine::over(Link::One(client(local(engine))), Some(infer))
    }

    fn over(link: Link, local: Option<LocalInfer>) -> Engine {
        let (pass, record) = (Pass::anyone(), Record::default());
        Engine { link, local, pass, refusals: None, record, trace: None, cloud: None }
    }

    /// Engine for one requester. Refusals are counted. `cloud` is an upstream server that may answer instead.
    pub(crate) fn of(&self, asker: &Asker, refusals: IntCounterVec, cloud: Option<Arc<Cloud>>) -> Engine {
        Engine {
            link: self.link.clone(),
            local: self.local.clone(),
            pass: asker.pass.clone(),
            refusals: Some(refusals),
            record: asker.record.clone(),
            trace: asker.trace.clone(),
            cloud,
        }
    }

    /// Registers the metrics of the daemons, if there are several.
    pub(crate) fn register(&self, metrics: &Metrics) -> Result<(), prometheus::Error> {
        match &self.link {
            Link::One(_) => Ok(()),
            Link::Fleet(fleet) => metrics.register(&fleet.metrics),
        }
    }

    /// State of the daemons; None: there is only one engine.
    pub(crate) fn members(&self) -> Option<Vec<MemberView>> {
        match &self.link {
            Link::One(_) => None,
            Link::Fleet(fleet) => Some(fleet.views()),
        }
    }

    /// Whether the engine is in another process.
    fn is_remote(&self) -> bool {
        self.local.is_none()
    }

    fn head(&self, deadline: Option<Instant>) -> Head {
        Head { deadline, trace: self.trace.clone() }
    }

    fn refused(&self, refusal: Refusal) -> Status {
        if let Some(refusals) = &self.refusals {
            refusals.with_label_values(&[refusal.code()]).inc();
        }
        refusal.into()
    }

    /// Whether the tokens of the requester's key are limited.
    pub(crate) fn limits_tokens(&self) -> bool {
        self.pass.limits_tokens()
    }

    /// Checks that a minute of the requester's key has the tokens of several generations.
    pub(crate) fn check_all(&self, requests: &[v1::InferRequest]) -> Result<(), Status> {
        Spend::check_all(&self.pass, requests).map_err(|refusal| self.refused(refusal))
    }

    /// Reserves tokens of the requester's key for a call.
    fn reserve(&self, need: Need) -> Result<Reservation, Status> {
        self.pass.reserve(need).map_err(|refusal| self.refused(refusal))
    }

    /// Reserves the tokens that the inputs of a call may take.
    fn reserve_inputs(&self, need: InputsNeed) -> Result<Reservation, Status> {
        self.pass.reserve_inputs(need).map_err(|refusal| self.refused(refusal))
    }

    /// Error of a call that failed: the key's refusal, if its inputs take more than was reserved.
    fn failed(&self, reservation: Reservation, status: Status) -> Status {
        reservation.failed(status).map_or_else(|status| status, |refusal| self.refused(refusal))
    }

    fn use_model(&self, model: &str) -> Result<(), Status> {
        self.record.asked(model);
        self.pass.use_model(model).map_err(|refusal| self.refused(refusal))
    }

    /// Like [`Engine::use_model`], for calls that only the engine can answer.
    fn use_here(&self, model: &str) -> Result<(), Status> {
        self.use_model(model)?;
        match self.cloud.as_ref().and_then(|cloud| cloud.always(model)) {
            None => Ok(()),
            Some(_) => Err(Status::failed_precondition(format!(
                "model: another server answers for {model:?} (cloud_models): it is asked for chats, completions and /v1/embeddings, not for this"
            ))),
        }
    }

    fn admin(&self, what: &str) -> Result<(), Status> {
        self.pass.admin(what).map_err(|refusal| self.refused(refusal))
    }

    /// Converts the engine's response.
    fn said<T>(&self, answer: Result<Response<T>, Status>) -> Result<T, Status> {
        answer.map(Response::into_inner).map_err(|status| of_the_gateway(self.is_remote(), status))
    }

    /// Starts a generation, here or on the upstream server of the model. Dropping the future or the stream
    /// cancels it.
    pub(crate) async fn infer(
        &mut self,
        mut request: v1::InferRequest,
        deadline: Option<Instant>,
    ) -> Result<impl Stream<Item = Result<v1::InferEvent, Status>> + Send + use<>, Status> {
        self.use_model(&request.model)?;
        request.priority = self.pass.priority(request.priority);
        let spend =
            Spend::reserve(self.pass.clone(), &mut request).map_err(|refusal| self.refused(refusal))?;
        let cloud = self.cloud.clone().filter(|_| !self.record.so_far().forwards_body);
        let Some(cloud) = cloud else {
            return Ok(Either::Right(Box::pin(self.infer_here(request, spend, deadline)).await?));
        };
        let payer = Payer::new(self.pass.clone(), self.record.clone());
        let record = self.record.clone();
        let told = move |status: &Status| record.failed(status);
        if let Some(there) = cloud.always(&request.model) {
            let events = Box::pin(cloud.infer(&request, &there, payer)).await?.inspect_err(told);
            return Ok(Either::Left(events.inspect_ok(holding(spend))));
        }
        let Some(there) = cloud.overflow(&request.model) else {
            return Ok(Either::Right(Box::pin(self.infer_here(request, spend, deadline)).await?));
        };
        let mut again = request.clone();
        let status = match Box::pin(self.infer_here(request.clone(), spend, deadline)).await {
            Ok(events) => return Ok(Either::Right(events)),
            Err(status) if ApiError::from(status.clone()).is_of_load() => status,
            Err(status) => return Err(status),
        };
        let Ok(spend) = Spend::reserve(self.pass.clone(), &mut again) else { return Err(status) };
        match Box::pin(cloud.infer(&again, &there, payer)).await {
            Ok(events) => Ok(Either::Left(events.inspect_err(told).inspect_ok(holding(spend)))),
            Err(error) => {
                let (request_id, reason) = (&request.request_id, error.message());
                tracing::warn!(request_id, reason, "nor did the other server answer");
                Err(status)
            }
        }
    }

    /// Starts a generation on the engine.
    async fn infer_here(
        &self,
        request: v1::InferRequest,
        spend: Spend,
        deadline: Option<Instant>,
    ) -> Result<impl Stream<Item = Result<v1::InferEvent, Status>> + Send + use<>, Status> {
        let mut generated = self.record.generation(request.choices.max(1));
        // The first event may show that the prompt has more tokens than the key, so it is awaited before the
        // answer begins.
        let peeks = self.pass.limits_tokens() && !request.load_progress;
        let head = self.head(deadline);
        let events = match (&self.local, &self.link) {
            // The message and its events are handed over as they are.
            (Some(infer), _) => Either::Left(Either::Left(infer.clone().oneshot(head.over(request)).await?)),
            (None, Link::One(client)) => {
                let answer = while_alive(client, client.clone().infer(head.over(request))).await;
                Either::Left(Either::Right(events_while_alive(client.clone(), self.said(answer)?)))
            }
            (None, Link::Fleet(fleet)) => {
                let events = fleet.infer(request, head).await;
                Either::Right(Box::pin(events.map_err(|status| of_the_gateway(self.is_remote(), status))?))
            }
        };
        let (remote, record) = (self.is_remote(), self.record.clone());
        let mut events = spend.over(events.map_err(move |status| of_the_gateway(remote, status)));
        let first = if peeks { events.try_next().await? } else { None };
        Ok(stream::iter(first.map(Ok))
            .chain(events)
            .inspect_ok(move |event| generated.see(event))
            .inspect_err(move |status| record.failed(status)))
    }

    /// Embeds inputs. Dropping the future cancels the call.
    pub(crate) async fn embed(
        &mut self,
        mut request: v1::EmbedRequest,
        deadline: Option<Instant>,
    ) -> Result<v1::EmbedResponse, Status> {
        self.use_here(&request.model)?;
        request.priority = self.pass.priority(request.priority);
        let mut reservation = self.reserve_inputs(InputsNeed::embed(&request))?;
        let bound = reservation.inputs_bound();
        let (model, head) = (request.model.clone(), self.head(deadline));
        let call = |mut client: DaemonClient, request| {
            let head = head.clone();
            async move { client.embed(bound_inputs(head.over(request), bound)).await }
        };
        let answer = match self.said(self.link.ask(&model, request, call).await) {
            Ok(answer) => answer,
            Err(status) => return Err(self.failed(reservation, status)),
        };
        reservation.charge(answer.prompt_tokens);
        self.record.answered(&answer.model, answer.prompt_tokens);
        Ok(answer)
    }

    /// Scores documents against a query. Dropping the future cancels the call.
    pub(crate) async fn rerank(
        &mut self,
        mut request: v1::RerankRequest,
        deadline: Option<Instant>,
    ) -> Result<v1::RerankResponse, Status> {
        self.use_here(&request.model)?;
        request.priority = self.pass.priority(request.priority);
        let mut reservation = self.reserve_inputs(InputsNeed::rerank(&request))?;
        let bound = reservation.inputs_bound();
        let (model, head) = (request.model.clone(), self.head(deadline));
        let call = |mut client: DaemonClient, request| {
            let head = head.clone();
            async move { client.rerank(bound_inputs(head.over(request), bound)).await }
        };
        let answer = match self.said(self.link.ask(&model, request, call).await) {
            Ok(answer) => answer,
            Err(status) => return Err(self.failed(reservation, status)),
        };
        reservation.charge(answer.prompt_tokens);
        self.record.answered(&answer.model, answer.prompt_tokens);
        Ok(answer)
    }

    /// Scores texts by labels. Dropping the future cancels the call.
    pub(crate) async fn classify(
        &mut self,
        mut request: v1::ClassifyRequest,
        deadline: Option<Instant>,
    ) -> Result<v1::ClassifyResponse, Status> {
        self.use_here(&request.model)?;
        request.priority = self.pass.priority(request.priority);
        let mut reservation = self.reserve_inputs(InputsNeed::classify(&request))?;
        let bound = reservation.inputs_bound();
        let (model, head) = (request.model.clone(), self.head(deadline));
        let call = |mut client: DaemonClient, request| {
            let head = head.clone();
            async move { client.classify(bound_inputs(head.over(request), bound)).await }
        };
        let answer = match self.said(self.link.ask(&model, request, call).await) {
            Ok(answer) => answer,
            Err(status) => return Err(self.failed(reservation, status)),
        };
        reservation.charge(answer.prompt_tokens);
        self.record.answered(&answer.model, answer.prompt_tokens);
        Ok(answer)
    }

    /// State of every loaded model.
    pub(crate) async fn stats(&mut self) -> Result<v1::StatsResponse, Status> {
        let mut stats = match &self.link {
            Link::One(client) => {
                let mut client = client.clone();
                self.said(within_state(client.stats(v1::StatsRequest::default())).await)?
            }
            Link::Fleet(fleet) => {
                fleet.stats().await.map_err(|status| of_the_gateway(self.is_remote(), status))?
            }
        };
        stats
            .models
            .retain(|model| model.status.as_ref().is_none_or(|status| self.pass.sees_model(&status.name)));
        Ok(stats)
    }

    /// Every stored model.
    pub(crate) async fn list(&mut self) -> Result<v1::ListResponse, Status> {
        let mut list = match &self.link {
            Link::One(client) => {
                let mut client = client.clone();
                self.said(within_state(client.list(v1::ListRequest::default())).await)?
            }
            Link::Fleet(fleet) => {
                fleet.list().await.map_err(|status| of_the_gateway(self.is_remote(), status))?
            }
        };
        list.models.retain(|model| self.pass.sees_model(&model.name));
        Ok(list)
    }

    /// Details of a model, by any of its names. Paths are refused, so that HTTP clients cannot explore the
    /// engine's disk.
    pub(crate) async fn show(&mut self, model: String) -> Result<v1::ShowResponse, Status> {
        self.use_model(&model)?;
        let request = v1::ShowRequest { model: model.clone(), known_only: true };
        let call =
            |mut client: DaemonClient, request| async move { within_state(client.show(request)).await };
        self.said(self.link.ask(&model, request, call).await)
    }

    /// Loads an adapter. There is no time limit, because its files are read first.
    pub(crate) async fn load_adapter(
        &mut self,
        request: v1::LoadAdapterRequest,
    ) -> Result<v1::LoadAdapterResponse, Status> {
        self.admin("to load adapters")?;
        let model = request.model.clone();
        let call = |mut client: DaemonClient, request| async move { client.load_adapter(request).await };
        self.said(self.link.ask_all(&model, Has::is_loaded, request, call).await)
    }

    /// Unloads an adapter.
    pub(crate) async fn unload_adapter(
        &mut self,
        request: v1::UnloadAdapterRequest,
    ) -> Result<v1::UnloadAdapterResponse, Status> {
        self.admin("to unload adapters")?;
        let model = request.model.clone();
        let call = |mut client: DaemonClient, request| async move {
            within_state(client.unload_adapter(request)).await
        };
        self.said(self.link.ask_all(&model, Has::is_loaded, request, call).await)
    }

    /// Loads the model if models are loaded on demand, as a request for it would. There is no limit but
    /// `deadline`.
    pub(crate) async fn awake(
        &mut self,
        nothing: v1::TokenizeRequest,
        deadline: Option<Instant>,
    ) -> Result<(), Status> {
        self.use_here(&nothing.model)?;
        let (model, head) = (nothing.model.clone(), self.head(deadline));
        let call = |mut client: DaemonClient, request| {
            let head = head.clone();
            async move { client.tokenize(head.over(request)).await }
        };
        self.said(self.link.ask(&model, nothing, call).await).map(drop)
    }

    /// Converts a text or a chat to token ids.
    pub(crate) async fn tokenize(
        &mut self,
        request: v1::TokenizeRequest,
    ) -> Result<v1::TokenizeResponse, Status> {
        self.use_here(&request.model)?;
        let (model, head) = (request.model.clone(), self.head(None));
        let call = |mut client: DaemonClient, request| {
            let head = head.clone();
            async move { within(ENGINE_TOKENS_TIMEOUT, client.tokenize(head.over(request))).await }
        };
        self.said(self.link.ask(&model, request, call).await)
    }

    /// Converts token ids to text.
    pub(crate) async fn detokenize(
        &mut self,
        request: v1::DetokenizeRequest,
    ) -> Result<v1::DetokenizeResponse, Status> {
        self.use_here(&request.model)?;
        let (model, head) = (request.model.clone(), self.head(None));
        let call = |mut client: DaemonClient, request| {
            let head = head.clone();
            async move { within(ENGINE_TOKENS_TIMEOUT, client.detokenize(head.over(request))).await }
        };
        self.said(self.link.ask(&model, request, call).await)
    }
}

/// Keeps tokens reserved during an upstream answer, which is charged by its own usage.
fn holding(spend: Spend) -> impl FnMut(&v1::InferEvent) {
    move |_| {
        let _still = &spend;
    }
}

/// Replaces the engine's rejection of this gateway's key, because no client can help it.
fn of_the_gateway(remote: bool, status: Status) -> Status {
    match status.code() {
        Code::Unauthenticated if remote => Status::unavailable(
            "the engine wants another key of this gateway than it has: set engine_api_key (--engine-api-key)",
        ),
        _ => status,
    }
}
