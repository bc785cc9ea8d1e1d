//! Types whose 4-bit codes index a table: IQ4_NL and IQ4_XS (a table of 16 integers spaced like a normal distribution)
//! and MXFP4 (4-bit floats, opencompute.org "OCP Microscaling Formats").

use super::block32::{extreme, nibble, put_nibbles};
use super::search::{Lanes, iq4_code, iq4_scales, known, lanes, nearest, squares, sums, symmetric_scales};
use super::{half_at, inverse, put_half};

/// Values of the codes of IQ4_NL and IQ4_XS.
pub const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the values of the codes of MXFP4 (E2M1 floats); [`e8m0_half`] supplies the factor of one half.
pub const FP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Half of `2^(exponent - 127)`, the scale of an MXFP4 block; exact down to the subnormals.
#[inline]
pub fn e8m0_half(exponent: u8) -> f32 {
    match exponent {
        0 | 1 => f32::from_bits(0x0020_0000 << exponent),
        _ => f32::from_bits((u32::from(exponent) - 1) << 23),
    }
}

/// `d f16, 16 bytes of codes`; `w = d * table[q]`.
pub(super) fn decode_iq4_nl(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (i, w) in out.iter_mut().enumerate() {
        *w = d * f32::from(IQ4_VALUES[nibble(&block[2..], i) as usize]);
    }
}

/// `d f16, u16 of the scales' high 2 bits, 4 bytes of their low 4, 128 bytes of codes`, eight groups of 32;
/// `w = d * (scale - 32) * table[q]`.
pub(super) fn decode_iq4_xs(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    let high = u16::from_le_bytes([block[2], block[3]]);
    for (group, weights) in out.chunks_exact_mut(32).enumerate() {
        let low = block[4 + group / 2] >> (4 * (group % 2)) & 15;
        let scale = i16::from(low) | ((high >> (2 * group) & 3) << 4) as i16;
        let dl = d * f32::from(scale - 32);
        let codes = &block[8 + 16 * group..];
        for (i, w) in weights.iter_mut().enumerate() {
            *w = dl * f32::from(IQ4_VALUES[nibble(codes, i) as usize]);
        }
    }
}

/// Searches for the scale and rounds the weights with it, for up to eight blocks.
#[inline(always)]
pub(super) fn encode_iq4_nl(weights: &[f32], columns: Option<&[f32]>, blocks: &mut [u8]) {
    let w: Lanes<8, 32> = lanes(weights);
    let importance = match columns {
        None => squares(&w),
        Some(columns) => {
            let mut spread = sums(&squares(&w));
            for sum in &mut spread {
                *sum *= 2.0 / 32.0;
            }
            known(&w, &lanes(columns), Some(spread))
        }
    };
    let scales = iq4_scales(&w, &importance);
    for (i, (block, weights)) in blocks.chunks_exact_mut(18).zip(weights.chunks_exact(32)).enumerate() {
        put_half(block, 0, scales[i]);
        put_codes(&mut block[2..], weights, inverse(scales[i]));
    }
}

/// Searches for each group's scale, quantises the scales to 6 bits, and rounds the weights again with the quantised
/// scales.
#[inline(always)]
pub(super) fn encode_iq4_xs(weights: &[f32], columns: Option<&[f32]>, block: &mut [u8]) {
    let w: Lanes<8, 32> = lanes(weights);
    let (scales, largest) = match columns {
        None => {
            let scales = iq4_scales(&w, &squares(&w));
            (scales, extreme(&scales))
        }
        Some(columns) => {
            let mut sum = 0.0f32;
            for w in weights {
                sum += w * w;
            }
            let importance = known(&w, &lanes(columns), Some([2.0 * sum / 256.0; 8]));
            let scales = iq4_scales(&w, &importance);
            let fitted = symmetric_scales(&lanes::<1, 8>(&scales), &lanes::<1, 8>(&sums(&importance)), 32.0);
            (scales, -32.0 * fitted[0])
        }
    };
    put_half(block, 0, largest / -32.0);
    let (d, to_code) = (half_at(block, 0), -32.0 * inverse(largest));
    block[2..8].fill(0);
    for (group, weights) in weights.chunks_exact(32).enumerate() {
        let scale = nearest(to_code * scales[group]).clamp(-32.0, 31.0);
        let code = (scale + 32.0) as u8;
        block[2 + group / 4] |= (code >> 4) << (2 * (group % 4));
        block[4 + group / 2] |= (code & 15) << (4 * (group % 2));
        put_codes(&mut block[8 + 16 * group..][..16], weights, inverse(d * scale));
    }
}

/// The codes of 32 weights.
#[inline(always)]
fn put_codes(bytes: &mut [u8], weights: &[f32], id: f32) {
    let mut codes = [0; 32];
    for (code, w) in codes.iter_mut().zip(weights) {
        *code = iq4_code(id * w);
    }
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = codes[i] | codes[16 + i] << 4;
    }
}

/// `exponent u8, 16 bytes of codes`.
pub(super) fn decode_mxfp4(block: &[u8], out: &mut [f32]) {
    let d = e8m0_half(block[0]);
    for (i, w) in out.iter_mut().enumerate() {
        *w = d * f32::from(FP4_VALUES[nibble(&block[1..], i) as usize]);
    }
}

/// The exponent puts the largest magnitude in the top binade of the codes. Each weight takes the nearest code, the
/// lower of equals.
pub(super) fn encode_mxfp4(weights: &[f32], block: &mut [u8]) {
    let largest = weights.iter().fold(0.0f32, |m, w| m.max(w.abs()));
    // The biased exponent is floor(log2(largest)) + 127; the largest code, 6 = 1.5 * 2^2, is two binades up.
    block[0] = ((largest.to_bits() >> 23) as u8).saturating_sub(2);
    let d = e8m0_half(block[0]);
    put_nibbles(&mut block[1..], |i| {
        let error = |code: usize| (d * f32::from(FP4_VALUES[code]) - weights[i]).abs();
        (1..16).fold(0, |best, code| if error(code) < error(best) { code } else { best }) as u8
    });
}

/// Same as [`encode_mxfp4`], with that exponent or one next to it: the one with the least squared error, weighted by
/// column.
#[inline(always)]
pub(super) fn fit_mxfp4(weights: &[f32], columns: Option<&[f32]>, block: &mut [u8]) {
    let largest = weights.iter().fold(0.0f32, |m, w| m.max(w.abs()));
    let exponent = ((largest.to_bits() >> 23) as u8).saturating_sub(2);
    // In squares of GGML's step, so that no error overflows or underflows.
    let error = |exponent: u8, unit: f32| {
        let (d, mut sums) = (e8m0_half(exponent), [0.0f32; 8]);
        for (at, w) in weights.iter().enumerate() {
            let size = w.abs() / d;
            let miss = (size - e2m1_near(size).1) * unit;
            sums[at % 8] += miss * miss * columns.map_or(1.0, |columns| columns[at]);
        }
        sums.iter().sum::<f32>()
    };
    let mut best = (error(exponent, 1.0), exponent);
    for (beside, unit) in [(exponent.saturating_sub(1), 0.5), (exponent + 1, 2.0)] {
        // Better by more than the sums' rounding error.
        let error = error(beside, unit);
        if beside != exponent && error < best.0 * (1.0 - 1e-5) {
            best = (error, beside);
        }
    }
    block[0] = best.1;
    let d = e8m0_half(best.1);
    put_nibbles(&mut block[1..], |i| {
        let (code, _) = e2m1_near(weights[i].abs() / d);
        if weights[i] < 0.0 && code > 0 { code | 8 } else { code }
    });
}

/// Code of the nearest unsigned value of MXFP4, the lower of two equally near, and twice that value. `size` is doubled
/// too.
#[inline(always)]
fn e2m1_near(size: f32) -> (u8, f32) {
    let (mut code, mut value) = (0, 0.0);
    for (edge, step) in [(0.5, 1.0), (1.5, 1.0), (2.5, 1.0), (3.5, 1.0), (5.0, 2.0), (7.0, 2.0), (10.0, 4.0)]
    {
        code += u8::from(size > edge);
        value += if size > edge { step } else { 0.0 };
    }
    (code, value)
}

/// NVFP4: four 8-bit scales, then four runs of 8 bytes of indices, the low nibbles first.
pub(super) fn decode_nvfp4(block: &[u8], out: &mut [f32]) {
    for (run, out) in out.chunks_exact_mut(16).enumerate() {
        // Half, because the table holds twice the floats.
        let d = 0.5 * ue4m3(block[run]);
        let codes = &block[4 + 8 * run..][..8];
        for (i, w) in out.iter_mut().enumerate() {
            let code = if i < 8 { codes[i] & 15 } else { codes[i - 8] >> 4 };
            *w = d * f32::from(FP4_VALUES[usize::from(code)]);
        }
    }
}

/// An 8-bit float with 4 bits of exponent and no sign. The code of NaN gives 0, as in GGML.
fn ue4m3(byte: u8) -> f32 {
    let magnitude = byte & 0x7f;
    if byte == 0x7f {
        return 0.0;
    }
    f32::from_bits(u32::from(magnitude) << 20) * f32::from_bits((120 + 127) << 23)
}
