//! Time of day for records.

use std::time::{SystemTime, UNIX_EPOCH};

/// Current time in Unix milliseconds.
pub(crate) fn now_unix_ms() -> i64 {
    // A clock before 1970 was not set.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
