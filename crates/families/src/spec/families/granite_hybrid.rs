//! Granite 4: few layers with attention among Mamba 2's states, with a shared expert or an MLP.

use super::granite::multiply;
use super::granite_moe;
use super::*;

const RECURRENT: &[&str] = &["mamba", "linear_attention"];
const ATTENTION: &[&str] = &["attention", "full_attention"];

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
        spec: Some(spec),
        settle: settle_mamba,
        ..ModelType::OWN
    }],
    gguf: &[Architecture {
        name: "granitehybrid",
        names: &Names::GGUF_MAMBA,
        permuted: true,
        ..Architecture::HYBRID
    }],
    goldens: &[both("states/granite-hybrid"), both("states/granite-hybrid-dense")],
};

const ROPE_DIM: Setting<usize> = count("", "rope.dimension_count", HEAD_DIM_MAX);

fn spec(base: &Base<'_>) -> Result<TransformerSpec, LoadError> {
    let (heads, recurs, turns) = match base.file {
        SettingsFile::HuggingFace(config) => (base.heads()?, recurring(config, base.layers)?, turns(config)?),
        SettingsFile::Gguf(keys) => {
            let (heads, recurs) = hybrid_heads(keys, base.hidden)?;
            // The flag of tuned scaling tells whether heads are rotated.
            let finetuned = keys.metadata.bool(&keys.key("rope.scaling.finetuned"))?;
            (heads, recurs, finetuned.unwrap_or(true))
        }
    };
    let mlp = mlps(base)?;
    let state = MAMBA.ssd(base, recurs.iter().position(|&recurs| recurs).unwrap_or(0))?;
    let rope = base.rope(heads.head_dim)?;
    if turns && rope.dim != heads.head_dim {
        // The converter has arranged the rows of queries and keys so that neighbours are rotated.
        let reason = "the converter has put the rows of queries and keys as if whole heads were turned";
        return Err(base.file.unsupported(&ROPE_DIM, rope.dim, reason));
    }
    let attention = AttentionSpec { rope: turns.then_some(0), ..base.attention(heads)? };
    let mut spec = base.hybrid(rope, &recurs, state, attention, mlp)?;
    if let SettingsFile::HuggingFace(config) = base.file {
        multiply(config, &mut spec)?;
    }
    Ok(spec)
}

fn turns(config: &Config) -> Result<bool, LoadError> {
    match config.string("position_embedding_type")? {
        Some("rope") => Ok(true),
        None | Some("nope") => Ok(false),
        Some(other) => Err(config.unsupported("position_embedding_type", other, "rope and nope are known")),
    }
}

fn recurring(config: &Config, layers: usize) -> Result<Vec<bool>, LoadError> {
    match layers_by_type(config, "layer_types", layers, RECURRENT, ATTENTION)? {
        Some(recurs) => Ok(recurs),
        None => Ok(layers_by_type(config, "layers_block_type", layers, RECURRENT, ATTENTION)?
            .unwrap_or_else(|| vec![true; layers])),
    }
}

/// The MLP of each layer.
fn mlps(base: &Base<'_>) -> Result<Box<dyn Fn(usize) -> MlpSpec>, LoadError> {
    let config = match base.file {
        SettingsFile::HuggingFace(config) => config,
        SettingsFile::Gguf(keys) => return metadata::mlps(keys),
    };
    let ffn = config.required("shared_intermediate_size", WIDTH_MAX)?;
    let mlp = match base.file.whole(&LOCAL_EXPERTS[0])? {
        0 => MlpSpec::gated(ffn, base.activation),
        _ => MlpSpec::Experts(ExpertsSpec {
            shared: Some(SharedExpert { ffn, gate: false }),
            ..softmax(base, &LOCAL_EXPERTS, true)?
        }),
    };
    Ok(Box::new(move |_| mlp.clone()))
}
