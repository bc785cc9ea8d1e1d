//! whisper.cpp's files (made as make_ggml.py says) against the original models.

use std::path::Path;

use super::super::ggml;
use super::converted::{numbers, rows};
use super::*;
use crate::mapped::ModelBytes;

fn file(kind: &str) -> PathBuf {
    folder("ggml").join(format!("{kind}.bin"))
}

fn opened(path: &Path) -> OpenedModel {
    OpenedModel::open(path).unwrap()
}

#[test]
fn halves_are_the_same_model() {
    let opened = opened(&file("f16"));
    let (of, source) = (files(&opened), open("turbo"));
    assert_eq!(
        (of.info.format, of.info.name.as_str(), of.info.quantization.as_str()),
        ("ggml", "f16", "F16")
    );
    assert_eq!(of.spec, files(&source).spec);
    assert_eq!(of.info.parameters, files(&source).info.parameters);
    for tier in Tier::available() {
        // The file does not store suppressed tokens.
        check_numbers(cpu(tier), &opened, "turbo", &format!("ggml, {tier:?}"));
    }
}

#[test]
fn blocks_lose_no_more_than_they_must() {
    let source = open("small");
    // A block has 32 steps between its extremes, or 255. Rounding loses half a step, and storing scale and minimum
    // loses an eleventh bit.
    for (kind, name, steps, most_off) in [("q5_1", "Q5_1", 31.0, 0.2), ("q8_0", "Q8_0", 254.0, 0.02)] {
        let opened = opened(&file(kind));
        let of = files(&opened);
        assert_eq!(of.info.quantization, name);
        let mut blocks = 0;
        for tensor in [
            "decoder.embed_tokens.weight",
            "encoder.conv1.weight",
            "decoder.layers.2.encoder_attn.v_proj.weight",
        ] {
            let (found, expected) = (of.tensor(tensor), files(&source).tensor(tensor));
            assert_eq!(found.shape, expected.shape, "{kind}, {tensor}");
            blocks += u32::from(found.dtype.block_weights() > 1);
            let (found, expected) = (numbers(found), numbers(expected));
            for (found, expected) in found.chunks(32).zip(expected.chunks(32)) {
                let most = expected.iter().fold(0.0f32, |most, value| most.max(value.abs()));
                for (found, expected) in found.iter().zip(expected) {
                    let step = most * (2.0 / steps * 0.5 + 2e-3);
                    assert!((found - expected).abs() <= step, "{kind}, {tensor}: {found} is not {expected}");
                }
            }
        }
        assert_eq!(blocks, 2, "{kind}: a convolution has no whole blocks, the others have");
        let golden = golden("small");
        let worst = difference(&rows(&opened, &golden), &golden.encoded);
        assert!(worst < most_off, "{kind}: rows differ by {worst}");
        println!("{kind}: rows differ by {worst}");
    }
}

#[test]
fn its_tokens_are_the_models_and_texts_become_them() {
    for (kind, case) in [("f16", "turbo"), ("q5_1", "small")] {
        let (opened, source) = (opened(&file(kind)), open(case));
        let [own, right] = [&opened, &source].map(|opened| Tokenizer::load(&files(opened).text).unwrap());
        let vocab = files(&opened).spec.vocab as u32;
        for token in 0..vocab {
            assert_eq!(own.token_bytes(token), right.token_bytes(token), "{kind}: token {token}");
            assert_eq!(own.is_special(token), right.is_special(token), "{kind}: token {token}");
        }
        for text in ["this is it - isn't it?", " ü→this", "it's th"] {
            assert_eq!(
                own.encode(text, false).unwrap(),
                right.encode(text, false).unwrap(),
                "{kind}: {text:?}"
            );
        }
        let (own, right) = (vocabulary(files(&opened)), vocabulary(files(&source)));
        let asked = |vocabulary: &Vocabulary| {
            vocabulary.ask(&options(), &|| false).map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(asked(&own), asked(&right));
    }
}

#[test]
fn a_folder_has_one_and_other_files_are_none() {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(file("f16"), dir.path().join("ggml-turbo.bin")).unwrap();
    fs::write(dir.path().join("ggml-other.bin"), b"no model").unwrap();
    let found = opened(dir.path());
    assert_eq!((files(&found).info.format, files(&found).info.name.as_str()), ("ggml", "ggml-turbo"));
    let facts = crate::inspect::inspect(&dir.path().join("ggml-turbo.bin")).facts;
    assert_eq!((facts.format, facts.architecture.as_deref()), ("ggml", Some("whisper")));
    assert!(facts.problems.is_empty() && facts.parameters > 80_000, "{facts:?}");
    // Two candidate files are ambiguous.
    fs::copy(file("q8_0"), dir.path().join("ggml-small.bin")).unwrap();
    assert!(OpenedModel::open(dir.path()).is_err());
}

#[test]
fn broken_files_are_refused_and_never_panic() {
    let whole = fs::read(file("q5_1")).unwrap();
    let read = |bytes: Vec<u8>| ggml::read("model.bin", &ModelBytes::from(bytes)).map(|_| ());
    read(whole.clone()).unwrap();
    for length in (0..whole.len()).step_by(4999) {
        // Even if the cut is at a tensor's end, later tensors are missing, and opening says so.
        let _ = read(whole[..length].to_vec());
    }
    let cut = read(whole[..whole.len() - 1].to_vec()).unwrap_err().to_string();
    assert!(cut.contains("the file ends before"), "{cut}");
    let (mut random, mut refused) = (Random::new(9), 0);
    for at in 0..400 {
        let mut bytes = whole.clone();
        // The header, whose numbers are sizes, is changed as often as the whole rest.
        let most = if at % 2 == 0 { 64 } else { bytes.len() };
        let at = (random.uniform() * most as f64) as usize;
        bytes[at] = (random.uniform() * 256.0) as u8;
        refused += u32::from(read(bytes).is_err());
    }
    assert!(refused > 40, "{refused}");
    // Changes each size in the header: nothing is allocated before its data is there.
    for size in 0..13 {
        for value in [0u32, 1, 1 << 20, u32::MAX] {
            let mut bytes = whole.clone();
            bytes[4 + 4 * size..][..4].copy_from_slice(&value.to_le_bytes());
            let _ = read(bytes);
        }
    }
    let mut old = whole.clone();
    old[44..48].copy_from_slice(&1009u32.to_le_bytes());
    let old = read(old).unwrap_err().to_string();
    assert!(old.contains("version 2 is read here"), "{old}");
}
