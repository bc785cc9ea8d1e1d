//! Phi-3, 3.5, 4 and 4-mini: Llama with fused matrices.

use super::*;

pub(super) const PHI3: Family = Family {
    title: "Phi-3, 3.5, 4, 4-mini",
    hugging_face: &[ModelType {
        name: "phi3",
        class: "Phi3ForCausalLM",
        names: &Names {
            qkv: Some("self_attn.qkv_proj"),
            gate_up: Some(GateUp { name: "mlp.gate_up_proj", gate_first: true }),
            ..Names::HUGGING_FACE
        },
        eps: ("rms_norm_eps", 1e-5),
        windows: Windows::All,
        ..ModelType::DENSE
    }],
    gguf: &[Architecture {
        name: "phi3",
        names: &Names { qkv: Some("attn_qkv"), ..Names::GGUF_GATE_UP },
        full_each: 1,
        ..Architecture::DENSE
    }],
    goldens: &[both("dense/phi3"), both("dense/phi3-long")],
};
