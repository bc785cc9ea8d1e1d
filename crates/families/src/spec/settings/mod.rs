//! Reading of a decoder's [`TransformerSpec`] from a Hugging Face `config.json`. Settings mean what the transformers
//! library's class of the same name makes of them; settings that the class does not read have no effect. Settings
//! known to make another model of it (experts that the family does not have, quantised weights, soft caps) are
//! refused. Family files say how their classes differ from Llama's, as data, or have a reader that calls these parts.

mod changes;
mod dense;
mod experts;
mod layers;

pub(super) use changes::{
    learn_positions, norm_heads_apart, refuse_true, refuse_unless, refuse_unless_named, rename, set_alibi,
    set_ffn, set_logits, set_order, turn_windows_alone, turn_windows_apart, unless_null,
};
pub(super) use dense::{XIELU, activation, read};
pub(super) use experts::{after_dense, among, groups, or, routed, routed_by_sigmoid, shared_of, softmax};
use hanzo_engine_model_files::error::LoadError;
use hanzo_engine_ops::RopeKind;
pub(super) use layers::{
    layers_by_type, layers_in, refuse_steps, rotated_layers, settle_mamba, sparse_layers, windows_by_type,
};
use serde_json::Value;

use super::base::Base;
use super::unknown::unknown;
use super::{Config, Names, NormKind, NormOrder, QkNorm, TransformerSpec, families, multimodal};

/// Reader of a model type's settings in `config.json`.
pub(crate) type ReadSettings = fn(&Base<'_>, &Config) -> Result<TransformerSpec, LoadError>;

/// Reader of a file in either format.
pub(crate) type ReadBoth = fn(&Base<'_>) -> Result<TransformerSpec, LoadError>;

/// Model type of a family: how its class differs from Llama's.
pub(crate) struct ModelType {
    /// Value of `model_type`.
    pub(crate) name: &'static str,
    /// Class, in `architectures`.
    pub(crate) class: &'static str,
    /// Architecture of another family that its GGUF files have, if they do.
    pub(crate) written_as: &'static str,
    /// Names of its tensors.
    pub(crate) names: &'static Names,
    /// Whether files may have layers after the last that predict several tokens at once. They are skipped.
    pub(crate) predicts_more: bool,
    pub(crate) read: ReadSettings,
    /// Reader of files in both formats, instead of `read` and of the architecture's reader.
    pub(crate) spec: Option<ReadBoth>,
    pub(crate) checks: Checks,
    /// Settings that are refused unless they are neutral, because they would make another model of it: those of many
    /// families, and those of this one.
    pub(crate) refused_by_many: &'static [&'static str],
    pub(crate) refused: &'static [&'static str],
    pub(crate) order: NormOrder,
    /// Order if `use_parallel_residual` is false, and if it is true, if that differs.
    pub(crate) parallel: [Option<NormOrder>; 2],
    pub(crate) norm: NormKind,
    /// Setting with the norms' epsilon, and its default.
    pub(crate) eps: (&'static str, f32),
    /// Biases of queries, keys and values, and of attention's output.
    pub(crate) biases: [Choice; 2],
    /// Whether both matrices of the MLP have biases.
    pub(crate) mlp_bias: Choice,
    pub(crate) gated: bool,
    /// Setting with the non-linearity, and its default.
    pub(crate) activation: (&'static str, &'static str),
    pub(crate) qk_norm: QkNorm,
    /// Size of a head if `head_dim` is not given; otherwise `hidden_size / num_attention_heads`.
    pub(crate) head_dim: Option<usize>,
    pub(crate) rope_kind: RopeKind,
    pub(crate) rope_base: f32,
    /// Fraction of a head that is rotated.
    pub(crate) turned: f32,
    pub(crate) windows: Windows,
    pub(crate) experts: MixtureLayers,
    /// Whether queries and keys are normed after rotation.
    pub(crate) norm_after_rope: bool,
    /// Whether token embeddings are multiplied by the square root of their size.
    pub(crate) embeds_by_root: bool,
    pub(crate) head_bias: bool,
    /// Whether the head is the token embedding, if no setting says.
    pub(crate) tied: bool,
    /// Settings that its class names differently, and their usual names.
    pub(crate) renames: &'static [(&'static str, &'static str)],
    /// Changes settings to the usual form.
    pub(crate) settle: fn(&mut Config) -> Result<(), LoadError>,
    /// Applies the family's peculiarities.
    pub(crate) own: fn(&Config, &mut TransformerSpec) -> Result<(), LoadError>,
}

/// Presence of a feature.
#[derive(Clone, Copy)]
pub(crate) enum Choice {
    Always(bool),
    /// As a setting says, with its default.
    By(&'static str, bool),
}

/// Settings that are checked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Checks {
    /// Settings that would make a Llama another model, down to unknown ones of its rotary embedding.
    Llama,
    /// Settings that would make a dense decoder another model.
    Dense,
    /// Settings that a family's own reader knows.
    Own,
}

/// Layers with a window of `sliding_window` tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Windows {
    Never,
    /// All layers, if there is a window.
    All,
    /// All layers, if `use_sliding_window` says so.
    AllIfUsed,
    /// Layers that `layer_types` or `max_window_layers` name, if `use_sliding_window` says so.
    SomeIfUsed,
    /// As `layer_types` say, or all but each nth (`sliding_window_pattern`).
    AllButEach(usize),
}

/// Layers that are mixtures of experts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum MixtureLayers {
    Never,
    /// All; `intermediate_size` is of one expert, weights are normalised.
    All,
    /// As `decoder_sparse_step` and `mlp_only_layers` say; `moe_intermediate_size` is of one expert, weights are
    /// normalised if `norm_topk_prob` says so.
    Some,
}

impl ModelType {
    /// A dense decoder that differs slightly from Llama.
    pub(crate) const DENSE: ModelType = ModelType {
        name: "",
        class: "",
        written_as: "",
        names: &Names::HUGGING_FACE,
        predicts_more: false,
        read,
        spec: None,
        checks: Checks::Dense,
        refused_by_many: &[
            "add_cross_attention",
            "is_encoder_decoder",
            "n_routed_experts",
            "num_experts",
            "num_local_experts",
            "quantization_config",
            "vision_config",
        ],
        refused: &["mlp_bias"],
        order: NormOrder::Pre,
        parallel: [None; 2],
        norm: NormKind::Rms { from_one: false },
        eps: ("rms_norm_eps", 1e-6),
        biases: [Choice::By("attention_bias", false); 2],
        mlp_bias: Choice::Always(false),
        gated: true,
        activation: ("hidden_act", "silu"),
        qk_norm: QkNorm::None,
        head_dim: None,
        rope_kind: RopeKind::Neox,
        rope_base: 1e4,
        turned: 1.0,
        windows: Windows::Never,
        experts: MixtureLayers::Never,
        norm_after_rope: false,
        embeds_by_root: false,
        head_bias: false,
        tied: false,
        renames: &[],
        settle: |_| Ok(()),
        own: |_, _| Ok(()),
    };

    /// A decoder that computes as Llama, Mistral or Qwen 2 and 3 do.
    pub(crate) const LLAMA: ModelType = ModelType {
        checks: Checks::Llama,
        refused_by_many: &[
            "add_cross_attention",
            "attn_logit_softcapping",
            "final_logit_softcapping",
            "is_encoder_decoder",
            "mlp_bias",
            "n_routed_experts",
            "n_shared_experts",
            "quantization_config",
            "shared_expert_intermediate_size",
            "vision_config",
        ],
        refused: &[],
        ..ModelType::DENSE
    };

    /// A decoder whose family has a reader of its own, such as a mixture of experts.
    pub(crate) const OWN: ModelType = ModelType {
        checks: Checks::Own,
        refused_by_many: &[
            "is_encoder_decoder",
            "mlp_bias",
            "quantization_config",
            "vision_config",
            "index_topk",
        ],
        refused: &[],
        ..ModelType::DENSE
    };
}

/// Model types whose recurrent layers are not supported.
const RECURRENT: &[&str] = &["mamba", "jamba"];

/// Settings of mixtures of experts, and the layers of families that read them.
const EXPERT_SETTINGS: &[(&str, &[MixtureLayers])] = &[
    ("moe_intermediate_size", &[MixtureLayers::Some]),
    ("num_experts", &[MixtureLayers::Some]),
    ("num_local_experts", &[MixtureLayers::Some, MixtureLayers::All]),
];

/// Settings that would make another model of a Llama, and are refused unless they are absent, null or 1.
const REFUSED_UNLESS_ONE: &[&str] = &[
    "attention_multiplier",
    "embedding_multiplier",
    "logit_scale",
    "logits_scaling",
    "partial_rotary_factor",
    "residual_multiplier",
];

/// Reads a decoder's spec from `config.json`. `others` are the model types of other networks, which the error for an
/// unknown one may name.
///
/// # Errors
/// `Missing`, `Corrupt` or `Unsupported` naming the key.
pub fn from_config(
    config: &Config,
    others: impl IntoIterator<Item = &'static str>,
) -> Result<TransformerSpec, LoadError> {
    let model_type = config.string("model_type")?.ok_or_else(|| config.missing("model_type"))?;
    if RECURRENT.contains(&model_type) {
        let reason = "this build runs the states of Qwen3-Next, Qwen3.5, Granite 4, Bamba, Nemotron-H, Mamba 2, Falcon-H1 and LFM2, not of this family";
        return Err(config.unsupported("model_type", model_type, reason));
    }
    let Some(found) = families::model_type(model_type) else {
        let known = families::model_types().map(|known| known.name).chain(multimodal::known());
        let known = known.chain(others);
        return Err(config.unsupported("model_type", model_type, unknown(model_type, known)));
    };
    let mut config = config.clone();
    rename(&mut config, found.renames);
    (found.settle)(&mut config)?;
    found.check_settings(&config)?;
    let base = Base::read(found, &config)?;
    let spec = found.spec.map_or_else(|| (found.read)(&base, &config), |spec| spec(&base))?;
    spec.checked(&config.file)
}

impl ModelType {
    fn check_settings(&self, config: &Config) -> Result<(), LoadError> {
        for &key in self.refused_by_many.iter().chain(self.refused) {
            if let Some(value) = config.get(key).filter(|value| !is_nothing(value)) {
                return Err(config.unsupported(key, value, "this build cannot run models that have it"));
            }
        }
        if self.checks == Checks::Llama {
            self.check_as_llama(config)?;
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

    fn check_as_llama(&self, config: &Config) -> Result<(), LoadError> {
        for (key, _) in EXPERT_SETTINGS.iter().filter(|(_, read_by)| !read_by.contains(&self.experts)) {
            if let Some(value) = config.get(key).filter(|value| !is_nothing(value)) {
                return Err(config.unsupported(key, value, "this family does not read it"));
            }
        }
        for &key in REFUSED_UNLESS_ONE {
            if let Some(value) = config.get(key).filter(|value| value.as_f64() != Some(1.0)) {
                return Err(config.unsupported(key, value, "this family knows no such factor"));
            }
        }
        Ok(())
    }
}

impl Choice {
    pub(crate) const NEVER: [Choice; 2] = [Choice::Always(false); 2];
    pub(crate) const ALWAYS: [Choice; 2] = [Choice::Always(true); 2];

    pub(crate) fn read(&self, config: &Config) -> Result<bool, LoadError> {
        match *self {
            Choice::Always(is) => Ok(is),
            Choice::By(key, usual) => Ok(config.bool(key)?.unwrap_or(usual)),
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
