//! Dense decoders of Hugging Face that differ slightly from Llama, as data: defaults of each family's class in the
//! transformers library, and the settings that override them.

use hanzo_engine_kernels::{Activation, HeadShape, RopeKind};
use serde_json::{Map, Value};

use super::hf::{stretched_context, windows_by_type};
use super::rope::stretch;
use super::{
    AttentionSpec, Config, DenseSpec, HeadSpec, LayerSpec, LogitsSpec, Mask, MlpSpec, NormKind, NormOrder,
    NormSpec, QkNorm, RopeSpec, TransformerSpec,
};
use super::{dense_absolute, dense_own};
use crate::error::LoadError;
use crate::limits::{CONTEXT_TOKENS_MAX, HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, VOCAB_MAX, WIDTH_MAX};

/// Model family: the differences of its class from Llama's.
pub(super) struct Family {
    pub(super) model_type: &'static str,
    pub(super) class: &'static str,
    pub(super) order: NormOrder,
    pub(super) norm: NormKind,
    /// Setting with the norms' epsilon, and its default.
    pub(super) eps: (&'static str, f32),
    pub(super) qkv_bias: Said,
    pub(super) output_bias: Said,
    /// Whether both matrices of the MLP have biases.
    pub(super) mlp_bias: Said,
    pub(super) gated: bool,
    /// Setting with the non-linearity, and its default.
    pub(super) activation: (&'static str, &'static str),
    pub(super) qk_norm: QkNorm,
    /// Size of a head if `head_dim` is not given; otherwise `hidden_size / num_attention_heads`.
    pub(super) head_dim: Option<usize>,
    pub(super) rope_kind: RopeKind,
    pub(super) rope_base: f32,
    /// Fraction of a head that is rotated.
    pub(super) turned: f32,
    pub(super) windows: Windows,
    pub(super) tied: bool,
    /// Renames the settings that its class names differently to the usual names.
    pub(super) settle: fn(&mut Config) -> Result<(), LoadError>,
    /// Applies the family's peculiarities.
    pub(super) own: fn(&Config, &mut TransformerSpec) -> Result<(), LoadError>,
    /// Settings that are refused unless they are neutral, because they would make another model of it.
    pub(super) refused: &'static [&'static str],
}

/// Presence of a feature.
pub(super) enum Said {
    Always(bool),
    /// As a setting says, with its default.
    By(&'static str, bool),
}

/// Layers with a window of `sliding_window` tokens.
#[derive(Clone, Copy)]
pub(super) enum Windows {
    Never,
    /// All layers, if there is a window.
    All,
    /// As `layer_types` say, or all but each nth (`sliding_window_pattern`).
    AllButEach(usize),
}

pub(super) const LLAMA: Family = Family {
    model_type: "",
    class: "",
    order: NormOrder::Pre,
    norm: NormKind::Rms { from_one: false },
    eps: ("rms_norm_eps", 1e-6),
    qkv_bias: Said::By("attention_bias", false),
    output_bias: Said::By("attention_bias", false),
    mlp_bias: Said::Always(false),
    gated: true,
    activation: ("hidden_act", "silu"),
    qk_norm: QkNorm::None,
    head_dim: None,
    rope_kind: RopeKind::Neox,
    rope_base: 1e4,
    turned: 1.0,
    windows: Windows::Never,
    tied: false,
    settle: |_| Ok(()),
    own: |_, _| Ok(()),
    refused: &["mlp_bias"],
};

const GEMMA: Family = Family {
    norm: NormKind::Rms { from_one: true },
    activation: ("hidden_activation", "gelu_pytorch_tanh"),
    head_dim: Some(256),
    tied: true,
    own: |_, spec| {
        spec.embedding_scale = (spec.hidden as f32).sqrt();
        Ok(())
    },
    refused: &["use_bidirectional_attention"],
    ..LLAMA
};

const COHERE: Family = Family {
    order: NormOrder::Parallel,
    norm: NormKind::Layer { bias: false },
    eps: ("layer_norm_eps", 1e-5),
    rope_kind: RopeKind::Interleaved,
    tied: true,
    own: cohere,
    refused: &["use_parallel_embedding"],
    ..LLAMA
};

const OLMO2: Family =
    Family { order: NormOrder::Branch, eps: ("rms_norm_eps", 1e-5), qk_norm: QkNorm::Whole, ..LLAMA };

pub(super) const GLM: Family = Family {
    eps: ("rms_norm_eps", 1.5625e-7),
    qkv_bias: Said::By("attention_bias", true),
    output_bias: Said::Always(false),
    head_dim: Some(128),
    rope_kind: RopeKind::Interleaved,
    turned: 0.5,
    ..LLAMA
};

const FAMILIES: &[Family] = &[
    Family { model_type: "gemma", class: "GemmaForCausalLM", ..GEMMA },
    Family {
        model_type: "gemma2",
        class: "Gemma2ForCausalLM",
        order: NormOrder::Sandwich,
        windows: Windows::AllButEach(2),
        own: gemma2,
        ..GEMMA
    },
    Family {
        model_type: "gemma3_text",
        class: "Gemma3ForCausalLM",
        order: NormOrder::Sandwich,
        qk_norm: QkNorm::Heads,
        rope_base: 1e6,
        windows: Windows::AllButEach(6),
        own: gemma3,
        ..GEMMA
    },
    Family {
        model_type: "phi3",
        class: "Phi3ForCausalLM",
        eps: ("rms_norm_eps", 1e-5),
        windows: Windows::All,
        ..LLAMA
    },
    Family {
        model_type: "ministral3",
        class: "Ministral3ForCausalLM",
        eps: ("rms_norm_eps", 1e-5),
        qkv_bias: Said::Always(false),
        output_bias: Said::Always(false),
        head_dim: Some(128),
        windows: Windows::All,
        own: ministral3,
        refused: &["attention_bias", "mlp_bias"],
        ..LLAMA
    },
    Family { model_type: "olmo2", class: "Olmo2ForCausalLM", ..OLMO2 },
    Family {
        model_type: "olmo3",
        class: "Olmo3ForCausalLM",
        rope_base: 5e5,
        windows: Windows::AllButEach(4),
        own: olmo3,
        ..OLMO2
    },
    Family { model_type: "granite", class: "GraniteForCausalLM", own: granite, ..LLAMA },
    Family { model_type: "glm", class: "GlmForCausalLM", ..GLM },
    Family { model_type: "glm4", class: "Glm4ForCausalLM", order: NormOrder::Sandwich, ..GLM },
    Family { model_type: "cohere", class: "CohereForCausalLM", rope_base: 5e5, ..COHERE },
    Family {
        model_type: "cohere2",
        class: "Cohere2ForCausalLM",
        windows: Windows::AllButEach(4),
        own: |config, spec| {
            cohere(config, spec)?;
            turn_windows_alone(spec);
            Ok(())
        },
        refused: &["use_qk_norm", "use_parallel_embedding"],
        ..COHERE
    },
    Family {
        model_type: "smollm3",
        class: "SmolLM3ForCausalLM",
        rope_base: 2e6,
        tied: true,
        own: smollm3,
        refused: &["mlp_bias", "use_sliding_window"],
        ..LLAMA
    },
    Family {
        model_type: "starcoder2",
        class: "Starcoder2ForCausalLM",
        norm: NormKind::Layer { bias: true },
        eps: ("norm_epsilon", 1e-5),
        qkv_bias: Said::By("use_bias", true),
        output_bias: Said::By("use_bias", true),
        mlp_bias: Said::By("use_bias", true),
        gated: false,
        activation: ("hidden_act", "gelu_pytorch_tanh"),
        windows: Windows::All,
        tied: true,
        ..LLAMA
    },
    Family {
        model_type: "stablelm",
        class: "StableLmForCausalLM",
        norm: NormKind::Layer { bias: true },
        eps: ("layer_norm_eps", 1e-5),
        qkv_bias: Said::By("use_qkv_bias", false),
        output_bias: Said::Always(false),
        turned: 0.25,
        own: |config, spec| {
            if config.bool("use_parallel_residual")?.unwrap_or(false) {
                spec.layers.iter_mut().for_each(|layer| layer.order = NormOrder::Parallel);
            }
            if config.bool("qk_layernorm")?.unwrap_or(false) {
                norm_heads_apart(spec);
            }
            Ok(())
        },
        ..LLAMA
    },
    Family {
        model_type: "seed_oss",
        class: "SeedOssForCausalLM",
        qkv_bias: Said::By("attention_bias", true),
        output_bias: Said::By("attention_out_bias", false),
        head_dim: Some(128),
        ..LLAMA
    },
    Family {
        model_type: "ernie4_5",
        class: "Ernie4_5ForCausalLM",
        eps: ("rms_norm_eps", 1e-5),
        head_dim: Some(128),
        rope_kind: RopeKind::Interleaved,
        rope_base: 5e5,
        tied: true,
        refused: &["use_bias"],
        ..LLAMA
    },
    Family {
        model_type: "exaone4",
        class: "Exaone4ForCausalLM",
        order: NormOrder::Branch,
        eps: ("rms_norm_eps", 1e-5),
        qkv_bias: Said::Always(false),
        output_bias: Said::Always(false),
        qk_norm: QkNorm::Heads,
        windows: Windows::AllButEach(4),
        own: |config, spec| {
            if config.get("sliding_window").is_some_and(|window| !window.is_null()) {
                turn_windows_alone(spec);
            }
            Ok(())
        },
        ..LLAMA
    },
];

/// Settings that would make another model of any of these, and are refused unless they are absent, null, false, zero
/// or empty.
const REFUSED: &[&str] = &[
    "add_cross_attention",
    "is_encoder_decoder",
    "n_routed_experts",
    "num_experts",
    "num_local_experts",
    "quantization_config",
    "vision_config",
];

fn families() -> impl Iterator<Item = &'static Family> {
    FAMILIES.iter().chain(dense_own::FAMILIES).chain(dense_absolute::FAMILIES)
}

/// Names of the model types that this file reads.
pub(super) fn known() -> impl Iterator<Item = &'static str> {
    families().map(|family| family.model_type)
}

/// Reads a model of one of these families; `None` for any other.
pub(super) fn from_config(config: &Config, model_type: &str) -> Option<Result<TransformerSpec, LoadError>> {
    let family = families().find(|family| family.model_type == model_type)?;
    Some(family.read(config))
}

impl Said {
    fn read(&self, config: &Config) -> Result<bool, LoadError> {
        match *self {
            Said::Always(is) => Ok(is),
            Said::By(key, usual) => Ok(config.bool(key)?.unwrap_or(usual)),
        }
    }
}

impl Family {
    fn read(&self, config: &Config) -> Result<TransformerSpec, LoadError> {
        let mut config = config.clone();
        (self.settle)(&mut config)?;
        let config = &config;
        self.check_settings(config)?;
        let hidden = config.required("hidden_size", WIDTH_MAX)?;
        let layers = config.required("num_hidden_layers", LAYERS_MAX)?;
        let context = config.required("max_position_embeddings", CONTEXT_TOKENS_MAX)?;
        let heads = self.heads(config, hidden)?;
        let dense = DenseSpec {
            ffn: config.required("intermediate_size", WIDTH_MAX)?,
            activation: activation(config, self.activation)?,
            gated: self.gated,
            up_bias: self.mlp_bias.read(config)?,
            down_bias: self.mlp_bias.read(config)?,
        };
        let attention = AttentionSpec {
            qkv_bias: self.qkv_bias.read(config)?,
            output_bias: self.output_bias.read(config)?,
            qk_norm: self.qk_norm,
            ..AttentionSpec::causal(heads)
        };
        let windows = self.windows(config, layers)?;
        let layers = windows.into_iter().map(|window| LayerSpec {
            order: self.order,
            attention: AttentionSpec { mask: Mask::Causal { window }, ..attention.clone() },
            mlp: MlpSpec::Dense(dense),
            residual_scale: 1.0,
        });
        let rope = self.rope(config, &rope_settings(config, "full_attention")?, (heads.head_dim, context))?;
        let norm = NormSpec { kind: self.norm, eps: config.positive(self.eps.0)?.unwrap_or(self.eps.1) };
        let sizes = [config.required("vocab_size", VOCAB_MAX)?, hidden];
        let context = stretched_context(&rope.scaling, context);
        let mut spec = TransformerSpec {
            ropes: vec![rope],
            head: HeadSpec::plain(config.bool("tie_word_embeddings")?.unwrap_or(self.tied)),
            ..TransformerSpec::bare(self.model_type, sizes, layers.collect(), norm, context)
        };
        (self.own)(config, &mut spec)?;
        spec.checked(&config.file)
    }

    fn check_settings(&self, config: &Config) -> Result<(), LoadError> {
        for &key in REFUSED.iter().chain(self.refused) {
            if let Some(value) = config.get(key).filter(|value| !is_nothing(value)) {
                return Err(config.unsupported(key, value, "this build cannot run models that have it"));
            }
        }
        match config.get("architectures").filter(|classes| !is_nothing(classes)) {
            Some(classes)
                if !classes.as_array().is_some_and(|all| all.iter().any(|name| name == self.class)) =>
            {
                Err(config.unsupported("architectures", classes, format!("{} is known", self.class)))
            }
            _ => Ok(()),
        }
    }

    fn heads(&self, config: &Config, hidden: usize) -> Result<HeadShape, LoadError> {
        let heads = config.required("num_attention_heads", HEADS_MAX)?;
        let kv_heads = config.count("num_key_value_heads", HEADS_MAX)?.unwrap_or(heads);
        let head_dim = match config.count("head_dim", HEAD_DIM_MAX)?.or(self.head_dim) {
            Some(head_dim) => head_dim,
            None if hidden.is_multiple_of(heads) && hidden / heads <= HEAD_DIM_MAX => hidden / heads,
            None => {
                let reason = format!("hidden states of {hidden} do not split into {heads} heads");
                return Err(config.corrupt("num_attention_heads", reason));
            }
        };
        Ok(HeadShape { heads, kv_heads, head_dim })
    }

    fn windows(&self, config: &Config, layers: usize) -> Result<Vec<Option<u32>>, LoadError> {
        let window = match self.windows {
            Windows::Never => return Ok(vec![None; layers]),
            _ => config.count("sliding_window", CONTEXT_TOKENS_MAX)?.map(|window| window as u32),
        };
        let Windows::AllButEach(usual) = self.windows else { return Ok(vec![window; layers]) };
        match config.get("layer_types").filter(|types| !types.is_null()) {
            Some(types) => windows_by_type(config, types, window, layers),
            None => {
                let pattern = match config.get("sliding_window_pattern") {
                    // One letter a layer, the last of which has no window: LLLG.
                    Some(Value::String(letters)) => letters.len().max(1),
                    _ => config.count("sliding_window_pattern", LAYERS_MAX)?.unwrap_or(usual),
                };
                Ok((1..=layers).map(|layer| window.filter(|_| !layer.is_multiple_of(pattern))).collect())
            }
        }
    }

    fn rope(
        &self,
        config: &Config,
        settings: &Config,
        (head_dim, context): (usize, usize),
    ) -> Result<RopeSpec, LoadError> {
        let turned = match settings.positive("partial_rotary_factor")? {
            Some(turned) => turned,
            None => config.positive("partial_rotary_factor")?.unwrap_or(self.turned),
        };
        let dim = (head_dim as f32 * turned) as usize;
        let base = match settings.positive("rope_theta")? {
            Some(base) => base,
            None => config.positive("rope_theta")?.unwrap_or(self.rope_base),
        };
        let plain = RopeSpec::plain(self.rope_kind, base, dim);
        let rope_type = match settings.string("rope_type")? {
            Some(rope_type) => rope_type,
            None => settings.string("type")?.unwrap_or("default"),
        };
        stretch(plain, (config, settings), rope_type, context)
    }
}

/// Settings of rotary embeddings, which newer files keep by the kind of layer.
pub(super) fn rope_settings(config: &Config, of_layers: &str) -> Result<Config, LoadError> {
    let settings = match config.object("rope_scaling")? {
        Some(settings) => Some(settings),
        None => config.object("rope_parameters")?,
    };
    let Some(settings) = settings else { return Ok(Config::new(config.file.clone(), Map::new())) };
    Ok(settings.object(of_layers)?.unwrap_or(settings))
}

pub(super) const XIELU: &str = "xielu";

fn activation(config: &Config, (key, usual): (&str, &'static str)) -> Result<Activation, LoadError> {
    let named = match config.string(key)? {
        Some(named) => named,
        // Gemma's first files have this key but mean the default of their class.
        None if key == "hidden_activation" => usual,
        None => config.string("hidden_act")?.unwrap_or(usual),
    };
    match named {
        // It has parameters for each layer, so it is no activation of the kernels.
        XIELU if usual == XIELU => Ok(Activation::Silu),
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu_pytorch_tanh" | "gelu_new" => Ok(Activation::GeluTanh),
        "gelu" => Ok(Activation::GeluErf),
        "relu" => Ok(Activation::Relu),
        "relu2" => Ok(Activation::ReluSquared),
        other => {
            let known = "silu, gelu, gelu_new, gelu_pytorch_tanh, relu and relu2 are known";
            Err(config.unsupported(key, other, known))
        }
    }
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(truth) => !truth,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(values) => values.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

/// Gives each head of queries and of keys a separate norm.
fn norm_heads_apart(spec: &mut TransformerSpec) {
    spec.layers.iter_mut().for_each(|layer| layer.attention.qk_norm = QkNorm::HeadsApart);
}

/// Disables rotation in layers without a window.
fn turn_windows_alone(spec: &mut TransformerSpec) {
    for layer in &mut spec.layers {
        layer.attention.rope = layer.attention.window().map(|_| 0);
    }
}

pub(super) fn set_logits(spec: &mut TransformerSpec, scale: f32, softcap: Option<f32>) {
    spec.head = HeadSpec::Logits(LogitsSpec { scale, softcap, ..LogitsSpec::plain(spec.head.tied()) });
}

/// A setting that is `None` if null, and the default if absent.
pub(super) fn unless_null(config: &Config, key: &str, usual: Option<f32>) -> Result<Option<f32>, LoadError> {
    match config.settings.get(key) {
        Some(Value::Null) => Ok(None),
        _ => Ok(config.positive(key)?.or(usual)),
    }
}

fn gemma2(config: &Config, spec: &mut TransformerSpec) -> Result<(), LoadError> {
    (GEMMA.own)(config, spec)?;
    set_logits(spec, 1.0, unless_null(config, "final_logit_softcapping", Some(30.0))?);
    let softcap = unless_null(config, "attn_logit_softcapping", Some(50.0))?;
    let scale = query_scale(config)?;
    for layer in &mut spec.layers {
        (layer.attention.softcap, layer.attention.scale) = (softcap, scale);
    }
    Ok(())
}

fn query_scale(config: &Config) -> Result<f32, LoadError> {
    Ok(1.0 / config.positive("query_pre_attn_scalar")?.unwrap_or(256.0).sqrt())
}

fn gemma3(config: &Config, spec: &mut TransformerSpec) -> Result<(), LoadError> {
    (GEMMA.own)(config, spec)?;
    set_logits(spec, 1.0, config.positive("final_logit_softcapping")?);
    let (softcap, scale) = (config.positive("attn_logit_softcapping")?, query_scale(config)?);
    // Layers with a window have a separate rotation, which is never stretched.
    let settings = rope_settings(config, "sliding_attention")?;
    let own = config.object("rope_parameters")?.is_some_and(|all| all.get("sliding_attention").is_some());
    let base =
        if own { settings.positive("rope_theta")? } else { config.positive("rope_local_base_freq")? };
    let base = base.unwrap_or(1e4);
    let local = RopeSpec { base, ..spec.ropes[0].unstretched() };
    spec.ropes.push(local);
    for layer in &mut spec.layers {
        layer.attention.rope = Some(usize::from(layer.attention.window().is_some()));
        (layer.attention.softcap, layer.attention.scale) = (softcap, scale);
    }
    Ok(())
}

fn olmo3(_: &Config, spec: &mut TransformerSpec) -> Result<(), LoadError> {
    let local = spec.ropes[0].unstretched();
    spec.ropes.push(local);
    for layer in &mut spec.layers {
        layer.attention.rope = Some(usize::from(layer.attention.window().is_some()));
    }
    Ok(())
}

fn ministral3(config: &Config, spec: &mut TransformerSpec) -> Result<(), LoadError> {
    let settings = config.object("rope_parameters")?.ok_or_else(|| config.missing("rope_parameters"))?;
    let scale = super::rope::query_scale(&settings)?;
    spec.layers.iter_mut().for_each(|layer| layer.attention.query_scale = scale);
    Ok(())
}

fn granite(config: &Config, spec: &mut TransformerSpec) -> Result<(), LoadError> {
    spec.embedding_scale = config.positive("embedding_multiplier")?.unwrap_or(1.0);
    set_logits(spec, 1.0 / config.positive("logits_scaling")?.unwrap_or(1.0), None);
    let scale = config.positive("attention_multiplier")?.unwrap_or(1.0);
    let residual = config.positive("residual_multiplier")?.unwrap_or(1.0);
    for layer in &mut spec.layers {
        (layer.attention.scale, layer.residual_scale) = (scale, residual);
    }
    Ok(())
}

fn cohere(config: &Config, spec: &mut TransformerSpec) -> Result<(), LoadError> {
    set_logits(spec, config.positive("logit_scale")?.unwrap_or(0.0625), None);
    if config.bool("use_qk_norm")?.unwrap_or(false) {
        norm_heads_apart(spec);
    }
    Ok(())
}

fn smollm3(config: &Config, spec: &mut TransformerSpec) -> Result<(), LoadError> {
    const LIST: &str = "no_rope_layers";
    let count = spec.layers.len();
    let turned: Vec<bool> = match config.get(LIST).and_then(Value::as_array).filter(|list| !list.is_empty()) {
        Some(list) if list.len() == count => list.iter().map(|value| value.as_u64() == Some(1)).collect(),
        Some(list) => {
            return Err(config.corrupt(LIST, format!("{} numbers for {count} layers", list.len())));
        }
        None => {
            let each = config.count("no_rope_layer_interval", LAYERS_MAX)?.unwrap_or(4);
            (1..=count).map(|layer| !layer.is_multiple_of(each)).collect()
        }
    };
    for (layer, turned) in spec.layers.iter_mut().zip(turned) {
        layer.attention.rope = turned.then_some(0);
    }
    Ok(())
}
