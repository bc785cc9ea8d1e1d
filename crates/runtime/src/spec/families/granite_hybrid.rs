//! Granite 4: few layers with attention among Mamba 2's states, with a shared expert or an MLP.

use super::granite::multiply;
use super::granite_moe;
use super::*;

const TYPES: (&[&str], &[&str]) = (&["mamba", "linear_attention"], &["attention", "full_attention"]);

pub(super) const GRANITE_HYBRID: Family = Family {
    title: "Granite 4 (hybrid)",
    hugging_face: &[ModelType {
        name: "granitemoehybrid",
        class: "GraniteMoeHybridForCausalLM",
        names: &Names {
            state: StateNames::MAMBA,
            gate: "shared_mlp.input_linear[gate]",
            up: "shared_mlp.input_linear[up]",
            gate_up: Some(GateUp { name: "shared_mlp.input_linear", gate_first: true }),
            down: "shared_mlp.output_linear",
            ..granite_moe::NAMES
        },
        read: from_settings,
        ..ModelType::OWN
    }],
    gguf: &[Architecture {
        name: "granitehybrid",
        names: &Names::GGUF_MAMBA,
        permuted: true,
        read: from_metadata,
        ..Architecture::HYBRID
    }],
    goldens: &[both("states/granite-hybrid"), both("states/granite-hybrid-dense")],
};

fn from_settings(of: &ModelType, config: &Config) -> Result<TransformerSpec, LoadError> {
    let base = Base::read(of, config)?;
    let turns = match config.string("position_embedding_type")? {
        Some("rope") => true,
        None | Some("nope") => false,
        Some(other) => {
            return Err(config.unsupported("position_embedding_type", other, "rope and nope are known"));
        }
    };
    let heads = base.heads()?;
    let recurs = match layers_by_type(config, "layer_types", base.layers, TYPES)? {
        Some(recurs) => recurs,
        None => layers_by_type(config, "layers_block_type", base.layers, TYPES)?
            .unwrap_or_else(|| vec![true; base.layers]),
    };
    let ffn = config.required("shared_intermediate_size", WIDTH_MAX)?;
    let mlp = match config.whole("num_local_experts", EXPERTS_MAX)?.unwrap_or(0) {
        0 => MlpSpec::gated(ffn, base.activation),
        _ => MlpSpec::Experts(ExpertsSpec {
            shared: Some(SharedExpert { ffn, gate: false }),
            ..softmax(&base, LOCAL_EXPERTS, true)?
        }),
    };
    let (rope, _) = base.rope(heads.head_dim)?;
    let state = mamba(&base, base.eps()?)?;
    let attention = AttentionSpec { rope: turns.then_some(0), ..AttentionSpec::causal(heads) };
    let mut spec = base.spec(rope, |layer| {
        let attention = match recurs[layer] {
            true => AttentionSpec::of_state(state),
            false => attention.clone(),
        };
        (attention, mlp.clone())
    })?;
    multiply(config, &mut spec)?;
    Ok(spec)
}

fn from_metadata(of: &Architecture, keys: &Keys<'_>) -> Result<TransformerSpec, LoadError> {
    let (spec, heads) = read_hybrid(of, keys, |_, norm, first| metadata::mamba(keys, norm.eps, first))?;
    // The flag of tuned scaling tells whether heads are rotated.
    let finetuned = keys.metadata.bool(&keys.key("rope.scaling.finetuned"))?;
    let dim = spec.ropes[0].dim;
    if !finetuned.unwrap_or(true) {
        return Ok(spec.with_layers(|_, layer| layer.attention.rope = None));
    }
    if dim != heads.head_dim {
        // The converter has arranged the rows of queries and keys so that neighbours are rotated.
        let reason = "the converter has put the rows of queries and keys as if whole heads were turned";
        return Err(keys.unsupported("rope.dimension_count", dim, reason));
    }
    Ok(spec)
}
