//! From a file's blocks to panels: read once, written once, each panel by one task.

use super::super::aligned::Aligned;
use super::super::pool::Turn;
use super::{PANEL_ROWS, PanelKind};
use crate::quant::{FP4_VALUES, IQ4_VALUES, dequantize_row, e8m0_half, scale_min, scales_q3};
use crate::{DType, MatrixSource};
use half::f16;

/// Packs all rows of `part` into `data`, `(panels, panel_bytes)` zeros, which must be the size of its panels.
pub(super) fn pack_segment(
    kind: PanelKind,
    part: &MatrixSource<'_>,
    data: &mut Aligned<u8>,
    panel_bytes: usize,
    turn: &mut Turn,
) {
    let (rows, cols, dtype) = (part.shape.rows, part.shape.cols, part.shape.dtype);
    let panels = rows.div_ceil(PANEL_ROWS);
    assert_eq!(data.len(), panels * panel_bytes, "panels of another size");
    let row_bytes = part.bytes.len() / rows;
    let shared = data.shared();
    // A few hundred microseconds a chunk.
    let grain = (1 << 18) / (PANEL_ROWS * cols) + 1;
    turn.run(panels, grain, &|_, range| {
        for panel in range {
            // SAFETY: the panels lie one after the other in `data`, asserted above to hold them all, and each
            // panel index is in one range of one thread.
            let out =
                unsafe { std::slice::from_raw_parts_mut(shared.get().add(panel * panel_bytes), panel_bytes) };
            let first = panel * PANEL_ROWS;
            for (lane, row) in (first..rows.min(first + PANEL_ROWS)).enumerate() {
                let source = &part.bytes[row * row_bytes..][..row_bytes];
                pack_row(kind, dtype, source, cols, lane, out);
            }
        }
    });
}

/// Writes one row into its lane of a panel.
fn pack_row(kind: PanelKind, dtype: DType, source: &[u8], cols: usize, lane: usize, panel: &mut [u8]) {
    let blocks = cols / kind.block();
    if dtype == DType::Q2_K {
        let mut weights = [0.0; 256];
        for (at, block) in source.chunks_exact(dtype.block_bytes()).enumerate() {
            dequantize_row(dtype, block, &mut weights);
            for (i, &weight) in weights.iter().enumerate() {
                put(&mut panel[kind.codes_at(256 * at + i)..], 0, lane, f16::from_f32(weight).to_le_bytes());
            }
        }
        return;
    }
    // The file's blocks, cut where they are longer than the panel's.
    let parts = dtype.block_weights() / kind.block();
    let pieces = source.chunks_exact(dtype.block_bytes()).flat_map(|b| (0..parts).map(move |part| (b, part)));
    for (at, (block, part)) in pieces.enumerate() {
        let (codes_at, scales_at) = (kind.codes_at(at), kind.scales_at(blocks, at));
        match kind {
            PanelKind::F32 => put(&mut panel[codes_at..], 0, lane, [block[0], block[1], block[2], block[3]]),
            PanelKind::F16 | PanelKind::Bf16 => put(&mut panel[codes_at..], 0, lane, [block[0], block[1]]),
            PanelKind::Q8 | PanelKind::Q8Wide | PanelKind::Q8Min => {
                let (bytes, scale) = bytes32(dtype, block, part);
                put_bytes(&mut panel[codes_at..], lane, &bytes);
                let scales = &mut panel[scales_at..];
                match scale {
                    Scale::Half(d) => put(scales, 0, lane, d),
                    Scale::Single(d) => put(scales, 0, lane, d.to_le_bytes()),
                    Scale::Affine(d, m) => {
                        put(scales, 0, lane, d);
                        put(scales, 32, lane, m);
                    }
                }
            }
            PanelKind::Q4K | PanelKind::Q5K | PanelKind::Q6K => {
                let values = match dtype {
                    DType::Q4_K => codes_q4_k(block),
                    DType::Q5_K => codes_q5_k(block),
                    DType::Q3_K => codes_q3_k(block),
                    _ => codes_q6_k(block),
                };
                put_codes(kind, &mut panel[codes_at..], lane, &values);
                let scales = &mut panel[scales_at..];
                match dtype {
                    DType::Q4_K | DType::Q5_K => put_scales_min(scales, lane, block),
                    DType::Q3_K => {
                        put_scales(scales, lane, [block[108], block[109]], scales_q3(&block[96..108]));
                    }
                    _ => {
                        let small = std::array::from_fn(|i| block[192 + i] as i8);
                        put_scales(scales, lane, [block[208], block[209]], small);
                    }
                }
            }
        }
    }
}

/// Writes the lane of a vector of N-byte elements at a byte offset.
fn put<const N: usize>(to: &mut [u8], at: usize, lane: usize, bytes: [u8; N]) {
    to[at + lane * N..][..N].copy_from_slice(&bytes);
}

/// The scale of a block of 32.
enum Scale {
    Half([u8; 2]),
    Single(f32),
    Affine([u8; 2], [u8; 2]),
}

/// Part `part` (of 32 weights) of a block as bytes, and its scale.
fn bytes32(dtype: DType, block: &[u8], part: usize) -> ([u8; 32], Scale) {
    let d = [block[0], block[1]];
    let nibble = |codes: &[u8], i: usize| if i < 16 { codes[i] & 15 } else { codes[i - 16] >> 4 };
    let bit = |bits: &[u8], i: usize| (bits[i / 8] >> (i % 8)) & 1;
    // Signed weights are stored plus 128.
    let signed = |weight: i8| (weight as u8) ^ 0x80;
    fn array(code: &dyn Fn(usize) -> u8) -> [u8; 32] {
        std::array::from_fn(code)
    }
    match dtype {
        DType::Q4_0 => (array(&|i| signed(nibble(&block[2..], i) as i8 - 8)), Scale::Half(d)),
        DType::Q4_1 => (array(&|i| nibble(&block[4..], i)), Scale::Affine(d, [block[2], block[3]])),
        DType::Q5_0 => {
            let weight = |i| (nibble(&block[6..], i) | bit(&block[2..], i) << 4) as i8 - 16;
            (array(&|i| signed(weight(i))), Scale::Half(d))
        }
        DType::Q5_1 => {
            let code = |i| nibble(&block[8..], i) | bit(&block[4..], i) << 4;
            (array(&code), Scale::Affine(d, [block[2], block[3]]))
        }
        DType::IQ4_NL => (array(&|i| signed(IQ4_VALUES[nibble(&block[2..], i) as usize])), Scale::Half(d)),
        DType::IQ4_XS => {
            let codes = &block[8 + 16 * part..];
            let low = (block[4 + part / 2] >> (4 * (part % 2))) & 15;
            let high = (u16::from_le_bytes([block[2], block[3]]) >> (2 * part)) & 3;
            let small = f32::from(low) + f32::from(high) * 16.0 - 32.0;
            let scale = Scale::Single(f16::from_le_bytes(d).to_f32() * small);
            (array(&|i| signed(IQ4_VALUES[nibble(codes, i) as usize])), scale)
        }
        DType::MXFP4 => {
            let scale = Scale::Single(e8m0_half(block[0]));
            (array(&|i| signed(FP4_VALUES[nibble(&block[1..], i) as usize])), scale)
        }
        // Q8_0, the only other type with panels of bytes.
        _ => (array(&|i: usize| block[2 + i] ^ 0x80), Scale::Half(d)),
    }
}

/// 32 codes of a byte each into the lane of eight vectors.
fn put_bytes(to: &mut [u8], lane: usize, bytes: &[u8; 32]) {
    for (j, four) in bytes.chunks_exact(4).enumerate() {
        put(to, 64 * j, lane, [four[0], four[1], four[2], four[3]]);
    }
}

/// 256 codes of 4, 5 or 6 bits into the lane of a block.
fn put_codes(kind: PanelKind, to: &mut [u8], lane: usize, codes: &[u8; 256]) {
    let group_bytes = kind.code_bytes() / 8;
    for (codes, to) in codes.chunks_exact(32).zip(to.chunks_exact_mut(group_bytes)) {
        for (i, &code) in codes.iter().enumerate() {
            let (vector, byte) = (i / 4, lane * 4 + i % 4);
            to[64 * (vector % 4) + byte] |= (code & 15) << (4 * (vector / 4));
            match kind {
                PanelKind::Q5K => to[256 + byte] |= (code >> 4) << vector,
                PanelKind::Q6K => to[256 + 64 * (vector / 4) + byte] |= (code >> 4) << (2 * (vector % 4)),
                _ => {}
            }
        }
    }
}

fn codes_q4_k(block: &[u8]) -> [u8; 256] {
    std::array::from_fn(|i| (block[16 + 32 * (i / 64) + i % 32] >> (4 * (i / 32 % 2))) & 15)
}

fn codes_q5_k(block: &[u8]) -> [u8; 256] {
    std::array::from_fn(|i| {
        let low = (block[48 + 32 * (i / 64) + i % 32] >> (4 * (i / 32 % 2))) & 15;
        low | (block[16 + i % 32] >> (i / 32) & 1) << 4
    })
}

fn codes_q6_k(block: &[u8]) -> [u8; 256] {
    std::array::from_fn(|i| {
        let (half, quarter, l) = (i / 128, i / 32 % 4, i % 32);
        let low = (block[64 * half + 32 * (quarter % 2) + l] >> (4 * (quarter / 2))) & 15;
        low | (block[128 + 32 * half + l] >> (2 * quarter) & 3) << 4
    })
}

/// Q3_K's weights plus 32.
fn codes_q3_k(block: &[u8]) -> [u8; 256] {
    std::array::from_fn(|i| {
        let (half, quarter, l) = (i / 128, i / 32 % 4, i % 32);
        let low = (block[32 + 32 * half + l] >> (2 * quarter)) & 3;
        low + (block[l] >> (i / 32) & 1) * 4 + 28
    })
}

/// Scales and minimums of Q4_K and Q5_K.
fn put_scales_min(to: &mut [u8], lane: usize, block: &[u8]) {
    put(to, 0, lane, [block[0], block[1]]);
    put(to, 32, lane, [block[2], block[3]]);
    for group in 0..8 {
        let (scale, min) = scale_min(&block[4..16], group);
        to[64 + 16 * group + lane] = scale;
        to[192 + 32 * (group / 2) + 2 * lane + group % 2] = min;
    }
}

/// Scales of Q6_K.
fn put_scales(to: &mut [u8], lane: usize, d: [u8; 2], scales: [i8; 16]) {
    put(to, 0, lane, d);
    for (group, scale) in scales.into_iter().enumerate() {
        to[32 + 16 * group + lane] = scale as u8;
    }
}
