//! Follows each request from its headers to the last byte of its answer: id, admission, metrics, log line.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use axum::{
    body::{Body, HttpBody},
    extract::{MatchedPath, Request, State},
    http::{Method, StatusCode},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

use crate::{
    app::App,
    drain::Admission,
    request_id::{Client, RequestId, X_REQUEST_ID},
};

/// Answers under this path prefix or these paths are about the server itself: they are given while it drains.
const OPERATIONS: [&str; 5] = ["/health", "/alive", "/ready", "/version", "/metrics"];

/// One request, counted until this is dropped.
struct Tracked {
    app: Arc<App>,
    id: RequestId,
    method: Method,
    route: String, // as registered, such as /v1/models/{*id}
    operation: bool,
    started: Instant,
    status: Option<StatusCode>, // None: the client left before there was an answer
    _admission: Option<Admission>,
}

/// The middleware around every route and fallback.
pub(crate) async fn track(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>();
    let route = route.map_or("unmatched", MatchedPath::as_str).to_owned();
    let operation = OPERATIONS.contains(&route.as_str());
    let client = request.extensions().get::<Client>().cloned();
    let id = RequestId::of(request.headers()).asked_by(client);
    let admission = app.hosts.check(request.uri(), request.headers());
    let admission = admission.and_then(|()| if operation { Ok(None) } else { app.drain.admit().map(Some) });
    let (admission, refusal) = match admission {
        Ok(admission) => (admission, None),
        Err(error) => (None, Some(error)),
    };
    app.metrics.http_requests_in_flight.inc();
    let mut tracked = Tracked {
        id: id.clone(),
        method: request.method().clone(),
        route,
        operation,
        started: Instant::now(),
        status: None,
        _admission: admission,
        app,
    };
    let mut response = match refusal {
        Some(error) => error.into_response(),
        None => {
            request.extensions_mut().insert(id.clone());
            next.run(request).await
        }
    };
    tracked.status = Some(response.status());
    response.headers_mut().insert(X_REQUEST_ID, id.header());
    response.map(|body| Body::new(TrackedBody { body, _tracked: tracked }))
}

impl Drop for Tracked {
    fn drop(&mut self) {
        let metrics = &self.app.metrics;
        let seconds = self.started.elapsed().as_secs_f64();
        let status = self.status.map_or(499, |status| status.as_u16());
        metrics.http_requests_in_flight.dec();
        metrics.http_requests_total.with_label_values(&[self.route.as_str(), &status.to_string()]).inc();
        metrics.http_request_duration_seconds.with_label_values(&[self.route.as_str()]).observe(seconds);
        let (id, method, route) = (self.id.as_str(), &self.method, &self.route);
        if self.operation {
            tracing::debug!(request_id = id, %method, route, status, seconds, "request");
        } else {
            tracing::info!(request_id = id, %method, route, status, seconds, "request");
        }
    }
}

/// An answer's body that keeps its request counted until it has been sent or dropped.
struct TrackedBody {
    body: Body,
    _tracked: Tracked,
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
