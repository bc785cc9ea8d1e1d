//! Phi-3.5-MoE: two experts a token, weighed by sparse mixer routing.

use super::mixtral;
use super::*;

/// Noise of the router's training. Experts are near if their scores differ by at most twice this.
const NOISE: f32 = 0.01;

pub(super) const PHIMOE: Family = Family {
    title: "Phi-3.5-MoE",
    hugging_face: &[ModelType {
        name: "phimoe",
        class: "PhimoeForCausalLM",
        names: &mixtral::NAMES,
        read: from_settings,
        norm: NormKind::Layer { bias: true },
        eps: ("rms_norm_eps", 1e-5),
        rope_base: 1e6,
        ..ModelType::OWN
    }],
    gguf: &[Architecture {
        name: "phimoe",
        // Files have its epsilon under the name of another norm's.
        norms: |keys| {
            let eps = keys.positive("attention.layer_norm_epsilon")?;
            let eps = eps.map_or_else(|| keys.epsilon(), Ok)?;
            Ok(NormSpec { kind: NormKind::Layer { bias: true }, eps })
        },
        // In published files the window is the context.
        windows: |keys, layers| {
            let context = keys.required("context_length", CONTEXT_TOKENS_MAX)?;
            let window = keys.whole("attention.sliding_window", CONTEXT_TOKENS_MAX)?;
            let window = window.filter(|window| (1..context).contains(window));
            Ok(vec![window.map(|window| window as u32); layers])
        },
        expert_ffn: "feed_forward_length",
        // No key gives the reach.
        scoring: ExpertScoring::Near { reach: 2.0 * NOISE },
        normalized: Some(false),
        reads: &[EXPERT_KEYS, LATENT_KEYS, &["attention.layer_norm_epsilon"]],
        ..Architecture::MIXTURE
    }],
    goldens: &[both("mixtures/phimoe")],
};

fn from_settings(base: &Base<'_>, config: &Config) -> Result<TransformerSpec, LoadError> {
    let heads = base.heads()?;
    let mut experts = softmax(base, &LOCAL_EXPERTS, false)?;
    if experts.used != 2 {
        let known = "the family's own class knows 2 alone";
        return Err(base.file.unsupported(&LOCAL_EXPERTS[1], experts.used, known));
    }
    let noise = config.positive("router_jitter_noise")?.unwrap_or(NOISE);
    experts.scoring = ExpertScoring::Near { reach: 2.0 * noise };
    let window = config.count("sliding_window", CONTEXT_TOKENS_MAX)?.filter(|&window| window < base.context);
    let mask = Mask::Causal { window: window.map(|window| window as u32) };
    let attention = AttentionSpec { mask, ..base.attention(heads)? };
    let settings = settings_of(config, "")?;
    let rope = if rope_type(&settings)?.is_some_and(is_long) {
        let theta = settings.positive("rope_theta")?.or(config.positive("rope_theta")?);
        let plain = RopeSpec::plain(base.of.rope_kind, theta.unwrap_or(base.of.rope_base), heads.head_dim);
        let magnitudes = Some(["short_mscale", "long_mscale"]);
        lengthen(plain, config, &settings, base.context, magnitudes)?
    } else {
        base.rope(heads.head_dim)?
    };
    let spec = base.spec(rope, |_| (attention.clone(), MlpSpec::Experts(experts)))?;
    let bias = config.bool("lm_head_bias")?.unwrap_or(false);
    let head = LogitsSpec { bias, ..LogitsSpec::plain(spec.head.tied()) };
    Ok(TransformerSpec { head: HeadSpec::Logits(head), ..spec })
}
