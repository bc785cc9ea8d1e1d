//! Prometheus metrics of the gateway: requests by route and status, durations, and requests in flight. The
//! daemon has the metrics of the engine.

use std::{fmt, sync::OnceLock};

use hanzo_engine_access::Refusal;
use hanzo_engine_telemetry::{Exemplars, TraceContext, process};
use prometheus::{
    Encoder as _, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder, proto::MetricFamily,
};

use crate::fleet::FleetMetrics;

/// Registry with all metrics, which begin with `hanzo_engine_`.
pub(crate) struct Metrics {
    registry: Registry,
    /// Requests by matched route and HTTP status; 499 if the client left before the response.
    pub(crate) http_requests_total: IntCounterVec,
    /// Duration by matched route, in seconds until the end of the body.
    http_request_duration_seconds: HistogramVec,
    /// Requests between their headers and the end of the answer's body.
    pub(crate) http_requests_in_flight: IntGauge,
    /// Refusals by [`Refusal::code`].
    pub(crate) refusals_total: IntCounterVec,
    /// Set to 1 while the key file cannot be read.
    pub(crate) keys_unreadable: IntGauge,
    /// Requests sent upstream, by reason and by the status of the answer.
    pub(crate) cloud_requests_total: IntCounterVec,
    traced: Exemplars, // of http_request_duration_seconds
    beside: OnceLock<Beside>,
}

/// Source of metrics from another part of this process.
pub(crate) type Beside = Box<dyn Fn() -> Vec<MetricFamily> + Send + Sync>;

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Metrics {
    /// Creates a registry with all metrics.
    pub(crate) fn new() -> Result<Metrics, prometheus::Error> {
        let opts = |name: &str, help: &str| Opts::new(name, help).namespace("hanzo_engine");
        // From a health check (under 1 ms) to a long generation.
        let buckets =
            vec![0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0];
        let traced = Exemplars::new("hanzo_engine_http_request_duration_seconds", &buckets);
        let duration = HistogramOpts::from(opts(
            "http_request_duration_seconds",
            "Time from a request's headers to the end of its answer, by route",
        ));
        let metrics = Metrics {
            traced,
            beside: OnceLock::new(),
            registry: Registry::new(),
            http_requests_total: IntCounterVec::new(
                opts("http_requests_total", "HTTP requests answered, by route and status"),
                &["route", "status"],
            )?,
            http_request_duration_seconds: HistogramVec::new(duration.buckets(buckets), &["route"])?,
            http_requests_in_flight: IntGauge::with_opts(opts(
                "http_requests_in_flight",
                "HTTP requests whose answer is not finished",
            ))?,
            refusals_total: IntCounterVec::new(
                opts("http_refusals_total", "HTTP requests refused for their key or its limits, by reason"),
                &["reason"],
            )?,
            keys_unreadable: IntGauge::with_opts(opts(
                "keys_unreadable",
                "Whether the file of keys cannot be read or used, 1 or 0; its keys are refused after 5 seconds",
            ))?,
            cloud_requests_total: IntCounterVec::new(
                opts(
                    "cloud_requests_total",
                    "Requests sent to another server, by why, and by its answer's status",
                ),
                &["reason", "status"],
            )?,
        };
        for reason in ["model", "overloaded"] {
            metrics.cloud_requests_total.with_label_values(&[reason, "200"]).inc_by(0);
        }
        for code in Refusal::CODES {
            metrics.refusals_total.with_label_values(&[code]).inc_by(0);
        }
        metrics.registry.register(Box::new(metrics.refusals_total.clone()))?;
        metrics.registry.register(Box::new(metrics.keys_unreadable.clone()))?;
        let build = IntGaugeVec::new(opts("gateway_info", "Always 1; the gateway's version"), &["version"])?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        metrics.registry.register(Box::new(build))?;
        metrics.registry.register(Box::new(metrics.cloud_requests_total.clone()))?;
        metrics.registry.register(Box::new(metrics.http_requests_total.clone()))?;
        metrics.registry.register(Box::new(metrics.http_request_duration_seconds.clone()))?;
        metrics.registry.register(Box::new(metrics.http_requests_in_flight.clone()))?;
        Ok(metrics)
    }

    /// Registers the metrics of several engines.
    pub(crate) fn register(&self, fleet: &FleetMetrics) -> Result<(), prometheus::Error> {
        fleet.register(&self.registry)
    }

    /// Records a request's duration, and its trace as an exemplar.
    pub(crate) fn http_request(&self, route: &str, seconds: f64, trace: Option<&TraceContext>) {
        self.http_request_duration_seconds.with_label_values(&[route]).observe(seconds);
        self.traced.note(route, seconds, trace);
    }

    /// Adds metrics of another part of this process.
    pub(crate) fn tell_also(&self, beside: Beside) {
        // Set once, before the server starts.
        let _ = self.beside.set(beside);
    }

    fn gather(&self) -> Vec<MetricFamily> {
        let mut families = self.registry.gather();
        families.extend(process::families());
        families.extend(self.beside.get().map(|beside| beside()).unwrap_or_default());
        families
    }

    /// Metrics in OpenMetrics format, with traces as exemplars.
    pub(crate) fn open_metrics(&self) -> String {
        hanzo_engine_telemetry::text(&self.gather(), &[&self.traced])
    }

    /// Metrics in the Prometheus text format.
    pub(crate) fn text(&self) -> Result<Vec<u8>, prometheus::Error> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.gather(), &mut text)?;
        Ok(text)
    }
}
