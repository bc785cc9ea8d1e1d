//! Routes about the server: health, liveness, readiness, version, metrics. They answer even while the server
//! drains.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use hanzo_engine_process::without_directories;
use hanzo_engine_proto::v1::{ModelState, StatsResponse};
use hanzo_engine_telemetry::{CONTENT_TYPE, is_wanted};
use serde_json::{Value, json};

use crate::{
    app::App,
    error::ApiError,
    status::{engine_health, member_health, model_health},
};

/// `GET /alive`: the process is running.
pub(crate) async fn alive() -> Json<Value> {
    Json(json!({"status": "alive"}))
}

/// Handler of `GET /version`.
pub(crate) async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION"), "api": "hanzo.engine.v1"}))
}

/// `GET /metrics`: Prometheus text, or OpenMetrics if the client accepts it.
pub(crate) async fn metrics(State(app): State<Arc<App>>, headers: HeaderMap) -> Result<Response, ApiError> {
    app.metrics.keys_unreadable.set(i64::from(app.access.keys_fault().is_some()));
    if is_wanted(headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok())) {
        return Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], app.metrics.open_metrics()).into_response());
    }
    let text = app.metrics.text().map_err(|e| ApiError::internal(&format!("metrics: {e}")))?;
    Ok(([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response())
}

/// `GET /ready`: 200 only if requests can be answered, by a loaded model or by one that is loaded on demand,
/// and keys can be checked.
pub(crate) async fn ready(State(app): State<Arc<App>>) -> Response {
    let keys_refused = app.access.keys_fault().is_some_and(|fault| fault.closed);
    let (status, reason) = match Health::of(&app).await {
        _ if keys_refused => {
            let reason =
                "the file of keys cannot be read, so its keys are refused; the server's log says why";
            ("keys_unreadable", reason.to_owned())
        }
        Health::Ok(_) => return Json(json!({"ready": true})).into_response(),
        Health::Loading(_) => ("loading", "no model is ready yet".to_owned()),
        Health::Empty(_) => ("empty", "no model is loaded".to_owned()),
        Health::Draining => ("draining", "the server is shutting down".to_owned()),
        Health::Unavailable(reason) => ("unavailable", reason),
    };
    let body = json!({"ready": false, "status": status, "reason": reason});
    (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], Json(body)).into_response()
}

/// `GET /health`: state, models, and KV cache use. 503 if the engine does not answer, so that a stuck engine
/// counts as unhealthy.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Response {
    let state = Health::of(&app).await;
    let (status, stats) = match &state {
        Health::Ok(stats) => ("ok", Some(stats)),
        Health::Loading(stats) => ("loading", Some(stats)),
        Health::Empty(stats) => ("empty", Some(stats)),
        Health::Draining => ("draining", None),
        Health::Unavailable(_) => ("unavailable", None),
    };
    let mut body = json!({"status": status, "version": env!("CARGO_PKG_VERSION")});
    if let Health::Unavailable(reason) = &state {
        body["reason"] = json!(reason);
    }
    if let Some(stats) = stats {
        body["engine"] = engine_health(stats);
        body["models"] = stats.models.iter().map(model_health).collect();
    }
    if app.access.wants_keys() {
        body["keys"] = json!(if app.access.keys_fault().is_some() { "unreadable" } else { "ok" });
    }
    if let Some(members) = app.own_engine().members() {
        body["upstreams"] = members.iter().map(member_health).collect();
    }
    let code = if matches!(state, Health::Unavailable(_)) {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        StatusCode::OK
    };
    (code, Json(body)).into_response()
}

/// State of the server.
enum Health {
    /// At least one model is ready, or models are loaded on demand.
    Ok(StatsResponse),
    /// No model is ready, and one is being loaded.
    Loading(StatsResponse),
    /// No model is ready or being loaded.
    Empty(StatsResponse),
    /// The gateway or the engine is shutting down.
    Draining,
    /// The engine does not answer, for this reason.
    Unavailable(String),
}

impl Health {
    async fn of(app: &App) -> Health {
        if app.drain.is_draining() {
            return Health::Draining;
        }
        let stats = match app.own_engine().stats().await {
            Ok(stats) => stats,
            Err(status) => return Health::Unavailable(without_directories(status.message())),
        };
        let any = |state| stats.models.iter().filter_map(|m| m.status.as_ref()).any(|m| m.state() == state);
        match () {
            () if stats.draining => Health::Draining,
            () if stats.ready || any(ModelState::Ready) => Health::Ok(stats),
            () if any(ModelState::Loading) || any(ModelState::Queued) => Health::Loading(stats),
            () => Health::Empty(stats),
        }
    }
}
