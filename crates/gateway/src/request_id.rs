//! Id of a request: the client's `x-request-id`, or a generated one; and the identity of the client, by which
//! the engine tells clients apart. Also unique ids of answers, and their creation times.

use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher as _,
    net::IpAddr,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use crate::limits::REQUEST_ID_CHARS_MAX;

/// Header of a request's id, in both directions.
pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Request id: letters, digits and `-_.:/+=@`, at most 128 of them, never empty.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RequestId {
    text: String,
    client: Option<ClientIdentity>,
}

/// Identity of a client.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ClientIdentity(Arc<str>);

impl ClientIdentity {
    /// Client at an address, over all its connections.
    pub(crate) fn of(address: IpAddr) -> ClientIdentity {
        ClientIdentity(address.to_canonical().to_string().into())
    }

    /// Client with the key of that name.
    pub(crate) fn with_key(name: &str) -> ClientIdentity {
        ClientIdentity(format!("key {name}").into())
    }
}

impl RequestId {
    /// Id in `headers`, without characters that could break logs or headers; a new one if there is none.
    pub(crate) fn of(headers: &HeaderMap) -> RequestId {
        let kept = |c: &char| c.is_ascii_alphanumeric() || "-_.:/+=@".contains(*c);
        let sent = headers.get(X_REQUEST_ID).map(HeaderValue::as_bytes).unwrap_or_default();
        let id: String =
            sent.iter().map(|b| char::from(*b)).filter(kept).take(REQUEST_ID_CHARS_MAX).collect();
        let text = if id.is_empty() { format!("req-{}", random_id()) } else { id };
        RequestId { text, client: None }
    }

    /// Text of the id.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Sets the client.
    pub(crate) fn asked_by(self, client: Option<ClientIdentity>) -> RequestId {
        RequestId { client, ..self }
    }

    /// Identity of the client; empty if unknown.
    pub(crate) fn client(&self) -> String {
        self.client.as_ref().map_or_else(String::new, |client| client.0.to_string())
    }

    /// Id of the `i`th call for this request, if there are `several`.
    pub(crate) fn of_call(&self, i: usize, several: bool) -> String {
        if several { format!("{}/{i}", self.text) } else { self.text.clone() }
    }

    /// Like [`RequestId::of_call`], but can be divided further.
    pub(crate) fn nested(&self, i: usize, several: bool) -> RequestId {
        RequestId { text: self.of_call(i, several), client: self.client.clone() }
    }

    /// Header value of the id.
    pub(crate) fn header(&self) -> HeaderValue {
        HeaderValue::from_str(&self.text).unwrap_or_else(|_| HeaderValue::from_static("invalid"))
    }
}

/// Unique id of 32 hexadecimal digits: keyed hashes of a counter. It is not secret.
pub(crate) fn random_id() -> String {
    static KEYS: LazyLock<[RandomState; 2]> = LazyLock::new(|| [RandomState::new(), RandomState::new()]);
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{:016x}{:016x}", KEYS[0].hash_one(count), KEYS[1].hash_one(count))
}

/// Seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderMap, HeaderValue};

    use super::{RequestId, X_REQUEST_ID, random_id};

    fn check(sent: &[u8]) -> String {
        let mut headers = HeaderMap::new();
        headers.insert(X_REQUEST_ID, HeaderValue::from_bytes(sent).unwrap());
        RequestId::of(&headers).as_str().to_owned()
    }

    #[test]
    fn ids_are_bounded_and_clean() {
        assert_eq!(check(b"abc-1/2"), "abc-1/2");
        assert_eq!(check(b"a\"b <c>\xff\td"), "abcd");
        assert_eq!(check(&[b'x'; 4000]).len(), 128);
        assert!(check(b"   ").starts_with("req-"));
        assert!(RequestId::of(&HeaderMap::new()).as_str().starts_with("req-"));
        assert_ne!(random_id(), random_id());
        assert_eq!(random_id().len(), 32);
    }
}
