//! CTranslate2's files of a model (made by its own converter, as make_whisper.py says) against the model they were made of.

use tempfile::TempDir;

use super::super::ctranslate2;
use super::*;
use crate::mapped::ModelBytes;

/// What they were made of, in halves.
const SOURCE: &str = "turbo";

fn file(kind: &str) -> PathBuf {
    folder("ctranslate2").join(format!("{kind}.bin"))
}

/// A directory as the converter leaves one.
fn converted(kind: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(file(kind), dir.path().join("model.bin")).unwrap();
    fs::copy(folder("ctranslate2").join("config.json"), dir.path().join("config.json")).unwrap();
    fs::copy(folder(SOURCE).join("tokenizer.json"), dir.path().join("tokenizer.json")).unwrap();
    dir
}

#[test]
fn halves_are_the_same_model() {
    let dir = converted("float16");
    let opened = Opened::open(dir.path()).unwrap();
    assert_eq!(
        (files(&opened).info.format, files(&opened).spec.clone()),
        ("ctranslate2", files(&open(SOURCE)).spec.clone())
    );
    for tier in Tier::available() {
        check(cpu(tier), &opened, SOURCE, &format!("ctranslate2, {tier:?}"));
    }
}

#[test]
fn broken_files_are_refused_and_never_panic() {
    let whole = fs::read(file("int8")).unwrap();
    let read = |bytes: Vec<u8>| ctranslate2::read("model.bin", &ModelBytes::from(bytes));
    assert!(read(whole.clone()).is_ok());
    for length in (0..whole.len()).step_by(997) {
        assert!(read(whole[..length].to_vec()).is_err(), "{length} bytes of it");
    }
    let (mut random, mut refused) = (Random::new(9), 0);
    for _ in 0..1000 {
        let mut bytes = whole.clone();
        let at = (random.uniform() * bytes.len() as f64) as usize;
        bytes[at] = (random.uniform() * 256.0) as u8;
        refused += u32::from(read(bytes).is_err());
    }
    assert!(refused > 0);
    // Sides of shapes, where they stand: what has no numbers too.
    let names = ["encoder/conv2/weight", "decoder/embeddings/weight", "encoder/layer_0/ffn/linear_0/weight"];
    for name in names {
        let start = whole.windows(name.len()).position(|part| part == name.as_bytes()).unwrap();
        let rank = start + name.len() + 1;
        for side in 0..usize::from(whole[rank]) {
            for value in [0u32, 1, u32::MAX] {
                let mut bytes = whole.clone();
                bytes[rank + 1 + 4 * side..][..4].copy_from_slice(&value.to_le_bytes());
                assert!(read(bytes).is_err(), "{name}: side {side} is {value}");
            }
        }
        // With no bytes either.
        let mut bytes = whole.clone();
        let (shape_end, second) = (rank + 1 + 4 * usize::from(whole[rank]), rank + 5);
        let length = u32::from_le_bytes(whole[shape_end + 1..][..4].try_into().unwrap()) as usize;
        bytes[second..][..4].copy_from_slice(&0u32.to_le_bytes());
        bytes[shape_end + 1..][..4].copy_from_slice(&0u32.to_le_bytes());
        bytes.drain(shape_end + 5..shape_end + 5 + length);
        assert!(read(bytes).is_err(), "{name} without numbers");
    }
}
