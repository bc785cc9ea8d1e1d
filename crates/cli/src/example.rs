//! Example request that `serve` prints for a model, for its most useful capability.

use hanzo_engine_proto::v1::{Capability, ModelStatus};
use serde_json::{Value, json};

/// Route below `/v1` and a body for it, which has no apostrophe. None: the model cannot do anything yet.
pub(crate) fn example(status: &ModelStatus) -> Option<(&'static str, Value)> {
    let model = &status.name;
    let request = |capability| match capability {
        Capability::Chat => {
            let messages = json!([{"role": "user", "content": "What is the capital of France?"}]);
            Some(("chat/completions", json!({"model": model, "messages": messages})))
        }
        Capability::Completion => {
            Some(("completions", json!({"model": model, "prompt": "Once upon a time", "max_tokens": 64})))
        }
        Capability::Rerank => {
            let documents = ["Paris is a city.", "A fox is an animal."];
            Some(("rerank", json!({"model": model, "query": "Where is Paris?", "documents": documents})))
        }
        Capability::Classify => Some(("classify", json!({"model": model, "input": "I like it."}))),
        // A model for sparse embeddings makes dense vectors too.
        Capability::Embed => Some(("embeddings", json!({"model": model, "input": "Once upon a time"}))),
        Capability::Unspecified
        | Capability::Vision
        | Capability::Audio
        | Capability::Image
        | Capability::EmbedSparse
        | Capability::Infill
        | Capability::Reasoning
        | Capability::Transcribe
        | Capability::Speak
        | Capability::Tools => None,
    };
    let first = [
        Capability::Chat,
        Capability::Completion,
        Capability::Rerank,
        Capability::Classify,
        Capability::Embed,
    ];
    let can = |wanted: &Capability| status.capabilities().any(|capability| capability == *wanted);
    first.into_iter().find(can).and_then(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_offered_what_it_can_do() {
        use Capability as C;
        for (can, route) in [
            (&[C::Completion, C::Chat, C::Embed][..], Some("chat/completions")),
            (&[C::Completion, C::Embed], Some("completions")),
            (&[C::Embed], Some("embeddings")),
            (&[C::Embed, C::EmbedSparse], Some("embeddings")),
            (&[C::Rerank, C::Classify], Some("rerank")),
            (&[C::Classify], Some("classify")),
            (&[], None),
        ] {
            let capabilities = can.iter().map(|capability| i32::from(*capability)).collect();
            let status = ModelStatus { name: "m".to_owned(), capabilities, ..ModelStatus::default() };
            let found = example(&status);
            assert_eq!(found.as_ref().map(|(route, _)| *route), route, "{can:?}");
            assert!(found.is_none_or(|(_, body)| body["model"] == "m" && !body.to_string().contains('\'')));
        }
    }
}
