//! Tests of files written by torch.save (tests/data/pytorch/make.py), of refused files, and of bytes that are no such
//! file.

use std::fs;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use hanzo_engine_ops::DType;
use proptest::prelude::*;
use serde_json::Value as Json;

use super::*;

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/pytorch").join(name)
}

fn error_of(bytes: Vec<u8>) -> String {
    parse("weights.bin", &bytes.into()).map(|tensors| tensors.len()).unwrap_err().to_string()
}

/// Elements of a tensor.
fn numbers(tensor: &Tensor) -> Vec<f64> {
    macro_rules! of {
        ($bytes:literal, $read:expr) => {
            tensor.bytes.as_chunks::<$bytes>().0.iter().map(|&bytes| $read(bytes)).collect()
        };
    }
    match tensor.dtype {
        DType::F32 => of!(4, |bytes| f64::from(f32::from_le_bytes(bytes))),
        DType::F16 => of!(2, |bytes| f16::from_le_bytes(bytes).to_f64()),
        DType::BF16 => of!(2, |bytes| bf16::from_le_bytes(bytes).to_f64()),
        DType::F64 => of!(8, f64::from_le_bytes),
        DType::I64 => of!(8, |bytes| i64::from_le_bytes(bytes) as f64),
        DType::I8 => of!(1, |bytes| f64::from(i8::from_le_bytes(bytes))),
        other => panic!("{other}"),
    }
}

#[test]
fn files_of_either_age_hold_what_was_saved() {
    let values: Json = serde_json::from_slice(&fs::read(path("values.json")).unwrap()).unwrap();
    let values = values.as_object().unwrap();
    for file in ["zip.bin", "legacy.bin"] {
        let tensors = open(&path(file)).unwrap();
        let found: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(found, values.keys().collect::<Vec<_>>(), "{file}");
        for tensor in &tensors {
            let what = format!("{file}, {}", tensor.name);
            let expected = &values[&tensor.name];
            let list = |key: &str| -> Vec<f64> {
                expected[key].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
            };
            let shape: Vec<f64> = tensor.shape.iter().map(|&size| size as f64).collect();
            assert_eq!(shape, list("shape"), "{what}");
            assert_eq!(numbers(tensor), list("values"), "{what}");
        }
        let types = |name: &str| tensors.iter().find(|tensor| tensor.name == name).unwrap().dtype;
        assert_eq!(
            (types("half"), types("brain"), types("ids")),
            (DType::F16, DType::BF16, DType::I64),
            "{file}"
        );
    }
}

#[test]
fn numbers_that_lie_apart_are_gathered_and_masks_left_out() {
    let whole: Vec<f64> = (0..24).map(|i| f64::from(i) / 8.0 - 1.0).collect();
    for file in ["bool.bin", "bool-legacy.bin", "transposed.bin"] {
        let tensors = open(&path(file)).unwrap();
        let [weight] = &tensors[..] else { panic!("{file}: {} tensors", tensors.len()) };
        if file == "transposed.bin" {
            assert_eq!(weight.shape, [6, 4]);
            let turned: Vec<f64> = (0..24).map(|i| whole[i % 4 * 6 + i / 4]).collect();
            assert_eq!(numbers(weight), turned);
        } else {
            assert_eq!((&weight.shape[..], numbers(weight)), (&[4, 6][..], whole.clone()), "{file}");
        }
    }
}

#[test]
fn what_is_not_plain_weights_is_named() {
    for (file, expected) in [
        ("called.bin", "getcwd"),
        ("list.bin", "a dictionary of tensors by their names"),
        ("values.json", "neither a zip archive"),
    ] {
        let error = open(&path(file)).unwrap_err().to_string();
        assert!(error.contains(expected), "{file}: {error}");
    }
    assert!(open(&path("absent.bin")).unwrap_err().to_string().contains("absent.bin"));
}

#[test]
fn files_cut_short_are_refused() {
    for file in ["zip.bin", "legacy.bin"] {
        let whole = fs::read(path(file)).unwrap();
        for length in 0..whole.len() {
            assert!(
                parse(file, &whole[..length].to_vec().into()).is_err(),
                "{file}: {length} bytes of it load"
            );
        }
    }
}

/// A file from before PyTorch 1.6 with this pickle as its dictionary.
fn around(pickle: &[u8]) -> Vec<u8> {
    around_storages(pickle, b"]q\x00.")
}

/// The same with a pickle of the storages' names, and following bytes.
fn around_storages(pickle: &[u8], names: &[u8]) -> Vec<u8> {
    let parts: &[&[u8]] =
        &[b"\x80\x02", LEGACY_MAGIC, b"\x80\x02M\xe9\x03.", b"\x80\x02}q\x00.", pickle, b"\x80\x02", names];
    parts.concat()
}

#[test]
fn pickles_that_ask_for_too_much_are_refused() {
    // Nothing that is called is run, however it is spelt.
    for call in [&b"cos\nsystem\nX\x02\0\0\0id\x85R."[..], b"X\x02\0\0\0osX\x06\0\0\0system\x93."] {
        assert!(error_of(around(call)).contains("it calls os.system"));
    }
    // A dictionary in itself, a distant memo index, nested lists, an empty stack, a missing mark.
    for (pickle, expected) in [
        (&b"}q\x00X\x01\0\0\0ah\x00s."[..], "no tensor"),
        (b"}r\xff\xff\xff\xff.", "behind the next place"),
        (b"h\x05.", "recalls"),
        (b"R.", "empty stack"),
        (b"u.", "a mark that is not there"),
        (b"(.", "empty stack"),
        (b"X\xff\xff\xff\xffa.", "ends in the middle"),
        (b"\x8a\x09\0\0\0\0\0\0\0\0\x01.", "no dictionary"),
        (b"I1\n.", "instruction 0x49"),
    ] {
        let error = error_of(around(pickle));
        assert!(error.contains(expected), "{expected:?} in {error:?}");
    }
    let deep = |depth| [vec![b'('; depth], vec![b'l'; depth], b".".to_vec()].concat();
    assert!(error_of(around(&deep(1 << 18))).contains("no dictionary"));
    assert!(error_of(around(&deep(1 << 20))).contains("more than 524288 objects"));
    // Python 2's dictionary of a list, again and again: an instruction for each copy of it.
    let list = b"ccollections\nOrderedDict\nq\x00]q\x01(]q\x02(K\x01K\x01e".to_vec();
    let copies =
        [list, b"h\x02".repeat(1000), b"e".to_vec(), b"h\x00h\x01\x85R0".repeat(10_000), b"}.".to_vec()];
    assert!(error_of(around(&copies.concat())).contains("more than 4194304 values"));
    let many = vec![b'N'; PICKLE_BYTES_MAX + 1];
    assert!(error_of(around(&many)).contains("4 MiB"));
    // A long name, and a repeated one.
    let long = [b"c", &vec![b'a'; 1 << 20][..], b"\nb\n."].concat();
    assert!(error_of(around(&long)).contains("a name is too long"));
    let storage = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\0aX\x03\0\0\0cpuK\x01tQ";
    let tensor =
        [b"ctorch._utils\n_rebuild_tensor_v2\n(", &storage[..], b"K\x00K\x01\x85K\x01\x85\x89}tR"].concat();
    let tail = [b"]X\x01\0\0\0aa.", &1_u64.to_le_bytes()[..], &1.5_f32.to_le_bytes()].concat();
    let dictionary = |names: usize, bytes: usize| {
        let text = [b"X", &(bytes as u32).to_le_bytes()[..], &vec![b'a'; bytes]].concat();
        let entries = b"h\x00h\x01".repeat(names);
        [b"}(", &text[..], b"q\x00", &tensor, b"q\x01", &entries, b"u."].concat()
    };
    let once = parse("w", &around_storages(&dictionary(0, 1), &tail).into()).unwrap();
    assert_eq!((once[0].name.as_str(), numbers(&once[0])), ("a", vec![1.5]));
    assert!(error_of(around_storages(&dictionary(200_000, 1), &tail)).contains("there twice"));
    assert!(error_of(around_storages(&dictionary(0, 1 << 20), &tail)).contains("at most 65535"));
    let twice = [b"]X\x01\0\0\0aaX\x01\0\0\0aa.", &tail[9..], &tail[9..]].concat();
    assert!(error_of(around_storages(&dictionary(0, 1), &twice)).contains("storage a: it is there twice"));
    // Python 2's dictionaries: memo indices from 1 on, pairs in lists.
    let pairs = [b"ccollections\nOrderedDict\nq\x01(](]q\x02(X\x01\0\0\0b", &tensor[..], b"eetR."].concat();
    assert_eq!(parse("w", &around_storages(&pairs, &tail).into()).unwrap()[0].name, "b");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn damaged_files_give_errors_or_tensors_inside_them(
        legacy in any::<bool>(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = fs::read(path(if legacy { "legacy.bin" } else { "zip.bin" })).unwrap();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(tensors) = parse("damaged", &bytes.into()) {
            for tensor in tensors {
                prop_assert_eq!(tensor.dtype.bytes_of(tensor.elements()), Some(tensor.bytes.len()));
            }
        }
    }

    #[test]
    fn random_pickles_give_errors(pickle in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(parse("random", &around(&pickle).into()).is_err());
    }
}
