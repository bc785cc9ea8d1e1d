//! Changes that faults make to inputs: rounded numbers, slots of other blocks.

use half::bf16;

use super::{Fault, Faulty};
use crate::{Allocation, Backend, Batch, DeviceMemory, KvLayout, KvSpec, RowSource, SequenceSpan};

pub(super) fn in_bf16(value: f32) -> f32 {
    bf16::from_f32(value).to_f32()
}

/// Activations as a device may hold them: integers of up to ±`levels` for each 256, scaled by the largest of them or,
/// if it is larger, by `shared`.
pub(super) fn rounded(x: &[f32], levels: f32, shared: f32) -> Vec<f32> {
    x.chunks(256)
        .flat_map(|x| {
            let largest = x.iter().fold(shared, |m, v| m.max(v.abs()));
            let step = largest / levels;
            x.iter().map(move |v| if step < f32::MIN_POSITIVE { 0.0 } else { (v / step).round() * step })
        })
        .collect()
}

/// Moves each row's slot to the place that the changed block table gives its position.
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

/// The batch with these spans and windows in place of its own. `block` returns the block that a group has for 16
/// tokens of a sequence, which it is given as it was.
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

impl Faulty {
    /// `kv_bytes`.
    pub(super) fn cache_bytes(&self, spec: &KvSpec) -> usize {
        if self.fault == Fault::StatesForgotten {
            return self.inner.bytes(&Allocation::Kv(&KvSpec { states: 0, ..spec.clone() }));
        }
        if self.fault == Fault::LayersOfFirst {
            let layers = vec![spec.layers[0]; spec.layers.len()];
            return self.inner.bytes(&Allocation::Kv(&KvSpec { layers, ..spec.clone() }));
        }
        if self.fault == Fault::LatentForgotten {
            let layers =
                spec.layers.iter().copied().filter(|layout| matches!(layout, KvLayout::Heads { .. }));
            return self.inner.bytes(&Allocation::Kv(&KvSpec { layers: layers.collect(), ..spec.clone() }));
        }
        self.inner.bytes(&Allocation::Kv(spec))
    }

    /// Takes the batch of a step that begins.
    pub(super) fn take_batch(&mut self, batch: &Batch) {
        self.batch = batch.clone();
        let shifted = usize::from(self.fault == Fault::NextRowSampled);
        let draws = self.inner.draws();
        for source in &mut self.batch.sources {
            match *source {
                RowSource::Sampled(index) => {
                    let index = if shifted == 1 { (index + 1) % 5 } else { index };
                    *source = RowSource::Token(draws.token(index));
                }
                RowSource::Embedding if self.fault == Fault::WrittenRowEmbedded => {
                    *source = RowSource::Token(0);
                }
                RowSource::Token(_) | RowSource::Embedding => {}
            }
        }
        self.open = true;
        if self.fault == Fault::PositionFromRow {
            self.batch.positions = (0..batch.rows() as u32).collect();
        }
    }
}
