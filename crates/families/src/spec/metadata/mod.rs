//! Reading of a decoder's [`TransformerSpec`] from GGUF metadata, as written by llama.cpp's converter. Unknown keys under
//! the architecture's name are refused, because they could change the computation. Family files say how their
//! architectures differ from Llama's, as data, or have a reader that calls these parts.

mod decoder;
mod experts;
mod keys;
mod states;

pub(super) use decoder::every;
use hanzo_engine_model_files::error::{LoadError, shorten};
use hanzo_engine_model_files::gguf::{Gguf, Metadata};
use hanzo_engine_ops::ExpertScoring;
pub(super) use keys::Keys;
pub use keys::{LONG_FACTORS, ROPE_FACTORS};
pub(super) use states::{hybrid_heads, mlps};

use super::base::Base;
use super::unknown::unknown;
use super::{AttentionSpec, ExpertsSpec, Names, NormSpec, QkNorm, RopeSpec, TransformerSpec, families};

/// Reader of a layer's attention, and of the rotary embedding.
type ReadAttention = fn(&Base<'_>, &Keys<'_>) -> Result<(AttentionSpec, RopeSpec), LoadError>;
/// Reader of the window of each of so many layers.
type ReadWindows = fn(&Keys<'_>, usize) -> Result<Vec<Option<u32>>, LoadError>;

/// Architecture of a family's GGUF files: how they differ from the family's first model type. Properties without a key in the format are those that llama.cpp assumes.
pub struct Architecture {
    /// Value of `general.architecture`.
    pub name: &'static str,
    /// Names of its tensors.
    pub names: &'static Names,
    /// Whether rows of queries and keys are permuted ([`TransformerSpec::permuted`]).
    pub permuted: bool,
    /// Whether files may have layers after the last that predict several tokens at once. They are skipped.
    pub(crate) predicts_more: bool,
    /// Keys that its files may have in addition to those of every decoder.
    pub(crate) reads: &'static [&'static [&'static str]],
    pub(crate) attention: ReadAttention,
    /// Settings of the norms.
    pub(crate) norms: fn(&Keys<'_>) -> Result<NormSpec, LoadError>,
    pub(crate) windows: ReadWindows,
    pub(crate) positions: Positions,
    /// Norm of queries and keys if the file has such norms, in files that may lack them.
    pub(crate) qk_norm_if_stored: Option<QkNorm>,
    /// Biases of queries, keys and values, if the tensors do not decide.
    pub(crate) qkv_bias: Option<bool>,
    /// Period of the layers without the window of `attention.sliding_window` tokens; 0: no layer has it, 1: all.
    pub(crate) full_each: usize,
    /// Default window, if the file has none.
    pub(crate) window: Option<u32>,
    pub(crate) turns: Turns,
    /// Number of layers of the largest model, in which the factor on scores follows from the hidden size.
    pub(crate) largest: usize,
    /// Whether queries grow beyond the original context (`attention.temperature_scale`).
    pub(crate) queries_grow: bool,
    pub(crate) logit_scale: LogitScale,
    /// Whether `feed_forward_length` is the width of gate and up together.
    pub(crate) halved: bool,
    /// Keys without which the file would be of another model.
    pub(crate) required: &'static [&'static str],
    pub(crate) experts: Experts,
    /// Key with the width of one expert of a mixture.
    pub(crate) expert_ffn: &'static str,
    /// Conversion of scores into weights, if the file does not say.
    pub(crate) scoring: ExpertScoring,
    /// Whether softmax over the chosen scores is known, which is the same if weights are normalised.
    pub(crate) softmax_of_chosen: bool,
    /// Whether weights are normalised: always, or if a key says so.
    pub(crate) normalized: Option<bool>,
    /// Whether `interleave_moe_layer_step` may be other than 1.
    pub(crate) interleaved: bool,
    /// Applies the peculiarities of its mixtures.
    pub(crate) own_experts: fn(&Keys<'_>, &mut ExpertsSpec) -> Result<(), LoadError>,
    /// Applies the architecture's peculiarities.
    pub(crate) own: fn(&Keys<'_>, &mut TransformerSpec) -> Result<(), LoadError>,
}

/// Encoding of positions.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Positions {
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
pub(crate) enum Turns {
    All,
    /// All; those with a window have another base, without scaling.
    WindowsApart(Option<f32>),
    /// Only those with a window, if the file has the key of a window.
    Windows,
    /// Only those with a window, if any layer has one.
    WindowsIfAny,
    /// All but each nth.
    AllButEach(usize),
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum LogitScale {
    Factor,
    Divisor,
}

/// Experts of an architecture's layers.
pub(crate) enum Experts {
    /// None, in dense decoders of which the tensors say more than the metadata.
    Dense,
    /// None, in decoders that compute as Llama does.
    Never,
    /// In all layers if there is an `expert_count`; `feed_forward_length` is then of one expert (Mixtral).
    IfCounted,
    /// In all layers, of `expert_feed_forward_length`.
    Always,
    /// As a mixture's keys say.
    Mixture,
}

/// Keys of dense decoders in addition to those of every decoder.
pub(crate) const DENSE_KEYS: &[&str] = &[
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

/// Keys of experts, and of the layers that have them.
pub(crate) const EXPERT_KEYS: &[&str] = &[
    "expert_count",
    "expert_feed_forward_length",
    "expert_gating_func",
    "expert_group_count",
    "expert_group_used_count",
    "expert_shared_count",
    "expert_shared_feed_forward_length",
    "expert_used_count",
    "expert_weights_norm",
    "expert_weights_scale",
    "leading_dense_block_count",
    "nextn_predict_layers",
];

/// Keys of latent attention.
pub(crate) const LATENT_KEYS: &[&str] = &[
    "attention.key_length_mla",
    "attention.kv_lora_rank",
    "attention.q_lora_rank",
    "attention.value_length_mla",
    "rope.scaling.yarn_log_multiplier",
];

/// Keys of Granite's factors.
pub(crate) const FACTOR_KEYS: &[&str] =
    &["attention.scale", "embedding_scale", "logit_scale", "residual_scale"];

/// Keys of recurrent states.
pub(crate) const STATE_KEYS: &[&str] =
    &["ssm.conv_kernel", "ssm.group_count", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank"];

impl Architecture {
    /// A dense decoder that differs slightly from Llama.
    pub(crate) const DENSE: Architecture = Architecture {
        name: "",
        names: &Names::GGUF,
        permuted: false,
        predicts_more: false,
        reads: &[DENSE_KEYS],
        attention: decoder::heads,
        norms: decoder::norms,
        windows: decoder::windows,
        positions: Positions::Rotary,
        qk_norm_if_stored: None,
        qkv_bias: None,
        full_each: 0,
        window: None,
        turns: Turns::All,
        largest: 0,
        queries_grow: false,
        logit_scale: LogitScale::Factor,
        halved: false,
        required: &[],
        experts: Experts::Dense,
        expert_ffn: "expert_feed_forward_length",
        scoring: ExpertScoring::Softmax,
        softmax_of_chosen: false,
        normalized: None,
        interleaved: false,
        own_experts: |_, _| Ok(()),
        own: |_, _| Ok(()),
    };

    /// A dense decoder whose converter permutes rows of queries and keys, so that neighbours rotate together.
    pub(crate) const PERMUTED: Architecture = Architecture { permuted: true, ..Architecture::DENSE };

    /// A decoder that computes as Llama or Qwen 2 and 3 do. It knows no keys but those of every decoder.
    pub(crate) const LLAMA: Architecture =
        Architecture { reads: &[], experts: Experts::Never, ..Architecture::DENSE };

    /// A mixture of experts.
    pub(crate) const MIXTURE: Architecture = Architecture {
        reads: &[EXPERT_KEYS, LATENT_KEYS],
        qk_norm_if_stored: Some(QkNorm::Heads),
        logit_scale: LogitScale::Divisor,
        experts: Experts::Mixture,
        ..Architecture::DENSE
    };

    /// A decoder most of whose layers have recurrent states and few have attention.
    pub(crate) const HYBRID: Architecture = Architecture {
        logit_scale: LogitScale::Divisor,
        reads: &[
            EXPERT_KEYS,
            FACTOR_KEYS,
            STATE_KEYS,
            &["attention.layer_norm_epsilon", "shortconv.l_cache"],
        ],
        ..Architecture::DENSE
    };
}

/// Reads a decoder's spec from a GGUF file's metadata, and from its tensors if those decide. `others` are the
/// architectures of other networks, which the error for an unknown one may name.
///
/// # Errors
/// `Missing`, `Corrupt` or `Unsupported` naming the key.
pub fn from_gguf(
    gguf: &Gguf,
    others: impl IntoIterator<Item = &'static str>,
) -> Result<TransformerSpec, LoadError> {
    let metadata: &Metadata = &gguf.metadata;
    let architecture =
        metadata.string("general.architecture")?.ok_or_else(|| metadata.missing("general.architecture"))?;
    let unsupported = |reason: String| LoadError::Unsupported {
        file: metadata.file().to_owned(),
        key: "general.architecture".into(),
        value: shorten(architecture.to_owned()),
        reason,
    };
    if architecture == "clip" {
        let reason = "it is a projector (mmproj), the part of a model that reads images or sound; load the file of the \
                     model itself, whose text this build runs";
        return Err(unsupported(reason.into()));
    }
    let Some((form, of)) = families::written(architecture) else {
        let known = families::architectures().map(|known| known.name);
        return Err(unsupported(unknown(architecture, known.chain(others))));
    };
    let keys = Keys { gguf, metadata, form, of };
    keys.refuse_unknown(|name| of.reads.iter().any(|keys| keys.contains(&name)))?;
    let base = Base::read(form, &keys)?;
    let spec = form.spec.map_or_else(|| decoder::read(&base, &keys), |spec| spec(&base))?;
    let spec = spec.checked(metadata.file())?;
    Ok(TransformerSpec { permuted: of.permuted, ..spec })
}
