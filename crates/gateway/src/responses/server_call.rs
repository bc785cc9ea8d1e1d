//! Item of a response for an MCP call that the gateway made.

use serde_json::json;

use crate::openai::turns::ServerCall;

/// Status of the call.
pub(super) fn status(call: &ServerCall) -> &'static str {
    call.outcome
        .as_ref()
        .map_or("in_progress", |outcome| if outcome.is_error { "failed" } else { "completed" })
}

/// JSON of the item in its current state. No approval is asked for: the operator configures who may call the
/// tools.
pub(super) fn item(id: &str, call: &ServerCall) -> String {
    let text = |wanted: bool| {
        call.outcome
            .as_ref()
            .filter(|outcome| outcome.is_error == wanted)
            .map(|outcome| outcome.text.as_str())
    };
    let error = text(true)
        .map(|text| json!({"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]}));
    let arguments = if call.outcome.is_some() { call.arguments.as_str() } else { "" };
    json!({
        "id": id,
        "type": "mcp_call",
        "status": status(call),
        "approval_request_id": null,
        "server_label": call.tool.server,
        "name": call.tool.tool,
        "arguments": arguments,
        "output": text(false),
        "error": error,
    })
    .to_string()
}
