//! Decoders of GGUF files that are dense and not quite Llama, as llama.cpp's converter writes them, as data. What the format has no
//! key for is what llama.cpp takes for granted of an architecture.

use hanzo_engine_kernels::{Activation, QueryScale, RopeKind};

use super::gguf::Keys;
use super::rope::yarn_magnitude;
use super::{
    AttentionSpec, DenseSpec, HeadSpec, LayerPart, LayerSpec, LogitsSpec, Mask, MlpSpec, Names, NormKind,
    NormOrder, NormSpec, Part, QkNorm, RopeScaling, RopeSpec, TransformerSpec, Weight,
};
use crate::error::LoadError;
use crate::gguf::{Array, Gguf, Value};
use crate::limits::{CONTEXT_TOKENS_MAX, LAYERS_MAX, VOCAB_MAX, WIDTH_MAX};

/// Divisors of rope's frequencies for texts beyond the original context, and within it.
pub(crate) const LONG_FACTORS: [&str; 2] = ["rope_factors_long.weight", "rope_factors_short.weight"];

/// Keys that are read here beside those that any decoder has.
pub(super) const READ: &[&str] = &[
    "attention.layer_norm_epsilon",
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

/// An architecture: how it differs from the plainest.
struct Family {
    name: &'static str,
    order: NormOrder,
    norm: NormKind,
    rope: RopeKind,
    qk_norm: QkNorm,
    activation: Activation,
    gated: bool,
    /// Token embeddings are multiplied by the root of their size.
    embeds_by_root: bool,
    /// Layers see `attention.sliding_window` tokens but for each so many, which see all; 1: all layers do.
    full_each: usize,
    /// The window where the file names none.
    window: Option<u32>,
    turns: Turns,
    logit_scale: LogitScale,
    /// `feed_forward_length` is that of gate and up together.
    halved: bool,
    /// Keys without which a file would be of another model.
    required: &'static [&'static str],
    /// Models of so many layers see distances by ALiBi, and no key says so.
    refused_layers: Option<usize>,
}

/// Which layers turn queries and keys.
#[derive(Clone, Copy, PartialEq)]
enum Turns {
    All,
    /// Those with a window by another base, without scaling.
    WindowsApart(Option<f32>),
    /// Those with a window alone, where there is one.
    Windows,
    /// All but each so many.
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
    qk_norm: QkNorm::None,
    activation: Activation::Silu,
    gated: true,
    embeds_by_root: false,
    full_each: 0,
    window: None,
    turns: Turns::All,
    logit_scale: LogitScale::Factor,
    halved: false,
    required: &[],
    refused_layers: None,
};

const GEMMA: Family = Family { activation: Activation::GeluTanh, embeds_by_root: true, ..PLAIN };

const COHERE: Family = Family {
    order: NormOrder::Parallel,
    norm: NormKind::Layer { bias: false },
    rope: RopeKind::Interleaved,
    ..PLAIN
};

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
    Family {
        name: "gptneox",
        order: NormOrder::ParallelApart,
        norm: NormKind::Layer { bias: true },
        activation: Activation::GeluErf,
        gated: false,
        ..PLAIN
    },
    Family {
        name: "falcon",
        order: NormOrder::Parallel,
        norm: NormKind::Layer { bias: true },
        activation: Activation::GeluErf,
        gated: false,
        ..PLAIN
    },
    Family { name: "internlm2", rope: RopeKind::Interleaved, ..PLAIN },
    Family { name: "chatglm", rope: RopeKind::Interleaved, ..PLAIN },
    Family { name: "qwen", halved: true, ..PLAIN },
    Family { name: "baichuan", rope: RopeKind::Interleaved, refused_layers: Some(40), ..PLAIN },
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
    Family { name: "ernie4_5", rope: RopeKind::Interleaved, ..PLAIN },
    Family {
        name: "exaone4",
        order: NormOrder::Branch,
        qk_norm: QkNorm::Heads,
        full_each: 4,
        turns: Turns::Windows,
        ..PLAIN
    },
];

/// The names of architectures that are read here.
pub(super) fn known() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|family| family.name)
}

/// Whether an architecture is read here.
pub(super) fn knows(architecture: &str) -> bool {
    known().any(|name| name == architecture)
}

/// Reads a file of one of these architectures.
pub(super) fn from_gguf(gguf: &Gguf, keys: &Keys<'_>) -> Result<TransformerSpec, LoadError> {
    let family = FAMILIES.iter().find(|family| family.name == keys.architecture);
    family.unwrap_or(&PLAIN).read(gguf, keys)
}

impl Family {
    /// How queries grow beyond the original context, and the factor on cosine and sine that goes with it.
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
        let embedding = names.of("", Part::TokenEmbedding.weight());
        let Some(vocab) = find(&embedding).map(|tensor| tensor.shape[0]).filter(|&vocab| vocab <= VOCAB_MAX)
        else {
            return Err(LoadError::Missing {
                file: keys.metadata.file().to_owned(),
                what: format!("tensor {embedding}"),
                hint: format!("; it has a row for each of at most {VOCAB_MAX} tokens"),
            });
        };
        let hidden = keys.required("embedding_length", WIDTH_MAX)?;
        let count = keys.required("block_count", LAYERS_MAX)?;
        self.check_settings(keys, count)?;
        let context = keys.required("context_length", CONTEXT_TOKENS_MAX)?;
        let heads = keys.heads(hidden)?;
        let original = keys.count("rope.scaling.original_context_length", CONTEXT_TOKENS_MAX)?;
        let long = original.is_some_and(|original| context > original);
        let factors = find(LONG_FACTORS[usize::from(!long)]).or_else(|| find(super::ROPE_FACTORS));
        // Files of models that see have rows of queries and keys regrouped.
        let regrouped = keys.metadata.get(&keys.key("rope.dimension_sections")).is_some();
        let kind = if regrouped { RopeKind::Neox } else { self.rope };
        let mut rope = keys.rope(kind, heads.head_dim, context, factors)?;
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
            qk_norm: self.qk_norm,
            softcap: keys.positive("attn_logit_softcapping")?,
            query_scale,
            scale: self.scale(keys, (hidden, heads.heads, heads.head_dim), count)?,
            ..AttentionSpec::causal(heads)
        };
        let order = match keys.metadata.bool(&keys.key("use_parallel_residual"))? {
            Some(true) if self.name == "stablelm" => NormOrder::Parallel,
            Some(false) if self.name == "gptneox" => NormOrder::Pre,
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
        let mut ropes = vec![rope];
        if let Turns::WindowsApart(base) = self.turns {
            let base = keys.positive("rope.freq_base_swa")?.or(base).unwrap_or(ropes[0].base);
            let plain = RopeSpec { base, scaling: RopeScaling::None, magnitude: 1.0, ..ropes[0].clone() };
            ropes.push(plain);
        }
        let eps = match self.norm {
            NormKind::Rms { .. } => keys.epsilon()?,
            NormKind::Layer { .. } => {
                const NAME: &str = "attention.layer_norm_epsilon";
                keys.positive(NAME)?.ok_or_else(|| keys.metadata.missing(&keys.key(NAME)))?
            }
        };
        let scale = keys.positive("logit_scale")?.unwrap_or(1.0);
        let root = if self.embeds_by_root { (hidden as f32).sqrt() } else { 1.0 };
        TransformerSpec {
            ropes,
            embedding_scale: keys.positive("embedding_scale")?.unwrap_or(root),
            head: HeadSpec::Logits(LogitsSpec {
                tied: !has(Part::Head.weight()),
                scale: if self.logit_scale == LogitScale::Divisor { 1.0 / scale } else { scale },
                softcap: keys.positive("final_logit_softcapping")?,
            }),
            ..TransformerSpec::bare(
                self.name,
                [vocab, hidden],
                layers,
                NormSpec { kind: self.norm, eps },
                context,
            )
        }
        .checked(keys.metadata.file())
    }

    fn check_settings(&self, keys: &Keys<'_>, layers: usize) -> Result<(), LoadError> {
        for key in self.required {
            keys.positive(key)?.ok_or_else(|| keys.metadata.missing(&keys.key(key)))?;
        }
        match self.refused_layers {
            Some(refused) if refused == layers => {
                let reason = "models of so many layers see distances by ALiBi, which decoders here cannot";
                Err(keys.unsupported("block_count", layers, reason))
            }
            _ => Ok(()),
        }
    }

    /// The factor on scores. Of Gemma's largest files it is not that of the head's size, and no key says so.
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
