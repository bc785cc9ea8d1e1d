//! Command R, R+, R7B and A, and Cohere 2's mixtures of experts: attention and MLP in parallel, and a factor on logits.

use super::exaone::listed_windows;
use super::*;

const TYPE: ModelType = ModelType {
    name: "cohere",
    class: "CohereForCausalLM",
    order: NormOrder::Parallel,
    norm: NormKind::Layer { bias: false },
    eps: ("layer_norm_eps", 1e-5),
    rope_kind: RopeKind::Interleaved,
    rope_base: 5e5,
    tied: true,
    own: scale_logits,
    refused: &["use_parallel_embedding"],
    ..ModelType::DENSE
};

const ARCHITECTURE: Architecture =
    Architecture { name: "command-r", qk_norm_if_stored: Some(QkNorm::HeadsApart), ..Architecture::DENSE };

pub(super) const COHERE: Family = Family {
    title: "Command R, R+",
    hugging_face: &[TYPE],
    gguf: &[ARCHITECTURE],
    goldens: &[both("dense/cohere"), both("dense/cohere-plus")],
};

pub(super) const COHERE2: Family = Family {
    title: "Command R7B, A",
    hugging_face: &[ModelType {
        name: "cohere2",
        class: "Cohere2ForCausalLM",
        rope_base: 1e4,
        windows: Windows::AllButEach(4),
        own: |config, spec| {
            scale_logits(config, spec)?;
            turn_windows_alone(spec);
            Ok(())
        },
        refused: &["use_qk_norm", "use_parallel_embedding"],
        ..TYPE
    }],
    gguf: &[Architecture {
        name: "cohere2",
        qk_norm_if_stored: None,
        full_each: 4,
        turns: Turns::Windows,
        ..ARCHITECTURE
    }],
    goldens: &[both("dense/cohere2")],
};

pub(super) const COHERE2_MOE: Family = Family {
    title: "Command A+, North Mini (Cohere 2 MoE)",
    hugging_face: &[ModelType {
        name: "cohere2_moe",
        class: "Cohere2MoeForCausalLM",
        read: mixture,
        order: NormOrder::Parallel,
        eps: ("rms_norm_eps", 1e-5),
        rope_kind: RopeKind::Interleaved,
        tied: true,
        ..ModelType::OWN
    }],
    gguf: &[Architecture {
        name: "cohere2moe",
        norms: |keys| {
            const NAME: &str = "attention.layer_norm_epsilon";
            if keys.positive("attention.layer_norm_rms_epsilon")?.is_some() {
                return Ok(NormSpec { kind: NormKind::Rms { from_one: false }, eps: keys.epsilon()? });
            }
            let eps = keys.positive(NAME)?.ok_or_else(|| keys.metadata.missing(&keys.key(NAME)))?;
            Ok(NormSpec { kind: NormKind::Layer { bias: false }, eps })
        },
        windows: listed_windows,
        turns: Turns::Windows,
        logit_scale: LogitScale::Factor,
        scoring: ExpertScoring::Sigmoid,
        own_experts: |_, experts| {
            // As in llama.cpp; its converter writes no other.
            experts.averaged = experts.shared.is_some();
            Ok(())
        },
        reads: &[
            EXPERT_KEYS,
            LATENT_KEYS,
            &["attention.layer_norm_epsilon", "attention.sliding_window_pattern", "logit_scale"],
        ],
        own: |_, spec| {
            // Dense layers rotate queries and keys even without a window.
            for layer in spec.layers.iter_mut().filter(|layer| layer.mlp.dense().is_some()) {
                layer.attention.rope = Some(0);
            }
            Ok(())
        },
        ..Architecture::MIXTURE
    }],
    goldens: &[both("mixtures/cohere2-moe"), alone("mixtures/cohere2-moe-sum")],
};

fn scale_logits(config: &Config, spec: &mut TransformerSpec) -> Result<(), LoadError> {
    set_logits(spec, config.positive("logit_scale")?.unwrap_or(0.0625), None);
    if config.bool("use_qk_norm")?.unwrap_or(false) {
        norm_heads_apart(spec);
    }
    Ok(())
}

/// Experts in parallel with attention, after dense layers. Layers without a window have no rotation unless they are
/// dense.
fn mixture(base: &Base<'_>, config: &Config) -> Result<TransformerSpec, LoadError> {
    let heads = base.heads()?;
    let attention = base.attention(heads)?;
    let experts = averaged_experts(base, config)?;
    let dense_ffn = config.count("prefix_dense_intermediate_size", WIDTH_MAX)?.unwrap_or(experts.ffn);
    let mlp = after_dense(base, config, 0, experts)?;
    let is_dense = |layer: usize| mlp(layer).dense().is_some();
    let each = config.count("prefix_dense_sliding_window_pattern", LAYERS_MAX)?.unwrap_or(1);
    let window = config.count("sliding_window", CONTEXT_TOKENS_MAX)?.unwrap_or(4096) as u32;
    let windows: Vec<Option<u32>> = match windows_by_type(config, Some(window), base.layers)? {
        Some(windows) => windows,
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
    let rope = base.rope(heads.head_dim)?;
    let turns = |layer: usize| (windows[layer].is_some() || is_dense(layer) && each == 1).then_some(0);
    let mlps = |layer: usize| match is_dense(layer) {
        true => MlpSpec::gated(dense_ffn, base.activation),
        false => mlp(layer),
    };
    let spec = base.with_windows(rope, &attention, &windows, turns, mlps)?;
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
    Ok(TransformerSpec { norm, head, ..spec })
}

/// Experts whose sum may be averaged with that of the shared ones.
fn averaged_experts(base: &Base<'_>, config: &Config) -> Result<ExpertsSpec, LoadError> {
    const SHARED: &str = "shared_expert_combination_strategy";
    let mut experts = softmax(base, &[EXPERTS[0], EXPERTS[1], FFN], true)?;
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
    experts.shared = shared_of(base.file, &SHARED_EXPERTS, experts.ffn)?;
    experts.averaged = match config.string(SHARED)?.unwrap_or("average") {
        "average" => experts.shared.is_some(),
        "sum" => false,
        other => return Err(config.unsupported(SHARED, other, "average and sum are known")),
    };
    Ok(experts)
}
