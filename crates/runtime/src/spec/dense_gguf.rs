//! Dense decoders of GGUF files that differ slightly from Llama, as written by llama.cpp's converter, as data.
//! Properties without a key in the format are those that llama.cpp assumes for the architecture.

use hanzo_engine_kernels::{Activation, QueryScale, RopeKind};

use super::dense_own::{MiniCpmFactors, NORMED_HEAD, set_latent};
use super::gguf::Keys;
use super::rope::yarn_magnitude;
use super::{
    Alibi, AttentionSpec, DenseSpec, Distance, HeadSpec, LatentShape, LayerPart, LayerSpec, LogitsSpec, Mask,
    MlpSpec, Names, NormKind, NormOrder, NormSpec, Part, PositionTable, QkNorm, RopeScaling, RopeSpec,
    TransformerSpec, Weight,
};
use crate::error::LoadError;
use crate::gguf::{Array, Gguf, Value};
use crate::limits::{CONTEXT_TOKENS_MAX, LAYERS_MAX, WIDTH_MAX};
use crate::tensor::Tensor;

/// Keys that are read here in addition to those of every decoder.
const READ: &[&str] = &[
    "attention.layer_norm_epsilon",
    "attention.max_alibi_bias",
    "attention.scale",
    "attention.temperature_scale",
    "attention.sliding_window_pattern",
    "attn_logit_softcapping",
    "embedding_scale",
    "final_logit_softcapping",
    "logit_scale",
    "residual_scale",
    "rope.freq_base_swa",
    "rope.scaling.yarn_log_multiplier",
    "use_parallel_residual",
];

/// Architecture: its differences from the plainest.
struct Family {
    name: &'static str,
    order: NormOrder,
    norm: NormKind,
    rope: RopeKind,
    positions: Positions,
    qk_norm: QkNorm,
    /// Whether queries and keys are normed after rotation.
    norm_after_rope: bool,
    activation: Activation,
    gated: bool,
    /// Whether token embeddings are multiplied by the square root of their size.
    embeds_by_root: bool,
    /// Period of the layers without the window of `attention.sliding_window` tokens; 1: no layer has it.
    full_each: usize,
    /// Default window, if the file has none.
    window: Option<u32>,
    turns: Turns,
    logit_scale: LogitScale,
    /// Whether `feed_forward_length` is the width of gate and up together.
    halved: bool,
    /// Keys without which the file would be of another model.
    required: &'static [&'static str],
}

/// Encoding of positions.
#[derive(Clone, Copy, PartialEq)]
enum Positions {
    /// Rotary embedding.
    Rotary,
    /// Learned embedding of positions.
    Learned,
    /// ALiBi.
    Alibi,
    /// ALiBi in models of this many layers, without a key for it; rotary embedding in others.
    AlibiInLayers(usize),
    /// ALiBi as `attention.max_alibi_bias` says.
    AlibiByKey,
}

/// Layers with rotary embedding.
#[derive(Clone, Copy, PartialEq)]
enum Turns {
    All,
    /// All; those with a window have another base, without scaling.
    WindowsApart(Option<f32>),
    /// Only those with a window, if there is a window.
    Windows,
    /// All but each nth.
    AllButEach(usize),
}

#[derive(Clone, Copy, PartialEq)]
enum LogitScale {
    Factor,
    Divisor,
}

const PLAIN: Family = Family {
    name: "",
    order: NormOrder::Pre,
    norm: NormKind::Rms { from_one: false },
    rope: RopeKind::Neox,
    positions: Positions::Rotary,
    qk_norm: QkNorm::None,
    norm_after_rope: false,
    activation: Activation::Silu,
    gated: true,
    embeds_by_root: false,
    full_each: 0,
    window: None,
    turns: Turns::All,
    logit_scale: LogitScale::Factor,
    halved: false,
    required: &[],
};

const GEMMA: Family = Family { activation: Activation::GeluTanh, embeds_by_root: true, ..PLAIN };

const COHERE: Family = Family {
    order: NormOrder::Parallel,
    norm: NormKind::Layer { bias: false },
    rope: RopeKind::Interleaved,
    ..PLAIN
};

/// Layer norms, and an MLP without a gate.
const NEOX: Family =
    Family { norm: NormKind::Layer { bias: true }, activation: Activation::GeluErf, gated: false, ..PLAIN };

const FAMILIES: &[Family] = &[
    Family { name: "gemma", ..GEMMA },
    Family { name: "gemma2", order: NormOrder::Sandwich, full_each: 2, window: Some(4096), ..GEMMA },
    Family {
        name: "gemma3",
        order: NormOrder::Sandwich,
        qk_norm: QkNorm::Heads,
        full_each: 6,
        turns: Turns::WindowsApart(Some(1e4)),
        ..GEMMA
    },
    Family { name: "phi3", full_each: 1, ..PLAIN },
    Family {
        name: "olmo2",
        order: NormOrder::Branch,
        qk_norm: QkNorm::Whole,
        full_each: 4,
        turns: Turns::WindowsApart(None),
        ..PLAIN
    },
    Family { name: "granite", rope: RopeKind::Interleaved, logit_scale: LogitScale::Divisor, ..PLAIN },
    Family { name: "glm4", order: NormOrder::Sandwich, rope: RopeKind::Interleaved, ..PLAIN },
    Family { name: "mistral3", rope: RopeKind::Interleaved, ..PLAIN },
    Family { name: "qwen2vl", ..PLAIN },
    Family { name: "qwen3vl", qk_norm: QkNorm::Heads, ..PLAIN },
    Family { name: "command-r", ..COHERE },
    Family { name: "cohere2", full_each: 4, turns: Turns::Windows, ..COHERE },
    Family { name: "smollm3", rope: RopeKind::Interleaved, turns: Turns::AllButEach(4), ..PLAIN },
    Family {
        name: "starcoder2",
        norm: NormKind::Layer { bias: true },
        activation: Activation::GeluTanh,
        gated: false,
        full_each: 1,
        ..PLAIN
    },
    Family { name: "stablelm", norm: NormKind::Layer { bias: true }, ..PLAIN },
    Family { name: "seed_oss", ..PLAIN },
    Family { name: "gptneox", order: NormOrder::ParallelApart, ..NEOX },
    Family { name: "falcon", order: NormOrder::Parallel, ..NEOX },
    Family { name: "internlm2", rope: RopeKind::Interleaved, ..PLAIN },
    Family { name: "chatglm", rope: RopeKind::Interleaved, ..PLAIN },
    Family { name: "qwen", halved: true, ..PLAIN },
    Family {
        name: "baichuan",
        rope: RopeKind::Interleaved,
        positions: Positions::AlibiInLayers(40),
        ..PLAIN
    },
    Family { name: "phi2", order: NormOrder::Parallel, activation: Activation::GeluTanh, ..NEOX },
    Family { name: "gpt2", positions: Positions::Learned, activation: Activation::GeluTanh, ..NEOX },
    Family { name: "starcoder", positions: Positions::Learned, activation: Activation::GeluTanh, ..NEOX },
    Family { name: "bloom", positions: Positions::Alibi, activation: Activation::GeluTanh, ..NEOX },
    Family { name: "mpt", norm: NormKind::Layer { bias: false }, positions: Positions::AlibiByKey, ..NEOX },
    Family { name: "nemotron", activation: Activation::ReluSquared, ..NEOX },
    Family {
        name: "arcee",
        rope: RopeKind::Interleaved,
        activation: Activation::ReluSquared,
        gated: false,
        ..PLAIN
    },
    Family { name: "olmo", norm: NormKind::LayerUnit, rope: RopeKind::Interleaved, ..PLAIN },
    Family { name: "hunyuan-dense", qk_norm: QkNorm::Heads, norm_after_rope: true, ..PLAIN },
    Family { name: "orion", norm: NormKind::Layer { bias: true }, ..PLAIN },
    Family { name: "xverse", rope: RopeKind::Interleaved, ..PLAIN },
    Family { name: "exaone", ..PLAIN },
    Family {
        name: "minicpm",
        rope: RopeKind::Interleaved,
        logit_scale: LogitScale::Divisor,
        required: &["embedding_scale", "logit_scale", "residual_scale"],
        ..PLAIN
    },
    Family { name: MINICPM3, ..PLAIN },
    Family { name: "ernie4_5", rope: RopeKind::Interleaved, ..PLAIN },
    Family { name: "apertus", qk_norm: QkNorm::Heads, gated: false, ..PLAIN },
    Family {
        name: "exaone4",
        order: NormOrder::Branch,
        qk_norm: QkNorm::Heads,
        full_each: 4,
        turns: Turns::Windows,
        ..PLAIN
    },
];

/// MiniCPM with latent attention.
const MINICPM3: &str = "minicpm3";
const MINICPM3_READ: &[&str] = &["attention.kv_lora_rank", "attention.q_lora_rank"];

/// Whether an architecture's file may have this key, in addition to those of every decoder.
pub(super) fn reads(architecture: &str, key: &str) -> bool {
    READ.contains(&key) || architecture == MINICPM3 && MINICPM3_READ.contains(&key)
}

/// Names of the architectures that this file reads.
pub(super) fn known() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|family| family.name)
}

/// Whether this file reads an architecture.
pub(super) fn knows(architecture: &str) -> bool {
    known().any(|name| name == architecture)
}

/// Reads a file of one of these architectures.
pub(super) fn from_gguf(gguf: &Gguf, keys: &Keys<'_>) -> Result<TransformerSpec, LoadError> {
    let family = FAMILIES.iter().find(|family| family.name == keys.architecture);
    family.unwrap_or(&PLAIN).read(gguf, keys)
}

/// Sets the latent shape and the factors, for which the format has no keys. Values have the length that hidden states
/// imply.
fn minicpm3(keys: &Keys<'_>, spec: &mut TransformerSpec) -> Result<(), LoadError> {
    let whole = spec.heads();
    let rope_dim = spec.ropes[0].dim;
    let Some(nope_dim) = whole.head_dim.checked_sub(rope_dim).filter(|&left| left > 0) else {
        let reason = format!("{rope_dim} of it are turned, and none is left");
        return Err(keys.unsupported("attention.key_length", whole.head_dim, &reason));
    };
    let shape = LatentShape {
        heads: whole.heads,
        query_rank: keys.count("attention.q_lora_rank", WIDTH_MAX)?,
        rank: keys.required("attention.kv_lora_rank", WIDTH_MAX)?,
        nope_dim,
        rope_dim,
        value_dim: spec.hidden / whole.heads,
        split_up: false,
    };
    set_latent(spec, shape);
    MiniCpmFactors::THIRD.set(spec);
    Ok(())
}

impl Family {
    /// Growth of queries beyond the original context, and the matching factor on cosine and sine.
    fn query_scale(
        &self,
        keys: &Keys<'_>,
        rope: &mut RopeSpec,
        original: Option<usize>,
    ) -> Result<Option<QueryScale>, LoadError> {
        const FACTOR: &str = "attention.temperature_scale";
        const MULTIPLIER: &str = "rope.scaling.yarn_log_multiplier";
        let set =
            |name| Ok::<_, LoadError>(keys.metadata.f32(&keys.key(name))?.filter(|&value| value != 0.0));
        let (factor, multiplier) = (set(FACTOR)?, set(MULTIPLIER)?);
        if self.name != "mistral3" {
            let found = [(FACTOR, factor), (MULTIPLIER, multiplier)];
            return match found.into_iter().find_map(|(name, value)| Some((name, value?))) {
                None => Ok(None),
                Some((name, value)) => {
                    Err(keys.unsupported(name, value, "this architecture does not read it"))
                }
            };
        }
        if let (Some(multiplier), RopeScaling::Yarn { factor, .. }) = (multiplier, &rope.scaling) {
            rope.magnitude /= yarn_magnitude(*factor, multiplier);
        }
        match (factor, original) {
            (None, _) => Ok(None),
            (Some(factor), Some(original)) => {
                Ok(Some(QueryScale { factor, every: original as u32, offset: 0 }))
            }
            (Some(_), None) => Err(keys.metadata.missing(&keys.key("rope.scaling.original_context_length"))),
        }
    }

    fn read(&self, gguf: &Gguf, keys: &Keys<'_>) -> Result<TransformerSpec, LoadError> {
        let names = Names::of_gguf(self.name);
        let find = |name: &str| gguf.tensors.iter().find(|tensor| tensor.name == name);
        let has = |weight: Weight| find(&names.of("", weight)).is_some();
        let in_first = |part| Part::Layer(0, part);
        let vocab = keys.vocab(gguf, names)?;
        let hidden = keys.required("embedding_length", WIDTH_MAX)?;
        let count = keys.required("block_count", LAYERS_MAX)?;
        self.check_settings(keys)?;
        let context = keys.required("context_length", CONTEXT_TOKENS_MAX)?;
        let heads = keys.heads(hidden)?;
        let original = keys.count("rope.scaling.original_context_length", CONTEXT_TOKENS_MAX)?;
        // Files of vision models have rows of queries and keys regrouped.
        let regrouped = keys.metadata.get(&keys.key("rope.dimension_sections")).is_some();
        let kind = if regrouped { RopeKind::Neox } else { self.rope };
        let mut rope = keys.rope_of(gguf, kind, heads.head_dim, context)?;
        let query_scale = self.query_scale(keys, &mut rope, original)?;
        let dense = DenseSpec {
            ffn: keys.required("feed_forward_length", WIDTH_MAX)? / if self.halved { 2 } else { 1 },
            activation: self.activation,
            gated: self.gated,
            up_bias: has(in_first(LayerPart::Up).bias()),
            down_bias: has(in_first(LayerPart::Down).bias()),
        };
        let fused = names.qkv.map(|stem| names.in_layer("", 0, &format!("{stem}.bias")));
        let attention = AttentionSpec {
            qkv_bias: has(in_first(LayerPart::Query).bias())
                || fused.is_some_and(|name| find(&name).is_some()),
            output_bias: has(in_first(LayerPart::AttentionOutput).bias()),
            qk_norm: match self.name {
                "command-r" | "stablelm" if has(in_first(LayerPart::QueryNorm).weight()) => {
                    QkNorm::HeadsApart
                }
                _ => self.qk_norm,
            },
            norm_after_rope: self.norm_after_rope,
            softcap: keys.positive("attn_logit_softcapping")?,
            query_scale,
            scale: self.scale(keys, (hidden, heads.heads, heads.head_dim), count)?,
            ..AttentionSpec::causal(heads)
        };
        let (positions, distance) = self.positions(keys, count, find("position_embd.weight"))?;
        let turns_nothing = positions.is_some() || distance != Distance::None;
        let order = match keys.metadata.bool(&keys.key("use_parallel_residual"))? {
            Some(true) if self.name == "stablelm" => NormOrder::Parallel,
            Some(false) if self.name == "gptneox" => NormOrder::Pre,
            None if self.name == "falcon" && find("blk.0.attn_norm_2.weight").is_some() => {
                NormOrder::ParallelApart
            }
            Some(true) if !self.order.is_parallel() => {
                return Err(keys.unsupported("use_parallel_residual", true, "this architecture has none"));
            }
            _ => self.order,
        };
        let residual_scale = keys.positive("residual_scale")?.unwrap_or(1.0);
        let layers = self.windows(keys, count)?.into_iter().enumerate().map(|(index, window)| LayerSpec {
            order,
            attention: AttentionSpec {
                mask: Mask::Causal { window },
                rope: match self.turns {
                    _ if turns_nothing => None,
                    Turns::All => Some(0),
                    Turns::WindowsApart(_) => Some(usize::from(window.is_some())),
                    Turns::Windows if keys.metadata.get(&keys.key("attention.sliding_window")).is_none() => {
                        Some(0)
                    }
                    Turns::Windows => window.map(|_| 0),
                    Turns::AllButEach(each) => (!(index + 1).is_multiple_of(each)).then_some(0),
                },
                ..attention.clone()
            },
            mlp: MlpSpec::Dense(dense),
            residual_scale,
        });
        let layers: Vec<LayerSpec> = layers.collect();
        let mut ropes = if turns_nothing { Vec::new() } else { vec![rope] };
        if let Turns::WindowsApart(base) = self.turns {
            let base = keys.positive("rope.freq_base_swa")?.or(base).unwrap_or(ropes[0].base);
            let factors = ropes[0].factors.clone();
            let plain = RopeSpec { base, factors, ..ropes[0].unstretched() };
            ropes.push(plain);
        }
        let eps = match self.norm {
            NormKind::Rms { .. } => keys.epsilon()?,
            _ => {
                const NAME: &str = "attention.layer_norm_epsilon";
                keys.positive(NAME)?.ok_or_else(|| keys.metadata.missing(&keys.key(NAME)))?
            }
        };
        let scale = keys.positive("logit_scale")?.unwrap_or(1.0);
        let root = if self.embeds_by_root { (hidden as f32).sqrt() } else { 1.0 };
        let mut spec = TransformerSpec {
            ropes,
            positions,
            distance,
            curved: self.name == "apertus",
            embedding_norm: has(Part::EmbeddingNorm.weight()),
            embedding_scale: keys.positive("embedding_scale")?.unwrap_or(root),
            head: HeadSpec::Logits(LogitsSpec {
                tied: !has(Part::Head.weight()),
                scale: if self.logit_scale == LogitScale::Divisor { 1.0 / scale } else { scale },
                softcap: keys.positive("final_logit_softcapping")?,
                bias: has(Part::Head.bias()),
                unit_rows: self.name == "baichuan" && vocab == NORMED_HEAD,
            }),
            ..TransformerSpec::bare(
                self.name,
                [vocab, hidden],
                layers,
                NormSpec { kind: self.norm, eps },
                context,
            )
        };
        if self.name == MINICPM3 {
            minicpm3(keys, &mut spec)?;
        }
        spec.checked(keys.metadata.file())
    }

    fn check_settings(&self, keys: &Keys<'_>) -> Result<(), LoadError> {
        for key in self.required {
            keys.positive(key)?.ok_or_else(|| keys.metadata.missing(&keys.key(key)))?;
        }
        Ok(())
    }

    /// Embedding of positions, or the decrease of scores with distance.
    fn positions(
        &self,
        keys: &Keys<'_>,
        layers: usize,
        table: Option<&Tensor>,
    ) -> Result<(Option<PositionTable>, Distance), LoadError> {
        const ALIBI: &str = "attention.max_alibi_bias";
        let stated = keys.metadata.f32(&keys.key(ALIBI))?.filter(|&exponent| exponent != 0.0);
        let plain = Distance::Alibi(Alibi::PLAIN);
        match (self.positions, stated) {
            (Positions::AlibiByKey, Some(exponent)) if exponent > 0.0 && exponent.fract() == 0.0 => {
                Ok((None, Distance::Alibi(Alibi { exponent_max: exponent as u32 })))
            }
            (Positions::AlibiByKey, None) => {
                Err(keys.unsupported(ALIBI, 0, "this build knows this architecture's ALiBi alone"))
            }
            (_, Some(exponent)) if exponent != 8.0 || self.positions == Positions::Rotary => {
                Err(keys.unsupported(ALIBI, exponent, "this architecture does not read it"))
            }
            (Positions::Learned, None) => {
                let rows = table.and_then(|table| table.shape.first()).copied().unwrap_or_default();
                Ok((Some(PositionTable { rows, offset: 0 }), Distance::None))
            }
            (Positions::Alibi, _) => Ok((None, plain)),
            (Positions::AlibiInLayers(count), _) if count == layers => Ok((None, plain)),
            _ => Ok((None, Distance::None)),
        }
    }

    /// Factor on scores. In Gemma's largest files it does not follow from the size of a head, and no key says so.
    fn scale(
        &self,
        keys: &Keys<'_>,
        (hidden, heads, head_dim): (usize, usize, usize),
        layers: usize,
    ) -> Result<f32, LoadError> {
        let largest = matches!((self.name, layers), ("gemma2", 46) | ("gemma3", 62));
        let usual = if largest { hidden / heads } else { head_dim };
        Ok(keys.positive("attention.scale")?.unwrap_or(1.0 / (usual as f32).sqrt()))
    }

    fn windows(&self, keys: &Keys<'_>, layers: usize) -> Result<Vec<Option<u32>>, LoadError> {
        const PATTERN: &str = "attention.sliding_window_pattern";
        let window = keys.whole("attention.sliding_window", CONTEXT_TOKENS_MAX)?.map(|window| window as u32);
        let window = window.or(self.window).filter(|&window| window > 0);
        let every = |each: usize| -> Vec<Option<u32>> {
            (1..=layers).map(|layer| window.filter(|_| each == 1 || !layer.is_multiple_of(each))).collect()
        };
        match keys.metadata.get(&keys.key(PATTERN)) {
            _ if self.full_each == 0 => match window {
                None => Ok(vec![None; layers]),
                Some(window) => {
                    Err(keys.unsupported("attention.sliding_window", window, "this architecture has none"))
                }
            },
            None => Ok(every(self.full_each)),
            Some(Value::Array(Array::Bool(of))) if of.len() == layers => {
                Ok(of.iter().map(|&sees| window.filter(|_| sees)).collect())
            }
            Some(Value::Array(_)) => {
                Err(keys.unsupported(PATTERN, "a list", "a number or a truth for each layer is known"))
            }
            Some(_) => Ok(every(keys.required(PATTERN, LAYERS_MAX)?)),
        }
    }
}
