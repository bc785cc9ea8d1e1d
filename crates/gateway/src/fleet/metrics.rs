//! Metrics of each daemon. A daemon's series are removed together with it.

use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

use super::{health::DaemonState, pick::Why};
use crate::retry_reason::RetryReason;

const STATES: [&str; 4] = ["unknown", "up", "draining", "out"];

/// Metrics of all daemons.
#[derive(Debug, Clone)]
pub(crate) struct FleetMetrics {
    state: IntGaugeVec,
    in_flight: IntGaugeVec,
    picks: IntCounterVec,
    ejections: IntCounterVec,
    retries: IntCounterVec,
}

/// Metrics of one daemon.
#[derive(Debug)]
pub(crate) struct MemberMetrics {
    name: String,
    all: FleetMetrics,
    pub(super) in_flight: IntGauge,
    pub(super) ejections: IntCounter,
}

impl FleetMetrics {
    /// Creates the metrics without any daemon.
    pub(super) fn new() -> Result<FleetMetrics, prometheus::Error> {
        let opts = |name: &str, help: &str| Opts::new(name, help).namespace("hanzo_engine");
        Ok(FleetMetrics {
            state: IntGaugeVec::new(
                opts("upstream_state", "1 for the state that an engine behind this gateway is in"),
                &["upstream", "state"],
            )?,
            in_flight: IntGaugeVec::new(
                opts("upstream_requests_in_flight", "This gateway's requests that an engine has"),
                &["upstream"],
            )?,
            picks: IntCounterVec::new(
                opts(
                    "upstream_picks_total",
                    "Requests given to an engine, by why: affinity, overflow (its home had too much to do) or load",
                ),
                &["upstream", "why"],
            )?,
            ejections: IntCounterVec::new(
                opts(
                    "upstream_ejections_total",
                    "Times that an engine was left alone because it was lost or failed",
                ),
                &["upstream"],
            )?,
            retries: IntCounterVec::new(
                opts("upstream_retries_total", "Requests of an engine that were given to another, by reason"),
                &["upstream", "reason"],
            )?,
        })
    }

    /// Registers the metrics.
    pub(crate) fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        registry.register(Box::new(self.state.clone()))?;
        registry.register(Box::new(self.in_flight.clone()))?;
        registry.register(Box::new(self.picks.clone()))?;
        registry.register(Box::new(self.ejections.clone()))?;
        registry.register(Box::new(self.retries.clone()))
    }

    /// Creates the series of one daemon, which exist until dropped.
    pub(super) fn of(&self, name: &str) -> MemberMetrics {
        let metrics = MemberMetrics {
            name: name.to_owned(),
            all: self.clone(),
            in_flight: self.in_flight.with_label_values(&[name]),
            ejections: self.ejections.with_label_values(&[name]),
        };
        metrics.in_flight.set(0);
        for why in [Why::Load, Why::Affinity, Why::Overflow] {
            self.picks.with_label_values(&[name, why.word()]).inc_by(0);
        }
        for reason in RetryReason::WORDS {
            self.retries.with_label_values(&[name, reason]).inc_by(0);
        }
        metrics
    }
}

impl MemberMetrics {
    /// Sets its state.
    pub(super) fn state(&self, state: &DaemonState) {
        for word in STATES {
            self.all.state.with_label_values(&[&self.name, word]).set(i64::from(word == state.word()));
        }
    }

    /// Counts a request that it was chosen for.
    pub(super) fn picked(&self, why: Why) {
        self.all.picks.with_label_values(&[&self.name, why.word()]).inc();
    }

    /// Counts a request that was retried on another daemon.
    pub(super) fn retried(&self, again: RetryReason) {
        self.all.retries.with_label_values(&[&self.name, again.word()]).inc();
    }
}

impl Drop for MemberMetrics {
    fn drop(&mut self) {
        let name = self.name.as_str();
        // Removing a series that was never created fails harmlessly.
        let _ = self.all.in_flight.remove_label_values(&[name]);
        let _ = self.all.ejections.remove_label_values(&[name]);
        for word in STATES {
            let _ = self.all.state.remove_label_values(&[name, word]);
        }
        for why in [Why::Load, Why::Affinity, Why::Overflow] {
            let _ = self.all.picks.remove_label_values(&[name, why.word()]);
        }
        for reason in RetryReason::WORDS {
            let _ = self.all.retries.remove_label_values(&[name, reason]);
        }
    }
}

impl Why {
    fn word(self) -> &'static str {
        match self {
            Why::Load => "load",
            Why::Affinity => "affinity",
            Why::Overflow => "overflow",
        }
    }
}
