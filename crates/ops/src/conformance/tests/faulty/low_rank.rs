//! Faults of adapters.

use std::borrow::Borrow;

use super::{Fault, Faulty};
use crate::reference::{ReferenceBackend, ReferenceBuffer, formulas};
use crate::{Activation, DeviceMemory, KernelError, LowRankPair, OutputChange, OutputDelta};

/// Change by an adapter to the outputs of one matrix.
pub(in super::super) struct FaultyLowRank {
    changes: Vec<FaultyChange>,
    pairs: Vec<FaultyPair>,
}

struct FaultyChange {
    first: usize,
    factors: Vec<f32>,
    addends: Vec<f32>,
    reads_input: bool,
}

struct FaultyPair {
    a: Option<Vec<f32>>,
    b: Vec<f32>,
    scale: f32,
    first: usize,
}

impl Faulty {
    pub(super) fn low_rank_of(&self, delta: &OutputDelta<'_>) -> Result<FaultyLowRank, KernelError> {
        if self.fault != Fault::ShortBytesTaken {
            ReferenceBackend::new().low_rank(delta)?;
        }
        let floats = |source: &crate::MatrixSource<'_>| {
            let mut floats = vec![0.0; source.shape.rows * source.shape.cols];
            if source.shape.dtype.bytes_of(floats.len()) == Some(source.bytes.len()) {
                crate::quant::dequantize_row(source.shape.dtype, source.bytes, &mut floats);
            }
            floats
        };
        let pair = |pair: &LowRankPair<'_>| FaultyPair {
            a: pair.a.as_ref().map(floats),
            b: floats(&pair.b),
            scale: pair.scale,
            first: pair.first,
        };
        let change = |change: &OutputChange<'_>| FaultyChange {
            first: change.first,
            factors: change.factors.to_vec(),
            addends: change.addends.to_vec(),
            reads_input: change.reads_input && self.fault != Fault::AdapterInputIgnored,
        };
        Ok(FaultyLowRank {
            changes: delta.changes.iter().map(change).collect(),
            pairs: delta.pairs.iter().map(pair).collect(),
        })
    }

    /// Applies the change to one row.
    fn apply(&self, delta: &FaultyLowRank, x: &[f32], out: &mut [f32]) {
        for FaultyChange { first, factors, addends, reads_input } in &delta.changes {
            for (i, (&factor, &addend)) in factors.iter().zip(addends).enumerate() {
                let y = f64::from(if *reads_input { x[first + i] } else { out[first + i] });
                let factor = if self.fault == Fault::AdapterFactorIgnored { 1.0 } else { f64::from(factor) };
                let addend = if self.fault == Fault::AdapterAddendIgnored { 0.0 } else { f64::from(addend) };
                out[first + i] = factor.mul_add(y, addend) as f32;
            }
        }
        for (index, FaultyPair { a, b, scale, first }) in delta.pairs.iter().enumerate() {
            let first = if self.fault == Fault::AdapterColumnsFromFirst { 0 } else { *first };
            let scale = if self.fault == Fault::AdapterScaleIgnored { 1.0 } else { *scale };
            if self.fault == Fault::AdapterPartDropped && index > 0 {
                continue;
            }
            let mut narrow: Vec<f32> = match a {
                Some(a) => a.chunks_exact(x.len()).map(|a| formulas::dot(a, x) as f32).collect(),
                None => x.to_vec(),
            };
            if let Some(a) =
                a.as_ref().filter(|_| self.fault == Fault::SumOrderOfBatch && self.batch.rows() > 4)
            {
                let sum = |a: &[f32]| a.iter().zip(x).map(|(a, x)| a * x).rev().sum::<f32>();
                narrow = a.chunks_exact(x.len()).map(sum).collect();
            }
            for (out, b) in out[first..].iter_mut().zip(b.chunks_exact(narrow.len())) {
                let delta = f64::from(scale) * formulas::dot(b, &narrow);
                let before = if self.fault == Fault::AdapterReplaces { 0.0 } else { f64::from(*out) };
                *out = (before + delta) as f32;
            }
        }
    }

    /// Changes rows of logits, for all rows of `x`.
    pub(super) fn change_logits(&self, deltas: &[Option<&FaultyLowRank>], x: &[f32], out: &mut [f32]) {
        let rows = self.batch.logit_rows.len().max(1);
        let (vocab, cols) = (out.len() / rows, x.len() / self.batch.rows());
        for (index, row, adapter) in self.batch.adapted_logit_rows() {
            let index = if self.fault == Fault::AdapterOfFirstLogits { 0 } else { index as usize };
            if let Some(Some(delta)) = deltas.get(adapter as usize) {
                self.apply(delta, &x[row as usize * cols..][..cols], &mut out[index * vocab..][..vocab]);
            }
        }
    }

    pub(super) fn add_deltas<L: Borrow<FaultyLowRank>>(
        &mut self,
        deltas: &[Option<L>],
        x: &ReferenceBuffer,
        _low: Option<&mut ReferenceBuffer>,
        out: &mut ReferenceBuffer,
    ) {
        let (cols, outputs) = (x.cols(), out.cols());
        let (x, mut rows) = (self.rows_of(x, cols), self.rows_of(out, outputs));
        let mut adapted: Vec<(u32, u32)> = self.batch.adapted_rows().collect();
        if self.fault == Fault::AdapterOfFirstRow
            && let Some(&(_, first)) = adapted.first()
        {
            adapted.iter_mut().for_each(|(_, adapter)| *adapter = first);
        }
        if self.fault == Fault::AdapterSpread && !adapted.is_empty() {
            let all: Vec<u32> = (0..self.batch.rows() as u32).collect();
            let of = |row: u32| adapted.iter().find(|(of, _)| *of == row).map_or(0, |&(_, adapter)| adapter);
            adapted = all.into_iter().map(|row| (row, of(row))).collect();
        }
        for (row, adapter) in adapted {
            let Some(delta) = &deltas[adapter as usize] else { continue };
            let x = &x[row as usize * cols..][..cols];
            self.apply(delta.borrow(), x, &mut rows[row as usize * outputs..][..outputs]);
        }
        self.store(out, rows);
    }

    /// `activation(gate) * up` of rows of both.
    pub(super) fn gated_halves(&self, activation: Activation, both: &[f32], width: usize) -> Vec<f32> {
        let act = |v: f32| self.act(activation, v);
        both.chunks_exact(2 * width)
            .flat_map(|row| {
                let (gate, up) = row.split_at(width);
                let (gate, up) = if self.fault == Fault::GateUpSwapped { (up, gate) } else { (gate, up) };
                gate.iter().zip(up).map(|(&gate, &up)| match self.fault {
                    Fault::ActivationOfUp => act(gate) * act(up),
                    _ => act(gate) * formulas::factor(activation, f64::from(up)) as f32,
                })
            })
            .collect()
    }
}
