//! Metrics of the store and of pulls: models, their bytes, free disk space, and bytes downloaded.

use std::sync::Arc;

use hanzo_engine_store::{PullTotals, Store};
use hanzo_engine_telemetry::family::{self, counter as count, gauge as value};
use prometheus::proto::{Metric, MetricFamily, MetricType};

use crate::service::Core;

/// Collects the current metrics; none without a store.
pub(crate) async fn families(core: &Arc<Core>) -> Vec<MetricFamily> {
    let Ok(sizes) = core.models.with_store(Store::sizes).await else { return Vec::new() };
    let PullTotals { running, bytes_fetched, bytes_missing, done, failed, cancelled } = core.pulls.totals();
    let results = [("done", done), ("failed", failed), ("cancelled", cancelled)]
        .map(|(result, pulls)| count([("result", result.to_owned())], pulls as f64));
    let of = |number: u64| vec![value([], number as f64)];
    let all = [
        gauge("store_models", "Models that are stored.", of(sizes.models)),
        gauge(
            "store_bytes",
            "Bytes of stored models; what they share counts once for each.",
            of(sizes.bytes),
        ),
        gauge("store_free_bytes", "Bytes that are free where models are stored.", of(sizes.free_bytes)),
        gauge("pulls_running", "Pulls that are under way.", of(running)),
        gauge(
            "pull_missing_bytes",
            "Bytes that pulls which are under way still have to fetch.",
            of(bytes_missing),
        ),
        counter(
            "pull_bytes_total",
            "Bytes that pulls have fetched over the network.",
            vec![count([], bytes_fetched as f64)],
        ),
        counter(
            "pulls_total",
            "Pulls that have ended, by result: done, failed or cancelled.",
            results.to_vec(),
        ),
    ];
    all.into_iter().flatten().collect()
}

fn gauge(name: &str, help: &str, metrics: Vec<Metric>) -> Option<MetricFamily> {
    family::family(&format!("hanzo_engine_{name}"), help, MetricType::GAUGE, metrics)
}

fn counter(name: &str, help: &str, metrics: Vec<Metric>) -> Option<MetricFamily> {
    family::family(&format!("hanzo_engine_{name}"), help, MetricType::COUNTER, metrics)
}
