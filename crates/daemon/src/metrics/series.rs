//! Series of the `prometheus` crate, as it does not have them itself.

use std::collections::HashMap;

use prometheus::{IntCounterVec, core::Collector as _};

/// Removes a counter's series of one model.
pub(super) fn remove(counter: &IntCounterVec, model: &str) {
    for family in counter.collect() {
        for metric in family.get_metric() {
            let labels: HashMap<&str, &str> =
                metric.get_label().iter().map(|label| (label.name(), label.value())).collect();
            if labels.get("model") != Some(&model) {
                continue;
            }
            // What was just collected is there.
            let _ = counter.remove(&labels);
        }
    }
}

/// Prometheus' integers are signed; a machine with 8 EiB does not exist.
pub(super) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
