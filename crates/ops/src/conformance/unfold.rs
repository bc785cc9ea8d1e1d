//! Check of `unfold`.

use super::bounds::{hold, same_bits};
use super::random::Random;
use super::rig::{Rig, whole_batch};
use crate::{AnyBackend, BufferRole};

/// Sequences of one row, of fewer rows than a window, and of more.
const LENGTHS: [u32; 6] = [1, 5, 2, 40, 3, 1];

/// Checks `unfold`: every neighbour in its place, and zeros past the ends of a sequence, whatever the memory holds.
///
/// # Panics
/// If a bit differs.
pub fn check_unfold(make: &dyn Fn() -> AnyBackend) {
    let mut random = Random::new(24);
    let rows = LENGTHS.iter().sum::<u32>() as usize;
    for (cols, window) in [(1, 3), (33, 1), (64, 3), (20, 5), (16, 7)] {
        let mut rig = Rig::for_rows(make(), rows, cols * window, 1);
        rig.role = if window == 3 { BufferRole::Residual } else { BufferRole::Operand };
        let mut x = random.normals(rows * cols);
        hold(rig.rounding, &mut x);
        let (from, mut out) = (rig.upload(&x, cols), rig.blank(rows, cols * window));
        rig.step(&whole_batch(&LENGTHS), |rig| rig.backend.unfold(&from, window, &mut out));
        let mut expected = Vec::new();
        let mut first = 0;
        for length in LENGTHS.map(|length| length as usize) {
            for row in 0..length {
                for col in 0..cols {
                    expected.extend((0..window).map(|t| {
                        let at = (row + t).checked_sub(window / 2).filter(|&at| at < length);
                        at.map_or(0.0, |at| x[(first + at) * cols + col])
                    }));
                }
            }
            first += length;
        }
        let what = format!("unfold of [{rows}, {cols}], window {window}");
        same_bits(&what, &rig.download("unfold", &out, rows, cols * window), &expected, cols * window);
    }
}
