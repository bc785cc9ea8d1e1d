//! Trace span of an HTTP request, from its headers to its last byte. The engine adds its own spans to the same
//! trace.

use std::time::Instant;

use axum::http::{HeaderMap, Method};
use hanzo_engine_telemetry::{KeyValue, Span, TraceContext, Traces};

use crate::record::RecordFacts;

/// Trace of a request, and its span if one is made.
#[derive(Debug)]
pub(crate) struct RequestTrace {
    /// Context to pass on: that of the span, or the received one.
    pub(crate) trace: Option<TraceContext>,
    span: Option<Span>,
}

impl RequestTrace {
    /// Starts the span of a request that has just arrived. Requests about the server itself have none.
    pub(crate) fn arrival(
        traces: &Traces,
        method: &Method,
        route: &str,
        operation: bool,
        headers: &HeaderMap,
    ) -> RequestTrace {
        let came = TraceContext::of(headers);
        let span = match operation {
            true => None,
            false => traces.arrival(format!("{method} {route}"), Instant::now(), came.as_ref()),
        };
        let trace = span.as_ref().map(Span::context).or(came);
        if let Some(mut span) = span {
            span.say([
                KeyValue::new("http.request.method", method.to_string()),
                KeyValue::new("http.route", route.to_owned()),
            ]);
            return RequestTrace { trace, span: Some(span) };
        }
        RequestTrace { trace, span: None }
    }

    /// Ends the span.
    pub(crate) fn end(
        &mut self,
        id: &str,
        route: &str,
        status: u16,
        outcome: &'static str,
        known: &RecordFacts,
    ) {
        let Some(mut span) = self.span.take().filter(Span::is_kept) else { return };
        span.say([
            KeyValue::new("http.response.status_code", i64::from(status)),
            KeyValue::new("hanzo_engine.request_id", id.to_owned()),
            KeyValue::new("hanzo_engine.outcome", outcome),
        ]);
        span.say(operation(route).map(|name| KeyValue::new("gen_ai.operation.name", name)));
        if let Some(model) = &known.model {
            span.say([KeyValue::new("gen_ai.response.model", model.clone())]);
        }
        if known.prompt_tokens > 0 {
            span.say([
                KeyValue::new("gen_ai.usage.input_tokens", known.prompt_tokens as i64),
                KeyValue::new("gen_ai.usage.output_tokens", known.completion_tokens as i64),
            ]);
        }
        match known.error {
            Some(code) => span.fail(format!("{code:?}"), "the answer broke off".to_owned()),
            None if status >= 500 => span.fail(status.to_string(), "the request failed".to_owned()),
            None => {}
        }
        span.end();
    }
}

/// Name of a route's operation in the semantic conventions for generative AI; None: it has none.
fn operation(route: &str) -> Option<&'static str> {
    match route {
        "/v1/chat/completions" | "/v1/messages" | "/v1/responses" | "/api/chat" => Some("chat"),
        "/v1/completions" | "/completion" | "/completions" | "/infill" | "/api/generate" => {
            Some("text_completion")
        }
        "/v1/embeddings" | "/embed" | "/embeddings" | "/embedding" | "/api/embed" | "/api/embeddings" => {
            Some("embeddings")
        }
        _ => None,
    }
}
