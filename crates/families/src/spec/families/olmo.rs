//! OLMo: layer norms without weights.

use super::*;

pub(super) const OLMO: Family = Family {
    title: "OLMo",
    hugging_face: &[ModelType {
        name: "olmo",
        class: "OlmoForCausalLM",
        norm: NormKind::LayerUnit,
        // Its class has a fixed value.
        eps: ("", 1e-5),
        refused: &["clip_qkv", "mlp_bias"],
        ..ModelType::DENSE
    }],
    gguf: &[Architecture { name: "olmo", ..Architecture::PERMUTED }],
    goldens: &[both("dense/olmo")],
};
