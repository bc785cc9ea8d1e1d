//! Arcee's Trinity: attention with a gate, norms around sublayers, and sigmoid experts after dense layers.

use super::*;

pub(super) const AFMOE: Family = Family {
    title: "Trinity (AFMoE)",
    hugging_face: &[ModelType {
        name: "afmoe",
        class: "AfmoeForCausalLM",
        names: &Names {
            state: StateNames { query_gate: "self_attn.gate_proj.", ..StateNames::NONE },
            attention_post_norm: "post_attention_layernorm",
            router: "mlp.router.gate",
            router_bias: "mlp.expert_bias",
            mlp_norm: "pre_mlp_layernorm",
            mlp_post_norm: "post_mlp_layernorm",
            ..Names::HUGGING_FACE
        },
        read: from_settings,
        order: NormOrder::Sandwich,
        eps: ("rms_norm_eps", 1e-5),
        biases: Choice::NEVER,
        qk_norm: QkNorm::Heads,
        ..ModelType::OWN
    }],
    gguf: &[Architecture {
        name: "afmoe",
        names: &Names { state: StateNames { query_gate: "attn_gate.", ..StateNames::NONE }, ..Names::GGUF },
        full_each: 4,
        turns: Turns::WindowsIfAny,
        scoring: ExpertScoring::Sigmoid,
        own: |_, spec| {
            // llama.cpp assumes it.
            spec.embedding_scale = (spec.hidden as f32).sqrt();
            spec.layers.iter_mut().for_each(|layer| layer.attention.output_gate = true);
            Ok(())
        },
        ..Architecture::MIXTURE
    }],
    goldens: &[both("mixtures/afmoe")],
};

fn from_settings(base: &Base<'_>, config: &Config) -> Result<TransformerSpec, LoadError> {
    refuse_unless(config, "attention_bias", false)?;
    refuse_unless(config, "route_norm", true)?;
    refuse_unless_named(config, "score_func", "sigmoid")?;
    let heads = base.heads()?;
    let window = config.count("sliding_window", CONTEXT_TOKENS_MAX)?.unwrap_or(1024) as u32;
    let windows = match windows_by_type(config, Some(window), base.layers)? {
        Some(windows) => windows,
        None => {
            let each = config.count("global_attn_every_n_layers", LAYERS_MAX)?.unwrap_or(4);
            (1..=base.layers).map(|number| (!number.is_multiple_of(each)).then_some(window)).collect()
        }
    };
    let mut experts = softmax(base, &EXPERTS, true)?;
    experts.shared = shared_of(base.file, &SHARED_EXPERTS, experts.ffn)?;
    experts.scoring = ExpertScoring::Sigmoid;
    experts.correction_bias = true;
    experts.scale = config.positive("route_scale")?.unwrap_or(1.0);
    let dense = or(config, "num_dense_layers", LAYERS_MAX, 1)?;
    let is_dense = (0..base.layers).map(|layer| layer < dense).collect();
    let mlp = among(is_dense, MlpSpec::gated(base.ffn(dense > 0)?, base.activation), experts);
    let attention = AttentionSpec { output_gate: true, ..base.attention(heads)? };
    let rope = base.rope(heads.head_dim)?;
    // Layers without a window have no rotation.
    let spec = base.with_windows(rope, &attention, &windows, |layer| windows[layer].map(|_| 0), mlp)?;
    let by_root = config.bool("mup_enabled")?.unwrap_or(false);
    let embedding_scale = if by_root { (base.hidden as f32).sqrt() } else { 1.0 };
    Ok(TransformerSpec { embedding_scale, ..spec })
}
