//! OPT, except its smallest model: a learned embedding of positions from its third row on.

use super::*;

pub(super) const OPT: Family = Family {
    title: "OPT (not 350M)",
    hugging_face: &[ModelType {
        name: "opt",
        class: "OPTForCausalLM",
        names: &Names {
            prefix: "model.decoder.",
            position_embedding: "embed_positions",
            final_norm: "final_layer_norm",
            attention_output: "self_attn.out_proj",
            attention_norm: "self_attn_layer_norm",
            up: "fc1",
            down: "fc2",
            mlp_norm: "final_layer_norm",
            ..Names::HUGGING_FACE
        },
        norm: NormKind::Layer { bias: true },
        // Its class has a fixed value.
        eps: ("", 1e-5),
        biases: [Choice::By("enable_bias", true); 2],
        mlp_bias: Choice::By("enable_bias", true),
        gated: false,
        activation: ("activation_function", "relu"),
        tied: true,
        renames: &[("ffn_dim", "intermediate_size")],
        settle: opt,
        own: |_, spec| {
            learn_positions(spec, 2);
            Ok(())
        },
        refused: &["_remove_final_layer_norm"],
        ..ModelType::DENSE
    }],
    gguf: &[],
    goldens: &[alone("dense/opt")],
};

fn opt(config: &mut Config) -> Result<(), LoadError> {
    refuse_unless(config, "do_layer_norm_before", true)?;
    refuse_unless(config, "layer_norm_elementwise_affine", true)?;
    let hidden = config.required("hidden_size", WIDTH_MAX)?;
    match config.count("word_embed_proj_dim", WIDTH_MAX)? {
        Some(embedded) if embedded != hidden => {
            let reason = format!("embeddings must be as wide as hidden states, {hidden}");
            Err(config.unsupported("word_embed_proj_dim", embedded, reason))
        }
        _ => Ok(()),
    }
}
