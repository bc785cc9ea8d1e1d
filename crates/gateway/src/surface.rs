//! Format of errors that occur before a handler runs: each API's clients expect their own.

use axum::response::{IntoResponse as _, Response};

use crate::{
    anthropic::error::AnthropicError, error::ApiError, mcp, ollama::error::OllamaError, tei::error::TeiError,
};

/// Routes of TEI's clients.
const TEI: [&str; 7] = ["/", "/embed", "/embed_all", "/embed_sparse", "/predict", "/similarity", "/info"];

/// Error response for a request to that path.
pub(crate) fn refuse(path: &str, error: ApiError) -> Response {
    match path {
        _ if TEI.contains(&path) => TeiError::from(error).into_response(),
        _ if path.starts_with("/api/") => OllamaError::from(error).into_response(),
        _ if path == "/v1/messages" || path.starts_with("/v1/messages/") => {
            AnthropicError::from(error).into_response()
        }
        mcp::PATH => mcp::refusal(&error),
        _ => error.into_response(),
    }
}
