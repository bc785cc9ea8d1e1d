//! What others see of a model: the values of one moment, with nothing that changes behind them.

use std::{sync::Arc, time::Instant};

use hanzo_engine_kernels::KvType;
use hanzo_engine_runtime::{Embedder, EngineStats, ModelInfo, TextModel, ToolFormat, engine::EngineMemory};

use crate::{adapters::AdapterView, keep_alive::KeepAlive, source::Source};

/// A model as it is at one moment.
#[derive(Clone, Debug)]
pub(crate) struct ModelView {
    pub(crate) name: String,
    pub(crate) state: StateView,
    pub(crate) source: Source,
    pub(crate) info: Option<ModelInfo>,
    /// The model that drafts for it.
    pub(crate) draft_model: Option<String>,
    /// What was put over its files.
    pub(crate) overrides: Vec<String>,
    /// While it has a worker.
    pub(crate) worker: Option<WorkerView>,
    pub(crate) counts: Counts,
    /// How long it stays that nobody uses it.
    pub(crate) keep_alive: KeepAlive,
    /// When it leaves if it is not used.
    pub(crate) expires_at: Option<Instant>,
}

/// What a model is doing, as it is told.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum StateView {
    /// Its load waits for room.
    Queued,
    Loading {
        percent: u32,
    },
    Ready,
    Draining,
    Unloaded,
    Failed {
        error: String,
    },
}

/// A worker as it is at one moment.
#[derive(Clone, Debug)]
pub(crate) struct WorkerView {
    pub(crate) device: String,
    pub(crate) has_template: bool,
    /// It has the tokens that fill in the middle of a text.
    pub(crate) fills_in: bool,
    pub(crate) sees: bool,
    /// Whether it takes sounds in a chat.
    pub(crate) hears: bool,
    /// How it writes tool calls, and whether its template offers tools.
    pub(crate) tool_format: Option<(ToolFormat, bool)>,
    /// Its chat template has a reasoning section.
    pub(crate) reasons: bool,
    pub(crate) generates: bool,
    /// It writes down speech.
    pub(crate) transcribes: bool,
    pub(crate) speaks: bool,
    pub(crate) embedder: Arc<Embedder>,
    pub(crate) text: Arc<TextModel>,
    /// Answers that run at once; 0 where it writes none.
    pub(crate) sequences_max: usize,
    pub(crate) context_tokens_max: usize,
    /// Of a model with a KV cache.
    pub(crate) kv_type: Option<KvType>,
    pub(crate) memory: EngineMemory,
    /// Of its tokens as grammars see them, once a request has had a constraint.
    pub(crate) vocabulary_bytes: u64,
    /// Of compiled constraints.
    pub(crate) constraints_bytes: u64,
    /// By name.
    pub(crate) adapters: Vec<AdapterView>,
    pub(crate) loaded_at_unix_ms: i64,
    pub(crate) requests_running: usize,
    pub(crate) requests_waiting: usize,
    pub(crate) queue_capacity: usize,
    pub(crate) batch_size: usize,
    pub(crate) stats: EngineStats,
    pub(crate) tokens_per_s: f64,
    pub(crate) stuck: bool,
    /// Where it is not a thread of the daemon.
    pub(crate) process: Option<ProcessView>,
}

/// A worker's process as it is at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessView {
    pub(crate) pid: u32,
    /// In memory, pages of files that it shares included.
    pub(crate) resident_bytes: u64,
}

impl ProcessView {
    /// As the system says; one that has just ended has nothing in memory.
    pub(crate) fn of(pid: u32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
        let kib = line.split_whitespace().next().and_then(|number| number.parse::<u64>().ok());
        Self { pid, resident_bytes: kib.unwrap_or(0).saturating_mul(1024) }
    }
}

/// What a model has done since its name was first loaded.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) finished: u64,
    pub(crate) cancelled: u64,
    pub(crate) failed: u64,
    pub(crate) prompt_tokens: u64,
    pub(crate) generated_tokens: u64,
    pub(crate) prefix_hit_tokens: u64,
    pub(crate) preemptions: u64,
}
