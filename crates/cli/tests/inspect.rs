//! `inspect` as a person meets it: of what runs, of what does not, and of files that make no sense; and flags that go over what
//! files say.

// In the functions that tests share, too, a step that fails fails the test.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/hanzo-demo/hanzo-demo-Q8_0.gguf");
const ENCODERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/encoders");

fn run(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hanzo-engine"));
    command.env("HANZO_MODELS_DIR", dir).env("HANZO_ENGINE_ADDRESS", "none").stdin(Stdio::null());
    command.args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[track_caller]
fn json(dir: &Path, args: &[&str]) -> Value {
    let output = run(dir, &[&["inspect"], args, &["--json"]].concat());
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_model_that_runs() {
    let dir = tempfile::tempdir().unwrap();
    let report = json(dir.path(), &[DEMO, "--context", "1024"]);
    assert_eq!((&report["runs"], &report["why"]), (&Value::Bool(true), &Value::Null), "{report}");
    assert_eq!((&report["format"], &report["architecture"]), (&"gguf".into(), &"qwen3".into()));
    assert_eq!(report["parameters"], 5_771_264);
    let network = &report["network"];
    assert_eq!((&network["kind"], &network["vocab"]), (&"decoder".into(), &4096.into()), "{network}");
    let bytes = |value: &Value| value.as_u64().unwrap();
    let stored: u64 =
        report["tensors"].as_array().unwrap().iter().map(|of_type| bytes(&of_type["bytes"])).sum();
    assert!(stored > 0 && stored < bytes(&report["size_bytes"]), "{report}");
    let tokenizer = &report["tokenizer"];
    assert_eq!((&tokenizer["pre"], &tokenizer["tokens"]), (&"qwen2".into(), &4096.into()));
    assert!(tokenizer["eos"].as_array().unwrap().iter().any(|token| token["text"] == "<|im_end|>"));
    assert_eq!(report["template"]["tool_format"], "hermes");
    // Twice the context has twice the cache; half the bytes a number have about half.
    let memory = &report["memory"];
    let parts = ["weights_bytes", "kv_bytes", "scratch_bytes"].map(|part| bytes(&memory[part]));
    assert_eq!(parts.iter().sum::<u64>(), bytes(&memory["total_bytes"]));
    let half = json(dir.path(), &[DEMO, "--context", "512"]);
    assert_eq!(bytes(&half["memory"]["kv_bytes"]) * 2, parts[1]);
    let bytes_each = json(dir.path(), &[DEMO, "--context", "1024", "--kv-type", "q8_0"]);
    assert!(bytes(&bytes_each["memory"]["kv_bytes"]) * 10 < parts[1] * 6, "{bytes_each}");
    assert!(bytes(&report["load"]["kv_bytes"]) > parts[1]);
    // The one in the program, and for people.
    assert_eq!(json(dir.path(), &["hanzo-demo", "--context", "1024"])["memory"], *memory);
    let shown = text(&run(dir.path(), &["inspect", DEMO]).stdout);
    for expected in ["qwen3", "Q8_0", "pre-tokenizer qwen2", "tool calls as hermes", "runs          yes"] {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
}

#[test]
fn directories_of_encoders() {
    let dir = tempfile::tempdir().unwrap();
    for (model, kind) in [("modernbert", "encoder"), ("qwen3-embedding", "decoder")] {
        let report = json(dir.path(), &[&format!("{ENCODERS}/{model}")]);
        assert_eq!(report["runs"], true, "{report}");
        assert_eq!((&report["network"]["kind"], &report["format"]), (&kind.into(), &"safetensors".into()));
        assert!(report["tokenizer"]["tokens"].as_u64().unwrap() > 0, "{report}");
    }
}

/// The demo with every `from` replaced by `to`.
fn changed(dir: &Path, name: &str, from: &[u8], to: &[u8]) -> String {
    assert_eq!(from.len(), to.len());
    let mut bytes = std::fs::read(DEMO).unwrap();
    let places: Vec<usize> =
        bytes.windows(from.len()).enumerate().filter(|(_, part)| *part == from).map(|(at, _)| at).collect();
    assert!(!places.is_empty());
    for at in places {
        bytes[at..at + to.len()].copy_from_slice(to);
    }
    let path = dir.join(name);
    std::fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_model_that_does_not_run_is_told_of_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let report = json(dir.path(), &[&changed(dir.path(), "family.gguf", b"qwen3", b"qwenx")]);
    let why = report["why"].as_str().unwrap();
    assert!(report["runs"] == false && why.contains("qwenx") && why.contains("family.gguf"), "{report}");
    assert_eq!(
        (&report["architecture"], &report["network"]["layers"]),
        (&"qwenx".into(), &json(dir.path(), &[DEMO])["network"]["layers"])
    );
    assert_eq!((&report["parameters"], &report["tokenizer"]["tokens"]), (&5_771_264.into(), &4096.into()));
    assert_eq!((&report["template"]["tool_format"], &report["memory"]), (&"hermes".into(), &Value::Null));
    let shown = text(&run(dir.path(), &["inspect", &format!("{}/family.gguf", dir.path().display())]).stdout);
    assert!(shown.contains("runs          no") && shown.contains("is not supported"), "{shown}");
    // A pre-tokenizer that is not known: everything but the tokenizer is told.
    let report = json(dir.path(), &[&changed(dir.path(), "pre.gguf", b"qwen2", b"qwen9")]);
    assert!(report["why"].as_str().unwrap().contains("tokenizer.ggml.pre"), "{report}");
    assert_eq!(
        (&report["network"]["kind"], &report["tokenizer"]["pre"]),
        (&"decoder".into(), &"qwen9".into())
    );
    assert_eq!(report["tokenizer"]["tokens"], Value::Null);
    // More than this machine has.
    let report = json(dir.path(), &["hanzo-demo"]);
    assert_eq!(report["runs"], true, "{report}");
}

#[test]
fn files_that_make_no_sense_are_told_of_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let demo = std::fs::read(DEMO).unwrap();
    let began = Instant::now();
    let files = [
        (&b"not a model"[..], "does not begin"),
        (&demo[..10], ""),
        (&demo[..100_000], ""),
        (&demo[..demo.len() - 1], "truncated"),
    ];
    for (number, (bytes, why)) in files.into_iter().enumerate() {
        let path = dir.path().join(format!("{number}.gguf"));
        std::fs::write(&path, bytes).unwrap();
        let report = json(dir.path(), &[path.to_str().unwrap()]);
        assert!(report["runs"] == false && report["why"].as_str().unwrap().contains(why), "{report}");
    }
    // The header of the last is whole.
    let report = json(dir.path(), &[dir.path().join("3.gguf").to_str().unwrap()]);
    assert_eq!((&report["parameters"], &report["tokenizer"]["tokens"]), (&5_771_264.into(), &4096.into()));
    let empty = dir.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let report = json(dir.path(), &[empty.to_str().unwrap()]);
    assert!(report["why"].as_str().unwrap().contains("config.json"), "{report}");
    let none = run(dir.path(), &["inspect", "./none.gguf"]);
    assert!(none.status.code() == Some(1) && text(&none.stderr).contains("none.gguf"));
    assert!(began.elapsed() < Duration::from_secs(60));
}

#[test]
fn flags_go_over_what_the_files_say() {
    let dir = tempfile::tempdir().unwrap();
    let template = dir.path().join("mine.jinja");
    std::fs::write(&template, "{{ raise_exception('a template of my own') }}").unwrap();
    let template = template.to_str().unwrap();
    let ask = |flags: &[&str]| {
        let output = run(dir.path(), &[&["run", "hanzo-demo", "hi", "-n", "1"], flags].concat());
        (output.status.code(), text(&output.stderr))
    };
    let (code, said) = ask(&["--chat-template", template]);
    assert!(code == Some(1) && said.contains("a template of my own"), "{said}");
    let (code, said) = ask(&["--override-kv", "qwen3.context_length=int:4"]);
    assert!(code == Some(1) && said.contains("4 tokens"), "{said}");
    for (flags, says) in [
        (["--chat-template", "/no/such.jinja"], "--chat-template: /no/such.jinja"),
        (["--override-kv", "qwen3.context_length=4"], "--override-kv: "),
        (["--rope-scaling", "ntk"], "--rope-scaling: "),
        (["--yarn-orig-ctx", "0"], "--yarn-orig-ctx: "),
    ] {
        let (code, said) = ask(&flags);
        assert!(code == Some(2) && said.contains(says), "{says}: {said}");
    }
    let (code, said) = ask(&["--override-kv", "tokenizer.ggml.contxt=int:4"]);
    assert!(code == Some(1) && said.contains("nothing reads this key"), "{said}");
    // A file whose tokenizer is not known runs with the word for one that is.
    let unknown = changed(dir.path(), "pre.gguf", b"qwen2", b"qwen9");
    let with = ["run", &unknown, "hi", "-n", "1", "--raw", "--override-kv", "tokenizer.ggml.pre=str:qwen2"];
    assert!(run(dir.path(), &with).status.success());
}
