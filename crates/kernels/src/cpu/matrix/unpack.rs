//! Unpacking of a panel's lane to the numbers of its weights, for a row of an embedding table.

use half::{bf16, f16};

use super::{PANEL_ROWS, PanelKind, Plane, Segment};
use hanzo_engine_ops::quant::{dequantize_row, e4m3};

/// Writes row `row` of a segment times `factor`: its numbers from `first` on, as many whole blocks as `out` holds.
pub(in crate::cpu) fn unpack_row(segment: &Segment, row: usize, factor: f32, first: usize, out: &mut [f32]) {
    assert!(row < segment.rows && first + out.len() <= segment.cols, "row {row} of {}", segment.rows);
    let (kind, lane) = (segment.kind, row % PANEL_ROWS);
    assert!(first.is_multiple_of(kind.block()), "part of a block");
    let (panel, block_first) = (segment.panel(row / PANEL_ROWS), first / kind.block());
    // Floats, which encoders look up three times a row: every 16th number, without further work.
    match kind {
        PanelKind::F32 => {
            let (numbers, _) = panel[64 * first..].as_chunks::<64>();
            for (out, numbers) in out.iter_mut().zip(numbers) {
                let (numbers, _) = numbers.as_chunks::<4>();
                *out = factor * f32::from_le_bytes(numbers[lane]);
            }
            return;
        }
        PanelKind::F16 | PanelKind::Bf16 => {
            let (numbers, _) = panel[32 * first..].as_chunks::<32>();
            let read = if kind == PanelKind::F16 { half_at } else { bf16_at };
            for (out, numbers) in out.iter_mut().zip(numbers) {
                *out = factor * read(numbers, lane);
            }
            return;
        }
        _ => {}
    }
    for (at, out) in out.chunks_exact_mut(kind.block()).enumerate() {
        let at = block_first + at;
        let codes = &panel[kind.codes_at(at)..][..kind.code_bytes()];
        let scales = &panel[kind.scales_at(segment.blocks(), at)..][..kind.scale_bytes()];
        match kind {
            PanelKind::Stored(dtype) => {
                let bytes = dtype.block_bytes();
                dequantize_row(dtype, &codes[lane * bytes..][..bytes], out);
                for weight in out {
                    *weight *= factor;
                }
            }
            PanelKind::Fp8 { .. } => {
                let scale = f32_at(scales, lane);
                for (i, out) in out.iter_mut().enumerate() {
                    let float = codes[i / 2 * 2 * PANEL_ROWS + 2 * lane + i % 2];
                    *out = factor * (scale * e4m3(float));
                }
            }
            _ => {
                let groups = out.chunks_exact_mut(kind.group());
                for (group, out) in groups.enumerate() {
                    let (scale, min) = scale_and_min(kind, scales, lane, group);
                    for (i, out) in out.iter_mut().enumerate() {
                        *out = factor * (scale * code(kind, codes, lane, group * kind.group() + i) + min);
                    }
                }
            }
        }
    }
}

fn half_at(halves: &[u8], lane: usize) -> f32 {
    f16::from_le_bytes([halves[2 * lane], halves[2 * lane + 1]]).to_f32()
}

fn f32_at(numbers: &[u8], lane: usize) -> f32 {
    let number = &numbers[4 * lane..];
    f32::from_le_bytes([number[0], number[1], number[2], number[3]])
}

fn bf16_at(halves: &[u8], lane: usize) -> f32 {
    bf16::from_le_bytes([halves[2 * lane], halves[2 * lane + 1]]).to_f32()
}

/// Scale of a group of a block, and the addend to its weights.
fn scale_and_min(kind: PanelKind, scales: &[u8], lane: usize, group: usize) -> (f32, f32) {
    let byte = |at: usize| scales[at + 16 * group + lane];
    match kind {
        PanelKind::Mx4 => (bf16_at(scales, lane), 0.0),
        PanelKind::Affine { .. } => (f32_at(scales, lane), f32_at(&scales[64..], lane)),
        PanelKind::Q4Min | PanelKind::Q5Min => (half_at(scales, lane), half_at(&scales[32..], lane)),
        PanelKind::Q2K => {
            let (d, dmin) = (half_at(scales, lane), half_at(&scales[32..], lane));
            (d * f32::from(byte(64) & 15), -(dmin * f32::from(byte(64) >> 4)))
        }
        PanelKind::Q4K | PanelKind::Q5K => {
            let (d, dmin) = (half_at(scales, lane), half_at(&scales[32..], lane));
            let min = scales[192 + 32 * (group / 2) + 2 * lane + group % 2];
            (d * f32::from(byte(64)), -(dmin * f32::from(min)))
        }
        PanelKind::Q3K | PanelKind::Q6K | PanelKind::Nl4K => {
            (half_at(scales, lane) * f32::from(byte(32) as i8), 0.0)
        }
        _ => (half_at(scales, lane), 0.0),
    }
}

/// Code `i` of a block less the zero.
fn code(kind: PanelKind, codes: &[u8], lane: usize, i: usize) -> f32 {
    let codes = &codes[i / 32 * (kind.code_bytes() / (kind.block() / 32))..];
    let (vector, byte) = (i % 32 / 4, lane * 4 + i % 4);
    let mut code = 0;
    for Plane { width, first, at } in kind.planes().into_iter().filter(|plane| plane.width > 0) {
        let bits = codes[at + 64 * (vector % width) + byte] >> (vector / width * width);
        code |= (u16::from(bits) & ((1 << width) - 1)) << first;
    }
    let code = kind.table().map_or(code, |table| u16::from(table[usize::from(code)]));
    (i32::from(code) - kind.zero()) as f32
}
