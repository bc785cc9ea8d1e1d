//! GPT-J: parallel sublayers with one norm, and a head with a bias.

use super::*;

pub(super) const GPTJ: Family = Family {
    title: "GPT-J",
    hugging_face: &[ModelType {
        name: "gptj",
        class: "GPTJForCausalLM",
        names: &Names {
            query: "attn.q_proj",
            key: "attn.k_proj",
            value: "attn.v_proj",
            attention_output: "attn.out_proj",
            up: "mlp.fc_in",
            down: "mlp.fc_out",
            ..Names::TRANSFORMER
        },
        order: NormOrder::Parallel,
        norm: NormKind::Layer { bias: true },
        eps: ("layer_norm_epsilon", 1e-5),
        biases: Choice::NEVER,
        mlp_bias: Choice::Always(true),
        gated: false,
        activation: ("activation_function", "gelu_new"),
        rope_kind: RopeKind::Interleaved,
        head_bias: true,
        renames: gpt2::RENAMES,
        settle: set_ffn,
        own: |config, spec| {
            if let Some(turned) = config.count("rotary_dim", HEAD_DIM_MAX)? {
                spec.ropes[0].dim = turned;
            }
            Ok(())
        },
        ..ModelType::DENSE
    }],
    gguf: &[],
    goldens: &[alone("dense/gptj")],
};
