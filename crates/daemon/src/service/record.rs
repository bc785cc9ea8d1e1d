//! What is counted, logged and traced of one request: once, whatever its end, in one line and one span.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use hanzo_engine_runtime::{FinishReason, Job};
use hanzo_engine_telemetry::{KeyValue, Span, StringValue, TraceContext, Value};
use tonic::{Code, metadata::MetadataMap};

use super::Core;
use crate::{
    error::Error,
    metrics::{Metrics, ModelMetrics},
    ticket::Timings,
};

/// What is counted, logged and traced of one request, when it ends or is dropped.
pub(super) struct RequestLog {
    call: Call,
    metrics: Arc<Metrics>,
    pub(super) request_id: String,
    /// The trace that it is part of.
    trace: Option<TraceContext>,
    span: Option<Span>,
    arrived: Instant,
    pub(super) model: Option<(String, Arc<ModelMetrics>)>,
    pub(super) prompt_tokens: u32,
    pub(super) cached_tokens: u32,
    pub(super) completion_tokens: u32,
    pub(super) inputs: usize,
    /// What it waited for its model to be loaded.
    pub(super) load: Duration,
    /// When its first step ran.
    pub(super) begun: Option<Instant>,
    /// Of the choice that ended last.
    times: Option<Timings>,
    /// A worker has it, or part of it.
    pub(super) queued: bool,
    /// Why its last choice ended; a request without choices just stops.
    pub(super) reason: FinishReason,
    pub(super) ended: bool,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// An answer to a chat, or a text that goes on.
    Infer { chat: bool },
    /// Vectors.
    Embed,
    /// Scores of documents.
    Rerank,
    /// Scores of labels.
    Classify,
    /// What is said in a sound.
    Transcribe,
    /// A text that is said.
    Speak,
}

impl Call {
    /// As the log has it.
    fn name(self) -> &'static str {
        match self {
            Call::Infer { .. } => "infer",
            Call::Embed => "embed",
            Call::Rerank => "rerank",
            Call::Classify => "classify",
            Call::Transcribe => "transcribe",
            Call::Speak => "speak",
        }
    }

    /// As gRPC has it: service and method.
    fn method(self) -> (&'static str, &'static str) {
        match self {
            Call::Infer { .. } => ("hanzo.engine.v1.Engine", "Infer"),
            Call::Embed => ("hanzo.engine.v1.Engine", "Embed"),
            Call::Rerank => ("hanzo.engine.v1.Engine", "Rerank"),
            Call::Classify => ("hanzo.engine.v1.Engine", "Classify"),
            Call::Transcribe => ("hanzo.engine.v1.Speech", "Transcribe"),
            Call::Speak => ("hanzo.engine.v1.Speech", "Speak"),
        }
    }

    /// As the semantic conventions for generative models have it, or in their manner where they have no name.
    fn operation(self) -> &'static str {
        match self {
            Call::Infer { chat: true } => "chat",
            Call::Infer { chat: false } => "text_completion",
            Call::Embed => "embeddings",
            Call::Rerank => "rerank",
            Call::Classify => "classify",
            Call::Transcribe => "transcribe",
            Call::Speak => "speak",
        }
    }
}

impl RequestLog {
    /// Of a request that arrived at `arrived`, with what came beside its message.
    pub(super) fn new(
        call: Call,
        core: &Core,
        request_id: String,
        arrived: Instant,
        metadata: &MetadataMap,
    ) -> RequestLog {
        let came = TraceContext::of(metadata.as_ref());
        let span = core.traces.arrival(call.operation(), arrived, came.as_ref());
        RequestLog {
            call,
            metrics: core.models.metrics.clone(),
            request_id,
            trace: span.as_ref().map(Span::context).or(came),
            span,
            arrived,
            model: None,
            prompt_tokens: 0,
            cached_tokens: 0,
            completion_tokens: 0,
            inputs: 0,
            load: Duration::ZERO,
            begun: None,
            times: None,
            queued: false,
            reason: FinishReason::Stop,
            ended: false,
        }
    }

    /// What it asks for; nothing of its text.
    pub(super) fn asks(&mut self, job: &Job) {
        let Some(span) = self.span.as_mut().filter(|span| span.is_kept()) else { return };
        let sampling = &job.sampling;
        span.say([
            KeyValue::new("gen_ai.request.choice.count", i64::from(job.choices)),
            KeyValue::new("gen_ai.request.temperature", f64::from(sampling.temperature)),
            KeyValue::new("gen_ai.request.top_p", f64::from(sampling.top_p)),
            KeyValue::new("gen_ai.request.top_k", f64::from(sampling.top_k)),
            KeyValue::new("gen_ai.request.seed", sampling.seed as i64),
        ]);
        let max = KeyValue::new("gen_ai.request.max_tokens", i64::from(job.stop.max_tokens));
        span.say([max]);
    }

    /// A choice has ended, and its time went so.
    pub(super) fn took(&mut self, times: Timings) {
        let total = |times: &Timings| times.queue + times.prefill + times.decode;
        if self.times.as_ref().is_none_or(|known| total(known) < total(&times)) {
            self.times = Some(times);
        }
    }

    /// It has ended.
    pub(super) fn end(&mut self, error: Option<&Error>) {
        if let Some(reason) = error.and_then(Error::rejection) {
            self.metrics.rejected(self.model(), reason);
        }
        if let Some((_, metrics)) = self.model.as_ref().filter(|_| self.queued) {
            match error {
                None => metrics.finished(self.reason),
                // Of an input behind the first batch: the request was refused, nothing failed.
                Some(error) if error.code() == Code::InvalidArgument => {}
                Some(_) => metrics.failed.inc(),
            }
        }
        self.note(error.map_or("ok", Error::outcome), error);
    }

    fn model(&self) -> Option<&str> {
        self.model.as_ref().map(|(name, _)| name.as_str())
    }

    fn note(&mut self, outcome: &str, error: Option<&Error>) {
        self.ended = true;
        let elapsed = self.arrived.elapsed();
        self.metrics.request(self.model(), outcome, elapsed.as_secs_f64(), self.trace.as_ref());
        if let (Some(model), Some(times)) = (self.model(), &self.times) {
            let first = (times.queue + times.prefill).as_secs_f64();
            self.metrics.first_token_traced(model, first, self.trace.as_ref());
        }
        tracing::info!(
            request_id = self.request_id,
            trace_id = self.trace.as_ref().map(TraceContext::id),
            model = self.model(),
            outcome,
            error = error.map(tracing::field::display),
            prompt_tokens = self.prompt_tokens,
            completion_tokens = self.completion_tokens,
            inputs = self.inputs,
            ms = elapsed.as_millis() as u64,
            "{}",
            self.call.name()
        );
        if let Some(span) = self.span.take().filter(Span::is_kept) {
            self.tell(span, outcome, error, elapsed);
        }
    }

    /// The span of the request, and one for each of its phases, one behind the other from its arrival on.
    fn tell(&self, mut span: Span, outcome: &str, error: Option<&Error>, elapsed: Duration) {
        let operation = self.call.operation();
        let (service, method) = self.call.method();
        span.say([
            KeyValue::new("gen_ai.operation.name", operation),
            KeyValue::new("gen_ai.provider.name", "hanzo_engine"),
            KeyValue::new("rpc.system", "grpc"),
            KeyValue::new("rpc.service", service),
            KeyValue::new("rpc.method", method),
            KeyValue::new("hanzo_engine.request_id", self.request_id.clone()),
            KeyValue::new("hanzo_engine.outcome", outcome.to_owned()),
        ]);
        if let Some(model) = self.model() {
            span.rename(format!("{operation} {model}"));
            span.say([
                KeyValue::new("gen_ai.request.model", model.to_owned()),
                KeyValue::new("gen_ai.response.model", model.to_owned()),
            ]);
        }
        let input = KeyValue::new("gen_ai.usage.input_tokens", i64::from(self.prompt_tokens));
        let cached = KeyValue::new("gen_ai.usage.cache_read.input_tokens", i64::from(self.cached_tokens));
        let output = KeyValue::new("gen_ai.usage.output_tokens", i64::from(self.completion_tokens));
        span.say([input.clone(), cached.clone(), output.clone()]);
        if self.inputs > 0 {
            span.say([KeyValue::new("hanzo_engine.inputs", self.inputs as i64)]);
        }
        if let Some(error) = error {
            span.fail(format!("{:?}", error.code()), error.to_string());
        } else if self.queued && self.inputs == 0 && outcome == "ok" {
            let reason = match self.reason {
                FinishReason::Stop => "stop",
                FinishReason::Length => "length",
                FinishReason::ToolCalls => "tool_calls",
            };
            let reasons = Value::Array(vec![StringValue::from(reason)].into());
            span.say([KeyValue::new("gen_ai.response.finish_reasons", reasons)]);
        }
        if !self.load.is_zero() {
            span.phase("load", (Duration::ZERO, self.load), []);
        }
        let begun = self.begun.map(|begun| begun.saturating_duration_since(self.arrived));
        match (&self.times, begun) {
            (Some(times), _) => {
                span.phase("queue", (self.load, times.queue.saturating_sub(self.load)), []);
                span.phase("prefill", (times.queue, times.prefill), [input, cached]);
                span.phase("decode", (times.queue + times.prefill, times.decode), [output]);
            }
            (None, Some(begun)) => {
                span.phase("queue", (self.load, begun.saturating_sub(self.load)), []);
                span.phase("compute", (begun, elapsed.saturating_sub(begun)), [input]);
            }
            (None, None) if self.queued => {
                span.phase("queue", (self.load, elapsed.saturating_sub(self.load)), []);
            }
            (None, None) => {}
        }
        span.end();
    }
}

impl Drop for RequestLog {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        if let Some((_, metrics)) = &self.model {
            metrics.cancelled.inc();
        }
        self.note("cancelled", None);
    }
}
