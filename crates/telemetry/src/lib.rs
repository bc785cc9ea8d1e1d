//! Observability of requests: the trace that a request is part of (W3C Trace Context), its spans over OTLP,
//! metrics whose histograms link to traces (OpenMetrics exemplars), and process metrics. Each program decides
//! what to report.

#![forbid(unsafe_code)]

mod config;
mod context;
mod exemplars;
pub mod family;
mod http1;
mod open_metrics;
pub mod process;
mod send;
mod traces;

pub use config::{Protocol, TracesConfig, TracesError};
pub use context::TraceContext;
pub use exemplars::Exemplars;
pub use open_metrics::{CONTENT_TYPE, is_wanted, text};
pub use opentelemetry::{KeyValue, StringValue, Value};
pub use traces::{Span, Traces};
