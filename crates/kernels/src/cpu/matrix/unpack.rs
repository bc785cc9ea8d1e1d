//! From a panel's lane back to the numbers its weights stand for: a row of an embedding table.

use half::{bf16, f16};

use super::{PANEL_ROWS, PanelKind, Segment};

/// Writes row `row` of a segment times `factor`, `segment.cols` numbers.
pub(in crate::cpu) fn unpack_row(segment: &Segment, row: usize, factor: f32, out: &mut [f32]) {
    assert!(row < segment.rows && out.len() == segment.cols, "row {row} of {}", segment.rows);
    let (kind, lane) = (segment.kind, row % PANEL_ROWS);
    let panel = segment.panel(row / PANEL_ROWS);
    for (at, out) in out.chunks_exact_mut(kind.block()).enumerate() {
        let codes = &panel[kind.codes_at(at)..][..kind.code_bytes()];
        let scales = &panel[kind.scales_at(segment.blocks(), at)..][..kind.scale_bytes()];
        match kind {
            PanelKind::F32 => {
                let c = &codes[4 * lane..];
                out[0] = factor * f32::from_le_bytes([c[0], c[1], c[2], c[3]]);
            }
            PanelKind::F16 => out[0] = factor * half_at(codes, lane),
            PanelKind::Bf16 => {
                out[0] = factor * bf16::from_le_bytes([codes[2 * lane], codes[2 * lane + 1]]).to_f32();
            }
            PanelKind::Q8 => bytes(codes, lane, out, |q| factor * (half_at(scales, lane) * (q - 128.0))),
            PanelKind::Q8Wide => {
                let s = &scales[4 * lane..];
                let d = f32::from_le_bytes([s[0], s[1], s[2], s[3]]);
                bytes(codes, lane, out, |q| factor * (d * (q - 128.0)));
            }
            PanelKind::Q8Min => {
                let (d, m) = (half_at(scales, lane), half_at(&scales[32..], lane));
                bytes(codes, lane, out, |q| factor * (d * q + m));
            }
            PanelKind::Q4K | PanelKind::Q5K => {
                let (d, dmin) = (half_at(scales, lane), half_at(&scales[32..], lane));
                for (group, out) in out.chunks_exact_mut(32).enumerate() {
                    let scale = d * f32::from(scales[64 + 16 * group + lane]);
                    let min = dmin * f32::from(scales[192 + 32 * (group / 2) + 2 * lane + group % 2]);
                    for (i, out) in out.iter_mut().enumerate() {
                        *out = factor * (scale * code(kind, codes, group, lane, i) - min);
                    }
                }
            }
            PanelKind::Q6K => {
                let d = half_at(scales, lane);
                for (i, out) in out.iter_mut().enumerate() {
                    let scale = d * f32::from(scales[32 + 16 * (i / 16) + lane] as i8);
                    *out = factor * (scale * (code(kind, codes, i / 32, lane, i % 32) - 32.0));
                }
            }
        }
    }
}

fn half_at(halves: &[u8], lane: usize) -> f32 {
    f16::from_le_bytes([halves[2 * lane], halves[2 * lane + 1]]).to_f32()
}

fn bytes(codes: &[u8], lane: usize, out: &mut [f32], value: impl Fn(f32) -> f32) {
    for (four, vector) in out.chunks_exact_mut(4).zip(codes.chunks_exact(64)) {
        for (out, &code) in four.iter_mut().zip(&vector[4 * lane..]) {
            *out = value(f32::from(code));
        }
    }
}

/// Code `i` of a sub-block of 32.
fn code(kind: PanelKind, codes: &[u8], group: usize, lane: usize, i: usize) -> f32 {
    let codes = &codes[group * kind.code_bytes() / 8..];
    let (vector, byte) = (i / 4, lane * 4 + i % 4);
    let low = codes[64 * (vector % 4) + byte] >> (4 * (vector / 4)) & 15;
    let high = match kind {
        PanelKind::Q5K => codes[256 + byte] >> vector & 1,
        PanelKind::Q6K => codes[256 + 64 * (vector / 4) + byte] >> (2 * (vector % 4)) & 3,
        _ => 0,
    };
    f32::from(low | high << 4)
}
