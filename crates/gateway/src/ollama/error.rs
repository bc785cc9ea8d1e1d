//! Errors in Ollama's format.

use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use crate::error::ApiError;

/// Error as `{"error": "..."}`.
#[derive(Debug)]
pub(crate) struct OllamaError(ApiError);

impl<E: Into<ApiError>> From<E> for OllamaError {
    fn from(error: E) -> OllamaError {
        OllamaError(error.into())
    }
}

/// JSON of an error; also the last line of a failed stream.
pub(super) fn body(error: &ApiError) -> Value {
    json!({"error": error.message()})
}

/// Rewords the error of a missing model as Ollama's clients expect it.
pub(super) fn of_model(error: ApiError, model: &str) -> ApiError {
    match (error.status(), error.code()) {
        (StatusCode::NOT_FOUND, Some("model_not_found")) => ApiError::model_not_found(model, error.message()),
        _ => error,
    }
}

impl IntoResponse for OllamaError {
    fn into_response(self) -> Response {
        self.0.respond(body(&self.0))
    }
}
