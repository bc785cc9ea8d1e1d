//! Errors in Anthropic's format.

use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::error::ApiError;

/// Error as `{"type":"error","error":{"type","message"}}`.
#[derive(Debug)]
pub(crate) struct AnthropicError(ApiError);

impl From<ApiError> for AnthropicError {
    fn from(error: ApiError) -> AnthropicError {
        AnthropicError(error)
    }
}

/// JSON of an error; also the data of a stream's `error` event.
pub(crate) fn body(error: &ApiError) -> Value {
    let kind = match error.status().as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        504 => "timeout_error",
        400..=499 => "invalid_request_error",
        _ => "api_error",
    };
    json!({"type": "error", "error": {"type": kind, "message": error.message()}})
}

impl IntoResponse for AnthropicError {
    fn into_response(self) -> Response {
        self.0.respond(body(&self.0))
    }
}
