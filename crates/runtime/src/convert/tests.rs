//! Tests that folders are converted as by llama.cpp's converter (`golden/make.py`), key by key and byte by byte, and
//! that anything GGUF cannot express is refused by name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::*;
use crate::gguf::{Array, Value};
use crate::tokenizer::{self, Tokenizer};

const CASES: &[(&str, &str)] = &[
    ("tiny/llama3", include_str!("golden/llama3.txt")),
    ("tiny/llama-linear", include_str!("golden/llama-linear.txt")),
    ("tiny/mistral", include_str!("golden/mistral.txt")),
    ("tiny/mixtral", include_str!("golden/mixtral.txt")),
    ("tiny/qwen2-yarn", include_str!("golden/qwen2-yarn.txt")),
    ("tiny/qwen3", include_str!("golden/qwen3.txt")),
    ("tiny/qwen3-moe", include_str!("golden/qwen3-moe.txt")),
    ("dense/gemma", include_str!("golden/gemma.txt")),
    ("dense/gemma2", include_str!("golden/gemma2.txt")),
    ("dense/gemma3", include_str!("golden/gemma3.txt")),
];

/// Keys of the converter that are written elsewhere, or that are names: `Plan` writes the first two.
const NOT_COMPARED: &[&str] = &[
    "general.file_type",
    "general.quantization_version",
    "general.name",
    "general.size_label",
    // Only SentencePiece's texts get a leading space, and the converter also sets it for byte pairs.
    "tokenizer.ggml.add_space_prefix",
    // It is 107 for every Gemma 1, whatever its files say.
    "tokenizer.ggml.eot_token_id",
];

/// Keys written in addition to the converter's, which leaves them to a reader's defaults or drops them.
const BEYOND: &[&str] = &[
    "attention.key_length",
    "attention.value_length",
    "attention.sliding_window",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "vocab_size",
    "add_bos_token",
    "add_eos_token",
    "unknown_token_id",
    "name",
];

fn data(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join("tests/data").join(case)
}

fn sha(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn said(value: &Value) -> String {
    match value {
        Value::U32(n) => format!("u32 {n}"),
        Value::I32(n) => format!("i32 {n}"),
        Value::F32(x) => format!("f32 {:08x}", x.to_bits()),
        Value::Bool(truth) => format!("bool {truth}"),
        Value::String(text) => format!("text {}", sha(text.as_bytes())),
        Value::Array(Array::String(texts)) => format!("array-text {}", sha(texts.join("\0").as_bytes())),
        Value::Array(Array::I32(n)) => {
            format!("array-i32 {}", sha(&n.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>()))
        }
        Value::Array(Array::F32(n)) => {
            format!("array-f32 {}", sha(&n.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>()))
        }
        other => panic!("no key has {other:?}"),
    }
}

#[test]
fn folders_become_what_the_converter_makes_of_them() {
    for (case, golden) in CASES {
        let made = gguf_of(&data(case)).unwrap_or_else(|error| panic!("{case}: {error}"));
        let mut keys: BTreeMap<&str, &Value> = made.metadata.iter().collect();
        let mut tensors: BTreeMap<&str, &crate::tensor::Tensor> =
            made.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        for line in golden.lines() {
            let (kind, rest) = line.split_once(' ').unwrap();
            let (name, expected) = rest.split_once(' ').unwrap();
            match kind {
                "key" if NOT_COMPARED.contains(&name) => drop(keys.remove(name)),
                "key" => {
                    let found = keys.remove(name).unwrap_or_else(|| panic!("{case}: no key {name}"));
                    assert_eq!(said(found), expected, "{case}: {name}");
                }
                "near" => {
                    let tensor = tensors.remove(name).unwrap_or_else(|| panic!("{case}: no tensor {name}"));
                    let found = tensor.to_f32().unwrap();
                    let expected: Vec<f32> = expected.split(' ').map(|n| n.parse().unwrap()).collect();
                    assert_eq!(found.len(), expected.len(), "{case}: {name}");
                    let off = found.iter().zip(&expected).map(|(a, b)| (a - b).abs() / b).fold(0.0, f32::max);
                    assert!(off < 1e-6, "{case}: {name} is off by {off}");
                }
                _ => {
                    let tensor = tensors.remove(name).unwrap_or_else(|| panic!("{case}: no tensor {name}"));
                    let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
                    let (shape, digest) = (shape.join("x"), sha(&tensor.bytes.read()));
                    assert_eq!(format!("{} {shape} {digest}", tensor.dtype), expected, "{case}: {name}");
                }
            }
        }
        assert!(tensors.is_empty(), "{case}: {:?}", tensors.keys());
        keys.retain(|key, _| !BEYOND.iter().any(|known| key.ends_with(&format!(".{known}"))));
        // The converter omits an empty list of merges.
        keys.retain(|_, value| !matches!(value, Value::Array(Array::String(texts)) if texts.is_empty()));
        assert!(keys.is_empty(), "{case}: {keys:?}");
    }
}

/// Checks that rows made in pieces equal the rows of the whole.
#[test]
fn tensors_read_the_same_in_pieces() {
    for case in ["tiny/llama3", "tiny/mixtral"] {
        for tensor in gguf_of(&data(case)).unwrap().tensors {
            let whole = tensor.bytes.read().into_owned();
            let rows: usize = tensor.shape[..tensor.shape.len() - 1].iter().product();
            let row_bytes = whole.len() / rows.max(1);
            for rows_at_once in [1, 7, 50] {
                let step = rows_at_once * row_bytes;
                let firsts = (0..whole.len()).step_by(step);
                let parts = firsts.map(|at| tensor.bytes.slice(at..(at + step).min(whole.len())).unwrap());
                let joined: Vec<u8> = parts.flat_map(|part| part.read().into_owned()).collect();
                assert!(joined == whole, "{case}: {} by {rows_at_once}", tensor.name);
            }
        }
    }
}

#[test]
fn what_gguf_cannot_say_is_refused_by_name() {
    for (case, part) in [
        // A window in some layers, which llama.cpp's Qwen 3 does not have.
        ("tiny/qwen3-windows", "sliding_window"),
        // Layers with and without experts.
        ("tiny/qwen3-moe-mixed", "layer 0"),
        ("dense/phi3", "model_type = phi3"),
        ("dense/olmo2", "llama, mistral, mixtral, qwen2"),
    ] {
        let error = gguf_of(&data(case)).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains(case.split('/').next().unwrap()), "{case}: {error}");
    }
}

/// Checks that scores derived from the ranks of merges split texts as SentencePiece does.
#[test]
fn merges_become_scores() {
    let golden: serde_json::Value = serde_json::from_str(include_str!("golden/pieces.json")).unwrap();
    let json = golden["tokenizer"].to_string();
    let mut keys = tokenizer::of_json("t", json.as_bytes(), None, 603).unwrap();
    assert_eq!(keys["tokenizer.ggml.model"], Value::String("llama".into()));
    assert_eq!(keys["tokenizer.ggml.add_space_prefix"], Value::Bool(true));
    let Value::Array(Array::I32(types)) = &keys["tokenizer.ggml.token_type"] else { panic!() };
    assert_eq!(types[..4], [2, 3, 3, 6], "unknown, begin, end, bytes");
    assert_eq!(types[600..], [5; 3], "rows of no token");
    keys.insert("tokenizer.ggml.add_bos_token".into(), Value::Bool(false));
    let metadata = Arc::new(Metadata::new("t", keys));
    let made = Tokenizer::load(&crate::load::gguf::text_files(&metadata).unwrap()).unwrap();
    for cut in golden["cut"].as_array().unwrap() {
        let text = cut[0].as_str().unwrap();
        let expected: Vec<u32> =
            cut[1].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        assert_eq!(made.encode_plain(text, false).unwrap(), expected, "{text:?}");
    }
}

/// Checks the converter's names of published tokenizers' splitting patterns.
#[test]
fn pre_tokenizers_have_the_names_of_gguf() {
    let split = |pattern: &str| {
        let split = serde_json::json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
        let bytes = serde_json::json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
        serde_json::json!({"type": "Sequence", "pretokenizers": [split, bytes]})
    };
    let llama3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let qwen2 = llama3.replace("{1,3}", "");
    let tekken = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let plain = |prefix: bool| serde_json::json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": true});
    let named = |pre: serde_json::Value, nfc: bool, ignore_merges: bool| {
        let file = serde_json::json!({
            "added_tokens": [], "normalizer": nfc.then(|| serde_json::json!({"type": "NFC"})), "pre_tokenizer": pre,
            "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "ignore_merges": ignore_merges},
        });
        tokenizer::of_json("t", file.to_string().as_bytes(), None, 1)
    };
    for (pre, nfc, ignore_merges, name) in [
        (split(llama3), false, true, "llama-bpe"),
        (split(llama3), false, false, "dbrx"),
        (split(&qwen2), true, false, "qwen2"),
        (split(tekken), false, true, "tekken"),
        (plain(false), false, false, "gpt-2"),
    ] {
        let keys = named(pre, nfc, ignore_merges).unwrap();
        assert_eq!(keys["tokenizer.ggml.pre"], Value::String(name.into()));
    }
    let error = named(split(r"\w+|\W"), false, false).unwrap_err().to_string();
    assert!(error.contains("pre_tokenizer") && error.contains("no name"), "{error}");
    let error = named(plain(true), false, false).unwrap_err().to_string();
    assert!(error.contains("pre_tokenizer"), "a space in front: {error}");
}
