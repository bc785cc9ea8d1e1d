//! Printed forms of models, in tables and in JSON. Only this file converts both the protocol's and the store's
//! records.

use hanzo_engine_daemon::store::{self, ModelRecord};
use hanzo_engine_proto::v1::{self, ModelState};
use serde::Serialize;
use std::path::Path;

/// Known model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ModelSummary {
    pub(crate) name: String,
    pub(crate) format: String,
    pub(crate) quantization: String,
    pub(crate) size_bytes: u64,
    pub(crate) modified_at_unix_ms: i64,
    pub(crate) used_at_unix_ms: i64,
    pub(crate) path: String,
    pub(crate) source: String,
    /// Reference that pulls the same model again.
    pub(crate) reference: String,
    /// Commit or digest; empty if the source has none.
    pub(crate) revision: String,
    pub(crate) in_place: bool,
    pub(crate) loaded: bool,
    /// True if some of its files are missing.
    pub(crate) missing: bool,
}

/// All details of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Card {
    #[serde(flatten)]
    pub(crate) model: ModelSummary,
    pub(crate) architecture: String,
    pub(crate) parameters: u64,
    pub(crate) context_tokens_max: u32,
    pub(crate) license: String,
    pub(crate) license_text: String,
    pub(crate) capabilities: Vec<&'static str>,
    /// Format of its tool calls; empty if it writes none.
    pub(crate) tool_format: String,
    pub(crate) inputs_not_read: Vec<String>,
    pub(crate) chat_template: String,
    /// Chat template that is not Jinja, for display.
    pub(crate) source_template: String,
    /// System prompt that came with the model.
    pub(crate) system: String,
    /// Sampling options that came with the model.
    pub(crate) params: Option<serde_json::Value>,
    pub(crate) files: Vec<FileSummary>,
    pub(crate) status: Option<LoadedSummary>,
}

/// File of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct FileSummary {
    pub(crate) path: String,
    pub(crate) size_bytes: u64,
    pub(crate) sha256: Option<String>,
    /// Role of the file in the model.
    pub(crate) role: String,
    /// Owner of the file.
    pub(crate) held: String,
    pub(crate) missing: bool,
}

/// Model or alias that was removed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct RemovalSummary {
    pub(crate) name: String,
    /// Former path; empty for an alias.
    pub(crate) path: String,
    pub(crate) freed_bytes: u64,
    pub(crate) alias_of: Option<String>,
}

/// Alias of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Alias {
    pub(crate) alias: String,
    pub(crate) target: String,
    /// True if built in.
    pub(crate) builtin: bool,
}

/// Model in a daemon's memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct LoadedSummary {
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
    /// Idle time after which it is unloaded, in milliseconds; -1: never.
    pub(crate) keep_alive_ms: i64,
    /// Time at which it is unloaded if idle; 0: never, or it is in use.
    pub(crate) expires_at_unix_ms: i64,
    pub(crate) requests_running: u32,
    pub(crate) requests_waiting: u32,
    /// Process that runs it; 0 if the daemon does.
    pub(crate) worker_pid: u32,
    /// Resident memory of that process.
    pub(crate) resident_bytes: u64,
    /// Overrides of its files.
    pub(crate) overrides: Vec<String>,
}

impl ModelSummary {
    /// Converts the daemon's message. With `here`, paths can be checked from this process.
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

    /// Converts the store's record, and compares it with the disk.
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
    /// Converts as [`ModelSummary::from_proto`] does.
    pub(crate) fn from_proto(shown: v1::ShowResponse, here: bool) -> Self {
        let capabilities = shown.capabilities().filter_map(hanzo_engine_gateway::capability_word).collect();
        let file = |file: v1::StoredFile| FileSummary {
            missing: here && is_gone(&file.path),
            path: file.path,
            size_bytes: file.size_bytes,
            sha256: Some(file.sha256).filter(|digest| !digest.is_empty()),
            role: file.role,
            held: file.held,
        };
        Self {
            model: ModelSummary::from_proto(shown.model.unwrap_or_default(), here),
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
            status: shown.status.map(LoadedSummary::from_proto),
        }
    }
}

impl RemovalSummary {
    /// Converts the daemon's message.
    pub(crate) fn from_proto(removed: v1::RemoveResponse) -> Self {
        let model = removed.model.unwrap_or_default();
        let alias_of = Some(removed.alias_of).filter(|target| !target.is_empty());
        Self { name: model.name, path: model.path, freed_bytes: removed.freed_bytes, alias_of }
    }

    /// Converts the store's result.
    pub(crate) fn from_store(removed: store::RemovalResult) -> Self {
        let path = removed.record.map(|record| record.path.display().to_string()).unwrap_or_default();
        let store::RemovalResult { name, freed_bytes, alias_of, .. } = removed;
        Self { name, path, freed_bytes, alias_of }
    }
}

impl Alias {
    /// Converts the daemon's message.
    pub(crate) fn from_proto(alias: v1::Alias) -> Self {
        let v1::Alias { alias, target, builtin } = alias;
        Self { alias, target, builtin }
    }
}

impl LoadedSummary {
    /// Converts the daemon's message.
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

/// Returns true for a missing path. The built-in model has no path.
fn is_gone(path: &str) -> bool {
    let path = Path::new(path);
    path.is_absolute() && !path.exists()
}
