//! Tests of scales of every type with weights of every small type: read, or refused at load time by name.

use super::*;
use crate::load::quantised::numbers::{e5m2, e8m0};
use hanzo_engine_ops::quant::e4m3;

fn tensor(name: &str, dtype: DType, shape: &[usize], bytes: Vec<u8>) -> Tensor {
    let (file, shape) = ("a.safetensors".into(), shape.to_vec());
    Tensor { file, name: name.into(), dtype, shape, bytes: bytes.into() }
}

fn assembled(said: Value, parts: Vec<Tensor>) -> Result<Vec<Tensor>, String> {
    let mut config = Config::new("config.json", Map::from_iter([("quantization_config".into(), said)]));
    let settings = crate::load::quantised::Settings::take(&mut config, Path::new("/none")).unwrap().unwrap();
    crate::load::quantised::assemble(&settings, parts)
        .map(|(made, _)| made)
        .map_err(|error| error.to_string())
}

/// 8-bit floats in groups of 32, with scales of any name and type.
#[test]
fn scales_of_small_floats_are_read_or_refused_by_name() {
    const COLS: usize = 64;
    let floats: Vec<u8> = (0..3 * COLS).map(|i| (i * 37 % 127 + i % 2 * 128) as u8).collect();
    let bytes: Vec<u8> = vec![120, 127, 131, 118, 125, 129];
    let wide = |of: fn(f32) -> Vec<u8>| bytes.iter().flat_map(|&byte| of(e8m0(byte))).collect::<Vec<u8>>();
    let halves = |x: f32| half::f16::from_f32(x).to_le_bytes().to_vec();
    let brains = |x: f32| half::bf16::from_f32(x).to_le_bytes().to_vec();
    // Type, bytes, and the number of each byte; none if it is refused.
    type Number = fn(u8) -> f32;
    let types: [(DType, Vec<u8>, Option<Number>); 12] = [
        (DType::U8, bytes.clone(), Some(e8m0)),
        (DType::F8_E8M0, bytes.clone(), Some(e8m0)),
        (DType::F32, wide(|x| x.to_le_bytes().to_vec()), Some(e8m0)),
        (DType::F64, wide(|x| f64::from(x).to_le_bytes().to_vec()), Some(e8m0)),
        (DType::F16, wide(halves), Some(e8m0)),
        (DType::BF16, wide(brains), Some(e8m0)),
        (DType::F8_E4M3, vec![56, 57, 64, 48, 60, 33], Some(e4m3)),
        (DType::F8_E5M2, vec![56, 57, 64, 48, 60, 33], Some(e5m2)),
        (DType::I8, bytes.clone(), None),
        (DType::I32, vec![0; 24], None),
        (DType::U32, vec![0; 24], None),
        (DType::I64, vec![0; 48], None),
    ];
    let methods = [
        json!({"quant_method": "fp8", "weight_block_size": [1, 32]}),
        json!({"quant_method": "mxfp8"}),
        json!({"quant_method": "modelopt", "quant_algo": "MXFP8"}),
        json!({"quant_method": "compressed-tensors", "format": "mxfp8-quantized"}),
        json!({"quant_method": "auto-round", "data_type": "mx_fp8e4m3", "bits": 8, "group_size": 32}),
    ];
    for (dtype, stored, number) in &types {
        for (said, name) in methods.iter().flat_map(|said| {
            ["weight_scale", "weight_scale_inv", "scales", "scale"].map(|name| (said.clone(), name))
        }) {
            let what = format!("{said}, {name} of {dtype}");
            let parts = vec![
                tensor("w.weight", DType::F8_E4M3, &[3, COLS], floats.clone()),
                tensor(&format!("w.{name}"), *dtype, &[3, 2], stored.clone()),
            ];
            let made = assembled(said, parts);
            let Some(number) = number else {
                let error = made.err().unwrap_or_else(|| panic!("{what} is read"));
                assert!(
                    error.contains(&format!("tensor w.{name}")) && error.contains("understood"),
                    "{what}: {error}"
                );
                continue;
            };
            let made = made.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!((made.len(), made[0].dtype), (1, DType::FP8_G32), "{what}");
            let size = stored.len() / 6;
            for (at, &found) in made[0].to_f32().unwrap().iter().enumerate() {
                let group = at / COLS * 2 + at % COLS / 32;
                let scale = if size == 1 { number(stored[group]) } else { e8m0(bytes[group]) };
                assert_eq!(found, e4m3(floats[at]) * scale, "{what}, {at}");
            }
        }
    }
}

/// Experts that follow one another in one tensor.
#[test]
fn stacked_small_floats_are_read() {
    let floats: Vec<u8> = (0..2 * 3 * 64).map(|i| (i * 37 % 127 + i % 2 * 128) as u8).collect();
    let exponents: Vec<u8> = (0..2 * 3 * 2).map(|i| 120 + i as u8).collect();
    let parts = vec![
        tensor("w.weight", DType::F8_E4M3, &[2, 3, 64], floats.clone()),
        tensor("w.weight_scale", DType::U8, &[2, 3, 2], exponents.clone()),
    ];
    let made = assembled(json!({"quant_method": "modelopt", "quant_algo": "MXFP8"}), parts).unwrap();
    assert_eq!(made[0].shape, [2, 3, 64]);
    for (at, &found) in made[0].to_f32().unwrap().iter().enumerate() {
        assert_eq!(found, e4m3(floats[at]) * e8m0(exponents[at / 32]), "{at}");
    }
}

/// Exponents and small floats with 4-bit floats; everything else is refused by name.
#[test]
fn scales_of_4_bit_floats_are_read_or_refused_by_name() {
    let codes: Vec<u8> = (0..2 * 16).map(|i| (i * 37) as u8).collect();
    for (dtype, stored, reads) in [
        (DType::U8, vec![120, 130], true),
        (DType::F8_E8M0, vec![120, 130], true),
        (DType::I8, vec![1, 2], false),
        (DType::U32, vec![0; 8], false),
        (DType::F16, vec![0; 4], false),
    ] {
        let parts = vec![
            tensor("w.weight_packed", DType::U8, &[2, 16], codes.clone()),
            tensor("w.weight_scale", dtype, &[2, 1], stored),
        ];
        let said = json!({"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"});
        match assembled(said, parts) {
            Ok(made) => assert!(reads && made[0].dtype == DType::MXFP4, "{dtype}"),
            Err(error) => assert!(!reads && error.contains("tensor w.weight_scale"), "{dtype}: {error}"),
        }
    }
    for (dtype, size, reads) in
        [(DType::U8, 1, true), (DType::F8_E4M3, 1, true), (DType::I8, 1, false), (DType::I32, 4, false)]
    {
        let parts = vec![
            tensor("w.weight", DType::U8, &[2, 8], codes[..16].to_vec()),
            tensor("w.weight_scale", dtype, &[2, 1], vec![56; 2 * size]),
            tensor("w.weight_scale_2", DType::F32, &[1], 0.5f32.to_le_bytes().to_vec()),
        ];
        match assembled(json!({"quant_method": "modelopt", "quant_algo": "NVFP4"}), parts) {
            Ok(made) => assert!(reads && made[0].dtype == DType::BF16, "{dtype}"),
            Err(error) => assert!(!reads && error.contains("tensor w.weight_scale"), "{dtype}: {error}"),
        }
    }
}
