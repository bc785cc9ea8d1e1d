//! gpt-oss: mixtures of experts with biases, attention with sinks, and a window in every other layer.

use super::*;

pub(super) const GPT_OSS: Family = Family {
    title: "gpt-oss",
    hugging_face: &[ModelType {
        name: "gpt_oss",
        class: "GptOssForCausalLM",
        names: &Names {
            router: "mlp.router",
            router_bias: "mlp.router.bias",
            experts: ExpertNames {
                pack: Some(ExpertPack {
                    in_turns: true,
                    inputs_first: true,
                    ..ExpertPack::new("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
                }),
                ..Names::HUGGING_FACE.experts
            },
            ..Names::HUGGING_FACE
        },
        read: from_settings,
        eps: ("rms_norm_eps", 1e-5),
        biases: [Choice::By("attention_bias", true); 2],
        rope_base: 150_000.0,
        ..ModelType::OWN
    }],
    gguf: &[Architecture {
        name: "gpt-oss",
        names: &Names { router_bias: "ffn_gate_inp.bias", ..Names::GGUF_POST_ATTENTION },
        windows: |keys, layers| {
            let window = keys.required("attention.sliding_window", CONTEXT_TOKENS_MAX)? as u32;
            Ok((0..layers).map(|layer| layer.is_multiple_of(2).then_some(window)).collect())
        },
        softmax_of_chosen: true,
        normalized: Some(true),
        own_experts: |_, experts| {
            experts.activation = Activation::ClampedSwish;
            (experts.router_bias, experts.expert_bias, experts.correction_bias) = (true, true, false);
            Ok(())
        },
        own: |_, spec| {
            spec.layers.iter_mut().for_each(|layer| layer.attention.sinks = true);
            if let RopeScaling::Yarn { truncate, .. } = &mut spec.ropes[0].scaling {
                // As in training; the format has no key for it.
                *truncate = false;
            }
            Ok(())
        },
        ..Architecture::MIXTURE
    }],
    goldens: &[both("mixtures/gpt-oss")],
};

fn from_settings(base: &Base<'_>, config: &Config) -> Result<TransformerSpec, LoadError> {
    for (key, known) in [("swiglu_limit", 7.0), ("swiglu_alpha", 1.702)] {
        if let Some(value) = config.f32(key)?.filter(|&value| value != known) {
            return Err(config.unsupported(key, value, format!("{known} is known")));
        }
    }
    let heads = base.heads()?;
    let window = config.count("sliding_window", CONTEXT_TOKENS_MAX)?.map(|window| window as u32);
    let windows = match windows_by_type(config, window, base.layers)? {
        Some(windows) => windows,
        None => (0..base.layers).map(|layer| window.filter(|_| layer % 2 == 0)).collect(),
    };
    let experts = ExpertsSpec {
        activation: Activation::ClampedSwish,
        router_bias: true,
        expert_bias: true,
        ..softmax(base, &LOCAL_EXPERTS, true)?
    };
    let attention = AttentionSpec { sinks: true, ..base.attention(heads)? };
    let rope = base.rope(heads.head_dim)?;
    base.with_windows(rope, &attention, &windows, |_| Some(0), |_| MlpSpec::Experts(experts))
}
