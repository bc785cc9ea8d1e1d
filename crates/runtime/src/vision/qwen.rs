//! Qwen2-VL, Qwen2.5-VL and Qwen3-VL: frames of any size, rotary embeddings by row and column, and an MLP over
//! squares of patches. Most layers of Qwen2.5-VL attend within windows. Qwen3-VL also makes rows from intermediate
//! layers (DeepStack).

use hanzo_engine_ops::{Activation, HeadShape, RopeAxes, RopeKind};
use serde_json::Value;

use super::spec::{COLORS, Family, LearnedPositions, Reads, TextShape, TowerSpec, Windows};
use crate::error::LoadError;
use crate::limits::{HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, PATCHES_MAX, VOCAB_MAX, WIDTH_MAX};
use crate::spec::{
    AttentionSpec, AxesSpec, Config, DenseSpec, LayerSpec, Mask, MlpSpec, Names, NormKind, NormOrder,
    NormSpec, RopeScaling, RopeSpec, TransformerSpec,
};

/// Tensor names common to all three.
const NAMES: Names = Names {
    prefix: "visual.",
    token_embedding: "no_tokens",
    final_norm: "merger.ln_q",
    layer: "blocks.",
    query: "attn.query",
    key: "attn.key",
    value: "attn.value",
    qkv: Some("attn.qkv"),
    // llama.cpp's files of the first two have them apart.
    qkv_or_apart: true,
    attention_output: "attn.proj",
    attention_norm: "norm1",
    gate: "mlp.gate_proj",
    up: "mlp.fc1",
    down: "mlp.fc2",
    mlp_norm: "norm2",
    ..Names::NONE
};
const NAMES_2_5: Names = Names { up: "mlp.up_proj", down: "mlp.down_proj", ..NAMES };
const NAMES_3: Names =
    Names { final_norm: "merger.norm", up: "mlp.linear_fc1", down: "mlp.linear_fc2", ..NAMES };

/// Version of the tower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    Two,
    TwoAndHalf,
    Three,
}

fn version(model_type: &str) -> Option<Version> {
    match model_type {
        "qwen2_vl" => Some(Version::Two),
        "qwen2_5_vl" => Some(Version::TwoAndHalf),
        "qwen3_vl" | "qwen3_vl_moe" => Some(Version::Three),
        _ => None,
    }
}

/// Whether the model type is one of these.
pub(super) fn knows(model_type: &str) -> bool {
    version(model_type).is_some()
}

/// Tensor names of a tower.
pub(super) fn names(spec: &TowerSpec) -> &'static Names {
    names_of(&spec.layers.architecture)
}

/// Tensor names of a model type.
pub(super) fn names_of(model_type: &str) -> &'static Names {
    match model_type {
        "qwen2_vl" => &NAMES,
        "qwen2_5_vl" => &NAMES_2_5,
        _ => &NAMES_3,
    }
}

/// Names, without `visual.`, of the projector's parts: the norm (over squares, if it has one) and the two matrices.
pub(super) fn joiner(spec: &TowerSpec, deep: Option<usize>) -> [String; 3] {
    let (stem, [norm, up, down]) = match (spec.layers.architecture.as_str(), deep) {
        (_, Some(index)) => (format!("deepstack_merger_list.{index}"), ["norm", "linear_fc1", "linear_fc2"]),
        ("qwen2_vl" | "qwen2_5_vl", None) => ("merger".to_owned(), ["ln_q", "mlp.0", "mlp.2"]),
        (_, None) => ("merger".to_owned(), ["norm", "linear_fc1", "linear_fc2"]),
    };
    [norm, up, down].map(|name| format!("{stem}.{name}"))
}

/// Describes the tower. `config` is the whole model's.
pub(super) fn spec(
    config: &Config,
    model_type: &str,
    TextShape { hidden: text_hidden, pairs: text_pairs }: TextShape,
) -> Result<TowerSpec, LoadError> {
    let version = version(model_type).expect("its caller asks for these alone");
    let vision = config.object("vision_config")?.ok_or_else(|| config.missing("vision_config"))?;
    let whole = |key: &str, max, usual| Ok::<_, LoadError>(vision.count(key, max)?.unwrap_or(usual));
    let three = version == Version::Three;
    let hidden = match version {
        Version::Two => whole("embed_dim", WIDTH_MAX, 1280)?,
        Version::TwoAndHalf => whole("hidden_size", WIDTH_MAX, 3584)?,
        Version::Three => whole("hidden_size", WIDTH_MAX, 1152)?,
    };
    let heads = whole("num_heads", HEADS_MAX, 16)?;
    let head_dim = hidden / heads;
    if !hidden.is_multiple_of(heads) || head_dim > HEAD_DIM_MAX || !head_dim.is_multiple_of(4) {
        let reason = format!("hidden states of {hidden} do not split into {heads} heads of quarters");
        return Err(vision.corrupt("num_heads", reason));
    }
    if whole("in_channels", WIDTH_MAX, COLORS)? != COLORS {
        return Err(vision.corrupt("in_channels", "pictures have three colours"));
    }
    if whole("temporal_patch_size", WIDTH_MAX, 2)? != 2 {
        return Err(vision.corrupt("temporal_patch_size", "only patches of two frames are known"));
    }
    let given = match version {
        Version::Two => whole("hidden_size", WIDTH_MAX, 3584)?,
        _ => whole("out_hidden_size", WIDTH_MAX, 3584)?,
    };
    if given != text_hidden {
        let reason = format!("rows of {given} elements, and the text model's have {text_hidden}");
        return Err(vision.corrupt("out_hidden_size", reason));
    }
    let patch = whole("patch_size", WIDTH_MAX, if three { 16 } else { 14 })?;
    let joined = whole("spatial_merge_size", WIDTH_MAX, 2)?;
    if joined.saturating_mul(patch) > WIDTH_MAX || joined > 64 {
        return Err(vision.corrupt("spatial_merge_size", format!("{joined} patches of {patch} pixels")));
    }
    let count = whole("depth", LAYERS_MAX, if three { 27 } else { 32 })?;
    let windows = match version {
        Version::TwoAndHalf => Some(windows(&vision, joined * patch, count)?),
        _ => None,
    };
    let learned = if three { Some(learned(&vision)?) } else { None };
    let mlp = mlp(&vision, version, hidden)?;
    // One name for models that differ in the text model only.
    let name = if three { "qwen3_vl" } else { model_type };
    let mut layers = layers(name, [hidden, heads, count], mlp);
    layers.ropes = vec![rope_of_places(head_dim, rope_base(&vision)?)];
    let square = hidden * joined * joined;
    let tower = TowerSpec {
        patch,
        twofold: true,
        patch_bias: three,
        joined,
        learned,
        windows,
        reads: Reads { normed: true, inner: square, bias: true, ..Reads::default() },
        deep: match three {
            true => layers_of(&vision, "deepstack_visual_indexes", &[8, 16, 24], count)?,
            false => Vec::new(),
        },
        axes: Some(text_axes(config, three, text_pairs)?),
        image_token: config.whole("image_token_id", VOCAB_MAX)?.unwrap_or(151_655) as u32,
        ..TowerSpec::bare(Family::Qwen, layers, text_hidden)
    };
    tower.checked(&vision)
}

/// Some of the tower's `count` layers, ascending.
fn layers_of(vision: &Config, key: &str, usual: &[usize], count: usize) -> Result<Vec<usize>, LoadError> {
    let Some(value) = vision.get(key) else { return Ok(usual.to_vec()) };
    let number = |value: &Value| value.as_u64().map(|layer| layer as usize).filter(|&at| at < count);
    let list = value.as_array().and_then(|list| list.iter().map(number).collect::<Option<Vec<_>>>());
    let list = list.filter(|list| list.is_sorted_by(|a, b| a < b));
    list.ok_or_else(|| vision.corrupt(key, format!("expected layers below {count}, ascending")))
}

/// Windows of Qwen2.5-VL, in squares of `square` pixels a side, and the layers of `count` without them.
fn windows(vision: &Config, square: usize, count: usize) -> Result<Windows, LoadError> {
    let side = vision.count("window_size", WIDTH_MAX)?.unwrap_or(112) / square;
    if side == 0 {
        return Err(vision.corrupt("window_size", "no window holds a row"));
    }
    let whole = layers_of(vision, "fullatt_block_indexes", &[7, 15, 23, 31], count)?;
    Ok(Windows { side, whole })
}

/// Learned positions of Qwen3-VL.
fn learned(vision: &Config) -> Result<LearnedPositions, LoadError> {
    let positions = vision.count("num_position_embeddings", WIDTH_MAX)?.unwrap_or(2304);
    let side = positions.isqrt();
    if side * side != positions {
        let reason = format!("{positions} positions are no square");
        return Err(vision.corrupt("num_position_embeddings", reason));
    }
    Ok(LearnedPositions { side, between: true })
}

/// MLP of each layer.
fn mlp(vision: &Config, version: Version, hidden: usize) -> Result<DenseSpec, LoadError> {
    let whole = |key: &str, max, usual| Ok::<_, LoadError>(vision.count(key, max)?.unwrap_or(usual));
    let ffn = match version {
        Version::Two => hidden * whole("mlp_ratio", 64, 4)?,
        Version::TwoAndHalf => whole("intermediate_size", WIDTH_MAX / 2, 3420)?,
        Version::Three => whole("intermediate_size", WIDTH_MAX / 2, 4304)?,
    };
    let usual = match version {
        Version::Two => "quick_gelu",
        Version::TwoAndHalf => "silu",
        Version::Three => "gelu_pytorch_tanh",
    };
    let activation = match vision.string("hidden_act")?.unwrap_or(usual) {
        "quick_gelu" => Activation::QuickGelu,
        "silu" | "swish" => Activation::Silu,
        "gelu" => Activation::GeluErf,
        "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast" => Activation::GeluTanh,
        other => {
            let reason = "quick_gelu, silu, gelu and gelu_pytorch_tanh are known";
            return Err(vision.unsupported("hidden_act", other, reason));
        }
    };
    Ok(DenseSpec { ffn, activation, gated: version == Version::TwoAndHalf, up_bias: true, down_bias: true })
}

/// Layers with mutual attention. The version with gated MLPs has RMS norms.
fn layers(name: &str, [hidden, heads, count]: [usize; 3], mlp: DenseSpec) -> TransformerSpec {
    let layer = LayerSpec {
        order: NormOrder::Pre,
        attention: AttentionSpec {
            mask: Mask::Whole { reach: None },
            qkv_bias: true,
            output_bias: true,
            ..AttentionSpec::causal(HeadShape { heads, kv_heads: heads, head_dim: hidden / heads })
        },
        mlp: MlpSpec::Dense(mlp),
        residual_scale: 1.0,
    };
    let kind = match mlp.gated {
        true => NormKind::Rms { from_one: false },
        false => NormKind::Layer { bias: true },
    };
    let norm = NormSpec { kind, eps: 1e-6 };
    TransformerSpec::bare(name, [1, hidden], vec![layer; count], norm, PATCHES_MAX)
}

/// Rotary embedding: pairs in a head's first half rotate by the row, those in its second half by the column, at the
/// same frequencies.
pub(super) fn rope_of_places(head_dim: usize, base: f32) -> RopeSpec {
    let quarter = head_dim as u32 / 4;
    RopeSpec {
        kind: RopeKind::Neox,
        base,
        dim: head_dim,
        scaling: RopeScaling::None,
        factors: None,
        magnitude: 1.0,
        long: None,
        axes: Some(AxesSpec {
            axes: RopeAxes { sections: [0, quarter, quarter], interleaved: false },
            anew: true,
        }),
    }
}

fn rope_base(vision: &Config) -> Result<f32, LoadError> {
    let settings = vision.object("rope_parameters")?;
    let base = settings.map(|settings| settings.positive("rope_theta")).transpose()?;
    Ok(base.flatten().unwrap_or(1e4))
}

/// Sections of the text model's rotary pairs for time, height and width.
fn text_axes(config: &Config, three: bool, pairs: usize) -> Result<RopeAxes, LoadError> {
    const KEY: &str = "mrope_section";
    let text = config.object("text_config")?;
    let usual = if three { [24, 20, 20] } else { [16, 24, 24] };
    let mut axes = RopeAxes { sections: usual, interleaved: three };
    for settings in [Some(config), text.as_ref()].into_iter().flatten() {
        for rope in ["rope_scaling", "rope_parameters"] {
            let Some(rope) = settings.object(rope)? else { continue };
            if let Some(value) = rope.get(KEY) {
                let numbers = value.as_array().map(|list| list.iter().filter_map(Value::as_u64).collect());
                let three = numbers.and_then(|numbers: Vec<u64>| <[u64; 3]>::try_from(numbers).ok());
                let three = three.filter(|three| three.iter().all(|&pairs| pairs <= WIDTH_MAX as u64));
                let three = three.ok_or_else(|| rope.corrupt(KEY, "is no list of three whole numbers"))?;
                axes.sections = three.map(|pairs| pairs as u32);
            }
        }
    }
    if axes.sections.iter().sum::<u32>() as usize != pairs {
        let reason = format!("{:?} are not the {pairs} pairs of a head", axes.sections);
        return Err(config.corrupt(KEY, reason));
    }
    Ok(axes)
}
