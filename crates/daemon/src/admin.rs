//! The admin port: `/metrics` for Prometheus, `/healthz` (the process answers) and `/readyz` (a model answers).

use std::{net::SocketAddr, sync::Arc};

use axum::{
    Json, Router,
    extract::{ConnectInfo, Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use hanzo_engine_access::{Access, PresentedKeys, Refusal};
use hanzo_engine_process::without_directories;
use hanzo_engine_telemetry::{CONTENT_TYPE, is_wanted, process};
use serde_json::{Value, json};

use crate::{
    config::{MetricsCompat, ServerConfig},
    device_memory, hosts,
    service::Core,
    stock,
    views::{ModelView, StateView},
};

/// Builds the admin routes. Probes need no key; `/metrics` needs one if `private_metrics` is set.
pub(crate) fn routes(core: Arc<Core>, access: Arc<Access>, config: &ServerConfig) -> Router {
    let hosts = hosts::of(config);
    let also = config.metrics_compat;
    let (of_metrics, of_readiness) = (access.clone(), access.clone());
    let metrics = get(move |State(core): State<Arc<Core>>, headers: HeaderMap| {
        core.models.metrics.keys_unreadable.set(i64::from(of_metrics.keys_fault().is_some()));
        metrics(core, headers, also)
    });
    let ready = get(move |State(core)| readyz(core, of_readiness.clone()));
    let metrics = match config.private_metrics {
        true => metrics.layer(middleware::from_fn_with_state(access, keyed)),
        false => metrics,
    };
    Router::new()
        .route("/metrics", metrics)
        .route("/healthz", get(healthz))
        .route("/alive", get(healthz))
        .route("/readyz", ready.clone())
        .route("/ready", ready)
        .fallback(not_found)
        .layer(middleware::from_fn(hosts::check_page))
        .layer(middleware::from_fn_with_state(hosts, hosts::check))
        .with_state(core)
}

/// Middleware that requires an API key.
async fn keyed(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    let from = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|from| from.0.ip());
    let Err(refusal) = access.admit(&PresentedKeys::of(request.headers()), from) else {
        return next.run(request).await;
    };
    let status = match refusal {
        Refusal::Missing | Refusal::Wrong => StatusCode::UNAUTHORIZED,
        Refusal::KeysUnreadable => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::TOO_MANY_REQUESTS,
    };
    (status, Json(json!({"error": refusal.to_string()}))).into_response()
}

/// Handler of `/metrics`. Uses OpenMetrics' text format if the client accepts it, as Prometheus does.
async fn metrics(core: Arc<Core>, headers: HeaderMap, also: Option<MetricsCompat>) -> impl IntoResponse {
    let ready = !core.drain.is_draining() && core.models.is_ready();
    let open = is_wanted(headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()));
    let mut families = core.models.metrics.gather(&core.models.registry.views(), ready, also);
    families.extend(core.cards.families().await);
    families.extend(device_memory::families(&core.models.places));
    families.extend(stock::families(&core).await);
    families.extend(process::families());
    let text = core.models.metrics.text(&families, open);
    let kind = if open { CONTENT_TYPE } else { "text/plain; version=0.0.4; charset=utf-8" };
    ([(header::CONTENT_TYPE, kind)], text)
}

async fn healthz(State(core): State<Arc<Core>>) -> impl IntoResponse {
    let uptime_ms = u64::try_from(core.started.elapsed().as_millis()).unwrap_or(u64::MAX);
    Json(json!({"status": "ok", "version": env!("CARGO_PKG_VERSION"), "uptime_ms": uptime_ms}))
}

/// Handler of `/readyz`. Answers 200 if a model is ready (its worker makes progress, or requests would load it),
/// the daemon is not draining, and keys can be checked.
async fn readyz(core: Arc<Core>, access: Arc<Access>) -> impl IntoResponse {
    let draining = core.drain.is_draining();
    let keys = access.keys_fault();
    let ready = !draining && core.models.is_ready() && !keys.as_ref().is_some_and(|fault| fault.closed);
    let models: Vec<Value> = core.models.registry.views().iter().map(model).collect();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut answer = json!({"ready": ready, "draining": draining, "models": models});
    if access.wants_keys() {
        answer["keys"] = json!(if keys.is_some() { "unreadable" } else { "ok" });
    }
    (status, Json(answer))
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
        StateView::Failed { error } => ("failed", json!(without_directories(error))),
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
