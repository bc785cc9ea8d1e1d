//! Headers with the rest of a key's limits, in OpenAI's format.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use hanzo_engine_access::{Level, RemainingLimits};

/// Headers for the limit, the rest, and the time until it is full again.
type Names = [HeaderName; 3];

const REQUESTS: Names = [
    HeaderName::from_static("x-ratelimit-limit-requests"),
    HeaderName::from_static("x-ratelimit-remaining-requests"),
    HeaderName::from_static("x-ratelimit-reset-requests"),
];
const TOKENS: Names = [
    HeaderName::from_static("x-ratelimit-limit-tokens"),
    HeaderName::from_static("x-ratelimit-remaining-tokens"),
    HeaderName::from_static("x-ratelimit-reset-tokens"),
];

/// Sets the headers. A key without limits gets none.
pub(crate) fn tell(standing: RemainingLimits, headers: &mut HeaderMap) {
    for (names, level) in [(REQUESTS, standing.requests), (TOKENS, standing.tokens)] {
        let Some(Level { limit, remaining, reset }) = level else { continue };
        let [of_limit, of_remaining, of_reset] = names;
        headers.insert(of_limit, HeaderValue::from(limit));
        headers.insert(of_remaining, HeaderValue::from(remaining));
        if let Ok(time) = HeaderValue::from_str(&in_words(reset)) {
            headers.insert(of_reset, time);
        }
    }
}

/// Duration in OpenAI's notation: 17ms, 6s, 1m30s.
fn in_words(time: Duration) -> String {
    match u64::try_from(time.as_millis()).unwrap_or(u64::MAX) {
        ms @ 0..1000 => format!("{ms}ms"),
        ms => match ms.div_ceil(1000) {
            s @ 0..60 => format!("{s}s"),
            s => format!("{}m{}s", s / 60, s % 60),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::in_words;

    #[test]
    fn times() {
        for (ms, words) in
            [(0, "0ms"), (17, "17ms"), (999, "999ms"), (1001, "2s"), (60_000, "1m0s"), (90_500, "1m31s")]
        {
            assert_eq!(in_words(Duration::from_millis(ms)), words);
        }
    }
}
