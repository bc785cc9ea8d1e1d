//! Names in files of the tensors of layers with recurrent states, and of tensors that combine several.

use super::weights::LayerPart;

/// Names within a layer: those that end in a dot lack `weight` and `bias`, others are complete. An empty name is of a
/// part that the table's families never have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StateNames {
    /// Gate of attention's output, if it is stored separately.
    pub(crate) query_gate: &'static str,
    pub(crate) input: &'static str,
    pub(crate) gate: &'static str,
    pub(crate) beta: &'static str,
    pub(crate) step: &'static str,
    pub(crate) step_bias: &'static str,
    pub(crate) convolution: &'static str,
    pub(crate) decay: &'static str,
    pub(crate) skip: &'static str,
    pub(crate) norm: &'static str,
    pub(crate) output: &'static str,
    /// Tensors that may combine several, and their content.
    pub(crate) stacks: &'static [(&'static str, StateStack)],
}

/// Content of a combined tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateStack {
    /// For each head of keys its query, its key, its values, and their gates.
    QueryKeyValueGate,
    /// For each head of keys the betas and the steps of its values' heads.
    BetaStep,
    /// The gates, the convolution's inputs, and the steps.
    GateInputStep,
}

impl StateNames {
    pub(crate) const NONE: StateNames = StateNames {
        query_gate: "",
        input: "",
        gate: "",
        beta: "",
        step: "",
        step_bias: "",
        convolution: "",
        decay: "",
        skip: "",
        norm: "",
        output: "",
        stacks: &[],
    };

    /// GGUF files.
    pub(crate) const GGUF: StateNames = StateNames {
        query_gate: "attn_q[gate].",
        input: "attn_qkv.",
        gate: "attn_gate.",
        beta: "ssm_beta.",
        step: "ssm_alpha.",
        step_bias: "ssm_dt.bias",
        convolution: "ssm_conv1d.",
        decay: "ssm_a",
        skip: "ssm_d",
        norm: "ssm_norm.weight",
        output: "ssm_out.",
        stacks: &[("ssm_in.weight", StateStack::QueryKeyValueGate), ("ssm_ba.weight", StateStack::BetaStep)],
    };

    /// The transformers library's classes with Mamba 2's layers in addition to attention.
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

    /// GGUF files of layers with Mamba 2's states.
    pub(crate) const GGUF_MAMBA: StateNames = StateNames {
        input: "ssm_in[input].",
        gate: "ssm_in[gate].",
        step: "ssm_in[step].",
        beta: "",
        stacks: &[("ssm_in.weight", StateStack::GateInputStep)],
        ..StateNames::GGUF
    };

    /// Name of a part.
    pub(crate) fn of(&self, part: LayerPart, bias: bool) -> String {
        let name = match part {
            LayerPart::QueryGate => self.query_gate,
            LayerPart::StateInput => self.input,
            LayerPart::StateGate => self.gate,
            LayerPart::StateBeta => self.beta,
            LayerPart::StateStep if bias => self.step_bias,
            LayerPart::StateStep => self.step,
            LayerPart::StateConvolution => self.convolution,
            LayerPart::StateDecay => self.decay,
            LayerPart::StateSkip => self.skip,
            LayerPart::StateNorm => self.norm,
            LayerPart::StateOutput => self.output,
            _ => "",
        };
        match name.ends_with('.') {
            true => format!("{name}{}", if bias { "bias" } else { "weight" }),
            false => name.to_owned(),
        }
    }
}
