import os
os.chdir('./crates/runtime/src')
def edit(p, *reps):
    s=open(p).read()
    for a,b in reps:
        assert a in s, (p,a)
        s=s.replace(a,b,1)
    open(p,'w').write(s)
edit('spec/state.rs',
("#[derive(Clone, Copy, Debug, PartialEq, Eq)]\npub struct StateSpec","#[derive(Clone, Copy, Debug, PartialEq)]\npub struct StateSpec"),
('''    pub norm_part: usize,
''','''    pub norm_part: usize,
    /// Added to the mean of that norm's squares.
    pub norm_eps: f32,
'''),
('''    /// A gated delta net.
    pub fn delta(shape: StateShape) -> Self {
        Self { shape, convolution_bias: false, norm_part: shape.value_dim, decay_as_log: true }
    }
''','''    /// A gated delta net.
    pub fn delta(shape: StateShape, norm_eps: f32) -> Self {
        let norm_part = shape.value_dim;
        Self { shape, convolution_bias: false, norm_part, norm_eps, decay_as_log: true }
    }

    /// Mamba 2, which norms what the heads of one head of keys give together.
    pub fn ssd(shape: StateShape, convolution_bias: bool, norm_eps: f32) -> Self {
        let norm_part = shape.value_width() / shape.key_heads;
        Self { shape, convolution_bias, norm_part, norm_eps, decay_as_log: true }
    }
'''))
edit('spec/layer.rs',("/// How queries, keys and values are made of hidden states.\n#[derive(Clone, Copy, Debug, PartialEq, Eq)]","/// How queries, keys and values are made of hidden states.\n#[derive(Clone, Copy, Debug, PartialEq)]"))
edit('network/states.rs',("            eps: self.norm.eps,\n","            eps: spec.norm_eps,\n"))
edit('spec/states_gguf.rs',
("    let state = StateSpec { decay_as_log: false, ..StateSpec::delta(shape(keys, tiled)?) };\n","    let norm = NormSpec { kind: NormKind::Rms { from_one: false }, eps: keys.epsilon()? };\n    let state = StateSpec { decay_as_log: false, ..StateSpec::delta(shape(keys, tiled)?, norm.eps) };\n"),
("    let norm = NormSpec { kind: NormKind::Rms { from_one: false }, eps: keys.epsilon()? };\n    TransformerSpec {","    TransformerSpec {"),
)
edit('spec/names_state.rs',
('''    /// For each head of keys the betas and the steps of its values' heads.
    BetaStep,
''','''    /// For each head of keys the betas and the steps of its values' heads.
    BetaStep,
    /// The gates, what goes through the convolution, and the steps.
    GateInputStep,
'''),
('''    /// A part's name.
''','''    /// The transformers library's classes with Mamba 2's layers beside attention.
    pub(crate) const MAMBA: StateNames = StateNames {
        input: "mamba.in_proj[input].",
        gate: "mamba.in_proj[gate].",
        step: "mamba.in_proj[step].",
        step_bias: "mamba.dt_bias",
        convolution: "mamba.conv1d.",
        decay: "mamba.A_log",
        skip: "mamba.D",
        norm: "mamba.norm.weight",
        output: "mamba.out_proj.",
        stacks: &[("mamba.in_proj.weight", StateStack::GateInputStep)],
        ..StateNames::NONE
    };

    /// A part's name.
'''),
('''    /// GGUF files of the same: the second''','''    /// The transformers library's GraniteMoeHybrid class, with experts or without.
    pub(crate) const GRANITE_HYBRID: Names = Names {
        state: StateNames::MAMBA,
        gate: "shared_mlp.input_linear[gate]",
        up: "shared_mlp.input_linear[up]",
        gate_up: Some(GateUp { name: "shared_mlp.input_linear", gate_first: true }),
        down: "shared_mlp.output_linear",
        ..Names::GRANITE_MOE
    };

    /// GGUF files of the same: the second'''),
("use super::names::Names;","use super::names::{GateUp, Names};"),
)
s=open('spec/names_state.rs').read()
s=s.replace("/// GGUF files of the same: the second norm","/// GGUF files of Qwen3-Next and Qwen3.5: the second norm"); open('spec/names_state.rs','w').write(s)
edit('spec/names.rs',('''"qwen3_next" | "qwen3_5_text" | "qwen3_5_moe_text" => &Names::QWEN_STATES,
''','''"qwen3_next" | "qwen3_5_text" | "qwen3_5_moe_text" => &Names::QWEN_STATES,
            "granitemoehybrid" => &Names::GRANITE_HYBRID,
'''))
# keep names.rs <= 600: merge two comment lines
s=open('spec/names.rs').read()
print(len(s.splitlines()))
edit('load/states.rs',
('''    let shape = state.shape;
    // Of each''','''    let shape = state.shape;
    if stack == StateStack::GateInputStep {
        let parts = [
            (LayerPart::StateGate, shape.value_width()),
            (LayerPart::StateInput, shape.channels()),
            (LayerPart::StateStep, shape.value_heads),
        ];
        let rows = parts.iter().map(|&(_, rows)| rows).sum();
        let Some(whole) = found.take_if_there(&name, &[rows, hidden])? else { return Ok(()) };
        return cut(found, layer, &whole, &parts);
    }
    // Of each'''),
('''            (vec![values; 2], [(LayerPart::StateBeta, 1), (LayerPart::StateStep, 1)])
        }
    };''','''            (vec![values; 2], [(LayerPart::StateBeta, 1), (LayerPart::StateStep, 1)])
        }
        StateStack::GateInputStep => unreachable!("it was cut above"),
    };'''),
)
s=open('load/states.rs').read()
# restructure to avoid unreachable
s=s.replace('''    if stack == StateStack::GateInputStep {
        let parts = [
            (LayerPart::StateGate, shape.value_width()),
            (LayerPart::StateInput, shape.channels()),
            (LayerPart::StateStep, shape.value_heads),
        ];
        let rows = parts.iter().map(|&(_, rows)| rows).sum();
        let Some(whole) = found.take_if_there(&name, &[rows, hidden])? else { return Ok(()) };
        return cut(found, layer, &whole, &parts);
    }
''','')
s=s.replace('''        StateStack::GateInputStep => unreachable!("it was cut above"),
    };''','''        StateStack::GateInputStep => {
            let parts = [
                (LayerPart::StateGate, shape.value_width()),
                (LayerPart::StateInput, shape.channels()),
                (LayerPart::StateStep, shape.value_heads),
            ];
            let rows = parts.iter().map(|&(_, rows)| rows).sum();
            return match found.take_if_there(&name, &[rows, hidden])? {
                Some(whole) => cut(found, layer, (&name, &whole), &parts),
                None => Ok(()),
            };
        }
    };''')
a=s.index("    let (mut first, mut next) = (0, 0);"); b=s.index("/// Where files have a row, of parts")
s=s[:a]+'''    let mut next = 0;
    let parts = parts.map(|(part, count)| {
        let rows = heads * sizes[next..next + count].iter().sum::<usize>();
        next += count;
        (part, rows)
    });
    cut(found, layer, (&name, &whole), &parts)
}

/// Puts parts of so many rows each, one below the other, where each would be if it were stored apart.
fn cut(
    found: &mut Found<'_>,
    layer: usize,
    (name, whole): (&str, &Tensor),
    parts: &[(LayerPart, usize)],
) -> Result<(), LoadError> {
    let mut first = 0;
    for &(part, rows) in parts {
        let mut tensor = whole.rows(first..first + rows);
        tensor.name = format!("{name}[{first}..{}]", first + rows);
        found.insert_part(Part::Layer(layer, part).weight(), tensor, name)?;
        first += rows;
    }
    Ok(())
}

'''+s[b:]
s=s.replace("use crate::spec::{AttentionSpec, LayerPart, Part, Projection, StateSpec, StateStack};","use crate::spec::{AttentionSpec, LayerPart, Part, Projection, StateSpec, StateStack};\nuse crate::tensor::Tensor;")
# split_queries by cut too
a=s.index("    for (weight, rows) in [(query, 0..width)"); b=s.index("/// Libraries keep it as")
s=s[:a]+'''    cut(found, layer, (&name, &whole), &[(LayerPart::Query, width), (LayerPart::QueryGate, width)])
}

'''+s[b:]
s=s.replace('''    let [query, gate] =
        [LayerPart::Query, LayerPart::QueryGate].map(|part| Part::Layer(layer, part).weight());
    let (name, width) = (found.name(query), heads * head_dim);''','''    let (name, width) = (found.name(Part::Layer(layer, LayerPart::Query).weight()), heads * head_dim);''')
open('load/states.rs','w').write(s)
edit('spec/mixtures.rs',('''    "granitemoehybrid",
''',''),("states of gated delta nets (Qwen3-Next, Qwen3.5), not of this family","the states of Qwen3-Next, Qwen3.5 and Granite 4, not of this family"))
edit('spec/mixtures/recurrent.rs',
('''    let spec = base.spec(config, family, (rope, 1e-6), |layer| {
        let attention = match recurs[layer] {
            true => AttentionSpec::of_state(StateSpec::delta(shape)),''','''    let eps = config.positive("rms_norm_eps")?.unwrap_or(1e-6);
    let spec = base.spec(config, family, (rope, eps), |layer| {
        let attention = match recurs[layer] {
            true => AttentionSpec::of_state(StateSpec::delta(shape, eps)),'''),
('''/// Which layers keep a state.
fn linear_layers(config: &Config, layers: usize) -> Result<Vec<bool>, LoadError> {
    const TYPES: &str = "layer_types";
    let Some(types) = config.typed(TYPES, "a list", Value::as_array)? else {
        let interval = config.count("full_attention_interval", LAYERS_MAX)?.unwrap_or(4);
        return Ok((1..=layers).map(|number| !number.is_multiple_of(interval)).collect());
    };''','''fn granite(config: &Config) -> Result<TransformerSpec, LoadError> {
    let base = Base::read(config)?;
    for key in ["attention_bias", "mamba_proj_bias"] {
        if config.bool(key)? == Some(true) {
            return Err(config.unsupported(key, true, "of this family only false is known"));
        }
    }
    if base.activation != Activation::Silu {
        let name = config.string("hidden_act")?.unwrap_or_default();
        return Err(config.unsupported("hidden_act", name, "convolutions through silu are known"));
    }
    if let Some(limits) = config.get("time_step_limit")
        && !limits.is_null()
        && limits.get(0).and_then(Value::as_f64) != Some(0.0)
        || config.get("time_step_limit").and_then(|limits| limits.get(1)).is_some_and(Value::is_number)
    {
        let limits = config.get("time_step_limit").unwrap_or(&Value::Null);
        return Err(config.unsupported("time_step_limit", limits, "from 0 on without an end is known"));
    }
    let turns = match config.string("position_embedding_type")? {
        Some("rope") => true,
        None | Some("nope") => false,
        Some(other) => {
            let reason = "rope and nope are known";
            return Err(config.unsupported("position_embedding_type", other, reason));
        }
    };
    let heads = base.heads(config)?;
    let value_heads = config.required("mamba_n_heads", HEADS_MAX)?;
    let shape = StateShape {
        rule: StateRule::Ssd,
        key_heads: config.count("mamba_n_groups", HEADS_MAX)?.unwrap_or(1),
        value_heads,
        key_dim: config.required("mamba_d_state", HEAD_DIM_MAX)?,
        value_dim: match config.get("mamba_d_head") {
            Some(Value::String(auto)) if auto == "auto" => {
                config.count("mamba_expand", WIDTH_MAX)?.unwrap_or(2) * base.hidden / value_heads
            }
            _ => config.required("mamba_d_head", HEAD_DIM_MAX)?,
        },
        taps: config.required("mamba_d_conv", StateShape::TAPS_MAX)?,
        tiled: false,
    };
    let recurs = layers_by_type(config, base.layers, ["linear_attention", "mamba"], ["full_attention", "attention"])?;
    let ffn = config.required("shared_intermediate_size", WIDTH_MAX)?;
    let mlp = match config.whole("num_local_experts", EXPERTS_MAX)?.unwrap_or(0) {
        0 => MlpSpec::gated(ffn, base.activation),
        count => MlpSpec::Experts(ExpertsSpec {
            shared: Some(SharedExpert { ffn, gate: false }),
            ..ExpertsSpec::softmax(
                count,
                config.required("num_experts_per_tok", EXPERTS_MAX)?,
                config.required("intermediate_size", WIDTH_MAX)?,
                true,
            )
        }),
    };
    let multiplier = |key| Ok::<_, LoadError>(config.positive(key)?.unwrap_or(1.0));
    let (scale, residual) = (multiplier("attention_multiplier")?, multiplier("residual_multiplier")?);
    let (rope, _) = rope(config, (RopeKind::Neox, heads.head_dim), (1e4, base.context))?;
    let eps = config.positive("rms_norm_eps")?.unwrap_or(1e-6);
    let state = StateSpec::ssd(shape, config.bool("mamba_conv_bias")?.unwrap_or(true), eps);
    let spec = base.spec(config, "granitemoehybrid", (rope, eps), |layer| {
        let attention = match recurs[layer] {
            true => AttentionSpec::of_state(state),
            false => AttentionSpec {
                rope: turns.then_some(0),
                scale,
                ..AttentionSpec::causal(heads)
            },
        };
        (attention, mlp.clone())
    })?;
    let scale = 1.0 / multiplier("logits_scaling")?;
    let head = LogitsSpec { tied: spec.head.tied(), scale, softcap: None };
    Ok(TransformerSpec {
        embedding_scale: multiplier("embedding_multiplier")?,
        head: HeadSpec::Logits(head),
        ..spec.with_layers(|_, layer| layer.residual_scale = residual)
    })
}

/// Which layers keep a state.
fn linear_layers(config: &Config, layers: usize) -> Result<Vec<bool>, LoadError> {
    if config.get(TYPES).is_none_or(Value::is_null) {
        let interval = config.count("full_attention_interval", LAYERS_MAX)?.unwrap_or(4);
        return Ok((1..=layers).map(|number| !number.is_multiple_of(interval)).collect());
    }
    layers_by_type(config, layers, ["linear_attention"; 2], ["full_attention"; 2])
}

const TYPES: &str = "layer_types";

/// Which layers keep a state, by their types' names: those that do have one of the first, others one of the second.
fn layers_by_type(
    config: &Config,
    layers: usize,
    recurrent: [&str; 2],
    attending: [&str; 2],
) -> Result<Vec<bool>, LoadError> {
    let types = config.typed(TYPES, "a list", Value::as_array)?.ok_or_else(|| config.missing(TYPES))?;'''),
('''    let recurs = |of: &Value| match of.as_str() {
        Some("linear_attention") => Ok(true),
        Some("full_attention") => Ok(false),
        _ => Err(config.unsupported(TYPES, of, "linear_attention and full_attention are known")),
    };''','''    let recurs = |of: &Value| match of.as_str() {
        Some(of) if recurrent.contains(&of) => Ok(true),
        Some(of) if attending.contains(&of) => Ok(false),
        _ => Err(config.unsupported(
            TYPES,
            of,
            format!("{} and {} are known", recurrent.join(", "), attending.join(", ")),
        )),
    };'''),
('''    ("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", |config| qwen(config, Mlps::Experts)),
''','''    ("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", |config| qwen(config, Mlps::Experts)),
    ("granitemoehybrid", "GraniteMoeHybridForCausalLM", granite),
'''),
("//! Decoders some of whose layers keep a state of each sequence: Qwen3-Next and Qwen3.5, three of whose four layers are gated\n//! delta nets beside attention with a gate on its output.","//! Decoders some of whose layers keep a state of each sequence: Qwen3-Next and Qwen3.5, three of whose four layers are gated\n//! delta nets beside attention with a gate on its output, and Granite 4, most of whose layers are Mamba 2's."),
("    AttentionSpec, Config, ExpertsSpec, MlpSpec, NormKind, NormSpec, QkNorm, SharedExpert, StateSpec,\n    TransformerSpec,","    AttentionSpec, Config, ExpertsSpec, HeadSpec, LogitsSpec, MlpSpec, NormKind, NormSpec, QkNorm,\n    SharedExpert, StateSpec, TransformerSpec,"),
("use hanzo_engine_kernels::{RopeKind, StateRule, StateShape};","use hanzo_engine_kernels::{Activation, RopeKind, StateRule, StateShape};"),
)
s=open('spec/mixtures/recurrent.rs').read()
s=s.replace('''    if let Some(limits) = config.get("time_step_limit")
        && !limits.is_null()
        && limits.get(0).and_then(Value::as_f64) != Some(0.0)
        || config.get("time_step_limit").and_then(|limits| limits.get(1)).is_some_and(Value::is_number)
    {
        let limits = config.get("time_step_limit").unwrap_or(&Value::Null);
        return''','''    // The end, which is infinite, is no number in JSON.
    if let Some(limits) = config.get("time_step_limit").filter(|limits| !limits.is_null())
        && (limits.get(0).and_then(Value::as_f64) != Some(0.0) || limits.get(1).is_none_or(Value::is_number))
    {
        return''')
open('spec/mixtures/recurrent.rs','w').write(s)
