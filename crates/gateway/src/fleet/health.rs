//! Health of a daemon: a state machine over observations. Callers pass the time; no clock is read here.

use std::time::Duration;

use tokio::time::Instant;

use crate::limits::{EJECTED_FIRST, EJECTED_MAX, FAILURES_IN_A_ROW_MAX, SOUND_AFTER};

/// State of a daemon.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum DaemonState {
    /// Not heard from yet.
    Unknown,
    /// Serving since `since`.
    Up { since: Instant },
    /// Finishing its requests and taking no new ones.
    Draining,
    /// Ejected until `until`, for `reason`.
    Out { until: Instant, reason: String },
}

impl DaemonState {
    /// Word in metrics and `/health`.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            DaemonState::Unknown => "unknown",
            DaemonState::Up { .. } => "up",
            DaemonState::Draining => "draining",
            DaemonState::Out { .. } => "out",
        }
    }
}

/// State of a daemon, and its recent failures.
#[derive(Debug)]
pub(crate) struct Health {
    state: DaemonState,
    failures: u32,  // failed requests in a row
    ejections: u32, // ejections since it last served for a while
}

impl Health {
    /// Health of a daemon that has not been asked yet.
    pub(crate) fn new() -> Health {
        Health { state: DaemonState::Unknown, failures: 0, ejections: 0 }
    }

    /// Current state.
    pub(crate) fn state(&self) -> &DaemonState {
        &self.state
    }

    /// Records that it reports to serve. An ejected daemon stays ejected until its time is over.
    pub(crate) fn serves(&mut self, now: Instant) {
        match &self.state {
            DaemonState::Up { .. } => {}
            DaemonState::Out { until, .. } if now < *until => {}
            DaemonState::Unknown | DaemonState::Draining | DaemonState::Out { .. } => {
                self.failures = 0;
                self.state = DaemonState::Up { since: now };
            }
        }
    }

    /// Records that it takes no new requests.
    pub(crate) fn drains(&mut self) {
        self.state = DaemonState::Draining;
    }

    /// Records that it was unreachable or the connection broke. Returns whether it was in use until now.
    pub(crate) fn lost(&mut self, now: Instant, reason: &str) -> bool {
        let asked = !matches!(self.state, DaemonState::Out { .. });
        // Calls that break at the same time count as one loss.
        let over = matches!(&self.state, DaemonState::Out { until, .. } if now >= *until);
        if asked || over {
            self.leave_alone(now, reason);
        }
        asked
    }

    /// Records a failed request that is the daemon's fault. Returns whether it is ejected now.
    pub(crate) fn failed(&mut self, now: Instant) -> bool {
        self.failures += 1;
        if self.failures < FAILURES_IN_A_ROW_MAX || !matches!(self.state, DaemonState::Up { .. }) {
            return false;
        }
        let reason = format!("{} requests in a row failed", self.failures);
        self.leave_alone(now, &reason);
        true
    }

    /// Records a successful request.
    pub(crate) fn worked(&mut self) {
        self.failures = 0;
    }

    fn leave_alone(&mut self, now: Instant, reason: &str) {
        if matches!(&self.state, DaemonState::Up { since } if now.duration_since(*since) >= SOUND_AFTER) {
            self.ejections = 0;
        }
        let time = EJECTED_FIRST.saturating_mul(1 << self.ejections.min(16)).min(EJECTED_MAX);
        self.ejections += 1;
        self.failures = 0;
        self.state = DaemonState::Out { until: now + time, reason: reason.to_owned() };
    }

    /// Time until an ejected daemon may be asked again.
    pub(crate) fn left_alone_for(&self, now: Instant) -> Duration {
        match &self.state {
            DaemonState::Out { until, .. } => until.saturating_duration_since(now),
            DaemonState::Unknown | DaemonState::Up { .. } | DaemonState::Draining => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_is_lost_is_left_alone_longer_each_time_until_it_was_sound_for_a_while() {
        let mut now = Instant::now();
        let mut health = Health::new();
        health.serves(now);
        let mut waits = Vec::new();
        for _ in 0..8 {
            assert!(health.lost(now, "gone"));
            assert!(!health.lost(now, "gone"), "one loss is one");
            let wait = health.left_alone_for(now);
            waits.push(wait);
            health.serves(now + wait / 2);
            assert_eq!(health.state().word(), "out", "before its time");
            now += wait;
            health.serves(now);
            assert_eq!(health.state().word(), "up");
        }
        assert_eq!(waits[0], EJECTED_FIRST);
        assert_eq!(waits[1], EJECTED_FIRST * 2);
        assert_eq!(waits[7], EJECTED_MAX);
        now += SOUND_AFTER;
        health.lost(now, "gone");
        assert_eq!(health.left_alone_for(now), EJECTED_FIRST);
    }

    #[test]
    fn one_that_is_still_not_reached_waits_longer() {
        let now = Instant::now();
        let mut health = Health::new();
        assert!(health.lost(now, "refused"));
        let later = now + EJECTED_FIRST;
        assert!(!health.lost(later, "refused"));
        assert_eq!(health.left_alone_for(later), EJECTED_FIRST * 2);
    }

    #[test]
    fn failures_count_in_a_row() {
        let now = Instant::now();
        let mut health = Health::new();
        health.serves(now);
        for _ in 1..FAILURES_IN_A_ROW_MAX {
            assert!(!health.failed(now));
        }
        health.worked();
        for _ in 1..FAILURES_IN_A_ROW_MAX {
            assert!(!health.failed(now));
        }
        assert!(health.failed(now));
        assert_eq!(health.state().word(), "out");
    }

    #[test]
    fn one_that_drains_serves_again_when_it_says_so() {
        let now = Instant::now();
        let mut health = Health::new();
        health.drains();
        assert_eq!(health.state(), &DaemonState::Draining);
        health.serves(now);
        assert_eq!(health.state(), &DaemonState::Up { since: now });
    }
}
