//! Convolutions and activations with their faults.

use super::*;
use crate::{PointActivation, SequenceSpan};

impl Faulty {
    /// Runs an op of vocoders.
    pub(super) fn run_on_grids(&mut self, op: DeviceOp<'_, Self>) {
        match op {
            Op::Activate { activation, out } => {
                if self.fault != Fault::ActivationSkipped {
                    self.inner.run(Op::Activate { activation, out: &mut *out });
                }
                let rows = self.rows_of(out, out.cols());
                self.store(out, rows);
            }
            Op::Conv { x, affine, before, weight, bias, mut params, add, out } => {
                let weight = &self.kernel(weight, params.taps());
                let (before, bias) =
                    (self.activation(before), bias.filter(|_| self.fault != Fault::BiasIgnored));
                let add = add.filter(|_| self.fault != Fault::AddendsIgnored);
                if self.fault == Fault::PaddingSwapped {
                    params.padding.iter_mut().for_each(|ends| ends.reverse());
                }
                let batch = self.grid_batch();
                self.with_batch(&batch, |inner| {
                    inner.run(Op::Conv { x, affine, before, weight, bias, params, add, out });
                });
            }
            Op::ConvTranspose { x, affine, before, weight, bias, params, out } => {
                let weight = &self.kernel(weight, params.taps());
                let (before, bias) =
                    (self.activation(before), bias.filter(|_| self.fault != Fault::BiasIgnored));
                self.inner.run(Op::ConvTranspose { x, affine, before, weight, bias, params, out });
            }
            Op::InstanceAffine { x, places, mut params, out } => {
                let ones = vec![1.0; params.weight.len()];
                if self.fault == Fault::WeightsIgnored {
                    params.weight = &ones;
                }
                let batch = self.grid_batch();
                self.with_batch(&batch, |inner| inner.run(Op::InstanceAffine { x, places, params, out }));
            }
            Op::Mirror { x, channels, places, before, out } => {
                // Without the last of them.
                let before = before - usize::from(self.fault == Fault::LastOutputsSkipped && before > 0);
                self.inner.run(Op::Mirror { x, channels, places, before, out });
            }
            Op::Lstm { gates, recurrent, out } => {
                let mut recurrent = recurrent.clone();
                if self.fault == Fault::DecayIgnored {
                    recurrent.fill(0.0);
                }
                let batch = self.grid_batch();
                self.with_batch(&batch, |inner| inner.run(Op::Lstm { gates, recurrent: &recurrent, out }));
            }
            Op::RelativeAttention { qkv, mut params, out } => {
                let zeros = vec![0.0; params.keys.len()];
                if self.fault == Fault::KeyTermDropped {
                    params.keys = &zeros;
                }
                if self.fault == Fault::AddendsIgnored {
                    params.values = &zeros;
                }
                let batch = self.grid_batch();
                self.with_batch(&batch, |inner| inner.run(Op::RelativeAttention { qkv, params, out }));
            }
            _ => panic!("an op without a check"),
        }
    }

    fn activation<'a>(
        &self,
        before: Option<PointActivation<&'a Vec<f32>>>,
    ) -> Option<PointActivation<&'a Vec<f32>>> {
        before.filter(|_| self.fault != Fault::ActivationSkipped)
    }

    fn kernel(&self, weight: &[Part], taps: usize) -> crate::reference::ReferenceMatrix {
        let mut numbers = weight[0].floats.clone();
        if self.fault == Fault::TapsReversed {
            numbers.chunks_exact_mut(taps).for_each(<[f32]>::reverse);
        }
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.inner.pack(&[MatrixSource { name: "kernel", shape: weight[0].shape, bytes: &bytes }]).unwrap()
    }

    /// The batch, or all of it as one sequence.
    fn grid_batch(&self) -> Batch {
        let mut batch = self.batch.clone();
        let rows = batch.rows() as u32;
        if self.fault == Fault::NeighboursSeen {
            batch.sequences = vec![SequenceSpan { row_first: 0, rows, context: rows, table_first: 0 }];
        }
        batch
    }
}
