//! Histograms of all models, each with the label `model`.

use prometheus::HistogramVec;

use super::{
    bounds::{DECISION_SECONDS, INPUTS, SECONDS, TOKEN_SECONDS, TOKENS},
    maker::Maker,
};

/// Times, lengths and sizes.
pub(super) struct Histograms {
    pub(super) first_token: HistogramVec,
    pub(super) duration: HistogramVec,
    pub(super) inter_token: HistogramVec,
    pub(super) per_output_token: HistogramVec,
    pub(super) queue_time: HistogramVec,
    pub(super) prefill_time: HistogramVec,
    pub(super) decode_time: HistogramVec,
    pub(super) prompt_length: HistogramVec,
    pub(super) embed_batch_size: HistogramVec,
    pub(super) generation_length: HistogramVec,
    pub(super) load_duration: HistogramVec,
    pub(super) schedule: HistogramVec,
}

impl Histograms {
    /// Creates and registers them at zero.
    pub(super) fn new(make: &Maker) -> Histograms {
        Histograms {
            first_token: make.histogram(
                "time_to_first_token_seconds",
                "Seconds from a request's arrival to its first sampled token.",
                SECONDS,
            ),
            duration: make.histogram(
                "request_duration_seconds",
                "Seconds from a request's arrival to its end.",
                SECONDS,
            ),
            inter_token: make.histogram(
                "inter_token_latency_seconds",
                "Seconds between one text of a choice and the next.",
                TOKEN_SECONDS,
            ),
            per_output_token: make.histogram(
                "time_per_output_token_seconds",
                "Mean seconds per token of a choice after its first.",
                TOKEN_SECONDS,
            ),
            queue_time: make.histogram(
                "request_queue_time_seconds",
                "Seconds from a request's arrival to the first step that ran it.",
                SECONDS,
            ),
            prefill_time: make.histogram(
                "request_prefill_time_seconds",
                "Seconds from a choice's first step to its first sampled token.",
                SECONDS,
            ),
            decode_time: make.histogram(
                "request_decode_time_seconds",
                "Seconds from a choice's first sampled token to its last.",
                SECONDS,
            ),
            prompt_length: make.histogram("request_prompt_tokens", "Tokens of a request's prompt.", TOKENS),
            embed_batch_size: make.histogram(
                "embed_batch_size",
                "Inputs that are embedded, reranked or classified together.",
                INPUTS,
            ),
            generation_length: make.histogram(
                "request_generation_tokens",
                "Tokens generated for a choice.",
                TOKENS,
            ),
            load_duration: make.histogram(
                "model_load_duration_seconds",
                "Seconds a model took from the call to ready.",
                SECONDS,
            ),
            schedule: make.histogram(
                "schedule_seconds",
                "Seconds it took to decide what a step computes.",
                DECISION_SECONDS,
            ),
        }
    }

    /// Every histogram.
    pub(super) fn all(&self) -> [&HistogramVec; 12] {
        [
            &self.first_token,
            &self.duration,
            &self.inter_token,
            &self.per_output_token,
            &self.queue_time,
            &self.prefill_time,
            &self.decode_time,
            &self.prompt_length,
            &self.embed_batch_size,
            &self.generation_length,
            &self.load_duration,
            &self.schedule,
        ]
    }
}
