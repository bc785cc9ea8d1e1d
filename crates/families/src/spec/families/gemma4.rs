//! Gemma 4: heads of different sizes in layers with and without a window, normed values, and a factor on each layer's
//! output. Small models have embeddings for each layer, and layers that share keys and values; others have experts
//! beside an MLP. Gemma 3n shares these parts.

use GemmaPart::*;

use super::*;

pub(super) const FULL: &str = "full_attention";
pub(super) const SLIDING: &str = "sliding_attention";
/// Setting with the elements of each layer's input of a token.
pub(super) const INPUTS: &str = "hidden_size_per_layer_input";
/// A divisor of a frequency so large that the pair is not rotated, as used in files.
const NOT_TURNED: f32 = 1e30;

/// Differences of Gemma 3n's and 4's classes from Llama's.
pub(super) const TYPE: ModelType = ModelType {
    name: "gemma4_text",
    class: "Gemma4ForCausalLM",
    names: &Names {
        router: "router.proj",
        experts: ExpertNames {
            gate: "experts.{}.gate_proj.weight",
            up: "experts.{}.up_proj.weight",
            down: "experts.{}.down_proj.weight",
            pack: Some(ExpertPack::new("experts.gate_up_proj", "experts.down_proj")),
            ..ExpertNames::NONE
        },
        shared_gate: "mlp.gate_proj",
        shared_up: "mlp.up_proj",
        shared_down: "mlp.down_proj",
        gemma: &[
            (InputEmbedding, "embed_tokens_per_layer.weight"),
            (InputProjection, "per_layer_model_projection.weight"),
            (InputProjectionNorm, "per_layer_projection_norm.weight"),
            (InputGate, "per_layer_input_gate.weight"),
            (InputUp, "per_layer_projection.weight"),
            (InputNorm, "post_per_layer_input_norm.weight"),
            (OutputScale, "layer_scalar"),
            (RouterScale, "router.scale"),
            (ExpertScale, "router.per_expert_scale"),
            (ExpertsNorm, "pre_feedforward_layernorm_2.weight"),
            (ExpertsPostNorm, "post_feedforward_layernorm_2.weight"),
            (SharedPostNorm, "post_feedforward_layernorm_1.weight"),
        ],
        ..Names::GEMMA
    },
    spec: Some(spec),
    settle: check_settings,
    order: NormOrder::Sandwich,
    embeds_by_root: true,
    refused_by_many: &["attention_bias", "is_encoder_decoder", "quantization_config", "vision_config"],
    activation: ("hidden_activation", "gelu_pytorch_tanh"),
    tied: true,
    ..ModelType::OWN
};

/// Differences of Gemma 3n's and 4's files from Llama's.
pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "gemma4",
    names: &Names {
        experts: ExpertNames {
            pack: Some(ExpertPack::new("ffn_gate_up_exps.weight", "")),
            ..Names::GGUF.experts
        },
        shared_gate: "ffn_gate",
        shared_up: "ffn_up",
        shared_down: "ffn_down",
        gemma: &[
            (InputEmbedding, "per_layer_token_embd.weight"),
            (InputProjection, "per_layer_model_proj.weight"),
            (InputProjectionNorm, "per_layer_proj_norm.weight"),
            (InputGate, "inp_gate.weight"),
            (InputUp, "proj.weight"),
            (InputNorm, "post_norm.weight"),
            (OutputScale, "layer_output_scale.weight"),
            (RouterScale, "ffn_gate_inp.scale"),
            (ExpertScale, "ffn_down_exps.scale"),
            (ExpertsNorm, "pre_ffw_norm_2.weight"),
            (ExpertsPostNorm, "post_ffw_norm_2.weight"),
            (SharedPostNorm, "post_ffw_norm_1.weight"),
        ],
        ..Names::GGUF
    },
    reads: &[&[
        "activation_sparsity_scale",
        "altup.active_idx",
        "altup.num_inputs",
        "attention.key_length_swa",
        "attention.shared_kv_layers",
        "attention.sliding_window_pattern",
        "attention.value_length_swa",
        "embedding_length_per_layer_input",
        "expert_count",
        "expert_feed_forward_length",
        "expert_used_count",
        "final_logit_softcapping",
        "rope.dimension_count_swa",
        "rope.freq_base_swa",
    ]],
    ..Architecture::DENSE
};

pub(super) const GEMMA4: Family = Family {
    title: "Gemma 4 (text): 31B, E2B and E4B, 26B-A4B",
    hugging_face: &[TYPE],
    gguf: &[ARCHITECTURE],
    goldens: &[both("dense/gemma4"), both("dense/gemma4-e"), both("dense/gemma4-moe")],
};

/// Windows and heads of layers with and without a window.
pub(super) struct Kinds {
    pub(super) windows: Vec<Option<u32>>, // (layers)
    pub(super) heads: [HeadShape; 2],     // of layers without a window, of those with one
    /// Number of layers at the end that share the keys and values of others.
    pub(super) sharing: usize,
}

impl Kinds {
    /// Attention of a layer, with the rope of its kind.
    fn attention(&self, layer: usize) -> AttentionSpec {
        let window = self.windows[layer];
        let kind = usize::from(window.is_some());
        AttentionSpec {
            mask: Mask::Causal { window },
            rope: Some(kind),
            qk_norm: QkNorm::Heads,
            scale: 1.0,
            values_normed: true,
            shares: self.shares(layer),
            ..AttentionSpec::causal(self.heads[kind])
        }
    }

    /// Layer whose keys and values a sharing layer attends to: the last of its kind with its own.
    fn shares(&self, layer: usize) -> Option<usize> {
        let own = self.windows.len() - self.sharing;
        let alike = |other: &usize| self.windows[*other].is_some() == self.windows[layer].is_some();
        // A model without such a layer is refused when layers are compared.
        (layer >= own).then(|| (0..own).rev().find(alike).unwrap_or(layer))
    }
}

/// Settings of a network, as files of either format give them.
pub(super) struct GemmaSettings {
    pub(super) kinds: Kinds,
    /// Whether the values of each layer are its keys.
    pub(super) values_are_keys: Vec<bool>, // (layers)
    /// Widths of MLPs.
    pub(super) ffn: Vec<usize>, // (layers)
    /// Ropes of layers without a window, and of those with one.
    pub(super) ropes: [RopeSpec; 2],
    /// Width of each layer's input of a token; 0 without such inputs.
    pub(super) inputs: usize,
    pub(super) softcap: Option<f32>,
}

/// A network with these settings.
pub(super) fn network(base: &Base<'_>, parts: GemmaSettings) -> Result<TransformerSpec, LoadError> {
    let experts = experts(base)?;
    let mut spec = base.spec(None, |layer| {
        let values_are_keys = parts.values_are_keys[layer];
        let ffn = parts.ffn[layer];
        let mlp = match experts {
            Some(experts) => {
                let shared = Some(SharedExpert { ffn, gate: false });
                MlpSpec::Experts(ExpertsSpec { apart: true, shared, ..experts })
            }
            None => MlpSpec::gated(ffn, base.activation),
        };
        (AttentionSpec { values_are_keys, ..parts.kinds.attention(layer) }, mlp)
    })?;
    spec.ropes = parts.ropes.into();
    spec.layer_inputs = (parts.inputs > 0).then_some(parts.inputs);
    set_logits(&mut spec, 1.0, parts.softcap);
    Ok(spec)
}

fn spec(base: &Base<'_>) -> Result<TransformerSpec, LoadError> {
    match base.file {
        SettingsFile::HuggingFace(config) => {
            let spec = network(base, of_settings(base, config)?)?;
            Ok(TransformerSpec { layers_scaled: true, ..spec })
        }
        SettingsFile::Gguf(keys) => {
            let scale = Part::Layer(0, LayerPart::Gemma(GemmaPart::OutputScale)).weight();
            let spec = network(base, of_metadata(base, keys)?)?;
            Ok(TransformerSpec { layers_scaled: keys.has(scale), ..spec })
        }
    }
}

fn of_settings(base: &Base<'_>, config: &Config) -> Result<GemmaSettings, LoadError> {
    let layers = base.layers;
    let mut windows = windows(config, layers, 6)?;
    // Whatever the setting says.
    if let Some(last) = windows.last_mut() {
        *last = None;
    }
    let sharing = sharing(base, &SHARING)?;
    let values_are_keys = config.bool("attention_k_eq_v")?.unwrap_or(false);
    let heads = heads(config, &windows, values_are_keys)?;
    let ffn = base.ffn(true)?;
    let wide = config.bool("use_double_wide_mlp")?.unwrap_or(false);
    Ok(GemmaSettings {
        values_are_keys: windows.iter().map(|window| values_are_keys && window.is_none()).collect(),
        ffn: (0..layers).map(|at| if wide && at >= layers - sharing { 2 * ffn } else { ffn }).collect(),
        ropes: ropes(config, heads.map(|shape| shape.head_dim))?,
        inputs: inputs(config, config.required("vocab_size", VOCAB_MAX)?)?,
        softcap: config.positive("final_logit_softcapping")?,
        kinds: Kinds { heads, windows, sharing },
    })
}

/// Width of each layer's input of a token; 0 without such inputs.
fn inputs(config: &Config, vocab: usize) -> Result<usize, LoadError> {
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
    Ok(inputs)
}

/// Refuses attention to both sides.
fn check_settings(config: &mut Config) -> Result<(), LoadError> {
    refuse_unless_named(config, "hidden_activation", "gelu_pytorch_tanh")?;
    // For images alone: a text is always causal.
    refuse_unless_named(config, "use_bidirectional_attention", "vision")
}

/// Number of layers at the end that share the keys and values of others.
pub(super) const SHARING: Setting<usize> =
    count("num_kv_shared_layers", "attention.shared_kv_layers", LAYERS_MAX);

pub(super) fn sharing(base: &Base<'_>, setting: &Setting<usize>) -> Result<usize, LoadError> {
    match base.file.whole(setting)? {
        sharing if sharing < base.layers => Ok(sharing),
        sharing => Err(base.file.corrupt(setting, format!("{sharing} of {} layers", base.layers))),
    }
}

/// Window of each layer: as `layer_types` say, or in all but each nth layer.
pub(super) fn windows(config: &Config, layers: usize, each: usize) -> Result<Vec<Option<u32>>, LoadError> {
    let window = config.count("sliding_window", CONTEXT_TOKENS_MAX)?.unwrap_or(512) as u32;
    let by_type = windows_by_type(config, Some(window), layers)?;
    Ok(by_type.unwrap_or_else(|| every(Some(window), each, layers)))
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
    let plain = |base, dim| RopeSpec::plain(RopeKind::Neox, base, dim);
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

/// Experts beside the MLP, if there are any.
fn experts(base: &Base<'_>) -> Result<Option<ExpertsSpec>, LoadError> {
    let [count, used, mut width] = [EXPERTS[0], EXPERTS[1].named("top_k_experts"), EXPERTS[2]];
    let any = match base.file {
        SettingsFile::HuggingFace(config) => config.bool("enable_moe_block")?.unwrap_or(false),
        SettingsFile::Gguf(_) => base.file.whole(&count)? > 0,
    };
    if any && base.file.count(&width)?.is_none() {
        width = width.named("expert_intermediate_size");
    }
    any.then(|| softmax(base, &[count, used, width], true)).transpose()
}

pub(super) fn of_metadata(base: &Base<'_>, keys: &Keys<'_>) -> Result<GemmaSettings, LoadError> {
    let windows = windows_of_metadata(keys, base.layers)?;
    let sharing = sharing(base, &SHARING)?;
    let kinds = Kinds { heads: heads_of_metadata(keys, &windows)?, windows, sharing };
    let streams = keys.form.name == "gemma3n_text";
    let values = |layer| keys.has(Part::Layer(layer, LayerPart::Value).weight());
    let full = base.rope(kinds.heads[0].head_dim)?;
    let theta = keys.positive("rope.freq_base_swa")?.unwrap_or(if streams { 1e4 } else { full.base });
    let dim = keys.count("rope.dimension_count_swa", HEAD_DIM_MAX)?.unwrap_or(kinds.heads[1].head_dim);
    Ok(GemmaSettings {
        values_are_keys: (0..base.layers)
            .map(|layer| !values(layer) && kinds.shares(layer).is_none())
            .collect(),
        ffn: each(keys, "feed_forward_length", WIDTH_MAX, base.layers)?,
        ropes: [full, RopeSpec::plain(keys.rope_kind(), theta, dim)],
        inputs: keys.whole("embedding_length_per_layer_input", WIDTH_MAX)?.unwrap_or(0),
        // Optional in files of Gemma 3n.
        softcap: keys.positive("final_logit_softcapping")?.or(streams.then_some(30.0)),
        kinds,
    })
}

/// A count for each layer: a list of them, or one for all.
fn each(keys: &Keys<'_>, name: &str, max: usize, layers: usize) -> Result<Vec<usize>, LoadError> {
    let key = keys.key(name);
    let Some(gguf::Value::Array(_)) = keys.metadata.get(&key) else {
        return Ok(vec![keys.required(name, max)?; layers]);
    };
    let list = keys.metadata.integers(&key)?.unwrap_or_default();
    let counts =
        list.iter().map(|&count| usize::try_from(count).ok().filter(|count| (1..=max).contains(count)));
    match counts.collect::<Option<Vec<usize>>>() {
        Some(counts) if counts.len() == layers => Ok(counts),
        Some(counts) => {
            Err(keys.metadata.corrupt(&key, format!("{} numbers for {layers} layers", counts.len())))
        }
        None => Err(keys.metadata.corrupt(&key, format!("a number is not from 1 to {max}"))),
    }
}

fn windows_of_metadata(keys: &Keys<'_>, layers: usize) -> Result<Vec<Option<u32>>, LoadError> {
    const PATTERN: &str = "attention.sliding_window_pattern";
    let window = keys.required("attention.sliding_window", CONTEXT_TOKENS_MAX)? as u32;
    match keys.truths(PATTERN, layers)? {
        Some(sees) => Ok(sees.into_iter().map(|sees| sees.then_some(window)).collect()),
        None => Err(keys.metadata.missing(&keys.key(PATTERN))),
    }
}

/// Heads of layers without a window, and of those with one.
fn heads_of_metadata(keys: &Keys<'_>, windows: &[Option<u32>]) -> Result<[HeadShape; 2], LoadError> {
    const KV_HEADS: &str = "attention.head_count_kv";
    let heads = keys.required("attention.head_count", HEADS_MAX)?;
    let kv_heads = each(keys, KV_HEADS, HEADS_MAX, windows.len())?;
    let length = |key: &str, value: &str, usual: Option<usize>| {
        let length = match (keys.count(key, HEAD_DIM_MAX)?, usual) {
            (Some(length), _) | (None, Some(length)) => length,
            (None, None) => return Err(keys.metadata.missing(&keys.key(key))),
        };
        match keys.count(value, HEAD_DIM_MAX)?.filter(|&found| found != length) {
            Some(found) => {
                Err(keys.unsupported(value, found, &format!("values must be as long as keys, {length}")))
            }
            None => Ok(length),
        }
    };
    let full = length("attention.key_length", "attention.value_length", None)?;
    let local = length("attention.key_length_swa", "attention.value_length_swa", Some(full))?;
    let of_kind = |windowed: bool, head_dim: usize| {
        let mut counts = kv_heads
            .iter()
            .zip(windows)
            .filter(|(_, window)| window.is_some() == windowed)
            .map(|(count, _)| *count);
        let kv_heads = counts.next().unwrap_or(1);
        match counts.all(|count| count == kv_heads) {
            true => Ok(HeadShape { heads, kv_heads, head_dim }),
            false => {
                Err(keys.unsupported(KV_HEADS, "a list", "layers that see as much must have the same number"))
            }
        }
    };
    Ok([of_kind(false, full)?, of_kind(true, local)?])
}
