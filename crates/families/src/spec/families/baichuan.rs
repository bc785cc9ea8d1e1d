//! Baichuan 7B, 13B and 2: the larger models use ALiBi, the second generation norms the rows of its head.

use super::*;

/// Vocabulary size of Baichuan 2, whose head is normed; no setting says so.
const NORMED_HEAD: usize = 125_696;

pub(super) const BAICHUAN: Family = Family {
    title: "Baichuan 7B, 13B, 2",
    hugging_face: &[ModelType {
        name: "baichuan",
        class: "BaichuanForCausalLM",
        names: &Names { qkv: Some("self_attn.W_pack"), ..Names::HUGGING_FACE },
        settle: baichuan,
        own: |config, spec| {
            if config.bool("alibi")?.unwrap_or(false) {
                set_alibi(spec, Alibi::PLAIN);
            }
            norm_head(spec);
            Ok(())
        },
        ..ModelType::DENSE
    }],
    gguf: &[Architecture {
        name: "baichuan",
        positions: Positions::AlibiInLayers(40),
        own: |_, spec| {
            norm_head(spec);
            Ok(())
        },
        ..Architecture::PERMUTED
    }],
    goldens: &[both("dense/baichuan"), both("dense/baichuan-alibi")],
};

fn norm_head(spec: &mut TransformerSpec) {
    if let HeadSpec::Logits(head) = &mut spec.head {
        head.unit_rows = spec.vocab == NORMED_HEAD;
    }
}

fn baichuan(config: &mut Config) -> Result<(), LoadError> {
    // The classes of its two generations differ in the case of one letter.
    config.set("architectures", Value::Null);
    // The larger models use ALiBi, and no setting says so.
    if config.get("max_position_embeddings").is_none_or(Value::is_null)
        && config.get("model_max_length").is_some()
    {
        rename(config, &[("model_max_length", "max_position_embeddings")]);
        config.set("alibi", true.into());
    }
    Ok(())
}
