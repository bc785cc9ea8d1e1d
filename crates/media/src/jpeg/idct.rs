//! Inverse DCT of libjpeg's `islow` (Loeffler, Ligtenberg and Moschytz 1989), with the same constants, rounding
//! and order of sums, and with libjpeg-turbo's 16-bit overflow. All sums fit 32 bits.

use super::Block;

/// Fractional bits of a constant.
const CONSTANT_BITS: u32 = 13;
/// Extra fractional bits between the passes.
const PASS_BITS: u32 = 2;

/// Samples of a block whose coefficients after index `last`, in zigzag order, are 0.
#[inline(always)]
pub(super) fn samples(block: &Block, steps: &[i16; 64], last: usize) -> [[u8; 8]; 8] {
    match last {
        0 => {
            let value = i32::from(block[0].wrapping_mul(steps[0]).wrapping_mul(1 << PASS_BITS));
            [[sample((value + (1 << (PASS_BITS + 2))) >> (PASS_BITS + 3)); 8]; 8]
        }
        _ => whole(block, steps),
    }
}

fn sample(value: i32) -> u8 {
    (value.clamp(-128, 127) + 128) as u8
}

#[inline(never)]
fn whole(block: &Block, steps: &[i16; 64]) -> [[u8; 8]; 8] {
    let mut values = [0; 64];
    for ((out, value), step) in values.iter_mut().zip(block).zip(steps) {
        *out = value.wrapping_mul(*step);
    }
    let mut columns = [0; 64];
    pass::<{ CONSTANT_BITS - PASS_BITS }>(&values, &mut columns);
    transposed(&mut columns);
    pass::<{ CONSTANT_BITS + PASS_BITS + 3 }>(&columns, &mut values);
    let mut samples = [0; 64];
    for (sample, &value) in samples.iter_mut().zip(&values) {
        *sample = (value.clamp(-128, 127) + 128) as u8;
    }
    transposed(&mut samples);
    let mut rows = [[0; 8]; 8];
    rows.as_flattened_mut().copy_from_slice(&samples);
    rows
}

/// Product of two 16-bit numbers.
#[inline(always)]
fn product(value: i16, constant: i16) -> i32 {
    i32::from(value) * i32::from(constant)
}

/// One-dimensional transform of all columns, divided by `1 << SHIFT`. The loop has only sums and products, so
/// that the compiler vectorises it over the columns.
#[inline(never)]
fn pass<const SHIFT: u32>(values: &Block, out: &mut Block) {
    let rows = values.as_chunks::<8>().0;
    let [r0, r1, r2, r3, r4, r5, r6, r7] = rows else { return };
    let [o0, o1, o2, o3, o4, o5, o6, o7] = out.as_chunks_mut::<8>().0 else { return };
    for col in 0..8 {
        let (x1, x3, x5, x7) = (r1[col], r3[col], r5[col], r7[col]);
        // Even part.
        let even2 = product(r2[col], 4433).wrapping_add(product(r6[col], 4433 - 15137));
        let even3 = product(r2[col], 4433 + 6270).wrapping_add(product(r6[col], 4433));
        let even0 = i32::from(r0[col].wrapping_add(r4[col])) << CONSTANT_BITS;
        let even1 = i32::from(r0[col].wrapping_sub(r4[col])) << CONSTANT_BITS;
        // Odd part.
        let (z3, z4) = (x7.wrapping_add(x3), x5.wrapping_add(x1));
        let both3 = product(z3, 9633 - 16069).wrapping_add(product(z4, 9633));
        let both4 = product(z3, 9633).wrapping_add(product(z4, 9633 - 3196));
        let odd0 = product(x1, 12299 - 7373).wrapping_add(product(x7, -7373)).wrapping_add(both4);
        let odd1 = product(x3, 25172 - 20995).wrapping_add(product(x5, -20995)).wrapping_add(both3);
        let odd2 = product(x5, 16819 - 20995).wrapping_add(product(x3, -20995)).wrapping_add(both4);
        let odd3 = product(x7, 2446 - 7373).wrapping_add(product(x1, -7373)).wrapping_add(both3);
        let (sum0, sum3) = (even0.wrapping_add(even3), even0.wrapping_sub(even3));
        let (sum1, sum2) = (even1.wrapping_add(even2), even1.wrapping_sub(even2));
        o0[col] = scaled::<SHIFT>(sum0.wrapping_add(odd0));
        o1[col] = scaled::<SHIFT>(sum1.wrapping_add(odd1));
        o2[col] = scaled::<SHIFT>(sum2.wrapping_add(odd2));
        o3[col] = scaled::<SHIFT>(sum3.wrapping_add(odd3));
        o4[col] = scaled::<SHIFT>(sum3.wrapping_sub(odd3));
        o5[col] = scaled::<SHIFT>(sum2.wrapping_sub(odd2));
        o6[col] = scaled::<SHIFT>(sum1.wrapping_sub(odd1));
        o7[col] = scaled::<SHIFT>(sum0.wrapping_sub(odd0));
    }
}

#[inline(always)]
fn scaled<const SHIFT: u32>(value: i32) -> i16 {
    let rounded = value.wrapping_add(1 << (SHIFT - 1)) >> SHIFT;
    rounded.clamp(i32::from(i16::MIN), i32::from(i16::MAX)) as i16
}

/// Transposes a block by three interleaves of its halves. Each moves the upper three bits of an index down by
/// one.
#[inline(always)]
fn transposed<T: Copy + Default>(values: &mut [T; 64]) {
    let mut other = [T::default(); 64];
    in_turns(values, &mut other);
    in_turns(&other, values);
    in_turns(values, &mut other);
    *values = other;
}

// Not inlined, because the compiler would otherwise move the numbers one by one.
#[inline(never)]
fn in_turns<T: Copy>(values: &[T; 64], both: &mut [T; 64]) {
    let (first, second) = values.split_at(32);
    for ((pair, first), second) in both.as_chunks_mut::<2>().0.iter_mut().zip(first).zip(second) {
        *pair = [*first, *second];
    }
}
