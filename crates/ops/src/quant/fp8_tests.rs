//! 8-bit floats against PyTorch's `float8_e4m3fn` (golden/fp8.py).

use super::*;

/// Golden bytes and numbers: all 256 codes; then the codes of numbers of all sizes, including halves between two
/// codes; then blocks.
const GOLDEN: &[u8] = include_bytes!("golden/fp8.bin");
const ROUNDED: usize = 4096;

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

#[test]
fn every_code_is_pytorch_s() {
    let (numbers, rest) = GOLDEN.split_at(256 * 4);
    for (code, expected) in (0u8..=255).zip(floats(numbers)) {
        let found = e4m3(code);
        let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
        assert!(same, "{code:#x}: {found} is not {expected}");
        if !found.is_nan() {
            assert_eq!(to_e4m3(found), code, "{found}");
        }
    }
    let (numbers, codes) = rest.split_at(ROUNDED * 4);
    for (x, &code) in floats(numbers).into_iter().zip(&codes[..ROUNDED]) {
        assert_eq!(to_e4m3(x), code, "{x:e}");
    }
}

#[test]
fn blocks_are_pytorch_s() {
    let mut blocks = &GOLDEN[(256 + ROUNDED) * 4 + ROUNDED..];
    for (dtype, count) in [(DType::FP8, 8), (DType::FP8_G32, 8)] {
        for at in 0..count {
            let (weights, rest) = blocks.split_at(dtype.block_weights() * 4);
            let (expected, rest) = rest.split_at(dtype.block_bytes());
            let mut found = vec![0xAA; expected.len()];
            quantize_row(dtype, &floats(weights), &mut found);
            assert!(found == expected, "{dtype} block {at}: {found:?} is not {expected:?}");
            blocks = rest;
        }
    }
    assert!(blocks.is_empty());
}

#[test]
fn blocks_are_as_long_as_rows_and_scales_allow() {
    for (cols, shared, dtype) in [
        (4096, 4096, Some(DType::FP8)),
        (4096, 128, Some(DType::FP8)),
        (2880, 2880, Some(DType::FP8_G32)),
        (4096, 64, Some(DType::FP8_G32)),
        (4096, 16, None),
        (100, 100, None),
    ] {
        assert_eq!(DType::of_fp8(cols, shared), dtype, "{cols} {shared}");
    }
    assert_eq!(DType::from_ggml(DType::FP8 as u32), None);
}
