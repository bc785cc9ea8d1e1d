//! An engine that says what a script tells it to, remembers what it was asked, and notices when a stream of
//! its is dropped.

use std::{
    net::SocketAddr,
    path::Path,
    pin::Pin,
    sync::{Arc, Mutex},
};

use hanzo_engine_proto::v1::{
    self, FinishReason, InferEvent, InferRequest, TokenLogprob,
    engine_server::{Engine, EngineServer},
    infer_event::Event,
    store_server::StoreServer,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
    sync::{Mutex as AsyncMutex, Semaphore, mpsc},
};
use tokio_stream::{
    Stream,
    wrappers::{TcpListenerStream, UnixListenerStream},
};
use tonic::{Request, Response, Status, transport::server::Connected};
use tonic_health::{ServingStatus, server::HealthReporter};

use crate::{PATIENCE, fake_speech::Heard, fake_store::FakeStore, models, vectors};

/// What happens on a stream.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Send(Event),
    Fail(Status),
    /// Waits for one `Fake::release`.
    Gate,
    /// Says nothing more, and does not end.
    Hang,
}

/// What happens to a request that has one answer, before it is given; what it does not say goes well.
pub(crate) type Obstacle = Arc<dyn Fn(&str) -> Option<Step> + Send + Sync>;

pub(crate) type Script = Arc<dyn Fn(&InferRequest) -> Result<Vec<Step>, Status> + Send + Sync>;

#[derive(Clone)]
pub(crate) struct Fake {
    pub(crate) address: SocketAddr,
    health: HealthReporter,
    shared: Arc<Shared>,
    pub(crate) heard: Heard,
    dropped: Arc<AsyncMutex<mpsc::UnboundedReceiver<bool>>>,
}

struct Shared {
    script: Script,
    seen: Mutex<Vec<InferRequest>>,
    timeouts: Mutex<Vec<Option<String>>>,
    traces: Mutex<Vec<Option<String>>>,
    gate: Semaphore,
    dropped: mpsc::UnboundedSender<bool>,
    stats: Mutex<Result<v1::StatsResponse, Status>>,
    obstacle: Mutex<Option<Obstacle>>,
    embeds: Mutex<Vec<v1::EmbedRequest>>,
    reranks: Mutex<Vec<v1::RerankRequest>>,
    classifies: Mutex<Vec<v1::ClassifyRequest>>,
    tokenized: Mutex<Vec<v1::TokenizeRequest>>,
    loads: Mutex<Vec<v1::LoadRequest>>,
    unloads: Mutex<Vec<String>>,
    pulls: Mutex<Vec<v1::PullRequest>>,
    store: FakeStore,
    messages_max: Mutex<Option<usize>>, // of a chat that fits
}

impl Fake {
    pub(crate) async fn start(script: Script) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        Fake::serve(script, address, TcpListenerStream::new(listener))
    }

    /// At a Unix socket, which can be bound again when it has been killed.
    pub(crate) fn start_at(path: &Path, script: Script) -> Fake {
        let _ = std::fs::remove_file(path);
        let incoming = UnixListenerStream::new(UnixListener::bind(path).unwrap());
        Fake::serve(script, ([0; 4], 0).into(), incoming)
    }

    fn serve<I, C>(script: Script, address: SocketAddr, incoming: I) -> Fake
    where
        I: Stream<Item = std::io::Result<C>> + Send + 'static,
        C: AsyncRead + AsyncWrite + Connected<ConnectInfo: Clone + Send + Sync> + Unpin + Send + 'static,
    {
        let (dropped, receiver) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            script,
            seen: Mutex::default(),
            timeouts: Mutex::default(),
            traces: Mutex::default(),
            gate: Semaphore::new(0),
            dropped,
            stats: Mutex::new(Ok(ready_stats())),
            obstacle: Mutex::default(),
            embeds: Mutex::default(),
            reranks: Mutex::default(),
            classifies: Mutex::default(),
            tokenized: Mutex::default(),
            loads: Mutex::default(),
            unloads: Mutex::default(),
            pulls: Mutex::default(),
            store: FakeStore::default(),
            messages_max: Mutex::default(),
        });
        let heard = Heard::default();
        let store = StoreServer::new(shared.store.clone());
        let service = EngineServer::new(Service(Arc::clone(&shared))).max_decoding_message_size(64 << 20);
        let (health, health_service) = tonic_health::server::health_reporter();
        let server = tonic::transport::Server::builder()
            .add_service(service)
            .add_service(store)
            .add_service(heard.service())
            .add_service(health_service);
        tokio::spawn(server.serve_with_incoming(incoming));
        Fake { address, health, shared, heard, dropped: Arc::new(AsyncMutex::new(receiver)) }
    }

    pub(crate) fn uri(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The requests so far, in the order of their request ids.
    pub(crate) fn seen(&self) -> Vec<InferRequest> {
        let mut seen = self.shared.seen.lock().unwrap().clone();
        seen.sort_by(|a, b| a.request_id.cmp(&b.request_id));
        seen
    }

    /// The `grpc-timeout` of each request.
    pub(crate) fn timeouts(&self) -> Vec<Option<String>> {
        self.shared.timeouts.lock().unwrap().clone()
    }

    /// The `traceparent` of each request.
    pub(crate) fn traces(&self) -> Vec<Option<String>> {
        self.shared.traces.lock().unwrap().clone()
    }

    /// Says in grpc.health that it takes nothing new.
    pub(crate) async fn drain(&self) {
        self.health.set_service_status("", ServingStatus::NotServing).await;
        if let Ok(stats) = &mut *self.shared.stats.lock().unwrap() {
            stats.draining = true;
        }
    }

    /// Lets one gate step pass.
    pub(crate) fn release(&self) {
        self.shared.gate.add_permits(1);
    }

    /// Waits until a stream is over; whether its script had come to the end.
    pub(crate) async fn stream_over(&self) -> bool {
        let mut dropped = self.dropped.lock().await;
        tokio::time::timeout(PATIENCE, dropped.recv()).await.expect("no stream was dropped").unwrap()
    }

    /// Lets a request for vectors or scores meet what `obstacle` says of its request id.
    pub(crate) fn obstruct(&self, obstacle: impl Fn(&str) -> Option<Step> + Send + Sync + 'static) {
        *self.shared.obstacle.lock().unwrap() = Some(Arc::new(obstacle));
    }

    /// The embedding requests so far, in the order of their request ids.
    pub(crate) fn embeds(&self) -> Vec<v1::EmbedRequest> {
        let mut seen = self.shared.embeds.lock().unwrap().clone();
        seen.sort_by_key(|r| (r.request_id.len(), r.request_id.clone()));
        seen
    }

    /// The reranking requests so far, in the order of their request ids.
    pub(crate) fn reranks(&self) -> Vec<v1::RerankRequest> {
        let mut seen = self.shared.reranks.lock().unwrap().clone();
        seen.sort_by_key(|r| (r.request_id.len(), r.request_id.clone()));
        seen
    }

    /// The classifying requests so far, in the order of their request ids.
    pub(crate) fn classifies(&self) -> Vec<v1::ClassifyRequest> {
        let mut seen = self.shared.classifies.lock().unwrap().clone();
        seen.sort_by_key(|r| (r.request_id.len(), r.request_id.clone()));
        seen
    }

    /// From now on a chat of more messages has more tokens than the context.
    pub(crate) fn fit_messages(&self, messages: usize) {
        *self.shared.messages_max.lock().unwrap() = Some(messages);
    }

    /// What was tokenized so far.
    pub(crate) fn tokenized(&self) -> Vec<v1::TokenizeRequest> {
        self.shared.tokenized.lock().unwrap().clone()
    }

    /// What was to be loaded so far.
    pub(crate) fn loads(&self) -> Vec<v1::LoadRequest> {
        self.shared.loads.lock().unwrap().clone()
    }

    /// What was unloaded so far.
    pub(crate) fn unloads(&self) -> Vec<String> {
        self.shared.unloads.lock().unwrap().clone()
    }

    /// What was to be pulled so far.
    pub(crate) fn pulls(&self) -> Vec<v1::PullRequest> {
        self.shared.pulls.lock().unwrap().clone()
    }

    /// Its store, which remembers what it was asked.
    pub(crate) fn store(&self) -> &FakeStore {
        &self.shared.store
    }

    pub(crate) fn set_stats(&self, stats: Result<v1::StatsResponse, Status>) {
        *self.shared.stats.lock().unwrap() = stats;
    }
}

pub(crate) fn ready_stats() -> v1::StatsResponse {
    v1::StatsResponse {
        version: "9.9.9".to_owned(),
        models: vec![v1::ModelStats {
            status: Some(v1::ModelStatus {
                name: "owner/ready".to_owned(),
                state: v1::ModelState::Ready.into(),
                context_tokens_max: 4096,
                loaded_at_unix_ms: 5_000,
                ..Default::default()
            }),
            kv_blocks_total: 8,
            kv_blocks_used: 2,
            kv_block_tokens: 16,
            ..Default::default()
        }],
        ..Default::default()
    }
}

pub(crate) fn started() -> Step {
    started_with(7, 3)
}

pub(crate) fn started_with(prompt_tokens: u32, cached_tokens: u32) -> Step {
    Step::Send(Event::Started(v1::Started {
        request_id: "r".to_owned(),
        model: "owner/ready".to_owned(),
        prompt_tokens,
        cached_tokens,
        seed: 1,
        sampling: Some(v1::Sampling { temperature: Some(0.5), seed: Some(1), ..Default::default() }),
        context_tokens_max: 4096,
    }))
}

pub(crate) fn delta(choice: u32, text: &str) -> Step {
    Step::Send(Event::Delta(v1::Delta { choice, text: text.to_owned(), ..Default::default() }))
}

pub(crate) fn reasoning(choice: u32, text: &str) -> Step {
    Step::Send(Event::Delta(v1::Delta { choice, reasoning: text.to_owned(), ..Default::default() }))
}

/// A part of a call.
pub(crate) fn part(index: u32, id: &str, name: &str, arguments: &str, broken: bool) -> Step {
    let [id, name, arguments_json] = [id, name, arguments].map(str::to_owned);
    let tool_calls = vec![v1::ToolCallDelta { index, id, name, arguments_json, broken }];
    Step::Send(Event::Delta(v1::Delta { tool_calls, ..Default::default() }))
}

pub(crate) fn with_logprobs(choice: u32, text: &str, logprobs: Vec<TokenLogprob>) -> Step {
    Step::Send(Event::Delta(v1::Delta { choice, text: text.to_owned(), logprobs, ..Default::default() }))
}

pub(crate) fn logprob(token: &str, logprob: f32, top: Vec<TokenLogprob>) -> TokenLogprob {
    TokenLogprob { token_id: 1, token: token.to_owned().into(), logprob, top }
}

pub(crate) fn finished(choice: u32, reason: FinishReason, completion_tokens: u32) -> Step {
    Step::Send(Event::Finished(v1::Finished {
        choice,
        reason: reason.into(),
        usage: Some(v1::Usage {
            prompt_tokens: 7,
            cached_tokens: 3,
            completion_tokens,
            reasoning_tokens: 1,
            draft_tokens: 5,
            accepted_draft_tokens: 3,
        }),
        timings: Some(v1::Timings {
            queue_ms: 1.0,
            prefill_ms: 2.0,
            decode_ms: 3.0 + f64::from(choice),
            prefill_tokens_per_s: 4.0,
            decode_tokens_per_s: 5.0,
            load_ms: 0.0,
        }),
        ..Default::default()
    }))
}

/// "Hello" for each choice.
pub(crate) fn hello(request: &InferRequest) -> Result<Vec<Step>, Status> {
    let mut steps = vec![started(); request.choices as usize];
    for choice in 0..request.choices {
        steps.extend([delta(choice, "Hel"), delta(choice, "lo"), finished(choice, FinishReason::Stop, 2)]);
    }
    Ok(steps)
}

// ---------------------------------------------------------------- the service

struct Service(Arc<Shared>);

/// Reports when a stream is dropped.
struct OnDrop {
    shared: Arc<Shared>,
    complete: bool,
}

impl OnDrop {
    fn complete(mut self) {
        self.complete = true;
    }
}

impl Drop for OnDrop {
    fn drop(&mut self) {
        let _ = self.shared.dropped.send(self.complete);
    }
}

impl Service {
    /// Meets the obstacle of a request, then answers.
    async fn after_obstacle<T>(&self, id: &str, answer: T) -> Result<Response<T>, Status> {
        let watch = OnDrop { shared: Arc::clone(&self.0), complete: false };
        let obstacle = self.0.obstacle.lock().unwrap().clone();
        match obstacle.and_then(|obstacle| obstacle(id)) {
            Some(Step::Fail(status)) => {
                watch.complete();
                return Err(status);
            }
            Some(Step::Gate) => self.0.gate.acquire().await.unwrap().forget(),
            Some(Step::Hang) => std::future::pending().await,
            Some(Step::Send(_)) | None => {}
        }
        watch.complete();
        Ok(Response::new(answer))
    }
}

type Events<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Engine for Service {
    type InferStream = Events<InferEvent>;
    type PullStream = Events<v1::PullProgress>;
    type WatchStream = Events<v1::WatchEvent>;

    async fn infer(&self, request: Request<InferRequest>) -> Result<Response<Self::InferStream>, Status> {
        let timeout = request.metadata().get("grpc-timeout").map(|t| t.to_str().unwrap().to_owned());
        self.0.timeouts.lock().unwrap().push(timeout);
        let trace = request.metadata().get("traceparent").map(|t| t.to_str().unwrap().to_owned());
        self.0.traces.lock().unwrap().push(trace);
        let request = request.into_inner();
        self.0.seen.lock().unwrap().push(request.clone());
        let steps = (self.0.script)(&request)?;
        let watch = OnDrop { shared: Arc::clone(&self.0), complete: false };
        let stream = futures_util::stream::unfold((steps.into_iter(), watch), |(mut steps, watch)| async {
            loop {
                match steps.next() {
                    None => {
                        watch.complete();
                        return None;
                    }
                    Some(Step::Send(event)) => {
                        return Some((Ok(InferEvent { event: Some(event) }), (steps, watch)));
                    }
                    Some(Step::Fail(status)) => return Some((Err(status), (steps, watch))),
                    Some(Step::Gate) => watch.shared.gate.acquire().await.unwrap().forget(),
                    Some(Step::Hang) => std::future::pending().await,
                }
            }
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn stats(&self, _: Request<v1::StatsRequest>) -> Result<Response<v1::StatsResponse>, Status> {
        self.0.stats.lock().unwrap().clone().map(Response::new)
    }

    async fn list(&self, _: Request<v1::ListRequest>) -> Result<Response<v1::ListResponse>, Status> {
        let model = |name: &str| v1::StoredModel {
            name: name.to_owned(),
            modified_at_unix_ms: 9_000,
            loaded: name == "owner/ready",
            ..Default::default()
        };
        Ok(Response::new(v1::ListResponse { models: vec![model("a-stored"), model("owner/ready")] }))
    }

    async fn show(&self, request: Request<v1::ShowRequest>) -> Result<Response<v1::ShowResponse>, Status> {
        let request = request.into_inner();
        match request.model.as_str() {
            _ if !request.known_only => Err(Status::internal("asked to look for a path")),
            "READY" => {
                let status = ready_stats().models.remove(0).status;
                Ok(Response::new(v1::ShowResponse { status, ..Default::default() }))
            }
            other => {
                if other == "a-stored" || other == "x/other" {
                    return Ok(Response::new(models::stored()));
                }
                let models = self.0.stats.lock().unwrap().clone()?.models;
                let status = models.into_iter().filter_map(|m| m.status).find(|s| s.name == other);
                let none = || Status::not_found(format!("no model {other}; loaded: owner/ready"));
                let status = Some(status.ok_or_else(none)?);
                let chat_template = "{{ x }}".to_owned();
                Ok(Response::new(v1::ShowResponse { status, chat_template, ..Default::default() }))
            }
        }
    }

    async fn tokenize(
        &self,
        request: Request<v1::TokenizeRequest>,
    ) -> Result<Response<v1::TokenizeResponse>, Status> {
        use v1::tokenize_request::Input;
        let request = request.into_inner();
        self.0.tokenized.lock().unwrap().push(request.clone());
        let v1::TokenizeRequest { input, add_special_tokens, parse_special, pieces, .. } = request;
        let mut text = match input {
            Some(Input::Text(text)) if text == "refuse" => {
                return Err(Status::invalid_argument("prompt: cannot be tokenized"));
            }
            // What was asked for shows in the tokens.
            Some(Input::Text(text)) if parse_special == Some(false) => format!("plain {text}"),
            Some(Input::Text(text)) => text,
            Some(Input::Chat(chat))
                if self.0.messages_max.lock().unwrap().is_some_and(|most| chat.messages.len() > most) =>
            {
                "x".repeat(5000)
            }
            Some(Input::Chat(chat)) => {
                format!("<{} messages, {} tools>", chat.messages.len(), chat.tools_json.concat())
            }
            None => return Err(Status::invalid_argument("text: required")),
        };
        if add_special_tokens != Some(false) {
            text.insert(0, '^');
        }
        let ids = text.bytes().map(u32::from).collect();
        let pieces = if pieces { text.bytes().map(|byte| vec![byte].into()).collect() } else { Vec::new() };
        Ok(Response::new(v1::TokenizeResponse { ids, text, context_tokens_max: 4096, pieces }))
    }

    async fn detokenize(
        &self,
        request: Request<v1::DetokenizeRequest>,
    ) -> Result<Response<v1::DetokenizeResponse>, Status> {
        let ids = request.into_inner().ids;
        if let Some(id) = ids.iter().find(|id| **id > 999) {
            return Err(Status::invalid_argument(format!("ids: token {id} is not in the vocabulary")));
        }
        let text = ids.iter().filter_map(|id| char::from_u32(*id)).collect();
        Ok(Response::new(v1::DetokenizeResponse { text }))
    }

    async fn load(&self, request: Request<v1::LoadRequest>) -> Result<Response<v1::LoadResponse>, Status> {
        let request = request.into_inner();
        self.0.loads.lock().unwrap().push(request.clone());
        if request.kv_bytes == 1 {
            return Err(Status::resource_exhausted("model a-stored: needs 9 bytes, 1 is free"));
        }
        let ready = ready_stats().models.remove(0).status.unwrap();
        let model = Some(v1::ModelStatus { name: request.model, ..ready });
        self.after_obstacle("", v1::LoadResponse { model, load_ms: 7, ..Default::default() }).await
    }

    async fn load_adapter(
        &self,
        request: Request<v1::LoadAdapterRequest>,
    ) -> Result<Response<v1::LoadAdapterResponse>, Status> {
        let v1::LoadAdapterRequest { model, adapter } = request.into_inner();
        let v1::AdapterSource { name, path } = adapter.unwrap_or_default();
        if path == "/of/another" {
            return Err(Status::invalid_argument("tensor q_proj: expected [4, 64], file has [4, 32]"));
        }
        let model = if model.is_empty() { "owner/ready".to_owned() } else { model };
        let adapter = Some(v1::Adapter { name, model, path, ..Default::default() });
        Ok(Response::new(v1::LoadAdapterResponse { adapter }))
    }

    async fn unload_adapter(
        &self,
        request: Request<v1::UnloadAdapterRequest>,
    ) -> Result<Response<v1::UnloadAdapterResponse>, Status> {
        let v1::UnloadAdapterRequest { model, name } = request.into_inner();
        if name != "sql" {
            return Err(Status::not_found(format!("model: {model} has no adapter {name}; loaded: sql")));
        }
        let adapter = Some(v1::Adapter { name, model, ..Default::default() });
        Ok(Response::new(v1::UnloadAdapterResponse { adapter }))
    }

    async fn list_adapters(
        &self,
        _: Request<v1::ListAdaptersRequest>,
    ) -> Result<Response<v1::ListAdaptersResponse>, Status> {
        Err(Status::unimplemented("list_adapters"))
    }

    async fn unload(
        &self,
        request: Request<v1::UnloadRequest>,
    ) -> Result<Response<v1::UnloadResponse>, Status> {
        let v1::UnloadRequest { model, .. } = request.into_inner();
        if model != "owner/ready" {
            return Err(Status::not_found(format!("model: {model} is not loaded; loaded: owner/ready")));
        }
        self.0.unloads.lock().unwrap().push(model.clone());
        let state = v1::ModelState::Unloaded.into();
        let status = v1::ModelStatus { name: model, state, ..Default::default() };
        Ok(Response::new(v1::UnloadResponse { model: Some(status) }))
    }

    async fn embed(&self, request: Request<v1::EmbedRequest>) -> Result<Response<v1::EmbedResponse>, Status> {
        let timeout = request.metadata().get("grpc-timeout").map(|t| t.to_str().unwrap().to_owned());
        self.0.timeouts.lock().unwrap().push(timeout);
        let trace = request.metadata().get("traceparent").map(|t| t.to_str().unwrap().to_owned());
        self.0.traces.lock().unwrap().push(trace);
        let request = request.into_inner();
        self.0.embeds.lock().unwrap().push(request.clone());
        self.after_obstacle(&request.request_id, vectors::embed(&request)).await
    }

    async fn rerank(
        &self,
        request: Request<v1::RerankRequest>,
    ) -> Result<Response<v1::RerankResponse>, Status> {
        let request = request.into_inner();
        self.0.reranks.lock().unwrap().push(request.clone());
        self.after_obstacle(&request.request_id, vectors::rerank(&request)).await
    }

    async fn classify(
        &self,
        request: Request<v1::ClassifyRequest>,
    ) -> Result<Response<v1::ClassifyResponse>, Status> {
        let request = request.into_inner();
        self.0.classifies.lock().unwrap().push(request.clone());
        self.after_obstacle(&request.request_id, vectors::classify(&request)).await
    }

    async fn pull(&self, request: Request<v1::PullRequest>) -> Result<Response<Self::PullStream>, Status> {
        let request = request.into_inner();
        self.0.pulls.lock().unwrap().push(request.clone());
        let watch = OnDrop { shared: Arc::clone(&self.0), complete: false };
        let steps = models::pull(&request)?;
        let stream = futures_util::stream::unfold((steps.into_iter(), watch), |(mut steps, watch)| async {
            match steps.next() {
                None => {
                    watch.complete();
                    None
                }
                Some(Ok(None)) => std::future::pending().await,
                Some(Ok(Some(step))) => Some((Ok(step), (steps, watch))),
                Some(Err(status)) => Some((Err(status), (steps, watch))),
            }
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn remove(
        &self,
        request: Request<v1::RemoveRequest>,
    ) -> Result<Response<v1::RemoveResponse>, Status> {
        let v1::RemoveRequest { model } = request.into_inner();
        let alias_of = if model == "another-name" { "owner/ready" } else { "" }.to_owned();
        if !["a-stored", "x/other", "owner/ready", "another-name"].contains(&model.as_str()) {
            return Err(Status::not_found(format!("model: there is no {model}; stored: a-stored")));
        }
        let model = Some(v1::StoredModel { name: model, ..Default::default() });
        Ok(Response::new(v1::RemoveResponse { model, freed_bytes: 77, alias_of }))
    }

    async fn watch(&self, _: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("watch"))
    }
}
