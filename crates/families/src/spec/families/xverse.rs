//! XVERSE: Llama by another name.

use super::*;

pub(super) const XVERSE: Family = Family {
    title: "XVERSE",
    hugging_face: &[ModelType { name: "xverse", class: "XverseForCausalLM", ..ModelType::DENSE }],
    gguf: &[Architecture { name: "xverse", ..Architecture::PERMUTED }],
    goldens: &[both("dense/xverse")],
};
