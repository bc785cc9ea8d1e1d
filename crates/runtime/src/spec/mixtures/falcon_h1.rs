//! Falcon-H1: Mamba 2's states and attention in parallel in every layer, then an MLP; and the factors in its settings.

use hanzo_engine_kernels::RopeKind;
use serde_json::Value;

use super::hybrids::{mamba, refuse_true};
use super::{Base, Read, rope};
use crate::error::LoadError;
use crate::limits::WIDTH_MAX;
use crate::spec::{
    AttentionSpec, Config, HeadSpec, LayerPart, LayerSpec, LogitsSpec, MlpSpec, NormOrder, RowFactor,
    StateSpec, TransformerSpec,
};

pub(super) const FAMILIES: &[(&str, &str, Read)] = &[("falcon_h1", "FalconH1ForCausalLM", falcon_h1)];

/// Layers of attention and an MLP, each with a state in parallel with its attention. In the spec these are two layers,
/// the second of which reads the input of the first.
pub(in crate::spec) fn with_states(
    layers: impl IntoIterator<Item = LayerSpec>,
    state: StateSpec,
) -> Vec<LayerSpec> {
    let state = LayerSpec {
        order: NormOrder::Pre,
        attention: AttentionSpec::of_state(state),
        mlp: MlpSpec::None,
        residual_scale: 1.0,
    };
    let both = |layer: LayerSpec| [state.clone(), LayerSpec { order: NormOrder::Beside, ..layer }];
    layers.into_iter().flat_map(both).collect()
}

fn falcon_h1(config: &Config) -> Result<TransformerSpec, LoadError> {
    let base = Base::read(config)?;
    refuse_true(config, &["projectors_bias"])?;
    let heads = base.heads(config)?;
    let eps = config.positive("rms_norm_eps")?.unwrap_or(1e-5);
    let mut state = mamba(config, &base, eps)?;
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
    let (rope, _) = rope(config, (RopeKind::Neox, heads.head_dim), (1e4, base.context))?;
    let spec = base.spec(config, "falcon_h1", (rope, eps), |_| {
        (attention.clone(), MlpSpec::gated(ffn, base.activation))
    })?;
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
