//! GGUF files of encoders with local layers between global ones and a rotary base for either: ModernBERT's and EmbeddingGemma's.

use hanzo_engine_ops::{Activation, HeadShape};

use super::gguf::{GgufPlan, Keys, classifier};
use super::{gated, whole_attention};
use crate::error::LoadError;
use crate::gguf::Gguf;
use crate::limits::{CONTEXT_TOKENS_MAX, HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, VOCAB_MAX, WIDTH_MAX};
use crate::spec::{
    AttentionSpec, DenseSpec, GateUp, LayerSpec, Mask, MlpSpec, Names, NormKind, NormOrder, NormSpec, Part,
    QkNorm, TransformerSpec,
};

const MODERN: &str = "modern-bert";
const GEMMA: &str = "gemma-embedding";

/// The architectures' names.
pub(super) const ARCHITECTURES: [&str; 2] = [MODERN, GEMMA];

/// Keys of both that are read below, and those that say nothing that is not known.
const READ: [&str; 17] = [
    "attention.causal",
    "attention.head_count",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "block_count",
    "classifier.output_labels",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "hidden_activation",
    "pooling_type",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scaling.type",
    "tensor_data_layout",
    "vocab_size",
];
const MODERN_READ: &str = "attention.layer_norm_epsilon";
const GEMMA_READ: [&str; 4] = [
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
];

/// As decoders', with queries, keys and values in one tensor, and so gate and up.
const MODERN_NAMES: Names = Names {
    embedding_norm: "token_embd_norm",
    qkv: Some("attn_qkv"),
    gate_up: Some(GateUp { name: "ffn_up", gate_first: true }),
    gate: "ffn_gate.part",
    up: "ffn_up.part",
    ..Names::GGUF
};

/// Which of the spec's rotary embeddings each turns by.
const GLOBAL_ROPE: usize = 0;
const LOCAL_ROPE: usize = 1;

/// Reads a spec from a file's metadata.
pub(super) fn plan(gguf: &Gguf, architecture: &'static str) -> Result<GgufPlan, LoadError> {
    let metadata = &gguf.metadata;
    let keys = Keys { metadata, architecture };
    let is_modern = architecture == MODERN;
    keys.refuse_unknown(|name| {
        READ.contains(&name) || if is_modern { name == MODERN_READ } else { GEMMA_READ.contains(&name) }
    })?;
    if let Some(scaling) =
        metadata.string(&keys.key("rope.scaling.type"))?.filter(|&scaling| scaling != "none")
    {
        return Err(keys.unsupported(
            "rope.scaling.type",
            scaling,
            "frequencies that are not stretched are known",
        ));
    }
    let has = |name: &str| gguf.tensors.iter().any(|tensor| tensor.name == name);
    let spec = spec(&keys, gguf, is_modern)?;
    Ok(GgufPlan {
        names: if is_modern { MODERN_NAMES } else { Names::GGUF },
        classifier: classifier(metadata, &has)?,
        labels: metadata.strings(&keys.key("classifier.output_labels"))?.map(<[String]>::to_vec),
        spec: spec.checked(metadata.file())?,
    })
}

/// Positive number that a file may leave out.
fn optional(keys: &Keys<'_>, name: &str, max: usize) -> Result<Option<usize>, LoadError> {
    match keys.metadata.integer(&keys.key(name))? {
        None => Ok(None),
        Some(_) => keys.required(name, max).map(Some),
    }
}

/// Elements of a head, for queries, keys and values alike.
fn head_dim(keys: &Keys<'_>, hidden: usize, heads: usize) -> Result<usize, LoadError> {
    let head_dim = match optional(keys, "attention.key_length", HEAD_DIM_MAX)? {
        Some(dim) => dim,
        None if hidden.is_multiple_of(heads) && hidden / heads <= HEAD_DIM_MAX => hidden / heads,
        None => {
            let reason = format!("embeddings of {hidden} do not split into {heads} heads");
            return Err(keys.metadata.corrupt(&keys.key("attention.head_count"), reason));
        }
    };
    for same in ["attention.value_length", "rope.dimension_count"] {
        if let Some(dim) = optional(keys, same, HEAD_DIM_MAX)?.filter(|&dim| dim != head_dim) {
            return Err(keys.unsupported(same, dim, &format!("heads of {head_dim} have as many")));
        }
    }
    Ok(head_dim)
}

fn spec(keys: &Keys<'_>, gguf: &Gguf, is_modern: bool) -> Result<TransformerSpec, LoadError> {
    let metadata = keys.metadata;
    let hidden = keys.required("embedding_length", WIDTH_MAX)?;
    let layers = keys.required("block_count", LAYERS_MAX)?;
    let heads = keys.required("attention.head_count", HEADS_MAX)?;
    let context = keys.required("context_length", CONTEXT_TOKENS_MAX)?;
    let head_dim = head_dim(keys, hidden, heads)?;
    let kv_heads = optional(keys, "attention.head_count_kv", HEADS_MAX)?.unwrap_or(heads);
    let embedding = Names::GGUF.of("", Part::TokenEmbedding.weight());
    let embedding = gguf.tensors.iter().find(|tensor| tensor.name == embedding);
    let Some(vocab) = embedding.map(|tensor| tensor.shape[0]).filter(|&rows| rows <= VOCAB_MAX) else {
        return Err(LoadError::Missing {
            file: metadata.file().to_owned(),
            what: format!("tensor token_embd.weight with at most {VOCAB_MAX} rows"),
            hint: String::new(),
        });
    };
    let default = if is_modern { 160_000.0 } else { 1_000_000.0 };
    let global = keys.positive("rope.freq_base")?.unwrap_or(default);
    let local = keys.positive("rope.freq_base_swa")?.unwrap_or(10_000.0);
    let activation = activation(keys, is_modern)?;
    let masks = masks(keys, layers, is_modern)?;
    let mlp =
        DenseSpec { ffn: keys.required("feed_forward_length", WIDTH_MAX / 2)?, ..gated(activation, false) };
    let attention = AttentionSpec {
        qk_norm: if is_modern { QkNorm::None } else { QkNorm::Heads },
        qkv_bias: false,
        output_bias: false,
        ..whole_attention(HeadShape { heads, kv_heads, head_dim })
    };
    let layer = LayerSpec {
        order: if is_modern { NormOrder::Pre } else { NormOrder::Sandwich },
        attention,
        mlp: MlpSpec::Dense(mlp),
        residual_scale: 1.0,
    };
    let epsilon = if is_modern { MODERN_READ } else { GEMMA_READ[2] };
    let norm = NormSpec {
        // The converter has added the one to Gemma's weights.
        kind: if is_modern { NormKind::Layer { bias: false } } else { NormKind::Rms { from_one: false } },
        eps: keys.positive(epsilon)?.ok_or_else(|| metadata.missing(&keys.key(epsilon)))?,
    };
    let spec = TransformerSpec {
        embedding_norm: is_modern,
        embedding_scale: if is_modern { 1.0 } else { (hidden as f32).sqrt() },
        ropes: vec![super::whole_rope(global, head_dim), super::whole_rope(local, head_dim)],
        ..TransformerSpec::bare(keys.architecture, [vocab, hidden], vec![layer; layers], norm, context)
    };
    Ok(spec.with_layers(|index, layer| {
        (layer.attention.mask, layer.attention.rope) = (masks[index].0, Some(masks[index].1));
        // The sum of ModernBERT's embeddings is normed already.
        if is_modern && index == 0 {
            layer.order = NormOrder::PreMlp;
        }
    }))
}

fn activation(keys: &Keys<'_>, is_modern: bool) -> Result<Activation, LoadError> {
    const KEY: &str = "hidden_activation";
    match keys.metadata.string(&keys.key(KEY))? {
        None if is_modern => Ok(Activation::GeluErf),
        None | Some("gelu_pytorch_tanh") => Ok(Activation::GeluTanh),
        Some("gelu") => Ok(Activation::GeluErf),
        Some("silu") => Ok(Activation::Silu),
        Some(other) => Err(keys.unsupported(KEY, other, "gelu, gelu_pytorch_tanh and silu are known")),
    }
}

/// What each layer sees, half of the window to either side, and which rope it turns by. Of ModernBERT's the first of every
/// three is global, of Gemma's the last of every six, unless the file says otherwise.
fn masks(keys: &Keys<'_>, count: usize, is_modern: bool) -> Result<Vec<(Mask, usize)>, LoadError> {
    const WINDOW: &str = "attention.sliding_window";
    const PATTERN: &str = "attention.sliding_window_pattern";
    let global = (Mask::Whole { reach: None }, GLOBAL_ROPE);
    let key = keys.key(WINDOW);
    let window = match keys.metadata.integer(&key)? {
        None | Some(0) if is_modern => return Ok(vec![global; count]),
        _ => keys.required(WINDOW, CONTEXT_TOKENS_MAX)?,
    };
    let local = (Mask::Whole { reach: Some(window as u32 / 2) }, LOCAL_ROPE);
    let every = match keys.metadata.integer(&keys.key(PATTERN))? {
        Some(_) => keys.required(PATTERN, LAYERS_MAX)?,
        None if is_modern => 3,
        None => 6,
    };
    let is_global = |layer: usize| {
        if is_modern { layer.is_multiple_of(every) } else { (layer + 1).is_multiple_of(every) }
    };
    Ok((0..count).map(|layer| if is_global(layer) { global } else { local }).collect())
}
