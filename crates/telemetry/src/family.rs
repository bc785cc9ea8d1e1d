//! Metric families built for one scrape, from figures kept elsewhere.

use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

/// Builds a gauge of a family.
pub fn gauge<const N: usize>(labels: [(&str, String); N], value: f64) -> Metric {
    let mut gauge = Gauge::default();
    gauge.set_value(value);
    let mut metric = labelled(labels);
    metric.set_gauge(gauge);
    metric
}

/// Builds a counter of a family.
pub fn counter<const N: usize>(labels: [(&str, String); N], value: f64) -> Metric {
    let mut counter = Counter::default();
    counter.set_value(value);
    let mut metric = labelled(labels);
    metric.set_counter(counter);
    metric
}

fn labelled<const N: usize>(labels: [(&str, String); N]) -> Metric {
    let pairs = labels.map(|(name, value)| {
        let mut pair = LabelPair::default();
        pair.set_name(name.to_owned());
        pair.set_value(value);
        pair
    });
    let mut metric = Metric::default();
    metric.set_label(pairs.to_vec());
    metric
}

/// Builds a family. None without metrics, because the text format has no empty family.
pub fn family(name: &str, help: &str, kind: MetricType, metrics: Vec<Metric>) -> Option<MetricFamily> {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics);
    (!family.get_metric().is_empty()).then_some(family)
}
