//! The memory of a load that quantises: never more than the quantised weights and one layer as floats. The load runs in a
//! process of its own, which is this test again with [`FOLDER`] set, so that nothing else is measured.
#![cfg(target_os = "linux")]

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::{env, fs};

use hanzo_engine_kernels::cpu::{CpuBackend, ThreadPool, Tier};
use hanzo_engine_ops::AnyBackend;
use hanzo_engine_runtime::decoder::Decoder;
use hanzo_engine_runtime::{Network, OpenedModel, Overrides};

const FOLDER: &str = "HANZO_ENGINE_ISQ_FOLDER";
const NAME: &str = "a_load_that_quantises_holds_one_layer_besides";
const LAYERS: u64 = 5;
const HIDDEN: u64 = 1024;
const FFN: u64 = 4096;
/// Numbers of a layer's matrices.
const OF_LAYER: u64 = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * HIDDEN / 4 + 3 * HIDDEN * FFN;

/// A model of zeros: files have no blocks on the disk for those.
fn write_model(folder: &Path) {
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/tiny/llama3");
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        fs::copy(tiny.join(name), folder.join(name)).expect("a file or figure of the test's own");
    }
    let config = fs::read_to_string(tiny.join("config.json")).expect("a file or figure of the test's own");
    let mut config: serde_json::Value =
        serde_json::from_str(&config).expect("a file or figure of the test's own");
    let vocab = config["vocab_size"].as_u64().expect("a file or figure of the test's own");
    for (key, value) in [
        ("hidden_size", HIDDEN),
        ("intermediate_size", FFN),
        ("num_hidden_layers", LAYERS),
        ("num_attention_heads", 16),
        ("num_key_value_heads", 4),
        ("head_dim", 64),
    ] {
        config[key] = value.into();
    }
    config["tie_word_embeddings"] = true.into();
    fs::write(folder.join("config.json"), config.to_string()).expect("a file or figure of the test's own");
    let mut tensors =
        vec![("model.embed_tokens".to_owned(), vec![vocab, HIDDEN]), ("model.norm".into(), vec![HIDDEN])];
    for layer in 0..LAYERS {
        for (name, shape) in [
            ("input_layernorm", vec![HIDDEN]),
            ("post_attention_layernorm", vec![HIDDEN]),
            ("self_attn.q_proj", vec![HIDDEN, HIDDEN]),
            ("self_attn.k_proj", vec![HIDDEN / 4, HIDDEN]),
            ("self_attn.v_proj", vec![HIDDEN / 4, HIDDEN]),
            ("self_attn.o_proj", vec![HIDDEN, HIDDEN]),
            ("mlp.gate_proj", vec![FFN, HIDDEN]),
            ("mlp.up_proj", vec![FFN, HIDDEN]),
            ("mlp.down_proj", vec![HIDDEN, FFN]),
        ] {
            tensors.push((format!("model.layers.{layer}.{name}"), shape));
        }
    }
    let (mut header, mut end) = (String::new(), 0);
    for (name, shape) in &tensors {
        let first = end;
        end += 2 * shape.iter().product::<u64>();
        let comma = if header.is_empty() { "" } else { "," };
        write!(
            header,
            "{comma}\"{name}.weight\":{{\"dtype\":\"F16\",\"shape\":{shape:?},\"data_offsets\":[{first},{end}]}}"
        )
        .expect("a file or figure of the test's own");
    }
    let header = format!("{{{header}}}");
    let header = format!("{header:<width$}", width = header.len().next_multiple_of(8));
    let path = folder.join("model.safetensors");
    fs::write(&path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat())
        .expect("a file or figure of the test's own");
    let file = fs::OpenOptions::new().write(true).open(&path).expect("a file or figure of the test's own");
    file.set_len(8 + header.len() as u64 + end).expect("a file or figure of the test's own");
    assert!(end > 150_000_000, "{end}");
}

/// The most memory that was ever resident in this process, in bytes.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("a file or figure of the test's own");
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .expect("a file or figure of the test's own");
    peak.trim_end_matches("kB").trim().parse::<u64>().expect("a file or figure of the test's own") << 10
}

/// Prints what the plan says and what the load took.
fn load(folder: &str) {
    let overrides = Overrides {
        isq: Some("Q4_K".parse().expect("a file or figure of the test's own")),
        ..Overrides::default()
    };
    let opened =
        OpenedModel::open_with(Path::new(folder), &overrides).expect("a file or figure of the test's own");
    let Network::Decoder(files) = opened.network else { panic!("a decoder") };
    let tier = Tier::available().last().expect("a file or figure of the test's own");
    let backend = AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(2)), tier));
    let before = peak();
    let plan = Decoder::plan(&backend, &files).weights_bytes;
    let _decoder = Decoder::load(&backend, &files, &mut |_| ()).expect("a file or figure of the test's own");
    println!("took {plan} {}", peak() - before);
}

#[test]
fn a_load_that_quantises_holds_one_layer_besides() {
    if let Ok(folder) = env::var(FOLDER) {
        return load(&folder);
    }
    let folder = tempfile::tempdir().expect("a file or figure of the test's own");
    write_model(folder.path());
    let mut child = Command::new(env::current_exe().expect("a file or figure of the test's own"));
    let child = child
        .args(["--exact", NAME, "--nocapture"])
        .env(FOLDER, folder.path())
        .output()
        .expect("a file or figure of the test's own");
    let said = String::from_utf8_lossy(&child.stdout);
    let numbers = said
        .split("took ")
        .nth(1)
        .unwrap_or_else(|| panic!("{said}{}", String::from_utf8_lossy(&child.stderr)));
    let mut numbers = numbers
        .split_whitespace()
        .map(|number| number.parse::<u64>().expect("a file or figure of the test's own"));
    let (plan, took) = (
        numbers.next().expect("a file or figure of the test's own"),
        numbers.next().expect("a file or figure of the test's own"),
    );
    println!("{plan} bytes planned, {took} taken at most");
    // 4.5 bits a weight, of which kernels may keep a little more.
    assert!(plan < LAYERS * OF_LAYER * 6 / 8, "{plan}");
    assert!(took <= plan + 4 * OF_LAYER, "{took} bytes for {plan} of weights");
}
