//! Mixtures of experts with Llama's attention, or nearly: OLMoE, Granite MoE, ERNIE 4.5 MoE, MiniMax-M2, the first
//! DeepSeek, Ling, EXAONE MoE, Solar Open, Arcee's Trinity, Phi-3.5-MoE and Cohere 2 MoE.

use hanzo_engine_kernels::{ExpertGroups, ExpertScoring, RopeKind};
use serde_json::Value;

use super::{Base, Read, after_dense, or, rope, routed, routed_by_sigmoid, turned};
use crate::error::LoadError;
use crate::limits::{CONTEXT_TOKENS_MAX, EXPERT_GROUPS_MAX, EXPERTS_MAX, LAYERS_MAX, WIDTH_MAX};
use crate::spec::dense::rope_settings;
use crate::spec::dense_own::hunyuan as settle_hunyuan;
use crate::spec::hf::windows_by_type;
use crate::spec::rope::{is_long, lengthen};
use crate::spec::{
    AttentionSpec, Config, ExpertsSpec, HeadSpec, LogitsSpec, Mask, MlpSpec, NormKind, NormOrder, NormSpec,
    QkNorm, RopeSpec, SharedExpert, TransformerSpec,
};

pub(super) const FAMILIES: &[(&str, &str, Read)] = &[
    ("olmoe", "OlmoeForCausalLM", |config| olmoe(config, NormOrder::Pre, (1e4, 1e-5))),
    ("flex_olmo", "FlexOlmoForCausalLM", |config| olmoe(config, NormOrder::Branch, (5e5, 1e-6))),
    ("granitemoe", "GraniteMoeForCausalLM", granite_moe),
    ("granitemoeshared", "GraniteMoeSharedForCausalLM", granite_moe),
    ("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", ernie_moe),
    ("minimax_m2", "MiniMaxM2ForCausalLM", minimax_m2),
    ("deepseek", "DeepseekForCausalLM", deepseek),
    ("bailing_moe", "BailingMoeForCausalLM", bailing_moe),
    ("bailing_moe_v2", "BailingMoeV2ForCausalLM", bailing_moe2),
    ("exaone_moe", "ExaoneMoeForCausalLM", exaone_moe),
    ("solar_open", "SolarOpenForCausalLM", solar_open),
    ("hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", hunyuan),
    ("afmoe", "AfmoeForCausalLM", afmoe),
    ("phimoe", "PhimoeForCausalLM", phimoe),
    ("cohere2_moe", "Cohere2MoeForCausalLM", cohere2_moe),
];

/// Refuses a setting that would make another model of a family, unless it has the family's fixed value.
fn refuse_unless(config: &Config, key: &str, known: bool) -> Result<(), LoadError> {
    match config.bool(key)? {
        Some(value) if value != known => {
            Err(config.unsupported(key, value, format!("of this family only {known} is known")))
        }
        _ => Ok(()),
    }
}

fn refuse_unless_named(config: &Config, key: &str, known: &str) -> Result<(), LoadError> {
    match config.string(key)? {
        Some(value) if value != known => Err(config.unsupported(key, value, format!("{known} is known"))),
        _ => Ok(()),
    }
}

/// Softmax experts: the settings of their number, of those used, and the width of each.
fn softmax(
    config: &Config,
    base: &Base,
    (count, used, ffn): (&str, &str, &str),
    normalized: bool,
) -> Result<ExpertsSpec, LoadError> {
    Ok(ExpertsSpec {
        activation: base.activation,
        ..ExpertsSpec::softmax(
            config.required(count, EXPERTS_MAX)?,
            config.required(used, EXPERTS_MAX)?,
            config.required(ffn, WIDTH_MAX)?,
            normalized,
        )
    })
}

/// Shared experts of so many elements each.
fn shared_of(config: &Config, count: &str, ffn: usize) -> Result<Option<SharedExpert>, LoadError> {
    let ffn = or(config, count, EXPERTS_MAX, 0)? * ffn;
    Ok((ffn > 0).then_some(SharedExpert { ffn, gate: false }))
}

fn olmoe(config: &Config, order: NormOrder, (theta, eps): (f32, f32)) -> Result<TransformerSpec, LoadError> {
    let base = Base::read(config)?;
    if let Some(clip) = config.get("clip_qkv") {
        return Err(config.unsupported("clip_qkv", clip, "this build clips no queries, keys and values"));
    }
    let heads = base.heads(config)?;
    let normalized = config.bool("norm_topk_prob")?.unwrap_or(false);
    let names = ("num_experts", "num_experts_per_tok", "intermediate_size");
    let experts = softmax(config, &base, names, normalized)?;
    let biased = config.bool("attention_bias")?.unwrap_or(false);
    let (rope, _) = rope(config, (RopeKind::Neox, heads.head_dim), (theta, base.context))?;
    let family = config.string("model_type")?.unwrap_or("olmoe");
    let spec = base.spec(config, family, (rope, eps), |_| {
        let attention = AttentionSpec {
            qkv_bias: biased,
            output_bias: biased,
            qk_norm: QkNorm::Whole,
            ..AttentionSpec::causal(heads)
        };
        (attention, MlpSpec::Experts(experts))
    })?;
    Ok(spec.with_layers(|_, layer| layer.order = order))
}

fn hunyuan(config: &Config) -> Result<TransformerSpec, LoadError> {
    let mut config = config.clone();
    settle_hunyuan(&mut config)?;
    let config = &config;
    let base = Base::read(config)?;
    refuse_unless(config, "use_qk_norm", true)?;
    refuse_unless(config, "use_cla", false)?;
    // Some settings are lists with a number for each layer.
    let of_layers = |key: &str, max: usize| -> Result<Option<usize>, LoadError> {
        let Some(Value::Array(list)) = config.get(key) else { return config.whole(key, max) };
        match list.first().and_then(Value::as_u64).and_then(|first| usize::try_from(first).ok()) {
            Some(first) if first <= max && list.iter().all(|value| value.as_u64() == Some(first as u64)) => {
                Ok(Some(first))
            }
            _ => Err(config.unsupported(key, "another list", "all layers must have the same")),
        }
    };
    let ffn = config.required("intermediate_size", WIDTH_MAX)?;
    for (key, known) in [("moe_intermediate_size", ffn), ("num_shared_expert", 1)] {
        if let Some(value) = of_layers(key, WIDTH_MAX)?.filter(|&value| value != known) {
            return Err(config.unsupported(key, value, format!("the family's class knows {known} alone")));
        }
    }
    let used = of_layers("moe_topk", EXPERTS_MAX)?.or(of_layers("num_experts_per_tok", EXPERTS_MAX)?);
    let used = used.filter(|&used| used > 0).ok_or_else(|| config.missing("moe_topk"))?;
    let experts = ExpertsSpec {
        activation: base.activation,
        shared: Some(SharedExpert { ffn, gate: false }),
        ..ExpertsSpec::softmax(config.required("num_experts", EXPERTS_MAX)?, used, ffn, true)
    };
    let heads = base.heads(config)?;
    let biased = config.bool("attention_bias")?.unwrap_or(false);
    let (rope, _) = rope(config, (RopeKind::Neox, heads.head_dim), (1e4, base.context))?;
    base.spec(config, "hunyuan_v1_moe", (rope, 1e-5), |_| {
        let attention = AttentionSpec {
            qkv_bias: biased,
            output_bias: biased,
            qk_norm: QkNorm::Heads,
            norm_after_rope: true,
            ..AttentionSpec::causal(heads)
        };
        (attention, MlpSpec::Experts(experts))
    })
}

fn granite_moe(config: &Config) -> Result<TransformerSpec, LoadError> {
    let base = Base::read(config)?;
    let heads = base.heads(config)?;
    let names = ("num_local_experts", "num_experts_per_tok", "intermediate_size");
    let mut experts = softmax(config, &base, names, true)?;
    let family = config.string("model_type")?.unwrap_or("granitemoe");
    if family == "granitemoeshared" {
        let ffn = or(config, "shared_intermediate_size", WIDTH_MAX, 0)?;
        experts.shared = (ffn > 0).then_some(SharedExpert { ffn, gate: false });
    }
    let biased = config.bool("attention_bias")?.unwrap_or(false);
    let multiplier = |key| Ok::<_, LoadError>(config.positive(key)?.unwrap_or(1.0));
    let (scale, residual) = (multiplier("attention_multiplier")?, multiplier("residual_multiplier")?);
    let (rope, _) = rope(config, (RopeKind::Neox, heads.head_dim), (1e4, base.context))?;
    let spec = base.spec(config, family, (rope, 1e-6), |_| {
        let attention =
            AttentionSpec { qkv_bias: biased, output_bias: biased, scale, ..AttentionSpec::causal(heads) };
        (attention, MlpSpec::Experts(experts))
    })?;
    let head =
        LogitsSpec { scale: 1.0 / multiplier("logits_scaling")?, ..LogitsSpec::plain(spec.head.tied()) };
    Ok(TransformerSpec {
        embedding_scale: multiplier("embedding_multiplier")?,
        head: HeadSpec::Logits(head),
        ..spec.with_layers(|_, layer| layer.residual_scale = residual)
    })
}

fn ernie_moe(config: &Config) -> Result<TransformerSpec, LoadError> {
    let mut base = Base::read(config)?;
    base.tied = true;
    refuse_unless(config, "use_bias", false)?;
    let heads = base.heads(config)?;
    let names = ("moe_num_experts", "moe_k", "moe_intermediate_size");
    let mut experts = softmax(config, &base, names, true)?;
    experts.correction_bias = true;
    experts.shared = match config.get("moe_num_shared_experts") {
        Some(_) => shared_of(config, "moe_num_shared_experts", experts.ffn)?,
        None => Some(SharedExpert { ffn: 2 * experts.ffn, gate: false }),
    };
    let first = or(config, "moe_layer_start_index", LAYERS_MAX, 1)?;
    let each = config.count("moe_layer_interval", LAYERS_MAX)?.unwrap_or(1);
    let last = match config.get("moe_layer_end_index") {
        Some(end) if end.as_i64() != Some(-1) => config.whole("moe_layer_end_index", LAYERS_MAX)?,
        _ => None,
    };
    let sparse = |layer: usize| {
        layer >= first && last.is_none_or(|last| layer <= last) && (layer + 1).is_multiple_of(each)
    };
    let ffn = match (0..base.layers).all(sparse) {
        true => 0,
        false => config.required("intermediate_size", WIDTH_MAX)?,
    };
    let (rope, _) = rope(config, (RopeKind::Interleaved, heads.head_dim), (5e5, base.context))?;
    base.spec(config, "ernie4_5_moe", (rope, 1e-5), |layer| {
        let mlp = match sparse(layer) {
            true => MlpSpec::Experts(experts),
            false => MlpSpec::gated(ffn, base.activation),
        };
        (AttentionSpec::causal(heads), mlp)
    })
}

fn minimax_m2(config: &Config) -> Result<TransformerSpec, LoadError> {
    let base = Base::read(config)?;
    refuse_unless(config, "use_qk_norm", true)?;
    refuse_unless(config, "use_routing_bias", true)?;
    refuse_unless_named(config, "qk_norm_type", "per_layer")?;
    refuse_unless_named(config, "scoring_func", "sigmoid")?;
    if or(config, "shared_intermediate_size", WIDTH_MAX, 0)? > 0 {
        let size = or(config, "shared_intermediate_size", WIDTH_MAX, 0)?;
        return Err(config.unsupported("shared_intermediate_size", size, "the family's own class has none"));
    }
    let heads = base.heads(config)?;
    let names = ("num_local_experts", "num_experts_per_tok", "intermediate_size");
    let experts = ExpertsSpec {
        scoring: ExpertScoring::Sigmoid,
        correction_bias: true,
        ..softmax(config, &base, names, true)?
    };
    let dim = match config.count("rotary_dim", heads.head_dim)? {
        Some(dim) => dim,
        None => turned(config, heads.head_dim, 1.0)?,
    };
    let (rope, _) = rope(config, (RopeKind::Neox, dim), (5e6, base.context))?;
    base.spec(config, "minimax_m2", (rope, 1e-6), |_| {
        let attention = AttentionSpec { qk_norm: QkNorm::Whole, ..AttentionSpec::causal(heads) };
        (attention, MlpSpec::Experts(experts))
    })
}

fn deepseek(config: &Config) -> Result<TransformerSpec, LoadError> {
    let base = Base::read(config)?;
    refuse_unless_named(config, "scoring_func", "softmax")?;
    if let Some(scale) = config.positive("routed_scaling_factor")?.filter(|&scale| scale != 1.0) {
        return Err(config.unsupported("routed_scaling_factor", scale, "this family has no such factor"));
    }
    let heads = base.heads(config)?;
    let biased = config.bool("attention_bias")?.unwrap_or(false);
    let normalized = config.bool("norm_topk_prob")?.unwrap_or(false);
    let experts = ExpertsSpec { normalized, ..routed(config, &base)? };
    let mlp = after_dense(config, &base, 0, experts)?;
    let (rope, _) = rope(config, (RopeKind::Neox, heads.head_dim), (1e4, base.context))?;
    base.spec(config, "deepseek", (rope, 1e-6), |layer| {
        let attention =
            AttentionSpec { qkv_bias: biased, output_bias: biased, ..AttentionSpec::causal(heads) };
        (attention, mlp(layer))
    })
}

fn afmoe(config: &Config) -> Result<TransformerSpec, LoadError> {
    let base = Base::read(config)?;
    refuse_unless(config, "attention_bias", false)?;
    refuse_unless(config, "route_norm", true)?;
    refuse_unless_named(config, "score_func", "sigmoid")?;
    let heads = base.heads(config)?;
    let window = config.count("sliding_window", CONTEXT_TOKENS_MAX)?.unwrap_or(1024) as u32;
    let windows = match config.get("layer_types") {
        Some(types) => windows_by_type(config, types, Some(window), base.layers)?,
        None => {
            let each = config.count("global_attn_every_n_layers", LAYERS_MAX)?.unwrap_or(4);
            (1..=base.layers).map(|number| (!number.is_multiple_of(each)).then_some(window)).collect()
        }
    };
    let mut experts = softmax(config, &base, LING, true)?;
    experts.shared = shared_of(config, "num_shared_experts", experts.ffn)?;
    experts.scoring = ExpertScoring::Sigmoid;
    experts.correction_bias = true;
    experts.scale = config.positive("route_scale")?.unwrap_or(1.0);
    let dense = or(config, "num_dense_layers", LAYERS_MAX, 1)?;
    let ffn = if dense > 0 { config.required("intermediate_size", WIDTH_MAX)? } else { 0 };
    let (rope, _) = rope(config, (RopeKind::Neox, heads.head_dim), (1e4, base.context))?;
    let spec = base.spec(config, "afmoe", (rope, 1e-5), |layer| {
        let attention = AttentionSpec {
            mask: Mask::Causal { window: windows[layer] },
            output_gate: true,
            qk_norm: QkNorm::Heads,
            // Layers without a window have no rotation.
            rope: windows[layer].map(|_| 0),
            ..AttentionSpec::causal(heads)
        };
        let mlp = match layer < dense {
            true => MlpSpec::gated(ffn, base.activation),
            false => MlpSpec::Experts(experts),
        };
        (attention, mlp)
    })?;
    let by_root = config.bool("mup_enabled")?.unwrap_or(false);
    let embedding_scale = if by_root { (base.hidden as f32).sqrt() } else { 1.0 };
    Ok(TransformerSpec { embedding_scale, ..spec.with_layers(|_, layer| layer.order = NormOrder::Sandwich) })
}

const LING: (&str, &str, &str) = ("num_experts", "num_experts_per_tok", "moe_intermediate_size");

fn bailing_moe(config: &Config) -> Result<TransformerSpec, LoadError> {
    let base = Base::read(config)?;
    for key in ["use_qk_norm", "norm_head", "use_sliding_window"] {
        refuse_unless(config, key, false)?;
    }
    let heads = base.heads(config)?;
    let normalized = config.bool("norm_topk_prob")?.unwrap_or(true);
    let mut experts = softmax(config, &base, LING, normalized)?;
    experts.shared = shared_of(config, "num_shared_experts", experts.ffn)?;
    let (qkv_bias, output_bias) =
        (config.bool("use_qkv_bias")?.unwrap_or(false), config.bool("use_bias")?.unwrap_or(false));
    let mlp = after_dense(config, &base, 0, experts)?;
    let (rope, _) = rope(config, (RopeKind::Neox, heads.head_dim), (1e4, base.context))?;
    base.spec(config, "bailing_moe", (rope, 1e-6), |layer| {
        (AttentionSpec { qkv_bias, output_bias, ..AttentionSpec::causal(heads) }, mlp(layer))
    })
}

fn bailing_moe2(config: &Config) -> Result<TransformerSpec, LoadError> {
    let base = Base::read(config)?;
    for (key, known) in [
        ("use_qk_norm", true),
        ("moe_router_enable_expert_bias", true),
        ("norm_topk_prob", true),
        ("norm_head", false),
        ("use_sliding_window", false),
    ] {
        refuse_unless(config, key, known)?;
    }
    refuse_unless_named(config, "score_function", "sigmoid")?;
    let heads = base.heads(config)?;
    let (groups, used) =
        (or(config, "n_group", EXPERT_GROUPS_MAX, 1)?, or(config, "topk_group", EXPERT_GROUPS_MAX, 1)?);
    let mut experts = ExpertsSpec {
        scoring: ExpertScoring::Sigmoid,
        correction_bias: true,
        groups: (groups > 1).then_some(ExpertGroups { count: groups, used, best: 2 }),
        scale: config.positive("routed_scaling_factor")?.unwrap_or(1.0),
        ..softmax(config, &base, LING, true)?
    };
    let one = or(config, "moe_shared_expert_intermediate_size", WIDTH_MAX, experts.ffn)?;
    experts.shared = shared_of(config, "num_shared_experts", one)?;
    let (qkv_bias, output_bias) =
        (config.bool("use_qkv_bias")?.unwrap_or(false), config.bool("use_bias")?.unwrap_or(false));
    let mlp = after_dense(config, &base, 0, experts)?;
    let dim = match config.count("rotary_dim", heads.head_dim)? {
        Some(dim) => dim,
        None => turned(config, heads.head_dim, 0.5)?,
    };
    let (rope, _) = rope(config, (RopeKind::Neox, dim), (1e4, base.context))?;
    base.spec(config, "bailing_moe_v2", (rope, 1e-6), |layer| {
        let attention =
            AttentionSpec { qkv_bias, output_bias, qk_norm: QkNorm::Heads, ..AttentionSpec::causal(heads) };
        (attention, mlp(layer))
    })
}

fn exaone_moe(config: &Config) -> Result<TransformerSpec, LoadError> {
    let base = Base::read(config)?;
    refuse_unless_named(config, "scoring_func", "sigmoid")?;
    let heads = base.heads(config)?;
    let experts = ExpertsSpec {
        shared: shared_of(
            config,
            "num_shared_experts",
            config.required("moe_intermediate_size", WIDTH_MAX)?,
        )?,
        ..routed_by_sigmoid(config, &base)?
    };
    let window = config.count("sliding_window", CONTEXT_TOKENS_MAX)?.map(|window| window as u32);
    let windows = match config.get("layer_types") {
        Some(types) => windows_by_type(config, types, window, base.layers)?,
        None => match config.string("sliding_window_pattern") {
            // One letter a layer, repeated; the last layer has no window.
            Ok(Some(letters)) if !letters.is_empty() => {
                let local = |layer: usize| letters.as_bytes()[layer % letters.len()] == b'L';
                (0..base.layers)
                    .map(|layer| window.filter(|_| local(layer) && layer + 1 < base.layers))
                    .collect()
            }
            _ => {
                return Err(config.missing("layer_types"));
            }
        },
    };
    let mlp = after_dense(config, &base, 1, experts)?;
    let (rope, _) = rope(config, (RopeKind::Neox, heads.head_dim), (1e4, base.context))?;
    base.spec(config, "exaone_moe", (rope, 1e-5), |layer| {
        let attention = AttentionSpec {
            mask: Mask::Causal { window: windows[layer] },
            qk_norm: QkNorm::Heads,
            // If some layers have a window, only those rotate queries and keys.
            rope: (window.is_none() || windows[layer].is_some()).then_some(0),
            ..AttentionSpec::causal(heads)
        };
        (attention, mlp(layer))
    })
}

/// Noise of the router's training. Experts are near if their scores differ by at most twice this.
pub(in crate::spec) const PHI_NOISE: f32 = 0.01;

fn phimoe(config: &Config) -> Result<TransformerSpec, LoadError> {
    let base = Base::read(config)?;
    let heads = base.heads(config)?;
    let names = ("num_local_experts", "num_experts_per_tok", "intermediate_size");
    let mut experts = softmax(config, &base, names, false)?;
    if experts.used != 2 {
        return Err(config.unsupported(names.1, experts.used, "the family's own class knows 2 alone"));
    }
    let noise = config.positive("router_jitter_noise")?.unwrap_or(PHI_NOISE);
    experts.scoring = ExpertScoring::Near { reach: 2.0 * noise };
    let biased = config.bool("attention_bias")?.unwrap_or(false);
    let window = config.count("sliding_window", CONTEXT_TOKENS_MAX)?.filter(|&window| window < base.context);
    let settings = rope_settings(config, "")?;
    let named = match settings.string("rope_type")? {
        Some(named) => named,
        None => settings.string("type")?.unwrap_or("default"),
    };
    let turned = (RopeKind::Neox, heads.head_dim);
    let rope = if is_long(named) {
        let theta = settings.positive("rope_theta")?.or(config.positive("rope_theta")?).unwrap_or(1e6);
        let plain = RopeSpec::plain(turned.0, theta, turned.1);
        let magnitudes = Some(["short_mscale", "long_mscale"]);
        lengthen(plain, (config, &settings), base.context, magnitudes)?
    } else {
        rope(config, turned, (1e6, base.context))?.0
    };
    let spec = base.spec(config, "phimoe", (rope, 1e-5), |_| {
        let attention = AttentionSpec {
            mask: Mask::Causal { window: window.map(|window| window as u32) },
            qkv_bias: biased,
            output_bias: biased,
            ..AttentionSpec::causal(heads)
        };
        (attention, MlpSpec::Experts(experts))
    })?;
    let norm = NormSpec { kind: NormKind::Layer { bias: true }, ..spec.norm };
    let bias = config.bool("lm_head_bias")?.unwrap_or(false);
    let head = LogitsSpec { bias, ..LogitsSpec::plain(spec.head.tied()) };
    Ok(TransformerSpec { norm, head: HeadSpec::Logits(head), ..spec })
}

fn solar_open(config: &Config) -> Result<TransformerSpec, LoadError> {
    let base = Base::read(config)?;
    let heads = base.heads(config)?;
    let qkv_bias = config.bool("attention_bias")?.unwrap_or(false);
    let experts = routed_by_sigmoid(config, &base)?;
    let dim = turned(config, heads.head_dim, 1.0)?;
    let (rope, _) = rope(config, (RopeKind::Neox, dim), (1e6, base.context))?;
    base.spec(config, "solar_open", (rope, 1e-5), |_| {
        (AttentionSpec { qkv_bias, ..AttentionSpec::causal(heads) }, MlpSpec::Experts(experts))
    })
}

/// Experts in parallel with attention, after dense layers. Layers without a window have no rotation unless they are
/// dense.
fn cohere2_moe(config: &Config) -> Result<TransformerSpec, LoadError> {
    const SHARED: &str = "shared_expert_combination_strategy";
    let base = Base { tied: true, ..Base::read(config)? };
    let heads = base.heads(config)?;
    let mut experts =
        softmax(config, &base, ("num_experts", "num_experts_per_tok", "intermediate_size"), true)?;
    match config.string("expert_selection_fn")?.unwrap_or("softmax") {
        "softmax" => {}
        "sigmoid" => {
            experts.scoring = ExpertScoring::Sigmoid;
            experts.normalized = config.bool("norm_topk_prob")?.unwrap_or(true);
        }
        other => {
            return Err(config.unsupported("expert_selection_fn", other, "softmax and sigmoid are known"));
        }
    }
    experts.shared = shared_of(config, "num_shared_experts", experts.ffn)?;
    experts.averaged = match config.string(SHARED)?.unwrap_or("average") {
        "average" => experts.shared.is_some(),
        "sum" => false,
        other => return Err(config.unsupported(SHARED, other, "average and sum are known")),
    };
    let dense_ffn = config.count("prefix_dense_intermediate_size", WIDTH_MAX)?.unwrap_or(experts.ffn);
    let mlp = after_dense(config, &base, 0, experts)?;
    let is_dense = |layer: usize| mlp(layer).dense().is_some();
    let each = config.count("prefix_dense_sliding_window_pattern", LAYERS_MAX)?.unwrap_or(1);
    let window = config.count("sliding_window", CONTEXT_TOKENS_MAX)?.unwrap_or(4096) as u32;
    let windows: Vec<Option<u32>> = match config.get("layer_types") {
        Some(types) => windows_by_type(config, types, Some(window), base.layers)?,
        None => {
            let other = config.count("sliding_window_pattern", LAYERS_MAX)?.unwrap_or(4);
            let dense = or(config, "first_k_dense_replace", LAYERS_MAX, 0)?;
            let sees_all = |layer: usize| match layer.checked_sub(dense) {
                None => (layer + 1).is_multiple_of(each),
                Some(layer) => (layer + 1).is_multiple_of(other),
            };
            (0..base.layers).map(|layer| (!sees_all(layer)).then_some(window)).collect()
        }
    };
    let biased = config.bool("attention_bias")?.unwrap_or(false);
    let (rope, _) = rope(config, (RopeKind::Interleaved, heads.head_dim), (1e4, base.context))?;
    let spec = base.spec(config, "cohere2_moe", (rope, 1e-5), |layer| {
        let turns = windows[layer].is_some() || is_dense(layer) && each == 1;
        let attention = AttentionSpec {
            mask: Mask::Causal { window: windows[layer] },
            qkv_bias: biased,
            output_bias: biased,
            rope: turns.then_some(0),
            ..AttentionSpec::causal(heads)
        };
        let mlp = match is_dense(layer) {
            true => MlpSpec::gated(dense_ffn, base.activation),
            false => mlp(layer),
        };
        (attention, mlp)
    })?;
    // RMS norms if their epsilon is given.
    let norm = match config.positive("rms_norm_eps")? {
        Some(_) => spec.norm,
        None => NormSpec {
            kind: NormKind::Layer { bias: false },
            eps: config.positive("layer_norm_eps")?.unwrap_or(1e-5),
        },
    };
    let scale = config.positive("logit_scale")?.unwrap_or(0.0625);
    let head = HeadSpec::Logits(LogitsSpec { scale, ..LogitsSpec::plain(spec.head.tied()) });
    let spec = spec.with_layers(|_, layer| layer.order = NormOrder::Parallel);
    Ok(TransformerSpec { norm, head, ..spec })
}
