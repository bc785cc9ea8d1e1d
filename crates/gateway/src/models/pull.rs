//! `POST /v1/models/pull`: downloads a model into the store. Progress is sent as server-sent events, or as
//! NDJSON if `Accept` asks for it; with `stream: false` there is one answer at the end. If the client
//! disconnects, the download is cancelled, unless another client waits for the same model.

use std::{pin::pin, sync::Arc};

use axum::{
    Extension, Json,
    extract::State,
    http::{HeaderMap, header},
    response::{IntoResponse as _, Response},
};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use hanzo_engine_proto::v1::{self, pull_progress::Phase};
use serde_json::{Value, json};

use super::load::admin;
use crate::{
    app::App,
    asker::Asker,
    body::{self, IncomingBody},
    declare::{Declaration as _, Read, fields},
    error::ApiError,
    fields::{Field, Fields},
    limits::PULL_GLOBS_MAX,
    names::SentFields,
    progress::{EVENTS, LINES, NDJSON, bounded, line, respond},
    request::{FILLED, filled, one_of},
    status::model_of_store,
};

/// Handler of the route.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    headers: HeaderMap,
    incoming: IncomingBody,
) -> Result<Response, ApiError> {
    admin(&app, &asker, "to pull models")?;
    let peer = incoming.peer();
    let received = body::read(&app, incoming).await?;
    let (((request, streamed), sent), _room) =
        received.into(SentFields::beside(|fields, _| read(fields))).await?;
    let until = app.until();
    let progress = until.run(app.engine(&asker).pull(request)).await;
    let progress = progress.map_err(|error| error.renamed(|field| sent.name(field)))?;
    let progress = bounded(progress, until);
    if !streamed {
        let last = pin!(progress).try_fold(None, |_, step| async { Ok(Some(step)) }).await?;
        return Ok(Json(last.map(told)).into_response());
    }
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if accept.contains(NDJSON) {
        let lines = progress.map_ok(|step| line(&told(step)));
        return respond(&app, peer, LINES, lines, ApiError::json).await;
    }
    let done = stream::once(async { Ok(b"data: [DONE]\n\n".to_vec()) });
    let events = progress.map_ok(|step| (EVENTS.frame)(&told(step))).chain(done);
    // A failed stream ends without the final event.
    let events = events.scan(false, |failed, step| {
        let over = std::mem::replace(failed, step.is_err());
        std::future::ready((!over).then_some(step))
    });
    respond(&app, peer, EVENTS, events, ApiError::json).await
}

/// `GET /v1/models/pull`: running downloads of all clients. Empty for keys that may not download.
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
) -> Result<Json<Value>, ApiError> {
    let running = app.engine(&asker).pulls().await?;
    Ok(Json(json!({"object": "list", "data": running.into_iter().map(told).collect::<Vec<_>>()})))
}

fields! {
    /// Body of `POST /v1/models/pull`.
    pub(crate) struct ModelPullRequest {
        /// Name or reference of the model; no file of the engine's machine.
        model?: String = Read("string 1..", elsewhere),
        /// Second name of model.
        reference?: String = Read("string 1..", elsewhere),
        /// Whether files that are there are fetched again.
        force: bool,
        /// Quantization, where there are several.
        quantization?: String = FILLED,
        /// Branch, tag or commit.
        revision?: String = FILLED,
        /// Patterns of the files to fetch.
        include?: Vec<String> = Read("string 1..[]", globs),
        /// Patterns of files that are left out.
        exclude?: Vec<String> = Read("string 1..[]", globs),
        /// Whether progress is sent; true if absent.
        stream?: bool,
    }
}

/// Reads what to download, and whether to stream progress.
fn read(mut fields: Fields) -> Result<(v1::PullRequest, bool), ApiError> {
    let given = ModelPullRequest::read(&mut fields)?;
    fields.finish()?;
    let reference = one_of(("model", given.model), ("reference", given.reference))?;
    let request = v1::PullRequest {
        reference: reference.ok_or_else(|| ApiError::field("model", "required"))?,
        force: given.force,
        quantization: given.quantization.unwrap_or_default(),
        revision: given.revision.unwrap_or_default(),
        include: given.include.unwrap_or_default(),
        exclude: given.exclude.unwrap_or_default(),
        copy: false,
        cancel_with_client: true,
    };
    Ok((request, given.stream.unwrap_or(true)))
}

/// Reads a reference that names no file, so that HTTP clients cannot explore the engine's disk.
pub(crate) fn elsewhere(field: Field) -> Result<String, ApiError> {
    let reference = filled(field)?;
    let file = reference.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("file:"));
    if file || reference.starts_with(['/', '.', '~']) {
        let problem = "names a file of the engine's machine; use `hanzo-engine pull` there";
        return Err(ApiError::unsupported(&field.path(), problem));
    }
    Ok(reference)
}

fn globs(field: Field) -> Result<Vec<String>, ApiError> {
    field.list_up_to(PULL_GLOBS_MAX, "patterns")?.map(filled).collect()
}

/// Progress of a download as JSON.
fn told(step: v1::PullProgress) -> Value {
    let word = |phase: Phase| match phase {
        Phase::Unspecified | Phase::Resolving => "resolving",
        Phase::Downloading => "downloading",
        Phase::Verifying => "verifying",
        Phase::Done => "done",
    };
    let file = |file: &v1::FileProgress| json!({"name": file.name, "status": word(file.phase()), "digest": file.digest, "bytes_done": file.bytes_done, "bytes_total": file.bytes_total});
    let mut told = json!({
        "model": step.model,
        "status": word(step.phase()),
        "file": step.file,
        "bytes_done": step.bytes_done,
        "bytes_total": step.bytes_total,
        "bytes_fetched": step.bytes_fetched,
        "bytes_per_s": step.bytes_per_s,
        "eta_s": (step.eta_s >= 0.0).then_some(step.eta_s),
        "files": step.files.iter().map(file).collect::<Vec<_>>(),
    });
    if let Some(stored) = step.stored {
        told["stored"] = json!(model_of_store(stored));
    }
    told
}
