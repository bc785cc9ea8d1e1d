//! MCP tools other than `hanzo_infer`. Embeddings and scores use the HTTP routes' validation and answers,
//! without the fields that only clients of those routes need.

use std::sync::Arc;

use axum::{
    Extension,
    body::Body,
    extract::{FromRequest as _, Request, State},
    http::header,
    response::Response,
};
use futures_util::StreamExt as _;
use hanzo_engine_proto::v1::{self, pull_progress::Phase};
use http_body_util::{BodyExt as _, Limited};
use rmcp::model::{CallToolResult, JsonObject};
use serde_json::{Value, json};

use crate::{
    app::App,
    asker::Asker,
    body::{self, IncomingBody},
    error::ApiError,
    fields::{Field, Fields},
    limits::MCP_RESULT_BYTES_MAX,
    mcp::{
        progress::ProgressChannel,
        tools::{EMBED_FIELDS, LOAD_FIELDS, PULL_FIELDS, RERANK_FIELDS, UNLOAD_FIELDS, known},
    },
    openai::models,
    request::{filled, keep_alive},
    scores::rerank,
    status::model_of_show,
    vectors,
};

/// Runs `hanzo_embed`.
pub(super) async fn embed(
    app: &Arc<App>,
    asker: &Asker,
    arguments: JsonObject,
    mut progress: ProgressChannel,
) -> Result<CallToolResult, ApiError> {
    let arguments = known(arguments, &EMBED_FIELDS)?;
    let model = model_of(&arguments);
    let incoming = incoming(arguments).await;
    let work = vectors::openai::handle(State(Arc::clone(app)), Extension(asker.clone()), incoming);
    let answer = progress.beside(app, asker, &model, work).await?;
    let mut answer = read(answer).await?;
    let vectors = answer["data"].take();
    let embeddings: Vec<Value> = match vectors {
        Value::Array(vectors) => vectors
            .into_iter()
            .map(|mut vector| json!({"index": vector["index"].take(), "embedding": vector["embedding"].take()}))
            .collect(),
        _ => Vec::new(),
    };
    Ok(CallToolResult::structured(json!({
        "model": answer["model"].take(),
        "embeddings": embeddings,
        "prompt_tokens": answer["usage"]["prompt_tokens"].take(),
    })))
}

/// Runs `hanzo_rerank`.
pub(super) async fn rerank(
    app: &Arc<App>,
    asker: &Asker,
    arguments: JsonObject,
    mut progress: ProgressChannel,
) -> Result<CallToolResult, ApiError> {
    let arguments = known(arguments, &RERANK_FIELDS)?;
    let model = model_of(&arguments);
    let received = body::read(app, incoming(arguments).await).await?;
    let work = rerank::answer(app, asker, received, "1");
    let mut answer = read(progress.beside(app, asker, &model, work).await?).await?;
    let mut results = answer["results"].take();
    for result in results.as_array_mut().into_iter().flatten() {
        if let Some(document) = result.get_mut("document") {
            *document = document["text"].take();
        }
    }
    Ok(CallToolResult::structured(json!({
        "model": answer["model"].take(),
        "results": results,
        "prompt_tokens": answer["meta"]["tokens"]["input_tokens"].take(),
    })))
}

/// Runs `hanzo_list_models`.
pub(super) async fn list_models(
    app: &App,
    asker: &Asker,
    arguments: JsonObject,
) -> Result<CallToolResult, ApiError> {
    known(arguments, &[])?;
    Ok(CallToolResult::structured(json!({"models": models::models(app, asker).await?})))
}

/// Runs `hanzo_pull`.
pub(super) async fn pull(
    app: &App,
    asker: &Asker,
    arguments: JsonObject,
    mut progress: ProgressChannel,
) -> Result<CallToolResult, ApiError> {
    let text = Value::Object(known(arguments, &PULL_FIELDS)?).to_string();
    let request = {
        let mut fields = Fields::of_body(body::parse(&text)?, false)?;
        let text = |fields: &mut Fields, name: &str| fields.take(name).map(Field::string).transpose();
        v1::PullRequest {
            reference: filled(fields.require("model")?)?,
            force: fields.flag("force")?,
            quantization: text(&mut fields, "quantization")?.unwrap_or_default(),
            revision: text(&mut fields, "revision")?.unwrap_or_default(),
            ..v1::PullRequest::default()
        }
    };
    let until = app.until();
    let mut events = Box::pin(app.engine(asker).pull(request).await?);
    let mut stored = None;
    while let Some(event) = until.run(async { events.next().await.transpose() }).await? {
        let total = (event.bytes_total > 0).then_some(event.bytes_total as f64);
        let phase = match event.phase() {
            Phase::Downloading => "downloading",
            Phase::Verifying => "verifying",
            Phase::Done => "done",
            Phase::Resolving | Phase::Unspecified => "resolving",
        };
        let done = event.stored.is_some();
        progress.say(event.bytes_done as f64, total, phase, done).await;
        stored = event.stored.or(stored);
    }
    let Some(stored) = stored else { return Err(ApiError::internal("a pull ended without a model")) };
    Ok(CallToolResult::structured(json!({
        "model": stored.name,
        "size_bytes": stored.size_bytes,
        "format": stored.format,
        "quantization": stored.quantization,
    })))
}

/// Runs `hanzo_load`.
pub(super) async fn load(
    app: &App,
    asker: &Asker,
    arguments: JsonObject,
    mut progress: ProgressChannel,
) -> Result<CallToolResult, ApiError> {
    let text = Value::Object(known(arguments, &LOAD_FIELDS)?).to_string();
    let request = {
        let mut fields = Fields::of_body(body::parse(&text)?, false)?;
        let context =
            fields.take("context_tokens_max").map(|field| field.integer(1..=u32::MAX)).transpose()?;
        v1::LoadRequest {
            model: filled(fields.require("model")?)?,
            alias: fields.take("alias").map(filled).transpose()?.unwrap_or_default(),
            context_tokens_max: context.unwrap_or(0),
            keep_alive: keep_alive(&mut fields)?,
            ..v1::LoadRequest::default()
        }
    };
    let until = app.until();
    let mut engine = app.engine(asker);
    let name = if request.alias.is_empty() { &request.model } else { &request.alias }.clone();
    let work = until.run(engine.load(request, until.deadline));
    let loaded = progress.beside(app, asker, &name, work).await?;
    let status = loaded.model.unwrap_or_default();
    let context = status.context_tokens_max;
    let model = shown(status);
    Ok(CallToolResult::structured(json!({
        "model": model.0, "state": model.1, "context_tokens_max": context, "load_ms": loaded.load_ms,
    })))
}

/// Runs `hanzo_unload`.
pub(super) async fn unload(
    app: &App,
    asker: &Asker,
    arguments: JsonObject,
) -> Result<CallToolResult, ApiError> {
    let text = Value::Object(known(arguments, &UNLOAD_FIELDS)?).to_string();
    let request = {
        let mut fields = Fields::of_body(body::parse(&text)?, false)?;
        v1::UnloadRequest { model: filled(fields.require("model")?)?, force: fields.flag("force")? }
    };
    let until = app.until();
    let mut engine = app.engine(asker);
    let unloaded = until.run(engine.unload(request, until.deadline)).await?;
    let (model, state) = shown(unloaded.model.unwrap_or_default());
    Ok(CallToolResult::structured(json!({"model": model, "state": state})))
}

/// Name and state of a model, as in lists.
fn shown(status: v1::ModelStatus) -> (String, &'static str) {
    let shown = v1::ShowResponse { status: Some(status), ..v1::ShowResponse::default() };
    let model = model_of_show(String::new(), shown);
    (model.id, model.state)
}

/// Model that a call names; empty: none.
fn model_of(arguments: &JsonObject) -> String {
    arguments.get("model").and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// Wraps arguments as the body of the equivalent HTTP request.
async fn incoming(body: JsonObject) -> IncomingBody {
    let mut request = Request::new(Body::from(Value::Object(body).to_string()));
    let json = header::HeaderValue::from_static("application/json");
    request.headers_mut().insert(header::CONTENT_TYPE, json);
    let Ok(incoming) = IncomingBody::from_request(request, &()).await;
    incoming
}

/// Reads the JSON of a route's response.
async fn read(answer: Response) -> Result<Value, ApiError> {
    let bytes = Limited::new(answer.into_body(), MCP_RESULT_BYTES_MAX).collect().await.map_err(|error| {
        match error.downcast_ref::<http_body_util::LengthLimitError>() {
            Some(_) => ApiError::answer_too_large(MCP_RESULT_BYTES_MAX),
            None => ApiError::internal(&format!("an answer broke off: {error}")),
        }
    })?;
    serde_json::from_slice(&bytes.to_bytes()).map_err(|error| ApiError::internal(&error.to_string()))
}
