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
        read: from_settings,
        eps: ("rms_norm_eps", 1e-5),
        turned: 0.5,
        ..ModelType::OWN
    }],
    gguf: &[],
    goldens: &[alone("states/bamba")],
};

fn from_settings(of: &ModelType, config: &Config) -> Result<TransformerSpec, LoadError> {
    let base = Base::read(of, config)?;
    let heads = base.heads()?;
    let attends = layers_in(config, "attn_layer_indices", base.layers)?;
    let attends = attends.unwrap_or_else(|| vec![false; base.layers]);
    let mlp = MlpSpec::gated(config.required("intermediate_size", WIDTH_MAX)?, base.activation);
    let (rope, _) = base.rope(base.turned(heads.head_dim)?)?;
    let state = mamba(&base, base.eps()?)?;
    base.spec(rope, |layer| {
        let attention = match attends[layer] {
            true => AttentionSpec::causal(heads),
            false => AttentionSpec::of_state(state),
        };
        (attention, mlp.clone())
    })
}
