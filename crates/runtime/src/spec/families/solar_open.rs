//! Solar Open: DeepSeek V3's experts in all layers, with Llama's attention.

use super::*;

pub(super) const SOLAR_OPEN: Family = Family {
    title: "Solar Open",
    hugging_face: &[ModelType {
        name: "solar_open",
        class: "SolarOpenForCausalLM",
        read: |of, config| {
            let base = Base::read(of, config)?;
            let heads = base.heads()?;
            let attention = base.attention(heads)?;
            let experts = routed_by_sigmoid(&base)?;
            let (rope, _) = base.rope(base.turned(heads.head_dim)?)?;
            base.spec(rope, |_| (attention.clone(), MlpSpec::Experts(experts)))
        },
        eps: ("rms_norm_eps", 1e-5),
        output_bias: Choice::Always(false),
        rope_base: 1e6,
        ..ModelType::OWN
    }],
    written_as: "glm4moe",
    goldens: &["mixtures/solar-open"],
    ..Family::NONE
};
