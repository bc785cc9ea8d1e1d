//! Spans of requests. A span starts when a request arrives and is sent after it ends. Its parts are built from
//! times that are measured anyway, so tokens cost nothing. Without an endpoint all of it is a no-op.

use std::{
    borrow::Cow,
    fmt,
    time::{Duration, Instant, SystemTime},
};

use opentelemetry::{
    Context, InstrumentationScope, Key, KeyValue,
    trace::{Span as _, SpanKind, Status, TraceContextExt as _, Tracer as _, TracerProvider as _},
};
use opentelemetry_sdk::{
    Resource,
    trace::{BatchSpanProcessor, SdkTracer, SdkTracerProvider},
};

use crate::{
    config::{TracesConfig, TracesError, variable},
    context::TraceContext,
    send::Sender,
};

/// Maximum time to send the last spans.
const LAST_SPANS: Duration = Duration::from_secs(2);

/// Creates a program's spans. A clone is cheap. The default creates none.
#[derive(Clone, Default)]
pub struct Traces(Option<Maker>);

#[derive(Clone)]
struct Maker {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

/// Span of a request, from its arrival on. Ends when it is dropped, if not before.
pub struct Span {
    span: opentelemetry_sdk::trace::Span,
    tracer: SdkTracer,
    arrived: Instant,
    arrived_at: SystemTime,
}

impl Traces {
    /// Creates the tracer from settings and variables. Without an endpoint it creates no spans. Call it in an
    /// async runtime, on which spans are sent. `service` is the program's name, unless `OTEL_SERVICE_NAME`
    /// overrides it.
    ///
    /// # Errors
    /// [`TracesError`], with the setting.
    pub fn open(config: &TracesConfig, service: &'static str) -> Result<Traces, TracesError> {
        let Some(target) = config.target(&variable)? else { return Ok(Traces(None)) };
        let sender = Sender::new(&target)?;
        let named = Resource::builder().build();
        let name = named.get(&Key::from_static_str("service.name"));
        let is_named = name.is_some_and(|name| !name.as_str().starts_with("unknown_service"));
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let resource = Resource::builder().with_attribute(version);
        let resource = if is_named { resource } else { resource.with_service_name(service) };
        let provider = SdkTracerProvider::builder()
            .with_span_processor(BatchSpanProcessor::builder(sender).build())
            .with_sampler(target.sampler)
            .with_resource(resource.build())
            .build();
        let scope = InstrumentationScope::builder("hanzo-engine").with_version(env!("CARGO_PKG_VERSION"));
        let tracer = provider.tracer_with_scope(scope.build());
        tracing::info!(endpoint = target.endpoint, "traces are sent");
        Ok(Traces(Some(Maker { provider, tracer })))
    }

    /// Starts the span of a request that arrived at `arrived`, in the trace of its parent or in a new one. None
    /// if traces are off.
    pub fn arrival(
        &self,
        name: impl Into<Cow<'static, str>>,
        arrived: Instant,
        parent: Option<&TraceContext>,
    ) -> Option<Span> {
        let maker = self.0.as_ref()?;
        let now = SystemTime::now();
        let arrived_at = now.checked_sub(arrived.elapsed()).unwrap_or(now);
        let parent = parent
            .map_or_else(Context::new, |parent| Context::new().with_remote_span_context(parent.remote()));
        let builder = maker.tracer.span_builder(name).with_kind(SpanKind::Server).with_start_time(arrived_at);
        let span = maker.tracer.build_with_context(builder, &parent);
        Some(Span { span, tracer: maker.tracer.clone(), arrived, arrived_at })
    }

    /// Sends the remaining spans, and creates no more.
    pub async fn close(&self) {
        let Some(Maker { provider, .. }) = self.0.clone() else { return };
        // The call waits for the sending thread.
        let closed = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(LAST_SPANS));
        if let Ok(Err(error)) = closed.await {
            tracing::debug!(%error, "the last traces were not sent");
        }
    }
}

impl fmt::Debug for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Traces(on)" } else { "Traces(off)" })
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Span({:?})", self.span.span_context().span_id())
    }
}

impl Span {
    /// Context for calls made on behalf of the request.
    pub fn context(&self) -> TraceContext {
        TraceContext::of_span(self.span.span_context())
    }

    /// Returns true if the span is recorded. If not, its attributes and phases are discarded.
    pub fn is_kept(&self) -> bool {
        self.span.is_recording()
    }

    /// Renames the span.
    pub fn rename(&mut self, name: String) {
        self.span.update_name(name);
    }

    /// Adds attributes to the span.
    pub fn say(&mut self, attributes: impl IntoIterator<Item = KeyValue>) {
        self.span.set_attributes(attributes);
    }

    /// Marks the span as failed.
    pub fn fail(&mut self, kind: String, reason: String) {
        self.span.set_attribute(KeyValue::new("error.type", kind));
        self.span.set_status(Status::error(reason));
    }

    /// Adds a child span, given its start after the arrival and its duration.
    pub fn phase(
        &self,
        name: &'static str,
        began: Duration,
        took: Duration,
        attributes: impl IntoIterator<Item = KeyValue>,
    ) {
        if !self.is_kept() {
            return;
        }
        let parent = Context::new().with_remote_span_context(self.span.span_context().clone());
        let began = self.arrived_at + began;
        let builder = self.tracer.span_builder(name).with_start_time(began).with_attributes(attributes);
        self.tracer.build_with_context(builder, &parent).end_with_timestamp(began + took);
    }

    /// Ends the span now.
    pub fn end(mut self) {
        self.finish();
    }

    /// Ends the span by the clock that phases are measured with. The machine's own clock may be set meanwhile.
    fn finish(&mut self) {
        self.span.end_with_timestamp(self.arrived_at + self.arrived.elapsed());
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        self.finish();
    }
}
