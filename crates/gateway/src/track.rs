//! Middleware that follows each request from its headers to the last byte of its answer: id, admission,
//! metrics, the engine's timings, and the access log.

use std::{
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Instant,
};

use axum::{
    body::{Body, HttpBody},
    extract::{MatchedPath, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version, header},
    middleware::Next,
    response::Response,
};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tonic::Status;

use hanzo_engine_access::{KeyEnd, Pass, PresentedKeys, RunningRequest, check_origin};
use hanzo_engine_telemetry::TraceContext;

use crate::{
    app::App,
    asker::Asker,
    bodies::ShareOwner,
    busy::AnswerGuard,
    cloud::SENT_TO,
    cors,
    drain::Admission,
    error::ApiError,
    mcp, page, quota,
    record::Record,
    request_id::{self, RequestId, X_REQUEST_ID},
    request_trace::RequestTrace,
    surface,
};

/// Routes about the server itself, which answer even while it drains.
const OPERATIONS: [&str; 7] =
    ["/health", "/v1/health", "/alive", "/ready", "/version", "/metrics", "/openapi.json"];

/// Operational routes that reveal models and clients; a setting can require a key for them.
const PRIVATE: [&str; 4] = ["/health", "/v1/health", "/version", "/metrics"];

/// Header for the engine's timings, which browsers and proxies understand.
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// Client address of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientAddress(pub(crate) IpAddr);

/// Request being tracked. It is counted until dropped.
struct TrackedRequest {
    app: Arc<App>,
    id: RequestId,
    method: Method,
    route: String, // as registered, such as /v1/models/{*id}
    operation: bool,
    started: Instant,
    status: Option<StatusCode>, // None: the client left before there was an answer
    key: Option<String>,        // the name of its key
    record: Record,
    request_trace: RequestTrace,
    done: bool, // the answer's last byte was handed over
    _admitted: Option<RequestGuards>,
    _work: Option<AnswerGuard>, // on its connection
}

/// Guards that a request holds until it has ended.
struct RequestGuards {
    pass: Pass,
    _running: RunningRequest,
    _admission: Option<Admission>, // None: it is about the server itself
}

/// Client whose requests share a memory limit for bodies. None: the connection has its own limit, as on the
/// loopback, where a proxy may connect from.
fn client_of(pass: &Pass, request: &Request) -> Option<ShareOwner> {
    if let Some(name) = pass.name() {
        return Some(ShareOwner::Key(name.to_owned()));
    }
    let ClientAddress(address) = *request.extensions().get()?;
    Some(hanzo_engine_access::client_of(address)).filter(|ip| !ip.is_loopback()).map(ShareOwner::Address)
}

/// Error of a request that is not admitted, and its key.
struct RefusedRequest {
    error: Box<ApiError>,
    pass: Option<Pass>, // None: it has no known key, or the key was not checked
}

impl From<ApiError> for RefusedRequest {
    fn from(error: ApiError) -> RefusedRequest {
        RefusedRequest { error: Box::new(error), pass: None }
    }
}

/// Whether a request is about the server itself. The web page counts as such, because it reveals nothing about
/// models and clients.
fn is_operation(method: &Method, route: &str) -> bool {
    OPERATIONS.contains(&route) || (matches!(*method, Method::GET | Method::HEAD) && page::is_own(route))
}

/// Whether a page of any origin may send the request: it changes nothing, and the page cannot read the answer.
/// For MCP the origin is always checked.
fn is_plain_read(method: &Method, route: &str) -> bool {
    matches!(*method, Method::GET | Method::HEAD) && route != mcp::PATH
}

/// Admits a request, or returns the reason for refusing it.
fn admit(app: &App, request: &Request, route: &str) -> Result<RequestGuards, RefusedRequest> {
    app.hosts.check(request.uri(), request.headers())?;
    if !is_plain_read(request.method(), route) {
        let page = check_origin(&app.config.cors_origins, request.uri(), request.headers());
        page.map_err(|page| ApiError::origin(&page))?;
    }
    let operation = is_operation(request.method(), route);
    if operation && !(app.config.private_metrics && PRIVATE.contains(&route)) {
        return Ok(RequestGuards {
            pass: Pass::anyone(),
            _running: RunningRequest::default(),
            _admission: None,
        });
    }
    // Streams that wait for messages of the server must not delay the drain, and MCP tools count themselves.
    let (mcp, looks) = (route == mcp::PATH, matches!(*request.method(), Method::GET | Method::HEAD));
    let _admission = if operation { None } else { Some(app.drain.admit()?).filter(|_| !(mcp && looks)) };
    let from = request.extensions().get::<ClientAddress>().map(|from| from.0);
    let pass = app.access.admit(&PresentedKeys::of(request.headers()), from);
    let pass = pass.map_err(|refusal| app.refuse(&refusal))?;
    // Read-only requests do not count against the key's limits, as with other servers.
    let _running = match () {
        () if looks || mcp => RunningRequest::default(),
        () => pass.enter().map_err(|refusal| RefusedRequest {
            error: Box::new(app.refuse(&refusal)),
            pass: Some(pass.clone()),
        })?,
    };
    Ok(RequestGuards { pass, _running, _admission })
}

/// Middleware around every route and fallback.
pub(crate) async fn track(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>();
    let route = route.map_or("unmatched", MatchedPath::as_str).to_owned();
    let operation = is_operation(request.method(), &route);
    let from = request.extensions().get::<ClientAddress>().map(|from| request_id::ClientIdentity::of(from.0));
    let id = RequestId::of(request.headers()).asked_by(from);
    let page = cors::AllowedOrigin::of(&app.config.cors_origins, request.headers());
    app.metrics.http_requests_in_flight.inc();
    let request_trace =
        RequestTrace::arrival(&app.traces, request.method(), &route, operation, request.headers());
    let mut tracked = TrackedRequest {
        id: id.clone(),
        method: request.method().clone(),
        route,
        operation,
        started: Instant::now(),
        status: None,
        key: None,
        record: Record::default(),
        request_trace,
        done: false,
        _admitted: None,
        _work: request.extensions_mut().remove(),
        app,
    };
    let trailers = takes_trailers(request.headers());
    let preflight = page.as_ref().and_then(|page| page.preflight(request.method(), request.headers()));
    let mut response = match preflight {
        // A CORS preflight request has no key.
        Some(response) => response,
        None => answer(&mut tracked, request, next).await,
    };
    if let Some(page) = page {
        page.tell(response.headers_mut());
    }
    tracked.status = Some(response.status());
    response.headers_mut().insert(X_REQUEST_ID, id.header());
    if let Some(Ok(told)) = tracked.record.so_far().sent_to.map(HeaderValue::try_from) {
        response.headers_mut().insert(SENT_TO, told);
    }
    // For a collected answer all timings are known now; for a stream they can only follow as a trailer.
    let timing = tracked.record.so_far().server_timing();
    let trailers = match timing {
        Some(timing) => {
            response.headers_mut().insert(SERVER_TIMING, timing);
            false
        }
        None => trailers && is_stream(&response),
    };
    if trailers {
        response.headers_mut().insert(header::TRAILER, HeaderValue::from_static("server-timing"));
    }
    let key_end = tracked._admitted.as_ref().map(|admitted| admitted.pass.key_end());
    response.map(|body| Body::new(TrackedBody { body, trailers, key_end, tracked }))
}

/// Whether the client accepts trailers.
fn takes_trailers(headers: &HeaderMap) -> bool {
    let lists = headers.get_all(header::TE).iter().filter_map(|value| value.to_str().ok());
    lists.flat_map(|list| list.split(',')).any(|word| word.trim().eq_ignore_ascii_case("trailers"))
}

fn is_stream(response: &Response) -> bool {
    let kind = response.headers().get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

/// Whether the request is one of gRPC, which has another port.
fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// Answers an admitted request, or refuses it.
async fn answer(tracked: &mut TrackedRequest, mut request: Request, next: Next) -> Response {
    if is_grpc(request.headers()) {
        let problem = "this port speaks HTTP; the daemon's gRPC has a port of its own (36901, unless server.grpc_port or \
                       --grpc-port says otherwise)";
        return Status::unimplemented(problem).into_http();
    }
    let admitted = match admit(&tracked.app, &request, &tracked.route) {
        Ok(admitted) => admitted,
        Err(RefusedRequest { error, pass }) => {
            let mut response = surface::refuse(request.uri().path(), *error);
            if let Some(pass) = pass {
                tracked.key = pass.name().map(str::to_owned);
                quota::tell(pass.standing(), response.headers_mut());
            }
            return response;
        }
    };
    let pass = admitted.pass.clone();
    tracked.key = pass.name().map(str::to_owned);
    tracked._admitted = Some(admitted);
    if let Some(client) = client_of(&pass, &request) {
        request.extensions_mut().insert(tracked.app.bodies.share_of(client));
    }
    let id = match pass.name() {
        // All requests with the same key belong to one client, whatever their addresses.
        Some(name) => tracked.id.clone().asked_by(Some(request_id::ClientIdentity::with_key(name))),
        None => tracked.id.clone(),
    };
    let (record, trace) = (tracked.record.clone(), tracked.request_trace.trace.clone());
    request.extensions_mut().insert(Asker { id, pass: pass.clone(), record, trace });
    let closes = request.version() <= Version::HTTP_11;
    let mut response = next.run(request).await;
    quota::tell(pass.standing(), response.headers_mut());
    // The rest of such a body is not read, so the connection ends. The header says so; otherwise the client
    // would send its next request on it.
    if closes && [StatusCode::PAYLOAD_TOO_LARGE, StatusCode::REQUEST_TIMEOUT].contains(&response.status()) {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

impl Drop for TrackedRequest {
    fn drop(&mut self) {
        let metrics = &self.app.metrics;
        let seconds = self.started.elapsed().as_secs_f64();
        let status = self.status.map_or(499, |status| status.as_u16());
        metrics.http_requests_in_flight.dec();
        metrics.http_requests_total.with_label_values(&[self.route.as_str(), &status.to_string()]).inc();
        let trace = self.request_trace.trace.take();
        metrics.http_request(&self.route, seconds, trace.as_ref());
        self.tell(status, seconds, trace.as_ref());
    }
}

impl TrackedRequest {
    /// Writes the log line.
    fn tell(&mut self, status: u16, seconds: f64, trace: Option<&TraceContext>) {
        let (id, method, route) = (self.id.as_str(), &self.method, &self.route);
        let (key, trace) = (self.key.as_deref(), trace.map(TraceContext::id));
        if self.operation {
            tracing::debug!(request_id = id, key, %method, route, status, seconds, "request");
            return;
        }
        let known = self.record.so_far();
        let outcome = match known.error {
            Some(_) => "broken",
            None if !self.done => "left",
            None if status >= 400 => "refused",
            None => "ok",
        };
        if self.app.config.access_log {
            let times = known.times.as_ref();
            tracing::info!(
                request_id = id,
                trace_id = trace,
                key,
                %method,
                route,
                status,
                outcome,
                model = known.model.as_deref(),
                prompt_tokens = known.prompt_tokens,
                cached_tokens = known.cached_tokens,
                completion_tokens = known.completion_tokens,
                queue_ms = times.map(|times| times.queue),
                load_ms = times.map(|times| times.load),
                prefill_ms = times.map(|times| times.prefill),
                decode_ms = times.map(|times| times.decode),
                seconds,
                "request"
            );
        }
        self.request_trace.end(id, route.as_str(), status, outcome, &known);
    }
}

/// Body of an answer. It keeps its request counted until it has been sent or dropped.
struct TrackedBody {
    body: Body,
    trailers: bool, // the engine's timings follow it
    key_end: Option<KeyEnd>,
    tracked: TrackedRequest,
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.key_end.as_mut().is_some_and(|end| end.poll_ended(context)) {
            self.body = Body::empty();
            return Poll::Ready(Some(Err(axum::Error::new("the request's API key was revoked"))));
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if frame.is_none() || self.body.is_end_stream() {
            self.tracked.done = true;
        }
        if frame.is_none() && std::mem::take(&mut self.trailers) {
            let timing = self.tracked.record.so_far().server_timing();
            let trailers = timing.map(|timing| HeaderMap::from_iter([(SERVER_TIMING, timing)]));
            return Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        !self.trailers && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
