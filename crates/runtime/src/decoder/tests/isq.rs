//! Matrices quantised as they are packed, against the same model stored so.

use super::*;
use crate::gguf::{TensorEntry, Value, Writer};
use crate::network::{Isq, IsqRule};
use crate::opened::{Network, OpenedModel};
use crate::overrides::Overrides;
use hanzo_engine_ops::{AnyBackend, quant};

fn open(path: &Path, isq: &str) -> (ModelFiles, Option<String>) {
    let isq = if isq.is_empty() { None } else { Some(isq.parse().unwrap()) };
    let opened = OpenedModel::open_with(path, &Overrides { isq, ..Overrides::default() }).unwrap();
    let summary = opened.quantised();
    let Network::Decoder(files) = opened.network else { panic!("a decoder") };
    (files, summary)
}

/// The model with its matrices stored in the types that `dtype` gives by name and own type.
fn stored(path: &Path, dtype: impl Fn(&str, DType) -> DType) -> ModelFiles {
    let (mut files, _) = open(path, "");
    for (_, tensor) in files.tensors.all_mut().filter(|(_, tensor)| tensor.shape.len() == 2) {
        let wanted = dtype(&tensor.name, tensor.dtype);
        if wanted != tensor.dtype {
            let mut values = vec![0.0; tensor.elements()];
            quant::dequantize_row(tensor.dtype, &tensor.bytes, &mut values);
            let mut bytes = vec![0; wanted.bytes_of(values.len()).unwrap()];
            quant::fit_rows(wanted, &values, None, &mut bytes);
            (tensor.dtype, tensor.bytes) = (wanted, bytes.into());
        }
    }
    files
}

fn cpu(files: &ModelFiles) -> Runner {
    let tier = Tier::available().last().unwrap();
    Runner::new(AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(2)), tier)), files)
}

/// The same bits, tokens and memory.
fn check_same(quantised: &ModelFiles, stored: &ModelFiles, what: &str) {
    let tokens: Vec<u32> = (3..20).collect();
    let (mut one, mut other) = (cpu(quantised), cpu(stored));
    assert_eq!(one.prefill(&tokens), other.prefill(&tokens), "{what}");
    let greedy = |runner: &mut Runner| runner.greedy(&tokens, 7, 4, |_, _| false);
    assert_eq!(greedy(&mut one), greedy(&mut other), "{what}");
    let plan = |files| Decoder::plan(&one.backend, files).weights_bytes;
    assert_eq!(plan(quantised), plan(stored), "{what}: the plan knows what it will take");
}

#[test]
fn quantised_as_it_loads_is_the_model_stored_so() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/hanzo-demo/hanzo-demo-Q8_0.gguf");
    let full = Decoder::plan(&cpu(&open(&path, "").0).backend, &open(&path, "").0).weights_bytes;
    for (name, matrices, embedding) in [
        ("Q2_K", DType::Q2_K, DType::Q6_K),
        ("q3k", DType::Q3_K, DType::Q6_K),
        ("Q4_K", DType::Q4_K, DType::Q6_K),
        ("Q6_K", DType::Q6_K, DType::Q6_K),
        ("MXFP4", DType::MXFP4, DType::Q6_K),
        ("AFQ4", DType::AFQ4_G64, DType::AFQ6_G64),
        ("FP8", DType::FP8, DType::FP8),
    ] {
        let (files, summary) = open(&path, name);
        assert_eq!(files.info.quantization, format!("{matrices} (of Q8_0)"));
        assert!(summary.unwrap().contains(matrices.label()), "{name}");
        let twin = stored(&path, |name, _| if name == "token_embd.weight" { embedding } else { matrices });
        check_same(&files, &twin, name);
        let plan = Decoder::plan(&cpu(&files).backend, &files).weights_bytes;
        assert!(plan < full, "{name}: {plan} of {full}");
    }
    // By bits, what is quantised stays; and nothing becomes larger.
    for name in ["4", "8", "Q8_0", "AFQ8"] {
        let (files, summary) = open(&path, name);
        assert_eq!((files.info.quantization.as_str(), summary), ("Q8_0", None), "{name}");
    }
}

#[test]
fn hqq_takes_what_affine_codes_take_and_misses_less() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/hanzo-demo/hanzo-demo-Q8_0.gguf");
    let tokens: Vec<u32> = (3..40).collect();
    let logits = |files: &ModelFiles| cpu(files).prefill(&tokens);
    let (full, _) = open(&path, "");
    let exact = logits(&full);
    let ((files, summary), (plain, _)) = (open(&path, "HQQ4"), open(&path, "AFQ4"));
    assert_eq!(files.info.quantization, "HQQ4 (of Q8_0)");
    let summary = summary.unwrap();
    assert!(summary.contains(" HQQ4") && summary.contains("1 HQQ6"), "{summary}");
    let plan = |files: &ModelFiles| Decoder::plan(&cpu(files).backend, files).weights_bytes;
    assert_eq!(plan(&files), plan(&plain));
    let missed = |files: &ModelFiles| -> f32 {
        logits(files).iter().zip(&exact).map(|(one, other)| (one - other).powi(2)).sum()
    };
    let (missed, by_affine) = (missed(&files), missed(&plain));
    assert!(missed < by_affine, "{missed}, AFQ4: {by_affine}");
}

#[test]
fn floats_become_every_type_that_rows_have_room_for() {
    for case in ["qwen3", "qwen3-moe"] {
        let path = data("tiny").join(case);
        for dtype in Isq::known() {
            let (files, _) = open(&path, dtype.label());
            let types: BTreeMap<_, _> = {
                let parts = files.spec.weights().into_iter().map(|(weight, _)| weight);
                parts
                    .map(|weight| (files.tensors.get(weight).name.clone(), files.tensors.packed_type(weight)))
                    .collect()
            };
            assert!(types.values().any(|dtype| dtype.block_weights() > 1), "{case} {dtype}");
            for (name, found) in &types {
                let router = name.ends_with("mlp.gate.weight");
                assert!(!(router || name.contains("norm")) || found.block_weights() == 1, "{name}: {found}");
            }
            let twin = stored(&path, |name, _| types[name]);
            check_same(&files, &twin, &format!("{case} {dtype}"));
        }
    }
    // Rows of 64 are no block of 256.
    let (files, summary) = open(&data("tiny").join("qwen3"), "4");
    let query = crate::spec::Part::Layer(0, crate::spec::LayerPart::Query).weight();
    assert_eq!(files.tensors.packed_type(query), DType::Q5_0);
    assert_eq!(files.tensors.packed_type(crate::spec::Part::TokenEmbedding.weight()), DType::Q8_0);
    assert!(summary.unwrap().starts_with("matrices quantised: "));
}

/// 8-bit floats are floats: bits ask for fewer of them, and 8 bits stay as they are.
#[test]
fn small_floats_are_quantised_as_floats_are() {
    let path = data("formats").join("fp8-tensor");
    let query = crate::spec::Part::Layer(0, crate::spec::LayerPart::Query).weight();
    for (isq, dtype) in [
        ("", DType::FP8_G32),
        ("4", DType::Q5_0),
        ("8", DType::FP8_G32),
        ("Q8_0", DType::Q8_0),
        ("FP8", DType::FP8_G32),
    ] {
        let (files, _) = open(&path, isq);
        assert_eq!(files.tensors.packed_type(query), dtype, "{isq}");
        let types: BTreeMap<_, _> = {
            let parts = files.spec.weights().into_iter().map(|(weight, _)| weight);
            parts
                .map(|weight| (files.tensors.get(weight).name.clone(), files.tensors.packed_type(weight)))
                .collect()
        };
        check_same(&files, &stored(&path, |name, _| types[name]), isq);
    }
}

#[test]
fn a_topology_says_more_than_the_type_and_its_last_rule_counts() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/hanzo-demo/hanzo-demo-Q8_0.gguf");
    let rule = |layers, tensors: Option<&str>, isq: &str| IsqRule {
        layers,
        tensors: tensors.map(str::to_owned),
        isq: if isq == "stored" { None } else { Some(isq.parse().unwrap()) },
    };
    let open = |isq: Option<&str>, topology: Vec<IsqRule>| {
        let isq = isq.map(|isq| isq.parse().unwrap());
        let opened = OpenedModel::open_with(&path, &Overrides { isq, topology, ..Overrides::default() })?;
        let Network::Decoder(files) = opened.network else { panic!("a decoder") };
        Ok::<_, LoadError>(files)
    };
    let rules = vec![
        rule(Some((0, 1)), None, "Q6_K"),
        rule(None, Some("*ffn_down*"), "Q5_K"),
        rule(Some((1, 1)), Some("*.attn_v.*"), "stored"),
    ];
    let of_rules = |name: &str| match name {
        "blk.1.attn_v.weight" => Some(DType::Q8_0),
        _ if name.contains("ffn_down") => Some(DType::Q5_K),
        _ if name.starts_with("blk.0.") || name.starts_with("blk.1.") => Some(DType::Q6_K),
        _ => None,
    };
    let files = open(Some("Q4_K"), rules.clone()).unwrap();
    assert_eq!(files.info.quantization, "Q4_K and a topology (of Q8_0)");
    let other = |name: &str| if name == "token_embd.weight" { DType::Q6_K } else { DType::Q4_K };
    check_same(&files, &stored(&path, |name, _| of_rules(name).unwrap_or_else(|| other(name))), "both");
    let files = open(None, rules).unwrap();
    check_same(&files, &stored(&path, |name, dtype| of_rules(name).unwrap_or(dtype)), "a topology alone");
    for (wrong, says) in [
        (rule(None, Some("ffn_down"), "Q4_K"), "rule 1: tensors ffn_down Q4_K"),
        (rule(Some((99, 100)), None, "Q4_K"), "layers 99-100"),
        (rule(None, Some("*_norm.weight"), "Q4_K"), "no matrix"),
    ] {
        let error = open(None, vec![wrong]).unwrap_err().to_string();
        assert!(error.contains(says) && error.contains("topology"), "{error}");
    }
}

#[test]
fn numbers_that_no_type_has_are_an_error() {
    let (mut files, _) = open(&data("tiny").join("qwen3"), "Q8_0");
    let (_, tensor) = files.tensors.all_mut().find(|(_, tensor)| tensor.name.contains("q_proj")).unwrap();
    let mut bytes = tensor.bytes.to_vec();
    let width = bytes.len() / tensor.elements();
    bytes[..width].fill(0x7f);
    bytes[width - 1] = 0x7f;
    bytes[width - 2] = 0xff;
    tensor.bytes = bytes.into();
    let error = Decoder::load(&AnyBackend::new(ReferenceBackend::new()), &files, &mut |_| ())
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("q_proj") && error.contains("not finite"), "{error}");
}

/// An importance matrix of the names that a model's files have, or that GGUF's files have for them.
fn importance(path: &Path, tensors: &[(&str, &[usize])]) -> BTreeMap<String, Vec<f32>> {
    let mut known = BTreeMap::new();
    let planned: Vec<TensorEntry> = tensors
        .iter()
        .flat_map(|(name, shape)| {
            let of = |what: &str, shape: &[usize]| TensorEntry {
                name: format!("{name}.{what}"),
                dtype: DType::F32,
                shape: shape.to_vec(),
            };
            [of("in_sum2", shape), of("counts", &[shape[0], 1])]
        })
        .collect();
    let entries: [(&str, Value); 1] = [("general.type", Value::String("imatrix".into()))];
    let mut writer =
        Writer::create(path, entries.iter().map(|(key, value)| (*key, value)), &planned).unwrap();
    for (seed, (name, shape)) in tensors.iter().enumerate() {
        let count = shape.iter().product();
        let sums: Vec<f32> = (0..count).map(|i: usize| ((i * 37 + seed * 11) % 29 + 1) as f32).collect();
        writer.write(&sums.iter().flat_map(|sum| sum.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
        writer.write(&4f32.to_le_bytes().repeat(shape[0])).unwrap();
        for (at, columns) in sums.chunks_exact(shape[1]).enumerate() {
            let name = if shape[0] == 1 { (*name).to_owned() } else { format!("{name}[{at}]") };
            known.insert(name, columns.iter().map(|sum| sum / 4.0).collect());
        }
    }
    writer.finish().unwrap();
    known
}

#[test]
fn errors_of_columns_count_as_an_importance_matrix_says() {
    let room = tempfile::tempdir().unwrap();
    let file = room.path().join("imatrix.gguf");
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/hanzo-demo/hanzo-demo-Q8_0.gguf");
    let (of_demo, _) = open(&demo, "");
    let hidden = of_demo.spec.hidden;
    let inner = of_demo.spec.layers[0].mlp.inner_width();
    let mixture = data("tiny").join("qwen3-moe");
    let (of_mixture, _) = open(&mixture, "");
    let experts = of_mixture.spec.layers[0].mlp.experts().unwrap();
    let (count, ffn, width) = (experts.count, experts.ffn, of_mixture.spec.hidden);
    type Case<'a> = (&'a Path, &'a str, Vec<(&'a str, Vec<usize>)>, fn(&str) -> Option<String>);
    let cases: [Case<'_>; 2] = [
        (
            &demo,
            "Q4_K",
            vec![("blk.0.attn_q.weight", vec![1, hidden]), ("blk.1.ffn_down.weight", vec![1, inner])],
            |name| Some(name.to_owned()),
        ),
        // A folder's experts by the names that GGUF's files have for the stacks of them; up's are gate's.
        (
            &mixture,
            "Q4_0",
            vec![
                ("blk.0.ffn_gate_exps.weight", vec![count, width]),
                ("blk.0.ffn_down_exps.weight", vec![count, ffn]),
            ],
            |name| {
                let name = name.strip_prefix("model.layers.0.mlp.experts.")?;
                let (expert, which) = name.split_once('.')?;
                let stack = if which.starts_with("down") { "down" } else { "gate" };
                Some(format!("blk.0.ffn_{stack}_exps.weight[{expert}]"))
            },
        ),
    ];
    for (path, isq, tensors, name_of) in cases {
        let tensors: Vec<(&str, &[usize])> =
            tensors.iter().map(|(name, shape)| (*name, &shape[..])).collect();
        let known = importance(&file, &tensors);
        let with = |imatrix: Option<PathBuf>| {
            let isq = Some(isq.parse().unwrap());
            let opened = OpenedModel::open_with(path, &Overrides { isq, imatrix, ..Overrides::default() })?;
            let Network::Decoder(files) = opened.network else { panic!("a decoder") };
            Ok::<_, LoadError>(files)
        };
        let files = with(Some(file.clone())).unwrap();
        let packed: BTreeMap<_, _> = files
            .spec
            .weights()
            .into_iter()
            .map(|(weight, _)| (weight, files.tensors.packed_type(weight)))
            .collect();
        let (mut twin, _) = open(path, "");
        let mut weighed = 0;
        for (weight, tensor) in twin.tensors.all_mut().filter(|(_, tensor)| tensor.shape.len() == 2) {
            let wanted = packed[weight];
            if wanted == tensor.dtype {
                continue;
            }
            let mut values = vec![0.0; tensor.elements()];
            quant::dequantize_row(tensor.dtype, &tensor.bytes.read(), &mut values);
            let mut bytes = vec![0; wanted.bytes_of(values.len()).unwrap()];
            let columns = name_of(&tensor.name).and_then(|name| known.get(&name));
            weighed += usize::from(columns.is_some());
            quant::fit_rows(wanted, &values, columns.map(|columns| &columns[..]), &mut bytes);
            (tensor.dtype, tensor.bytes) = (wanted, bytes.into());
        }
        assert!(weighed >= 2, "{}: {weighed} matrices", path.display());
        check_same(&files, &twin, isq);
        let tokens: Vec<u32> = (3..20).collect();
        assert_ne!(cpu(&files).prefill(&tokens), cpu(&with(None).unwrap()).prefill(&tokens), "{isq}");
        // Of another width, and of no matrix that is there.
        for (name, columns, says) in [
            ("blk.0.attn_q.weight", hidden + 1, "another model's"),
            ("blk.99.attn_q.weight", 8, "none of the matrices"),
        ] {
            importance(&file, &[(name, &[1, columns])]);
            let error = with(Some(file.clone())).unwrap_err().to_string();
            assert!(error.contains(says) && error.contains("imatrix.gguf"), "{error}");
        }
    }
    let lone = Overrides { imatrix: Some(file), ..Overrides::default() };
    assert!(lone.check().unwrap_err().1.contains("isq"));
}
