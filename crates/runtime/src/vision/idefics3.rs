//! Idefics3 and SmolVLM: SigLIP's layers over frames of one size, and one matrix behind squares of patches.

use hanzo_engine_kernels::{Activation, HeadShape};

use super::spec::{COLORS, Family, Learned, TowerSpec};
use crate::error::LoadError;
use crate::limits::{HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, PATCHES_MAX, VOCAB_MAX, WIDTH_MAX};
use crate::spec::{
    AttentionSpec, Config, DenseSpec, LayerSpec, Mask, MlpSpec, Names, NormKind, NormOrder, NormSpec,
    PositionTable, TransformerSpec,
};

/// SigLIP's tensors, as Idefics3 and SmolVLM call them.
pub(super) const NAMES: Names = Names {
    prefix: "vision_model.",
    token_embedding: "no_tokens",
    position_embedding: "embeddings.position_embedding",
    final_norm: "post_layernorm",
    layer: "encoder.layers.",
    query: "self_attn.q_proj",
    key: "self_attn.k_proj",
    value: "self_attn.v_proj",
    attention_output: "self_attn.out_proj",
    attention_norm: "layer_norm1",
    up: "mlp.fc1",
    down: "mlp.fc2",
    mlp_norm: "layer_norm2",
    ..Names::NONE
};

/// `config` is the whole model's, frames have sides of so many pixels, and the text model's rows so many elements.
pub(super) fn spec(config: &Config, frame: usize, text_hidden: usize) -> Result<TowerSpec, LoadError> {
    let vision = config.object("vision_config")?.ok_or_else(|| config.missing("vision_config"))?;
    let whole = |key: &str, max, usual| Ok::<_, LoadError>(vision.count(key, max)?.unwrap_or(usual));
    let hidden = whole("hidden_size", WIDTH_MAX, 1152)?;
    let heads = whole("num_attention_heads", HEADS_MAX, 16)?;
    if !hidden.is_multiple_of(heads) || hidden / heads > HEAD_DIM_MAX {
        let reason = format!("hidden states of {hidden} do not split into {heads} heads");
        return Err(vision.corrupt("num_attention_heads", reason));
    }
    if whole("num_channels", WIDTH_MAX, COLORS)? != COLORS {
        return Err(vision.corrupt("num_channels", "pictures have three colours"));
    }
    let patch = whole("patch_size", WIDTH_MAX, 32)?;
    let learned_side = whole("image_size", WIDTH_MAX, 224)? / patch;
    let joined = config.count("scale_factor", WIDTH_MAX)?.unwrap_or(2);
    let side = frame / patch;
    if learned_side == 0 || side == 0 || !side.is_multiple_of(joined) || side * side > PATCHES_MAX {
        let reason = format!(
            "frames of {frame} pixels in patches of {patch}, {joined} x {joined} of them a row, are no whole rows or more \
             than {PATCHES_MAX} patches"
        );
        return Err(vision.corrupt("patch_size", reason));
    }
    let activation = match vision.string("hidden_act")?.unwrap_or("gelu_pytorch_tanh") {
        "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast" => Activation::GeluTanh,
        "gelu" => Activation::GeluErf,
        other => {
            return Err(vision.unsupported("hidden_act", other, "gelu and gelu_pytorch_tanh are known"));
        }
    };
    let attention = AttentionSpec {
        mask: Mask::Whole { reach: None },
        qkv_bias: true,
        output_bias: true,
        rope: None,
        ..AttentionSpec::causal(HeadShape { heads, kv_heads: heads, head_dim: hidden / heads })
    };
    let mlp = DenseSpec {
        ffn: whole("intermediate_size", WIDTH_MAX / 2, 3072)?,
        activation,
        gated: false,
        up_bias: true,
        down_bias: true,
    };
    let layer = LayerSpec { order: NormOrder::Pre, attention, mlp: MlpSpec::Dense(mlp), residual_scale: 1.0 };
    let norm = NormSpec {
        kind: NormKind::Layer { bias: true },
        eps: vision.positive("layer_norm_eps")?.unwrap_or(1e-6),
    };
    let count = whole("num_hidden_layers", LAYERS_MAX, 12)?;
    let patches = side * side;
    // A tower has no tokens: its vocabulary is one that no row is of.
    let layers = TransformerSpec::bare("siglip", [1, hidden], vec![layer; count], norm, patches);
    let layers = TransformerSpec { positions: Some(PositionTable { rows: patches, offset: 0 }), ..layers };
    let tower = TowerSpec {
        family: Family::Idefics3,
        layers,
        patch,
        twofold: false,
        patch_bias: true,
        joined,
        frame: Some(frame / patch * patch),
        patches_max: patches,
        learned: Some(Learned { side: learned_side, between: false }),
        windows: None,
        curved: false,
        deep: Vec::new(),
        axes: None,
        text_hidden,
        image_token: config.whole("image_token_id", VOCAB_MAX)?.unwrap_or(128_257) as u32,
    };
    tower.checked(&vision)
}
