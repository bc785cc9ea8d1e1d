//! Names in files of the tensors of layers with recurrent states, and of tensors that combine several.

use super::names::{GateUp, Names};
use super::names_experts::ExpertNames;
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

    /// The transformers library's NemotronH class.
    pub(crate) const MIXER: StateNames = StateNames {
        input: "mixer.in_proj[input].",
        gate: "mixer.in_proj[gate].",
        step: "mixer.in_proj[step].",
        step_bias: "mixer.dt_bias",
        convolution: "mixer.conv1d.",
        decay: "mixer.A_log",
        skip: "mixer.D",
        norm: "mixer.norm.weight",
        output: "mixer.out_proj.",
        stacks: &[("mixer.in_proj.weight", StateStack::GateInputStep)],
        ..StateNames::NONE
    };

    /// GGUF files of the same.
    pub(crate) const GGUF_MAMBA: StateNames = StateNames {
        input: "ssm_in[input].",
        gate: "ssm_in[gate].",
        step: "ssm_in[step].",
        beta: "",
        stacks: &[("ssm_in.weight", StateStack::GateInputStep)],
        ..StateNames::GGUF
    };

    /// The transformers library's Lfm2 and Lfm2Moe classes, and GGUF files of them.
    pub(crate) const LFM2: StateNames = StateNames {
        input: "conv.in_proj.",
        convolution: "conv.conv.",
        output: "conv.out_proj.",
        ..StateNames::NONE
    };
    pub(crate) const GGUF_LFM2: StateNames = StateNames {
        input: "shortconv.in_proj.",
        convolution: "shortconv.conv.",
        output: "shortconv.out_proj.",
        ..StateNames::NONE
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

impl Names {
    /// The transformers library's Qwen3Next, Qwen3_5 and Qwen3_5Moe classes.
    pub(crate) const QWEN_STATES: Names = Names { state: StateNames::QWEN, ..Names::QWEN2_MOE };

    /// The transformers library's GraniteMoeHybrid class, with experts or without.
    pub(crate) const GRANITE_HYBRID: Names = Names {
        state: StateNames::MAMBA,
        gate: "shared_mlp.input_linear[gate]",
        up: "shared_mlp.input_linear[up]",
        gate_up: Some(GateUp { name: "shared_mlp.input_linear", gate_first: true }),
        down: "shared_mlp.output_linear",
        ..Names::GRANITE_MOE
    };

    /// The transformers library's Afmoe class.
    pub(crate) const AFMOE: Names = Names {
        state: StateNames { query_gate: "self_attn.gate_proj.", ..StateNames::NONE },
        attention_post_norm: "post_attention_layernorm",
        router: "mlp.router.gate",
        router_bias: "mlp.expert_bias",
        mlp_norm: "pre_mlp_layernorm",
        mlp_post_norm: "post_mlp_layernorm",
        ..Names::HUGGING_FACE
    };

    /// GGUF files of the same.
    pub(crate) const GGUF_AFMOE: Names =
        Names { state: StateNames { query_gate: "attn_gate.", ..StateNames::NONE }, ..Names::GGUF };

    /// The transformers library's Bamba and FalconH1 classes.
    pub(crate) const BAMBA: Names = Names {
        final_norm: "final_layernorm",
        state: StateNames::MAMBA,
        gate: "feed_forward.gate_proj",
        up: "feed_forward.up_proj",
        down: "feed_forward.down_proj",
        mlp_norm: "pre_ff_layernorm",
        ..Names::HUGGING_FACE
    };

    /// The transformers library's NemotronH class.
    pub(crate) const NEMOTRON_H: Names = Names {
        prefix: "backbone.",
        token_embedding: "embeddings",
        final_norm: "norm_f",
        halves_apart: true,
        query: "mixer.q_proj",
        key: "mixer.k_proj",
        value: "mixer.v_proj",
        state: StateNames::MIXER,
        attention_output: "mixer.o_proj",
        attention_norm: "norm",
        up: "mixer.up_proj",
        down: "mixer.down_proj",
        router: "mixer.gate",
        router_bias: "mixer.gate.e_score_correction_bias",
        experts: ExpertNames {
            up: "mixer.experts.{}.up_proj.weight",
            down: "mixer.experts.{}.down_proj.weight",
            ..ExpertNames::NONE
        },
        shared_up: "mixer.shared_experts.up_proj",
        shared_down: "mixer.shared_experts.down_proj",
        mlp_norm: "mlp_norm",
        ..Names::HUGGING_FACE
    };

    /// The transformers library's Mamba2 class.
    pub(crate) const MAMBA2: Names = Names { halves_apart: false, ..Names::NEMOTRON_H };

    /// GGUF files of Nemotron-H.
    pub(crate) const GGUF_NEMOTRON_H: Names = Names { halves_apart: true, ..Names::GGUF_MAMBA };

    /// The transformers library's Lfm2 and Lfm2Moe classes.
    pub(crate) const LFM2: Names = Names {
        final_norm: "embedding_norm",
        query_norm: "self_attn.q_layernorm",
        key_norm: "self_attn.k_layernorm",
        state: StateNames::LFM2,
        attention_output: "self_attn.out_proj",
        attention_norm: "operator_norm",
        gate: "feed_forward.w1",
        up: "feed_forward.w3",
        down: "feed_forward.w2",
        router: "feed_forward.gate",
        router_bias: "feed_forward.expert_bias",
        experts: ExpertNames {
            gate: "feed_forward.experts.{}.w1.weight",
            up: "feed_forward.experts.{}.w3.weight",
            down: "feed_forward.experts.{}.w2.weight",
            ..ExpertNames::NONE
        },
        mlp_norm: "ffn_norm",
        ..Names::HUGGING_FACE
    };

    /// GGUF files of the same.
    pub(crate) const GGUF_LFM2: Names =
        Names { final_norm: "token_embd_norm", state: StateNames::GGUF_LFM2, ..Names::GGUF };

    /// GGUF files of Granite 4, Bamba and Mamba 2.
    pub(crate) const GGUF_MAMBA: Names = Names { state: StateNames::GGUF_MAMBA, ..Names::GGUF };

    /// GGUF files of Qwen3-Next and Qwen3.5: the second norm stands before the MLP.
    pub(crate) const GGUF_STATES: Names =
        Names { state: StateNames::GGUF, mlp_norm: "post_attention_norm", ..Names::GGUF };
}
