//! Models and health of the engine as JSON: entries of model lists, and `/health`.

use hanzo_engine_process::without_directories;
use hanzo_engine_proto::v1::{self, Capability, ModelState};
use serde::Serialize;
use serde_json::{Value, json};

use crate::fleet::MemberView;

/// Model in a list. The fields after `owned_by` are extensions, which OpenAI's clients ignore.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ModelObject {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    pub(crate) created: i64, // Unix seconds
    pub(crate) owned_by: String,
    /// `ready`, `loading`, `draining` or `failed` for a loaded model, `stored` for one that must be loaded
    /// before it can answer.
    pub(crate) state: &'static str,
    /// State in the terms of llama.cpp's router.
    pub(crate) status: RouterStatus,
    /// Reason why loading failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// Maximum tokens of prompt and completion together, of a loaded model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_model_len: Option<u32>,
    /// Capabilities of a loaded model, such as `chat`, `embed` or `vision`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) capabilities: Vec<&'static str>,
    /// Description of a loaded model in the format of llama.cpp's server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) meta: Option<Meta>,
    /// Path of an adapter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) root: Option<String>,
    /// Base model of an adapter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) parent: Option<String>,
}

/// Description of a model in llama.cpp's format.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Meta {
    n_vocab: u32,
    n_ctx: u32,
    n_ctx_train: u32,
    n_embd: u32,
    n_params: u64,
    size: u64, // bytes of its weights in memory
    ftype: String,
}

impl Meta {
    fn of(status: &v1::ModelStatus) -> Option<Meta> {
        let text = status.text.as_ref()?;
        Some(Meta {
            n_vocab: text.vocab_size,
            n_ctx: status.context_tokens_max,
            n_ctx_train: text.context_tokens_trained,
            n_embd: text.hidden_size,
            n_params: status.parameters,
            size: status.weights_bytes,
            ftype: status.quantization.clone(),
        })
    }
}

/// State of a model in the terms of llama.cpp's router.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct RouterStatus {
    pub(crate) value: &'static str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) failed: bool,
}

/// Name of a model's state in JSON.
fn state_word(state: ModelState) -> &'static str {
    match state {
        ModelState::Unspecified => "unknown",
        ModelState::Queued => "queued",
        ModelState::Loading => "loading",
        ModelState::Ready => "ready",
        ModelState::Draining => "draining",
        ModelState::Unloaded => "unloaded",
        ModelState::Failed => "failed",
    }
}

/// Name of a capability; None: unknown to this version.
pub fn capability_word(capability: Capability) -> Option<&'static str> {
    match capability {
        Capability::Unspecified => None,
        Capability::Chat => Some("chat"),
        Capability::Completion => Some("completion"),
        Capability::Embed => Some("embed"),
        Capability::Rerank => Some("rerank"),
        Capability::Vision => Some("vision"),
        Capability::Audio => Some("audio"),
        Capability::Image => Some("image"),
        Capability::Classify => Some("classify"),
        Capability::EmbedSparse => Some("embed_sparse"),
        Capability::Tools => Some("tools"),
        Capability::Infill => Some("infill"),
        Capability::Reasoning => Some("reasoning"),
        Capability::Transcribe => Some("transcribe"),
        Capability::Speak => Some("speak"),
    }
}

/// Loaded models, ready ones first, then those that are only stored; each group by name.
pub(crate) fn models_of(stats: v1::StatsResponse, list: v1::ListResponse) -> Vec<ModelObject> {
    let mut loaded: Vec<ModelObject> =
        stats.models.into_iter().filter_map(|m| m.status).flat_map(with_adapters).collect();
    loaded.sort_by_key(|model| (model.state != "ready", model.id.clone()));
    let mut stored: Vec<ModelObject> = list.models.into_iter().map(model_of_store).collect();
    stored.retain(|model| loaded.iter().all(|other| other.id != model.id));
    stored.sort_by(|a, b| a.id.cmp(&b.id));
    loaded.append(&mut stored);
    loaded
}

/// Model with its adapters as separate entries, as vLLM lists them.
fn with_adapters(mut status: v1::ModelStatus) -> Vec<ModelObject> {
    let adapters = std::mem::take(&mut status.adapters);
    let model = model_of_status(status);
    let of = |adapter: v1::Adapter| ModelObject {
        id: format!("{}:{}", model.id, adapter.name),
        created: adapter.loaded_at_unix_ms / 1000,
        root: Some(adapter.path),
        parent: Some(model.id.clone()),
        ..model.clone()
    };
    let adapters: Vec<ModelObject> = adapters.into_iter().map(of).collect();
    [vec![model], adapters].concat()
}

/// Model of an upstream server.
pub(crate) fn model_elsewhere(id: &str, owner: &str) -> ModelObject {
    ModelObject {
        id: id.to_owned(),
        object: "model",
        created: 0,
        owned_by: owner.to_owned(),
        state: "ready",
        status: RouterStatus { value: "loaded", failed: false },
        error: None,
        max_model_len: None,
        capabilities: Vec::new(),
        meta: None,
        root: None,
        parent: None,
    }
}

/// Model as the engine describes it; `id` is its name if it has none.
pub(crate) fn model_of_show(id: String, shown: v1::ShowResponse) -> ModelObject {
    match (shown.status, shown.model) {
        (Some(status), _) => model_of_status(status),
        (None, stored) => {
            let stored = stored.unwrap_or_default();
            let name = if stored.name.is_empty() { id } else { stored.name.clone() };
            model_of_store(v1::StoredModel { name, ..stored })
        }
    }
}

/// All details of a model; `id` is its name if it has none.
pub(crate) fn card(id: String, shown: v1::ShowResponse) -> Value {
    let capabilities: Vec<&str> = shown.capabilities().filter_map(capability_word).collect();
    let stored = shown.model.clone().unwrap_or_default();
    let status = shown.status.clone().unwrap_or_default();
    let mut card = json!({
        "capabilities": capabilities,
        "architecture": shown.architecture,
        "parameters": shown.parameters,
        "context_tokens_max": shown.context_tokens_max,
        "license": shown.license,
        "format": stored.format,
        "quantization": if stored.quantization.is_empty() { status.quantization } else { stored.quantization },
        "size_bytes": stored.size_bytes,
        "reference": stored.reference,
        "device": status.device,
    });
    let model = serde_json::to_value(model_of_show(id, shown)).unwrap_or_default();
    if let Some(card) = card.as_object_mut() {
        // Unknown values are left out.
        card.retain(|_, value| !(value.as_str() == Some("") || value.as_u64() == Some(0)));
        for (at, name) in ["id", "state", "owned_by", "created", "max_model_len", "error"].iter().enumerate()
        {
            if let Some(value) = model.get(name) {
                card.shift_insert(at.min(card.len()), (*name).to_owned(), value.clone());
            }
        }
    }
    card
}

/// Loaded model.
pub(crate) fn model_of_status(status: v1::ModelStatus) -> ModelObject {
    let failed = status.state() == ModelState::Failed;
    let meta = Meta::of(&status);
    let capabilities = status.capabilities().filter_map(capability_word).collect();
    let value = match status.state() {
        ModelState::Ready | ModelState::Draining => "loaded",
        ModelState::Queued | ModelState::Loading => "loading",
        ModelState::Unspecified | ModelState::Unloaded | ModelState::Failed => "unloaded",
    };
    ModelObject {
        object: "model",
        created: status.loaded_at_unix_ms / 1000,
        owned_by: owner(&status.name),
        state: state_word(status.state()),
        status: RouterStatus { value, failed },
        error: failed.then(|| without_directories(&status.error)),
        max_model_len: (status.context_tokens_max > 0).then_some(status.context_tokens_max),
        capabilities,
        meta,
        root: None,
        parent: None,
        id: status.name,
    }
}

/// Stored model.
pub(crate) fn model_of_store(model: v1::StoredModel) -> ModelObject {
    ModelObject {
        object: "model",
        created: model.modified_at_unix_ms / 1000,
        owned_by: owner(&model.name),
        // A model loaded under another name can also be requested by this one.
        state: if model.loaded { "ready" } else { "stored" },
        status: RouterStatus { value: if model.loaded { "loaded" } else { "unloaded" }, failed: false },
        error: None,
        max_model_len: None,
        capabilities: Vec::new(),
        meta: None,
        root: None,
        parent: None,
        id: model.name,
    }
}

fn owner(name: &str) -> String {
    name.split_once('/').map_or("hanzo", |(owner, _)| owner).to_owned()
}

/// f64 with the decimal digits of an f32, because `Value` has f64 only.
fn decimal(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}

/// State of a model in `/health`.
pub(crate) fn model_health(stats: &v1::ModelStats) -> Value {
    let status = stats.status.clone().unwrap_or_default();
    let used = f64::from(stats.kv_blocks_used) / f64::from(stats.kv_blocks_total.max(1));
    let mut model = json!({
        "name": status.name,
        "state": state_word(status.state()),
        "device": status.device,
        "context_tokens_max": status.context_tokens_max,
        "requests_running": status.requests_running,
        "requests_waiting": status.requests_waiting,
        "queue_capacity": stats.queue_capacity,
        "kv": {
            "blocks_total": stats.kv_blocks_total,
            "blocks_used": stats.kv_blocks_used,
            "blocks_cached": stats.kv_blocks_cached,
            "block_tokens": stats.kv_block_tokens,
            "utilization": used,
        },
        "memory": {
            "weights_bytes": status.weights_bytes,
            "kv_bytes": status.kv_bytes,
            "scratch_bytes": status.scratch_bytes,
        },
        "totals": {
            "requests_finished": stats.requests_finished,
            "requests_cancelled": stats.requests_cancelled,
            "requests_failed": stats.requests_failed,
            "prompt_tokens": stats.prompt_tokens,
            "generated_tokens": stats.generated_tokens,
            "prefix_hit_tokens": stats.prefix_hit_tokens,
            "preemptions": stats.preemptions,
        },
    });
    match status.state() {
        ModelState::Loading => model["load_progress"] = json!(decimal(status.load_progress)),
        ModelState::Failed => model["error"] = json!(without_directories(&status.error)),
        _ => {}
    }
    model
}

/// State of the engine in `/health`.
pub(crate) fn engine_health(stats: &v1::StatsResponse) -> Value {
    json!({
        "version": stats.version,
        "uptime_ms": stats.uptime_ms,
        "memory_budget_bytes": stats.memory_budget_bytes,
        "memory_used_bytes": stats.memory_used_bytes,
    })
}

/// State of one of several engines in `/health`.
pub(crate) fn member_health(member: &MemberView) -> Value {
    let mut engine =
        json!({"address": member.name, "state": member.state, "requests_in_flight": member.in_flight});
    if let Some(reason) = &member.reason {
        engine["reason"] = json!(reason);
    }
    engine
}

#[cfg(test)]
mod tests {
    use hanzo_engine_proto::v1::{self, ModelState};

    use super::models_of;

    #[test]
    fn adapters_are_listed_behind_their_model() {
        let adapter = v1::Adapter { name: "sql".into(), path: "/a/sql".into(), ..Default::default() };
        let status = |name: &str, adapters: Vec<v1::Adapter>| v1::ModelStats {
            status: Some(v1::ModelStatus {
                name: name.to_owned(),
                state: ModelState::Ready.into(),
                adapters,
                ..Default::default()
            }),
            ..Default::default()
        };
        let models = vec![status("b/x", vec![adapter]), status("a", Vec::new())];
        let stats = v1::StatsResponse { models, ..Default::default() };
        let models = models_of(stats, v1::ListResponse::default());
        let ids: Vec<&str> = models.iter().map(|model| model.id.as_str()).collect();
        assert_eq!(ids, ["a", "b/x", "b/x:sql"]);
        let adapter = serde_json::to_value(&models[2]).unwrap();
        assert_eq!((&adapter["parent"], &adapter["root"]), (&"b/x".into(), &"/a/sql".into()));
        assert_eq!((&adapter["state"], &adapter["owned_by"]), (&"ready".into(), &"b".into()));
        assert!(serde_json::to_value(&models[1]).unwrap().get("parent").is_none());
    }

    #[test]
    fn ready_models_come_first_and_none_comes_twice() {
        let status = |name: &str, state: ModelState| v1::ModelStats {
            status: Some(v1::ModelStatus {
                name: name.to_owned(),
                state: state.into(),
                ..Default::default()
            }),
            ..Default::default()
        };
        let stored = |name: &str| v1::StoredModel { name: name.to_owned(), ..Default::default() };
        let stats = v1::StatsResponse {
            models: vec![status("a/loading", ModelState::Loading), status("z/ready", ModelState::Ready)],
            ..Default::default()
        };
        let list = v1::ListResponse { models: vec![stored("q/pulled"), stored("z/ready"), stored("b")] };
        let models: Vec<_> =
            models_of(stats, list).into_iter().map(|m| (m.id, m.state, m.owned_by)).collect();
        let expected = [
            ("z/ready", "ready", "z"),
            ("a/loading", "loading", "a"),
            ("b", "stored", "hanzo"),
            ("q/pulled", "stored", "q"),
        ];
        assert_eq!(models, expected.map(|(id, state, owner)| (id.to_owned(), state, owner.to_owned())));
    }
}
