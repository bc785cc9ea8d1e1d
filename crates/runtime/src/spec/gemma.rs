//! Texts of Gemma 3n and 4 from a Hugging Face `config.json`. Gemma 4 has heads of different sizes in layers with and
//! without a window, normed values, and a factor on each layer's output. Small models have embeddings for each layer,
//! and layers that share keys and values; others have experts beside an MLP. Gemma 3n has the features of small
//! models, and several streams.

use hanzo_engine_kernels::{Activation, HeadShape, RopeKind};
use serde_json::{Map, Value};

use super::hf::windows_by_type;
use super::{
    AttentionSpec, Config, DenseSpec, ExpertsSpec, HeadSpec, LayerSpec, LogitsSpec, Mask, MlpSpec, NormKind,
    NormOrder, NormSpec, QkNorm, RopeScaling, RopeSpec, SharedExpert, StreamsSpec, TransformerSpec,
};
use crate::error::LoadError;
use crate::limits::{
    CONTEXT_TOKENS_MAX, EXPERTS_MAX, HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, VOCAB_MAX, WIDTH_MAX,
};

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";
/// Setting with the elements of each layer's input of a token.
const INPUTS: &str = "hidden_size_per_layer_input";
/// A divisor of a frequency so large that the pair is not rotated, as used in files.
pub(super) const NOT_TURNED: f32 = 1e30;

/// Names of the model types that this file reads.
pub(super) fn known() -> impl Iterator<Item = &'static str> {
    ["gemma3n_text", "gemma4_text"].into_iter()
}

/// Reads a model of one of these families; `None` for any other.
pub(super) fn from_config(config: &Config, model_type: &str) -> Option<Result<TransformerSpec, LoadError>> {
    match model_type {
        "gemma3n_text" => Some(gemma3n(config).and_then(|spec| spec.checked(&config.file))),
        "gemma4_text" => Some(gemma4(config).and_then(|spec| spec.checked(&config.file))),
        _ => None,
    }
}

/// Windows and heads of layers with and without a window.
pub(super) struct Kinds {
    pub(super) windows: Vec<Option<u32>>, // (layers)
    pub(super) heads: [HeadShape; 2],     // of layers without a window, of those with one
    /// Number of layers at the end that share the keys and values of others.
    pub(super) sharing: usize,
}

impl Kinds {
    /// Attention of a layer, with the rope of its kind.
    pub(super) fn attention(&self, layer: usize, values_are_keys: bool) -> AttentionSpec {
        let window = self.windows[layer];
        let kind = usize::from(window.is_some());
        AttentionSpec {
            mask: Mask::Causal { window },
            rope: Some(kind),
            qk_norm: QkNorm::Heads,
            scale: 1.0,
            values_normed: true,
            values_are_keys: values_are_keys && window.is_none(),
            shares: self.shares(layer),
            ..AttentionSpec::causal(self.heads[kind])
        }
    }

    /// Layer whose keys and values a sharing layer attends to: the last of its kind with its own.
    pub(super) fn shares(&self, layer: usize) -> Option<usize> {
        let own = self.windows.len() - self.sharing;
        let alike = |other: &usize| self.windows[*other].is_some() == self.windows[layer].is_some();
        // A model without such a layer is refused when layers are compared.
        (layer >= own).then(|| (0..own).rev().find(alike).unwrap_or(layer))
    }
}

fn gemma4(config: &Config) -> Result<TransformerSpec, LoadError> {
    check_settings(config, "Gemma4ForCausalLM")?;
    let hidden = config.required("hidden_size", WIDTH_MAX)?;
    let layers = config.required("num_hidden_layers", LAYERS_MAX)?;
    let context = config.required("max_position_embeddings", CONTEXT_TOKENS_MAX)?;
    let mut windows = windows(config, layers, 6)?;
    // Whatever the setting says.
    if let Some(last) = windows.last_mut() {
        *last = None;
    }
    let sharing = sharing(config, layers, 0)?;
    let values_are_keys = config.bool("attention_k_eq_v")?.unwrap_or(false);
    let kinds = Kinds { heads: heads(config, &windows, values_are_keys)?, windows, sharing };
    let activation = activation(config)?;
    let ffn = config.required("intermediate_size", WIDTH_MAX)?;
    let wide = config.bool("use_double_wide_mlp")?.unwrap_or(false);
    let experts = experts(config, activation, ffn)?;
    let layer_of = |layer: usize| {
        let sharing = layer >= layers - kinds.sharing;
        let ffn = if wide && sharing { 2 * ffn } else { ffn };
        let mlp = match experts {
            Some(experts) => {
                let shared = Some(SharedExpert { ffn, gate: false });
                MlpSpec::Experts(ExpertsSpec { shared, ..experts })
            }
            None => {
                let dense = DenseSpec { ffn, activation, gated: true, up_bias: false, down_bias: false };
                MlpSpec::Dense(dense)
            }
        };
        let attention = kinds.attention(layer, values_are_keys);
        LayerSpec { order: NormOrder::Sandwich, attention, mlp, residual_scale: 1.0 }
    };
    let norm = NormSpec {
        kind: NormKind::Rms { from_one: false },
        eps: config.positive("rms_norm_eps")?.unwrap_or(1e-6),
    };
    let vocab = config.required("vocab_size", VOCAB_MAX)?;
    let inputs = match config.settings.get(INPUTS) {
        Some(Value::Null) => 0,
        _ => config.whole(INPUTS, WIDTH_MAX)?.unwrap_or(256),
    };
    if let Some(rows) = config.count("vocab_size_per_layer_input", VOCAB_MAX)?.filter(|_| inputs > 0)
        && rows != vocab
    {
        let reason = format!("all of {vocab} tokens are looked up for each layer");
        return Err(config.unsupported("vocab_size_per_layer_input", rows, reason));
    }
    let all = (0..layers).map(layer_of).collect();
    Ok(TransformerSpec {
        ropes: ropes(config, kinds.heads.map(|shape| shape.head_dim))?.into(),
        embedding_scale: (hidden as f32).sqrt(),
        layer_inputs: (inputs > 0).then_some(inputs),
        layers_scaled: true,
        head: HeadSpec::Logits(LogitsSpec {
            bias: false,
            unit_rows: false,
            tied: config.bool("tie_word_embeddings")?.unwrap_or(true),
            scale: 1.0,
            softcap: config.positive("final_logit_softcapping")?,
        }),
        ..TransformerSpec::bare("gemma4_text", [vocab, hidden], all, norm, context)
    })
}

fn check_settings(config: &Config, known: &str) -> Result<(), LoadError> {
    for key in ["attention_bias", "is_encoder_decoder", "quantization_config", "vision_config"] {
        let nothing = |value: &Value| matches!(value, Value::Null | Value::Bool(false));
        if let Some(value) = config.get(key).filter(|value| !nothing(value)) {
            return Err(config.unsupported(key, value, "this build cannot run models that have it"));
        }
    }
    // For images alone: a text is always causal.
    if let Some(value) = config.string("use_bidirectional_attention")?.filter(|value| *value != "vision") {
        return Err(config.unsupported(
            "use_bidirectional_attention",
            value,
            "a decoder sees what is before it",
        ));
    }
    match config.get("architectures").and_then(Value::as_array).filter(|classes| !classes.is_empty()) {
        Some(classes) if !classes.iter().any(|class| class == known) => {
            let named = Value::from(classes.clone());
            Err(config.unsupported("architectures", named, format!("{known} is known")))
        }
        _ => Ok(()),
    }
}

/// Number of layers at the end that share the keys and values of others.
fn sharing(config: &Config, layers: usize, usual: usize) -> Result<usize, LoadError> {
    const KEY: &str = "num_kv_shared_layers";
    match config.whole(KEY, LAYERS_MAX)?.unwrap_or(usual) {
        sharing if sharing < layers => Ok(sharing),
        sharing => Err(config.corrupt(KEY, format!("{sharing} of {layers} layers"))),
    }
}

/// Window of each layer: as `layer_types` say, or in all but each nth layer.
fn windows(config: &Config, layers: usize, each: usize) -> Result<Vec<Option<u32>>, LoadError> {
    let window = config.count("sliding_window", CONTEXT_TOKENS_MAX)?.unwrap_or(512) as u32;
    match config.get("layer_types") {
        Some(types) => windows_by_type(config, types, Some(window), layers),
        None => Ok((1..=layers).map(|layer| (!layer.is_multiple_of(each)).then_some(window)).collect()),
    }
}

/// Heads of layers without a window, and of those with one. The former have separate settings, or settings layer by
/// layer.
fn heads(
    config: &Config,
    windows: &[Option<u32>],
    values_are_keys: bool,
) -> Result<[HeadShape; 2], LoadError> {
    const LAYERS: &str = "per_layer_config";
    let heads = config.required("num_attention_heads", HEADS_MAX)?;
    let kv_heads = config.count("num_key_value_heads", HEADS_MAX)?.unwrap_or(4);
    let head_dim = config.count("head_dim", HEAD_DIM_MAX)?.unwrap_or(256);
    let local = HeadShape { heads, kv_heads, head_dim };
    let mut full = HeadShape {
        head_dim: config.count("global_head_dim", HEAD_DIM_MAX)?.unwrap_or(512),
        kv_heads: match config.count("num_global_key_value_heads", HEADS_MAX)? {
            Some(kv_heads) if values_are_keys => kv_heads,
            _ => kv_heads,
        },
        heads,
    };
    if let Some(of_layers) = config.object(LAYERS)? {
        let mut found: Option<HeadShape> = None;
        for (name, value) in &of_layers.settings {
            let layer = name.parse::<usize>().ok().and_then(|layer| windows.get(layer));
            let Some(own) = of_layers.object(name)? else { continue };
            let known =
                own.settings.keys().all(|key| ["head_dim", "num_key_value_heads"].contains(&key.as_str()));
            let shape = HeadShape {
                heads,
                kv_heads: own.count("num_key_value_heads", HEADS_MAX)?.unwrap_or(kv_heads),
                head_dim: own.count("head_dim", HEAD_DIM_MAX)?.unwrap_or(head_dim),
            };
            let alike = found.is_none_or(|found| found == shape);
            if layer != Some(&None) || !known || !alike {
                let reason = "layers that see all have heads of their own, alike, and nothing else";
                return Err(config.unsupported(LAYERS, format!("{name}: {value}"), reason));
            }
            found = Some(shape);
        }
        if of_layers.settings.len() != windows.iter().filter(|window| window.is_none()).count() {
            return Err(config.unsupported(
                LAYERS,
                of_layers.settings.len(),
                "all layers that see all are named",
            ));
        }
        full = found.unwrap_or(full);
    }
    Ok([full, local])
}

/// Ropes of layers without a window, and of those with one.
fn ropes(config: &Config, dims: [usize; 2]) -> Result<[RopeSpec; 2], LoadError> {
    let settings = config.object("rope_parameters")?;
    let none = || Config::new(config.file.clone(), Map::new());
    let of = |kind: &str| match &settings {
        Some(settings) => Ok::<_, LoadError>(settings.object(kind)?.unwrap_or_else(none)),
        None => Ok(none()),
    };
    let [full, local] = [of(FULL)?, of(SLIDING)?];
    for (settings, usual) in [(&full, "proportional"), (&local, "default")] {
        let named = settings.string("rope_type")?.unwrap_or(usual);
        if named != usual && named != "default" {
            return Err(settings.unsupported("rope_type", named, format!("{usual} is known here")));
        }
        if let Some(factor) = settings.get("factor").filter(|factor| factor.as_f64() != Some(1.0)) {
            return Err(settings.unsupported("factor", factor, "this family stretches nothing"));
        }
    }
    let plain = |base, dim| RopeSpec {
        kind: RopeKind::Neox,
        base,
        dim,
        scaling: RopeScaling::None,
        factors: None,
        magnitude: 1.0,
        axes: None,
        long: None,
    };
    let proportional = full.string("rope_type")?.unwrap_or("proportional") == "proportional";
    let usual = if settings.is_some() { 1.0 } else { 0.25 };
    let share = full.positive("partial_rotary_factor")?.unwrap_or(usual);
    let turned = ((f64::from(share) * dims[0] as f64) as usize / 2).min(dims[0] / 2);
    let factors = proportional.then(|| not_turned(turned, dims[0]));
    Ok([
        RopeSpec { factors, ..plain(full.positive("rope_theta")?.unwrap_or(1e6), dims[0]) },
        plain(local.positive("rope_theta")?.unwrap_or(1e4), dims[1]),
    ])
}

/// Divisors of frequencies that rotate only the first pairs of a head.
fn not_turned(turned: usize, head_dim: usize) -> Vec<f32> {
    (0..head_dim / 2).map(|pair| if pair < turned { 1.0 } else { NOT_TURNED }).collect()
}

pub(super) fn activation(config: &Config) -> Result<Activation, LoadError> {
    match config.string("hidden_activation")?.unwrap_or("gelu_pytorch_tanh") {
        "gelu_pytorch_tanh" => Ok(Activation::GeluTanh),
        other => Err(config.unsupported("hidden_activation", other, "gelu_pytorch_tanh is known")),
    }
}

/// Experts beside the MLP, if there are any.
fn experts(config: &Config, activation: Activation, ffn: usize) -> Result<Option<ExpertsSpec>, LoadError> {
    if !config.bool("enable_moe_block")?.unwrap_or(false) {
        return Ok(None);
    }
    let width = match config.count("moe_intermediate_size", WIDTH_MAX)? {
        Some(width) => width,
        None => config.required("expert_intermediate_size", WIDTH_MAX)?,
    };
    let count = config.required("num_experts", EXPERTS_MAX)?;
    let used = config.required("top_k_experts", EXPERTS_MAX)?;
    Ok(Some(apart(ExpertsSpec::softmax(count, used, width, true), activation, ffn)))
}

/// Experts beside an MLP in the form of these families.
pub(super) fn apart(plain: ExpertsSpec, activation: Activation, ffn: usize) -> ExpertsSpec {
    ExpertsSpec { activation, apart: true, shared: Some(SharedExpert { ffn, gate: false }), ..plain }
}

fn gemma3n(config: &Config) -> Result<TransformerSpec, LoadError> {
    check_settings(config, "Gemma3nForCausalLM")?;
    let hidden = config.required("hidden_size", WIDTH_MAX)?;
    let layers = config.required("num_hidden_layers", LAYERS_MAX)?;
    let context = config.required("max_position_embeddings", CONTEXT_TOKENS_MAX)?;
    let activation = activation(config)?;
    let shape = HeadShape {
        heads: config.required("num_attention_heads", HEADS_MAX)?,
        kv_heads: config.count("num_key_value_heads", HEADS_MAX)?.unwrap_or(2),
        head_dim: config.count("head_dim", HEAD_DIM_MAX)?.unwrap_or(256),
    };
    let kinds = Kinds {
        windows: windows(config, layers, 5)?,
        heads: [shape; 2],
        sharing: sharing(config, layers, 15)?,
    };
    let ffn = widths(config, layers)?;
    let layer_of = |layer: usize| LayerSpec {
        order: NormOrder::Sandwich,
        attention: kinds.attention(layer, false),
        mlp: MlpSpec::gated(ffn[layer], activation),
        residual_scale: 1.0,
    };
    let count = config.count("altup_num_inputs", LAYERS_MAX)?.unwrap_or(4);
    let streams = StreamsSpec {
        count,
        active: config.whole("altup_active_idx", LAYERS_MAX)?.unwrap_or(0),
        scaled: config.bool("altup_correct_scale")?.unwrap_or(true),
        laurel_rank: config.count("laurel_rank", WIDTH_MAX)?.unwrap_or(64),
        outliers: outliers(config, layers)?,
    };
    let norm = NormSpec {
        kind: NormKind::Rms { from_one: false },
        eps: config.positive("rms_norm_eps")?.unwrap_or(1e-6),
    };
    let rope = |kind: &str, key: &str, usual: f32| -> Result<RopeSpec, LoadError> {
        let settings = match config.object("rope_parameters")? {
            Some(settings) => settings.object(kind)?,
            None => None,
        };
        let stretched = config.object("rope_scaling")?.filter(|_| kind == FULL);
        for settings in settings.iter().chain(&stretched) {
            if let Some(named) = settings.string("rope_type")?.filter(|named| *named != "default") {
                return Err(settings.unsupported("rope_type", named, "default is known here"));
            }
        }
        let own = settings.map(|settings| settings.positive("rope_theta")).transpose()?.flatten();
        let base = own.or(config.positive(key)?).unwrap_or(usual);
        Ok(RopeSpec {
            kind: RopeKind::Neox,
            base,
            dim: shape.head_dim,
            scaling: RopeScaling::None,
            factors: None,
            magnitude: 1.0,
            axes: None,
            long: None,
        })
    };
    let ropes = vec![rope(FULL, "rope_theta", 1e6)?, rope(SLIDING, "rope_local_base_freq", 1e4)?];
    let all = (0..layers).map(layer_of).collect();
    let sizes = [config.required("vocab_size", VOCAB_MAX)?, hidden];
    // Tokens past the table's end, those of images and sound, use the row of padding.
    config.count("vocab_size_per_layer_input", VOCAB_MAX)?;
    Ok(TransformerSpec {
        ropes,
        embedding_scale: (hidden as f32).sqrt(),
        layer_inputs: Some(config.count(INPUTS, WIDTH_MAX)?.unwrap_or(256)),
        streams: Some(streams),
        head: HeadSpec::Logits(LogitsSpec {
            bias: false,
            unit_rows: false,
            tied: config.bool("tie_word_embeddings")?.unwrap_or(true),
            scale: 1.0,
            softcap: Some(config.positive("final_logit_softcapping")?.unwrap_or(30.0)),
        }),
        ..TransformerSpec::bare("gemma3n_text", sizes, all, norm, context)
    })
}

/// MLP width of each layer: a list, or one number for all.
fn widths(config: &Config, layers: usize) -> Result<Vec<usize>, LoadError> {
    const KEY: &str = "intermediate_size";
    let Some(Value::Array(list)) = config.get(KEY) else {
        return Ok(vec![config.count(KEY, WIDTH_MAX)?.unwrap_or(16_384); layers]);
    };
    let width = |value: &Value| {
        let width = value.as_u64().and_then(|width| usize::try_from(width).ok());
        width.filter(|width| (1..=WIDTH_MAX).contains(width))
    };
    match list.iter().map(width).collect::<Option<Vec<usize>>>() {
        Some(widths) if widths.len() == layers => Ok(widths),
        Some(widths) => Err(config.corrupt(KEY, format!("{} numbers for {layers} layers", widths.len()))),
        None => Err(config.corrupt(KEY, format!("a number is not from 1 to {WIDTH_MAX}"))),
    }
}

/// Threshold of each layer's gate above its mean, in standard deviations, such that the given share of a normal
/// distribution exceeds it.
fn outliers(config: &Config, layers: usize) -> Result<Vec<Option<f32>>, LoadError> {
    const KEY: &str = "activation_sparsity_pattern";
    let share = |value: &Value| value.as_f64().filter(|share| (0.0..1.0).contains(share));
    let shares = match config.get(KEY) {
        None => (0..layers).map(|layer| if layers > 10 && layer < 10 { 0.95 } else { 0.0 }).collect(),
        Some(Value::Array(list)) => {
            let shares = list.iter().map(share).collect::<Option<Vec<f64>>>();
            shares.ok_or_else(|| config.corrupt(KEY, "a number is not from 0 to below 1"))?
        }
        Some(value) => {
            vec![share(value).ok_or_else(|| config.corrupt(KEY, "it is not from 0 to below 1"))?; layers]
        }
    };
    if shares.len() != layers {
        return Err(config.corrupt(KEY, format!("{} numbers for {layers} layers", shares.len())));
    }
    Ok(shares.into_iter().map(|share| (share > 0.0).then(|| deviations(share))).collect())
}

/// Number of standard deviations below which a share of a normal distribution lies.
fn deviations(share: f64) -> f32 {
    // `1/2 + φ(x) Σ xⁿ / n!!` over odd n.
    let below = |x: f64| {
        let (mut term, mut sum, mut n) = (x, x, 1.0);
        while term.abs() > sum.abs() * 1e-17 {
            n += 2.0;
            term *= x * x / n;
            sum += term;
        }
        0.5 + sum * (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt()
    };
    let (mut low, mut high) = (-8.0, 8.0);
    for _ in 0..64 {
        let middle = 0.5 * (low + high);
        if below(middle) < share { low = middle } else { high = middle }
    }
    low as f32
}

#[cfg(test)]
mod tests {
    #[test]
    fn deviations_are_those_of_tables() {
        for (share, expected) in [(0.5, 0.0), (0.95, 1.644_853_6), (0.841_344_746, 1.0), (0.025, -1.959_964)]
        {
            let found = super::deviations(share);
            assert!((found - expected).abs() < 1e-6, "{share}: {found}");
        }
    }
}
