//! Response object: the request's fields that it repeats, and the JSON around its items.

use serde::Serialize;

use crate::response_store::stored::quoted;
use crate::{
    error::ApiError,
    fields::Fields,
    openai::{
        events::{Timings, timings},
        shape::Head,
        usage_count::UsageCount,
    },
    request_id::unix_seconds,
};

/// Fields that a response repeats, with their values if the request does not set them.
const REPEATED: [(&str, &str); 18] = [
    ("instructions", "null"),
    ("max_output_tokens", "null"),
    ("max_tool_calls", "null"),
    ("metadata", "{}"),
    ("parallel_tool_calls", "true"),
    ("previous_response_id", "null"),
    ("prompt_cache_key", "null"),
    ("prompt_cache_retention", "null"),
    ("reasoning", r#"{"effort":null,"summary":null}"#),
    ("safety_identifier", "null"),
    ("temperature", "null"),
    ("text", r#"{"format":{"type":"text"},"verbosity":"medium"}"#),
    ("tool_choice", r#""auto""#),
    ("tools", "[]"),
    ("top_logprobs", "0"),
    ("top_p", "null"),
    ("truncation", r#""disabled""#),
    ("user", "null"),
];

/// Repeated fields, as members of an object.
pub(super) fn repeated(fields: &Fields) -> String {
    let mut fields = fields.clone();
    let member = |(name, default): (&str, &str)| {
        let sent = fields.take(name).map(|field| field.value().to_text());
        format!("\"{name}\":{}", sent.as_deref().unwrap_or(default))
    };
    REPEATED.map(member).join(",")
}

/// State of a response.
pub(super) enum ResponseState<'a> {
    InProgress,
    Completed,
    /// The token limit was reached.
    Incomplete,
    Failed(&'a ApiError),
}

/// Parts of a response that do not change while it is written.
#[derive(Debug)]
pub(super) struct Frame {
    /// Repeated fields, see [`repeated`].
    pub(super) repeated: String,
    pub(super) store: bool,
}

#[derive(Serialize)]
struct ResponseUsage {
    input_tokens: u32,
    input_tokens_details: InputTokensDetails,
    output_tokens: u32,
    output_tokens_details: OutputTokensDetails,
    total_tokens: u32,
}

#[derive(Serialize)]
struct InputTokensDetails {
    cached_tokens: u32,
    cache_write_tokens: u32,
}

#[derive(Serialize)]
struct OutputTokensDetails {
    reasoning_tokens: u32,
}

fn usage(used: &UsageCount) -> ResponseUsage {
    let (input_tokens, output_tokens) = (used.prompt_tokens(), used.completion_tokens());
    ResponseUsage {
        input_tokens,
        input_tokens_details: InputTokensDetails {
            cached_tokens: used.cached_tokens(),
            cache_write_tokens: 0,
        },
        output_tokens,
        output_tokens_details: OutputTokensDetails { reasoning_tokens: used.reasoning_tokens },
        total_tokens: input_tokens.saturating_add(output_tokens),
    }
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain structs with string keys are always JSON")
}

impl Frame {
    /// Response with these items, which are JSON.
    pub(super) fn response(
        &self,
        head: &Head,
        used: Option<&UsageCount>,
        state: &ResponseState,
        items: &[String],
    ) -> String {
        let (status, mut error, mut incomplete) = match state {
            ResponseState::InProgress => ("in_progress", "null".to_owned(), "null"),
            ResponseState::Completed => ("completed", "null".to_owned(), "null"),
            ResponseState::Incomplete => {
                ("incomplete", "null".to_owned(), r#"{"reason":"max_output_tokens"}"#)
            }
            ResponseState::Failed(_) => ("failed", "null".to_owned(), "null"),
        };
        if let ResponseState::Failed(failure) = state {
            let code = match failure.status().as_u16() {
                429 => "rate_limit_exceeded",
                400..=499 => "invalid_prompt",
                _ => "server_error",
            };
            error = format!("{{\"code\":\"{code}\",\"message\":{}}}", quoted(failure.message()));
            incomplete = "null";
        }
        let completed_at = match state {
            ResponseState::Completed => unix_seconds().to_string(),
            _ => "null".to_owned(),
        };
        let ended = used.filter(|_| !matches!(state, ResponseState::InProgress));
        let usage = ended.map_or_else(|| "null".to_owned(), |used| json(&usage(used)));
        let spent: Option<Timings> = ended.and_then(|used| used.timings.as_ref()).map(timings);
        let timings = spent.map(|spent| format!(",\"timings\":{}", json(&spent))).unwrap_or_default();
        format!(
            "{{\"id\":{},\"object\":\"response\",\"created_at\":{},\"status\":\"{status}\",\"background\":false,\
             \"completed_at\":{completed_at},\"error\":{error},\"incomplete_details\":{incomplete},\"model\":{},\
             \"output\":[{}],\"service_tier\":\"default\",\"store\":{},{},\"usage\":{usage}{timings}}}",
            quoted(&head.id),
            head.created,
            quoted(&head.model),
            items.join(","),
            self.store,
            self.repeated,
        )
    }
}
