//! What is told of requests to those who watch: the trace that a request is part of (W3C Trace Context), spans of it by
//! OTLP, metrics whose histograms name traces (OpenMetrics' exemplars), and what every process tells of itself. What is worth telling is the programs' to say.

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
