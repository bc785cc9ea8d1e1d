//! Vision transformer of SigLIP and CLIP, which Idefics3, SmolVLM, Gemma 3 and LLaVA use between patches and rows.
//! CLIP's and SigLIP's text sides have the same layers (`crate::encoder`).

use hanzo_engine_ops::{Activation, HeadShape};

use super::spec::COLORS;
use crate::error::LoadError;
use crate::limits::{HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, PATCHES_MAX, WIDTH_MAX};
use crate::spec::{
    AttentionSpec, Config, DenseSpec, LayerSpec, Mask, MlpSpec, Names, NormKind, NormOrder, NormSpec,
    PositionTable, TransformerSpec,
};

/// Tensor names, after the model's prefix for the tower.
pub(crate) const NAMES: Names = Names {
    token_embedding: "no_tokens",
    position_embedding: "embeddings.position_embedding",
    embedding_norm: "pre_layrnorm",
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

/// Defaults for settings that `vision_config` leaves out.
pub(crate) struct Usual {
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    pub(crate) layers: usize,
    pub(crate) ffn: usize,
    pub(crate) patch: usize,
    pub(crate) image: usize,
    pub(crate) activation: &'static str,
    pub(crate) eps: f32,
}

/// Defaults of Idefics3 and SmolVLM.
pub(super) const IDEFICS3: Usual = Usual {
    hidden: 1152,
    heads: 16,
    layers: 12,
    ffn: 3072,
    patch: 32,
    image: 224,
    activation: "gelu_pytorch_tanh",
    eps: 1e-6,
};
/// Defaults of Idefics2.
pub(super) const IDEFICS2: Usual = Usual { hidden: 768, heads: 12, ..IDEFICS3 };
/// Defaults of SigLIP.
pub(crate) const SIGLIP: Usual = Usual { hidden: 768, heads: 12, patch: 16, ..IDEFICS3 };
/// Defaults of CLIP.
pub(crate) const CLIP: Usual =
    Usual { hidden: 768, heads: 12, activation: "quick_gelu", eps: 1e-5, ..IDEFICS3 };

/// Vision transformer: sizes in pixels, and layers.
pub(crate) struct Vit {
    pub(super) patch: usize,
    pub(super) image: usize,
    /// Layers without positions, which each family counts on its own.
    pub(crate) layers: TransformerSpec,
}

/// Reads `vision_config`.
pub(crate) fn read(vision: &Config, usual: &Usual) -> Result<Vit, LoadError> {
    let whole = |key: &str, max, usual| Ok::<_, LoadError>(vision.count(key, max)?.unwrap_or(usual));
    let hidden = whole("hidden_size", WIDTH_MAX, usual.hidden)?;
    let heads = whole("num_attention_heads", HEADS_MAX, usual.heads)?;
    if !hidden.is_multiple_of(heads) || hidden / heads > HEAD_DIM_MAX {
        let reason = format!("hidden states of {hidden} do not split into {heads} heads");
        return Err(vision.corrupt("num_attention_heads", reason));
    }
    if whole("num_channels", WIDTH_MAX, COLORS)? != COLORS {
        return Err(vision.corrupt("num_channels", "pictures have three colours"));
    }
    let patch = whole("patch_size", WIDTH_MAX, usual.patch)?;
    let image = whole("image_size", WIDTH_MAX, usual.image)?;
    let activation = match vision.string("hidden_act")?.unwrap_or(usual.activation) {
        "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast" => Activation::GeluTanh,
        "gelu" => Activation::GeluErf,
        "quick_gelu" => Activation::QuickGelu,
        other => {
            let reason = "gelu, gelu_pytorch_tanh and quick_gelu are known";
            return Err(vision.unsupported("hidden_act", other, reason));
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
        ffn: whole("intermediate_size", WIDTH_MAX / 2, usual.ffn)?,
        activation,
        gated: false,
        up_bias: true,
        down_bias: true,
    };
    let layer = LayerSpec { order: NormOrder::Pre, attention, mlp: MlpSpec::Dense(mlp), residual_scale: 1.0 };
    let norm = NormSpec {
        kind: NormKind::Layer { bias: true },
        eps: vision.positive("layer_norm_eps")?.unwrap_or(usual.eps),
    };
    let count = whole("num_hidden_layers", LAYERS_MAX, usual.layers)?;
    // A tower has no tokens: no row uses its vocabulary.
    let layers = TransformerSpec::bare("siglip", [1, hidden], vec![layer; count], norm, PATCHES_MAX);
    Ok(Vit { patch, image, layers })
}

impl Vit {
    /// Adds learned positions for `rows` rows: the patches of a square, with a class token if there is one. A
    /// square goes through the layers at once.
    pub(super) fn placed(self, rows: usize) -> TransformerSpec {
        let positions = Some(PositionTable { rows, offset: 0 });
        TransformerSpec { positions, context_tokens_max: rows as u32, ..self.layers }
    }
}
