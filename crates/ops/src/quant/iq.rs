//! Codebook types of 1 to 3 bits (IQ1, IQ2, IQ3), decoded to signed bytes and a scale for each 16 weights. All have
//! 256 weights a block, in eight groups of 32. Their bits are mostly indices into a codebook ([`grids`]) for four or
//! eight weights at once. Codes are decoded eight at a time, as the bytes of one 64-bit word.
//!
//! Every product is exact: an f16 of 11 bits times a scale of at most 5 bits and a code of at most 6 bits.

use half::f16;

use super::grids::{self, EVEN_SIGNS, SIGNS};
use super::half_at;

/// 256 codes in the words that they are decoded in.
pub(super) type Words = [[u8; 8]; 32];
/// Scales of 16 weights each.
pub(super) type Scales = [f32; 16];

/// The same byte in each of eight places.
const EACH: u64 = 0x0101_0101_0101_0101;

/// `d f16, qs [[u8; 4], u32] x 8`: four indices; seven sign bits for each of the four, then a scale of 4 bits.
/// `w = d * (0.5 + scale) / 4 * ± grid`.
#[inline]
pub(super) fn iq2_xxs(block: &[u8; 66], codes: &mut Words, scales: &mut Scales) {
    let d = half_at(block, 0) * 0.25;
    let groups = block[2..].as_chunks::<8>().0;
    for (group, (words, scales)) in groups.iter().zip(per_group(codes, scales)) {
        let rest = u32_at(group, 4);
        *scales = [d * (0.5 + (rest >> 28) as f32); 2];
        for (l, word) in words.iter_mut().enumerate() {
            let signs = EVEN_SIGNS[(rest >> (7 * l) & 127) as usize];
            *word = signed(grids::IQ2_XXS[group[l] as usize], signs);
        }
    }
}

/// `d f16, qs [u16; 32], scales [u8; 8]`: nine bits of index and seven of signs; scales of 4 bits, one per 16.
#[inline]
pub(super) fn iq2_xs(block: &[u8; 74], codes: &mut Words, scales: &mut Scales) {
    let (qs, nibbles) = block[2..].split_at(64);
    nibble_scales(half_at(block, 0), nibbles, scales);
    for (word, q) in codes.iter_mut().zip(qs.as_chunks::<2>().0) {
        let q = u16::from_le_bytes(*q) as usize;
        *word = signed(grids::IQ2_XS[q & 511], EVEN_SIGNS[q >> 9]);
    }
}

/// `d f16, qs [u8; 32], signs [u8; 32], qh [u8; 8], scales [u8; 8]`: each `qh` has two more bits for four indices.
#[inline]
pub(super) fn iq2_s(block: &[u8; 82], codes: &mut Words, scales: &mut Scales) {
    nibble_scales(half_at(block, 0), &block[74..], scales);
    let low = block[2..34].as_chunks::<4>().0;
    let signs = block[34..66].as_chunks::<4>().0;
    let groups = low.iter().zip(signs).zip(&block[66..74]);
    for (((low, signs), &high), words) in groups.zip(codes.as_chunks_mut::<4>().0) {
        for (l, word) in words.iter_mut().enumerate() {
            let index = low[l] as usize | (high as usize >> (2 * l) & 3) << 8;
            *word = signed(grids::IQ2_S[index], SIGNS[signs[l] as usize]);
        }
    }
}

/// `d f16, qs [u8; 64], [u32; 8]`: an index for four weights each; signs and a scale as in IQ2_XXS. `w = d * (0.5 +
/// scale) / 2 * ± grid`.
#[inline]
pub(super) fn iq3_xxs(block: &[u8; 98], codes: &mut Words, scales: &mut Scales) {
    let d = half_at(block, 0) * 0.5;
    let groups = block[2..66].as_chunks::<8>().0.iter().zip(block[66..].as_chunks::<4>().0);
    for ((qs, rest), (words, scales)) in groups.zip(per_group(codes, scales)) {
        let rest = u32::from_le_bytes(*rest);
        *scales = [d * (0.5 + (rest >> 28) as f32); 2];
        for (l, word) in words.iter_mut().enumerate() {
            let signs = EVEN_SIGNS[(rest >> (7 * l) & 127) as usize];
            let [first, second] = [qs[2 * l], qs[2 * l + 1]].map(|q| grids::IQ3_XXS[q as usize]);
            *word = signed(pair(first, second), signs);
        }
    }
}

/// `d f16, qs [u8; 64], qh [u8; 8], signs [u8; 32], scales [u8; 4]`: each `qh` has a ninth bit for eight indices;
/// scales of 4 bits, one per 32. `w = d * (1 + 2 scale) * ± grid`.
#[inline]
pub(super) fn iq3_s(block: &[u8; 110], codes: &mut Words, scales: &mut Scales) {
    let d = half_at(block, 0);
    let low = block[2..66].as_chunks::<8>().0;
    let signs = block[74..106].as_chunks::<4>().0;
    let groups = low.iter().zip(signs).zip(&block[66..74]).enumerate();
    for ((g, ((low, signs), &high)), (words, scales)) in groups.zip(per_group(codes, scales)) {
        let scale = block[106 + g / 2] >> (4 * (g % 2)) & 15;
        *scales = [d * f32::from(1 + 2 * scale); 2];
        for (l, word) in words.iter_mut().enumerate() {
            let grid = |i: usize| grids::IQ3_S[low[i] as usize | (high as usize >> i & 1) << 8];
            *word = signed(pair(grid(2 * l), grid(2 * l + 1)), SIGNS[signs[l] as usize]);
        }
    }
}

/// `d f16, qs [u8; 32], qh [u16; 8]`: each `qh` has three more bits for four indices, a scale of 3 bits and the
/// sign of the shift. `w = d * (1 + 2 scale) * (grid ± 1/8)`, here in eighths.
#[inline]
pub(super) fn iq1_s(block: &[u8; 50], codes: &mut Words, scales: &mut Scales) {
    let d = half_at(block, 0) * 0.125;
    let groups = block[2..34].as_chunks::<4>().0.iter().zip(block[34..].as_chunks::<2>().0);
    for ((low, high), (words, scales)) in groups.zip(per_group(codes, scales)) {
        let high = u16::from_le_bytes(*high);
        *scales = [d * f32::from(1 + 2 * (high >> 12 & 7)); 2];
        for (l, word) in words.iter_mut().enumerate() {
            let index = low[l] as usize | (high as usize >> (3 * l) & 7) << 8;
            *word = shifted(grids::IQ1[index], high >> 15);
        }
    }
}

/// `qs [u8; 32], qh [u8; 16], scales [u16; 4]`: each nibble of `qh` has three more bits for one index and the sign of
/// its shift; each of `scales` has four scales of 3 bits, one per 16, and a quarter of `d f16`, the lowest first.
#[inline]
pub(super) fn iq1_m(block: &[u8; 56], codes: &mut Words, scales: &mut Scales) {
    let packed = u64::from_le_bytes(std::array::from_fn(|i| block[48 + i]));
    let quarter = |at: u32| (packed >> (16 * at + 12) & 15) << (4 * at);
    let bits = quarter(0) | quarter(1) | quarter(2) | quarter(3);
    let d = f16::from_bits(bits as u16).to_f32() * 0.125;
    for (j, scale) in scales.iter_mut().enumerate() {
        *scale = d * (1 + 2 * (packed >> (16 * (j / 4) + 3 * (j % 4)) & 7)) as f32;
    }
    let pairs = block[..32].as_chunks::<2>().0.iter().zip(&block[32..48]);
    for ((low, &high), words) in pairs.zip(codes.as_chunks_mut::<2>().0) {
        for (l, word) in words.iter_mut().enumerate() {
            let high = high >> (4 * l);
            let index = low[l] as usize | (high as usize & 7) << 8;
            *word = shifted(grids::IQ1[index], u16::from(high >> 3 & 1));
        }
    }
}

/// Words and scales of each group of 32.
#[inline]
fn per_group<'a>(
    codes: &'a mut Words,
    scales: &'a mut Scales,
) -> impl Iterator<Item = (&'a mut [[u8; 8]; 4], &'a mut [f32; 2])> {
    codes.as_chunks_mut::<4>().0.iter_mut().zip(scales.as_chunks_mut::<2>().0)
}

/// The scales of IQ2_XS and IQ2_S, the low nibble first.
#[inline]
fn nibble_scales(d: f32, nibbles: &[u8], scales: &mut Scales) {
    let d = d * 0.25;
    for (scales, byte) in scales.as_chunks_mut::<2>().0.iter_mut().zip(nibbles) {
        *scales = [byte & 15, byte >> 4].map(|scale| d * (0.5 + f32::from(scale)));
    }
}

/// Negates the bytes whose mask is 255: `!x + 1`. No magnitude is zero, so no byte carries into the next.
#[inline]
fn signed(magnitudes: u64, mask: u64) -> [u8; 8] {
    ((magnitudes ^ mask) + (mask & EACH)).to_le_bytes()
}

/// `8 g + 1`, or `8 g - 1` where `down` is 1, of the bytes `127 + 8 g`.
#[inline]
fn shifted(grid: u64, down: u16) -> [u8; 8] {
    let shift = 2 * u64::from(1 - down);
    // The remaining offset of 128 is removed by flipping the top bit, which gives two's complement.
    ((grid + shift * EACH) ^ (0x80 * EACH)).to_le_bytes()
}

/// Two vectors of four weights.
#[inline]
fn pair(first: u32, second: u32) -> u64 {
    u64::from(first) | u64::from(second) << 32
}

#[inline]
fn u32_at(bytes: &[u8; 8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}
