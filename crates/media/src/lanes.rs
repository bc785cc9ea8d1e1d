//! Bytes times weights, many sums side by side, as processors without wide products of 32 bits are fast at: a weight is two numbers of 16 bits,
//! and the sum of each kind is exact, so what comes out is what one sum would be.

/// Sums side by side.
pub(crate) const LANES: usize = 16;

/// Bits of a weight after the point.
pub(crate) const PRECISION: u32 = 32 - 8 - 2;
/// Half of the last place that stays.
pub(crate) const HALF: i32 = 1 << (PRECISION - 1);
/// Bits of a weight's lower number.
const LOW_BITS: u32 = 11;

/// A sum of weights times bytes, and [`HALF`], as a byte.
pub(crate) fn rounded(sum: i32) -> u8 {
    (sum >> PRECISION).clamp(0, 255) as u8
}

/// The rounded sums of bytes times their weights; a weight is below 2^26, and the sum fits 32 bits, whatever it passes on the way.
pub(crate) fn sums(taps: impl Iterator<Item = ([u8; LANES], i32)>) -> [u8; LANES] {
    let (mut high, mut low) = ([0i32; LANES], [HALF; LANES]);
    for (values, weight) in taps {
        // The compiler multiplies what it knows to fit 16 bits in one instruction.
        let [by_high, by_low] = [weight >> LOW_BITS, weight & ((1 << LOW_BITS) - 1)].map(|part| part as i16);
        for lane in 0..LANES {
            let value = i32::from(i16::from(values[lane]));
            high[lane] = high[lane].wrapping_add(value.wrapping_mul(i32::from(by_high)));
            low[lane] = low[lane].wrapping_add(value.wrapping_mul(i32::from(by_low)));
        }
    }
    std::array::from_fn(|lane| rounded((high[lane] << LOW_BITS).wrapping_add(low[lane])))
}

/// The bytes of two lines in turns.
fn zip(first: &[u8], second: &[u8], both: &mut [u8]) {
    for ((both, &first), &second) in both.as_chunks_mut::<2>().0.iter_mut().zip(first).zip(second) {
        *both = [first, second];
    }
}

/// Lines side by side: at each place the bytes that all of them have there.
#[derive(Debug)]
pub(crate) struct Strip {
    line: usize,
    lines: Vec<u8>, // (LANES, line), and so on with half as many lines that are twice as long, until it is one
    other: Vec<u8>, // as many
}

impl Strip {
    /// For lines of so many bytes.
    pub(crate) fn new(line: usize) -> Strip {
        let [lines, other] = [(); 2].map(|()| vec![0; line * LANES]);
        Strip { line, lines, other }
    }

    /// Takes as many lines at most as there are lanes; where there are fewer, nothing is said of the bytes of others.
    pub(crate) fn take<'a>(&mut self, lines: impl Iterator<Item = &'a [u8]>) -> &[[u8; LANES]] {
        for (own, line) in self.lines.chunks_exact_mut(self.line).zip(lines) {
            own.copy_from_slice(line);
        }
        // Line i with line i + 8, what that gives with that of i + 4, and so on: each place has its lines in order in the end.
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
            // Of one, with some that take away, as filters have them.
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
