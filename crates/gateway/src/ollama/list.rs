//! `GET /api/tags`, the available models; `/api/ps`, the loaded ones; and `/api/version`.

use std::{collections::HashMap, sync::Arc};

use axum::{Extension, Json, extract::State};
use hanzo_engine_proto::v1::{self, ModelState};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{error::OllamaError, names::listed, time::of_unix_ms};
use crate::{app::App, asker::Asker};

/// Expiry of a model that never expires; Ollama's API has no other notation.
const NEVER_UNIX_MS: i64 = 4_102_444_800_000; // year 2100

/// Version of Ollama's API that is implemented; clients derive features from it.
const API_VERSION: &str = "0.12.6";

/// Handler of `GET /api/version`.
pub(crate) async fn version() -> Json<Value> {
    Json(json!({"version": API_VERSION, "hanzo_engine": env!("CARGO_PKG_VERSION")}))
}

/// `GET /api/tags`: stored models, models loaded from elsewhere, and the users' aliases.
pub(crate) async fn tags(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
) -> Result<Json<Value>, OllamaError> {
    let (mut one, mut two, mut three) = (app.engine(&asker), app.engine(&asker), app.engine(&asker));
    let (list, stats, aliases) = tokio::try_join!(one.list(), two.stats(), three.aliases())?;
    let mut models = list.models;
    let others = stats.models.into_iter().filter_map(|model| model.status).map(unstored);
    let known = |models: &[v1::StoredModel], name: &str| models.iter().any(|model| model.name == name);
    for other in others {
        if !known(&models, &other.name) {
            models.push(other);
        }
    }
    let own = aliases.into_iter().filter(|alias| !alias.builtin);
    for alias in own {
        if let Some(model) = models.iter().find(|model| model.name.eq_ignore_ascii_case(&alias.target))
            && !known(&models, &alias.alias)
        {
            models.push(v1::StoredModel { name: alias.alias, ..model.clone() });
        }
    }
    // Newest first.
    models.sort_by(|a, b| (b.modified_at_unix_ms, &a.name).cmp(&(a.modified_at_unix_ms, &b.name)));
    let shown = |model: &v1::StoredModel| {
        let name = listed(&model.name);
        json!({
            "name": name,
            "model": name,
            "modified_at": of_unix_ms(model.modified_at_unix_ms),
            "size": model.size_bytes,
            "digest": digest(model),
            "details": details(model),
        })
    };
    Ok(Json(json!({"models": models.iter().map(shown).collect::<Vec<_>>()})))
}

/// Handler of `GET /api/ps`.
pub(crate) async fn ps(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
) -> Result<Json<Value>, OllamaError> {
    let (mut one, mut other) = (app.engine(&asker), app.engine(&asker));
    let (list, stats) = tokio::try_join!(one.list(), other.stats())?;
    let stored: HashMap<String, v1::StoredModel> =
        list.models.into_iter().map(|model| (model.name.clone(), model)).collect();
    let here = |state| matches!(state, ModelState::Ready | ModelState::Draining);
    let loaded = stats.models.into_iter().filter_map(|model| model.status).filter(|s| here(s.state()));
    let shown = |status: v1::ModelStatus| {
        let size = status.weights_bytes + status.kv_bytes + status.scratch_bytes;
        let on_cpu = status.device.starts_with("cpu");
        let (name, context) = (listed(&status.name), status.context_tokens_max);
        let leaves = if status.expires_at_unix_ms > 0 { status.expires_at_unix_ms } else { NEVER_UNIX_MS };
        let model = stored.get(&status.name).cloned().unwrap_or_else(|| unstored(status));
        json!({
            "name": name,
            "model": name,
            "size": size,
            "digest": digest(&model),
            "details": details(&model),
            "expires_at": of_unix_ms(leaves),
            "size_vram": if on_cpu { 0 } else { size },
            "context_length": context,
        })
    };
    Ok(Json(json!({"models": loaded.map(shown).collect::<Vec<_>>()})))
}

/// Description of a loaded model that is not in the store.
fn unstored(status: v1::ModelStatus) -> v1::StoredModel {
    v1::StoredModel {
        name: status.name,
        quantization: status.quantization,
        architecture: status.architecture,
        parameters: status.parameters,
        size_bytes: status.weights_bytes,
        modified_at_unix_ms: status.loaded_at_unix_ms,
        ..v1::StoredModel::default()
    }
}

/// Object `details` of a model.
pub(super) fn details(model: &v1::StoredModel) -> Value {
    json!({
        "parent_model": "",
        "format": model.format,
        "family": model.architecture,
        "families": [model.architecture],
        "parameter_size": parameter_size(model.parameters),
        "quantization_level": model.quantization,
    })
}

/// Number of parameters in human notation: `751.63M`, `4.0B`.
fn parameter_size(parameters: u64) -> String {
    let number = parameters as f64;
    match parameters {
        0 => String::new(),
        1_000_000_000.. => format!("{:.1}B", number / 1e9),
        1_000_000.. => format!("{:.2}M", number / 1e6),
        1_000.. => format!("{:.2}K", number / 1e3),
        _ => parameters.to_string(),
    }
}

/// Digest that identifies a version of a model: 64 hexadecimal digits. It is the manifest's digest if the
/// source has one.
pub(super) fn digest(model: &v1::StoredModel) -> String {
    let revision = model.revision.strip_prefix("sha256:").unwrap_or(&model.revision);
    if revision.len() == 64 && revision.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return revision.to_ascii_lowercase();
    }
    let mut hash = Sha256::new();
    for text in [&model.reference, &model.revision, &model.source, &model.path, &model.quantization] {
        hash.update(text.as_bytes());
        hash.update([0]);
    }
    hash.update(model.size_bytes.to_le_bytes());
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_as_people_do() {
        for (parameters, text) in
            [(0, ""), (999, "999"), (2_500, "2.50K"), (751_632_384, "751.63M"), (8_030_261_248, "8.0B")]
        {
            assert_eq!(parameter_size(parameters), text);
        }
    }

    #[test]
    fn a_digest_is_the_manifests_or_of_what_is_known() {
        let of = |revision: &str, size_bytes| {
            digest(&v1::StoredModel { revision: revision.to_owned(), size_bytes, ..Default::default() })
        };
        assert_eq!(of(&format!("sha256:{}", "AB".repeat(32)), 1), "ab".repeat(32));
        assert!(
            of("main", 1).len() == 64 && of("main", 1) == of("main", 1) && of("main", 1) != of("main", 2)
        );
    }
}
