//! Packing of a file's blocks into panels: read once, written once, each panel by one task.

use std::sync::atomic::{AtomicBool, Ordering};

use super::super::aligned::AlignedArray;
use super::super::pool::PoolTurn;
use super::{PANEL_ROWS, PanelKind, Plane, place};
use half::bf16;
use hanzo_engine_ops::quant::{affine_codes, affine_of, e8m0_half, fp8_scale, scale_min, scales_q3};
use hanzo_engine_ops::{DType, MatrixSource};

/// Packs all rows of `part` into `data`, `(panels, panel_bytes)` zeros, which must have the size of its panels.
/// Returns whether all floats are finite, as bfloat16 too.
pub(super) fn pack_segment(
    kind: PanelKind,
    part: &MatrixSource<'_>,
    data: &mut AlignedArray<u8>,
    panel_bytes: usize,
    turn: &mut PoolTurn,
) -> bool {
    let (rows, cols, dtype) = (part.shape.rows, part.shape.cols, part.shape.dtype);
    let panels = rows.div_ceil(PANEL_ROWS);
    assert_eq!(data.len(), panels * panel_bytes, "panels of another size");
    let row_bytes = part.bytes.len() / rows;
    let shared = data.shared();
    let finite = AtomicBool::new(true);
    // A few hundred microseconds a chunk.
    let grain = (1 << 19) / (PANEL_ROWS * cols) + 1;
    turn.run(panels, grain, &|_, range| {
        for panel in range {
            let at = place(panel, panels) * panel_bytes;
            // SAFETY: every panel has a place of its own in `data`, asserted above to hold them all, and each panel
            // index is in one range of one thread.
            let out = unsafe { std::slice::from_raw_parts_mut(shared.get().add(at), panel_bytes) };
            let first = panel * PANEL_ROWS;
            let end = rows.min(first + PANEL_ROWS);
            let rows = &part.bytes[first * row_bytes..end * row_bytes];
            pack_panel(kind, dtype, rows, row_bytes, cols, out);
            if !all_finite(kind, rows) {
                finite.store(false, Ordering::Relaxed);
            }
        }
    });
    finite.into_inner()
}

/// Whether all floats are finite, as bfloat16 too. The maximum of their magnitudes as integers is one loop of vectors.
fn all_finite(kind: PanelKind, rows: &[u8]) -> bool {
    let top16 = || {
        let magnitudes = rows.chunks_exact(2).map(|w| u16::from_le_bytes([w[0], w[1]]) & 0x7fff);
        magnitudes.fold(0, u16::max)
    };
    match kind {
        PanelKind::F32 => {
            let magnitudes =
                rows.chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]) & 0x7fff_ffff);
            magnitudes.fold(0, u32::max) < 0x7f7f_8000
        }
        PanelKind::F16 => top16() < 0x7c00,
        PanelKind::Bf16 => top16() < 0x7f80,
        PanelKind::Fp8 { block } => rows.chunks_exact(4 + usize::from(block)).all(|block| {
            // The largest possible number.
            (448.0 * fp8_scale(block)).abs() < f32::from_bits(0x7f7f_8000) && !has_nan(&block[4..])
        }),
        _ => true,
    }
}

/// Whether any of the 8-bit floats is NaN.
fn has_nan(floats: &[u8]) -> bool {
    floats.iter().fold(false, |has, float| has | (float & 0x7f == 0x7f))
}

/// Packs up to 16 rows, the lanes of a panel.
fn pack_panel(kind: PanelKind, dtype: DType, rows: &[u8], row_bytes: usize, cols: usize, panel: &mut [u8]) {
    if let Some((dtype, made)) = affine_of(dtype, rows) {
        let row_bytes = made.len() / (rows.len() / row_bytes);
        return pack_panel(kind, dtype, &made, row_bytes, cols, panel);
    }
    let blocks = cols / kind.block();
    match kind {
        PanelKind::F32 => pack_floats::<4>(rows, row_bytes, cols, panel),
        PanelKind::F16 | PanelKind::Bf16 => pack_floats::<2>(rows, row_bytes, cols, panel),
        PanelKind::Stored(_) => {
            let block_bytes = dtype.block_bytes();
            for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
                for (at, block) in row.chunks_exact(block_bytes).enumerate() {
                    panel[kind.codes_at(at) + lane * block_bytes..][..block_bytes].copy_from_slice(block);
                }
            }
        }
        PanelKind::Affine { bits, shift } => {
            let (bits, together) = (u32::from(bits), 1 << shift);
            let mut codes = [[0; 32]; PANEL_ROWS];
            for at in 0..blocks {
                for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
                    let block = &row[at / together * dtype.block_bytes()..][..dtype.block_bytes()];
                    let packed = &block[8 + at % together * 4 * bits as usize..];
                    affine_codes(bits, packed, &mut codes[lane]);
                    if at % together == 0 {
                        put_affine_scales(kind, &mut panel[kind.scales_at(blocks, at)..], lane, block);
                    }
                }
                put_codes(kind, &codes, &mut panel[kind.codes_at(at)..][..kind.code_bytes()]);
            }
        }
        PanelKind::Fp8 { block } => {
            let block_bytes = 4 + usize::from(block);
            for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
                for (at, block) in row.chunks_exact(block_bytes).enumerate() {
                    let floats = &block[4..];
                    // A row with NaN gives NaN either way, and vectors need not check each float.
                    let scale = if has_nan(floats) { f32::NAN } else { fp8_scale(block) };
                    put(&mut panel[kind.scales_at(blocks, at)..], lane, scale.to_le_bytes());
                    let out = &mut panel[kind.codes_at(at)..][..kind.code_bytes()];
                    for (pair, out) in floats.as_chunks().0.iter().zip(out.chunks_exact_mut(2 * PANEL_ROWS)) {
                        put::<2>(out, lane, *pair);
                    }
                }
            }
        }
        _ if kind.block() == 32 => {
            let mut codes = [[0; 32]; PANEL_ROWS];
            for at in 0..blocks {
                for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
                    let block = &row[at * dtype.block_bytes()..][..dtype.block_bytes()];
                    let scales = &mut panel[kind.scales_at(blocks, at)..];
                    codes[lane] = codes_of_32(kind, block);
                    put_scales_of_32(kind, scales, lane, block);
                }
                put_codes(kind, &codes, &mut panel[kind.codes_at(at)..][..kind.code_bytes()]);
            }
        }
        _ => {
            let mut codes = [[0; 256]; PANEL_ROWS];
            for at in 0..blocks {
                for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
                    let block = &row[at * dtype.block_bytes()..][..dtype.block_bytes()];
                    let scales = &mut panel[kind.scales_at(blocks, at)..];
                    match kind {
                        PanelKind::Q2K => {
                            codes_q2_k(block, &mut codes[lane]);
                            put(scales, lane, [block[80], block[81]]);
                            put(&mut scales[32..], lane, [block[82], block[83]]);
                            put_groups(&mut scales[64..], lane, &block[..16]);
                        }
                        PanelKind::Q3K => {
                            codes_q3_k(block, &mut codes[lane]);
                            put(scales, lane, [block[108], block[109]]);
                            put_groups(&mut scales[32..], lane, &scales_q3(&block[96..108]).map(|s| s as u8));
                        }
                        PanelKind::Q4K => {
                            codes_q4_k(block, &mut codes[lane]);
                            put_scales_min(scales, lane, block);
                        }
                        PanelKind::Q5K => {
                            codes_q5_k(block, &mut codes[lane]);
                            put_scales_min(scales, lane, block);
                        }
                        PanelKind::Nl4K => {
                            for (group, codes) in codes[lane].chunks_exact_mut(32).enumerate() {
                                codes.copy_from_slice(&nibbles(&block[8 + 16 * group..]));
                            }
                            put(scales, lane, [block[0], block[1]]);
                            put_groups(&mut scales[32..], lane, &scales_iq4(block).map(|s| s as u8));
                        }
                        _ => {
                            codes_q6_k(block, &mut codes[lane]);
                            put(scales, lane, [block[208], block[209]]);
                            put_groups(&mut scales[32..], lane, &block[192..208]);
                        }
                    }
                }
                put_codes(kind, &codes, &mut panel[kind.codes_at(at)..][..kind.code_bytes()]);
            }
        }
    }
}

/// Packs numbers of N bytes, a stretch of inputs at a time, so that the output stays in the nearest cache.
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

/// Writes a lane of a vector of N-byte elements.
fn put<const N: usize>(to: &mut [u8], lane: usize, bytes: [u8; N]) {
    to[lane * N..][..N].copy_from_slice(&bytes);
}

/// The 32 nibbles of 16 bytes, the low ones first.
fn nibbles(bytes: &[u8]) -> [u8; 32] {
    std::array::from_fn(|i| if i < 16 { bytes[i] & 15 } else { bytes[i - 16] >> 4 })
}

/// The codes of a block of 32 weights.
fn codes_of_32(kind: PanelKind, block: &[u8]) -> [u8; 32] {
    let fives = |high: &[u8], low: &[u8]| {
        let mut codes = nibbles(low);
        for (i, code) in codes.iter_mut().enumerate() {
            *code |= (high[i / 8] >> (i % 8) & 1) << 4;
        }
        codes
    };
    match kind {
        PanelKind::Q4 | PanelKind::Nl4 => nibbles(&block[2..]),
        PanelKind::Q4Min => nibbles(&block[4..]),
        PanelKind::Q5 => fives(&block[2..], &block[6..]),
        PanelKind::Q5Min => fives(&block[4..], &block[8..]),
        PanelKind::Mx4 => nibbles(&block[1..]),
        // Q8, the only other kind with blocks of 32: signed bytes.
        _ => std::array::from_fn(|i| block[2 + i] ^ 0x80),
    }
}

fn put_scales_of_32(kind: PanelKind, to: &mut [u8], lane: usize, block: &[u8]) {
    if kind == PanelKind::Mx4 {
        // A power of two, exact as bfloat16: even the smallest, which is subnormal.
        return put(to, lane, bf16::from_f32(e8m0_half(block[0])).to_le_bytes());
    }
    put(to, lane, [block[0], block[1]]);
    if kind.has_min() {
        put(&mut to[32..], lane, [block[2], block[3]]);
    }
}

fn put_affine_scales(kind: PanelKind, to: &mut [u8], lane: usize, block: &[u8]) {
    let number = |at: usize| f32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    let (scale, bias) = (number(0), number(4));
    put(to, lane, scale.to_le_bytes());
    // Exact for f16 and for biases computed from zero points: the two differ by few powers of two.
    put(&mut to[64..], lane, (bias + scale * kind.zero() as f32).to_le_bytes());
}

/// Writes the codes of 16 rows to a block's planes, four codes at a time. `N` is whole sub-blocks of 32.
fn put_codes<const N: usize>(kind: PanelKind, codes: &[[u8; N]; PANEL_ROWS], to: &mut [u8]) {
    for (group, to) in to.chunks_exact_mut(kind.code_bytes() / (N / 32)).enumerate() {
        for Plane { width, first, at } in kind.planes().into_iter().filter(|plane| plane.width > 0) {
            let mask = 0x0101_0101 * ((1 << width) - 1) as u32;
            for (stored, out) in to[at..].chunks_exact_mut(64).take(width).enumerate() {
                for (lane, out) in out.chunks_exact_mut(4).enumerate() {
                    let bits = (0..8 / width).fold(0, |bits, slot| {
                        let codes = &codes[lane][32 * group + 4 * (stored + slot * width)..];
                        let four = u32::from_le_bytes([codes[0], codes[1], codes[2], codes[3]]);
                        bits | (four >> first & mask) << (slot * width)
                    });
                    out.copy_from_slice(&bits.to_le_bytes());
                }
            }
        }
    }
}

fn codes_q2_k(block: &[u8], codes: &mut [u8; 256]) {
    for (group, codes) in codes.chunks_exact_mut(32).enumerate() {
        let bytes = &block[16 + 32 * (group / 4)..][..32];
        for i in 0..32 {
            codes[i] = bytes[i] >> (2 * (group % 4)) & 3;
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

/// Q3_K's weights plus 4.
fn codes_q3_k(block: &[u8], codes: &mut [u8; 256]) {
    let third = &block[..32];
    for (group, codes) in codes.chunks_exact_mut(32).enumerate() {
        let low = &block[32 + 32 * (group / 4)..][..32];
        for i in 0..32 {
            codes[i] = (low[i] >> (2 * (group % 4)) & 3) + (third[i] >> group & 1) * 4;
        }
    }
}

/// The eight scales of an IQ4_XS block.
fn scales_iq4(block: &[u8]) -> [i8; 8] {
    let high = u16::from_le_bytes([block[2], block[3]]);
    std::array::from_fn(|group| {
        let low = block[4 + group / 2] >> (4 * (group % 2)) & 15;
        let high = (high >> (2 * group) & 3) as u8;
        (low | high << 4) as i8 - 32
    })
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

/// Writes one byte for each group of a row.
fn put_groups(to: &mut [u8], lane: usize, groups: &[u8]) {
    for (group, &byte) in groups.iter().enumerate() {
        to[16 * group + lane] = byte;
    }
}
