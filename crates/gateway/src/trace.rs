//! W3C Trace Context: the trace that a request is part of, taken from its headers and passed on to the engine as it came.
//! This gateway adds no span of its own, so the engine's parent is the caller's.

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderValue};
use tonic::metadata::{AsciiMetadataValue, MetadataMap};

use crate::limits::TRACE_STATE_BYTES_MAX;

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";

/// A trace; cloning it is cheap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trace(Arc<Parts>);

#[derive(Debug, PartialEq, Eq)]
struct Parts {
    parent: String, // version-trace_id-parent_id-flags, as it came
    state: Option<String>,
}

impl Trace {
    /// The trace of a request; None where it is part of none, or says so wrongly: then it is as if it had said nothing.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Trace> {
        let mut parents = headers.get_all(TRACEPARENT).iter();
        let parent = parents.next()?.to_str().ok()?.trim();
        if parents.next().is_some() || !is_parent(parent) {
            return None;
        }
        let states = headers.get_all(TRACESTATE).iter().map(HeaderValue::to_str);
        let state = states.collect::<Result<Vec<&str>, _>>().unwrap_or_default().join(",");
        let state = (!state.is_empty() && state.len() <= TRACE_STATE_BYTES_MAX).then_some(state);
        Some(Trace(Arc::new(Parts { parent: parent.to_owned(), state })))
    }

    /// 32 hexadecimal digits.
    pub(crate) fn id(&self) -> &str {
        &self.0.parent[3..35]
    }

    /// Puts it into a call.
    pub(crate) fn tell(&self, metadata: &mut MetadataMap) {
        let mut put = |name: &'static str, text: &str| {
            if let Ok(value) = AsciiMetadataValue::try_from(text) {
                metadata.insert(name, value);
            }
        };
        put(TRACEPARENT, &self.0.parent);
        if let Some(state) = &self.0.state {
            put(TRACESTATE, state);
        }
    }
}

/// Whether it is one, of this version or, read as this version's, of a later one.
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
        && text.len() <= TRACE_STATE_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderMap, HeaderValue};
    use tonic::metadata::MetadataMap;

    use super::Trace;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn of(pairs: &[(&'static str, &str)]) -> Option<Trace> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        Trace::of(&headers)
    }

    #[test]
    fn a_trace_is_passed_on_as_it_came() {
        let trace = of(&[("traceparent", PARENT), ("tracestate", "a=1"), ("tracestate", "b=2")]).unwrap();
        assert_eq!(trace.id(), "4bf92f3577b34da6a3ce929d0e0e4736");
        let mut metadata = MetadataMap::new();
        trace.tell(&mut metadata);
        assert_eq!(metadata.get("traceparent").unwrap(), PARENT);
        assert_eq!(metadata.get("tracestate").unwrap(), "a=1,b=2");
        // Of a later version what this one knows is read.
        assert!(of(&[("traceparent", &format!("cc{}-what-else", &PARENT[2..]))]).is_some());
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
