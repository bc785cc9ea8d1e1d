//! Counters of all models.

use hanzo_engine_access::Refusal;
use prometheus::IntCounterVec;

use super::maker::Maker;

/// Tokens and inputs that models computed, with the label `model`.
pub(super) struct WorkCounters {
    pub(super) generated_tokens: IntCounterVec,
    pub(super) prompt_tokens: IntCounterVec,
    pub(super) prefix_query_tokens: IntCounterVec,
    pub(super) prefix_hit_tokens: IntCounterVec,
    pub(super) preemptions: IntCounterVec,
    pub(super) context_shifts: IntCounterVec,
    pub(super) draft_tokens: IntCounterVec,
    pub(super) accepted_draft_tokens: IntCounterVec,
    pub(super) embedded: IntCounterVec,
}

impl WorkCounters {
    /// Creates and registers them at zero.
    pub(super) fn new(make: &Maker) -> WorkCounters {
        let model = &["model"];
        WorkCounters {
            generated_tokens: make.counter("tokens_generated_total", "Tokens generated.", model),
            prompt_tokens: make.counter("prompt_tokens_total", "Tokens of prompts that were run.", model),
            prefix_query_tokens: make.counter(
                "prefix_cache_query_tokens_total",
                "Prompt tokens looked up in the prefix cache.",
                model,
            ),
            prefix_hit_tokens: make.counter(
                "prefix_cache_hit_tokens_total",
                "Prompt tokens found in the prefix cache.",
                model,
            ),
            preemptions: make.counter(
                "preemptions_total",
                "Times a sequence gave its KV blocks back early.",
                model,
            ),
            context_shifts: make.counter(
                "context_shifts_total",
                "Times a sequence that filled its context dropped tokens and went on.",
                model,
            ),
            draft_tokens: make.counter(
                "draft_tokens_total",
                "Tokens computed in the hope that they would be drawn.",
                model,
            ),
            accepted_draft_tokens: make.counter(
                "accepted_draft_tokens_total",
                "Drafted tokens that were drawn.",
                model,
            ),
            embedded: make.counter(
                "inputs_embedded_total",
                "Inputs that were embedded, reranked or classified.",
                model,
            ),
        }
    }

    /// Every counter.
    pub(super) fn all(&self) -> [&IntCounterVec; 9] {
        [
            &self.generated_tokens,
            &self.prompt_tokens,
            &self.prefix_query_tokens,
            &self.prefix_hit_tokens,
            &self.preemptions,
            &self.context_shifts,
            &self.draft_tokens,
            &self.accepted_draft_tokens,
            &self.embedded,
        ]
    }
}

/// Requests, failures and loads.
pub(super) struct CallCounters {
    pub(super) requests: IntCounterVec,
    pub(super) finished: IntCounterVec,
    pub(super) rejected: IntCounterVec,
    pub(super) cancelled: IntCounterVec,
    pub(super) errors: IntCounterVec,
    pub(super) worker_restarts: IntCounterVec,
    pub(super) model_loads: IntCounterVec,
    pub(super) refusals: IntCounterVec,
    pub(super) evictions: IntCounterVec,
}

impl CallCounters {
    /// Creates and registers them at zero.
    pub(super) fn new(make: &Maker) -> CallCounters {
        let model = &["model"];
        CallCounters {
            requests: make.counter(
                "requests_total",
                "Requests answered, by gRPC status.",
                &["model", "status"],
            ),
            finished: make.counter(
                "requests_finished_total",
                "Requests that ended with their client there, by why the last choice ended; stop where there are none.",
                &["model", "finish_reason"],
            ),
            rejected: make.counter(
                "requests_rejected_total",
                "Sound requests that were turned away.",
                &["model", "reason"],
            ),
            cancelled: make.counter("requests_cancelled_total", "Requests whose client left.", model),
            errors: make.counter("errors_total", "Failures of the engine itself.", &["model", "kind"]),
            worker_restarts: make.counter(
                "worker_restarts_total",
                "Times a failed worker was brought back.",
                model,
            ),
            model_loads: make.counter("model_loads_total", "Model loads, by result.", &["model", "result"]),
            refusals: {
                let refusals = make.counter(
                    "grpc_refusals_total",
                    "gRPC calls refused for their key or its limits, by reason.",
                    &["reason"],
                );
                for code in Refusal::CODES {
                    refusals.with_label_values(&[code]).inc_by(0);
                }
                refusals
            },
            evictions: make.counter(
                "model_evictions_total",
                "Models that left by themselves: keep_alive, room for another, or turn, when it had worked while another waited.",
                &["reason"],
            ),
        }
    }

    /// Counters with the label `model`.
    pub(super) fn of_models(&self) -> [&IntCounterVec; 7] {
        [
            &self.requests,
            &self.finished,
            &self.rejected,
            &self.cancelled,
            &self.errors,
            &self.worker_restarts,
            &self.model_loads,
        ]
    }
}
