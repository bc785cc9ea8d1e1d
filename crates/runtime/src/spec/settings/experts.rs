//! Mixtures of experts from settings, for families whose readers choose among these forms.

use hanzo_engine_kernels::{ExpertGroups, ExpertScoring};

use super::{Base, layers_by_type};
use crate::error::LoadError;
use crate::limits::{EXPERT_GROUPS_MAX, EXPERTS_MAX, LAYERS_MAX, WIDTH_MAX};
use crate::spec::{Config, ExpertsSpec, MlpSpec, SharedExpert};

/// A setting, or the family's default.
pub(crate) fn or(config: &Config, key: &str, max: usize, default: usize) -> Result<usize, LoadError> {
    Ok(config.whole(key, max)?.unwrap_or(default))
}

/// Softmax experts: the settings of their number, of those used, and the width of each.
pub(crate) fn softmax(
    base: &Base<'_>,
    [count, used, ffn]: [&str; 3],
    normalized: bool,
) -> Result<ExpertsSpec, LoadError> {
    Ok(ExpertsSpec {
        activation: base.activation,
        ..ExpertsSpec::softmax(
            base.config.required(count, EXPERTS_MAX)?,
            base.config.required(used, EXPERTS_MAX)?,
            base.config.required(ffn, WIDTH_MAX)?,
            normalized,
        )
    })
}

/// Shared experts of so many elements each.
pub(crate) fn shared_of(config: &Config, count: &str, ffn: usize) -> Result<Option<SharedExpert>, LoadError> {
    let ffn = or(config, count, EXPERTS_MAX, 0)? * ffn;
    Ok((ffn > 0).then_some(SharedExpert { ffn, gate: false }))
}

/// Routed experts under DeepSeek's names, with the shared experts.
pub(crate) fn routed(base: &Base<'_>) -> Result<ExpertsSpec, LoadError> {
    let config = base.config;
    let count = match config.get("n_routed_experts") {
        None if config.get("num_experts").is_some() => "num_experts",
        _ => "n_routed_experts",
    };
    let experts = softmax(base, [count, "num_experts_per_tok", "moe_intermediate_size"], false)?;
    Ok(ExpertsSpec {
        scale: config.positive("routed_scaling_factor")?.unwrap_or(1.0),
        shared: shared_of(config, "n_shared_experts", experts.ffn)?,
        ..experts
    })
}

/// As `routed`, with DeepSeek-V3's scores and choice.
pub(crate) fn routed_by_sigmoid(base: &Base<'_>) -> Result<ExpertsSpec, LoadError> {
    let config = base.config;
    for (key, known) in [("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")] {
        super::refuse_unless_named(config, key, known)?;
    }
    Ok(ExpertsSpec {
        scoring: ExpertScoring::Sigmoid,
        normalized: config.bool("norm_topk_prob")?.unwrap_or(true),
        correction_bias: true,
        groups: groups(config)?,
        ..routed(base)?
    })
}

/// Groups of experts, each weighed by its best two.
pub(crate) fn groups(config: &Config) -> Result<Option<ExpertGroups>, LoadError> {
    let count = or(config, "n_group", EXPERT_GROUPS_MAX, 1)?;
    let used = or(config, "topk_group", EXPERT_GROUPS_MAX, 1)?;
    Ok((count > 1).then_some(ExpertGroups { count, used, best: 2 }))
}

/// Dense layers first, then mixtures; or as a list says.
pub(crate) fn after_dense(
    base: &Base<'_>,
    dense: usize,
    experts: ExpertsSpec,
) -> Result<impl Fn(usize) -> MlpSpec + use<>, LoadError> {
    const TYPES: &str = "mlp_layer_types";
    let config = base.config;
    if let Some(step) = config.whole("moe_layer_freq", LAYERS_MAX)?.filter(|&step| step != 1) {
        return Err(config.unsupported("moe_layer_freq", step, "only 1 is known"));
    }
    let is_dense = match layers_by_type(config, TYPES, base.layers, (&["dense"], &["sparse"]))? {
        Some(is_dense) => is_dense,
        None => {
            let dense = or(config, "first_k_dense_replace", LAYERS_MAX, dense)?;
            (0..base.layers).map(|layer| layer < dense).collect()
        }
    };
    let dense = MlpSpec::gated(base.ffn(is_dense.contains(&true))?, base.activation);
    Ok(among(is_dense, dense, experts))
}

/// A dense MLP in some layers, experts in the others.
pub(crate) fn among(
    is_dense: Vec<bool>,
    dense: MlpSpec,
    experts: ExpertsSpec,
) -> impl Fn(usize) -> MlpSpec + use<> {
    move |layer| if is_dense[layer] { dense.clone() } else { MlpSpec::Experts(experts) }
}
