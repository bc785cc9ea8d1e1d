//! Faults of products and of operations on their outputs.

use super::{Fault, Faulty, Part, in_bf16, rounded};
use crate::Activation;
use crate::reference::formulas;

impl Faulty {
    /// `(rows, outputs)`.
    pub(super) fn product(&self, parts: &[Part], bias: Option<&[f32]>, x: &[f32]) -> Vec<f32> {
        let cols = parts[0].shape.cols;
        let rows = x.len() / cols;
        let batch_max = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        let mut out = Vec::new();
        for x in x.chunks_exact(cols) {
            let mut outputs = Vec::new();
            for part in parts {
                let quantised =
                    part.shape.dtype.block_weights() > 1 || self.fault == Fault::EightBitsBeforeFloats;
                let (levels, shared) = match self.fault {
                    Fault::SixBitActivations => (31.0, 0.0),
                    Fault::ScaleOfBatch => (127.0, batch_max),
                    _ => (127.0, 0.0),
                };
                let mut x = match (self.rounds_operands(), quantised) {
                    (true, _) => x.iter().map(|&x| in_bf16(x)).collect(),
                    (false, true) => rounded(x, levels, shared),
                    (false, false) => x.to_vec(),
                };
                if self.fault == Fault::LastGroupDropped {
                    x[cols - cols.min(32)..].fill(0.0);
                }
                for weights in part.floats.chunks_exact(cols) {
                    let mut sum = if self.fault == Fault::SumOrderOfBatch {
                        // Behaviour of a kernel that sums in f32, in another order for larger batches.
                        let products = weights.iter().zip(&x).map(|(w, x)| w * x);
                        if rows > 4 {
                            products.rev().sum::<f32>().into()
                        } else {
                            products.sum::<f32>().into()
                        }
                    } else if self.rounds_operands() {
                        let weights: Vec<f32> = weights.iter().map(|&w| in_bf16(w)).collect();
                        formulas::dot(&weights, &x)
                    } else {
                        formulas::dot(weights, &x)
                    };
                    if self.fault == Fault::ScaleTwoPercentOff && quantised {
                        sum *= 1.02;
                    }
                    outputs.push(sum);
                }
            }
            if self.fault == Fault::PartsSwapped {
                outputs.rotate_left(parts[0].shape.rows);
            }
            if let Some(bias) = bias.filter(|_| self.fault != Fault::BiasIgnored) {
                outputs.iter_mut().zip(bias).for_each(|(out, &bias)| *out += f64::from(bias));
            }
            if self.fault == Fault::LastOutputsSkipped {
                let whole = outputs.len() / 16 * 16;
                outputs[whole..].fill(0.0);
            }
            if self.fault == Fault::LastOutputNan {
                outputs.pop();
                outputs.push(f64::NAN);
            }
            out.extend(outputs.into_iter().map(|v| v as f32));
        }
        out
    }

    pub(super) fn act(&self, activation: Activation, v: f32) -> f32 {
        let activation = match (self.fault, activation) {
            (Fault::GeluSwapped, Activation::GeluErf) => Activation::GeluTanh,
            (Fault::GeluSwapped, Activation::GeluTanh) => Activation::GeluErf,
            (Fault::QuickAsSilu, Activation::QuickGelu) => Activation::Silu,
            (Fault::SquareForgotten, Activation::ReluSquared) => Activation::Relu,
            _ => activation,
        };
        formulas::activate(activation, f64::from(v)) as f32
    }
}
