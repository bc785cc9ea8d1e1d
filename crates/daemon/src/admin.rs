//! The admin port: `/metrics` for Prometheus, `/healthz` (the process answers) and `/readyz` (a model answers).

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, header},
    middleware,
    response::IntoResponse,
    routing::get,
};
use serde_json::{Value, json};

use crate::{
    hosts::{self, Hosts},
    service::Core,
    views::{ModelView, StateView},
};

/// Its routes.
pub(crate) fn routes(core: Arc<Core>, hosts: Hosts) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/alive", get(healthz))
        .route("/readyz", get(readyz))
        .route("/ready", get(readyz))
        .fallback(not_found)
        .layer(middleware::from_fn_with_state(hosts, hosts::check))
        .with_state(core)
}

async fn metrics(State(core): State<Arc<Core>>) -> impl IntoResponse {
    let ready = !core.drain.is_draining() && core.models.is_ready();
    let text = core.models.metrics.render(&core.models.registry.views(), ready);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}

async fn healthz(State(core): State<Arc<Core>>) -> impl IntoResponse {
    let uptime_ms = u64::try_from(core.started.elapsed().as_millis()).unwrap_or(u64::MAX);
    Json(json!({"status": "ok", "version": env!("CARGO_PKG_VERSION"), "uptime_ms": uptime_ms}))
}

/// 200 when a model is ready whose worker makes progress, or would be loaded for a request, and the daemon is not draining.
async fn readyz(State(core): State<Arc<Core>>) -> impl IntoResponse {
    let draining = core.drain.is_draining();
    let ready = !draining && core.models.is_ready();
    let models: Vec<Value> = core.models.registry.views().iter().map(model).collect();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(json!({"ready": ready, "draining": draining, "models": models})))
}

fn model(view: &ModelView) -> Value {
    let stuck = view.worker.as_ref().is_some_and(|worker| worker.stuck);
    let (state, detail) = match &view.state {
        StateView::Queued => ("queued", Value::Null),
        StateView::Loading { percent } => ("loading", json!(percent)),
        StateView::Ready if stuck => ("stuck", Value::Null),
        StateView::Ready => ("ready", Value::Null),
        StateView::Draining => ("draining", Value::Null),
        StateView::Unloaded => ("unloaded", Value::Null),
        StateView::Failed { error } => ("failed", json!(error)),
    };
    let mut answer = json!({"name": view.name, "state": state});
    match state {
        "loading" => answer["percent"] = detail,
        "failed" => answer["error"] = detail,
        _ => {}
    }
    answer
}

async fn not_found() -> impl IntoResponse {
    (StatusCode::NOT_FOUND, Json(json!({"error": "no such route; there are /metrics, /healthz and /readyz"})))
}
