//! Reading of a decoder's [`TransformerSpec`] from GGUF metadata. Unknown keys under the architecture's name are
//! refused, because they could change the computation.

use hanzo_engine_kernels::{Activation, HeadShape, RopeKind};

use super::rope::yarn_magnitude;
use super::unknown::unknown;
use super::{
    AttentionSpec, ExpertsSpec, HeadSpec, LayerPart, LayerSpec, LongRope, Mask, MlpSpec, Names, NormKind,
    NormOrder, NormSpec, Part, QkNorm, RopeScaling, RopeSpec, TransformerSpec, Weight, dense_gguf,
    gemma_gguf, hybrids_gguf, mixtures_gguf, states_gguf,
};
use crate::error::{LoadError, shorten};
use crate::gguf::{Array, Gguf, Metadata, Value};
use crate::limits::{
    CONTEXT_TOKENS_MAX, EXPERTS_MAX, HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, VOCAB_MAX, WIDTH_MAX,
};
use crate::tensor::Tensor;

/// Properties of an architecture that its metadata does not contain.
struct Family {
    name: &'static str,
    rope: RopeKind,
    /// Query, key and value biases, if the tensors do not decide.
    qkv_bias: Option<bool>,
    qk_norm: bool,
    experts: Experts,
}

/// Whether an architecture's layers are mixtures of experts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Experts {
    Never,
    /// If there is an `expert_count`; `feed_forward_length` is then of one expert (Mixtral).
    IfCounted,
    /// All layers, of `expert_feed_forward_length`.
    Always,
}

/// The converter stores llama's query and key rows permuted, so that rope rotates neighbours (Mistral and Yi too:
/// their architecture is llama).
const FAMILIES: &[Family] = &[
    Family {
        name: "llama",
        rope: RopeKind::Interleaved,
        qkv_bias: None,
        qk_norm: false,
        experts: Experts::IfCounted,
    },
    Family {
        name: "qwen2",
        rope: RopeKind::Neox,
        qkv_bias: Some(true),
        qk_norm: false,
        experts: Experts::Never,
    },
    Family { name: "qwen3", rope: RopeKind::Neox, qkv_bias: None, qk_norm: true, experts: Experts::Never },
    Family {
        name: "qwen3moe",
        rope: RopeKind::Neox,
        qkv_bias: None,
        qk_norm: true,
        experts: Experts::Always,
    },
    Family {
        name: MLLAMA,
        rope: RopeKind::Interleaved,
        qkv_bias: Some(false),
        qk_norm: false,
        experts: Experts::Never,
    },
    Family {
        name: "qwen3vlmoe",
        rope: RopeKind::Neox,
        qkv_bias: None,
        qk_norm: true,
        experts: Experts::Always,
    },
];

/// Llama 3.2 Vision, whose files include the vision tower.
const MLLAMA: &str = "mllama";
/// Key with its cross-attention layers.
const CROSSING: &str = "attention.cross_attention_layers";

/// Keys that are read below.
const READ: &[&str] = &[
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.attn_factor",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
];

/// Keys of mixtures of experts that are read below. These architectures do not know others (shared experts, groups,
/// factors, other scorings).
const EXPERTS_READ: &[(&str, &[Experts])] = &[
    ("expert_count", &[Experts::IfCounted, Experts::Always]),
    ("expert_feed_forward_length", &[Experts::Always]),
    ("expert_used_count", &[Experts::IfCounted, Experts::Always]),
];

/// Keys that do not change a decoder's computation. The vocabulary is given by the embedding's rows; others describe
/// the making of the file or the pipeline around the decoder, or are of images: a text has the same position on all
/// axes.
const HARMLESS: &[&str] = &[
    "classifier.output_labels",
    "n_deepstack_layers",
    "pooling_type",
    "rope.dimension_sections",
    "rope.scaling.finetuned",
    "tensor_data_layout",
    "vocab_size",
];

/// Keys that are neutral if they are zero or false.
const HARMLESS_AT_ZERO: &[&str] = &[
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "expert_count",
    "expert_used_count",
    "rope.scaling.yarn_log_multiplier",
    "use_parallel_residual",
];

/// Reads a decoder's spec from a GGUF file's metadata, and from its tensors if those decide.
///
/// # Errors
/// `Missing`, `Corrupt` or `Unsupported` naming the key.
pub fn from_gguf(gguf: &Gguf) -> Result<TransformerSpec, LoadError> {
    let spec = of_architecture(gguf)?;
    Ok(TransformerSpec { permuted: is_permuted(&spec.architecture), ..spec })
}

/// Architectures whose queries and keys llama.cpp's converter permutes.
const PERMUTED: &[&str] = &[
    "arcee",
    "baichuan",
    "bailingmoe",
    "deepseek",
    "granite",
    "granitehybrid",
    "granitemoe",
    "internlm2",
    "llama",
    "minicpm",
    "mistral3",
    "mllama",
    "nemotron_h",
    "nemotron_h_moe",
    "olmo",
    "smollm3",
    "xverse",
];

/// Whether GGUF files of an architecture have the rows of queries and keys permuted ([`TransformerSpec::permuted`]).
pub(crate) fn is_permuted(architecture: &str) -> bool {
    PERMUTED.contains(&architecture)
}

fn of_architecture(gguf: &Gguf) -> Result<TransformerSpec, LoadError> {
    let metadata: &Metadata = &gguf.metadata;
    let architecture =
        metadata.string("general.architecture")?.ok_or_else(|| metadata.missing("general.architecture"))?;
    if architecture == "clip" {
        return Err(LoadError::Unsupported {
            file: metadata.file().to_owned(),
            key: "general.architecture".into(),
            value: architecture.to_owned(),
            reason: "it is a projector (mmproj), the part of a model that reads images or sound; load the file of the \
                     model itself, whose text this build runs"
                .into(),
        });
    }
    if mixtures_gguf::known().any(|name| name == architecture) {
        let keys = Keys { metadata, architecture };
        keys.refuse_unknown(|name| mixtures_gguf::reads(architecture, name))?;
        return mixtures_gguf::from_gguf(gguf, &keys);
    }
    if gemma_gguf::known().any(|name| name == architecture) {
        let keys = Keys { metadata, architecture };
        keys.refuse_unknown(|name| gemma_gguf::READ.contains(&name))?;
        return gemma_gguf::from_gguf(gguf, &keys);
    }
    if dense_gguf::knows(architecture) {
        let keys = Keys { metadata, architecture };
        keys.refuse_unknown(|name| dense_gguf::reads(architecture, name))?;
        return dense_gguf::from_gguf(gguf, &keys);
    }
    if states_gguf::knows(architecture) {
        let keys = Keys { metadata, architecture };
        keys.refuse_unknown(states_gguf::reads)?;
        return states_gguf::from_gguf(gguf, &keys);
    }
    if hybrids_gguf::known().any(|name| name == architecture) {
        let keys = Keys { metadata, architecture };
        keys.refuse_unknown(hybrids_gguf::reads)?;
        return hybrids_gguf::from_gguf(gguf, &keys);
    }
    let Some(family) = FAMILIES.iter().find(|family| family.name == architecture) else {
        let known = FAMILIES.iter().map(|family| family.name).chain(mixtures_gguf::known());
        let known = known.chain(dense_gguf::known()).chain(states_gguf::known()).chain(gemma_gguf::known());
        let known = known.chain(hybrids_gguf::known()).chain(crate::encoder::gguf_encoders());
        return Err(LoadError::Unsupported {
            file: metadata.file().to_owned(),
            key: "general.architecture".into(),
            value: shorten(architecture.to_owned()),
            reason: unknown(architecture, known),
        });
    };
    let keys = Keys { metadata, architecture };
    keys.refuse_unknown(|name| {
        EXPERTS_READ.iter().any(|(key, by)| *key == name && by.contains(&family.experts))
            || name == CROSSING && family.name == MLLAMA
    })?;
    let has = |weight: Weight| find(gguf, &Names::GGUF.of("", weight)).is_some();

    let embedding = Names::GGUF.of("", Part::TokenEmbedding.weight());
    let Some(embedding) = find(gguf, &embedding) else {
        return Err(LoadError::Missing {
            file: metadata.file().to_owned(),
            what: format!("tensor {embedding}"),
            hint: String::new(),
        });
    };
    let vocab = embedding.shape[0];
    if vocab > VOCAB_MAX {
        return Err(LoadError::Corrupt {
            file: metadata.file().to_owned(),
            what: format!("tensor {}", embedding.name),
            reason: format!("{vocab} rows; at most {VOCAB_MAX} are allowed"),
        });
    }
    let hidden = keys.required("embedding_length", WIDTH_MAX)?;
    let layers = keys.required("block_count", LAYERS_MAX)?;
    let heads = keys.heads(hidden)?;
    let context = keys.required("context_length", CONTEXT_TOKENS_MAX)?;
    let window = keys.metadata.u32(&keys.key("attention.sliding_window"))?.filter(|&window| window > 0);
    if let Some(window) = window
        && family.name != "llama"
    {
        // Qwen windows only some layers, and the metadata does not say which.
        return Err(keys.unsupported("attention.sliding_window", window, "only llama's is known"));
    }
    let mlp = match keys.experts(family)? {
        Some(experts) => MlpSpec::Experts(experts),
        None => MlpSpec::gated(keys.required("feed_forward_length", WIDTH_MAX)?, Activation::Silu),
    };
    let has_bias = |part| has(Part::Layer(0, part).bias());
    let layer = LayerSpec {
        order: NormOrder::Pre,
        attention: AttentionSpec {
            mask: Mask::Causal { window },
            qkv_bias: family.qkv_bias.unwrap_or_else(|| has_bias(LayerPart::Query)),
            output_bias: has_bias(LayerPart::AttentionOutput),
            qk_norm: if family.qk_norm { QkNorm::Heads } else { QkNorm::None },
            ..AttentionSpec::causal(heads)
        },
        mlp,
        residual_scale: 1.0,
    };
    let norm = NormSpec { kind: NormKind::Rms { from_one: false }, eps: keys.epsilon()? };
    let mut spec = TransformerSpec {
        ropes: vec![keys.rope_of(gguf, family.rope, heads.head_dim, context)?],
        head: HeadSpec::plain(!has(Part::Head.weight())),
        ..TransformerSpec::bare(architecture, [vocab, hidden], vec![layer; layers], norm, context)
    };
    let crossing = metadata.integers(&keys.key(CROSSING))?.unwrap_or_default();
    let crossing = crossing.into_iter().filter_map(|layer| usize::try_from(layer).ok());
    spec.cross(&crossing.collect::<Vec<_>>());
    spec.checked(metadata.file())
}

/// Divisors of rope's frequencies for texts longer than the original context, and for others (LongRoPE).
pub(crate) const LONG_FACTORS: [&str; 2] = ["rope_factors_long.weight", "rope_factors_short.weight"];
/// Divisors of rope's frequencies: the converter's form of Llama 3.1's scaling.
pub(crate) const ROPE_FACTORS: &str = "rope_freqs.weight";

fn find<'a>(gguf: &'a Gguf, name: &str) -> Option<&'a Tensor> {
    gguf.tensors.iter().find(|tensor| tensor.name == name)
}

/// Keys under the architecture's name.
pub(super) struct Keys<'a> {
    pub(super) metadata: &'a Metadata,
    pub(super) architecture: &'a str,
}

impl Keys<'_> {
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    pub(super) fn unsupported(&self, name: &str, value: impl ToString, reason: &str) -> LoadError {
        LoadError::Unsupported {
            file: self.metadata.file().to_owned(),
            key: self.key(name),
            value: shorten(value.to_string()),
            reason: reason.to_owned(),
        }
    }

    /// Vocabulary size: the number of the embedding's rows.
    pub(super) fn vocab(&self, gguf: &Gguf, names: &Names) -> Result<usize, LoadError> {
        let embedding = names.of("", Part::TokenEmbedding.weight());
        let rows = gguf.tensors.iter().find(|tensor| tensor.name == embedding).map(|tensor| tensor.shape[0]);
        rows.filter(|&rows| rows <= VOCAB_MAX).ok_or_else(|| LoadError::Missing {
            file: self.metadata.file().to_owned(),
            what: format!("tensor {embedding}"),
            hint: format!("; it has a row for each of at most {VOCAB_MAX} tokens"),
        })
    }

    /// A whole number up to `max`.
    pub(super) fn whole(&self, name: &str, max: usize) -> Result<Option<usize>, LoadError> {
        match self.metadata.get(&self.key(name)) {
            Some(value) if is_zero(value) => Ok(Some(0)),
            _ => self.count(name, max),
        }
    }

    /// Refuses keys that neither every decoder has nor this family reads.
    fn refuse_unknown(&self, read: impl Fn(&str) -> bool) -> Result<(), LoadError> {
        let prefix = self.key("");
        for (key, value) in self.metadata.iter() {
            let Some(name) = key.strip_prefix(&prefix) else { continue };
            let known = READ.contains(&name)
                || read(name)
                || HARMLESS.contains(&name)
                || (HARMLESS_AT_ZERO.contains(&name) && is_zero(value))
                || (name == "attention.causal" && *value == Value::Bool(true));
            if !known {
                return Err(self.unsupported(name, value, "this build does not know what to do with it"));
            }
        }
        Ok(())
    }

    /// A count from 1 to `max`, possibly given as a list with the same count for every layer.
    pub(super) fn count(&self, name: &str, max: usize) -> Result<Option<usize>, LoadError> {
        let key = self.key(name);
        let number = match self.metadata.get(&key) {
            None => return Ok(None),
            Some(Value::Array(Array::String(_))) | Some(Value::Array(Array::Array(_))) => {
                self.metadata.integer(&key)?
            }
            Some(Value::Array(_)) => {
                let per_layer = self.metadata.integers(&key)?.unwrap_or_default();
                let first = per_layer.first().copied();
                if per_layer.iter().any(|&count| Some(count) != first) {
                    return Err(self.unsupported(
                        name,
                        format!("{per_layer:?}"),
                        "all layers must have the same",
                    ));
                }
                first
            }
            Some(_) => self.metadata.integer(&key)?,
        };
        match number.map(usize::try_from) {
            Some(Ok(number)) if (1..=max).contains(&number) => Ok(Some(number)),
            _ => Err(self
                .metadata
                .corrupt(&key, format!("{} is not from 1 to {max}", number.unwrap_or_default()))),
        }
    }

    pub(super) fn required(&self, name: &str, max: usize) -> Result<usize, LoadError> {
        self.count(name, max)?.ok_or_else(|| self.metadata.missing(&self.key(name)))
    }

    /// A finite float above zero.
    pub(super) fn positive(&self, name: &str) -> Result<Option<f32>, LoadError> {
        let key = self.key(name);
        match self.metadata.f32(&key)? {
            Some(value) if !(value.is_finite() && value > 0.0) => {
                Err(self.metadata.corrupt(&key, format!("{value} is not a number above 0")))
            }
            value => Ok(value),
        }
    }

    /// Mixture of experts of all layers, with normalised softmax weights: llama.cpp runs these architectures in this
    /// way, whatever a model's makers did.
    fn experts(&self, family: &Family) -> Result<Option<ExpertsSpec>, LoadError> {
        let ffn = match family.experts {
            Experts::Never => return Ok(None),
            Experts::IfCounted => {
                let none = |name: &str| self.metadata.get(&self.key(name)).is_none_or(is_zero);
                if none("expert_count") && none("expert_used_count") {
                    return Ok(None);
                }
                "feed_forward_length"
            }
            Experts::Always => "expert_feed_forward_length",
        };
        let count = self.required("expert_count", EXPERTS_MAX)?;
        let used = self.required("expert_used_count", EXPERTS_MAX)?;
        Ok(Some(ExpertsSpec::softmax(count, used, self.required(ffn, WIDTH_MAX)?, true)))
    }

    pub(super) fn epsilon(&self) -> Result<f32, LoadError> {
        const NAME: &str = "attention.layer_norm_rms_epsilon";
        self.positive(NAME)?.ok_or_else(|| self.metadata.missing(&self.key(NAME)))
    }

    pub(super) fn heads(&self, hidden: usize) -> Result<HeadShape, LoadError> {
        let heads = self.required("attention.head_count", HEADS_MAX)?;
        let kv_heads = self.count("attention.head_count_kv", HEADS_MAX)?.unwrap_or(heads);
        let head_dim = match self.count("attention.key_length", HEAD_DIM_MAX)? {
            Some(length) => length,
            None if hidden.is_multiple_of(heads) && hidden / heads <= HEAD_DIM_MAX => hidden / heads,
            None => {
                return Err(self.metadata.corrupt(
                    &self.key("attention.head_count"),
                    format!("embeddings of {hidden} do not split into {heads} heads"),
                ));
            }
        };
        let value_length = self.count("attention.value_length", HEAD_DIM_MAX)?.unwrap_or(head_dim);
        if value_length != head_dim {
            let reason = format!("values must be as long as keys, {head_dim}");
            return Err(self.unsupported("attention.value_length", value_length, &reason));
        }
        Ok(HeadShape { heads, kv_heads, head_dim })
    }

    fn divisors(&self, tensor: &Tensor) -> Result<Vec<f32>, LoadError> {
        let factors = tensor.to_f32()?;
        match factors.iter().all(|factor| factor.is_finite() && *factor > 0.0) {
            true => Ok(factors),
            false => Err(LoadError::Corrupt {
                file: self.metadata.file().to_owned(),
                what: format!("tensor {}", tensor.name),
                reason: "a factor is not a number above 0".into(),
            }),
        }
    }

    /// Rotary embedding of a file that may have divisors of its frequencies: for all texts, or LongRoPE's, which
    /// differ for texts longer than the original context.
    pub(super) fn rope_of(
        &self,
        gguf: &Gguf,
        kind: RopeKind,
        head_dim: usize,
        context: usize,
    ) -> Result<RopeSpec, LoadError> {
        let [long, short] = LONG_FACTORS.map(|name| find(gguf, name));
        let mut rope = self.rope(kind, head_dim, context, short.or_else(|| find(gguf, ROPE_FACTORS)))?;
        let original = self.count("rope.scaling.original_context_length", CONTEXT_TOKENS_MAX)?;
        if let (Some(long), Some(original)) = (long, original.filter(|&original| original < context)) {
            let (factors, magnitude) = (self.divisors(long)?, rope.magnitude);
            rope.long = Some(LongRope { original_context: original as u32, factors, magnitude });
        }
        Ok(rope)
    }

    pub(super) fn rope(
        &self,
        kind: RopeKind,
        head_dim: usize,
        context: usize,
        factors: Option<&Tensor>,
    ) -> Result<RopeSpec, LoadError> {
        let factor = match self.positive("rope.scaling.factor")? {
            Some(factor) => factor,
            None => self.positive("rope.scale_linear")?.unwrap_or(1.0),
        };
        let mut magnitude = self.positive("rope.scaling.attn_factor")?.unwrap_or(1.0);
        // A factor without a type has always meant linear.
        let scaling_type = self.metadata.string(&self.key("rope.scaling.type"))?.unwrap_or("linear");
        let scaling = match scaling_type {
            "none" => RopeScaling::None,
            "linear" => RopeScaling::Linear { factor },
            "yarn" => {
                magnitude *= yarn_magnitude(factor, 1.0);
                RopeScaling::Yarn {
                    factor,
                    beta_fast: self.positive("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                    beta_slow: self.positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                    original_context: self
                        .count("rope.scaling.original_context_length", CONTEXT_TOKENS_MAX)?
                        .unwrap_or(context) as u32,
                    truncate: true,
                }
            }
            // The factors contain everything.
            "longrope" if factors.is_some() => RopeScaling::None,
            other => {
                let reason = "none, linear, yarn and, with its factors, longrope are known";
                return Err(self.unsupported("rope.scaling.type", other, reason));
            }
        };
        let factors = factors.map(|factors| self.divisors(factors)).transpose()?;
        Ok(RopeSpec {
            kind,
            base: self.positive("rope.freq_base")?.unwrap_or(10_000.0),
            dim: self.count("rope.dimension_count", HEAD_DIM_MAX)?.unwrap_or(head_dim),
            scaling,
            factors,
            magnitude,
            axes: None,
            long: None,
        })
    }
}

fn is_zero(value: &Value) -> bool {
    match *value {
        Value::Bool(truth) => !truth,
        Value::F32(x) => x == 0.0,
        Value::F64(x) => x == 0.0,
        Value::U8(n) => n == 0,
        Value::U16(n) => n == 0,
        Value::U32(n) => n == 0,
        Value::U64(n) => n == 0,
        Value::I8(n) => n == 0,
        Value::I16(n) => n == 0,
        Value::I32(n) => n == 0,
        Value::I64(n) => n == 0,
        Value::String(_) | Value::Array(_) => false,
    }
}
