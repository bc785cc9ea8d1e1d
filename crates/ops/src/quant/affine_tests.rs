//! Affine groups against MLX itself (golden/affine.py).

use super::*;

#[test]
fn affine_groups_are_mlx_s() {
    let mut file: &[u8] = include_bytes!("golden/affine.bin");
    let mut take = |bytes: usize| {
        let (part, rest) = file.split_at(bytes);
        file = rest;
        part
    };
    let floats = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    };
    let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
    for _ in 0..18 {
        let (bits, group) = (word(take(4)), word(take(4)) as usize);
        let dtype = DType::of_affine(bits, group).unwrap();
        assert_eq!(dtype.affine(), Some((bits, group)));
        let weights = floats(take(8 * group));
        let blocks = take(2 * dtype.block_bytes());
        let expected = floats(take(8 * group));
        let mut found = vec![0; blocks.len()];
        quantize_row(dtype, &weights, &mut found);
        assert!(found == blocks, "{dtype}: {found:?} is not {blocks:?}");
        let mut out = vec![f32::NAN; 2 * group];
        dequantize_row(dtype, blocks, &mut out);
        let largest = expected.iter().fold(0.0f32, |m, w| m.max(w.abs()));
        for (found, expected) in out.iter().zip(&expected) {
            assert!((found - expected).abs() <= largest * f32::EPSILON, "{dtype}: {found} is not {expected}");
        }
    }
    assert!(take(0).is_empty() && file.is_empty());
}

#[test]
fn own_types_are_in_no_gguf_file() {
    let own = DType::ALL.iter().filter(|dtype| dtype.affine().is_some());
    assert_eq!(own.map(|&dtype| DType::from_ggml(dtype as u32)).filter(Option::is_none).count(), 18);
    assert_eq!((DType::of_affine(7, 64), DType::of_affine(4, 16)), (None, None));
}
