//! `GET /info`: the model and the limits, null where this server has no such thing.

use std::sync::Arc;

use axum::{Json, extract::State};
use hanzo_engine_proto::v1::{Capability, Embedder};
use serde_json::{Map, Value, json};

use crate::{app::App, select::sole, tei::TeiError};

/// The route's handler: of the model that an embedding request without a name would go to, else a reranking one,
/// else a classifying one.
pub(crate) async fn handle(State(app): State<Arc<App>>) -> Result<Json<Value>, TeiError> {
    const KINDS: [Capability; 4] =
        [Capability::Embed, Capability::Rerank, Capability::Classify, Capability::EmbedSparse];
    let stats = sole(&app, &KINDS).await?;
    let status = stats.status.unwrap_or_default();
    let embedder = status.embedder.clone().unwrap_or_default();
    let some = |n: u32| (n > 0).then_some(n);
    let kind = KINDS.into_iter().find(|kind| status.capabilities().any(|c| c == *kind));
    let model_type = match kind {
        Some(Capability::Rerank) => json!({"reranker": labels(&embedder)}),
        Some(Capability::Classify) => json!({"classifier": labels(&embedder)}),
        Some(Capability::EmbedSparse) => json!({"embedding": {"pooling": "splade"}}),
        _ => json!({"embedding": {"pooling": embedder.pooling}}),
    };
    Ok(Json(json!({
        "model_id": status.name,
        "model_sha": null,
        "model_dtype": dtype(&status.quantization),
        "model_type": model_type,
        "max_concurrent_requests": some(stats.queue_capacity),
        "max_input_length": some(embedder.input_tokens_max).or(some(status.context_tokens_max)),
        "max_batch_tokens": null,
        "max_batch_requests": null,
        "max_client_batch_size": app.config.embedding_inputs_max,
        "auto_truncate": false,
        "tokenization_workers": null,
        "version": env!("CARGO_PKG_VERSION"),
        "sha": null,
        "docker_label": null,
    })))
}

fn labels(embedder: &Embedder) -> Value {
    let pairs = || embedder.labels.iter().enumerate();
    let id2label: Map<String, Value> = pairs().map(|(i, l)| (i.to_string(), json!(l))).collect();
    let label2id: Map<String, Value> = pairs().map(|(i, l)| (l.clone(), json!(i))).collect();
    json!({"id2label": id2label, "label2id": label2id})
}

/// TEI's word for how the weights are stored; the engine's own where TEI has none.
fn dtype(quantization: &str) -> Option<String> {
    match quantization.to_ascii_lowercase().as_str() {
        "" => None,
        "f32" => Some("float32".to_owned()),
        "f16" => Some("float16".to_owned()),
        "bf16" => Some("bfloat16".to_owned()),
        _ => Some(quantization.to_owned()),
    }
}
