//! The encoder families of `config.json`: each a mapping to a [`TransformerSpec`] and a table of names. What a setting
//! means is what the model's own class makes of it; a setting known to make another model of it is refused by name.

mod bert;
mod deberta;
pub(super) mod dual;
mod gemma;
pub(super) mod gguf;
mod gguf_local;
mod modernbert;
mod nomic;

pub(super) use bert::{JINA_CODE_KEY, JINA_CODE_TENSOR};
use hanzo_engine_ops::{Activation, HeadShape, RopeKind};
use serde_json::Value;

use crate::error::LoadError;
use crate::head::{HeadActivation, HeadInput};
use crate::limits::{
    CONTEXT_TOKENS_MAX, ENCODER_TYPES_MAX, HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, VOCAB_MAX, WIDTH_MAX,
};
use crate::spec::{
    AttentionSpec, Config, DenseSpec, LayerSpec, Mask, MaskedLmSpec, MlpSpec, Names, NormKind, NormOrder,
    NormSpec, PositionTable, RopeSpec, TransformerSpec,
};

/// A family as its files say it.
pub(super) struct Family {
    /// What `model_type` says.
    model_types: &'static [&'static str],
    /// What its classes' names begin with.
    class: &'static str,
    /// Its models may have experts.
    experts: bool,
    /// Reads `config.json`.
    plan: fn(&Config) -> Result<Plan, LoadError>,
}

/// What a `config.json` says about a model, before its tensors are seen.
pub(super) struct Plan {
    /// The encoder, without a head.
    pub(super) spec: TransformerSpec,
    /// What its tensors are called.
    pub(super) names: Names,
    /// What its class for sequence classification puts on top.
    pub(super) classifier: ClassifierPlan,
    /// What its class for masked language models puts on top.
    pub(super) masked_lm: Option<MaskedLmSpec>,
    /// What the names of tensors begin with that other classes of the family put on top, without the names' prefix.
    /// They are left out.
    pub(super) heads: &'static [&'static str],
}

/// A classifier's layers by name.
pub(super) struct ClassifierPlan {
    pub(super) input: HeadInput,
    pub(super) layers: Vec<HeadLayerPlan>,
}

/// One layer of a classifier by name.
pub(super) struct HeadLayerPlan {
    pub(super) name: &'static str,
    /// Its name comes after the encoder's prefix.
    pub(super) in_encoder: bool,
    pub(super) bias: bool,
    pub(super) activation: HeadActivation,
    /// The layer norm after it.
    pub(super) norm: Option<&'static str>,
}

/// What a model was made for, by the class that saved it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    Encoder,
    MaskedLm,
    Classifier,
}

const FAMILIES: &[Family] = &[
    // Before bert: their `model_type` is the same.
    Family { model_types: &["bert", "jina_bert"], class: "JinaBert", experts: false, plan: bert::jina },
    Family { model_types: &["bert"], class: "Bert", experts: false, plan: bert::bert },
    Family { model_types: &["roberta"], class: "Roberta", experts: false, plan: bert::roberta },
    Family { model_types: &["xlm-roberta"], class: "XLMRoberta", experts: false, plan: bert::roberta },
    Family { model_types: &["camembert"], class: "Camembert", experts: false, plan: bert::roberta },
    Family { model_types: &["distilbert"], class: "DistilBert", experts: false, plan: bert::distilbert },
    Family { model_types: &["mpnet"], class: "MPNet", experts: false, plan: bert::mpnet },
    Family { model_types: &["new"], class: "New", experts: false, plan: bert::gte },
    Family { model_types: &["gte"], class: "Gte", experts: false, plan: bert::gte },
    Family { model_types: &["modernbert"], class: "ModernBert", experts: false, plan: modernbert::plan },
    Family { model_types: &["nomic_bert"], class: "NomicBert", experts: true, plan: nomic::plan },
    Family { model_types: &["deberta-v2"], class: "DebertaV2", experts: false, plan: deberta::plan },
    Family { model_types: &["gemma3_text"], class: "Gemma3", experts: false, plan: gemma::plan },
    Family { model_types: &["clip"], class: "CLIP", experts: false, plan: dual::plan },
    Family { model_types: &["siglip"], class: "Siglip", experts: false, plan: dual::plan },
];

/// The families of encoders, by what `model_type` says.
pub(crate) fn encoders() -> Vec<&'static str> {
    let mut names: Vec<_> = FAMILIES.iter().flat_map(|family| family.model_types.iter().copied()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Settings that make another model of any family unless they are absent, null, false, zero or empty.
const REFUSED: &[&str] = &[
    "add_cross_attention",
    "is_decoder",
    "is_encoder_decoder",
    "lora_adaptations",
    "num_local_experts",
    "quantization_config",
];

/// The same of all families but those that see (`dual`).
const SEEING: &[&str] = &["vision_config"];

/// The same of all families but one (`nomic`).
const EXPERTS: &[&str] = &["num_experts", "moe_every_n_layers"];

/// The family of a `config.json`, or none where it is no encoder's.
pub(super) fn family_of(config: &Config) -> Result<Option<&'static Family>, LoadError> {
    let Some(model_type) = config.string("model_type")? else { return Ok(None) };
    let of_type: Vec<&Family> =
        FAMILIES.iter().filter(|family| family.model_types.contains(&model_type)).collect();
    if model_type == "gemma3_text" && config.bool("use_bidirectional_attention")? != Some(true) {
        return Ok(None);
    }
    let Some(&last) = of_type.last() else { return Ok(None) };
    // Classes that come with the model are named beside those that are saved with it.
    let classes: Vec<&str> = classes(config)?;
    let said = of_type.iter().copied().find(|family| classes.iter().any(|class| family.owns(class)));
    Ok(Some(said.unwrap_or(last)))
}

impl Family {
    /// Whether its models have a side that sees pictures.
    pub(super) fn sees(&self) -> bool {
        dual::CLASSES.contains(&self.class)
    }

    /// Whether a class is one of the family's: `BertModel` and `BertForMaskedLM` are bert's.
    fn owns(&self, class: &str) -> bool {
        let rest = class.strip_prefix(self.class);
        rest.is_some_and(|rest| {
            ["For", "Model", "Config", "TextModel", "TextConfig"].iter().any(|next| rest.starts_with(next))
        })
    }

    /// Reads `config.json`.
    pub(super) fn plan(&self, config: &Config) -> Result<(Plan, Task), LoadError> {
        refuse(config, REFUSED)?;
        if !self.experts {
            refuse(config, EXPERTS)?;
        }
        if !self.sees() {
            refuse(config, SEEING)?;
        }
        let task = self.task(config)?;
        if let Some(class) = custom_classes(config)?.into_iter().find(|class| !self.owns(class)) {
            return Err(config.unsupported(
                "auto_map",
                class,
                format!("classes named {}… are known", self.class),
            ));
        }
        Ok(((self.plan)(config)?, task))
    }

    fn task(&self, config: &Config) -> Result<Task, LoadError> {
        let Some(&class) = saved_classes(config)?.first() else { return Ok(Task::Encoder) };
        match class.strip_prefix(self.class) {
            Some("Model" | "TextModel") => Ok(Task::Encoder),
            Some("ForMaskedLM" | "ForPreTraining") => Ok(Task::MaskedLm),
            Some("ForSequenceClassification") => Ok(Task::Classifier),
            _ => {
                let known = ["Model", "ForMaskedLM", "ForPreTraining", "ForSequenceClassification"];
                let known = known.map(|task| format!("{}{task}", self.class)).join(", ");
                Err(config.unsupported("architectures", class, format!("{known} are known")))
            }
        }
    }
}

/// All classes a `config.json` names, without the modules they are in.
fn classes(config: &Config) -> Result<Vec<&str>, LoadError> {
    let mut classes = custom_classes(config)?;
    classes.extend(saved_classes(config)?);
    Ok(classes)
}

fn saved_classes(config: &Config) -> Result<Vec<&str>, LoadError> {
    const KEY: &str = "architectures";
    let classes = config.typed(KEY, "a list of classes", Value::as_array)?.into_iter().flatten();
    classes
        .map(|class| class.as_str().ok_or_else(|| config.corrupt(KEY, format!("{class} is not a class"))))
        .collect()
}

/// Classes of the code that comes with a model.
fn custom_classes(config: &Config) -> Result<Vec<&str>, LoadError> {
    let map = config.typed("auto_map", "an object", Value::as_object)?.into_iter().flatten();
    // A tokenizer's entry is a list.
    let paths = map.filter_map(|(_, path)| path.as_str());
    Ok(paths.map(|path| path.rsplit('.').next().unwrap_or(path)).collect())
}

/// Refuses settings that say something.
fn refuse(config: &Config, keys: &[&str]) -> Result<(), LoadError> {
    for &key in keys {
        if let Some(value) = config.get(key).filter(|value| !is_nothing(value)) {
            return Err(config.unsupported(key, value, "this build cannot run models that have it"));
        }
    }
    Ok(())
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

/// Refuses a setting that is there with another value.
fn only(config: &Config, key: &str, allowed: &str) -> Result<(), LoadError> {
    match config.get(key) {
        Some(value) if value.as_str() != Some(allowed) => {
            Err(config.unsupported(key, value, format!("{allowed} is known")))
        }
        _ => Ok(()),
    }
}

/// Rope over whole heads as newer libraries save it, with all that is said of it in `rope_parameters`; none where there are none.
fn saved_rope(config: &Config, base: f32, head_dim: usize) -> Result<Option<RopeSpec>, LoadError> {
    let Some(settings) = config.object("rope_parameters")? else { return Ok(None) };
    for (key, value) in &settings.settings {
        let known = key == "rope_theta" || (key == "rope_type" && value == "default");
        if !known && !value.is_null() {
            return Err(settings.unsupported(key, value, "rope_theta and the rope_type default are known"));
        }
    }
    let base = settings.positive("rope_theta")?.unwrap_or(base);
    Ok(Some(whole_rope(base, head_dim)))
}

/// Rope over whole heads, without scaling.
fn whole_rope(base: f32, head_dim: usize) -> RopeSpec {
    RopeSpec::plain(RopeKind::Neox, base, head_dim)
}

/// The non-linearity a setting names.
fn activation(config: &Config, key: &str, default: &str) -> Result<Activation, LoadError> {
    let name = config.string(key)?.unwrap_or(default);
    activation_named(name).ok_or_else(|| {
        let reason = "gelu, gelu_new, gelu_fast, gelu_pytorch_tanh, relu and silu are known";
        config.unsupported(key, name, reason)
    })
}

fn activation_named(name: &str) -> Option<Activation> {
    match name {
        "gelu" | "gelu_python" => Some(Activation::GeluErf),
        "gelu_new" | "gelu_fast" | "gelu_pytorch_tanh" => Some(Activation::GeluTanh),
        "relu" => Some(Activation::Relu),
        "silu" | "swish" => Some(Activation::Silu),
        _ => None,
    }
}

/// The non-linearity of a head that a setting names.
fn head_activation(config: &Config, key: &str, default: &str) -> Result<HeadActivation, LoadError> {
    if config.string(key)?.unwrap_or(default) == "tanh" {
        return Ok(HeadActivation::Tanh);
    }
    Ok(match activation(config, key, default)? {
        Activation::GeluErf => HeadActivation::Gelu,
        Activation::GeluTanh => HeadActivation::GeluTanh,
        Activation::Relu => HeadActivation::Relu,
        // No setting names the others.
        Activation::Silu | Activation::QuickGelu | Activation::ReluSquared | Activation::ClampedSwish => {
            HeadActivation::Silu
        }
    })
}

/// What the settings of an encoder's sizes are called.
struct SizeKeys {
    hidden: &'static str,
    layers: &'static str,
    heads: &'static str,
    ffn: &'static str,
    positions: &'static str,
    /// The size of a head and what it is where it is not given; otherwise heads split a hidden state.
    head_dim: Option<(&'static str, usize)>,
}

const SIZE_KEYS: SizeKeys = SizeKeys {
    hidden: "hidden_size",
    layers: "num_hidden_layers",
    heads: "num_attention_heads",
    ffn: "intermediate_size",
    positions: "max_position_embeddings",
    head_dim: None,
};

/// Attention to both sides of so many heads, in whose layers all projections have biases.
fn whole_attention(shape: HeadShape) -> AttentionSpec {
    AttentionSpec {
        mask: Mask::Whole { reach: None },
        qkv_bias: true,
        output_bias: true,
        rope: None,
        ..AttentionSpec::causal(shape)
    }
}

/// A plain MLP with biases; its width is that of the settings.
fn plain(activation: Activation) -> DenseSpec {
    DenseSpec { ffn: 0, activation, gated: false, up_bias: true, down_bias: true }
}

/// A gated MLP.
fn gated(activation: Activation, down_bias: bool) -> DenseSpec {
    DenseSpec { ffn: 0, activation, gated: true, up_bias: false, down_bias }
}

/// A BERT-like encoder of these sizes, its norms after its halves, all projections with biases, without embeddings
/// of positions and types.
fn post_norm(
    config: &Config,
    keys: &SizeKeys,
    eps: f32,
    mlp: DenseSpec,
) -> Result<TransformerSpec, LoadError> {
    let hidden = config.required(keys.hidden, WIDTH_MAX)?;
    let heads = config.required(keys.heads, HEADS_MAX)?;
    let layers = config.required(keys.layers, LAYERS_MAX)?;
    let head_dim = match keys.head_dim {
        Some((key, default)) => config.count(key, HEAD_DIM_MAX)?.unwrap_or(default),
        None if hidden.is_multiple_of(heads) && hidden / heads <= HEAD_DIM_MAX => hidden / heads,
        None => {
            let reason = format!("hidden states of {hidden} do not split into {heads} heads");
            return Err(config.corrupt(keys.heads, reason));
        }
    };
    let vocab = config.required("vocab_size", VOCAB_MAX)?;
    let layer = LayerSpec {
        order: NormOrder::Post,
        attention: whole_attention(HeadShape { heads, kv_heads: heads, head_dim }),
        mlp: MlpSpec::Dense(DenseSpec { ffn: config.required(keys.ffn, WIDTH_MAX / 2)?, ..mlp }),
        residual_scale: 1.0,
    };
    let architecture = config.string("model_type")?.unwrap_or_default();
    let norm = NormSpec { kind: NormKind::Layer { bias: true }, eps };
    let context = config.required(keys.positions, CONTEXT_TOKENS_MAX)?;
    let spec = TransformerSpec::bare(architecture, [vocab, hidden], vec![layer; layers], norm, context);
    Ok(TransformerSpec { embedding_norm: true, ..spec })
}

/// Adds a learned embedding of positions whose first row in use is `offset`.
fn with_positions(spec: TransformerSpec, offset: u32) -> TransformerSpec {
    let rows = spec.context_tokens_max;
    TransformerSpec {
        positions: Some(PositionTable { rows: rows as usize, offset }),
        context_tokens_max: rows.saturating_sub(offset),
        ..spec
    }
}

fn epsilon(config: &Config, key: &str, default: f32) -> Result<f32, LoadError> {
    Ok(config.positive(key)?.unwrap_or(default))
}

fn type_vocab(config: &Config, default: usize) -> Result<usize, LoadError> {
    Ok(config.whole("type_vocab_size", ENCODER_TYPES_MAX)?.unwrap_or(default))
}

/// The decoder of a masked language model is the token embedding unless a setting says otherwise.
fn tied(config: &Config) -> Result<bool, LoadError> {
    Ok(config.bool("tie_word_embeddings")?.unwrap_or(true))
}

/// BERT's and most others' head: `dense`, non-linearity, norm, decoder, all with biases.
fn masked_lm(config: &Config, activation: Activation) -> Result<Option<MaskedLmSpec>, LoadError> {
    Ok(Some(MaskedLmSpec { activation, dense_bias: true, tied: tied(config)?, decoder_bias: true }))
}

/// A dense layer and a non-linearity, then the layer of the labels.
fn dense_classifier(dense: HeadLayerPlan, labels: &'static str) -> ClassifierPlan {
    let labels = HeadLayerPlan {
        name: labels,
        in_encoder: false,
        bias: true,
        activation: HeadActivation::Identity,
        norm: None,
    };
    ClassifierPlan { input: HeadInput::Cls, layers: vec![dense, labels] }
}

/// BERT's pooler, or a layer like it that stands outside of the encoder.
fn dense(name: &'static str, in_encoder: bool, activation: HeadActivation) -> HeadLayerPlan {
    HeadLayerPlan { name, in_encoder, bias: true, activation, norm: None }
}
