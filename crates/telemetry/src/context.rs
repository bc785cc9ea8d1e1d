//! W3C Trace Context: the trace that a request is part of, read from its headers and passed on. An invalid one
//! is no error: the request is handled without it.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue};
use opentelemetry::{
    SpanId, TraceFlags, TraceId,
    trace::{SpanContext, TraceState},
};

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";
/// Maximum bytes of a request's `traceparent`, and of its `tracestate`.
const BYTES_MAX: usize = 1024;

/// Position in a trace. A clone is cheap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext(Arc<Parts>);

#[derive(Debug, PartialEq, Eq)]
struct Parts {
    parent: String, // version-trace_id-parent_id-flags, as received
    state: Option<String>,
}

impl TraceContext {
    /// Trace context from a request's headers. None if missing or invalid.
    pub fn of(headers: &HeaderMap) -> Option<TraceContext> {
        let mut parents = headers.get_all(TRACEPARENT).iter();
        let parent = parents.next()?.to_str().ok()?.trim();
        if parents.next().is_some() || !is_parent(parent) {
            return None;
        }
        let states = headers.get_all(TRACESTATE).iter().map(HeaderValue::to_str);
        let state = states.collect::<Result<Vec<&str>, _>>().unwrap_or_default().join(",");
        let state = (!state.is_empty() && state.len() <= BYTES_MAX).then_some(state);
        Some(TraceContext(Arc::new(Parts { parent: parent.to_owned(), state })))
    }

    /// Trace context of a span of this process.
    pub(crate) fn of_span(span: &SpanContext) -> TraceContext {
        let (trace, id, flags) = (span.trace_id(), span.span_id(), span.trace_flags().to_u8() & 1);
        let state = Some(span.trace_state().header()).filter(|state| !state.is_empty());
        TraceContext(Arc::new(Parts { parent: format!("00-{trace}-{id}-{flags:02x}"), state }))
    }

    /// Id of the trace: 32 hexadecimal digits.
    pub fn id(&self) -> &str {
        &self.0.parent[3..35]
    }

    /// Returns true if the trace is sampled.
    pub fn is_sampled(&self) -> bool {
        u8::from_str_radix(&self.0.parent[53..55], 16).is_ok_and(|flags| flags & 1 == 1)
    }

    /// Adds it to the headers of a call.
    pub fn tell(&self, headers: &mut HeaderMap) {
        let mut put = |name: &'static str, text: &str| {
            if let Ok(value) = HeaderValue::from_str(text) {
                headers.insert(name, value);
            }
        };
        put(TRACEPARENT, &self.0.parent);
        if let Some(state) = &self.0.state {
            put(TRACESTATE, state);
        }
    }

    /// Converts it to the parent of a span.
    pub(crate) fn remote(&self) -> SpanContext {
        let trace = TraceId::from_hex(self.id()).unwrap_or(TraceId::INVALID);
        let span = SpanId::from_hex(&self.0.parent[36..52]).unwrap_or(SpanId::INVALID);
        let flags = if self.is_sampled() { TraceFlags::SAMPLED } else { TraceFlags::default() };
        let state = self.0.state.as_deref().and_then(|state| state.parse::<TraceState>().ok());
        SpanContext::new(trace, span, flags, true, state.unwrap_or_default())
    }
}

/// Checks a `traceparent` of this version, or of a later one, which is read as this version.
fn is_parent(text: &str) -> bool {
    let hex = |part: &str, len: usize| {
        part.len() == len && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let zero = |part: &str| part.bytes().all(|b| b == b'0');
    let mut parts = text.split('-');
    let (Some(version), Some(trace), Some(span), Some(flags)) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    hex(version, 2)
        && version != "ff"
        && hex(trace, 32)
        && !zero(trace)
        && hex(span, 16)
        && !zero(span)
        && hex(flags, 2)
        && (version != "00" || parts.next().is_none())
        && text.len() <= BYTES_MAX
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};

    use super::TraceContext;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn of(pairs: &[(&'static str, &str)]) -> Option<TraceContext> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        TraceContext::of(&headers)
    }

    #[test]
    fn a_trace_is_passed_on_as_it_came() {
        let trace = of(&[("traceparent", PARENT), ("tracestate", "a=1"), ("tracestate", "b=2")]).unwrap();
        assert_eq!((trace.id(), trace.is_sampled()), ("4bf92f3577b34da6a3ce929d0e0e4736", true));
        let mut headers = HeaderMap::new();
        trace.tell(&mut headers);
        assert_eq!(headers["traceparent"], PARENT);
        assert_eq!(headers["tracestate"], "a=1,b=2");
        assert!(!of(&[("traceparent", &PARENT.replace("-01", "-00"))]).unwrap().is_sampled());
        // Of a later version, the known fields are read.
        assert!(of(&[("traceparent", &format!("cc{}-what-else", &PARENT[2..]))]).is_some());
        // Converting to the library's type and back changes nothing.
        assert_eq!(TraceContext::of_span(&trace.remote()), trace);
    }

    #[test]
    fn what_is_no_trace_is_none() {
        for wrong in [
            "",
            "00",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
        ] {
            assert_eq!(of(&[("traceparent", wrong)]), None, "{wrong}");
        }
        assert_eq!(of(&[("traceparent", PARENT), ("traceparent", PARENT)]), None);
        assert!(of(&[("tracestate", "a=1")]).is_none());
    }
}
