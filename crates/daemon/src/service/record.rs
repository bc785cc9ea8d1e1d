//! Metrics, log line and trace span of one request, each written once, however the request ends.

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

/// Record of one request. It is written when the request ends or the record is dropped.
pub(super) struct RequestLog {
    call: CallKind,
    metrics: Arc<Metrics>,
    pub(super) request_id: String,
    /// Trace that the request belongs to.
    trace: Option<TraceContext>,
    span: Option<Span>,
    arrived: Instant,
    pub(super) model: Option<(String, Arc<ModelMetrics>)>,
    pub(super) prompt_tokens: u32,
    pub(super) cached_tokens: u32,
    pub(super) completion_tokens: u32,
    pub(super) inputs: usize,
    /// Time spent waiting for the model to load.
    pub(super) load: Duration,
    /// Start of its first step.
    pub(super) begun: Option<Instant>,
    /// Timings of the slowest choice so far.
    times: Option<Timings>,
    /// Whether a worker has the request or part of it.
    pub(super) queued: bool,
    /// Reason why the last choice ended. Requests without choices end with "stop".
    pub(super) reason: FinishReason,
    pub(super) ended: bool,
}

/// Kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    /// Chat or text completion.
    Infer { chat: bool },
    /// Embeddings.
    Embed,
    /// Reranking scores of documents.
    Rerank,
    /// Classification scores.
    Classify,
    /// Transcription.
    Transcribe,
    /// Speech synthesis.
    Speak,
}

impl CallKind {
    /// Name in the log.
    fn name(self) -> &'static str {
        match self {
            CallKind::Infer { .. } => "infer",
            CallKind::Embed => "embed",
            CallKind::Rerank => "rerank",
            CallKind::Classify => "classify",
            CallKind::Transcribe => "transcribe",
            CallKind::Speak => "speak",
        }
    }

    /// gRPC service and method.
    fn method(self) -> (&'static str, &'static str) {
        match self {
            CallKind::Infer { .. } => ("hanzo.engine.v1.Engine", "Infer"),
            CallKind::Embed => ("hanzo.engine.v1.Engine", "Embed"),
            CallKind::Rerank => ("hanzo.engine.v1.Engine", "Rerank"),
            CallKind::Classify => ("hanzo.engine.v1.Engine", "Classify"),
            CallKind::Transcribe => ("hanzo.engine.v1.Speech", "Transcribe"),
            CallKind::Speak => ("hanzo.engine.v1.Speech", "Speak"),
        }
    }

    /// Operation name in the semantic conventions for generative AI, or in their style if they have none.
    fn operation(self) -> &'static str {
        match self {
            CallKind::Infer { chat: true } => "chat",
            CallKind::Infer { chat: false } => "text_completion",
            CallKind::Embed => "embeddings",
            CallKind::Rerank => "rerank",
            CallKind::Classify => "classify",
            CallKind::Transcribe => "transcribe",
            CallKind::Speak => "speak",
        }
    }
}

impl RequestLog {
    /// Creates the record of a request that arrived at `arrived`; the metadata may name a trace.
    pub(super) fn new(
        call: CallKind,
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

    /// Records the sampling parameters of the request, and nothing of its text.
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

    /// Records the timings of a choice that ended.
    pub(super) fn took(&mut self, times: Timings) {
        let total = |times: &Timings| times.queue + times.prefill + times.decode;
        if self.times.as_ref().is_none_or(|known| total(known) < total(&times)) {
            self.times = Some(times);
        }
    }

    /// Records the end of the request.
    pub(super) fn end(&mut self, error: Option<&Error>) {
        if let Some(reason) = error.and_then(Error::rejection) {
            self.metrics.rejected(self.model(), reason);
        }
        if let Some((_, metrics)) = self.model.as_ref().filter(|_| self.queued) {
            match error {
                None => metrics.finished(self.reason),
                // An invalid input after the first batch is a refused request, not a failure.
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

    /// Writes the request's span, with a child span for each phase in sequence from its arrival.
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
            span.phase("load", Duration::ZERO, self.load, []);
        }
        let begun = self.begun.map(|begun| begun.saturating_duration_since(self.arrived));
        match (&self.times, begun) {
            (Some(times), _) => {
                span.phase("queue", self.load, times.queue.saturating_sub(self.load), []);
                span.phase("prefill", times.queue, times.prefill, [input, cached]);
                span.phase("decode", times.queue + times.prefill, times.decode, [output]);
            }
            (None, Some(begun)) => {
                span.phase("queue", self.load, begun.saturating_sub(self.load), []);
                span.phase("compute", begun, elapsed.saturating_sub(begun), [input]);
            }
            (None, None) if self.queued => {
                span.phase("queue", self.load, elapsed.saturating_sub(self.load), []);
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
