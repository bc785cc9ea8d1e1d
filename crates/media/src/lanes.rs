//! Sums of bytes times weights, many side by side, for CPUs without fast 32-bit products. A weight is split
//! into two 16-bit numbers. Both sums are exact, so the result equals that of a single sum.

/// Number of sums side by side.
pub(crate) const LANES: usize = 16;

/// Fractional bits of a weight.
pub(crate) const PRECISION: u32 = 32 - 8 - 2;
/// Half of the last digit kept, for rounding.
pub(crate) const HALF: i32 = 1 << (PRECISION - 1);
/// Bits of a weight's lower number.
const LOW_BITS: u32 = 11;

/// Converts a sum of weights times bytes, plus [`HALF`], to a byte.
pub(crate) fn rounded(sum: i32) -> u8 {
    (sum >> PRECISION).clamp(0, 255) as u8
}

/// Rounded sums of bytes times weights. A weight is below 2^26, and the final sum fits 32 bits, even if
/// intermediate sums wrap.
pub(crate) fn sums(taps: impl Iterator<Item = ([u8; LANES], i32)>) -> [u8; LANES] {
    let (mut high, mut low) = ([0i32; LANES], [HALF; LANES]);
    for (values, weight) in taps {
        // The compiler uses one instruction for products of values known to fit 16 bits.
        let [by_high, by_low] = [weight >> LOW_BITS, weight & ((1 << LOW_BITS) - 1)].map(|part| part as i16);
        for lane in 0..LANES {
            let value = i32::from(i16::from(values[lane]));
            high[lane] = high[lane].wrapping_add(value.wrapping_mul(i32::from(by_high)));
            low[lane] = low[lane].wrapping_add(value.wrapping_mul(i32::from(by_low)));
        }
    }
    std::array::from_fn(|lane| rounded((high[lane] << LOW_BITS).wrapping_add(low[lane])))
}

/// Interleaves the bytes of two lines.
fn zip(first: &[u8], second: &[u8], both: &mut [u8]) {
    for ((both, &first), &second) in both.as_chunks_mut::<2>().0.iter_mut().zip(first).zip(second) {
        *both = [first, second];
    }
}

/// Transposed lines: at each position the bytes of all lines.
#[derive(Debug)]
pub(crate) struct Strip {
    line: usize,
    lines: Vec<u8>, // (LANES, line); each step halves the lines and doubles their length, until it is one
    other: Vec<u8>, // same size
}

impl Strip {
    /// Creates a strip for lines of `line` bytes.
    pub(crate) fn new(line: usize) -> Strip {
        let [lines, other] = [(); 2].map(|()| vec![0; line * LANES]);
        Strip { line, lines, other }
    }

    /// Transposes at most `LANES` lines. With fewer lines, the bytes of the others are unspecified.
    pub(crate) fn take<'a>(&mut self, lines: impl Iterator<Item = &'a [u8]>) -> &[[u8; LANES]] {
        for (own, line) in self.lines.chunks_exact_mut(self.line).zip(lines) {
            own.copy_from_slice(line);
        }
        // Interleave line i with line i + 8, the results with i + 4, and so on. In the end each position has
        // its lines in order.
        let (mut count, mut line) = (LANES, self.line);
        while count > 1 {
            let (first, second) = self.lines.split_at(count / 2 * line);
            let pairs = first.chunks_exact(line).zip(second.chunks_exact(line));
            for ((first, second), both) in pairs.zip(self.other.chunks_exact_mut(2 * line)) {
                zip(first, second, both);
            }
            std::mem::swap(&mut self.lines, &mut self.other);
            (count, line) = (count / 2, 2 * line);
        }
        self.lines.as_chunks().0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_whole_weights() {
        let mut state = 7u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for taps in [0, 1, 2, 5, 8, 300, 9000] {
            // Weights that sum to one, some of them negative, as in filters.
            let most = (2 << PRECISION) / taps.max(1) as u64;
            let taps: Vec<([u8; LANES], i32)> = (0..taps)
                .map(|_| {
                    let values = std::array::from_fn(|_| random(256) as u8);
                    (values, random(most) as i32 - (most / 4) as i32)
                })
                .collect();
            let known: [u8; LANES] = std::array::from_fn(|lane| {
                let sum: i64 =
                    taps.iter().map(|(values, weight)| i64::from(values[lane]) * i64::from(*weight)).sum();
                rounded(i32::try_from(sum + i64::from(HALF)).unwrap())
            });
            assert_eq!(sums(taps.into_iter()), known);
        }
    }

    #[test]
    fn a_strip_has_the_bytes_of_all_lines_at_each_place() {
        for length in [1, 3, 21, 300] {
            let lines: Vec<Vec<u8>> =
                (0..LANES).map(|line| (0..length).map(|at| (line * 37 + at * 11) as u8).collect()).collect();
            let mut strip = Strip::new(length);
            for count in [LANES, 5, LANES] {
                let found = strip.take(lines[..count].iter().map(Vec::as_slice));
                for (at, place) in found.iter().enumerate() {
                    assert!((0..count).all(|line| place[line] == lines[line][at]), "{count} lines at {at}");
                }
                assert_eq!(found.len(), length);
            }
        }
    }
}
