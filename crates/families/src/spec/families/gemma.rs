//! Gemma 1 to 3: scaled embeddings, norms stored less one, soft caps, and windows in most layers.

use super::*;

/// Type that the others of Gemma build on.
pub(super) const GEMMA_TYPE: ModelType = ModelType {
    name: "gemma",
    class: "GemmaForCausalLM",
    norm: NormKind::Rms { from_one: true },
    activation: ("hidden_activation", "gelu_pytorch_tanh"),
    head_dim: Some(256),
    tied: true,
    embeds_by_root: true,
    refused: &["use_bidirectional_attention"],
    ..ModelType::DENSE
};

const ARCHITECTURE: Architecture = Architecture { name: "gemma", ..Architecture::DENSE };

pub(super) const GEMMA: Family = Family {
    title: "Gemma",
    hugging_face: &[GEMMA_TYPE],
    gguf: &[ARCHITECTURE],
    goldens: &[both("dense/gemma")],
};

pub(super) const GEMMA2: Family = Family {
    title: "Gemma 2",
    hugging_face: &[ModelType {
        name: "gemma2",
        class: "Gemma2ForCausalLM",
        names: &Names::GEMMA,
        order: NormOrder::Sandwich,
        windows: Windows::AllButEach(2),
        own: gemma2,
        ..GEMMA_TYPE
    }],
    gguf: &[Architecture { name: "gemma2", full_each: 2, window: Some(4096), largest: 46, ..ARCHITECTURE }],
    goldens: &[both("dense/gemma2")],
};

pub(super) const GEMMA3: Family = Family {
    title: "Gemma 3 (text)",
    hugging_face: &[ModelType {
        name: "gemma3_text",
        class: "Gemma3ForCausalLM",
        names: &Names::GEMMA,
        order: NormOrder::Sandwich,
        qk_norm: QkNorm::Heads,
        rope_base: 1e6,
        windows: Windows::AllButEach(6),
        own: gemma3,
        ..GEMMA_TYPE
    }],
    gguf: &[Architecture {
        name: "gemma3",
        full_each: 6,
        turns: Turns::WindowsApart(Some(1e4)),
        largest: 62,
        ..ARCHITECTURE
    }],
    goldens: &[both("dense/gemma3")],
};

pub(super) fn gemma2(config: &Config, spec: &mut TransformerSpec) -> Result<(), LoadError> {
    set_logits(spec, 1.0, unless_null(config, "final_logit_softcapping", Some(30.0))?);
    let softcap = unless_null(config, "attn_logit_softcapping", Some(50.0))?;
    let scale = scale_of_scores(config)?;
    for layer in &mut spec.layers {
        (layer.attention.softcap, layer.attention.scale) = (softcap, scale);
    }
    Ok(())
}

fn scale_of_scores(config: &Config) -> Result<f32, LoadError> {
    Ok(1.0 / config.positive("query_pre_attn_scalar")?.unwrap_or(256.0).sqrt())
}

fn gemma3(config: &Config, spec: &mut TransformerSpec) -> Result<(), LoadError> {
    set_logits(spec, 1.0, config.positive("final_logit_softcapping")?);
    let (softcap, scale) = (config.positive("attn_logit_softcapping")?, scale_of_scores(config)?);
    // Layers with a window have a separate rotation, which is never stretched.
    let settings = settings_of(config, "sliding_attention")?;
    let own = config.object("rope_parameters")?.is_some_and(|all| all.get("sliding_attention").is_some());
    let base =
        if own { settings.positive("rope_theta")? } else { config.positive("rope_local_base_freq")? };
    let base = base.unwrap_or(1e4);
    let local = RopeSpec { base, ..spec.ropes[0].unstretched() };
    turn_windows_apart(spec, local);
    for layer in &mut spec.layers {
        (layer.attention.softcap, layer.attention.scale) = (softcap, scale);
    }
    Ok(())
}
