//! Metrics of pictures, and of sounds in chats: how many were encoded and how many came from the cache, their
//! tokens, and the time taken.

use hanzo_engine_runtime::EngineStats;
use prometheus::{Counter, CounterVec, IntCounter, IntCounterVec};

use super::{maker::Maker, series::remove};

const NANOSECONDS: f64 = 1e9;

/// Metrics of all models.
pub(super) struct MediaMetrics {
    seconds: CounterVec,
    seen: IntCounterVec,
    kept: IntCounterVec,
    tokens: IntCounterVec,
}

/// Metrics of one model.
pub(super) struct ModelMedia {
    seconds: Counter,
    seen: IntCounter,
    kept: IntCounter,
    tokens: IntCounter,
}

impl MediaMetrics {
    /// Creates the metrics at zero.
    pub(super) fn new(make: &Maker) -> MediaMetrics {
        let model = &["model"];
        MediaMetrics {
            seconds: make.seconds(
                "media_seconds_total",
                "Seconds that towers took for pictures and for sounds in chats.",
            ),
            seen: make.counter(
                "media_frames_seen_total",
                "Frames of pictures, or windows of sounds in chats, that went through a tower.",
                model,
            ),
            kept: make.counter(
                "media_frames_kept_total",
                "Frames whose rows were kept from before, so that no tower saw them.",
                model,
            ),
            tokens: make.counter(
                "media_tokens_total",
                "Tokens that pictures and sounds have had in prompts or as inputs that became vectors.",
                model,
            ),
        }
    }

    /// Metrics of one model.
    pub(super) fn model(&self, model: &str) -> ModelMedia {
        ModelMedia {
            seconds: self.seconds.with_label_values(&[model]),
            seen: self.seen.with_label_values(&[model]),
            kept: self.kept.with_label_values(&[model]),
            tokens: self.tokens.with_label_values(&[model]),
        }
    }

    /// Removes the series of a model that nothing counts for any more.
    pub(super) fn forget(&self, model: &str) {
        [&self.seen, &self.kept, &self.tokens].into_iter().for_each(|counter| remove(counter, model));
        // The series may not exist.
        let _ = self.seconds.remove_label_values(&[model]);
    }
}

impl ModelMedia {
    /// Counts the engine's progress since `before`.
    pub(super) fn advance(&self, before: &EngineStats, now: &EngineStats) {
        self.seconds.inc_by(now.media_ns.saturating_sub(before.media_ns) as f64 / NANOSECONDS);
        self.seen.inc_by(now.frames_seen - before.frames_seen);
        self.kept.inc_by(now.frames_kept - before.frames_kept);
        self.tokens.inc_by(now.media_tokens - before.media_tokens);
    }
}
