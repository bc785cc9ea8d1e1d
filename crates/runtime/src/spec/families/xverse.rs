//! XVERSE: Llama by another name.

use super::*;

pub(super) const XVERSE: Family = Family {
    title: "XVERSE",
    hugging_face: &[ModelType { name: "xverse", class: "XverseForCausalLM", ..ModelType::DENSE }],
    gguf: &[Architecture {
        name: "xverse",
        permuted: true,
        rope: RopeKind::Interleaved,
        ..Architecture::DENSE
    }],
    goldens: &["dense/xverse"],
    ..Family::NONE
};
