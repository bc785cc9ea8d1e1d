//! Limits of the restarts of a failed worker.

use std::time::Duration;

use crate::limits::{RESTART_FIRST, RESTART_FORGET, RESTART_LAST, RESTARTS_MAX};

/// Restart counter of one model.
#[derive(Default)]
pub(crate) struct Restarts {
    /// Whether a worker has run.
    pub(crate) ran: bool,
    tries: u32,
}

impl Restarts {
    /// Records the lifetime of a worker.
    pub(crate) fn lived(&mut self, time: Duration) {
        self.ran = true;
        if time >= RESTART_FORGET {
            self.tries = 0;
        }
    }

    /// Wait before the next restart; `None` if there is none.
    pub(crate) fn next(&mut self) -> Option<Duration> {
        if self.tries == RESTARTS_MAX {
            return None;
        }
        let wait = RESTART_FIRST * 2_u32.pow(self.tries);
        self.tries += 1;
        Some(wait.min(RESTART_LAST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_double_up_to_a_minute_and_are_bounded() {
        let mut restarts = Restarts::default();
        let waits: Vec<u64> = std::iter::from_fn(|| restarts.next()).map(|wait| wait.as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32]);
        restarts.lived(Duration::from_secs(5));
        assert_eq!(restarts.next(), None);
        restarts.lived(RESTART_FORGET);
        assert_eq!(restarts.next(), Some(RESTART_FIRST));
    }
}
