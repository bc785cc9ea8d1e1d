//! GPT-NeoX and Pythia: parallel sublayers with separate norms, and heads a quarter of which is rotated.

use super::*;

pub(super) const GPT_NEOX: Family = Family {
    title: "GPT-NeoX, Pythia",
    hugging_face: &[ModelType {
        name: "gpt_neox",
        class: "GPTNeoXForCausalLM",
        names: &Names {
            prefix: "gpt_neox.",
            token_embedding: "embed_in",
            final_norm: "final_layer_norm",
            qkv: Some("attention.query_key_value"),
            qkv_by_group: true,
            attention_output: "attention.dense",
            up: "mlp.dense_h_to_4h",
            down: "mlp.dense_4h_to_h",
            head: "embed_out",
            ..Names::HUGGING_FACE
        },
        order: NormOrder::ParallelApart,
        norm: NormKind::Layer { bias: true },
        eps: ("layer_norm_eps", 1e-5),
        biases: [Choice::By("attention_bias", true); 2],
        mlp_bias: Choice::Always(true),
        gated: false,
        activation: ("hidden_act", "gelu"),
        turned: 0.25,
        renames: &[("rotary_pct", "partial_rotary_factor"), ("rotary_emb_base", "rope_theta")],
        parallel: [Some(NormOrder::Pre), None],
        ..ModelType::DENSE
    }],
    gguf: &[Architecture { name: "gptneox", names: &Names::GGUF_FUSED, ..Architecture::DENSE }],
    goldens: &[both("dense/gpt-neox"), both("dense/gpt-neox-sequential")],
};
