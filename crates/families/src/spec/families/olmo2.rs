//! OLMo 2 and 3: norms of sublayers' outputs, and of queries and keys over all heads.

use super::*;

/// The transformers library's Olmo2, Olmo3, FlexOlmo and Exaone4 classes.
pub(super) const NAMES: Names = Names {
    attention_post_norm: "post_attention_layernorm",
    mlp_post_norm: "post_feedforward_layernorm",
    ..Names::HUGGING_FACE
};

const TYPE: ModelType = ModelType {
    name: "olmo2",
    class: "Olmo2ForCausalLM",
    names: &NAMES,
    order: NormOrder::Branch,
    eps: ("rms_norm_eps", 1e-5),
    qk_norm: QkNorm::Whole,
    ..ModelType::DENSE
};

pub(super) const OLMO2: Family = Family {
    title: "OLMo 2",
    hugging_face: &[TYPE],
    gguf: &[Architecture {
        name: "olmo2",
        full_each: 4,
        turns: Turns::WindowsApart(None),
        ..Architecture::DENSE
    }],
    goldens: &[both("dense/olmo2")],
};

pub(super) const OLMO3: Family = Family {
    title: "OLMo 3",
    hugging_face: &[ModelType {
        name: "olmo3",
        class: "Olmo3ForCausalLM",
        written_as: "olmo2",
        rope_base: 5e5,
        windows: Windows::AllButEach(4),
        own: |_, spec| {
            let local = spec.ropes[0].unstretched();
            turn_windows_apart(spec, local);
            Ok(())
        },
        ..TYPE
    }],
    gguf: &[],
    goldens: &[alone("dense/olmo3")],
};
