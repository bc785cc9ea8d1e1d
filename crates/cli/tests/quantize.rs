//! `quantize` and `imatrix` as a person meets them: of files and of folders, refused by name, and never half a file under the
//! name that was asked for.

// In the functions that tests share, too, a step that fails fails the test.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/hanzo-demo/hanzo-demo-Q8_0.gguf");
const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data");

/// No step takes so long on any machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hanzo-engine"));
    command.env("HANZO_MODELS_DIR", "/nowhere").env("HANZO_ENGINE_ADDRESS", "none").stdin(Stdio::null());
    command.args(args);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[track_caller]
fn ok(args: &[&str]) -> String {
    let Output { status, stdout, stderr } = program(args).output().unwrap();
    assert!(status.success(), "{args:?}: {}", text(&stderr));
    text(&stdout)
}

/// What it says when it refuses.
#[track_caller]
fn fails(code: i32, args: &[&str]) -> String {
    let Output { status, stdout, stderr } = program(args).output().unwrap();
    assert_eq!((status.code(), text(&stdout)), (Some(code), String::new()), "{args:?}: {}", text(&stderr));
    text(&stderr)
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// A GGUF file of one F16 matrix of so many rows of 4096 zeros, which takes no room on the disk.
fn sparse(path: &Path, rows: u64) {
    let mut header = b"GGUF".to_vec();
    header.extend(3u32.to_le_bytes());
    header.extend([1u64.to_le_bytes(), 1u64.to_le_bytes()].concat());
    put_text(&mut header, "general.architecture");
    header.extend(8u32.to_le_bytes());
    put_text(&mut header, "llama");
    put_text(&mut header, "blk.0.ffn_up.weight");
    header.extend(2u32.to_le_bytes());
    header.extend([4096u64.to_le_bytes(), rows.to_le_bytes()].concat());
    header.extend(1u32.to_le_bytes());
    header.extend(0u64.to_le_bytes());
    header.resize(header.len().next_multiple_of(32), 0);
    let mut file = File::create(path).unwrap();
    file.write_all(&header).unwrap();
    file.set_len(header.len() as u64 + rows * 8192).unwrap();
}

fn types(path: &str) -> Vec<String> {
    let report: Value = serde_json::from_str(&ok(&["inspect", path, "--json"])).unwrap();
    assert_eq!((&report["runs"], &report["why"]), (&Value::Bool(true), &Value::Null), "{report}");
    let types = report["tensors"].as_array().unwrap().iter();
    types.map(|of_type| of_type["dtype"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn files_and_folders_become_files_that_run() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let floats = at("floats.gguf");
    ok(&["quantize", "hanzo-demo", &floats, "--to", "bf16", "--allow-requantize"]);
    let few = at("few.gguf");
    let said = ok(&["quantize", &floats, &few, "--to", "Q4_0"]);
    assert!(said.contains("few.gguf (Q4_0)") && said.contains("bits per weight"), "{said}");
    assert!(types(&few).contains(&"Q4_0".to_owned()));
    // A folder, plain and prequantised.
    for (folder, to, expected) in [
        ("tiny/qwen3", "Q8_0", "Q8_0"),
        ("tiny/llama3", "F16", "F16"),
        ("tiny/mixtral", "Q8_0", "Q8_0"),
        ("dense/gemma3", "BF16", "BF16"),
    ] {
        let made = at("folder.gguf");
        let report = ok(&["quantize", &format!("{DATA}/{folder}"), &made, "--to", to, "--force", "--json"]);
        let report: Value = serde_json::from_str(&report).unwrap();
        assert_eq!(report["file"], made.as_str(), "{report}");
        assert!(types(&made).contains(&expected.to_owned()), "{folder}");
    }
    assert_eq!(names(dir.path()), ["few.gguf", "floats.gguf", "folder.gguf"]);
}

#[test]
fn what_cannot_be_made_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let out = path("out.gguf");
    let said = fails(2, &["quantize", DEMO, &out, "--to", "Q4_K_X"]);
    assert!(said.contains("Q4_K_X") && said.contains("Q4_K_M") && said.contains("IQ4_XS"), "{said}");
    let said = fails(1, &["quantize", DEMO, &out, "--to", "Q4_K_M"]);
    assert!(said.contains("token_embd") && said.contains("requantize"), "{said}");
    let said = fails(1, &["quantize", &format!("{DATA}/dense/phi3"), &out, "--to", "Q8_0"]);
    assert!(said.contains("phi3") && said.contains("qwen3_moe"), "{said}");
    let said = fails(1, &["quantize", &format!("{DATA}/dense"), &out, "--to", "Q8_0"]);
    assert!(said.contains("config.json"), "{said}");
    let said = fails(1, &["quantize", &path("none.gguf"), &out, "--to", "Q8_0"]);
    assert!(said.contains("none.gguf"), "{said}");
    // What is there, over itself by another path too.
    let own = path("own.gguf");
    fs::copy(DEMO, &own).unwrap();
    let before = fs::read(&own).unwrap();
    let said = fails(2, &["quantize", &own, &own, "--to", "F16", "--allow-requantize"]);
    assert!(said.contains("--force"), "{said}");
    std::os::unix::fs::symlink(&own, path("other.gguf")).unwrap();
    for name in ["own.gguf", "other.gguf"] {
        let said = fails(1, &["quantize", &own, &path(name), "--to", "F16", "--allow-requantize", "--force"]);
        assert!(said.contains(name) && said.contains("made of"), "{said}");
    }
    assert!(fs::read(&own).unwrap() == before);
    assert_eq!(names(dir.path()), ["other.gguf", "own.gguf"]);
}

#[test]
fn folders_become_folders_in_mlx_layout() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (source, made) = (format!("{DATA}/tiny/qwen3"), path("made"));
    let said = ok(&["quantize", &source, &made, "--to", "afq4_g32"]);
    assert!(said.contains("made (AFQ4_G32)"), "{said}");
    assert!(types(&made).contains(&"U32".to_owned()));
    let files = [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    assert_eq!(names(Path::new(&made)), files);
    let said = fails(1, &["quantize", &source, &made, "--to", "AFQ8", "--force"]);
    assert!(said.contains("there already"), "{said}");
    let said = fails(1, &["quantize", DEMO, &path("other"), "--to", "AFQ4"]);
    assert!(said.contains("no folder"), "{said}");
    for flag in
        [&["--pure"][..], &["--imatrix", "x"], &["--output-type", "Q6_K"], &["--tensor-type", "q_proj=Q8_0"]]
    {
        let said = fails(2, &[&["quantize", &source, &path("other"), "--to", "AFQ4"], flag].concat());
        assert!(said.contains(flag[0]), "{said}");
    }
    assert_eq!(names(dir.path()), ["made"]);
}

#[test]
fn interrupted_it_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (source, made) = (dir.path().join("in.gguf"), dir.path().join("out.gguf"));
    sparse(&source, 1 << 20);
    fs::write(&made, "what was there").unwrap();
    let (source, made) = (source.to_str().unwrap(), made.to_str().unwrap());
    let mut child = program(&["quantize", source, made, "--to", "Q2_K", "--force", "--threads", "1"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let part = dir.path().join("out.gguf.part");
    let began = Instant::now();
    while !part.exists() {
        assert!(began.elapsed() < PATIENCE && child.try_wait().unwrap().is_none(), "it ended too early");
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(names(dir.path()), ["in.gguf", "out.gguf"]);
    assert_eq!(fs::read(made).unwrap(), b"what was there");
}

/// A disk that takes no more: files may have no more than a megabyte.
#[test]
fn without_room_it_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let made = dir.path().join("out.gguf");
    let script = r#"trap '' XFSZ; ulimit -f 1024; exec "$0" "$@""#;
    let mut command = Command::new("bash");
    command.args([
        "-c",
        script,
        env!("CARGO_BIN_EXE_hanzo-engine"),
        "quantize",
        DEMO,
        made.to_str().unwrap(),
    ]);
    command.args(["--to", "F16", "--allow-requantize"]).env("HANZO_ENGINE_ADDRESS", "none");
    let Output { status, stderr, .. } = command.output().unwrap();
    let said = text(&stderr);
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("out.gguf") && said.contains("too large"), "{said}");
    assert!(names(dir.path()).is_empty());
}

#[test]
fn on_a_terminal_it_says_how_far_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (source, made) = (dir.path().join("in.gguf"), dir.path().join("out.gguf"));
    sparse(&source, 1 << 14);
    let owner = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&owner).unwrap();
    unlockpt(&owner).unwrap();
    let name = ptsname(&owner, Vec::new()).unwrap();
    let user = rustix::fs::open(name.as_c_str(), OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
    let mut child = program(&["quantize", source.to_str().unwrap(), made.to_str().unwrap(), "--to", "Q8_0"])
        .env("TERM", "xterm")
        .stderr(File::from(user))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut owner, mut shown) = (File::from(owner), Vec::new());
    let mut bytes = [0; 4096];
    // Once nobody has the terminal open, Linux says so with an error.
    while let Ok(read) = owner.read(&mut bytes) {
        if read == 0 {
            break;
        }
        shown.extend_from_slice(&bytes[..read]);
    }
    assert!(child.wait().unwrap().success());
    let (shown, mut said) = (String::from_utf8_lossy(&shown).into_owned(), String::new());
    child.stdout.unwrap().read_to_string(&mut said).unwrap();
    assert!(shown.contains("quantising: ") && shown.contains("/s"), "{shown:?}");
    assert!(shown.contains("\u{1b}[2K") || shown.contains("\r"), "the line goes: {shown:?}");
    assert!(said.starts_with("made ") && !said.contains('\u{1b}'), "{said:?}");
}

#[test]
fn an_importance_matrix_is_made_and_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| -> PathBuf { dir.path().join(name) };
    let (words, matrix, out) = (path("words.txt"), path("m.imatrix"), path("out.gguf"));
    let [words, matrix, out] = [&words, &matrix, &out].map(|path| path.to_str().unwrap());
    fs::write(words, "The engine reads some text and writes another. ".repeat(60)).unwrap();
    let said = ok(&["imatrix", DEMO, "-f", words, "-o", matrix, "--chunk-tokens", "64", "--chunks", "2"]);
    assert!(said.contains("2 chunks of 64 tokens"), "{said}");
    ok(&["quantize", DEMO, out, "--to", "Q4_0", "--allow-requantize", "--imatrix", matrix]);
    types(out);
    // In the format of before.
    let before = path("m.dat").to_str().unwrap().to_owned();
    let short = ["--chunk-tokens", "64", "--chunks", "2", "--output-format", "dat"];
    ok(&[&["imatrix", DEMO, "-f", words, "-o", &before][..], &short].concat());
    assert_ne!(fs::read(&before).unwrap()[..4], *b"GGUF");
    ok(&["quantize", DEMO, out, "--to", "Q4_0", "--allow-requantize", "--imatrix", &before, "--force"]);
    let said = fails(2, &["imatrix", DEMO, "-f", words, "-o", matrix]);
    assert!(said.contains("--force"), "{said}");
    let short = path("short.txt");
    fs::write(&short, "Few words.").unwrap();
    let [short, none] = [&short, &path("none.imatrix")].map(|path| path.to_str().unwrap().to_owned());
    let said = fails(1, &["imatrix", DEMO, "-f", &short, "-o", &none]);
    assert!(said.contains("tokens") && said.contains("give more text"), "{said}");
    let said = fails(1, &["quantize", DEMO, &none, "--to", "Q4_0", "--allow-requantize", "--imatrix", words]);
    assert!(said.contains("words.txt"), "{said}");
    assert!(!Path::new(&none).exists());
}
