//! Falcon-H1: Mamba 2's states and attention in parallel in every layer, then an MLP; and the factors in its settings.

use super::bamba;
use super::*;

pub(super) const FALCON_H1: Family = Family {
    title: "Falcon-H1",
    hugging_face: &[ModelType {
        name: "falcon_h1",
        class: "FalconH1ForCausalLM",
        names: &bamba::NAMES,
        read: from_settings,
        eps: ("rms_norm_eps", 1e-5),
        ..ModelType::OWN
    }],
    gguf: &[Architecture {
        name: "falcon-h1",
        names: &Names::GGUF_MAMBA,
        read: from_metadata,
        ..Architecture::HYBRID
    }],
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

fn from_settings(of: &ModelType, config: &Config) -> Result<TransformerSpec, LoadError> {
    let base = Base::read(of, config)?;
    refuse_true(config, &["projectors_bias"])?;
    let heads = base.heads()?;
    let mut state = mamba(&base, base.eps()?)?;
    if !config.bool("mamba_rms_norm")?.unwrap_or(false) {
        state.norm_part = 0;
    } else if config.bool("mamba_norm_before_gate")?.unwrap_or(true) {
        return Err(config.unsupported("mamba_norm_before_gate", true, "a norm behind the gate is known"));
    }
    let multiplier = |key| Ok::<_, LoadError>(config.positive(key)?.unwrap_or(1.0));
    let (reads, keys) = (multiplier("attention_in_multiplier")?, multiplier("key_multiplier")?);
    let plain = AttentionSpec::causal(heads);
    // Queries and keys are multiplied like their input, and values together with attention's output.
    let attention = AttentionSpec { scale: plain.scale * reads * reads * keys, ..plain };
    let ffn = config.required("intermediate_size", WIDTH_MAX)?;
    let (rope, _) = base.rope(heads.head_dim)?;
    let spec = base.spec(rope, |_| (attention.clone(), MlpSpec::gated(ffn, base.activation)))?;
    let [gate, down] = multipliers(config, "mlp_multipliers")?;
    let [of_gate, of_values, of_keys, of_queries, of_steps] = multipliers(config, "ssm_multipliers")?;
    let (into, out) = (multiplier("ssm_in_multiplier")?, multiplier("ssm_out_multiplier")?);
    let (values, all) = (state.shape.value_width(), state.shape.channels());
    let queries = values + state.shape.key_width();
    let factors = [
        (LayerPart::AttentionOutput, 0..base.hidden, reads * multiplier("attention_out_multiplier")?),
        (LayerPart::Gate, 0..ffn, gate),
        (LayerPart::Down, 0..base.hidden, down),
        (LayerPart::StateGate, 0..values, into * of_gate),
        (LayerPart::StateInput, 0..values, into * of_values),
        (LayerPart::StateInput, values..queries, into * of_keys),
        (LayerPart::StateInput, queries..all, into * of_queries),
        (LayerPart::StateStep, 0..state.shape.value_heads, into * of_steps),
        (LayerPart::StateOutput, 0..base.hidden, out),
    ];
    let factors = factors.into_iter().filter(|&(.., factor)| factor != 1.0);
    let head = LogitsSpec { scale: multiplier("lm_head_multiplier")?, ..LogitsSpec::plain(spec.head.tied()) };
    Ok(TransformerSpec {
        embedding_scale: multiplier("embedding_multiplier")?,
        head: HeadSpec::Logits(head),
        row_factors: factors.map(|(part, rows, factor)| RowFactor { part, rows, factor }).collect(),
        layers: with_states(spec.layers.clone(), state),
        ..spec
    })
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

/// Reads a file in which the model's factors are already in its weights.
fn from_metadata(of: &Architecture, keys: &Keys<'_>) -> Result<TransformerSpec, LoadError> {
    let sizes = [keys.vocab()?, keys.required("embedding_length", WIDTH_MAX)?];
    let context = keys.required("context_length", CONTEXT_TOKENS_MAX)?;
    let norm = NormSpec { kind: NormKind::Rms { from_one: false }, eps: keys.epsilon()? };
    let mut state = metadata::mamba(keys, norm.eps, 0)?;
    if !keys.has(Part::Layer(0, LayerPart::StateNorm).weight()) {
        state.norm_part = 0;
    }
    let heads = keys.heads(sizes[1])?;
    let layer = LayerSpec {
        order: NormOrder::Pre,
        attention: AttentionSpec::causal(heads),
        mlp: MlpSpec::gated(keys.required("feed_forward_length", WIDTH_MAX)?, Activation::Silu),
        residual_scale: 1.0,
    };
    let layers = with_states(vec![layer; keys.required("block_count", LAYERS_MAX)?], state);
    Ok(TransformerSpec {
        ropes: vec![keys.rope(of.rope_kind(keys), heads.head_dim, context, None)?],
        head: HeadSpec::plain(!keys.has(Part::Head.weight())),
        ..TransformerSpec::bare(of.name, sizes, layers, norm, context)
    })
}
