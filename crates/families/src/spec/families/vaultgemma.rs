//! VaultGemma: Gemma 2 without the norms of its sublayers' outputs.

use super::gemma::{GEMMA_TYPE, gemma2};
use super::*;

pub(super) const VAULT_GEMMA: Family = Family {
    title: "VaultGemma",
    hugging_face: &[ModelType {
        name: "vaultgemma",
        class: "VaultGemmaForCausalLM",
        names: &Names::GEMMA,
        windows: Windows::AllButEach(2),
        own: gemma2,
        ..GEMMA_TYPE
    }],
    gguf: &[],
    goldens: &[alone("dense/vaultgemma")],
};
