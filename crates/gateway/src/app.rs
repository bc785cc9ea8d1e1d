//! What every handler shares, and the routes.

use std::sync::Arc;

use axum::{
    Router,
    extract::Request,
    middleware,
    routing::{get, post},
};
use tokio::sync::Semaphore;

use crate::{
    Config, GatewayError, answers::Answers, bodies::Bodies, drain::Drain, engine::Engine, error::ApiError,
    hosts::Hosts, limits::BODIES_READ_MAX, metrics::Metrics, openai, ops, scores, tei, tokens, track,
};

/// The gateway's state. Nothing in it belongs to one request, and nothing outlives the process.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) config: Config,
    pub(crate) engine: Engine,
    pub(crate) metrics: Metrics,
    pub(crate) drain: Drain,
    /// Room for request bodies: `Config::bodies_bytes_max` in all.
    pub(crate) bodies: Bodies,
    /// Larger bodies that are being read.
    pub(crate) bodies_read: Arc<Semaphore>,
    /// Room for answers that are collected.
    pub(crate) answers: Answers,
    /// The hosts that are answered to.
    pub(crate) hosts: Hosts,
    /// Bytes of vectors that may be held: `Config::embeddings_bytes_max` in all.
    pub(crate) vectors: Arc<Semaphore>,
}

impl App {
    /// The state for `config` and an engine; connects to nothing.
    pub(crate) fn new(config: Config, engine: Engine) -> Result<App, GatewayError> {
        let metrics = Metrics::new().map_err(|e| GatewayError::Config(format!("metrics: {e}")))?;
        Ok(App {
            engine,
            metrics,
            drain: Drain::default(),
            bodies: Bodies::new(config.bodies_bytes_max, config.body_bytes_max),
            bodies_read: Arc::new(Semaphore::new(BODIES_READ_MAX)),
            answers: Answers::new(),
            hosts: Hosts::of(&config),
            vectors: Arc::new(Semaphore::new(config.embeddings_bytes_max)),
            config,
        })
    }

    /// Every route.
    pub(crate) fn router(self: Arc<App>) -> Router {
        Router::new()
            .route("/v1/chat/completions", post(openai::chat::handle))
            .route("/v1/completions", post(openai::completions::handle))
            .route("/v1/embeddings", post(openai::embeddings::handle))
            .route("/embeddings", post(openai::embeddings::handle))
            .route("/v1/rerank", post(scores::rerank::handle))
            .route("/rerank", post(tei::rerank::either))
            .route("/v2/rerank", post(scores::rerank::handle))
            .route("/v1/score", post(scores::score::handle))
            .route("/score", post(scores::score::handle))
            .route("/v1/classify", post(scores::classify::handle))
            .route("/classify", post(scores::classify::handle))
            .route("/", post(tei::root))
            .route("/embed", post(tei::embed::embed))
            .route("/embed_all", post(tei::embed::embed_all))
            .route("/embed_sparse", post(tei::embed::embed_sparse))
            .route("/predict", post(tei::predict::handle))
            .route("/similarity", post(tei::similarity::handle))
            .route("/info", get(tei::info::handle))
            .route("/v1/models", get(openai::models::list))
            .route("/v1/models/{*id}", get(openai::models::show))
            .route("/tokenize", post(tokens::tokenize))
            .route("/detokenize", post(tokens::detokenize))
            .route("/health", get(ops::health))
            .route("/alive", get(ops::alive))
            .route("/ready", get(ops::ready))
            .route("/version", get(ops::version))
            .route("/metrics", get(ops::metrics))
            .fallback(not_found)
            .method_not_allowed_fallback(method_not_allowed)
            .layer(middleware::from_fn_with_state(Arc::clone(&self), track::track))
            .with_state(self)
    }
}

async fn not_found(request: Request) -> ApiError {
    ApiError::route_not_found(request.method().as_str(), request.uri().path())
}

async fn method_not_allowed(request: Request) -> ApiError {
    ApiError::method_not_allowed(request.method().as_str(), request.uri().path())
}
