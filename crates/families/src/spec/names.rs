//! Names of a transformer's tensors in files, as data: a table for each naming scheme.

use super::gemma_parts::GemmaNames;
use super::weights::{LayerPart, Part, Weight};
use super::{NormOrder, TransformerSpec};

/// Names without `.weight` and `.bias`. An empty name is of a part that the table's families never have.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// Prefix of all names except heads, in files of classes with a prefix.
    pub prefix: &'static str,
    /// Token embedding.
    pub token_embedding: &'static str,
    /// Learned position embedding.
    pub position_embedding: &'static str,
    /// Token type embedding.
    pub type_embedding: &'static str,
    /// Norm of the embeddings' sum.
    pub embedding_norm: &'static str,
    /// Bias of attention by distance.
    pub distance_bias: &'static str,
    /// Embedding of distances.
    pub distance_embedding: &'static str,
    /// Norm of the embedding of distances.
    pub distance_norm: &'static str,
    /// Convolution after the first layer.
    pub convolution: &'static str,
    /// Norm of the convolution.
    pub convolution_norm: &'static str,
    /// Norm after the last layer.
    pub final_norm: &'static str,
    /// Prefix of the layer's number.
    pub layer: &'static str,
    /// Queries.
    pub query: &'static str,
    /// Queries of a narrow vector, if files name them differently from those of hidden states.
    pub query_up: &'static str,
    /// Narrow vector that queries are made of.
    pub query_down: &'static str,
    /// Norm of that vector.
    pub query_down_norm: &'static str,
    /// Keys.
    pub key: &'static str,
    /// Values.
    pub value: &'static str,
    /// Latent vector of keys and values.
    pub latent_down: &'static str,
    /// Norm of the latent vector.
    pub latent_norm: &'static str,
    /// Keys and values of the latent vector.
    pub latent_up: &'static str,
    /// Keys of the latent vector.
    pub latent_key_up: &'static str,
    /// Values of the latent vector.
    pub latent_value_up: &'static str,
    /// Name of one tensor of queries, keys and values instead of the three.
    pub qkv: Option<&'static str>,
    /// Whether some files have the three nevertheless.
    pub qkv_or_apart: bool,
    /// Whether its rows are grouped by head of keys: its queries, its key and its value.
    pub qkv_by_group: bool,
    /// Whether matrices of layers have their inputs outermost.
    pub inputs_first: bool,
    /// Whether files number attention and MLPs as separate layers, each with a norm of one name.
    pub halves_apart: bool,
    /// Norm of queries.
    pub query_norm: &'static str,
    /// Norm of keys.
    pub key_norm: &'static str,
    /// Full name.
    pub sinks: &'static str,
    /// Names of layers with recurrent states.
    pub state: StateNames,
    /// Keys of distances.
    pub distance_key: &'static str,
    /// Queries of distances.
    pub distance_query: &'static str,
    /// Output of attention.
    pub attention_output: &'static str,
    /// Norm before attention.
    pub attention_norm: &'static str,
    /// Norm after attention.
    pub attention_post_norm: &'static str,
    /// Gate of the MLP.
    pub gate: &'static str,
    /// Input of the MLP.
    pub up: &'static str,
    /// Single tensor of gate and up instead of the two.
    pub gate_up: Option<GateUp>,
    /// Output of the MLP.
    pub down: &'static str,
    /// Prefix of the parameters of an MLP's non-linearity, which have full names.
    pub curve: &'static str,
    /// Router of the experts.
    pub router: &'static str,
    /// Full name of the router's bias.
    pub router_bias: &'static str,
    /// Experts.
    pub experts: ExpertNames,
    /// Gate of the shared expert.
    pub shared_gate: &'static str,
    /// Input of the shared expert.
    pub shared_up: &'static str,
    /// Single tensor of both instead of the two, with gate's rows first.
    pub shared_gate_up: Option<&'static str>,
    /// Output of the shared expert.
    pub shared_down: &'static str,
    /// Gate of the shared expert's output.
    pub shared_router: &'static str,
    /// Norm before the MLP.
    pub mlp_norm: &'static str,
    /// Norm after the MLP.
    pub mlp_post_norm: &'static str,
    /// Names of files in which attention and MLP, in parallel, have separate norms, if those differ.
    pub apart: Option<&'static Names>,
    /// Matrix before a masked language model's head.
    pub lm_dense: &'static str,
    /// Norm behind it.
    pub lm_norm: &'static str,
    /// Head.
    pub head: &'static str,
    /// Full name of the head's bias; some files also have it under the head's name.
    pub head_bias: &'static str,
    /// Parts that only Gemma has.
    pub gemma: GemmaNames,
}

/// Gate and up in one tensor.
#[derive(Clone, Copy, Debug)]
pub struct GateUp {
    /// Name of the tensor.
    pub name: &'static str,
    /// Whether the rows of gate are the first half.
    pub gate_first: bool,
}

impl Names {
    /// A table with the names common to most encoders' files.
    pub const NONE: Names = Names {
        prefix: "",
        token_embedding: "embeddings.word_embeddings",
        position_embedding: "embeddings.position_embeddings",
        type_embedding: "embeddings.token_type_embeddings",
        embedding_norm: "embeddings.LayerNorm",
        distance_bias: "",
        distance_embedding: "",
        distance_norm: "",
        convolution: "",
        convolution_norm: "",
        final_norm: "",
        layer: "encoder.layer.",
        query: "attn.q",
        query_up: "",
        query_down: "",
        query_down_norm: "",
        key: "attn.k",
        value: "attn.v",
        latent_down: "",
        latent_norm: "",
        latent_up: "",
        latent_key_up: "",
        latent_value_up: "",
        qkv: None,
        qkv_or_apart: false,
        qkv_by_group: false,
        inputs_first: false,
        halves_apart: false,
        query_norm: "",
        key_norm: "",
        sinks: "",
        state: StateNames::NONE,
        distance_key: "",
        distance_query: "",
        attention_output: "",
        attention_norm: "",
        attention_post_norm: "",
        gate: "mlp.gate",
        up: "mlp.up",
        gate_up: None,
        down: "",
        curve: "",
        router: "",
        router_bias: "",
        experts: ExpertNames::NONE,
        shared_gate: "",
        shared_up: "",
        shared_gate_up: None,
        shared_down: "",
        shared_router: "",
        mlp_norm: "",
        mlp_post_norm: "",
        apart: None,
        lm_dense: "",
        lm_norm: "",
        head: "",
        head_bias: "",
        gemma: &[],
    };

    /// Names in GGUF files of decoders.
    pub const GGUF: Names = Names {
        token_embedding: "token_embd",
        position_embedding: "position_embd",
        embedding_norm: "token_embd_norm",
        final_norm: "output_norm",
        layer: "blk.",
        query: "attn_q",
        query_up: "attn_q_b",
        query_down: "attn_q_a",
        query_down_norm: "attn_q_a_norm",
        key: "attn_k",
        value: "attn_v",
        latent_down: "attn_kv_a_mqa",
        latent_norm: "attn_kv_a_norm",
        latent_up: "attn_kv_b",
        latent_key_up: "attn_k_b",
        latent_value_up: "attn_v_b",
        query_norm: "attn_q_norm",
        key_norm: "attn_k_norm",
        sinks: "attn_sinks.weight",
        attention_output: "attn_output",
        attention_norm: "attn_norm",
        attention_post_norm: "post_attention_norm",
        gate: "ffn_gate",
        up: "ffn_up",
        down: "ffn_down",
        router: "ffn_gate_inp",
        router_bias: "exp_probs_b.bias",
        // Very old files have separate experts.
        experts: ExpertNames {
            gate: "ffn_gate.{}.weight",
            up: "ffn_up.{}.weight",
            down: "ffn_down.{}.weight",
            gates: "ffn_gate_exps.weight",
            ups: "ffn_up_exps.weight",
            downs: "ffn_down_exps.weight",
            bias: "",
            pack: None,
        },
        shared_gate: "ffn_gate_shexp",
        shared_up: "ffn_up_shexp",
        shared_down: "ffn_down_shexp",
        shared_router: "ffn_gate_inp_shexp",
        mlp_norm: "ffn_norm",
        mlp_post_norm: "post_ffw_norm",
        head: "output",
        head_bias: "output.bias",
        ..Names::NONE
    };

    /// The transformers library's Llama, Mistral, Qwen2, Qwen3 and Qwen3Moe classes, and the additional names of its
    /// DeepseekV2, DeepseekV3 and GptOss classes.
    pub const HUGGING_FACE: Names = Names {
        prefix: "model.",
        token_embedding: "embed_tokens",
        final_norm: "norm",
        layer: "layers.",
        query: "self_attn.q_proj",
        query_up: "self_attn.q_b_proj",
        query_down: "self_attn.q_a_proj",
        query_down_norm: "self_attn.q_a_layernorm",
        key: "self_attn.k_proj",
        value: "self_attn.v_proj",
        latent_down: "self_attn.kv_a_proj_with_mqa",
        latent_norm: "self_attn.kv_a_layernorm",
        latent_up: "self_attn.kv_b_proj",
        query_norm: "self_attn.q_norm",
        key_norm: "self_attn.k_norm",
        sinks: "self_attn.sinks",
        attention_output: "self_attn.o_proj",
        attention_norm: "input_layernorm",
        gate: "mlp.gate_proj",
        up: "mlp.up_proj",
        down: "mlp.down_proj",
        router: "mlp.gate",
        router_bias: "mlp.gate.e_score_correction_bias",
        experts: ExpertNames {
            gate: "mlp.experts.{}.gate_proj.weight",
            up: "mlp.experts.{}.up_proj.weight",
            down: "mlp.experts.{}.down_proj.weight",
            // The library's form of stacked experts.
            pack: Some(ExpertPack::new("mlp.experts.gate_up_proj", "mlp.experts.down_proj")),
            ..ExpertNames::NONE
        },
        shared_gate: "mlp.shared_experts.gate_proj",
        shared_up: "mlp.shared_experts.up_proj",
        shared_down: "mlp.shared_experts.down_proj",
        mlp_norm: "post_attention_layernorm",
        head: "lm_head",
        head_bias: "lm_head.bias",
        ..Names::NONE
    };

    /// GGUF files that have the MLP's norm under the name of another.
    pub(crate) const GGUF_POST_ATTENTION: Names = Names { mlp_norm: "post_attention_norm", ..Names::GGUF };

    /// GGUF files of decoders with gate and up in one matrix.
    pub(crate) const GGUF_GATE_UP: Names =
        Names { gate_up: Some(GateUp { name: "ffn_up", gate_first: true }), ..Names::GGUF };

    /// GGUF files of decoders with queries, keys and values in one matrix.
    pub(crate) const GGUF_FUSED: Names = Names { qkv: Some("attn_qkv"), ..Names::GGUF };

    /// GGUF files of layers with Mamba 2's states.
    pub(crate) const GGUF_MAMBA: Names = Names { state: StateNames::GGUF_MAMBA, ..Names::GGUF };

    /// The transformers library's Gemma3 class.
    pub const GEMMA: Names = Names {
        attention_post_norm: "post_attention_layernorm",
        mlp_norm: "pre_feedforward_layernorm",
        mlp_post_norm: "post_feedforward_layernorm",
        ..Names::HUGGING_FACE
    };

    /// Names for a spec, if a family's files differ in names by its features.
    pub fn of_spec(&'static self, spec: &TransformerSpec) -> &'static Names {
        let apart = spec.layers.iter().any(|layer| layer.order == NormOrder::ParallelApart);
        self.apart.filter(|_| apart).unwrap_or(self)
    }

    /// GPT-2's names outside of layers, in classes of the same style.
    pub(crate) const TRANSFORMER: Names = Names {
        prefix: "transformer.",
        token_embedding: "wte",
        final_norm: "ln_f",
        layer: "h.",
        attention_norm: "ln_1",
        ..Names::HUGGING_FACE
    };

    /// Name of a tensor in a file whose names begin with `prefix`, which is the table's or empty.
    pub fn of(&self, prefix: &str, weight: Weight) -> String {
        let suffix = if weight.bias { "bias" } else { "weight" };
        let stem = match weight.part {
            Part::TokenEmbedding => self.token_embedding,
            Part::PositionEmbedding => self.position_embedding,
            Part::TypeEmbedding => self.type_embedding,
            Part::EmbeddingNorm => self.embedding_norm,
            Part::DistanceBias => self.distance_bias,
            Part::DistanceEmbedding => self.distance_embedding,
            Part::DistanceNorm => self.distance_norm,
            Part::Convolution => self.convolution,
            Part::ConvolutionNorm => self.convolution_norm,
            Part::FinalNorm => self.final_norm,
            Part::Gemma(part) => return format!("{prefix}{}", self.of_gemma(part)),
            Part::Layer(layer, part) => {
                return self.in_layer(prefix, layer, &self.layer_name(part, weight.bias));
            }
            Part::LmDense => return format!("{}.{suffix}", self.lm_dense),
            Part::LmNorm => return format!("{}.{suffix}", self.lm_norm),
            Part::Head if weight.bias => return self.head_bias.to_owned(),
            Part::Head => return format!("{}.{suffix}", self.head),
        };
        format!("{prefix}{stem}.{suffix}")
    }

    /// Name of a tensor of a layer.
    pub fn in_layer(&self, prefix: &str, layer: usize, name: &str) -> String {
        format!("{prefix}{}{layer}.{name}", self.layer)
    }

    /// Tensor, within a layer, that holds a matrix of all its experts; empty if no file has one.
    pub fn stack(&self, part: LayerPart) -> &'static str {
        match part {
            LayerPart::ExpertGate(_) => self.experts.gates,
            LayerPart::ExpertUp(_) => self.experts.ups,
            LayerPart::ExpertDown(_) => self.experts.downs,
            _ => "",
        }
    }

    fn layer_name(&self, part: LayerPart, bias: bool) -> String {
        let of_expert = |pattern: &str, expert: usize| match pattern {
            "" => format!("{}[{expert}]", self.stack(part)),
            pattern => pattern.replace("{}", &expert.to_string()),
        };
        let stem = match part {
            LayerPart::ExpertGate(expert) | LayerPart::ExpertUp(expert) | LayerPart::ExpertDown(expert)
                if bias =>
            {
                let stack = self.stack(part);
                return match stack.strip_suffix(".weight") {
                    Some(stem) => format!("{stem}.bias[{expert}]"),
                    None => self.layer_name(part, false).replace(".weight", ".bias"),
                };
            }
            LayerPart::ExpertGate(expert) => return of_expert(self.experts.gate, expert),
            LayerPart::ExpertUp(expert) => return of_expert(self.experts.up, expert),
            LayerPart::ExpertDown(expert) => return of_expert(self.experts.down, expert),
            LayerPart::Experts => return self.experts.bias.to_owned(),
            LayerPart::Router if bias => return self.router_bias.to_owned(),
            LayerPart::Sinks => return self.sinks.to_owned(),
            LayerPart::QueryGate
            | LayerPart::StateInput
            | LayerPart::StateGate
            | LayerPart::StateBeta
            | LayerPart::StateStep
            | LayerPart::StateConvolution
            | LayerPart::StateDecay
            | LayerPart::StateSkip
            | LayerPart::StateNorm
            | LayerPart::StateOutput => return self.state.of(part, bias),
            LayerPart::Gemma(part) => return self.of_gemma(part),
            LayerPart::Query => self.query,
            LayerPart::QueryDown => self.query_down,
            LayerPart::QueryDownNorm => self.query_down_norm,
            LayerPart::Key => self.key,
            LayerPart::Value => self.value,
            LayerPart::LatentDown => self.latent_down,
            LayerPart::LatentNorm => self.latent_norm,
            LayerPart::LatentUp => self.latent_up,
            LayerPart::LatentKeyUp => self.latent_key_up,
            LayerPart::LatentValueUp => self.latent_value_up,
            LayerPart::QueryNorm => self.query_norm,
            LayerPart::KeyNorm => self.key_norm,
            LayerPart::DistanceKey => self.distance_key,
            LayerPart::DistanceQuery => self.distance_query,
            LayerPart::AttentionOutput => self.attention_output,
            LayerPart::AttentionNorm => self.attention_norm,
            LayerPart::AttentionPostNorm => self.attention_post_norm,
            LayerPart::Gate => self.gate,
            LayerPart::Up => self.up,
            LayerPart::Down => self.down,
            LayerPart::HalfFactor(half) => return format!("half_factor.{half}"),
            LayerPart::CurvePositive => return format!("{}alpha_p", self.curve),
            LayerPart::CurveNegative => return format!("{}alpha_n", self.curve),
            LayerPart::CurveLinear => return format!("{}beta", self.curve),
            LayerPart::Router => self.router,
            LayerPart::SharedGate => self.shared_gate,
            LayerPart::SharedUp => self.shared_up,
            LayerPart::SharedDown => self.shared_down,
            LayerPart::SharedRouter => self.shared_router,
            LayerPart::MlpNorm => self.mlp_norm,
            LayerPart::MlpPostNorm => self.mlp_post_norm,
        };
        format!("{stem}.{}", if bias { "bias" } else { "weight" })
    }
}

/// Names of the experts' matrices. Unlike in other tables they are full names.
#[derive(Clone, Copy, Debug)]
pub struct ExpertNames {
    /// Names of a single expert's matrices, with `{}` for its number; empty if files have only stacks.
    pub gate: &'static str,
    /// Name of up.
    pub up: &'static str,
    /// Name of down.
    pub down: &'static str,
    /// Names of tensors that stack one matrix of all of a layer's experts; empty if no file has them.
    pub gates: &'static str,
    /// Stack of up.
    pub ups: &'static str,
    /// Stack of down.
    pub downs: &'static str,
    /// Bias of the experts' sum.
    pub bias: &'static str,
    /// Gate and up of all experts in one tensor, if files have such.
    pub pack: Option<ExpertPack>,
}

/// Full names of tensors of all experts of a layer, with gate and up in one.
#[derive(Clone, Copy, Debug)]
pub struct ExpertPack {
    /// Gate and up.
    pub gate_up: &'static str,
    /// Down.
    pub down: &'static str,
    /// Suffix of their biases' names.
    pub bias_suffix: &'static str,
    /// Whether rows of gate and up alternate, rather than one being the first half.
    pub in_turns: bool,
    /// Whether matrices of floats have their inputs outermost.
    pub inputs_first: bool,
}

impl ExpertNames {
    /// Names of no expert.
    pub const NONE: ExpertNames =
        ExpertNames { gate: "", up: "", down: "", gates: "", ups: "", downs: "", bias: "", pack: None };
}

impl ExpertPack {
    /// Gate's rows before up's, and outputs outermost.
    pub const fn new(gate_up: &'static str, down: &'static str) -> ExpertPack {
        ExpertPack { gate_up, down, bias_suffix: "_bias", in_turns: false, inputs_first: false }
    }
}

/// Names within a layer: those that end in a dot lack `weight` and `bias`, others are complete. An empty name is of a
/// part that the table's families never have.
#[derive(Clone, Copy, Debug)]
pub struct StateNames {
    /// Gate of attention's output, if it is stored separately.
    pub query_gate: &'static str,
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
    pub stacks: &'static [(&'static str, StateStack)],
}

/// Content of a combined tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateStack {
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
