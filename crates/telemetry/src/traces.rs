//! Spans: begun when a request arrives, told of when it has ended. What lies between is made of times that were measured
//! anyway, so nothing here is done for a token. Off, all of it is nothing.

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

/// What the last spans get to be sent in.
const LAST_SPANS: Duration = Duration::from_secs(2);

/// Where a program's spans are made; cloning it is cheap. The default makes none.
#[derive(Clone, Default)]
pub struct Traces(Option<Maker>);

#[derive(Clone)]
struct Maker {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

/// One request, from its arrival on. It ends when it is dropped, if nobody ends it before.
pub struct Span {
    span: opentelemetry_sdk::trace::Span,
    tracer: SdkTracer,
    arrived: Instant,
    arrived_at: SystemTime,
}

impl Traces {
    /// As settings and variables say; without an endpoint it makes none. To be called in an asynchronous runtime, which spans
    /// are sent on. `service`: the program's name, unless `OTEL_SERVICE_NAME` gives another.
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

    /// Span of a request that arrived at `arrived`, as part of the trace it came with, or of one of its own. None where no traces
    /// are made.
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

    /// Sends what there is still, and makes no more.
    pub async fn close(&self) {
        let Some(Maker { provider, .. }) = self.0.clone() else { return };
        // It waits for the thread that sends.
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
    /// As what is called for it is to see it.
    pub fn context(&self) -> TraceContext {
        TraceContext::of_span(self.span.span_context())
    }

    /// Whether it is kept: if not, nothing that is said of it is.
    pub fn is_kept(&self) -> bool {
        self.span.is_recording()
    }

    /// It is called that.
    pub fn rename(&mut self, name: String) {
        self.span.update_name(name);
    }

    /// That is so of it.
    pub fn say(&mut self, attributes: impl IntoIterator<Item = KeyValue>) {
        self.span.set_attributes(attributes);
    }

    /// It failed.
    pub fn fail(&mut self, kind: String, reason: String) {
        self.span.set_attribute(KeyValue::new("error.type", kind));
        self.span.set_status(Status::error(reason));
    }

    /// A part of it, which began so long after the arrival and took so long.
    pub fn phase(
        &self,
        name: &'static str,
        (began, took): (Duration, Duration),
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

    /// It ends now.
    pub fn end(mut self) {
        self.finish();
    }

    /// By the clock that phases are measured with: the machine's own may be set meanwhile.
    fn finish(&mut self) {
        self.span.end_with_timestamp(self.arrived_at + self.arrived.elapsed());
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        self.finish();
    }
}
