//! What is counted and logged of one request: once, whatever its end, in one line.

use std::{sync::Arc, time::Instant};

use hanzo_engine_runtime::FinishReason;
use tonic::Code;

use crate::{
    error::Error,
    metrics::{Metrics, ModelMetrics},
};

/// What is counted and logged of one request, when it ends or is dropped.
pub(super) struct RequestLog {
    call: &'static str,
    metrics: Arc<Metrics>,
    pub(super) request_id: String,
    /// The trace that it is part of.
    pub(super) trace_id: Option<String>,
    arrived: Instant,
    pub(super) model: Option<(String, Arc<ModelMetrics>)>,
    pub(super) prompt_tokens: u32,
    pub(super) completion_tokens: u32,
    pub(super) inputs: usize,
    /// A worker has it, or part of it.
    pub(super) queued: bool,
    /// Why its last choice ended; a request without choices just stops.
    pub(super) reason: FinishReason,
    pub(super) ended: bool,
}

impl RequestLog {
    /// Of a request that arrived at `arrived`.
    pub(super) fn new(
        call: &'static str,
        metrics: Arc<Metrics>,
        request_id: String,
        arrived: Instant,
    ) -> RequestLog {
        RequestLog {
            call,
            metrics,
            request_id,
            trace_id: None,
            arrived,
            model: None,
            prompt_tokens: 0,
            completion_tokens: 0,
            inputs: 0,
            queued: false,
            reason: FinishReason::Stop,
            ended: false,
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
        self.metrics.request(self.model(), outcome, elapsed.as_secs_f64());
        tracing::info!(
            request_id = self.request_id,
            trace_id = self.trace_id,
            model = self.model(),
            outcome,
            error = error.map(tracing::field::display),
            prompt_tokens = self.prompt_tokens,
            completion_tokens = self.completion_tokens,
            inputs = self.inputs,
            ms = elapsed.as_millis() as u64,
            "{}",
            self.call
        );
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
