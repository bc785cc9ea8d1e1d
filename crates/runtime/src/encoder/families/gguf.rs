//! The encoder families of GGUF files. Keys under the architecture's name that are not known here are refused.

use hanzo_engine_ops::{Activation, HeadShape};

use super::{ClassifierPlan, HeadLayerPlan, gated, gguf_local, plain, whole_attention};
use crate::error::LoadError;
use crate::gguf::{Gguf, Metadata, Value};
use crate::head::{HeadActivation, HeadInput};
use crate::limits::{
    CONTEXT_TOKENS_MAX, EXPERTS_MAX, HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, VOCAB_MAX, WIDTH_MAX,
};
use crate::spec::{
    Alibi, AttentionSpec, DenseSpec, Distance, ExpertNames, ExpertsSpec, GateUp, LayerSpec, MlpSpec, Names,
    NormKind, NormOrder, NormSpec, Part, PositionTable, QkNorm, TransformerSpec,
};

/// An architecture's differences.
struct Architecture {
    name: &'static str,
    names: Names,
    distance: Distance,
    positions: Positions,
    /// A gated MLP's non-linearity, or a plain one's where it has no gate.
    gated: Option<Activation>,
    /// Some of its layers have experts.
    experts: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Positions {
    Learned,
    Rotary,
    None,
}

/// As decoders' but for embeddings and norms.
const NAMES: Names = Names {
    position_embedding: "position_embd",
    type_embedding: "token_types",
    embedding_norm: "token_embd_norm",
    attention_norm: "attn_output_norm",
    experts: ExpertNames { gate: "", up: "", down: "", ..Names::GGUF.experts },
    mlp_norm: "layer_output_norm",
    ..Names::GGUF
};

/// BERT, RoBERTa and DistilBERT all; the converter has cut off the position embedding's first rows where positions
/// begin behind them.
const ARCHITECTURES: &[Architecture] = &[
    Architecture {
        name: "bert",
        names: NAMES,
        distance: Distance::None,
        positions: Positions::Learned,
        gated: None,
        experts: false,
    },
    Architecture {
        name: "nomic-bert",
        names: NAMES,
        distance: Distance::None,
        positions: Positions::Rotary,
        gated: Some(Activation::Silu),
        experts: false,
    },
    Architecture {
        name: "nomic-bert-moe",
        names: NAMES,
        distance: Distance::None,
        positions: Positions::Rotary,
        gated: None,
        experts: true,
    },
    Architecture {
        name: "jina-bert-v2",
        names: NAMES,
        distance: Distance::Alibi(Alibi::PLAIN),
        positions: Positions::None,
        gated: Some(Activation::GeluErf),
        experts: false,
    },
];

/// Keys that are read below.
const READ: &[&str] = &[
    "attention.causal",
    "attention.head_count",
    "attention.layer_norm_epsilon",
    "block_count",
    "classifier.output_labels",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.freq_base",
];

/// Keys that are read where an architecture has experts.
const EXPERTS_READ: &[&str] = &["expert_count", "expert_used_count", "moe_every_n_layers"];

/// Keys that do not change what an encoder computes: the vocabulary is the embedding's rows, and pooling is done with
/// what it gives.
const HARMLESS: &[&str] = &["pooling_type", "vocab_size", "tensor_data_layout"];

/// What a GGUF file says about an encoder.
pub(in crate::encoder) struct GgufPlan {
    pub(in crate::encoder) spec: TransformerSpec,
    pub(in crate::encoder) names: Names,
    pub(in crate::encoder) classifier: Option<ClassifierPlan>,
    pub(in crate::encoder) labels: Option<Vec<String>>,
}

/// Whether a GGUF file is an encoder's.
///
/// # Errors
/// `Corrupt` where its architecture is not a string.
pub fn is_encoder_gguf(metadata: &Metadata) -> Result<bool, LoadError> {
    Ok(local(metadata)?.is_some() || architecture(metadata)?.is_some())
}

/// The architectures of encoders, by their names in GGUF files.
pub(crate) fn gguf_encoders() -> impl Iterator<Item = &'static str> {
    ARCHITECTURES.iter().map(|architecture| architecture.name).chain(gguf_local::ARCHITECTURES)
}

fn architecture(metadata: &Metadata) -> Result<Option<&'static Architecture>, LoadError> {
    let name = metadata.string("general.architecture")?;
    Ok(ARCHITECTURES.iter().find(|architecture| Some(architecture.name) == name))
}

/// The architecture, where it has local layers.
fn local(metadata: &Metadata) -> Result<Option<&'static str>, LoadError> {
    let name = metadata.string("general.architecture")?;
    Ok(gguf_local::ARCHITECTURES.into_iter().find(|&architecture| Some(architecture) == name))
}

/// Reads an encoder's spec from a file's metadata, and from its tensors where those decide.
pub(in crate::encoder) fn plan(gguf: &Gguf) -> Result<GgufPlan, LoadError> {
    let metadata: &Metadata = &gguf.metadata;
    if let Some(architecture) = local(metadata)? {
        return gguf_local::plan(gguf, architecture);
    }
    let Some(architecture) = architecture(metadata)? else {
        let known: Vec<&str> = gguf_encoders().collect();
        return Err(LoadError::Unsupported {
            file: metadata.file().to_owned(),
            key: "general.architecture".into(),
            value: metadata.string("general.architecture")?.unwrap_or("nothing").to_owned(),
            reason: format!("encoders known are {}", known.join(", ")),
        });
    };
    let keys = Keys { metadata, architecture: architecture.name };
    keys.refuse_unknown(|name| {
        let of_experts = architecture.experts && EXPERTS_READ.contains(&name);
        of_experts || READ.contains(&name) || HARMLESS.contains(&name)
    })?;
    let spec = keys.spec(architecture, gguf)?;
    let mut names = architecture.names;
    let tensor = |name: &str| gguf.tensors.iter().find(|tensor| tensor.name == name);
    let has = |name: &str| tensor(name).is_some();
    if has("blk.0.attn_qkv.weight") {
        names.qkv = Some("attn_qkv");
    }
    let twice = spec.layers[0].order == NormOrder::PostTwice;
    if twice {
        (names.attention_post_norm, names.attention_norm) = (names.attention_norm, "attn_norm_2");
    }
    // Jina's gate and up are one tensor unless there is a gate.
    if architecture.gated.is_some() && !has("blk.0.ffn_gate.weight") {
        // In its models for code, which are told by their second norm, the gate comes behind.
        names.gate_up = Some(GateUp { name: "ffn_up", gate_first: !twice });
        names.gate = "ffn_gate.part";
        names.up = "ffn_up.part";
    }
    Ok(GgufPlan {
        names,
        classifier: classifier(metadata, &has)?,
        labels: metadata.strings(&keys.key("classifier.output_labels"))?.map(<[String]>::to_vec),
        spec: spec.checked(metadata.file())?,
    })
}

pub(super) fn classifier(
    metadata: &Metadata,
    has: &dyn Fn(&str) -> bool,
) -> Result<Option<ClassifierPlan>, LoadError> {
    let layer = |name, weight_bias: &str, activation| HeadLayerPlan {
        name,
        in_encoder: false,
        bias: has(weight_bias),
        activation,
        norm: None,
    };
    match (has("cls.weight"), has("cls.output.weight")) {
        (false, false) => Ok(None),
        // Which of two layers a single one is, and what came before it, the file does not say.
        (true, false) => Err(LoadError::Unsupported {
            file: metadata.file().to_owned(),
            key: "tensor cls.weight".into(),
            value: "there".into(),
            reason: "a classifier has cls.output.weight too".into(),
        }),
        (dense, true) => {
            let mut layers = Vec::with_capacity(2);
            if dense {
                layers.push(layer("cls", "cls.bias", HeadActivation::Tanh));
            }
            layers.push(layer("cls.output", "cls.output.bias", HeadActivation::Identity));
            Ok(Some(ClassifierPlan { input: HeadInput::Cls, layers }))
        }
    }
}

/// The keys under the architecture's name.
pub(super) struct Keys<'a> {
    pub(super) metadata: &'a Metadata,
    pub(super) architecture: &'static str,
}

impl Keys<'_> {
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    pub(super) fn unsupported(&self, name: &str, value: impl ToString, reason: &str) -> LoadError {
        LoadError::Unsupported {
            file: self.metadata.file().to_owned(),
            key: self.key(name),
            value: value.to_string(),
            reason: reason.to_owned(),
        }
    }

    pub(super) fn refuse_unknown(&self, is_known: impl Fn(&str) -> bool) -> Result<(), LoadError> {
        let prefix = self.key("");
        for (key, value) in self.metadata.iter() {
            let Some(name) = key.strip_prefix(&prefix) else { continue };
            if !is_known(name) {
                return Err(self.unsupported(name, value, "this build does not know what to do with it"));
            }
            if name == "attention.causal" && *value != Value::Bool(false) {
                return Err(self.unsupported(name, value, "an encoder sees its whole text"));
            }
        }
        Ok(())
    }

    pub(super) fn required(&self, name: &str, max: usize) -> Result<usize, LoadError> {
        let key = self.key(name);
        let number = self.metadata.integer(&key)?.ok_or_else(|| self.metadata.missing(&key))?;
        match usize::try_from(number) {
            Ok(number) if (1..=max).contains(&number) => Ok(number),
            _ => Err(self.metadata.corrupt(&key, format!("{number} is not from 1 to {max}"))),
        }
    }

    pub(super) fn positive(&self, name: &str) -> Result<Option<f32>, LoadError> {
        let key = self.key(name);
        match self.metadata.f32(&key)? {
            Some(value) if !(value.is_finite() && value > 0.0) => {
                Err(self.metadata.corrupt(&key, format!("{value} is not a number above 0")))
            }
            value => Ok(value),
        }
    }

    /// The experts, each a plain MLP as wide as the others', and every how many layers they stand, beginning with the
    /// second. Files leave their bias out.
    fn experts(
        &self,
        architecture: &Architecture,
        mlp: &DenseSpec,
    ) -> Result<Option<(ExpertsSpec, usize)>, LoadError> {
        if !architecture.experts {
            return Ok(None);
        }
        let every = self.required("moe_every_n_layers", LAYERS_MAX)?;
        if every == 1 {
            let reason = "experts in every second layer or fewer are known";
            return Err(self.unsupported("moe_every_n_layers", every, reason));
        }
        let count = self.required("expert_count", EXPERTS_MAX)?;
        let used = self.required("expert_used_count", count)?;
        let experts = ExpertsSpec {
            activation: mlp.activation,
            gated: false,
            ..ExpertsSpec::softmax(count, used, mlp.ffn, false)
        };
        Ok(Some((experts, every)))
    }

    /// MLP of each layer; `has` says which tensors the file has.
    fn mlp(&self, architecture: &Architecture, has: &dyn Fn(&str) -> bool) -> Result<DenseSpec, LoadError> {
        let mlp = match architecture.gated {
            Some(activation) => gated(activation, has("blk.0.ffn_down.bias")),
            // The files do not name it; the models they are made from have this one.
            None => {
                let bias = has("blk.0.ffn_up.bias");
                DenseSpec { up_bias: bias, down_bias: bias, ..plain(Activation::GeluErf) }
            }
        };
        Ok(DenseSpec { ffn: self.required("feed_forward_length", WIDTH_MAX / 2)?, ..mlp })
    }

    fn spec(&self, architecture: &Architecture, gguf: &Gguf) -> Result<TransformerSpec, LoadError> {
        const EPSILON: &str = "attention.layer_norm_epsilon";
        let tensor = |name: &str| gguf.tensors.iter().find(|tensor| tensor.name == name);
        let has = |name: &str| tensor(name).is_some();
        let rows =
            |part: Part| tensor(&architecture.names.of("", part.weight())).map(|tensor| tensor.shape[0]);
        let hidden = self.required("embedding_length", WIDTH_MAX)?;
        let layers = self.required("block_count", LAYERS_MAX)?;
        let heads = self.required("attention.head_count", HEADS_MAX)?;
        if !hidden.is_multiple_of(heads) || hidden / heads > HEAD_DIM_MAX {
            let reason = format!("embeddings of {hidden} do not split into {heads} heads");
            return Err(self.metadata.corrupt(&self.key("attention.head_count"), reason));
        }
        let head_dim = hidden / heads;
        let context = self.required("context_length", CONTEXT_TOKENS_MAX)?;
        let vocab = rows(Part::TokenEmbedding).filter(|&rows| rows <= VOCAB_MAX);
        let Some(vocab) = vocab else {
            return Err(LoadError::Missing {
                file: self.metadata.file().to_owned(),
                what: format!("tensor token_embd.weight with at most {VOCAB_MAX} rows"),
                hint: String::new(),
            });
        };
        let rope = super::whole_rope(self.positive("rope.freq_base")?.unwrap_or(10_000.0), head_dim);
        let jina = architecture.distance != Distance::None;
        let rotary = architecture.positions == Positions::Rotary;
        let mlp = self.mlp(architecture, &has)?;
        let experts = self.experts(architecture, &mlp)?;
        let layer = LayerSpec {
            order: match jina && has("blk.0.attn_norm_2.weight") {
                true => NormOrder::PostTwice,
                false => NormOrder::Post,
            },
            attention: AttentionSpec {
                qkv_bias: has("blk.0.attn_q.bias") || has("blk.0.attn_qkv.bias"),
                output_bias: has("blk.0.attn_output.bias"),
                qk_norm: if jina && has("blk.0.attn_q_norm.weight") { QkNorm::Whole } else { QkNorm::None },
                rope: rotary.then_some(0),
                ..whole_attention(HeadShape { heads, kv_heads: heads, head_dim })
            },
            mlp: MlpSpec::Dense(mlp),
            residual_scale: 1.0,
        };
        let norm = NormSpec {
            kind: NormKind::Layer { bias: true },
            eps: self.positive(EPSILON)?.ok_or_else(|| self.metadata.missing(&self.key(EPSILON)))?,
        };
        let name = architecture.name;
        let spec = TransformerSpec {
            positions: (architecture.positions == Positions::Learned).then_some(PositionTable {
                rows: rows(Part::PositionEmbedding).unwrap_or(context),
                offset: 0,
            }),
            type_vocab: rows(Part::TypeEmbedding).unwrap_or(0),
            embedding_norm: true,
            ropes: if rotary { vec![rope] } else { Vec::new() },
            distance: architecture.distance,
            ..TransformerSpec::bare(name, [vocab, hidden], vec![layer; layers], norm, context)
        };
        Ok(spec.with_layers(|index, layer| {
            if let Some((experts, every)) = experts
                && index % every == 1
            {
                layer.mlp = MlpSpec::Experts(experts);
            }
        }))
    }
}
