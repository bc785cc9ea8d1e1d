//! Helpers for series that the `prometheus` crate lacks.

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
            // The series exists, since it was just collected.
            let _ = counter.remove(&labels);
        }
    }
}

/// Converts to Prometheus' signed integers; no machine has 8 EiB.
pub(super) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
