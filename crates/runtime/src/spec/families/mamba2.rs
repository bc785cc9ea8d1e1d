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
        read: from_settings,
        ..ModelType::OWN
    }],
    gguf: &[Architecture {
        name: "mamba2",
        names: &Names::GGUF_MAMBA,
        read: |_, keys| {
            let sizes = [keys.vocab()?, keys.required("embedding_length", WIDTH_MAX)?];
            let count = keys.required("block_count", LAYERS_MAX)?;
            let context = keys.required("context_length", CONTEXT_TOKENS_MAX)?;
            let (eps, tied) = (keys.epsilon()?, !keys.has(Part::Head.weight()));
            Ok(of_states(sizes, (count, metadata::mamba(keys, eps, 0)?), (eps, tied), context))
        },
        ..Architecture::HYBRID
    }],
    goldens: &[both("states/mamba2")],
};

/// Layers with a recurrent state and nothing else.
fn of_states(
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
        ..TransformerSpec::bare("mamba2", sizes, vec![layer; count], norm, context)
    }
}

fn from_settings(_: &ModelType, config: &Config) -> Result<TransformerSpec, LoadError> {
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
    Ok(of_states(sizes, (count, state), (eps, tied), CONTEXT_TOKENS))
}
