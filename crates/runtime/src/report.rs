//! Reports of engines to their callers: memory before one is created, work of a step, gauges and counters.

use serde::{Deserialize, Serialize};

/// Memory of an engine, exact to the byte, known before it is created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineMemory {
    /// Packed weights.
    pub weights_bytes: u64,
    /// The KV cache.
    pub kv_bytes: u64,
    /// Activations, logits, and the backend's scratch.
    pub scratch_bytes: u64,
}

impl std::ops::Add for EngineMemory {
    type Output = EngineMemory;

    /// Memory of both engines.
    fn add(self, other: EngineMemory) -> EngineMemory {
        EngineMemory {
            weights_bytes: self.weights_bytes + other.weights_bytes,
            kv_bytes: self.kv_bytes + other.kv_bytes,
            scratch_bytes: self.scratch_bytes + other.scratch_bytes,
        }
    }
}

impl EngineMemory {
    /// Total in bytes.
    pub fn total(&self) -> u64 {
        self.weights_bytes + self.kv_bytes + self.scratch_bytes
    }
}

/// Gauges and counters of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineStats {
    /// Number of KV blocks.
    pub blocks_total: usize,
    /// Blocks held by sequences.
    pub blocks_used: usize,
    /// Free blocks kept for reuse.
    pub blocks_cached: usize,
    /// Running sequences.
    pub running: usize,
    /// Waiting sequences.
    pub waiting: usize,
    /// Prompt tokens received.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Prompt tokens found in the prefix cache.
    pub prefix_hit_tokens: u64,
    /// Number of preemptions of a sequence.
    pub preemptions: u64,
    /// Number of steps.
    pub steps: u64,
    /// Draft tokens that were computed.
    pub draft_tokens: u64,
    /// Draft tokens that were accepted.
    pub accepted_draft_tokens: u64,
    /// Number of context shifts: a sequence filled its context, dropped tokens and went on.
    pub context_shifts: u64,
    /// Picture frames that went through the tower; frames whose rows were kept are not counted.
    pub frames_seen: u64,
    /// Picture frames whose rows were kept.
    pub frames_kept: u64,
    /// Media tokens of prompts and of inputs that became vectors.
    pub media_tokens: u64,
    /// Time of the towers in nanoseconds, if the caller has a clock.
    pub media_ns: u64,
    /// KV blocks fetched from the block store.
    pub fetched_blocks: u64,
}

/// Work of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepReport {
    /// Prompt tokens computed.
    pub prefill_tokens: usize,
    /// Sequences that decoded.
    pub decode_tokens: usize,
    /// Sequences in the batch.
    pub sequences: usize,
    /// Time of scheduling in nanoseconds; 0 without a clock.
    pub schedule_ns: u64,
}
