//! MCP server for agents, over `/mcp` (streamable HTTP) or stdio. The official SDK `rmcp` implements the
//! protocol. Here are the served tools and resources (`server`, `tools`, `infer`, `calls`, `resources`), access
//! control, and the sessions (`sessions`). A tool uses the same engine with the same permissions as any other
//! request, see [`App::engine`].

mod calls;
mod infer;
mod progress;
mod resources;
mod server;
mod sessions;
mod stdio;
mod tools;

use std::{sync::Arc, time::Duration};

use axum::{
    Extension,
    body::Body,
    extract::{FromRequest as _, Request, State},
    http::{HeaderValue, Method, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use futures_util::StreamExt as _;
use http_body_util::Full;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::{Value, json};
use tower::ServiceExt as _;

pub use stdio::serve_stdio;

use crate::{
    app::App,
    asker::Asker,
    body::{self, IncomingBody},
    error::ApiError,
    limits::{MCP_INITIALIZE_BYTES_MAX, MCP_REFUSAL_BYTES_MAX},
};
use server::Server;
use sessions::Sessions;

/// Path of MCP over HTTP.
pub(crate) const PATH: &str = "/mcp";

/// Header with the id of a client's session.
const SESSION: &str = "mcp-session-id";

/// MCP server over HTTP, with its sessions.
#[derive(Clone)]
pub(crate) struct Mcp {
    service: StreamableHttpService<Server, Sessions>,
    sessions: Arc<Sessions>,
}

impl Mcp {
    /// Creates a server without sessions.
    pub(crate) fn new(app: &Arc<App>) -> Mcp {
        let idle = Duration::from_secs(app.config.mcp_idle_s);
        let sessions = Arc::new(Sessions::new(app.config.mcp_sessions_max, idle));
        // `track` checks hosts and origins of every route by the gateway's settings.
        let config = StreamableHttpServerConfig::default()
            .disable_allowed_hosts()
            .disable_allowed_origins()
            .with_max_request_body_bytes(app.config.body_bytes_max)
            .with_sse_keep_alive(Some(Duration::from_secs(app.config.sse_keep_alive_s)))
            .with_cancellation_token(app.drain.cut());
        let (of_app, of_sessions) = (Arc::clone(app), Arc::clone(&sessions));
        let server = move || Ok(Server::over_http(Arc::clone(&of_app), Arc::clone(&of_sessions)));
        Mcp { service: StreamableHttpService::new(server, Arc::clone(&sessions), config), sessions }
    }
}

/// Handler of the route, for every method.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Extension(mcp): Extension<Mcp>,
    Extension(asker): Extension<Asker>,
    request: Request,
) -> Response {
    answer(&app, mcp, asker, request).await.unwrap_or_else(|error| refusal(&error))
}

async fn answer(app: &Arc<App>, mcp: Mcp, asker: Asker, request: Request) -> Result<Response, ApiError> {
    let method = request.method().clone();
    let mut asked = http::Request::new(());
    *asked.method_mut() = method.clone();
    *asked.uri_mut() = request.uri().clone();
    *asked.headers_mut() = request.headers().clone();
    let session = request.headers().get(SESSION).and_then(|id| id.to_str().ok()).map(Arc::<str>::from);
    let (owner, client) = (asker.pass.name().map(str::to_owned), asker.id.client());
    asked.extensions_mut().insert(asker);
    if let Some(session) = &session {
        // Another client's session is reported as missing.
        if !mcp.sessions.used_by(session, owner.as_deref()) {
            return Err(ApiError::no_session());
        }
    }
    let (mut text, mut room) = (String::new(), None);
    if method == Method::POST {
        let Ok(incoming) = IncomingBody::from_request(request, &()).await;
        let (read, held) = body::read(app, incoming).await?.text();
        // This limits the nesting depth, which the SDK does not.
        if !body::parse(&read)?.is_object() {
            return Err(ApiError::not_json_rpc());
        }
        if session.is_none() && opens_session(&read) {
            // The session keeps the message for as long as it lives.
            if read.len() > MCP_INITIALIZE_BYTES_MAX {
                return Err(ApiError::body_too_large(MCP_INITIALIZE_BYTES_MAX));
            }
            mcp.sessions.make_room().await?;
        }
        (text, room) = (read, Some(held));
    }
    let asked = asked.map(|()| Full::new(bytes::Bytes::from(text)));
    let Ok(answer) = mcp.service.oneshot(asked).await;
    drop(room);
    let (mut head, body) = answer.into_parts();
    if session.is_none()
        && let Some(id) = head.headers.get(SESSION).and_then(|id| id.to_str().ok())
    {
        mcp.sessions.opened_by(id, owner, client);
    }
    let is_json = head.headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    if (head.status.is_client_error() || head.status.is_server_error()) && !is_json {
        // The SDK sends these errors as plain text.
        let said =
            http_body_util::BodyExt::collect(http_body_util::Limited::new(body, MCP_REFUSAL_BYTES_MAX));
        let said = said.await.map(|said| said.to_bytes()).unwrap_or_default();
        let body = error_json(-32000, String::from_utf8_lossy(&said).trim(), None);
        head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        head.headers.remove(header::CONTENT_LENGTH);
        return Ok(Response::from_parts(head, Body::from(body.to_string())));
    }
    if method == Method::DELETE && head.status == StatusCode::ACCEPTED {
        // The session has ended, but clients take 202 for a failure.
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    // A stream that waits for messages of the server must not delay the drain.
    let body = match (method, head.status) {
        (Method::GET, StatusCode::OK) => {
            let ends = app.drain.begins();
            let frames = Body::new(body).into_data_stream().take_until(ends.cancelled_owned());
            Body::from_stream(frames)
        }
        _ => Body::new(body),
    };
    Ok(Response::from_parts(head, body))
}

/// Whether a message asks for a new session.
fn opens_session(text: &str) -> bool {
    let Some(members) = body::parse(text).ok().and_then(|message| message.members()) else { return false };
    let mut methods = members.filter(|(name, _)| name == "method");
    // Each of several counts, because parsers differ in which one they take.
    methods.any(|(_, method)| method.as_str().is_some_and(|method| method == "initialize"))
}

/// Error response in JSON-RPC format.
pub(crate) fn refusal(error: &ApiError) -> Response {
    let code = match error.code() {
        Some("invalid_body") => -32700,
        Some("invalid_request") => -32600,
        _ => -32000,
    };
    let data = error.json()["error"].take();
    error.respond(error_json(code, error.message(), Some(data))).into_response()
}

fn error_json(code: i32, message: &str, data: Option<Value>) -> Value {
    let mut error = json!({"code": code, "message": message});
    if let Some(data) = data {
        error["data"] = data;
    }
    json!({"jsonrpc": "2.0", "id": null, "error": error})
}
