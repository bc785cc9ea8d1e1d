//! Times in Ollama's format: RFC 3339 in UTC, and durations in nanoseconds.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;

/// Current time.
pub(super) fn now() -> String {
    rfc3339(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

/// Time of Unix milliseconds; negative values become 1970.
pub(super) fn of_unix_ms(ms: i64) -> String {
    rfc3339(Duration::from_millis(u64::try_from(ms).unwrap_or(0)))
}

/// Time after 1970 in RFC 3339, whose years have four digits; later times become the last one.
fn rfc3339(since: Duration) -> String {
    let micros = i64::try_from(since.as_micros()).unwrap_or(i64::MAX);
    format!("{:.6}", Timestamp::from_microsecond(micros).unwrap_or(Timestamp::MAX))
}

/// Converts milliseconds to nanoseconds.
pub(super) fn ns_of_ms(ms: f64) -> u64 {
    // The cast turns a negative number or NaN into 0.
    (ms * 1e6) as u64
}

/// Duration in nanoseconds.
pub(super) fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_as_everywhere() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000000Z"),
            (1_700_000_000_123, "2023-11-14T22:13:20.123000Z"),
            (4_102_444_799_999, "2099-12-31T23:59:59.999000Z"),
            (-5, "1970-01-01T00:00:00.000000Z"),
            (i64::MAX, "9999-12-30T22:00:00.999999Z"),
        ] {
            assert_eq!(of_unix_ms(ms), text);
        }
        assert_eq!((ns_of_ms(1.5), ns_of_ms(-1.0), ns_of_ms(f64::NAN)), (1_500_000, 0, 0));
    }
}
