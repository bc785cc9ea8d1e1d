//! Tests of rotary embeddings of a part of a head, and of norms of heads that the network does not have.

use hanzo_engine_model_files::gguf::Gguf;
use serde_json::json;

use super::gguf::Builder;
use super::{changed, llama, read};
use crate::spec::base::Base;
use crate::spec::families::FAMILIES;
use crate::spec::metadata::Keys;
use crate::spec::settings::ModelType;
use crate::spec::{Config, NormKind, QkNorm};

#[test]
fn the_rotated_part_of_a_model_type_counts_under_every_check() {
    let settings = llama().as_object().unwrap().clone();
    let config = Config::new("config.json", settings);
    for of in [ModelType::LLAMA, ModelType::DENSE, ModelType::OWN] {
        let quarter = ModelType { turned: 0.25, ..of };
        for (of, expected) in [(of, 64), (quarter, 16)] {
            let base = Base::read(&of, &config).unwrap();
            assert_eq!(base.turned(64).unwrap(), expected);
        }
    }
    let error = read(changed(&llama(), json!({"partial_rotary_factor": 0.5}))).unwrap_err().to_string();
    assert!(error.contains("partial_rotary_factor = 0.5 is not supported"), "{error}");
}

#[test]
fn files_of_families_that_rotate_a_part_of_a_head_must_say_which() {
    let mut parts = 0;
    for family in FAMILIES {
        let Some(form) = family.hugging_face.first() else { continue };
        for of in family.gguf {
            let file = |dim: Option<u32>| {
                let architecture = Builder::new().string("general.architecture", of.name);
                let builder = match dim {
                    Some(dim) => architecture.u32(&format!("{}.rope.dimension_count", of.name), dim),
                    None => architecture,
                };
                builder.build()
            };
            let dim = |gguf: &Gguf| {
                let keys = Keys { gguf, metadata: &gguf.metadata, form, of };
                keys.rope_of(keys.rope_kind(), 64, 128).map(|rope| rope.dim)
            };
            assert_eq!(dim(&file(Some(48))).unwrap(), 48, "{}", of.name);
            match form.turned {
                1.0 => assert_eq!(dim(&file(None)).unwrap(), 64, "{}", of.name),
                _ => {
                    parts += 1;
                    let error = dim(&file(None)).unwrap_err().to_string();
                    let expected = format!("{}.rope.dimension_count is missing", of.name);
                    assert!(error.contains(&expected), "{error}");
                }
            }
        }
    }
    assert!(parts >= 8, "{parts} architectures of families that rotate a part");
}

#[test]
fn rms_norms_of_heads_beside_layer_norms_are_refused() {
    for qk_norm in [QkNorm::None, QkNorm::Heads, QkNorm::Unit, QkNorm::HeadsApart, QkNorm::Whole] {
        for kind in [NormKind::Rms { from_one: false }, NormKind::Layer { bias: true }, NormKind::LayerUnit] {
            let mut spec = read(llama()).unwrap();
            spec.norm.kind = kind;
            spec.layers.iter_mut().for_each(|layer| layer.attention.qk_norm = qk_norm);
            let refused = spec.unrunnable();
            match qk_norm {
                QkNorm::Heads | QkNorm::Unit if kind.is_layer() => {
                    assert_eq!(refused.unwrap().1, "RMS norms of heads, beside layer norms");
                }
                _ => assert_eq!(refused, None, "{qk_norm:?} beside {kind:?}"),
            }
        }
    }
}
