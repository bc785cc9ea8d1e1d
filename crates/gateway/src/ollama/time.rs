//! Times in Ollama's format: RFC 3339 in UTC, and durations in nanoseconds.

use std::time::{Duration, SystemTime};

/// Current time.
pub(super) fn now() -> String {
    rfc3339(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

/// Time of Unix milliseconds; negative values become 1970.
pub(super) fn of_unix_ms(ms: i64) -> String {
    rfc3339(Duration::from_millis(u64::try_from(ms).unwrap_or(0)))
}

/// Time after 1970 in RFC 3339.
fn rfc3339(since: Duration) -> String {
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:06}Z", since.subsec_micros())
}

/// Year, month and day of a number of days since 1970, by Howard Hinnant's "chrono-compatible low-level date
/// algorithms".
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
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
        ] {
            assert_eq!(of_unix_ms(ms), text);
        }
        assert_eq!((ns_of_ms(1.5), ns_of_ms(-1.0), ns_of_ms(f64::NAN)), (1_500_000, 0, 0));
    }
}
