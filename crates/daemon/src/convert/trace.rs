//! The trace that a call is part of, as W3C Trace Context says it: it stands in the request's line of the log.

use tonic::metadata::MetadataMap;

/// The trace's id in `traceparent`: 32 hexadecimal digits. What is none is no error: the call is as good without.
pub(crate) fn trace_id(metadata: &MetadataMap) -> Option<String> {
    let parent = metadata.get("traceparent")?.to_str().ok()?;
    let mut parts = parent.split('-');
    let (version, trace, span) = (parts.next()?, parts.next()?, parts.next()?);
    let hex = |part: &str, len: usize| {
        part.len() == len && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let some = |part: &str| part.bytes().any(|b| b != b'0');
    let sound = hex(version, 2) && version != "ff" && hex(trace, 32) && some(trace) && hex(span, 16);
    (sound && some(span)).then(|| trace.to_owned())
}

#[cfg(test)]
mod tests {
    use tonic::metadata::MetadataMap;

    use super::trace_id;

    #[test]
    fn a_traces_id_is_taken_from_its_parent() {
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        let of = |text: &str| {
            let mut metadata = MetadataMap::new();
            metadata.insert("traceparent", text.parse().unwrap());
            trace_id(&metadata)
        };
        assert_eq!(of(&format!("00-{id}-00f067aa0ba902b7-01")).as_deref(), Some(id));
        for wrong in
            ["", "00", &format!("ff-{id}-00f067aa0ba902b7-01"), "00-x-y-01", &format!("00-{id}-{:016}-01", 0)]
        {
            assert_eq!(of(wrong), None, "{wrong}");
        }
        assert_eq!(trace_id(&MetadataMap::new()), None);
    }
}
