//! Routes and their handlers.

use std::sync::Arc;

use axum::{
    Extension, Router,
    extract::Request,
    middleware,
    response::Response,
    routing::{any, delete, get, head, post},
};

use crate::{
    adapters, anthropic,
    app::App,
    audio,
    error::ApiError,
    llamacpp,
    mcp::{self, Mcp},
    models, ollama, openai, openapi, ops, page, responses, scores, surface, tei, tokens, track, vectors,
};

/// All routes.
pub(crate) fn router(app: Arc<App>, mcp: Mcp) -> Router {
    let router = Router::new()
        .route("/v1/chat/completions", post(openai::chat::handle))
        .route("/v1/completions", post(openai::completions::handle))
        .route("/v1/responses", post(responses::create::handle))
        .route("/v1/responses/input_tokens", post(responses::count::handle))
        .route("/v1/responses/{id}", get(responses::saved::show).delete(responses::saved::delete))
        .route("/v1/responses/{id}/cancel", post(responses::saved::cancel))
        .route("/v1/responses/{id}/input_items", get(responses::saved::input_items))
        .route("/v1/messages", post(anthropic::messages::handle))
        .route("/v1/messages/count_tokens", post(anthropic::count::handle))
        .route("/v1/audio/transcriptions", post(audio::transcriptions))
        .route("/v1/audio/translations", post(audio::translations))
        .route("/v1/audio/speech", post(audio::speech::speak))
        .route("/v1/audio/voices", get(audio::speech::voices))
        .route("/v1/embeddings", post(vectors::openai::handle))
        .route("/embeddings", post(vectors::openai::handle))
        .route("/v2/embed", post(vectors::cohere::handle))
        .route("/v1/rerank", post(scores::rerank::handle))
        .route("/rerank", post(tei::rerank::either))
        .route("/v2/rerank", post(scores::rerank::handle))
        .route("/v1/score", post(scores::score::handle))
        .route("/score", post(scores::score::handle))
        .route("/v1/classify", post(scores::classify::handle))
        .route("/classify", post(scores::classify::handle))
        .route("/", post(tei::root::handle))
        .route("/embed", post(tei::embed::embed))
        .route("/embed_all", post(tei::embed::embed_all))
        .route("/embed_sparse", post(tei::embed::embed_sparse))
        .route("/predict", post(tei::predict::handle))
        .route("/similarity", post(tei::similarity::handle))
        .route("/info", get(tei::info::handle))
        .route("/v1/models", get(openai::models::list))
        .route("/v1/models/{*id}", get(openai::models::show).delete(models::remove::handle))
        .route("/v1/models/load", post(models::load::load))
        .route("/v1/models/unload", post(models::load::unload))
        .route("/v1/models/pull", get(models::pull::list).post(models::pull::handle))
        .route("/models", get(openai::models::list))
        .route("/models/load", post(models::load::load))
        .route("/models/unload", post(models::load::unload))
        .route(mcp::PATH, any(mcp::handle).layer(Extension(mcp)))
        .route("/v1/load_lora_adapter", post(adapters::load))
        .route("/v1/unload_lora_adapter", post(adapters::unload))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .merge(ollama())
        .merge(llamacpp())
        .route("/health", get(ops::health))
        .route("/alive", get(ops::alive))
        .route("/ready", get(ops::ready))
        .route("/version", get(ops::version))
        .route("/metrics", get(ops::metrics))
        .route("/openapi.json", get(openapi::handle));
    let router = if app.config.page { page::route(router) } else { router };
    router
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn_with_state(Arc::clone(&app), track::track))
        .with_state(app)
}

/// Routes of the separate MCP port.
pub(crate) fn mcp_router(app: Arc<App>, mcp: Mcp) -> Router {
    Router::new()
        .route(mcp::PATH, any(mcp::handle).layer(Extension(mcp)))
        .route("/alive", get(ops::alive))
        .route("/ready", get(ops::ready))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn_with_state(Arc::clone(&app), track::track))
        .with_state(app)
}

/// Routes of llama.cpp's server, and its aliases of others.
fn llamacpp() -> Router<Arc<App>> {
    Router::new()
        .route("/completion", post(llamacpp::generate::completion))
        .route("/completions", post(llamacpp::generate::completion))
        .route("/infill", post(llamacpp::generate::infill))
        .route("/embedding", post(llamacpp::embedding::handle))
        .route("/apply-template", post(llamacpp::template::apply))
        .route("/v1/chat/completions/input_tokens", post(llamacpp::template::count))
        .route("/props", get(llamacpp::state::props).post(llamacpp::state::refused))
        .route("/slots", get(llamacpp::state::slots))
        .route("/slots/{id}", post(llamacpp::state::refused))
        .route("/lora-adapters", get(llamacpp::state::adapters).post(llamacpp::state::refused))
        .route("/chat/completions", post(openai::chat::handle))
        .route("/responses", post(responses::create::handle))
        .route("/reranking", post(scores::rerank::handle))
        .route("/v1/reranking", post(scores::rerank::handle))
        .route("/v1/health", get(ops::health))
}

/// Routes of Ollama.
fn ollama() -> Router<Arc<App>> {
    Router::new()
        .route("/api/chat", post(ollama::chat::handle))
        .route("/api/generate", post(ollama::generate::handle))
        .route("/api/embed", post(ollama::embed::embed))
        .route("/api/embeddings", post(ollama::embed::embeddings))
        .route("/api/tags", get(ollama::list::tags))
        .route("/api/ps", get(ollama::list::ps))
        .route("/api/version", get(ollama::list::version))
        .route("/api/show", post(ollama::show::handle))
        .route("/api/pull", post(ollama::manage::pull))
        .route("/api/delete", delete(ollama::manage::remove))
        .route("/api/copy", post(ollama::manage::copy))
        .route("/api/create", post(ollama::create::handle))
        .route("/api/blobs/{digest}", head(ollama::blobs::look).post(ollama::blobs::put))
        .route("/api/push", post(ollama::manage::push))
}

async fn not_found(request: Request) -> Response {
    let path = request.uri().path();
    surface::refuse(path, ApiError::route_not_found(request.method().as_str(), path))
}

async fn method_not_allowed(request: Request) -> Response {
    let path = request.uri().path();
    surface::refuse(path, ApiError::method_not_allowed(request.method().as_str(), path))
}
