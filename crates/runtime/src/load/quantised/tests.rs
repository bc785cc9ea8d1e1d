//! Tests of settings and tensors of quantised checkpoints that are refused, each by name.

use std::fs;
use std::path::Path;

use hanzo_engine_ops::DType;
use serde_json::{Map, Value, json};

use crate::decoder::tests::data;
use crate::load::TextFile;
use crate::model_files::ModelFiles;
use crate::opened::OpenedModel;
use crate::spec::Config;
use crate::tensor::Tensor;

/// Opens a checkpoint with changed settings.
fn opened(format: &str, change: impl FnOnce(&mut Map<String, Value>)) -> Result<ModelFiles, String> {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(data("formats").join(format)).unwrap().flatten() {
        fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    let path = copy.path().join("config.json");
    let mut config = TextFile::Settings.read_object(&path).unwrap();
    change(&mut config);
    fs::write(path, Value::Object(config).to_string()).unwrap();
    open(copy.path())
}

fn open(path: &Path) -> Result<ModelFiles, String> {
    ModelFiles::open(path).map_err(|error| error.to_string())
}

#[test]
fn what_is_not_read_is_refused_by_name() {
    let of = |key: &str, value: Value| {
        let key = key.to_owned();
        move |config: &mut Map<String, Value>| {
            config["quantization_config"].as_object_mut().unwrap().insert(key, value);
        }
    };
    for (format, key, value, expected) in [
        ("gptq-4", "quant_method", json!("aqlm"), "quant_method = aqlm is not supported: read are gptq, awq"),
        ("gptq-4", "quant_method", json!(4), "key quant_method: expected a string"),
        ("gptq-4", "checkpoint_format", json!("bitblas"), "checkpoint_format = bitblas"),
        ("gptq-4", "checkpoint_format", json!("marlin"), "no zero points"),
        ("gptq-marlin", "bits", json!(8), "bits = 8 is not supported: Marlin's layout is of 4 bits"),
        ("gptq-4", "bits", json!(5), "tensor"),
        ("awq-gemm", "version", json!("gemv_fast"), "expected 16-bit integers, found I32"),
        ("awq-gemm", "version", json!("trt"), "version = trt"),
        ("awq-gemm", "bits", json!(8), "bits = 8 is not supported: AWQ is of 4 bits"),
        ("awq-gemm", "version", json!("gemv"), "tensor"),
        ("compressed-4", "format", json!("marlin-24"), "format = marlin-24"),
        ("compressed-4", "sparsity_config", json!({"format": "sparse-24-bitmask"}), "sparsity_config.format"),
        ("compressed-4", "transform_config", json!({"config_groups": {"R1": {}}}), "transform_config"),
        ("compressed-4", "config_groups", json!({}), "weight_packed"),
        (
            "fp8-blocks",
            "weight_block_size",
            json!([0, 128]),
            "key weight_block_size: expected two whole numbers",
        ),
        ("fp8-blocks", "weight_block_size", json!([128, 128]), "weight_scale_inv"),
        ("fp8-tensor", "quant_algo", json!("W4A8_AWQ"), "quant_algo = W4A8_AWQ"),
    ] {
        // GPTQ's order of inputs determines the number of bits of its codes, so other bits in the settings change
        // nothing.
        match opened(format, of(key, value.clone())) {
            Err(error) => assert!(error.contains(expected), "{format} {key} = {value}: {error}"),
            Ok(_) => assert!(format == "gptq-4" && key == "bits", "{format} {key} = {value} opens"),
        }
    }
    let error = opened("mlx-4", |config| {
        config["quantization"].as_object_mut().unwrap().insert("bits".into(), json!(8));
    });
    let error = error.unwrap_err();
    assert!(error.contains("model.embed_tokens.weight: rows of 32 weights are no groups of 64"), "{error}");
    let error = opened("mlx-4", |config| {
        config["quantization"].as_object_mut().unwrap().insert("mode".into(), json!("nvfp3"));
    });
    assert!(error.unwrap_err().contains("mode = nvfp3"));
    // Without quantisation settings, the tensors are not those of such a model.
    let error = opened("gptq-4", |config| drop(config.remove("quantization_config"))).unwrap_err();
    assert!(error.contains("tensor model.layers.0."), "{error}");
}

#[test]
fn settings_may_lie_in_a_file_of_their_own() {
    for (format, name) in [("gptq-4", "quantize_config.json"), ("awq-gemm", "quant_config.json")] {
        let copy = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(data("formats").join(format)).unwrap().flatten() {
            fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
        let path = copy.path().join("config.json");
        let mut config = TextFile::Settings.read_object(&path).unwrap();
        let mut own = config.remove("quantization_config").unwrap();
        own.as_object_mut().unwrap().remove("quant_method");
        fs::write(copy.path().join(name), own.to_string()).unwrap();
        fs::write(path, Value::Object(config).to_string()).unwrap();
        fs::remove_file(copy.path().join("golden.safetensors")).unwrap();
        let weights = copy.path().join("model.safetensors");
        fs::rename(weights, copy.path().join("gptq_model-4bit-32g.safetensors")).unwrap();
        assert_eq!(open(copy.path()).unwrap().info.quantization, "AFQ4_G32", "{format}");
    }
}

/// Changes bytes of a checkpoint anywhere, a thousand times a format: the result is an error or a model.
#[test]
fn changed_bytes_are_refused_or_read() {
    let mut state = 0x51ce_2a6d_9f31_7b05_u64;
    let mut draw = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % below
    };
    for entry in fs::read_dir(data("formats")).unwrap().flatten().filter(|entry| entry.path().is_dir()) {
        let copy = tempfile::tempdir().unwrap();
        for file in fs::read_dir(entry.path()).unwrap().flatten() {
            fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
        }
        let mut refused = 0;
        for name in ["model.safetensors", "config.json"] {
            let path = copy.path().join(name);
            let whole = fs::read(&path).unwrap();
            let header = if name.starts_with("model") {
                8 + whole[0] as usize + 256 * whole[1] as usize
            } else {
                whole.len()
            };
            drop(OpenedModel::open(copy.path()).unwrap());
            for _ in 0..CHANGES {
                let mut bytes = whole.clone();
                for _ in 0..=draw(3) {
                    let (at, from) = (draw(header), draw(header));
                    // Another digit or letter of the file keeps most of it readable.
                    bytes[at] = if draw(4) == 0 { draw(256) as u8 } else { whole[from] };
                }
                fs::write(&path, &bytes).unwrap();
                match OpenedModel::open(copy.path()) {
                    Err(error) => {
                        assert!(!error.to_string().is_empty());
                        refused += 1;
                    }
                    // A model that opens can be read as numbers.
                    Ok(opened) => opened.tensors().all().for_each(|tensor| drop(tensor.bytes.read())),
                }
            }
            fs::write(&path, &whole).unwrap();
        }
        assert!(refused > CHANGES / 10, "{:?}: {refused} refused", entry.path());
    }
}

/// Number of changes for each file of each format.
const CHANGES: usize = 500;

/// GGUF's NVFP4 as BF16: the products of 4-bit and 8-bit floats exactly, times the factor of the matrix.
#[test]
fn ggml_s_nvfp4_is_exact_as_bf16() {
    let tensor = |name: &str, dtype: DType, shape: &[usize], bytes: Vec<u8>| Tensor {
        file: "a.gguf".into(),
        name: name.into(),
        dtype,
        shape: shape.to_vec(),
        bytes: bytes.into(),
    };
    let stored: Vec<u8> =
        (0..2 * 3 * 36).map(|i| if i % 36 < 4 { 8 + (i * 5 % 112) as u8 } else { (i * 37) as u8 }).collect();
    let mut expected = vec![0.0; 2 * 3 * 64];
    hanzo_engine_ops::quant::dequantize_row(DType::NVFP4, &stored, &mut expected);
    let weight = || tensor("w.weight", DType::NVFP4, &[2, 3, 64], stored.clone());
    let factors = |values: &[f32]| {
        tensor("w.scale", DType::F32, &[values.len()], values.iter().flat_map(|x| x.to_le_bytes()).collect())
    };
    let made = super::of_gguf(vec![factors(&[2.0, 0.5]), weight(), factors_of_input()]).unwrap();
    assert_eq!((made.len(), made[0].dtype, &made[0].shape[..]), (1, DType::BF16, &[2, 3, 64][..]));
    let found = made[0].to_f32().unwrap();
    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert_eq!(*found, expected * if i < 3 * 64 { 2.0 } else { 0.5 });
    }
    assert_eq!(super::of_gguf(vec![weight()]).unwrap()[0].to_f32().unwrap(), expected);
    let error = super::of_gguf(vec![factors(&[1.0; 3]), weight()]).unwrap_err().to_string();
    assert!(error.contains("tensor w.scale: [3] factors for [2, 3, 64] weights"), "{error}");

    fn factors_of_input() -> Tensor {
        let bytes = 1f32.to_le_bytes().to_vec();
        let (name, shape) = ("w.input_scale".into(), vec![1]);
        Tensor { file: "a.gguf".into(), name, dtype: DType::F32, shape, bytes: bytes.into() }
    }
}

/// 8-bit floats with scales of any extent: the bytes and the scales of the file, in blocks as long as both allow.
#[test]
fn small_floats_lose_nothing() {
    let tensor = |name: &str, dtype: DType, shape: &[usize], bytes: Vec<u8>| Tensor {
        file: "a.safetensors".into(),
        name: name.into(),
        dtype,
        shape: shape.to_vec(),
        bytes: bytes.into(),
    };
    let e4m3 = hanzo_engine_ops::quant::e4m3;
    for (cols, block, scales, dtype) in [
        (256, [128, 128], vec![1], DType::FP8),
        (256, [128, 128], vec![3], DType::FP8),
        (256, [128, 128], vec![3, 1], DType::FP8),
        (256, [128, 128], vec![1, 2], DType::FP8),
        (256, [2, 64], vec![2, 4], DType::FP8_G32),
        (320, [2, 128], vec![2, 3], DType::FP8_G32),
        (96, [128, 128], vec![1], DType::FP8_G32),
        (256, [128, 128], vec![3, 16], DType::BF16),
        (48, [128, 128], vec![3], DType::BF16),
    ] {
        // No NaN, which equals nothing.
        let floats: Vec<u8> = (0..3 * cols).map(|i| (i * 37 % 127 + i % 2 * 128) as u8).collect();
        let count: usize = scales.iter().product();
        let factors: Vec<f32> = (0..count).map(|i| 0.0123 * (1.0 + i as f32)).collect();
        let parts = vec![
            tensor("w.weight", DType::F8_E4M3, &[3, cols], floats.clone()),
            tensor(
                "w.weight_scale",
                DType::F32,
                &scales,
                factors.iter().flat_map(|x| x.to_le_bytes()).collect(),
            ),
        ];
        let said = json!({"quant_method": "fp8", "weight_block_size": block});
        let mut config = Config::new("config.json", Map::from_iter([("quantization_config".into(), said)]));
        let settings = super::Settings::take(&mut config, Path::new("/none")).unwrap().unwrap();
        let (made, rounded) = super::assemble(&settings, parts).unwrap();
        assert_eq!((made[0].dtype, &made[0].shape[..]), (dtype, &[3, cols][..]), "{scales:?} of {cols}");
        assert_eq!(rounded.is_some(), dtype == DType::BF16);
        let scale_of = |row: usize, col: usize| match scales[..] {
            [1] => 0,
            [3] | [3, 1] => row,
            [3, across] => row * across + col / (cols / across),
            [_, across] => row / block[0] * across + col / block[1],
            _ => unreachable!(),
        };
        let exact = |at: usize| factors[scale_of(at / cols, at % cols)] * e4m3(floats[at]);
        let wide = made[0].clone().widened();
        assert_eq!((wide.dtype, &wide.shape[..]), (DType::BF16, &[3, cols][..]));
        for (at, (found, wide)) in made[0].to_f32().unwrap().iter().zip(wide.to_f32().unwrap()).enumerate() {
            let rounded = half::bf16::from_f32(exact(at)).to_f32();
            let expected = if dtype == DType::BF16 { rounded } else { exact(at) };
            assert_eq!((*found, wide), (expected, rounded), "{scales:?} of {cols}, {at}");
        }
        let parts = wide.rows(1..3).to_f32().unwrap();
        assert_eq!(parts[..], wide.to_f32().unwrap()[cols..]);
    }
}

mod scales;
