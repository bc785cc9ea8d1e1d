//! Snapshots of models for other modules; their values do not change afterwards.

use std::{path::PathBuf, sync::Arc, time::Instant};

use hanzo_engine_ops::KvType;
use hanzo_engine_runtime::{Embedder, EngineStats, ModelInfo, TextModel, ToolFormat, engine::EngineMemory};

use crate::{keep_alive::KeepAlive, source::ModelSource};

/// Snapshot of a model.
#[derive(Clone, Debug)]
pub(crate) struct ModelView {
    pub(crate) name: String,
    pub(crate) state: StateView,
    pub(crate) source: ModelSource,
    pub(crate) info: Option<ModelInfo>,
    /// Draft model for speculative decoding.
    pub(crate) draft_model: Option<String>,
    /// Overrides of its files' values.
    pub(crate) overrides: Vec<String>,
    /// Worker, if there is one.
    pub(crate) worker: Option<WorkerView>,
    pub(crate) counts: Counts,
    /// Idle time after which it is unloaded.
    pub(crate) keep_alive: KeepAlive,
    /// Time at which it will be unloaded if it is not used.
    pub(crate) expires_at: Option<Instant>,
}

/// State of a model in a snapshot.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum StateView {
    /// Its load waits for memory.
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

/// Snapshot of a worker.
#[derive(Clone, Debug)]
pub(crate) struct WorkerView {
    pub(crate) device: String,
    pub(crate) has_template: bool,
    /// Whether the model supports fill-in-the-middle.
    pub(crate) fills_in: bool,
    pub(crate) sees: bool,
    /// Whether the model accepts sounds in a chat.
    pub(crate) hears: bool,
    /// Format of tool calls, and whether the chat template offers tools.
    pub(crate) tool_format: Option<(ToolFormat, bool)>,
    /// Whether the chat template has a reasoning section.
    pub(crate) reasons: bool,
    pub(crate) generates: bool,
    /// Whether the model transcribes.
    pub(crate) transcribes: bool,
    pub(crate) speaks: bool,
    pub(crate) embedder: Arc<Embedder>,
    pub(crate) text: Arc<TextModel>,
    /// Number of generations that run at once; 0 if the model does not generate.
    pub(crate) sequences_max: usize,
    pub(crate) context_tokens_max: usize,
    /// Data type of the KV cache, if there is one.
    pub(crate) kv_type: Option<KvType>,
    pub(crate) memory: EngineMemory,
    /// Memory of the token vocabulary for grammars, once a request has had a constraint.
    pub(crate) vocabulary_bytes: u64,
    /// Memory of compiled constraints.
    pub(crate) constraints_bytes: u64,
    /// Adapters, by name.
    pub(crate) adapters: Vec<AdapterView>,
    pub(crate) loaded_at_unix_ms: i64,
    pub(crate) requests_running: usize,
    pub(crate) requests_waiting: usize,
    pub(crate) queue_capacity: usize,
    pub(crate) batch_size: usize,
    pub(crate) stats: EngineStats,
    pub(crate) tokens_per_s: f64,
    pub(crate) stuck: bool,
    /// Process of the worker, if it is not a thread of the daemon.
    pub(crate) process: Option<ProcessView>,
}

/// Snapshot of a worker's process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessView {
    pub(crate) pid: u32,
    /// Resident memory, including shared pages of files.
    pub(crate) resident_bytes: u64,
}

impl ProcessView {
    /// Reads the state from the system. A process that has just ended has no memory.
    pub(crate) fn of(pid: u32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
        let kib = line.split_whitespace().next().and_then(|number| number.parse::<u64>().ok());
        Self { pid, resident_bytes: kib.unwrap_or(0).saturating_mul(1024) }
    }
}

/// Counters of a model since its name was first loaded.
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

/// Description of a loaded adapter, for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AdapterView {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) format: &'static str,
    pub(crate) rank: usize,
    pub(crate) bytes: u64,
    pub(crate) loaded_at_unix_ms: i64,
}
