//! CTranslate2's files of a model (made by its own converter, see make_whisper.py) against the original model.

use tempfile::TempDir;

use hanzo_engine_ops::{DType, quant};

use super::super::ctranslate2;
use super::*;
use crate::mapped::ModelBytes;
use crate::tensor::Tensor;

/// Original model, in halves.
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
    let opened = OpenedModel::open(dir.path()).unwrap();
    assert_eq!(
        (files(&opened).info.format, files(&opened).spec.clone()),
        ("ctranslate2", files(&open(SOURCE)).spec.clone())
    );
    for tier in Tier::available() {
        check(cpu(tier), &opened, SOURCE, &format!("ctranslate2, {tier:?}"));
    }
}

/// A tensor's numbers, whatever its type.
pub(super) fn numbers(tensor: &Tensor) -> Vec<f32> {
    if tensor.dtype.block_weights() == 1 {
        return tensor.to_f32().unwrap();
    }
    let mut numbers = vec![0.0; tensor.elements()];
    quant::dequantize_row(tensor.dtype, &tensor.bytes.read(), &mut numbers);
    numbers
}

/// Encoder rows of a model for the golden sound.
pub(super) fn rows(opened: &OpenedModel, golden: &Golden) -> Vec<f32> {
    let of = files(opened);
    let mut model = Whisper::load(cpu(Tier::Portable), of, WeightType::Stored, 1, &mut |_| ()).unwrap();
    model.hear(0, window(&of.spec, &sound(golden.samples)), &[]);
    while model.listen(1).unwrap().is_none() {}
    model.encoded().chunks_exact(of.spec.hidden).step_by(9).flatten().copied().collect()
}

#[test]
fn other_types_lose_no_more_than_they_must() {
    let source = open(SOURCE);
    for (kind, dtype, most_off) in [("int8", DType::Q8_0, 0.03), ("bfloat16", DType::BF16, 0.03)] {
        let dir = converted(kind);
        let opened = OpenedModel::open(dir.path()).unwrap();
        assert_eq!(files(&opened).tensor("decoder.layers.0.fc1.weight").dtype, dtype);
        let (_, names) = ctranslate2::open(&file(kind)).unwrap();
        let mut lost = 0;
        for name in names.keys() {
            let (found, expected) = (files(&opened).tensor(name), files(&source).tensor(name));
            assert_eq!(found.shape, expected.shape, "{kind}, {name}");
            let cols = expected.elements() / expected.shape[0];
            let (found, expected) = (numbers(found), numbers(expected));
            for (found, expected) in found.chunks(cols).zip(expected.chunks(cols)) {
                let most = expected.iter().fold(0.0f32, |most, value| most.max(value.abs()));
                // Tolerance: half a step of 1/127 of a row's maximum, plus the rounding of the step to a half; or
                // eight bits for each number.
                let step = if dtype == DType::Q8_0 { most / 127.0 * 0.57 + 1e-6 } else { most / 256.0 };
                for (found, expected) in found.iter().zip(expected) {
                    assert!((found - expected).abs() <= step, "{kind}, {name}: {found} is not {expected}");
                    lost += u32::from(found != expected);
                }
            }
        }
        assert!(lost > 1000, "{kind} is no other type than the model's own");
        let golden = golden(SOURCE);
        let worst = difference(&rows(&opened, &golden), &golden.encoded);
        assert!(worst < most_off, "{kind}: rows differ by {worst}");
        println!("{kind}: rows differ by {worst}");
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
    // Changes the dimensions of tensors in the file, also to values without elements.
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
