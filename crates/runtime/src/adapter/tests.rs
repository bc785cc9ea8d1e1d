//! Tests of adapters that are opened, refused by name, and mutated.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

use super::*;
use crate::decoder::tests::data;
use crate::model_files::ModelFiles;

fn model(name: &str) -> ModelFiles {
    ModelFiles::open(&data("tiny").join(name)).unwrap()
}

fn file(case: &str, name: &str) -> Vec<u8> {
    fs::read(data("adapters").join(case).join(name)).unwrap()
}

fn folder(case: &str) -> PathBuf {
    data("adapters").join(case)
}

/// Files of an adapter, to be changed.
struct Files {
    config: Value,
    tensors: Vec<(String, Vec<usize>, Vec<u8>)>, // name, shape, bf16
}

impl Files {
    fn of(case: &str) -> Self {
        let weights = file(case, "adapter_model.safetensors");
        let tensors = crate::safetensors::parse("weights", &weights.into()).unwrap();
        let tensors = tensors.into_iter().map(|tensor| (tensor.name, tensor.shape, tensor.bytes.to_vec()));
        let config = serde_json::from_slice(&file(case, "adapter_config.json")).unwrap();
        Self { config, tensors: tensors.collect() }
    }

    fn with(mut self, key: &str, value: Value) -> Self {
        self.config[key] = value;
        self
    }

    fn renamed(mut self, from: &str, to: &str) -> Self {
        let changed = self.tensors.iter_mut().filter(|(name, ..)| name.contains(from));
        let count = changed.map(|(name, ..)| *name = name.replace(from, to)).count();
        assert!(count > 0, "no tensor has {from} in its name");
        self
    }

    fn open(&self, files: &ModelFiles) -> Result<Adapter, LoadError> {
        let views = self.tensors.iter().map(|(name, shape, bytes)| {
            (name.clone(), TensorView::new(Dtype::BF16, shape.clone(), bytes).unwrap())
        });
        let weights = safetensors::serialize(views.collect::<Vec<_>>(), None).unwrap();
        Adapter::from_peft(
            "adapter",
            self.config.to_string().as_bytes(),
            &weights.into(),
            &files.adapter_base(),
        )
    }
}

fn llama() -> Files {
    Files::of("llama3-all")
}

fn check_refused(files: &Files, words: &[&str]) {
    let error = files.open(&model("llama3")).unwrap_err().to_string();
    for word in words {
        assert!(error.contains(word), "{word:?} is not in {error:?}");
    }
}

#[test]
fn both_formats_hold_the_same_adapter() {
    for (case, model) in
        [("llama3-all", "llama3"), ("qwen3-all", "qwen3"), ("qwen3-moe-attention", "qwen3-moe")]
    {
        for base in [data("tiny").join(model), data("tiny").join(model).join("model.gguf")] {
            let files = ModelFiles::open(&base).unwrap();
            let base = files.adapter_base();
            let peft = Adapter::open(&folder(case), &base).unwrap();
            let gguf = Adapter::open(&folder(case).join("adapter.gguf"), &base).unwrap();
            assert_eq!((peft.format, gguf.format), ("peft", "gguf"));
            assert_eq!((peft.digest, peft.rank, peft.size_bytes), (gguf.digest, gguf.rank, gguf.size_bytes));
        }
    }
}

#[test]
fn names_may_say_whose_they_are_and_lack_the_class() {
    let spec = model("llama3");
    let plain = llama().open(&spec).unwrap().digest;
    let named =
        llama().renamed("lora_A.weight", "lora_A.default.weight").renamed("lora_B.weight", "lora_B.x.weight");
    assert_eq!(named.open(&spec).unwrap().digest, plain);
    let bare = llama().renamed("base_model.model.model.", "base_model.model.");
    assert_eq!(bare.open(&spec).unwrap().digest, plain);
    // Another factor makes another adapter, and so do other elements.
    assert_ne!(llama().with("lora_alpha", json!(17)).open(&spec).unwrap().digest, plain);
    assert_ne!(llama().with("use_rslora", json!(true)).open(&spec).unwrap().digest, plain);
    let mut files = llama();
    files.tensors[3].2[0] ^= 1;
    assert_ne!(files.open(&spec).unwrap().digest, plain);
}

#[test]
fn what_cannot_be_computed_is_refused_by_name() {
    for (key, value) in [
        ("layer_replication", json!([[0, 2]])),
        ("trainable_token_indices", json!([1])),
        ("target_parameters", json!(["mlp.experts.gate_up_proj"])),
        ("alora_invocation_tokens", json!([3])),
        ("use_qalora", json!(true)),
        ("of_next_year", json!(1)),
        ("bias", json!("some")),
        ("init_lora_weights", json!("pissa_niter_4")),
        ("peft_type", json!("LOHA")),
        ("lora_alpha", json!("much")),
        ("r", json!(0)),
        ("r", json!(1u64 << 40)),
        ("rank_pattern", json!({"(q|k)_proj": 4})),
        ("rank_pattern", json!({"q_proj": 0})),
        ("alpha_pattern", json!({"q_proj": "x"})),
        ("target_modules", json!([1])),
        ("layers_to_transform", json!("all")),
    ] {
        check_refused(&llama().with(key, value), &[key]);
    }
    check_refused(&llama().with("target_modules", json!(["q_proj"])), &["target_modules", "mlp.down_proj"]);
    check_refused(&llama().with("layers_to_transform", json!([1])), &["layers_to_transform", "layers.0."]);
    for (from, to, words) in [
        ("layers.0.self_attn.q_proj.lora_A", "layers.0.self_attn.q_proj.lora_C", &["lora_C"][..]),
        ("layers.0.self_attn.q_proj.lora_A", "layers.0.self_attn.x_proj.lora_A", &["x_proj", "no model"]),
        ("model.layers.0.self_attn.q_proj", "lm_head", &["lm_head", "expected ["]),
        (
            "model.layers.0.self_attn.q_proj",
            "model.embed_tokens",
            &["embed_tokens", "another number of tokens"],
        ),
        (
            "model.layers.0.self_attn.q_proj",
            "model.vision.q_proj",
            &["vision.q_proj", "the text model has no"],
        ),
        (
            "self_attn.q_proj.lora_A.weight",
            "self_attn.q_proj.lora_magnitude_vector",
            &["lora_magnitude_vector", "does not say use_dora"],
        ),
        ("q_proj.lora_B.weight", "q_proj.lora_B.bias", &["the other matrix", "q_proj.lora_A"]),
        ("layers.1.mlp.up_proj", "layers.2.mlp.up_proj", &["layers.2.mlp.up_proj"]),
        ("layers.1.mlp.up_proj.lora_A.weight", "layers.1.mlp.gate_proj.lora_A.default.weight", &["twice"]),
    ] {
        let files = llama().renamed(from, to).with("target_modules", json!("all-linear"));
        let words: Vec<&str> = words.iter().copied().filter(|word| *word != "no model").collect();
        check_refused(&files, &words);
    }
    let mut halved = llama();
    halved.tensors.retain(|(name, ..)| !name.contains("layers.1.self_attn.o_proj.lora_B"));
    check_refused(&halved, &["layers.1.self_attn.o_proj.lora_A"]);
    let mut empty = llama();
    empty.tensors.clear();
    check_refused(&empty, &["any pair"]);
    // Experts and routers.
    let moe = model("qwen3-moe");
    for module in ["mlp.experts.3.down_proj", "mlp.gate"] {
        let files = Files::of("qwen3-moe-attention").renamed("self_attn.o_proj", module);
        let error = files.with("target_modules", json!("all-linear")).open(&moe).unwrap_err().to_string();
        assert!(error.contains(module) && error.contains("experts take no adapters"), "{error}");
    }
}

#[test]
fn an_adapter_of_another_model_is_refused_by_tensor_and_both_shapes() {
    let mut files = llama();
    let tensor =
        files.tensors.iter_mut().find(|(name, ..)| name.contains("layers.1.mlp.down_proj.lora_A")).unwrap();
    tensor.1 = vec![16, 48];
    check_refused(&files, &["layers.1.mlp.down_proj.lora_A", "[16, 96]", "[16, 48]"]);
    let error = llama().open(&model("llama-linear")).unwrap_err().to_string();
    assert!(
        error.contains("self_attn.") && error.contains("expected [") && error.contains("file has ["),
        "{error}"
    );
    // Its rank must equal the configured one.
    check_refused(
        &llama().with("r", json!(4)),
        &["lora_A", "expected [4, ", "file has [8, ", "rank_pattern"],
    );
    let bytes: ModelBytes = file("llama3-all", "adapter.gguf").into();
    let error =
        Adapter::from_gguf("adapter.gguf", &bytes, &model("qwen3").adapter_base()).unwrap_err().to_string();
    assert!(error.contains("general.architecture") && error.contains("qwen3"), "{error}");
    let llama = model("llama3");
    let error =
        Adapter::open(&data("tiny/llama3/model.gguf"), &llama.adapter_base()).unwrap_err().to_string();
    assert!(error.contains("general.type"), "{error}");
    let error = Adapter::open(&data("tiny/llama3"), &llama.adapter_base()).unwrap_err().to_string();
    assert!(error.contains("adapter_config.json is missing"), "{error}");
}

/// splitmix64.
fn mixed(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Bytes with some of the first `header` changed, or with the end cut off.
fn mutated(bytes: &[u8], header: usize, random: &mut u64) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if mixed(random).is_multiple_of(8) {
        bytes.truncate(mixed(random) as usize % bytes.len());
        return bytes;
    }
    for _ in 0..1 + mixed(random) % 4 {
        let at = mixed(random) as usize % header.min(bytes.len());
        bytes[at] = match mixed(random) % 3 {
            0 => mixed(random) as u8,
            1 => bytes[at] ^ (1 << (mixed(random) % 8)),
            _ => b"0123456789abAB.\"{}[],:-"[mixed(random) as usize % 23],
        };
    }
    bytes
}

#[test]
fn a_mutated_file_is_refused_or_read_and_nothing_panics() {
    let (llama, mut random) = (model("llama3"), 7);
    let base = llama.adapter_base();
    let config = file("llama3-all", "adapter_config.json");
    let weights = file("llama3-all", "adapter_model.safetensors");
    let gguf = file("llama3-all", "adapter.gguf");
    let header = 8 + u64::from_le_bytes(*weights.first_chunk::<8>().unwrap()) as usize;
    let mut refused = 0;
    for round in 0..1200 {
        let opened = catch_unwind(AssertUnwindSafe(|| match round % 3 {
            0 => {
                let config = mutated(&config, config.len(), &mut random);
                Adapter::from_peft("adapter", &config, &weights.clone().into(), &base)
            }
            1 => {
                let weights = mutated(&weights, header, &mut random);
                Adapter::from_peft("adapter", &config, &weights.into(), &base)
            }
            _ => Adapter::from_gguf("adapter", &mutated(&gguf, 3600, &mut random).into(), &base),
        }));
        refused += usize::from(opened.unwrap_or_else(|_| panic!("round {round} panicked")).is_err());
    }
    assert!((400..1200).contains(&refused), "{refused} of 1200 are refused");
}
