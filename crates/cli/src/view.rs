//! Models as the commands print them, in tables and in JSON. The one place that knows both the protocol's and the
//! store's own records.

use hanzo_engine_daemon::store::{self, ModelRecord};
use hanzo_engine_proto::v1::{self, ModelState};
use serde::Serialize;
use std::path::Path;

/// A known model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Model {
    pub(crate) name: String,
    pub(crate) format: String,
    pub(crate) quantization: String,
    pub(crate) size_bytes: u64,
    pub(crate) modified_at_unix_ms: i64,
    pub(crate) used_at_unix_ms: i64,
    pub(crate) path: String,
    pub(crate) source: String,
    /// What to pull to get the same again.
    pub(crate) reference: String,
    /// Commit or digest; empty where the source has none.
    pub(crate) revision: String,
    pub(crate) in_place: bool,
    pub(crate) loaded: bool,
    /// Some of its files are gone.
    pub(crate) missing: bool,
}

/// Everything known of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Card {
    #[serde(flatten)]
    pub(crate) model: Model,
    pub(crate) architecture: String,
    pub(crate) parameters: u64,
    pub(crate) context_tokens_max: u32,
    pub(crate) license: String,
    pub(crate) license_text: String,
    pub(crate) capabilities: Vec<&'static str>,
    /// How it writes tool calls; empty where it does not.
    pub(crate) tool_format: String,
    pub(crate) inputs_not_read: Vec<String>,
    pub(crate) chat_template: String,
    /// One that is not Jinja: for show.
    pub(crate) source_template: String,
    /// The system prompt it came with.
    pub(crate) system: String,
    /// The sampling options it came with.
    pub(crate) params: Option<serde_json::Value>,
    pub(crate) files: Vec<File>,
    pub(crate) status: Option<Loaded>,
}

/// One file of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) size_bytes: u64,
    pub(crate) sha256: Option<String>,
    /// What it is to the model.
    pub(crate) role: String,
    /// Whose it is.
    pub(crate) held: String,
    pub(crate) missing: bool,
}

/// A model or an alias that was removed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Removed {
    pub(crate) name: String,
    /// Where it was; empty for an alias.
    pub(crate) path: String,
    pub(crate) freed_bytes: u64,
    pub(crate) alias_of: Option<String>,
}

/// A name that stands for something else.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Alias {
    pub(crate) alias: String,
    pub(crate) target: String,
    /// Comes with the program.
    pub(crate) builtin: bool,
}

/// A model in a daemon's memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Loaded {
    pub(crate) name: String,
    pub(crate) state: &'static str,
    pub(crate) error: Option<String>,
    pub(crate) load_progress: f32,
    pub(crate) device: String,
    pub(crate) context_tokens_max: u32,
    pub(crate) size_bytes: u64,
    pub(crate) weights_bytes: u64,
    pub(crate) kv_bytes: u64,
    pub(crate) kv_type: String,
    pub(crate) scratch_bytes: u64,
    pub(crate) loaded_at_unix_ms: i64,
    /// It stays so long when nobody uses it; -1: until it is unloaded.
    pub(crate) keep_alive_ms: i64,
    /// When it leaves if nobody uses it; 0: it does not, or it is in use.
    pub(crate) expires_at_unix_ms: i64,
    pub(crate) requests_running: u32,
    pub(crate) requests_waiting: u32,
    /// Of the process that runs it; 0 where the daemon does.
    pub(crate) worker_pid: u32,
    /// What that process has in memory.
    pub(crate) resident_bytes: u64,
    /// What was put over its files.
    pub(crate) overrides: Vec<String>,
}

impl Model {
    /// What the daemon says; `here`: its paths can be looked at from this process.
    pub(crate) fn from_proto(model: v1::StoredModel, here: bool) -> Self {
        Self {
            missing: here && is_gone(&model.path),
            name: model.name,
            format: model.format,
            quantization: model.quantization,
            size_bytes: model.size_bytes,
            modified_at_unix_ms: model.modified_at_unix_ms,
            used_at_unix_ms: model.used_at_unix_ms,
            path: model.path,
            source: model.source,
            reference: model.reference,
            revision: model.revision,
            in_place: model.in_place,
            loaded: model.loaded,
        }
    }

    /// What the store remembers, compared with the disk.
    pub(crate) fn from_record(record: &ModelRecord) -> Self {
        Self {
            name: record.name.clone(),
            format: record.format.clone(),
            quantization: record.quantization.clone(),
            size_bytes: record.size_bytes,
            modified_at_unix_ms: record.modified_at_unix_ms(),
            used_at_unix_ms: record.used_at_unix_ms,
            path: record.path.display().to_string(),
            source: record.source.clone(),
            reference: record.reference.clone(),
            revision: record.revision.clone().unwrap_or_default(),
            in_place: record.in_place,
            loaded: false,
            missing: !record.missing().is_empty(),
        }
    }
}

impl Card {
    /// As [`Model::from_proto`].
    pub(crate) fn from_proto(shown: v1::ShowResponse, here: bool) -> Self {
        let capabilities = shown.capabilities().filter_map(hanzo_engine_gateway::capability_word).collect();
        let file = |file: v1::StoredFile| File {
            missing: here && is_gone(&file.path),
            path: file.path,
            size_bytes: file.size_bytes,
            sha256: Some(file.sha256).filter(|digest| !digest.is_empty()),
            role: file.role,
            held: file.held,
        };
        Self {
            model: Model::from_proto(shown.model.unwrap_or_default(), here),
            architecture: shown.architecture,
            parameters: shown.parameters,
            context_tokens_max: shown.context_tokens_max,
            license: shown.license,
            license_text: shown.license_text,
            capabilities,
            tool_format: shown.tool_format,
            inputs_not_read: shown.inputs_not_read,
            chat_template: shown.chat_template,
            source_template: shown.source_template,
            system: shown.system,
            params: serde_json::from_str(&shown.params_json).ok(),
            files: shown.files.into_iter().map(file).collect(),
            status: shown.status.map(Loaded::from_proto),
        }
    }
}

impl Removed {
    /// What the daemon says.
    pub(crate) fn from_proto(removed: v1::RemoveResponse) -> Self {
        let model = removed.model.unwrap_or_default();
        let alias_of = Some(removed.alias_of).filter(|target| !target.is_empty());
        Self { name: model.name, path: model.path, freed_bytes: removed.freed_bytes, alias_of }
    }

    /// What the store says.
    pub(crate) fn from_store(removed: store::Removed) -> Self {
        let path = removed.record.map(|record| record.path.display().to_string()).unwrap_or_default();
        let store::Removed { name, freed_bytes, alias_of, .. } = removed;
        Self { name, path, freed_bytes, alias_of }
    }
}

impl Alias {
    /// What the daemon says.
    pub(crate) fn from_proto(alias: v1::Alias) -> Self {
        let v1::Alias { alias, target, builtin } = alias;
        Self { alias, target, builtin }
    }
}

impl Loaded {
    /// What the daemon says.
    pub(crate) fn from_proto(status: v1::ModelStatus) -> Self {
        Self {
            state: match status.state() {
                ModelState::Unspecified => "unknown",
                ModelState::Queued => "queued",
                ModelState::Loading => "loading",
                ModelState::Ready => "ready",
                ModelState::Draining => "draining",
                ModelState::Unloaded => "unloaded",
                ModelState::Failed => "failed",
            },
            name: status.name,
            error: Some(status.error).filter(|error| !error.is_empty()),
            load_progress: status.load_progress,
            device: status.device,
            context_tokens_max: status.context_tokens_max,
            size_bytes: status
                .weights_bytes
                .saturating_add(status.kv_bytes)
                .saturating_add(status.scratch_bytes),
            weights_bytes: status.weights_bytes,
            kv_bytes: status.kv_bytes,
            kv_type: status.kv_type,
            scratch_bytes: status.scratch_bytes,
            loaded_at_unix_ms: status.loaded_at_unix_ms,
            keep_alive_ms: status.keep_alive_ms,
            expires_at_unix_ms: status.expires_at_unix_ms,
            requests_running: status.requests_running,
            requests_waiting: status.requests_waiting,
            worker_pid: status.worker_pid,
            resident_bytes: status.resident_bytes,
            overrides: status.overrides,
        }
    }
}

/// Only a path can be gone: the built-in model has none.
fn is_gone(path: &str) -> bool {
    let path = Path::new(path);
    path.is_absolute() && !path.exists()
}
