//! Solar Open: DeepSeek V3's experts in all layers, with Llama's attention.

use super::*;

pub(super) const SOLAR_OPEN: Family = Family {
    title: "Solar Open",
    hugging_face: &[ModelType {
        name: "solar_open",
        class: "SolarOpenForCausalLM",
        written_as: "glm4moe",
        read: |base, config| {
            let heads = base.heads()?;
            let attention = base.attention(heads)?;
            let experts = routed_by_sigmoid(base, config)?;
            let rope = base.rope(base.turned(heads.head_dim)?)?;
            base.spec(rope, |_| (attention.clone(), MlpSpec::Experts(experts)))
        },
        eps: ("rms_norm_eps", 1e-5),
        biases: [Choice::By("attention_bias", false), Choice::Always(false)],
        rope_base: 1e6,
        ..ModelType::OWN
    }],
    gguf: &[],
    goldens: &[both("mixtures/solar-open")],
};
