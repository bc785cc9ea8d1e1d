//! Granite 3: Llama with factors on embeddings, scores, residuals and logits.

use super::*;

pub(super) const GRANITE: Family = Family {
    title: "Granite 3 (dense)",
    hugging_face: &[ModelType {
        name: "granite",
        class: "GraniteForCausalLM",
        own: multiply,
        ..ModelType::DENSE
    }],
    gguf: &[Architecture { name: "granite", logit_scale: LogitScale::Divisor, ..Architecture::PERMUTED }],
    goldens: &[both("dense/granite")],
};

/// Applies the factors of any Granite's settings.
pub(super) fn multiply(config: &Config, spec: &mut TransformerSpec) -> Result<(), LoadError> {
    let multiplier = |key| Ok::<_, LoadError>(config.positive(key)?.unwrap_or(1.0));
    spec.embedding_scale = multiplier("embedding_multiplier")?;
    set_logits(spec, 1.0 / multiplier("logits_scaling")?, None);
    let (scale, residual) = (multiplier("attention_multiplier")?, multiplier("residual_multiplier")?);
    for layer in &mut spec.layers {
        layer.residual_scale = residual;
        if layer.attention.projection.state().is_none() {
            layer.attention.scale = scale;
        }
    }
    Ok(())
}
