//! Mamba 2: recurrent states in all layers, without attention and MLPs.

use hanzo_engine_kernels::{StateRule, StateShape};

use super::Read;
use super::hybrids::{refuse_steps, refuse_true};
use crate::error::LoadError;
use crate::limits::{HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, VOCAB_MAX, WIDTH_MAX};
use crate::spec::{
    AttentionSpec, Config, HeadSpec, LayerSpec, MlpSpec, NormKind, NormOrder, NormSpec, StateSpec,
    TransformerSpec,
};

pub(super) const FAMILIES: &[(&str, &str, Read)] = &[("mamba2", "Mamba2ForCausalLM", mamba2)];

/// Context length if nothing bounds it: the value of llama.cpp's converter.
const CONTEXT_TOKENS: usize = 1 << 20;

/// Layers with a recurrent state and nothing else.
pub(in crate::spec) fn of_states(
    family: &str,
    sizes: [usize; 2],
    (count, state): (usize, StateSpec),
    (eps, tied): (f32, bool),
    context: usize,
) -> TransformerSpec {
    let layer = LayerSpec {
        order: NormOrder::Pre,
        attention: AttentionSpec::of_state(state),
        mlp: MlpSpec::None,
        residual_scale: 1.0,
    };
    let norm = NormSpec { kind: NormKind::Rms { from_one: false }, eps };
    TransformerSpec {
        head: HeadSpec::plain(tied),
        ..TransformerSpec::bare(family, sizes, vec![layer; count], norm, context)
    }
}

fn mamba2(config: &Config) -> Result<TransformerSpec, LoadError> {
    refuse_true(config, &["use_bias"])?;
    refuse_steps(config)?;
    if let Some(other) = config.string("hidden_act")?.filter(|&named| named != "silu") {
        return Err(config.unsupported("hidden_act", other, "convolutions through silu are known"));
    }
    let hidden = config.required("hidden_size", WIDTH_MAX)?;
    let value_heads = config.required("num_heads", HEADS_MAX)?;
    let value_dim = config.required("head_dim", HEAD_DIM_MAX)?;
    let inner = config.count("expand", WIDTH_MAX)?.unwrap_or(2).saturating_mul(hidden);
    if value_heads * value_dim != inner {
        let reason = format!("{value_heads} heads of {value_dim} for a width of {inner}");
        return Err(config.corrupt("num_heads", reason));
    }
    let shape = StateShape {
        rule: StateRule::Ssd,
        key_heads: config.count("n_groups", HEADS_MAX)?.unwrap_or(8),
        value_heads,
        key_dim: config.required("state_size", HEAD_DIM_MAX)?,
        value_dim,
        taps: config.count("conv_kernel", StateShape::TAPS_MAX)?.unwrap_or(4),
        tiled: false,
    };
    let eps = config.positive("layer_norm_epsilon")?.unwrap_or(1e-5);
    let state = StateSpec::ssd(shape, config.bool("use_conv_bias")?.unwrap_or(true), eps);
    let sizes = [config.required("vocab_size", VOCAB_MAX)?, hidden];
    let count = config.required("num_hidden_layers", LAYERS_MAX)?;
    let tied = config.bool("tie_word_embeddings")?.unwrap_or(false);
    Ok(of_states("mamba2", sizes, (count, state), (eps, tied), CONTEXT_TOKENS))
}
