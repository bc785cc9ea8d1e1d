//! Errors that clients can see, the table from gRPC statuses to HTTP, and errors of the gateway's start.

use std::{fmt::Display, io, net::SocketAddr, time::Duration};

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use hanzo_engine_access::{AccessError, ForeignPage, Refusal, TlsError, mistaken_server};
use hanzo_engine_process::without_directories;
use hanzo_engine_telemetry::TracesError;
use serde_json::{Value, json};
use tonic::{Code, Status};

use crate::{
    limits::{KEY_RETRY_AFTER_S_MAX, MESSAGE_BYTES_MAX, PARAM_BYTES_MAX, QUOTE_CHARS_MAX, RETRY_AFTER_S_MAX},
    request_id::random_id,
};

/// Error of the gateway's start.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// A setting is unknown, of the wrong type or out of range.
    #[error("gateway configuration: {0}")]
    Config(String),
    /// The API keys cannot be used.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// TLS cannot be set up.
    #[error("TLS: {0}")]
    Tls(#[from] TlsError),
    /// Traces cannot be exported as configured.
    #[error("gateway configuration: {0}")]
    Traces(#[from] TracesError),
    /// The address cannot be bound.
    #[error("cannot listen on {address}: {source}; choose another host or port (0 picks a free one)")]
    Bind {
        /// Requested address.
        address: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The input on stdin is not that of an MCP client.
    #[error("MCP over stdio: {0}")]
    Mcp(String),
    /// The engine's address is invalid.
    #[error("engine address {uri}: {reason}")]
    Engine {
        /// Given address.
        uri: String,
        /// Fault of the address.
        reason: String,
    },
}

/// Columns: gRPC code, HTTP status, `type`, `code`. A status with `error-code` metadata has its own `code`.
const STATUSES: [(Code, u16, &str, Option<&str>); 15] = [
    (Code::InvalidArgument, 400, INVALID, None),
    (Code::FailedPrecondition, 400, INVALID, Some("model_not_capable")),
    (Code::Unauthenticated, 401, INVALID, Some("invalid_api_key")),
    (Code::PermissionDenied, 403, INVALID, Some("permission_denied")),
    (Code::NotFound, 404, INVALID, Some("model_not_found")),
    (Code::AlreadyExists, 409, INVALID, Some("already_exists")),
    // gRPC's own status for a message over the receiver's limit; the current engine sends its own error.
    (Code::OutOfRange, 413, INVALID, Some("body_too_large")),
    (Code::ResourceExhausted, 429, "rate_limit_error", Some("overloaded")),
    (Code::Internal, 500, SERVER, Some("internal_error")),
    (Code::Unknown, 500, SERVER, Some("internal_error")),
    (Code::Unimplemented, 501, SERVER, Some("not_implemented")),
    (Code::Unavailable, 503, SERVER, Some("unavailable")),
    (Code::Cancelled, 503, SERVER, Some("unavailable")),
    (Code::Aborted, 503, SERVER, Some("unavailable")),
    (Code::DeadlineExceeded, 504, SERVER, Some("deadline_exceeded")),
];
const INVALID: &str = "invalid_request_error";
const SERVER: &str = "server_error";
/// Code of the error for a text that must not be empty.
pub(crate) const EMPTY: &str = "empty_input";

/// Response with an error status: `{"error":{"message","type","param","code"}}`.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    code: Option<String>,
    param: Option<String>,
    message: String,
    retry_after_s: Option<u64>,
}

impl ApiError {
    fn new(
        status: StatusCode,
        kind: &'static str,
        code: Option<&str>,
        message: impl Into<String>,
    ) -> ApiError {
        let mut message = message.into();
        truncate(&mut message, MESSAGE_BYTES_MAX);
        ApiError { status, kind, code: code.map(str::to_owned), param: None, message, retry_after_s: None }
    }

    /// 400 for a field: the message is `param: problem`.
    pub(crate) fn field(param: &str, problem: impl AsRef<str>) -> ApiError {
        let mut param = param.to_owned();
        truncate(&mut param, PARAM_BYTES_MAX);
        let message = format!("{param}: {}", problem.as_ref());
        let mut error = ApiError::new(StatusCode::BAD_REQUEST, INVALID, None, message);
        error.param = Some(param);
        error
    }

    /// 404: the requester has no such response.
    pub(crate) fn response_not_found(id: &str) -> ApiError {
        let message = format!("Response with id {} not found.", quote(id));
        ApiError::new(StatusCode::NOT_FOUND, INVALID, Some("response_not_found"), message)
    }

    /// 400: the previous response is not stored, or not the requester's.
    pub(crate) fn previous_response_not_found(id: &str) -> ApiError {
        let message = format!("Previous response with id {} not found.", quote(id));
        let mut error =
            ApiError::new(StatusCode::BAD_REQUEST, INVALID, Some("previous_response_not_found"), message);
        error.param = Some("previous_response_id".to_owned());
        error
    }

    /// 404: a referenced item is not stored, or not the requester's.
    pub(crate) fn item_not_found(param: &str, id: &str) -> ApiError {
        let problem = format!(
            "Item with id {} not found; items of responses that are not kept are sent whole.",
            quote(id)
        );
        let mut error = ApiError::field(param, problem);
        (error.status, error.code) = (StatusCode::NOT_FOUND, Some("item_not_found".to_owned()));
        error
    }

    /// 400: a response that was not created in the background cannot be cancelled by id.
    pub(crate) fn not_in_background() -> ApiError {
        let message = "Cannot cancel a synchronous response: it is whole already. One that is still streamed ends when its client closes the connection.";
        ApiError::new(StatusCode::BAD_REQUEST, INVALID, None, message)
    }

    /// 403: the `Host` is not allowed.
    pub(crate) fn host(host: &str) -> ApiError {
        let message = format!(
            "host {}: this server listens on the loopback and answers only to localhost and addresses of it; allow other names with allowed_hosts (--allowed-host)",
            quote(host)
        );
        ApiError::new(StatusCode::FORBIDDEN, INVALID, Some("host_not_allowed"), message)
    }

    /// 403: the request comes from a page of a foreign origin.
    pub(crate) fn origin(page: &ForeignPage) -> ApiError {
        let origin = page.origin.as_deref().map(|origin| format!("origin {}", quote(origin)));
        let origin = origin.as_deref().unwrap_or("a web page");
        let message = format!(
            "{origin}: pages of other origins may not send requests to this server; allow an origin with cors_origins (--cors-origin)"
        );
        ApiError::new(StatusCode::FORBIDDEN, INVALID, Some("origin_not_allowed"), message)
    }

    /// 404: the MCP session does not exist or belongs to another client.
    pub(crate) fn no_session() -> ApiError {
        let message = "no such session: it has ended, or is another client's; initialize a new one";
        ApiError::new(StatusCode::NOT_FOUND, INVALID, Some("session_not_found"), message)
    }

    /// 400: the JSON is no JSON-RPC message.
    pub(crate) fn not_json_rpc() -> ApiError {
        let message = "the body must be one message of JSON-RPC 2.0, an object";
        ApiError::new(StatusCode::BAD_REQUEST, INVALID, Some("invalid_request"), message)
    }

    /// 400, 401, 403, 429 or 503: refusal by the key, its permissions or its limits.
    pub(crate) fn refusal(refusal: &Refusal) -> ApiError {
        let (status, kind, code) = match refusal {
            Refusal::Missing | Refusal::Wrong => (StatusCode::UNAUTHORIZED, INVALID, "invalid_api_key"),
            Refusal::Tokens { .. } => (StatusCode::TOO_MANY_REQUESTS, "tokens", "rate_limit_exceeded"),
            Refusal::TooManyTokens { .. } => (StatusCode::BAD_REQUEST, INVALID, refusal.code()),
            Refusal::KeysUnreadable => (StatusCode::SERVICE_UNAVAILABLE, SERVER, refusal.code()),
            Refusal::Guessing { .. } | Refusal::Requests { .. } | Refusal::Running { .. } => {
                (StatusCode::TOO_MANY_REQUESTS, "requests", "rate_limit_exceeded")
            }
            Refusal::Admin { .. } | Refusal::Model { .. } | Refusal::NoModel { .. } => {
                (StatusCode::FORBIDDEN, INVALID, refusal.code())
            }
        };
        let mut error = ApiError::new(status, kind, Some(code), refusal.to_string());
        if matches!(refusal, Refusal::Model { .. } | Refusal::NoModel { .. }) {
            error.param = Some("model".to_owned());
        }
        let seconds = |time| retry_after_s(time, KEY_RETRY_AFTER_S_MAX);
        error.retry_after_s = refusal.retry_after().map(seconds);
        error
    }

    /// 403: clients may not load adapters.
    pub(crate) fn adapter_updates() -> ApiError {
        let message = "this server's clients may not load or unload adapters; start it with --adapter-updates, or use \
                       `hanzo-engine adapter` beside the engine";
        ApiError::new(StatusCode::FORBIDDEN, INVALID, Some("adapter_updates_not_allowed"), message)
    }

    /// 400: the answer exceeds the limit of unstreamed answers.
    pub(crate) fn answer_too_large(bytes_max: usize) -> ApiError {
        let message = format!(
            "the answer is over {bytes_max} bytes, the limit for one that is not streamed; set stream: true, or ask for fewer choices, tokens or log probabilities"
        );
        ApiError::new(StatusCode::BAD_REQUEST, INVALID, Some("answer_too_large"), message)
    }

    /// 503: other requests use what this one needs.
    pub(crate) fn busy(problem: impl Into<String>) -> ApiError {
        let mut error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, SERVER, Some("unavailable"), problem);
        error.retry_after_s = Some(1);
        error
    }

    /// 503: the upstream server does not answer.
    pub(crate) fn cloud(why: &str) -> ApiError {
        let message = format!("the server that answers for this model does not: {why}");
        let code = Some("cloud_unavailable");
        let mut error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, SERVER, code, message);
        error.retry_after_s = Some(1);
        error
    }

    /// Whether the error means that no engine can take a request now, from any client.
    pub(crate) fn is_of_load(&self) -> bool {
        matches!((self.status.as_u16(), self.code()), (429, Some("overloaded")) | (503, Some("unavailable")))
    }

    /// 400: a text or a list of texts is empty.
    pub(crate) fn empty(param: &str) -> ApiError {
        ApiError { code: Some(EMPTY.to_owned()), ..ApiError::field(param, "must not be empty") }
    }

    /// 400: the field is known, but this build cannot honour it.
    pub(crate) fn unsupported(param: &str, problem: impl AsRef<str>) -> ApiError {
        ApiError { code: Some("unsupported_parameter".to_owned()), ..ApiError::field(param, problem) }
    }

    /// 400 for the body as a whole.
    pub(crate) fn body(problem: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, INVALID, Some("invalid_body"), problem)
    }

    /// 413: the body is over the limit.
    pub(crate) fn body_too_large(bytes_max: usize) -> ApiError {
        let message = format!("the request body is over the limit of {bytes_max} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, INVALID, Some("body_too_large"), message)
    }

    /// 413: the request and the conversation that it continues are over the limit.
    pub(crate) fn kept_too_large(bytes: usize, bytes_max: usize) -> ApiError {
        let message = format!(
            "the request and what it follows have {bytes} bytes, over the limit of {bytes_max}; begin a new conversation, or send what is needed of this one"
        );
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, INVALID, Some("body_too_large"), message)
    }

    /// 408: the body did not arrive in time, or not `fast enough`.
    pub(crate) fn body_timeout(how: impl Display) -> ApiError {
        let message = format!("the request body did not arrive {how}");
        ApiError::new(StatusCode::REQUEST_TIMEOUT, INVALID, Some("body_timeout"), message)
    }

    /// 415: unsupported media type.
    pub(crate) fn media_type(problem: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, INVALID, Some("unsupported_media_type"), problem)
    }

    /// 404: there is no such model; `model` is the client's name for it.
    pub(crate) fn model_not_found(model: &str, detail: &str) -> ApiError {
        let detail = detail.strip_prefix("model: ").unwrap_or(detail);
        let shown: String = model.chars().take(QUOTE_CHARS_MAX).flat_map(char::escape_debug).collect();
        let message = format!("model '{shown}' not found, try pulling it first: {detail}");
        let code = Some("model_not_found");
        let mut error = ApiError::new(StatusCode::NOT_FOUND, INVALID, code, message);
        error.param = Some("model".to_owned());
        error
    }

    /// 404: there is no such route.
    pub(crate) fn route_not_found(method: &str, path: &str) -> ApiError {
        let message = format!("no such route: {} {}", quote(method), quote(path));
        ApiError::new(StatusCode::NOT_FOUND, INVALID, Some("route_not_found"), message)
    }

    /// 400: a known route of another server that has no function here.
    pub(crate) fn not_here() -> ApiError {
        let message = "not supported by this build: properties, slots and scales of adapters are not set over HTTP; a \
                       request names its adapter in model, and what is cached is found by every request";
        ApiError::new(StatusCode::BAD_REQUEST, INVALID, Some("not_supported"), message)
    }

    /// 405: the route does not allow the method.
    pub(crate) fn method_not_allowed(method: &str, path: &str) -> ApiError {
        let message = format!("{} does not take {}", quote(path), quote(method));
        ApiError::new(StatusCode::METHOD_NOT_ALLOWED, INVALID, Some("method_not_allowed"), message)
    }

    /// 503: the server is shutting down and refuses or ends the request.
    pub(crate) fn draining() -> ApiError {
        let message = "the server is shutting down; send the request to another one or try again";
        let mut error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, SERVER, Some("unavailable"), message);
        error.retry_after_s = Some(1);
        error
    }

    /// 504: `request_timeout_s` has passed.
    pub(crate) fn deadline() -> ApiError {
        let message = "the request did not finish within the server's request timeout";
        ApiError::new(StatusCode::GATEWAY_TIMEOUT, SERVER, Some("deadline_exceeded"), message)
    }

    /// 500 with an id. The log has `detail` under that id; the client does not see it.
    pub(crate) fn internal(detail: &str) -> ApiError {
        ApiError::internal_as(&format!("err-{}", &random_id()[..16]), detail)
    }

    fn internal_as(id: &str, detail: &str) -> ApiError {
        tracing::error!(error_id = %id, detail, "internal error");
        let message = format!("internal error; the server's log has the details under {id}");
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, SERVER, Some("internal_error"), message)
    }

    /// Replaces the engine's field in `param`, and at the start of the message, by the client's name. If the
    /// client has sent no such field, `param` becomes null.
    pub(crate) fn renamed(mut self, name: impl Fn(&str) -> Option<String>) -> ApiError {
        if let Some(param) = self.param.take() {
            self.param = name(&param);
            let problem = self.message.strip_prefix(&format!("{param}: "));
            if let (Some(wire), Some(problem)) = (&self.param, problem) {
                self.message = format!("{wire}: {problem}");
                truncate(&mut self.message, MESSAGE_BYTES_MAX);
            }
        }
        self
    }

    /// HTTP status.
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// Value of `code`.
    pub(crate) fn code(&self) -> Option<&str> {
        self.code.as_deref()
    }

    /// Message.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Response with another body, but the same status and headers.
    pub(crate) fn respond(&self, body: Value) -> Response {
        let mut response = (self.status, axum::Json(body)).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }

    /// JSON of the error; also the data of a stream's last event.
    pub(crate) fn json(&self) -> Value {
        json!({"error": {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }})
    }
}

impl From<Status> for ApiError {
    fn from(status: Status) -> ApiError {
        // A failure of the connection has a source; an error sent by the engine has none.
        if let Some(why) = mistaken_server(status.message()) {
            return ApiError::busy(format!("the engine cannot be reached: {why}"));
        }
        let lost = status.code() == Code::Unknown && std::error::Error::source(&status).is_some();
        let code = if lost { Code::Unavailable } else { status.code() };
        let Some(&(_, http, kind, word)) = STATUSES.iter().find(|row| row.0 == code) else {
            return ApiError::internal(&format!("engine: {code}: {}", status.message()));
        };
        let http = StatusCode::from_u16(http).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let metadata = |key| status.metadata().get(key).and_then(|value| value.to_str().ok());
        if http == StatusCode::INTERNAL_SERVER_ERROR {
            let detail = format!("engine: {code}: {}", status.message());
            // If the engine gave an id, both logs have it.
            return metadata("error-id")
                .map_or_else(|| ApiError::internal(&detail), |id| ApiError::internal_as(id, &detail));
        }
        if code == Code::ResourceExhausted && metadata("error-code") == Some("message_too_large") {
            let problem = status.message();
            return ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, INVALID, Some("body_too_large"), problem);
        }
        let message = match (code, status.message()) {
            (Code::Unavailable, message) if lost || std::error::Error::source(&status).is_some() => {
                format!("the engine cannot be reached: {}", without_directories(message))
            }
            (_, "") => http.canonical_reason().unwrap_or("error").to_owned(),
            // Paths are the operator's business, who sees them over gRPC.
            (_, message) => without_directories(message),
        };
        let (kind, word) = match metadata("error-code") {
            Some("tokens_per_minute") => ("tokens", Some("rate_limit_exceeded")),
            own => (kind, own.or(word)),
        };
        let mut error = ApiError::new(http, kind, word, message);
        error.param = match code {
            Code::InvalidArgument => leading_field(status.message()),
            // If the message begins with a field, its value asks for what the model cannot do.
            Code::NotFound | Code::FailedPrecondition | Code::PermissionDenied => {
                leading_field(status.message()).or_else(|| Some("model".to_owned()))
            }
            _ => None,
        };
        if matches!(http.as_u16(), 429 | 503) {
            let ms = metadata("retry-after-ms").and_then(|ms| ms.parse().ok()).unwrap_or(1000);
            let most = if kind == "tokens" { KEY_RETRY_AFTER_S_MAX } else { RETRY_AFTER_S_MAX };
            error.retry_after_s = Some(retry_after_s(Duration::from_millis(ms), most));
        }
        error
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.respond(self.json())
    }
}

/// Rounds up to whole seconds for `Retry-After`, at least 1 and at most `most`.
fn retry_after_s(time: Duration, most: u64) -> u64 {
    let seconds = u64::try_from(time.as_millis().div_ceil(1000)).unwrap_or(u64::MAX);
    seconds.clamp(1, most)
}

/// Field that a message starts with, such as `temperature: must be …`.
fn leading_field(message: &str) -> Option<String> {
    let (name, _) = message.split_once(": ")?;
    let field = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '[' | ']');
    (!name.is_empty() && name.len() <= PARAM_BYTES_MAX && name.chars().all(field)).then(|| name.to_owned())
}

/// Part of the input for a message: escaped, in quotes, and shortened.
pub(crate) fn quote(input: &str) -> String {
    let mut shown: String = input.chars().take(QUOTE_CHARS_MAX).flat_map(char::escape_debug).collect();
    if input.chars().nth(QUOTE_CHARS_MAX).is_some() {
        shown.push('…');
    }
    format!("\"{shown}\"")
}

fn truncate(text: &mut String, bytes_max: usize) {
    const ELLIPSIS: char = '…';
    if text.len() > bytes_max {
        let fits = |end: &usize| text.is_char_boundary(*end);
        let end = (0..=bytes_max - ELLIPSIS.len_utf8()).rev().find(fits);
        text.truncate(end.unwrap_or(0));
        text.push(ELLIPSIS);
    }
}

#[cfg(test)]
mod tests {
    use tonic::{Code, Status, metadata::MetadataMap};

    use super::{ApiError, quote};

    fn check(
        code: Code,
        message: &str,
        metadata: &[(&'static str, &str)],
    ) -> (u16, serde_json::Value, Option<u64>) {
        let mut map = MetadataMap::new();
        for (key, value) in metadata {
            map.insert(*key, value.parse().unwrap());
        }
        let error = ApiError::from(Status::with_metadata(code, message, map));
        (error.status.as_u16(), error.json()["error"].clone(), error.retry_after_s)
    }

    #[test]
    fn invalid_arguments_name_their_field() {
        let (status, error, _) = check(Code::InvalidArgument, "temperature: must be 0 to 2", &[]);
        assert_eq!((status, error["param"].as_str()), (400, Some("temperature")));
        let (_, error, _) = check(Code::InvalidArgument, "this is prose: not a field", &[]);
        assert!(error["param"].is_null());
        let metadata = [("error-code", "context_length_exceeded")];
        let (_, error, _) =
            check(Code::InvalidArgument, "prompt: 9 + 9 tokens, the context is 16", &metadata);
        assert_eq!(error["code"], "context_length_exceeded");
    }

    #[test]
    fn retry_after_is_whole_seconds_and_at_least_one() {
        for (ms, seconds) in
            [("1", 1), ("1000", 1), ("1001", 2), ("2500", 3), ("nonsense", 1), ("99999999999", 3600)]
        {
            let (status, _, retry) = check(Code::ResourceExhausted, "full", &[("retry-after-ms", ms)]);
            assert_eq!((status, retry), (429, Some(seconds)), "{ms}");
        }
        assert_eq!(check(Code::Unavailable, "loading", &[]).2, Some(1));
        assert_eq!(check(Code::NotFound, "no", &[]).2, None);
    }

    #[test]
    fn a_message_over_the_engines_limit_is_a_body_that_is_too_large() {
        let metadata = [("error-code", "message_too_large")];
        let (status, error, retry) = check(Code::ResourceExhausted, "over the limit of 9 bytes", &metadata);
        assert_eq!((status, error["code"].as_str(), retry), (413, Some("body_too_large"), None));
    }

    #[test]
    fn internal_errors_show_an_id_and_no_detail() {
        let (status, error, _) = check(Code::Internal, "secret path", &[]);
        let message = error["message"].as_str().unwrap();
        assert_eq!(status, 500);
        assert!(message.contains("err-") && !message.contains("secret"), "{message}");
        let (_, error, _) = check(Code::Internal, "x", &[("error-id", "err-of-the-engine")]);
        assert!(error["message"].as_str().unwrap().contains("err-of-the-engine"));
    }

    #[test]
    fn messages_are_bounded() {
        let (_, error, _) = check(Code::NotFound, &"é".repeat(5000), &[]);
        assert!(error["message"].as_str().unwrap().len() <= 1024);
        assert!(quote(&"\u{0}".repeat(1000)).len() < 1024);
        let error = ApiError::field(&"x".repeat(9999), "y".repeat(9999));
        assert!(error.json().to_string().len() < 1400);
    }
}
