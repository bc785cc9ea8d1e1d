//! What faults make of what they are given: rounded numbers, slots of other blocks.

use half::bf16;

use crate::{BLOCK_TOKENS, Batch};

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
    for span in &batch.sequences {
        for row in 0..span.rows {
            let position = (span.context - span.rows + row) as usize;
            let block = batch.block_tables[span.table_first as usize + position / BLOCK_TOKENS];
            batch.slots[(span.row_first + row) as usize] =
                block * BLOCK_TOKENS as u32 + (position % BLOCK_TOKENS) as u32;
        }
    }
}
