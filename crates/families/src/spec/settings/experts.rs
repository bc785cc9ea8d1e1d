//! Mixtures of experts from settings, for families whose readers choose among these forms.

use hanzo_engine_model_files::error::LoadError;
use hanzo_engine_ops::{ExpertGroups, ExpertScoring};

use super::{Base, layers_by_type};
use crate::limits::LAYERS_MAX;
use crate::spec::setting::{
    EXPERTS, EXPERTS_SCALE, GROUPS, ROUTED_EXPERTS, SHARED_EXPERTS, Setting, SettingsFile,
};
use crate::spec::{Config, ExpertsSpec, MlpSpec, SharedExpert};

/// A setting, or the family's default.
pub(crate) fn or(config: &Config, key: &str, max: usize, default: usize) -> Result<usize, LoadError> {
    Ok(config.whole(key, max)?.unwrap_or(default))
}

/// Softmax experts: the settings of their number, of those used, and the width of each.
pub(crate) fn softmax(
    base: &Base<'_>,
    [count, used, ffn]: &[Setting<usize>; 3],
    normalized: bool,
) -> Result<ExpertsSpec, LoadError> {
    let [count, used] = [base.file.required(count)?, base.file.required(used)?];
    let ffn = base.file.required(ffn)?;
    Ok(ExpertsSpec { activation: base.activation, ..ExpertsSpec::softmax(count, used, ffn, normalized) })
}

/// Shared experts, as many as a setting says, of so many elements each.
pub(crate) fn shared_of(
    file: SettingsFile<'_>,
    count: &Setting<usize>,
    ffn: usize,
) -> Result<Option<SharedExpert>, LoadError> {
    let ffn = file.whole(count)? * ffn;
    Ok((ffn > 0).then_some(SharedExpert { ffn, gate: false }))
}

/// Routed experts under DeepSeek's names, with the shared experts.
pub(crate) fn routed(base: &Base<'_>, config: &Config) -> Result<ExpertsSpec, LoadError> {
    let experts = match config.get("n_routed_experts") {
        None if config.get("num_experts").is_some() => softmax(base, &EXPERTS, false)?,
        _ => softmax(base, &ROUTED_EXPERTS, false)?,
    };
    let shared = SHARED_EXPERTS.named("n_shared_experts");
    Ok(ExpertsSpec {
        scale: base.file.factor(&EXPERTS_SCALE)?,
        shared: shared_of(base.file, &shared, experts.ffn)?,
        ..experts
    })
}

/// As `routed`, with DeepSeek-V3's scores and choice.
pub(crate) fn routed_by_sigmoid(base: &Base<'_>, config: &Config) -> Result<ExpertsSpec, LoadError> {
    for (key, known) in [("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")] {
        super::refuse_unless_named(config, key, known)?;
    }
    Ok(ExpertsSpec {
        scoring: ExpertScoring::Sigmoid,
        normalized: config.bool("norm_topk_prob")?.unwrap_or(true),
        correction_bias: true,
        groups: groups(base.file, 2)?,
        ..routed(base, config)?
    })
}

/// Groups of experts, each weighed by its `best`.
pub(crate) fn groups(file: SettingsFile<'_>, best: usize) -> Result<Option<ExpertGroups>, LoadError> {
    let [count, used] = [file.whole(&GROUPS[0])?, file.whole(&GROUPS[1])?];
    Ok((count > 1).then_some(ExpertGroups { count, used, best }))
}

/// Dense layers first, then mixtures; or as a list says.
pub(crate) fn after_dense(
    base: &Base<'_>,
    config: &Config,
    dense: usize,
    experts: ExpertsSpec,
) -> Result<impl Fn(usize) -> MlpSpec + use<>, LoadError> {
    const TYPES: &str = "mlp_layer_types";
    if let Some(step) = config.whole("moe_layer_freq", LAYERS_MAX)?.filter(|&step| step != 1) {
        return Err(config.unsupported("moe_layer_freq", step, "only 1 is known"));
    }
    let is_dense = match layers_by_type(config, TYPES, base.layers, &["dense"], &["sparse"])? {
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
