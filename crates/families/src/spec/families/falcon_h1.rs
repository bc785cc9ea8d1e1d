//! Falcon-H1: Mamba 2's states and attention in parallel in every layer, then an MLP; and the factors in its settings.

use super::bamba;
use super::*;

pub(super) const FALCON_H1: Family = Family {
    title: "Falcon-H1",
    hugging_face: &[ModelType {
        name: "falcon_h1",
        class: "FalconH1ForCausalLM",
        names: &bamba::NAMES,
        spec: Some(spec),
        settle: |config| {
            refuse_true(config, &["projectors_bias"])?;
            settle_mamba(config)
        },
        eps: ("rms_norm_eps", 1e-5),
        ..ModelType::OWN
    }],
    gguf: &[Architecture { name: "falcon-h1", names: &Names::GGUF_MAMBA, ..Architecture::HYBRID }],
    goldens: &[both("states/falcon-h1"), both("states/falcon-h1-norm")],
};

/// Layers of attention and an MLP, each with a state in parallel with its attention. In the spec these are two layers,
/// the second of which reads the input of the first.
fn with_states(layers: impl IntoIterator<Item = LayerSpec>, state: StateSpec) -> Vec<LayerSpec> {
    let state = LayerSpec {
        order: NormOrder::Pre,
        attention: AttentionSpec::of_state(state),
        mlp: MlpSpec::None,
        residual_scale: 1.0,
    };
    let both = |layer: LayerSpec| [state.clone(), LayerSpec { order: NormOrder::Beside, ..layer }];
    layers.into_iter().flat_map(both).collect()
}

fn spec(base: &Base<'_>) -> Result<TransformerSpec, LoadError> {
    let (heads, ffn) = (base.heads()?, base.ffn(true)?);
    let mut state = MAMBA.ssd(base, 0)?;
    let (rope, attention) = (base.rope(heads.head_dim)?, base.attention(heads)?);
    let mut spec = base.spec(rope, |_| (attention.clone(), MlpSpec::gated(ffn, base.activation)))?;
    let normed = match base.file {
        SettingsFile::HuggingFace(config) => {
            multiply(config, ffn, &state, &mut spec)?;
            is_normed(config)?
        }
        // The model's factors are already in its weights.
        SettingsFile::Gguf(keys) => keys.has(Part::Layer(0, LayerPart::StateNorm).weight()),
    };
    if !normed {
        state.norm_part = 0;
    }
    spec.layers = with_states(spec.layers, state);
    Ok(spec)
}

/// Whether the outputs of states are normed.
fn is_normed(config: &Config) -> Result<bool, LoadError> {
    let normed = config.bool("mamba_rms_norm")?.unwrap_or(false);
    if normed && config.bool("mamba_norm_before_gate")?.unwrap_or(true) {
        return Err(config.unsupported("mamba_norm_before_gate", true, "a norm behind the gate is known"));
    }
    Ok(normed)
}

/// Applies the factors of a model.
fn multiply(
    config: &Config,
    ffn: usize,
    state: &StateSpec,
    spec: &mut TransformerSpec,
) -> Result<(), LoadError> {
    let multiplier = |key| Ok::<_, LoadError>(config.positive(key)?.unwrap_or(1.0));
    let (reads, keys) = (multiplier("attention_in_multiplier")?, multiplier("key_multiplier")?);
    // Queries and keys are multiplied like their input, and values together with attention's output.
    spec.layers.iter_mut().for_each(|layer| {
        layer.attention.scale = layer.attention.scale * reads * reads * keys;
    });
    let [gate, down] = multipliers(config, "mlp_multipliers")?;
    let [of_gate, of_values, of_keys, of_queries, of_steps] = multipliers(config, "ssm_multipliers")?;
    let (into, out) = (multiplier("ssm_in_multiplier")?, multiplier("ssm_out_multiplier")?);
    let (values, all) = (state.shape.value_width(), state.shape.channels());
    let queries = values + state.shape.key_width();
    let factors = [
        (LayerPart::AttentionOutput, 0..spec.hidden, reads * multiplier("attention_out_multiplier")?),
        (LayerPart::Gate, 0..ffn, gate),
        (LayerPart::Down, 0..spec.hidden, down),
        (LayerPart::StateGate, 0..values, into * of_gate),
        (LayerPart::StateInput, 0..values, into * of_values),
        (LayerPart::StateInput, values..queries, into * of_keys),
        (LayerPart::StateInput, queries..all, into * of_queries),
        (LayerPart::StateStep, 0..state.shape.value_heads, into * of_steps),
        (LayerPart::StateOutput, 0..spec.hidden, out),
    ];
    let factors = factors.into_iter().filter(|&(.., factor)| factor != 1.0);
    spec.row_factors = factors.map(|(part, rows, factor)| RowFactor { part, rows, factor }).collect();
    spec.embedding_scale = multiplier("embedding_multiplier")?;
    set_logits(spec, multiplier("lm_head_multiplier")?, None);
    Ok(())
}

/// A list of N numbers; all 1 if the setting is absent.
fn multipliers<const N: usize>(config: &Config, key: &str) -> Result<[f32; N], LoadError> {
    let Some(list) = config.typed(key, "a list of numbers", Value::as_array)? else { return Ok([1.0; N]) };
    let numbers: Vec<f32> = list.iter().filter_map(|value| Some(value.as_f64()? as f32)).collect();
    let numbers = <[f32; N]>::try_from(numbers).ok().filter(|_| list.len() == N);
    match numbers.filter(|numbers| numbers.iter().all(|number| number.is_finite() && *number > 0.0)) {
        Some(numbers) => Ok(numbers),
        None => Err(config.corrupt(key, format!("expected {N} numbers above 0"))),
    }
}
