//! GPT-J: parallel sublayers with one norm, and a head with a bias.

use super::gpt2::gpt2;
use super::*;

pub(super) const GPTJ: Family = Family {
    title: "GPT-J",
    hugging_face: &[ModelType {
        name: "gptj",
        class: "GPTJForCausalLM",
        names: &Names {
            prefix: "transformer.",
            token_embedding: "wte",
            final_norm: "ln_f",
            layer: "h.",
            query: "attn.q_proj",
            key: "attn.k_proj",
            value: "attn.v_proj",
            attention_output: "attn.out_proj",
            attention_norm: "ln_1",
            up: "mlp.fc_in",
            down: "mlp.fc_out",
            ..Names::HUGGING_FACE
        },
        order: NormOrder::Parallel,
        norm: NormKind::Layer { bias: true },
        eps: ("layer_norm_epsilon", 1e-5),
        qkv_bias: Choice::Always(false),
        output_bias: Choice::Always(false),
        mlp_bias: Choice::Always(true),
        gated: false,
        activation: ("activation_function", "gelu_new"),
        rope_kind: RopeKind::Interleaved,
        settle: gpt2,
        own: |config, spec| {
            if let Some(turned) = config.count("rotary_dim", HEAD_DIM_MAX)? {
                spec.ropes[0].dim = turned;
            }
            set_head_bias(spec);
            Ok(())
        },
        ..ModelType::DENSE
    }],
    goldens_without_gguf: &["dense/gptj"],
    ..Family::NONE
};
