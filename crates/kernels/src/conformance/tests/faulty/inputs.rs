//! What faults make of what they are given: rounded numbers, slots of other blocks.

use half::bf16;

use crate::{Batch, SequenceSpan};

pub(super) fn in_bf16(value: f32) -> f32 {
    bf16::from_f32(value).to_f32()
}

/// Activations as a device may hold them: integers of up to ±`levels` for each 256, by the largest of them or, if it
/// is larger, by `shared`.
pub(super) fn rounded(x: &[f32], levels: f32, shared: f32) -> Vec<f32> {
    x.chunks(256)
        .flat_map(|x| {
            let largest = x.iter().fold(shared, |m, v| m.max(v.abs()));
            let step = largest / levels;
            x.iter().map(move |v| if step < f32::MIN_POSITIVE { 0.0 } else { (v / step).round() * step })
        })
        .collect()
}

/// Puts each row's slot where the changed block table has its position.
pub(super) fn renumber_slots(batch: &mut Batch) {
    for span in &batch.sequences.clone() {
        for row in 0..span.rows {
            let key = span.context - span.rows + row;
            for group in 0..batch.groups() {
                let slot = batch.slot(span, group, key);
                let at = (span.row_first + row) as usize * batch.groups() + group;
                batch.slots[at] = slot as u32;
            }
        }
    }
}

/// The batch with these spans and windows in the place of its own. `block` says which block a group has of 16 tokens of a
/// sequence, which it gets as it was.
pub(super) fn laid_out(
    batch: &Batch,
    spans: &[SequenceSpan],
    windows: Vec<Option<u32>>,
    block: impl Fn(&SequenceSpan, usize, usize) -> u32,
) -> Batch {
    let mut laid = Batch { windows, ..Batch::default() };
    for (span, before) in spans.iter().zip(&batch.sequences) {
        laid.push_sequence(span.rows as usize, span.context as usize, |group, index| {
            block(before, group, index)
        });
    }
    let Batch { sources, positions, logit_rows, .. } = batch.clone();
    Batch { sources, positions, logit_rows, ..laid }
}
