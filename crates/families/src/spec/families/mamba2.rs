//! Mamba 2: recurrent states in all layers, without attention and MLPs.

use super::nemotron_h;
use super::*;

/// Context length if nothing bounds it: the value of llama.cpp's converter.
const CONTEXT_TOKENS: usize = 1 << 20;

pub(super) const MAMBA2: Family = Family {
    title: "Mamba 2, Codestral Mamba",
    hugging_face: &[ModelType {
        name: "mamba2",
        class: "Mamba2ForCausalLM",
        names: &Names { halves_apart: false, ..nemotron_h::NAMES },
        spec: Some(spec),
        eps: ("layer_norm_epsilon", 1e-5),
        settle,
        ..ModelType::OWN
    }],
    gguf: &[Architecture { name: "mamba2", names: &Names::GGUF_MAMBA, ..Architecture::HYBRID }],
    goldens: &[both("states/mamba2")],
};

/// Layers with a recurrent state and nothing else.
fn spec(base: &Base<'_>) -> Result<TransformerSpec, LoadError> {
    let state = MAMBA_ALONE.ssd(base, 0)?;
    base.spec(None, |_| (AttentionSpec::of_state(state), MlpSpec::None))
}

fn settle(config: &mut Config) -> Result<(), LoadError> {
    refuse_true(config, &["use_bias"])?;
    refuse_steps(config)?;
    refuse_unless_named(config, "hidden_act", "silu")?;
    config.required("head_dim", HEAD_DIM_MAX)?;
    config.set("max_position_embeddings", CONTEXT_TOKENS.into());
    Ok(())
}
