//! Names of a transformer's tensors in files, as data: a table for each naming scheme.

use super::gemma_parts::GemmaNames;
use super::names_experts::{ExpertNames, ExpertPack};
use super::names_state::StateNames;
use super::weights::{LayerPart, Part, Weight};

/// Names without `.weight` and `.bias`. An empty name is of a part that the table's families never have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    /// Prefix of all names except heads, in files of classes with a prefix.
    pub(crate) prefix: &'static str,
    pub(crate) token_embedding: &'static str,
    pub(crate) position_embedding: &'static str,
    pub(crate) type_embedding: &'static str,
    pub(crate) embedding_norm: &'static str,
    pub(crate) distance_bias: &'static str,
    pub(crate) distance_embedding: &'static str,
    pub(crate) distance_norm: &'static str,
    pub(crate) convolution: &'static str,
    pub(crate) convolution_norm: &'static str,
    pub(crate) final_norm: &'static str,
    /// Prefix of the layer's number.
    pub(crate) layer: &'static str,
    pub(crate) query: &'static str,
    /// Queries of a narrow vector, if files name them differently from those of hidden states.
    pub(crate) query_up: &'static str,
    pub(crate) query_down: &'static str,
    pub(crate) query_down_norm: &'static str,
    pub(crate) key: &'static str,
    pub(crate) value: &'static str,
    pub(crate) latent_down: &'static str,
    pub(crate) latent_norm: &'static str,
    pub(crate) latent_up: &'static str,
    pub(crate) latent_key_up: &'static str,
    pub(crate) latent_value_up: &'static str,
    /// Name of one tensor of queries, keys and values instead of the three.
    pub(crate) qkv: Option<&'static str>,
    /// Whether some files have the three nevertheless.
    pub(crate) qkv_or_apart: bool,
    /// Whether its rows are grouped by head of keys: its queries, its key and its value.
    pub(crate) qkv_by_group: bool,
    /// Whether matrices of layers have their inputs outermost.
    pub(crate) inputs_first: bool,
    /// Whether files number attention and MLPs as separate layers, each with a norm of one name.
    pub(crate) halves_apart: bool,
    pub(crate) query_norm: &'static str,
    pub(crate) key_norm: &'static str,
    /// Full name.
    pub(crate) sinks: &'static str,
    /// Names of layers with recurrent states.
    pub(crate) state: StateNames,
    pub(crate) distance_key: &'static str,
    pub(crate) distance_query: &'static str,
    pub(crate) attention_output: &'static str,
    pub(crate) attention_norm: &'static str,
    pub(crate) attention_post_norm: &'static str,
    pub(crate) gate: &'static str,
    pub(crate) up: &'static str,
    /// Single tensor of gate and up instead of the two.
    pub(crate) gate_up: Option<GateUp>,
    pub(crate) down: &'static str,
    /// Prefix of the parameters of an MLP's non-linearity, which have full names.
    pub(crate) curve: &'static str,
    pub(crate) router: &'static str,
    /// Full name of the router's bias.
    pub(crate) router_bias: &'static str,
    pub(crate) experts: ExpertNames,
    pub(crate) shared_gate: &'static str,
    pub(crate) shared_up: &'static str,
    /// Single tensor of both instead of the two, with gate's rows first.
    pub(crate) shared_gate_up: Option<&'static str>,
    pub(crate) shared_down: &'static str,
    pub(crate) shared_router: &'static str,
    pub(crate) mlp_norm: &'static str,
    pub(crate) mlp_post_norm: &'static str,
    pub(crate) lm_dense: &'static str,
    pub(crate) lm_norm: &'static str,
    pub(crate) head: &'static str,
    /// Full name of the head's bias; some files also have it under the head's name.
    pub(crate) head_bias: &'static str,
    pub(crate) gemma: GemmaNames,
}

/// Gate and up in one tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GateUp {
    pub(crate) name: &'static str,
    /// Whether the rows of gate are the first half.
    pub(crate) gate_first: bool,
}

impl Names {
    /// A table with the names common to most encoders' files.
    pub(crate) const NONE: Names = Names {
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
        lm_dense: "",
        lm_norm: "",
        head: "",
        head_bias: "",
        gemma: &[],
    };

    /// Names in GGUF files of decoders.
    pub(crate) const GGUF: Names = Names {
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
    pub(crate) const HUGGING_FACE: Names = Names {
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
            pack: Some(ExpertPack {
                gate_up: "mlp.experts.gate_up_proj",
                down: "mlp.experts.down_proj",
                bias_suffix: "_bias",
                in_turns: false,
                inputs_first: false,
            }),
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

    /// GGUF files whose routers have a bias on their scores.
    pub(crate) const GGUF_GPT_OSS: Names =
        Names { router_bias: "ffn_gate_inp.bias", mlp_norm: "post_attention_norm", ..Names::GGUF };

    /// GGUF files that have the MLP's norm under the name of another.
    pub(crate) const GGUF_POST_ATTENTION: Names = Names { mlp_norm: "post_attention_norm", ..Names::GGUF };

    /// GGUF files of decoders with fused matrices, gate before up.
    pub(crate) const GGUF_GLM4: Names =
        Names { gate_up: Some(GateUp { name: "ffn_up", gate_first: true }), ..Names::GGUF };
    pub(crate) const GGUF_PHI3: Names = Names { qkv: Some("attn_qkv"), ..Names::GGUF_GLM4 };

    pub(crate) const GGUF_FUSED: Names = Names { qkv: Some("attn_qkv"), ..Names::GGUF };
    pub(crate) const GGUF_PHI2: Names = Names { qkv_or_apart: true, ..Names::GGUF_FUSED };

    /// Names in GGUF files of decoders of an architecture.
    pub(crate) fn of_gguf(architecture: &str) -> &'static Names {
        match architecture {
            "gpt-oss" => &Names::GGUF_GPT_OSS,
            "qwen3next" | "qwen35" | "qwen35moe" => &Names::GGUF_STATES,
            "granitehybrid" | "mamba2" | "falcon-h1" => &Names::GGUF_MAMBA,
            "nemotron_h" | "nemotron_h_moe" => &Names::GGUF_NEMOTRON_H,
            "lfm2" | "lfm2moe" => &Names::GGUF_LFM2,
            "glm4moe" | "seed_oss" => &Names::GGUF_POST_ATTENTION,
            "phi3" | "chatglm" => &Names::GGUF_PHI3,
            "bailingmoe2" | "bloom" | "falcon" | "gpt2" | "gptneox" | "mpt" | "qwen" | "starcoder" => {
                &Names::GGUF_FUSED
            }
            "glm4" => &Names::GGUF_GLM4,
            "apertus" => &Names::GGUF_APERTUS,
            "afmoe" => &Names::GGUF_AFMOE,
            "gemma3n" => &Names::GGUF_GEMMA3N,
            "gemma4" => &Names::GGUF_GEMMA4,
            "phi2" => &Names::GGUF_PHI2,
            _ => &Names::GGUF,
        }
    }

    /// The transformers library's GptOss class.
    pub(crate) const GPT_OSS: Names = Names {
        router: "mlp.router",
        router_bias: "mlp.router.bias",
        experts: ExpertNames {
            pack: Some(ExpertPack {
                gate_up: "mlp.experts.gate_up_proj",
                down: "mlp.experts.down_proj",
                bias_suffix: "_bias",
                in_turns: true,
                inputs_first: true,
            }),
            ..Names::HUGGING_FACE.experts
        },
        ..Names::HUGGING_FACE
    };

    /// The transformers library's Qwen3VLMoe class.
    pub(crate) const QWEN3_VL_MOE: Names = Names {
        experts: ExpertNames {
            pack: Some(ExpertPack {
                gate_up: "mlp.experts.gate_up_proj",
                down: "mlp.experts.down_proj",
                bias_suffix: "_bias",
                in_turns: false,
                inputs_first: true,
            }),
            ..Names::HUGGING_FACE.experts
        },
        ..Names::HUGGING_FACE
    };

    /// Classes of experts with a shared expert that has a gate.
    pub(crate) const QWEN2_MOE: Names = Names {
        shared_gate: "mlp.shared_expert.gate_proj",
        shared_up: "mlp.shared_expert.up_proj",
        shared_down: "mlp.shared_expert.down_proj",
        shared_router: "mlp.shared_expert_gate",
        ..Names::HUGGING_FACE
    };

    /// The transformers library's Ernie4_5_Moe class.
    pub(crate) const ERNIE_MOE: Names =
        Names { router_bias: "mlp.moe_statics.e_score_correction_bias", ..Names::HUGGING_FACE };

    /// The transformers library's HunYuanDenseV1 and HunYuanMoEV1 classes.
    pub(crate) const HUNYUAN: Names = Names {
        router: "mlp.gate.wg",
        query_norm: "self_attn.query_layernorm",
        key_norm: "self_attn.key_layernorm",
        shared_gate: "mlp.shared_mlp.gate_proj",
        shared_up: "mlp.shared_mlp.up_proj",
        shared_down: "mlp.shared_mlp.down_proj",
        ..Names::HUGGING_FACE
    };

    /// Ling's own classes.
    pub(crate) const BAILING_MOE: Names = Names {
        token_embedding: "word_embeddings",
        qkv: Some("attention.query_key_value"),
        query_norm: "attention.query_layernorm",
        key_norm: "attention.key_layernorm",
        attention_output: "attention.dense",
        router_bias: "mlp.gate.expert_bias",
        ..Names::HUGGING_FACE
    };

    /// The transformers library's GraniteMoe and GraniteMoeShared classes.
    pub(crate) const GRANITE_MOE: Names = Names {
        router: "block_sparse_moe.router.layer",
        experts: ExpertNames {
            gate: "block_sparse_moe.input_linear.weight[{}, gate]",
            up: "block_sparse_moe.input_linear.weight[{}, up]",
            down: "block_sparse_moe.output_linear.weight[{}]",
            pack: Some(ExpertPack {
                gate_up: "block_sparse_moe.input_linear.weight",
                down: "block_sparse_moe.output_linear.weight",
                bias_suffix: "_bias",
                in_turns: false,
                inputs_first: false,
            }),
            ..ExpertNames::NONE
        },
        shared_gate: "shared_mlp.input_linear[gate]",
        shared_up: "shared_mlp.input_linear[up]",
        shared_gate_up: Some("shared_mlp.input_linear"),
        shared_down: "shared_mlp.output_linear",
        ..Names::HUGGING_FACE
    };

    /// The transformers library's Llama4 class.
    pub(crate) const LLAMA4: Names = Names {
        gate: "feed_forward.gate_proj",
        up: "feed_forward.up_proj",
        down: "feed_forward.down_proj",
        router: "feed_forward.router",
        experts: ExpertNames {
            gate: "feed_forward.experts.{}.gate_proj.weight",
            up: "feed_forward.experts.{}.up_proj.weight",
            down: "feed_forward.experts.{}.down_proj.weight",
            pack: Some(ExpertPack {
                gate_up: "feed_forward.experts.gate_up_proj",
                down: "feed_forward.experts.down_proj",
                bias_suffix: "_bias",
                in_turns: false,
                inputs_first: true,
            }),
            ..ExpertNames::NONE
        },
        shared_gate: "feed_forward.shared_expert.gate_proj",
        shared_up: "feed_forward.shared_expert.up_proj",
        shared_down: "feed_forward.shared_expert.down_proj",
        ..Names::HUGGING_FACE
    };

    /// The transformers library's Mixtral class.
    pub(crate) const MIXTRAL: Names = Names {
        router: "block_sparse_moe.gate",
        experts: ExpertNames {
            gate: "block_sparse_moe.experts.{}.w1.weight",
            up: "block_sparse_moe.experts.{}.w3.weight",
            down: "block_sparse_moe.experts.{}.w2.weight",
            ..ExpertNames::NONE
        },
        ..Names::HUGGING_FACE
    };

    /// The transformers library's MiniMaxM2 class.
    pub(crate) const MINIMAX_M2: Names =
        Names { router_bias: "block_sparse_moe.e_score_correction_bias", ..Names::MIXTRAL };

    /// The transformers library's ExaoneMoe class.
    pub(crate) const EXAONE_MOE: Names =
        Names { router_bias: "mlp.e_score_correction_bias", ..Names::HUGGING_FACE };

    /// The transformers library's Gemma3 class.
    pub(crate) const GEMMA: Names = Names {
        attention_post_norm: "post_attention_layernorm",
        mlp_norm: "pre_feedforward_layernorm",
        mlp_post_norm: "post_feedforward_layernorm",
        ..Names::HUGGING_FACE
    };

    /// The transformers library's Phi3 class.
    pub(crate) const PHI3: Names = Names {
        qkv: Some("self_attn.qkv_proj"),
        gate_up: Some(GateUp { name: "mlp.gate_up_proj", gate_first: true }),
        ..Names::HUGGING_FACE
    };

    /// The transformers library's Glm and, with norms of sublayers' outputs, Glm4 classes.
    pub(crate) const GLM: Names =
        Names { gate_up: Some(GateUp { name: "mlp.gate_up_proj", gate_first: true }), ..Names::HUGGING_FACE };
    pub(crate) const GLM4: Names = Names {
        attention_post_norm: "post_self_attn_layernorm",
        mlp_post_norm: "post_mlp_layernorm",
        ..Names::GLM
    };

    /// The transformers library's Olmo2, Olmo3, FlexOlmo and Exaone4 classes.
    pub(crate) const OLMO2: Names = Names {
        attention_post_norm: "post_attention_layernorm",
        mlp_post_norm: "post_feedforward_layernorm",
        ..Names::HUGGING_FACE
    };

    /// The transformers library's Starcoder2 class.
    pub(crate) const STARCODER2: Names = Names { up: "mlp.c_fc", down: "mlp.c_proj", ..Names::HUGGING_FACE };

    /// Names in the transformers library's class of decoders for a model type.
    pub(crate) fn of_model_type(model_type: &str) -> &'static Names {
        match model_type {
            "mixtral" | "phimoe" => &Names::MIXTRAL,
            "minimax_m2" => &Names::MINIMAX_M2,
            "bailing_moe" | "bailing_moe_v2" => &Names::BAILING_MOE,
            "granitemoe" | "granitemoeshared" => &Names::GRANITE_MOE,
            "exaone_moe" => &Names::EXAONE_MOE,
            "gpt_oss" => &Names::GPT_OSS,
            "qwen3_vl_moe_text" => &Names::QWEN3_VL_MOE,
            "qwen2_moe" => &Names::QWEN2_MOE,
            "qwen3_next" | "qwen3_5_text" | "qwen3_5_moe_text" => &Names::QWEN_STATES,
            "granitemoehybrid" => &Names::GRANITE_HYBRID,
            "bamba" => &Names::BAMBA,
            "nemotron_h" => &Names::NEMOTRON_H,
            "lfm2" | "lfm2_moe" => &Names::LFM2,
            "llama4_text" => &Names::LLAMA4,
            "ernie4_5_moe" => &Names::ERNIE_MOE,
            "hunyuan_v1_dense" | "hunyuan_v1_moe" => &Names::HUNYUAN,
            "gemma2" | "gemma3_text" => &Names::GEMMA,
            "gemma3n_text" => &Names::GEMMA3N,
            "gemma4_text" => &Names::GEMMA4,
            "phi3" => &Names::PHI3,
            "glm" => &Names::GLM,
            "glm4" | "glm4v_text" => &Names::GLM4,
            "olmo2" | "olmo3" | "exaone4" | "flex_olmo" => &Names::OLMO2,
            "starcoder2" => &Names::STARCODER2,
            other => Names::of_own(other),
        }
    }

    /// Name of a tensor in a file whose names begin with `prefix`, which is the table's or empty.
    pub(crate) fn of(&self, prefix: &str, weight: Weight) -> String {
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
    pub(crate) fn in_layer(&self, prefix: &str, layer: usize, name: &str) -> String {
        format!("{prefix}{}{layer}.{name}", self.layer)
    }

    /// Tensor, within a layer, that holds a matrix of all its experts; empty if no file has one.
    pub(crate) fn stack(&self, part: LayerPart) -> &'static str {
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
