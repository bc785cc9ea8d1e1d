//! What files call the tensors of layers that keep a state of each sequence, and those that hold several of them.

use super::names::Names;
use super::weights::LayerPart;

/// Names within a layer, those that end in a dot without `weight` and `bias`, others in full. An empty one is of a part that
/// the families who use the table never have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StateNames {
    /// The gate of attention's output, where it is stored apart.
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
    /// Tensors that may stand for several, and what is in them.
    pub(crate) stacks: &'static [(&'static str, StateStack)],
}

/// What one tensor holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateStack {
    /// For each head of keys its query, its key, its values, and their gates.
    QueryKeyValueGate,
    /// For each head of keys the betas and the steps of its values' heads.
    BetaStep,
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

    /// The transformers library's Qwen3Next, Qwen3_5 and Qwen3_5Moe classes.
    pub(crate) const QWEN: StateNames = StateNames {
        query_gate: "self_attn.q_proj[gate].",
        input: "linear_attn.in_proj_qkv.",
        gate: "linear_attn.in_proj_z.",
        beta: "linear_attn.in_proj_b.",
        step: "linear_attn.in_proj_a.",
        step_bias: "linear_attn.dt_bias",
        convolution: "linear_attn.conv1d.",
        decay: "linear_attn.A_log",
        skip: "",
        norm: "linear_attn.norm.weight",
        output: "linear_attn.out_proj.",
        stacks: &[
            ("linear_attn.in_proj_qkvz.weight", StateStack::QueryKeyValueGate),
            ("linear_attn.in_proj_ba.weight", StateStack::BetaStep),
        ],
    };

    /// A part's name.
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

impl Names {
    /// The transformers library's Qwen3Next, Qwen3_5 and Qwen3_5Moe classes.
    pub(crate) const QWEN_STATES: Names = Names { state: StateNames::QWEN, ..Names::QWEN2_MOE };

    /// GGUF files of the same: the second norm stands before the MLP.
    pub(crate) const GGUF_STATES: Names =
        Names { state: StateNames::GGUF, mlp_norm: "post_attention_norm", ..Names::GGUF };
}
