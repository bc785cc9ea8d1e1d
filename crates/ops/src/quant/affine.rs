//! Affine groups: `w = scale * q + bias`. [`crate::DType::affine`] describes the layout of a block.

/// Offset of the codes in a block.
pub(super) const CODES_AT: usize = 8;

/// Unpacks the codes of a group to one byte each from its string of bits. `codes` are a multiple of eight, and
/// `packed` their bits.
#[inline]
pub fn affine_codes(bits: u32, packed: &[u8], codes: &mut [u8]) {
    let (bytes, mask) = (bits as usize, (1u64 << bits) - 1);
    for (packed, codes) in packed.chunks_exact(bytes).zip(codes.chunks_exact_mut(8)) {
        let mut word = [0; 8];
        word[..bytes].copy_from_slice(packed);
        let word = u64::from_le_bytes(word);
        for (i, code) in codes.iter_mut().enumerate() {
            *code = (word >> (i as u32 * bits) & mask) as u8;
        }
    }
}

/// Packs a group's codes, each below 2^bits, into the string of bits that [`affine_codes`] reads.
fn put_affine_codes(bits: u32, codes: &[u8], packed: &mut [u8]) {
    let bytes = bits as usize;
    for (codes, packed) in codes.chunks_exact(8).zip(packed.chunks_exact_mut(bytes)) {
        let word = codes.iter().rev().fold(0u64, |word, &code| word << bits | u64::from(code));
        packed.copy_from_slice(&word.to_le_bytes()[..bytes]);
    }
}

/// The scale and the bias of a block.
pub(super) fn factors(block: &[u8]) -> (f32, f32) {
    let number = |at: usize| f32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    (number(0), number(4))
}

pub(super) fn decode(bits: u32, block: &[u8], out: &mut [f32]) {
    let (scale, bias) = factors(block);
    let mut codes = [0; 128];
    affine_codes(bits, &block[CODES_AT..], &mut codes[..out.len()]);
    for (w, &code) in out.iter_mut().zip(&codes) {
        *w = scale * f32::from(code) + bias;
    }
}

/// MLX's `quantize`: the end of the range that is farther from zero is stored exactly, as the bias, and the scale is
/// chosen so that zero is a code.
pub(super) fn encode(bits: u32, weights: &[f32], block: &mut [u8]) {
    const SCALE_MIN: f32 = 1e-7;
    let top = ((1u32 << bits) - 1) as f32;
    let min = weights.iter().copied().fold(f32::INFINITY, f32::min);
    let max = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let step = ((max - min) / top).max(SCALE_MIN);
    let (mut scale, edge) = if min.abs() > max.abs() { (step, min) } else { (-step, max) };
    let steps = (edge / scale).round_ties_even();
    let mut bias = 0.0;
    if steps != 0.0 {
        (scale, bias) = (edge / steps, edge);
    }
    let mut codes = [0; 128];
    for (code, w) in codes.iter_mut().zip(weights) {
        *code = ((w - bias) / scale).round_ties_even().clamp(0.0, top) as u8;
    }
    put_affine_block(bits, scale, bias, &codes[..weights.len()], block);
}

/// Assembles a block from its parts: as many codes, each below 2^bits, as the block has weights.
pub fn put_affine_block(bits: u32, scale: f32, bias: f32, codes: &[u8], block: &mut [u8]) {
    block[..4].copy_from_slice(&scale.to_le_bytes());
    block[4..CODES_AT].copy_from_slice(&bias.to_le_bytes());
    put_affine_codes(bits, codes, &mut block[CODES_AT..]);
}
