//! Errors in TEI's format.

use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::error::{self, ApiError};

/// Error as `{"error", "error_type"}`.
#[derive(Debug)]
pub(crate) struct TeiError(ApiError);

impl From<ApiError> for TeiError {
    fn from(error: ApiError) -> TeiError {
        TeiError(error)
    }
}

impl IntoResponse for TeiError {
    fn into_response(self) -> Response {
        let TeiError(error) = self;
        let error_type = match error.status().as_u16() {
            400 if error.code() == Some(error::EMPTY) => "Empty",
            429 => "Overloaded",
            503 => "Unhealthy",
            400..=499 => "Validation",
            _ => "Backend",
        };
        error.respond(json!({"error": error.message(), "error_type": error_type}))
    }
}
