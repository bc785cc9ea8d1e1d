//! Ollama's shape of an error.

use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use crate::error::ApiError;

/// An error as `{"error": "..."}`.
#[derive(Debug)]
pub(crate) struct OllamaError(ApiError);

impl<E: Into<ApiError>> From<E> for OllamaError {
    fn from(error: E) -> OllamaError {
        OllamaError(error.into())
    }
}

/// The body of an error, which is also the last line of a stream.
pub(super) fn body(error: &ApiError) -> Value {
    json!({"error": error.message()})
}

/// The same error; of a model that is not there, in the words that clients look for.
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
