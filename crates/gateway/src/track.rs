//! Follows each request from its headers to the last byte of its answer: id, admission, metrics, log line.

use std::{
    net::IpAddr,
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
    response::Response,
};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

use hanzo_engine_access::{Pass, Presented, Running, Standing};

use crate::{
    app::App,
    asker::Asker,
    bodies::Client,
    busy::Work,
    cors,
    drain::Admission,
    error::ApiError,
    page, quota,
    request_id::{self, RequestId, X_REQUEST_ID},
    surface,
};

/// Answers under this path prefix or these paths are about the server itself: they are given while it drains.
const OPERATIONS: [&str; 6] = ["/health", "/alive", "/ready", "/version", "/metrics", "/openapi.json"];

/// Of those, the ones that tell of models and clients: they can be made to want a key.
const PRIVATE: [&str; 3] = ["/health", "/version", "/metrics"];

/// The address that a connection comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientAddress(pub(crate) IpAddr);

/// One request, counted until this is dropped.
struct Tracked {
    app: Arc<App>,
    id: RequestId,
    method: Method,
    route: String, // as registered, such as /v1/models/{*id}
    operation: bool,
    started: Instant,
    status: Option<StatusCode>, // None: the client left before there was an answer
    key: Option<String>,        // the name of its key
    _admitted: Option<Admitted>,
    _work: Option<Work>, // on its connection
}

/// What a request holds until it has ended.
struct Admitted {
    pass: Pass,
    _running: Running,
    _admission: Option<Admission>, // None: it is about the server itself
}

/// Who shares a share of the room for bodies with others of theirs; None: a connection has one of its own. A proxy may
/// stand on the loopback.
fn client_of(pass: &Pass, request: &Request) -> Option<Client> {
    if let Some(name) = pass.name() {
        return Some(Client::Key(name.to_owned()));
    }
    let ClientAddress(address) = *request.extensions().get()?;
    Some(hanzo_engine_access::client_of(address)).filter(|ip| !ip.is_loopback()).map(Client::Address)
}

/// Why a request is not let in, and what its key has left.
struct Refused(Box<ApiError>, Standing);

impl From<ApiError> for Refused {
    fn from(error: ApiError) -> Refused {
        Refused(Box::new(error), Standing::default())
    }
}

/// Whether a request is about the server itself. The page is: it says nothing of models and clients.
fn is_operation(method: &Method, route: &str) -> bool {
    OPERATIONS.contains(&route) || (matches!(*method, Method::GET | Method::HEAD) && page::is_own(route))
}

/// Lets a request in, or says why not.
fn admit(app: &App, request: &Request, route: &str) -> Result<Admitted, Refused> {
    app.hosts.check(request.uri(), request.headers())?;
    let operation = is_operation(request.method(), route);
    if operation && !(app.config.private_metrics && PRIVATE.contains(&route)) {
        return Ok(Admitted { pass: Pass::anyone(), _running: Running::default(), _admission: None });
    }
    let _admission = if operation { None } else { Some(app.drain.admit()?) };
    let from = request.extensions().get::<ClientAddress>().map(|from| from.0);
    let pass = app.access.admit(&Presented::of(request.headers()), from);
    let pass = pass.map_err(|refusal| app.refuse(&refusal))?;
    // What only looks is not counted, as elsewhere.
    let _running = match *request.method() {
        Method::GET | Method::HEAD => Running::default(),
        _ => pass.enter().map_err(|refusal| Refused(Box::new(app.refuse(&refusal)), pass.standing()))?,
    };
    Ok(Admitted { pass, _running, _admission })
}

/// The middleware around every route and fallback.
pub(crate) async fn track(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>();
    let route = route.map_or("unmatched", MatchedPath::as_str).to_owned();
    let operation = is_operation(request.method(), &route);
    let from = request.extensions().get::<ClientAddress>().map(|from| request_id::Client::of(from.0));
    let id = RequestId::of(request.headers()).asked_by(from);
    let page = cors::Allowed::of(&app.config.cors_origins, request.headers());
    app.metrics.http_requests_in_flight.inc();
    let mut tracked = Tracked {
        id: id.clone(),
        method: request.method().clone(),
        route,
        operation,
        started: Instant::now(),
        status: None,
        key: None,
        _admitted: None,
        _work: request.extensions_mut().remove(),
        app,
    };
    let preflight = page.as_ref().and_then(|page| page.preflight(request.method(), request.headers()));
    let mut response = match preflight {
        // Whoever asks whether a page may ask sends no key.
        Some(response) => response,
        None => answer(&mut tracked, request, next).await,
    };
    if let Some(page) = page {
        page.tell(response.headers_mut());
    }
    tracked.status = Some(response.status());
    response.headers_mut().insert(X_REQUEST_ID, id.header());
    response.map(|body| Body::new(TrackedBody { body, _tracked: tracked }))
}

/// The answer to a request that is let in, or why it is not.
async fn answer(tracked: &mut Tracked, mut request: Request, next: Next) -> Response {
    let admitted = match admit(&tracked.app, &request, &tracked.route) {
        Ok(admitted) => admitted,
        Err(Refused(error, standing)) => {
            let mut response = surface::refuse(request.uri().path(), *error);
            quota::tell(standing, response.headers_mut());
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
        // Whoever has a key is one client, wherever they ask from.
        Some(name) => tracked.id.clone().asked_by(Some(request_id::Client::with_key(name))),
        None => tracked.id.clone(),
    };
    request.extensions_mut().insert(Asker { id, pass: pass.clone() });
    let mut response = next.run(request).await;
    quota::tell(pass.standing(), response.headers_mut());
    response
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
        let key = self.key.as_deref();
        if self.operation {
            tracing::debug!(request_id = id, key, %method, route, status, seconds, "request");
        } else {
            tracing::info!(request_id = id, key, %method, route, status, seconds, "request");
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
