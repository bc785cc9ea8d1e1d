//! Sending of spans to a collector. Failures are logged at intervals and the spans are lost. Requests never
//! wait for it.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use hanzo_engine_access::lazy_channel;
use opentelemetry_otlp::{
    Protocol as OtlpProtocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _, WithTonicConfig as _,
};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{SpanData, SpanExporter as Export},
};
use tokio::runtime::Handle;
use tonic::transport::Endpoint;

use crate::{
    config::{ExportTarget, Protocol, TracesError},
    http1::Http1,
};

/// Interval between log lines about lost spans.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// Sends batches of spans, and logs when they are lost.
#[derive(Debug)]
pub(crate) struct Sender {
    exporter: SpanExporter,
    endpoint: String,
    told: Mutex<Option<Instant>>,
}

impl Sender {
    /// Creates a sender without connecting. Call it in an async runtime, on which batches are sent.
    pub(crate) fn new(target: &ExportTarget) -> Result<Sender, TracesError> {
        let failed = |error: opentelemetry_otlp::ExporterBuildError| TracesError::Exporter(error.to_string());
        let ExportTarget { endpoint, protocol, timeout, tls, .. } = target;
        let exporter = match protocol {
            Protocol::Grpc => {
                let invalid = |error: tonic::transport::Error| TracesError::Exporter(error.to_string());
                let to = Endpoint::from_shared(endpoint.clone()).map_err(invalid)?;
                let channel = lazy_channel(&to.connect_timeout(*timeout).timeout(*timeout), tls)?;
                let builder = SpanExporter::builder().with_tonic().with_channel(channel);
                builder.with_timeout(*timeout).build().map_err(failed)?
            }
            Protocol::Http => {
                // Read now too, so that an unusable file is reported at startup.
                if endpoint.starts_with("https:") {
                    tls.config(&[])?;
                }
                let client = Http1 { runtime: Handle::current(), tls: tls.clone(), timeout: *timeout };
                let builder = SpanExporter::builder().with_http().with_protocol(OtlpProtocol::HttpBinary);
                let builder = builder.with_http_client(client).with_endpoint(endpoint.clone());
                builder.with_timeout(*timeout).build().map_err(failed)?
            }
        };
        Ok(Sender { exporter, endpoint: endpoint.clone(), told: Mutex::default() })
    }

    fn may_tell(&self) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let may = told.is_none_or(|told| told.elapsed() >= TELL_EVERY);
        if may {
            *told = Some(Instant::now());
        }
        may
    }
}

impl Export for Sender {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let sent = self.exporter.export(batch).await;
        if let Err(error) = &sent
            && self.may_tell()
        {
            tracing::warn!(endpoint = self.endpoint, spans, %error, "traces are not taken, and are lost");
        }
        sent
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
