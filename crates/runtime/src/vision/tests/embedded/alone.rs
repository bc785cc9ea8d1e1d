//! Files whose tower this build does not support, and other uses of files with a tower inside: `quantize` and
//! `inspect`.

use super::*;
use crate::gguf::Gguf;
use crate::quantise::{Mix, Plan, QuantiseOptions};

/// Part of another file, as a stand-in for a tensor of a tower.
fn stand_in(name: &str) -> Tensor {
    f32s("model", name.to_owned(), vec![0.5; 32])
}

/// Text model of a family whose tower is not supported.
struct TextAlone {
    architecture: &'static str,
    data: &'static str,
    keys: fn() -> Vec<(&'static str, Setting)>,
    tower: &'static [&'static str],
    not_read: &'static [&'static str],
}

const ALONE: [TextAlone; 3] = [
    TextAlone {
        architecture: "gemma4",
        data: "dense/gemma4",
        keys: || vec![("vision.block_count", whole(2)), ("audio.block_count", whole(2))],
        tower: &["v.patch_embd.weight", "a.blk.0.ln1.weight", "mm.input_projection.weight"],
        not_read: &["images", "audio"],
    },
    TextAlone {
        architecture: "gemma3n",
        data: "dense/gemma3n",
        keys: || {
            vec![("altup.correct_scale", Setting::Bool(true)), ("altup.lr_multiplier", Setting::F32(1.0))]
        },
        tower: &["v.blk.0.weight"],
        not_read: &["images", "audio"],
    },
    TextAlone {
        architecture: "llama4",
        data: "mixtures/llama4-long",
        keys: || {
            vec![
                ("use_qk_norm", Setting::Bool(true)),
                ("attention.chunk_size", whole(8192)),
                ("vision.pixel_shuffle_ratio", Setting::F32(0.5)),
            ]
        },
        tower: &["v.class_embedding", "mm.linear_1.weight"],
        not_read: &["images"],
    },
];

fn with_a_tower(from: &Path, to: &Path, architecture: &str, keys: &[(&str, Setting)], names: &[&str]) {
    let (Gguf { metadata, tensors, .. }, _) = crate::gguf::open(from).unwrap();
    let entries = metadata.iter().map(|(key, value)| (key.to_owned(), value.clone()));
    let mut entries: BTreeMap<String, Setting> = entries.collect();
    entries.insert("general.architecture".into(), Setting::String(architecture.into()));
    entries.extend(keys.iter().map(|(key, value)| (format!("{architecture}.{key}"), value.clone())));
    write(to, &entries, tensors.into_iter().chain(names.iter().map(|name| stand_in(name))).collect());
}

#[test]
fn a_model_whose_tower_is_not_run_reads_texts() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m.gguf");
    for TextAlone { architecture, data, keys, tower, not_read } in ALONE {
        let own = crate::decoder::tests::data(data).join("model.gguf");
        with_a_tower(&own, &path, architecture, &keys(), tower);
        let (own, found) = (OpenedModel::open(&own).unwrap(), OpenedModel::open(&path).unwrap());
        assert_eq!(found.info().not_read, not_read, "{architecture}");
        assert_eq!(found.decoder().unwrap().spec, own.decoder().unwrap().spec, "{architecture}");
        assert_eq!(found.info().parameters, own.info().parameters, "{architecture}");
        let said = found.info().why_not_read("images");
        assert!(said.contains(architecture) && said.contains("tower"), "{said}");
    }
    for architecture in ["glmocr", "deepseekocr"] {
        let own = crate::decoder::tests::data("dense/glm4").join("model.gguf");
        with_a_tower(&own, &path, architecture, &[], &["v.blk.0.attn_q.weight"]);
        let refused = OpenedModel::open(&path).map(drop).unwrap_err().to_string();
        let named = [architecture, "images", "tower", "of no use"];
        assert!(named.iter().all(|part| refused.contains(part)), "{refused}");
    }
}

#[test]
fn a_tower_in_the_models_file_stays_as_it_is_when_the_text_is_quantised() {
    let directory = tempfile::tempdir().unwrap();
    let (path, made) = (directory.path().join("m.gguf"), directory.path().join("made.gguf"));
    for form in FORMS {
        form.write(&path, Stored::F32, &[]);
        let (gguf, _) = crate::gguf::open(&path).unwrap();
        let wanted = QuantiseOptions {
            mix: Mix::named("Q8_0").unwrap(),
            pure: false,
            keep_output: false,
            output: None,
            token_embedding: None,
            named: Vec::new(),
            requantize: false,
        };
        let plan = Plan::new(&gguf, &wanted, None).unwrap();
        let tensors = plan.tensors.iter().map(|(from, to)| {
            let is_of_tower = crate::vision::embedded::is_of_tower(&from.name);
            assert!(!is_of_tower || from.dtype == to.dtype, "{}: {:?}", from.name, to.dtype);
            match (is_of_tower, to.dtype) {
                (false, DType::Q8_0) => f32s("model", from.name.clone(), from.to_f32().unwrap())
                    .shaped(&from.shape)
                    .kept(Stored::Packed),
                _ => from.clone(),
            }
        });
        let tensors: Vec<Tensor> = tensors.collect();
        assert!(tensors.iter().any(|tensor| tensor.dtype == DType::Q8_0), "{}", form.case);
        write(&made, &plan.metadata, tensors);
        let facts = crate::inspect::inspect(&made).facts;
        assert!(facts.problems.is_empty() && facts.inputs_not_read.is_empty(), "{:?}", facts.problems);
        assert!(OpenedModel::open(&made).unwrap().decoder().unwrap().tower.is_some(), "{}", form.case);
    }
}
