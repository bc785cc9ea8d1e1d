//! In whose shape a request is refused before a handler has it: each surface's clients read errors of their own.

use axum::response::{IntoResponse as _, Response};

use crate::{
    anthropic::error::AnthropicError, error::ApiError, mcp, ollama::error::OllamaError, tei::error::TeiError,
};

/// Routes that TEI's clients ask.
const TEI: [&str; 7] = ["/", "/embed", "/embed_all", "/embed_sparse", "/predict", "/similarity", "/info"];

/// The refusal of a request to that path.
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
