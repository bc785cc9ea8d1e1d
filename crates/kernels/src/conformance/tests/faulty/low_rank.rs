//! The faults of adapters.

use std::borrow::Borrow;

use super::{Fault, Faulty};
use crate::reference::{ReferenceBackend, ReferenceBuffer, formulas};
use crate::{Activation, Backend, KernelError, LowRankPair};

/// What one adapter adds to one matrix: A, B, scale, first output.
pub(in super::super) struct FaultyLowRank(Vec<(Vec<f32>, Vec<f32>, f32, usize)>);

impl Faulty {
    pub(super) fn low_rank_of(&self, pairs: &[LowRankPair<'_>]) -> Result<FaultyLowRank, KernelError> {
        if self.fault != Fault::ShortBytesTaken {
            ReferenceBackend::new().low_rank(pairs)?;
        }
        let floats = |source: &crate::MatrixSource<'_>| {
            let mut floats = vec![0.0; source.shape.rows * source.shape.cols];
            if source.shape.dtype.bytes_of(floats.len()) == Some(source.bytes.len()) {
                crate::quant::dequantize_row(source.shape.dtype, source.bytes, &mut floats);
            }
            floats
        };
        let pair = |pair: &LowRankPair<'_>| (floats(&pair.a), floats(&pair.b), pair.scale, pair.first);
        Ok(FaultyLowRank(pairs.iter().map(pair).collect()))
    }

    pub(super) fn add_deltas<L: Borrow<FaultyLowRank>>(
        &mut self,
        deltas: &[Option<L>],
        x: &ReferenceBuffer,
        _low: &mut ReferenceBuffer,
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
            let FaultyLowRank(pairs) = delta.borrow();
            let x = &x[row as usize * cols..][..cols];
            let out = &mut rows[row as usize * outputs..][..outputs];
            for (index, (a, b, scale, first)) in pairs.iter().enumerate() {
                let first = if self.fault == Fault::AdapterColumnsFromFirst { 0 } else { *first };
                let scale = if self.fault == Fault::AdapterScaleIgnored { 1.0 } else { *scale };
                if self.fault == Fault::AdapterPartDropped && index > 0 {
                    continue;
                }
                let mut narrow: Vec<f32> = a.chunks_exact(cols).map(|a| formulas::dot(a, x) as f32).collect();
                if self.fault == Fault::SumOrderOfBatch && self.batch.rows() > 4 {
                    let sum = |a: &[f32]| a.iter().zip(x).map(|(a, x)| a * x).rev().sum::<f32>();
                    narrow = a.chunks_exact(cols).map(sum).collect();
                }
                for (out, b) in out[first..].iter_mut().zip(b.chunks_exact(narrow.len())) {
                    let delta = f64::from(scale) * formulas::dot(b, &narrow);
                    let before = if self.fault == Fault::AdapterReplaces { 0.0 } else { f64::from(*out) };
                    *out = (before + delta) as f32;
                }
            }
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
