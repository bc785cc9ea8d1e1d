//! EXAONE 3 and 4, and K-EXAONE's mixtures of experts.

use super::*;
use super::{metadata, olmo2};

pub(super) const EXAONE: Family = Family {
    title: "EXAONE 3, 3.5",
    hugging_face: &[ModelType {
        name: "exaone",
        class: "ExaoneForCausalLM",
        names: &Names {
            query: "attn.attention.q_proj",
            key: "attn.attention.k_proj",
            value: "attn.attention.v_proj",
            attention_output: "attn.attention.out_proj",
            gate: "mlp.c_fc_0",
            up: "mlp.c_fc_1",
            down: "mlp.c_proj",
            mlp_norm: "ln_2",
            ..Names::TRANSFORMER
        },
        eps: ("layer_norm_epsilon", 1e-5),
        renames: &[("num_layers", "num_hidden_layers"), ("activation_function", "hidden_act")],
        ..ModelType::DENSE
    }],
    gguf: &[Architecture { name: "exaone", ..Architecture::DENSE }],
    goldens: &[both("dense/exaone")],
};

pub(super) const EXAONE4: Family = Family {
    title: "EXAONE 4",
    hugging_face: &[ModelType {
        name: "exaone4",
        class: "Exaone4ForCausalLM",
        names: &olmo2::NAMES,
        order: NormOrder::Branch,
        eps: ("rms_norm_eps", 1e-5),
        biases: Choice::NEVER,
        qk_norm: QkNorm::Heads,
        windows: Windows::AllButEach(4),
        own: |config, spec| {
            if config.get("sliding_window").is_some_and(|window| !window.is_null()) {
                turn_windows_alone(spec);
            }
            Ok(())
        },
        ..ModelType::DENSE
    }],
    gguf: &[Architecture { name: "exaone4", full_each: 4, turns: Turns::Windows, ..Architecture::DENSE }],
    goldens: &[both("dense/exaone4")],
};

pub(super) const EXAONE_MOE: Family = Family {
    title: "K-EXAONE",
    hugging_face: &[ModelType {
        name: "exaone_moe",
        class: "ExaoneMoeForCausalLM",
        names: &Names { router_bias: "mlp.e_score_correction_bias", ..Names::HUGGING_FACE },
        predicts_more: true,
        read: mixture,
        eps: ("rms_norm_eps", 1e-5),
        biases: Choice::NEVER,
        qk_norm: QkNorm::Heads,
        ..ModelType::OWN
    }],
    gguf: &[Architecture {
        name: "exaone-moe",
        predicts_more: true,
        windows: listed_windows,
        turns: Turns::Windows,
        scoring: ExpertScoring::Sigmoid,
        reads: &[EXPERT_KEYS, LATENT_KEYS, &["attention.sliding_window_pattern"]],
        ..Architecture::MIXTURE
    }],
    goldens: &[both("mixtures/exaone-moe")],
};

fn mixture(base: &Base<'_>, config: &Config) -> Result<TransformerSpec, LoadError> {
    refuse_unless_named(config, "scoring_func", "sigmoid")?;
    let heads = base.heads()?;
    let experts = routed_by_sigmoid(base, config)?;
    let shared = shared_of(base.file, &SHARED_EXPERTS, experts.ffn)?;
    let window = config.count("sliding_window", CONTEXT_TOKENS_MAX)?.map(|window| window as u32);
    let windows = match windows_by_type(config, window, base.layers)? {
        Some(windows) => windows,
        None => match config.string("sliding_window_pattern") {
            // One letter a layer, repeated; the last layer has no window.
            Ok(Some(letters)) if !letters.is_empty() => {
                let local = |layer: usize| letters.as_bytes()[layer % letters.len()] == b'L';
                (0..base.layers)
                    .map(|layer| window.filter(|_| local(layer) && layer + 1 < base.layers))
                    .collect()
            }
            _ => return Err(config.missing("layer_types")),
        },
    };
    let mlp = after_dense(base, config, 1, ExpertsSpec { shared, ..experts })?;
    let attention = base.attention(heads)?;
    let rope = base.rope(heads.head_dim)?;
    // If some layers have a window, only those rotate queries and keys.
    let turns = |layer: usize| (window.is_none() || windows[layer].is_some()).then_some(0);
    base.with_windows(rope, &attention, &windows, turns, mlp)
}

/// A window in the layers of a list, or in all but each fourth.
pub(super) fn listed_windows(keys: &Keys<'_>, layers: usize) -> Result<Vec<Option<u32>>, LoadError> {
    const PATTERN: &str = "attention.sliding_window_pattern";
    let window = keys.required("attention.sliding_window", CONTEXT_TOKENS_MAX)? as u32;
    match keys.truths(PATTERN, layers)? {
        Some(sees) => Ok(sees.into_iter().map(|sees| sees.then_some(window)).collect()),
        None => Ok(metadata::every(Some(window), 4, layers)),
    }
}
