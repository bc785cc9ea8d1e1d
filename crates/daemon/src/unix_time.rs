//! Wall-clock time, for display.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970; 0 if the machine's clock is before that.
pub(crate) fn now_unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Milliseconds since 1970 of a future moment.
pub(crate) fn unix_ms_of(at: Instant) -> i64 {
    let left = at.saturating_duration_since(Instant::now());
    now_unix_ms().saturating_add(i64::try_from(left.as_millis()).unwrap_or(i64::MAX))
}
