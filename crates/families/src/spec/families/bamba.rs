//! Bamba: few layers with attention among Mamba 2's states. The converter to GGUF orders the rows of queries and keys as
//! if whole heads were rotated, so there are no GGUF files.

use super::*;

/// The transformers library's Bamba and FalconH1 classes.
pub(super) const NAMES: Names = Names {
    final_norm: "final_layernorm",
    state: StateNames::MAMBA,
    gate: "feed_forward.gate_proj",
    up: "feed_forward.up_proj",
    down: "feed_forward.down_proj",
    mlp_norm: "pre_ff_layernorm",
    ..Names::HUGGING_FACE
};

pub(super) const BAMBA: Family = Family {
    title: "Bamba",
    hugging_face: &[ModelType {
        name: "bamba",
        class: "BambaForCausalLM",
        names: &NAMES,
        spec: Some(spec),
        settle: settle_mamba,
        eps: ("rms_norm_eps", 1e-5),
        turned: 0.5,
        ..ModelType::OWN
    }],
    gguf: &[],
    goldens: &[alone("states/bamba")],
};

fn spec(base: &Base<'_>) -> Result<TransformerSpec, LoadError> {
    let heads = base.heads()?;
    let attends = match base.file {
        SettingsFile::HuggingFace(config) => layers_in(config, "attn_layer_indices", base.layers)?,
        SettingsFile::Gguf(_) => None,
    };
    let recurs = attends.map_or(vec![true; base.layers], |of| of.iter().map(|attends| !attends).collect());
    let mlp = MlpSpec::gated(base.ffn(true)?, base.activation);
    let rope = base.rope(base.turned(heads.head_dim)?)?;
    base.hybrid(rope, &recurs, MAMBA.ssd(base, 0)?, base.attention(heads)?, |_| mlp.clone())
}
