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
    let grain = (1 << 19) / (PANEL_ROWS * cols) + 1;
    turn.run(panels, grain, &|_, range| {
        for panel in range {
            // SAFETY: the panels lie one after the other in `data`, asserted above to hold them all, and each
            // panel index is in one range of one thread.
            let out =
                unsafe { std::slice::from_raw_parts_mut(shared.get().add(panel * panel_bytes), panel_bytes) };
            let first = panel * PANEL_ROWS;
            let end = rows.min(first + PANEL_ROWS);
            pack_panel(kind, dtype, &part.bytes[first * row_bytes..end * row_bytes], row_bytes, cols, out);
        }
    });
}

/// Packs up to 16 rows, the lanes of a panel.
fn pack_panel(kind: PanelKind, dtype: DType, rows: &[u8], row_bytes: usize, cols: usize, panel: &mut [u8]) {
    let blocks = cols / kind.block();
    match kind {
        _ if dtype == DType::Q2_K => {
            let mut weights = [0.0; 256];
            for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
                for (at, block) in row.chunks_exact(dtype.block_bytes()).enumerate() {
                    dequantize_row(dtype, block, &mut weights);
                    for (i, &weight) in weights.iter().enumerate() {
                        let half = f16::from_f32(weight).to_le_bytes();
                        put(&mut panel[kind.codes_at(256 * at + i)..], lane, half);
                    }
                }
            }
        }
        PanelKind::F32 => pack_floats::<4>(rows, row_bytes, cols, panel),
        PanelKind::F16 | PanelKind::Bf16 => pack_floats::<2>(rows, row_bytes, cols, panel),
        PanelKind::Q8 | PanelKind::Q8Wide | PanelKind::Q8Min => {
            let parts = dtype.block_weights() / 32;
            let block_bytes = dtype.block_bytes();
            for at in 0..blocks {
                let (codes_at, scales_at) = (kind.codes_at(at), kind.scales_at(blocks, at));
                for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
                    let block = &row[at / parts * block_bytes..][..block_bytes];
                    let (bytes, scale) = bytes32(dtype, block, at % parts);
                    for (j, four) in bytes.chunks_exact(4).enumerate() {
                        put(&mut panel[codes_at + 64 * j..], lane, [four[0], four[1], four[2], four[3]]);
                    }
                    put_scale(&mut panel[scales_at..], lane, &scale);
                }
            }
        }
        PanelKind::Q4K | PanelKind::Q5K | PanelKind::Q6K => {
            let mut codes = [[0; 256]; PANEL_ROWS];
            for at in 0..blocks {
                let (codes_at, scales_at) = (kind.codes_at(at), kind.scales_at(blocks, at));
                for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
                    let block = &row[at * dtype.block_bytes()..][..dtype.block_bytes()];
                    let scales = &mut panel[scales_at..];
                    match dtype {
                        DType::Q4_K => {
                            codes_q4_k(block, &mut codes[lane]);
                            put_scales_min(scales, lane, block);
                        }
                        DType::Q5_K => {
                            codes_q5_k(block, &mut codes[lane]);
                            put_scales_min(scales, lane, block);
                        }
                        DType::Q3_K => {
                            codes_q3_k(block, &mut codes[lane]);
                            put_scales(scales, lane, [block[108], block[109]], scales_q3(&block[96..108]));
                        }
                        _ => {
                            codes_q6_k(block, &mut codes[lane]);
                            let small = std::array::from_fn(|i| block[192 + i] as i8);
                            put_scales(scales, lane, [block[208], block[209]], small);
                        }
                    }
                }
                put_codes(kind, &codes, &mut panel[codes_at..][..kind.code_bytes()]);
            }
        }
    }
}

/// Numbers of N bytes, a stretch of inputs at a time so that what is written stays in the nearest cache.
fn pack_floats<const N: usize>(rows: &[u8], row_bytes: usize, cols: usize, panel: &mut [u8]) {
    const STRETCH: usize = 128;
    for first in (0..cols).step_by(STRETCH) {
        let count = STRETCH.min(cols - first);
        let out = &mut panel[first * N * PANEL_ROWS..][..count * N * PANEL_ROWS];
        for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
            let row = &row[first * N..][..count * N];
            for (weight, out) in row.chunks_exact(N).zip(out.chunks_exact_mut(N * PANEL_ROWS)) {
                out[lane * N..][..N].copy_from_slice(weight);
            }
        }
    }
}

/// Writes the lane of a vector of N-byte elements.
fn put<const N: usize>(to: &mut [u8], lane: usize, bytes: [u8; N]) {
    to[lane * N..][..N].copy_from_slice(&bytes);
}

fn put_scale(to: &mut [u8], lane: usize, scale: &Scale) {
    match *scale {
        Scale::Half(d) => put(to, lane, d),
        Scale::Single(d) => put(to, lane, d.to_le_bytes()),
        Scale::Affine(d, m) => {
            put(to, lane, d);
            put(&mut to[32..], lane, m);
        }
    }
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

/// 256 codes of 4, 5 or 6 bits of 16 rows into a block, four codes at a time.
fn put_codes(kind: PanelKind, codes: &[[u8; 256]; PANEL_ROWS], to: &mut [u8]) {
    let four = |lane: usize, at: usize| {
        let codes = &codes[lane][4 * at..];
        u32::from_le_bytes([codes[0], codes[1], codes[2], codes[3]])
    };
    for (group, to) in to.chunks_exact_mut(kind.code_bytes() / 8).enumerate() {
        let (nibbles, high) = to.split_at_mut(4 * 64);
        for (vector, out) in nibbles.chunks_exact_mut(64).enumerate() {
            for (lane, out) in out.chunks_exact_mut(4).enumerate() {
                let (low, high) = (four(lane, 8 * group + vector), four(lane, 8 * group + vector + 4));
                out.copy_from_slice(&(low & 0x0f0f_0f0f | (high & 0x0f0f_0f0f) << 4).to_le_bytes());
            }
        }
        let (width, mask) = if kind == PanelKind::Q5K { (1, 0x0101_0101) } else { (2, 0x0303_0303) };
        let vectors = 8 / width;
        for (part, out) in high.chunks_exact_mut(64).enumerate() {
            for (lane, out) in out.chunks_exact_mut(4).enumerate() {
                let bits = (0..vectors).fold(0, |bits, vector| {
                    let code = four(lane, 8 * group + vectors * part + vector);
                    bits | (code >> 4 & mask) << (width * vector)
                });
                out.copy_from_slice(&bits.to_le_bytes());
            }
        }
    }
}

fn codes_q4_k(block: &[u8], codes: &mut [u8; 256]) {
    for (codes, bytes) in codes.chunks_exact_mut(64).zip(block[16..144].chunks_exact(32)) {
        let (low, high) = codes.split_at_mut(32);
        for i in 0..32 {
            (low[i], high[i]) = (bytes[i] & 15, bytes[i] >> 4);
        }
    }
}

fn codes_q5_k(block: &[u8], codes: &mut [u8; 256]) {
    let fifth = &block[16..48];
    for (part, (codes, bytes)) in codes.chunks_exact_mut(64).zip(block[48..176].chunks_exact(32)).enumerate()
    {
        let (low, high) = codes.split_at_mut(32);
        for i in 0..32 {
            let bits = fifth[i] >> (2 * part);
            (low[i], high[i]) = (bytes[i] & 15 | (bits & 1) << 4, bytes[i] >> 4 | (bits & 2) << 3);
        }
    }
}

fn codes_q6_k(block: &[u8], codes: &mut [u8; 256]) {
    for (half, codes) in codes.chunks_exact_mut(128).enumerate() {
        let (low, high) = (&block[64 * half..][..64], &block[128 + 32 * half..][..32]);
        for i in 0..32 {
            codes[i] = low[i] & 15 | (high[i] & 3) << 4;
            codes[32 + i] = low[32 + i] & 15 | (high[i] >> 2 & 3) << 4;
            codes[64 + i] = low[i] >> 4 | (high[i] >> 4 & 3) << 4;
            codes[96 + i] = low[32 + i] >> 4 | (high[i] >> 6) << 4;
        }
    }
}

/// Q3_K's weights plus 32.
fn codes_q3_k(block: &[u8], codes: &mut [u8; 256]) {
    let third = &block[..32];
    for (group, codes) in codes.chunks_exact_mut(32).enumerate() {
        let low = &block[32 + 32 * (group / 4)..][..32];
        for i in 0..32 {
            codes[i] = (low[i] >> (2 * (group % 4)) & 3) + (third[i] >> group & 1) * 4 + 28;
        }
    }
}

/// Scales and minimums of Q4_K and Q5_K.
fn put_scales_min(to: &mut [u8], lane: usize, block: &[u8]) {
    put(to, lane, [block[0], block[1]]);
    put(&mut to[32..], lane, [block[2], block[3]]);
    for group in 0..8 {
        let (scale, min) = scale_min(&block[4..16], group);
        to[64 + 16 * group + lane] = scale;
        to[192 + 32 * (group / 2) + 2 * lane + group % 2] = min;
    }
}

/// Scales of Q6_K.
fn put_scales(to: &mut [u8], lane: usize, d: [u8; 2], scales: [i8; 16]) {
    put(to, lane, d);
    for (group, scale) in scales.into_iter().enumerate() {
        to[32 + 16 * group + lane] = scale as u8;
    }
}
