//! Tests of tokenizers of folders without a `tokenizer.json`, against the libraries that made them
//! (`testdata/make_tokenizer_files.py`), and of files that make no sense.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::error::LoadError;
use crate::load::{TextFiles, huggingface};
use crate::spec::Config;
use crate::tokenizer::Tokenizer;

fn golden() -> Value {
    serde_json::from_str(include_str!("../../testdata/tokenizer_files.json")).unwrap()
}

fn base64(text: &str) -> Vec<u8> {
    let digit = |c: char| match c {
        'A'..='Z' => c as u32 - 65,
        'a'..='z' => c as u32 - 71,
        '0'..='9' => c as u32 + 4,
        '+' => 62,
        _ => 63,
    };
    let digits: Vec<u32> = text.trim_end_matches('=').chars().map(digit).collect();
    let bits = digits.chunks(4).flat_map(|four| {
        let all = four.iter().fold(0, |all, digit| all << 6 | digit) << (6 * (4 - four.len()));
        all.to_be_bytes()[1..four.len()].to_vec()
    });
    bits.collect()
}

fn text_files(folder: &Path) -> Result<TextFiles, LoadError> {
    let config = Config::new("config.json", serde_json::Map::new());
    huggingface::text_files(folder, &config, None, None)
}

fn load(folder: &Path) -> Result<Tokenizer, LoadError> {
    Tokenizer::load(&text_files(folder)?)
}

/// A folder with a case's files.
fn folder(case: &Value) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in case["files"].as_object().unwrap() {
        fs::write(folder.path().join(name), base64(bytes.as_str().unwrap())).unwrap();
    }
    if case["config"].is_object() {
        fs::write(folder.path().join("tokenizer_config.json"), case["config"].to_string()).unwrap();
    }
    folder
}

#[test]
fn tokens_are_those_of_the_libraries() {
    let golden = golden();
    let texts: Vec<&str> = golden["texts"].as_array().unwrap().iter().flat_map(Value::as_str).collect();
    for (name, case) in golden["cases"].as_object().unwrap() {
        let folder = folder(case);
        let tokenizer = load(folder.path()).unwrap_or_else(|error| panic!("{name}: {error}"));
        for (text, ids) in texts.iter().zip(case["ids"].as_array().unwrap()) {
            let ids: Vec<u32> = serde_json::from_value(ids.clone()).unwrap();
            assert_eq!(tokenizer.encode(text, false).unwrap(), ids, "{name}: {text:?}");
            // Without normalisation the text comes back; NFC is Qwen's first step.
            if !matches!(name.as_str(), "normalized" | "unigram normalized" | "qwen") {
                assert_eq!(tokenizer.decode(&ids, false), *text, "{name}");
            }
        }
    }
}

#[test]
fn what_stands_beside_a_vocabulary_is_read() {
    let golden = golden();
    let case = &golden["cases"]["llama"];
    let dir = folder(case);
    let tokenizer = load(dir.path()).unwrap();
    let end = tokenizer.token_id("<|im_end|>").unwrap();
    assert_eq!((end, tokenizer.vocab_size(), tokenizer.is_special(end)), (600, 601, true));
    let plain = tokenizer.encode("a", false).unwrap();
    assert_eq!(tokenizer.encode("a<|im_end|>", true).unwrap(), [&[1], &plain[..], &[end]].concat());
    // In a separate file.
    fs::write(dir.path().join("added_tokens.json"), json!({"<|im_start|>": 605, "<x>": 606}).to_string())
        .unwrap();
    let tokenizer = load(dir.path()).unwrap();
    assert!(tokenizer.is_special(605) && !tokenizer.is_special(606) && tokenizer.vocab_size() == 607);
    assert_eq!(tokenizer.encode("<x>", false).unwrap(), [606]);
    fs::write(dir.path().join("added_tokens.json"), json!({"<y>": 600}).to_string()).unwrap();
    assert!(load(dir.path()).unwrap_err().to_string().contains("token 600 is \"<y>\" and \"<|im_end|>\""));
    // Those of Mistral and Qwen.
    let tekken = load(folder(&golden["cases"]["tekken"]).path()).unwrap();
    assert_eq!(tekken.encode("<s>[INST]", false).unwrap(), [1, 3]);
    assert_eq!(tekken.encode("", true).unwrap(), [1]);
    let qwen = load(folder(&golden["cases"]["qwen"]).path()).unwrap();
    let start = qwen.token_id("<|im_start|>").unwrap();
    assert_eq!((start, qwen.token_id("<|extra_204|>")), (401, Some(400 + 3 + 204)));
    assert!(qwen.is_special(start));
}

#[test]
fn what_makes_no_sense_is_refused_by_file() {
    let golden = golden();
    let refused = |case: &str, file: &str, bytes: &[u8], says: &str| {
        let folder = folder(&golden["cases"][case]);
        fs::write(folder.path().join(file), bytes).unwrap();
        let error = load(folder.path()).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(says) && error.contains(folder.path().to_str().unwrap()), "{says}: {error}");
    };
    refused("llama", "tokenizer.model", b"", "it has no pieces");
    refused("llama", "tokenizer.model", &[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f], "past its end");
    refused("llama", "tokenizer.model", &[0x0a, 0x03, 0x0a, 0x01, 0xff], "not UTF-8");
    refused("llama", "tokenizer.model", &[0xff; 12], "longer than 64 bits");
    // Word model, with one piece.
    refused("llama", "tokenizer.model", &[0x0a, 3, 0x0a, 1, b'a', 0x12, 2, 0x18, 3], "model_type = 3");
    let encoder = folder(&golden["cases"]["unigram"]);
    fs::write(
        encoder.path().join("tokenizer_config.json"),
        json!({"tokenizer_class": "CamembertTokenizer"}).to_string(),
    )
    .unwrap();
    let error = load(encoder.path()).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("tokenizer_class = CamembertTokenizer"), "{error}");
    refused("qwen", "qwen.tiktoken", b"IQ== 1\n", "expected rank 0");
    refused("qwen", "qwen.tiktoken", b"IQ== 0\nIQ== 1\n", "tokens 0 and 1 are the same");
    refused("qwen", "qwen.tiktoken", b"IQ== 0\n!! 1\n", "line 2");
    refused("qwen", "tokenizer_config.json", br#"{"tokenizer_class": "Other"}"#, "tokenizer_class = Other");
    refused(
        "gpt2",
        "tokenizer_config.json",
        br#"{"tokenizer_class": "Other"}"#,
        "GPT2Tokenizer, Qwen2Tokenizer",
    );
    refused("gpt2", "vocab.json", br#"{"a": 4000000000}"#, "vocab.json");
    refused("gpt2", "merges.txt", b"a b c\nxyz\n", "merges");
    refused("tekken", "tekken.json", b"{}", "tekken.json");
    let empty = tempfile::tempdir().unwrap();
    let error = text_files(empty.path()).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("tokenizer.model") && error.contains("merges.txt"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// A damaged file is refused or read, and never ends the process.
    #[test]
    fn damaged_files_are_refused_or_read(
        which in 0usize..6,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<Option<prop::sample::Index>>(),
    ) {
        let golden = golden();
        let cases: Vec<&Value> = golden["cases"].as_object().unwrap().values().collect();
        let folder = folder(cases[which]);
        let name = cases[which]["files"].as_object().unwrap().keys().next().unwrap();
        let path = folder.path().join(name);
        let mut bytes = fs::read(&path).unwrap();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        fs::write(&path, bytes).unwrap();
        if let Ok(tokenizer) = load(folder.path()) {
            let _ = tokenizer.encode("Hello  wörld 12", true);
        }
    }
}
