//! Construction of metrics: each in the namespace, and registered when it is made.

use prometheus::{
    CounterVec, GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    core::Collector,
};

use super::NAMESPACE;

/// Constructor of metrics that also registers them.
pub(super) struct Maker(pub(super) Registry);

impl Maker {
    fn add<C: Collector + Clone + 'static>(&self, metric: prometheus::Result<C>) -> C {
        // Both fail only on an invalid or repeated name, and the names are constants that a test renders.
        let metric = metric.expect("the names and labels below are valid");
        self.0.register(Box::new(metric.clone())).expect("the names below are distinct");
        metric
    }

    fn opts(name: &str, help: &str) -> Opts {
        Opts::new(name, help).namespace(NAMESPACE)
    }

    pub(super) fn counter(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.add(IntCounterVec::new(Self::opts(name, help), labels))
    }

    pub(super) fn seconds(&self, name: &str, help: &str) -> CounterVec {
        self.add(CounterVec::new(Self::opts(name, help), &["model"]))
    }

    pub(super) fn gauge(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        self.add(IntGaugeVec::new(Self::opts(name, help), labels))
    }

    pub(super) fn float(&self, name: &str, help: &str) -> GaugeVec {
        self.add(GaugeVec::new(Self::opts(name, help), &["model"]))
    }

    pub(super) fn single(&self, name: &str, help: &str) -> IntGauge {
        self.add(IntGauge::with_opts(Self::opts(name, help)))
    }

    pub(super) fn histogram(&self, name: &str, help: &str, bounds: &[f64]) -> HistogramVec {
        let opts = HistogramOpts::new(name, help).namespace(NAMESPACE).buckets(bounds.to_vec());
        self.add(HistogramVec::new(opts, &["model"]))
    }
}
