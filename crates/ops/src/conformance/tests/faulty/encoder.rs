//! Faults of the ops on rows of whole sequences.

use std::ops::Range;

use half::f16;

use super::super::super::rig::whole_batch;
use super::{Fault, Faulty, Part};
use crate::reference::{ReferenceBuffer, formulas};
use crate::{
    Activation, BufferRole, DeviceMemory, HeadShape, LayerNormParams, NormColumns, PositionBias, QkvParams,
    Rope, RopeAxes, RopeKind, RowIds, SelfAttentionParams, SequenceSpan,
};

impl Faulty {
    /// `layer_norm` of rows of `x`.
    pub(super) fn layer_normed(&self, x: &[f32], params: &LayerNormParams<&Vec<f32>>) -> Vec<f32> {
        let cols = params.weight.len();
        let ones = vec![1.0; cols];
        let weight = if self.fault == Fault::NormWeightIgnored { &ones } else { params.weight };
        let bias = params.bias.filter(|_| self.fault != Fault::LayerBiasIgnored);
        let mut eps = if self.fault == Fault::EpsIgnored { 0.0 } else { params.eps };
        let mut out = vec![0.0; x.len()];
        for (x, out) in x.chunks_exact(cols).zip(out.chunks_exact_mut(cols)) {
            let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / cols as f64;
            let variance = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / cols as f64;
            match self.fault {
                Fault::MeanKept => {
                    formulas::rms_norm(x, weight, eps, out);
                    out.iter_mut().zip(bias.into_iter().flatten()).for_each(|(out, bias)| *out += bias);
                    continue;
                }
                Fault::NormOverPaddedWidth => {
                    let mut padded = x.to_vec();
                    padded.resize(cols.next_multiple_of(16), 0.0);
                    let ones = vec![1.0; padded.len()];
                    let mut wide = padded.clone();
                    formulas::layer_norm(&padded, &ones, None, eps, &mut wide);
                    for (i, out) in out.iter_mut().enumerate() {
                        *out = wide[i] * weight[i] + bias.map_or(0.0, |bias| bias[i]);
                    }
                    continue;
                }
                Fault::VarianceUnbiased => {
                    eps = params.eps + (variance / cols.saturating_sub(1).max(1) as f64) as f32;
                }
                Fault::VarianceByDifference => {
                    let squares = x.iter().map(|x| x * x).sum::<f32>() / cols as f32;
                    let short = squares - (mean as f32).powi(2);
                    eps = (f64::from(params.eps) + f64::from(short) - variance) as f32;
                }
                _ => {}
            }
            formulas::layer_norm(x, weight, bias.map(|bias| &bias[..]), eps, out);
        }
        out
    }

    /// `layer_norm_columns`: the resulting rows.
    pub(super) fn columns_normed(
        &self,
        x: &ReferenceBuffer,
        NormColumns { first, width }: NormColumns,
        params: &LayerNormParams<&Vec<f32>>,
    ) -> Vec<f32> {
        let (cols, count) = (x.cols(), params.weight.len());
        let first = if self.fault == Fault::ColumnsFromFirst { 0 } else { first };
        let width = if self.fault == Fault::ColumnsTogether { count } else { width };
        let mut rows = self.rows_of(x, cols);
        for row in rows.chunks_exact_mut(cols) {
            for at in (0..count).step_by(width) {
                let (weight, bias) = (params.weight[at..at + width].to_vec(), params.bias);
                let bias = bias.map(|bias| bias[at..at + width].to_vec());
                let params = LayerNormParams { weight: &weight, bias: bias.as_ref(), eps: params.eps };
                let part = first + at..first + at + width;
                let normed = self.layer_normed(&row[part.clone()], &params);
                row[part].copy_from_slice(&normed);
            }
            if self.fault == Fault::OtherColumnsNormed {
                row[first + count..].fill(0.0);
            }
        }
        rows
    }

    /// `unfold`.
    pub(super) fn unfolded(&self, x: &ReferenceBuffer, window: usize) -> Vec<f32> {
        let (cols, spans) = (x.cols(), &self.batch.sequences);
        let rows = self.rows_of(x, cols);
        let mut out = vec![0.0; rows.len() * window];
        for span in spans {
            let own = span.row_first as usize..(span.row_first + span.rows) as usize;
            let seen = if self.fault == Fault::NeighboursSeen { 0..self.batch.rows() } else { own.clone() };
            for row in own {
                for t in 0..window {
                    let Some(from) = (row + t).checked_sub(window / 2).filter(|row| seen.contains(row))
                    else {
                        continue;
                    };
                    let to = if self.fault == Fault::UnfoldedBackwards { window - 1 - t } else { t };
                    for col in 0..cols {
                        out[(row * cols + col) * window + to] = rows[from * cols + col];
                    }
                }
            }
        }
        out
    }

    /// `add_embedding`: the resulting rows.
    pub(super) fn embedded(&self, table: &[Part], ids: RowIds, out: &ReferenceBuffer) -> Vec<f32> {
        let cols = table[0].shape.cols;
        let mut rows = self.rows_of(out, cols);
        for (row, out) in rows.chunks_exact_mut(cols).enumerate() {
            let id = match (self.fault, ids) {
                (Fault::OffsetIgnored, RowIds::Positions { .. }) => self.batch.positions[row] as usize,
                (Fault::TypesIgnored, RowIds::Types) => 0,
                _ => self.batch.table_row(ids, row),
            };
            for (out, &weight) in out.iter_mut().zip(&table[0].floats[id * cols..]) {
                *out = if self.fault == Fault::EmbeddingReplaces { weight } else { *out + weight };
            }
        }
        rows
    }

    /// `matmul_activated` of rows of `x`.
    pub(super) fn activated(
        &self,
        weight: &[Part],
        bias: Option<&Vec<f32>>,
        activation: Activation,
        x: &[f32],
    ) -> Vec<f32> {
        let late = if self.fault == Fault::ActivationBeforeBias { bias } else { None };
        let early = bias.filter(|_| late.is_none());
        let mut rows = self.product(weight, early.map(|bias| &bias[..]), x);
        if self.fault != Fault::ActivationSkipped {
            rows.iter_mut().for_each(|v| *v = self.act(activation, *v));
        }
        if let Some(bias) = late {
            let outputs = rows.chunks_exact_mut(bias.len());
            outputs.for_each(|row| row.iter_mut().zip(bias).for_each(|(v, bias)| *v += bias));
        }
        rows
    }

    /// `rope`.
    pub(super) fn turned(&mut self, qkv: &mut ReferenceBuffer, params: &QkvParams<&Vec<f32>>) {
        let heads = params.shape;
        let Some(rope) = &params.rope else { panic!("every check of `rope` turns") };
        let mut changed = Rope { ..*rope };
        let mut longer = rope.inv_freq.clone();
        let mut turned = heads;
        let (mut q_norm, mut k_norm) = (params.q_norm, params.k_norm);
        match self.fault {
            Fault::KindSwapped => {
                changed.kind = match rope.kind {
                    RopeKind::Neox => RopeKind::Interleaved,
                    RopeKind::Interleaved => RopeKind::Neox,
                };
            }
            Fault::WholeHeadTurned => {
                longer.resize(heads.head_dim / 2, 1e-2);
                changed.inv_freq = &longer;
            }
            Fault::MagnitudeIgnored => changed.magnitude = 1.0,
            Fault::AxesIgnored => changed.axes = None,
            Fault::AxesNextTurned => {
                let axes = changed.axes.map(|axes| RopeAxes { interleaved: !axes.interleaved, ..axes });
                changed.axes = axes;
            }
            // The same width, of which other parts are queries and keys.
            Fault::KeysNotTurned => {
                turned = HeadShape { heads: heads.heads - heads.kv_heads, ..heads };
            }
            Fault::QueriesNotNormed => q_norm = None,
            Fault::KeysNotNormed => k_norm = None,
            Fault::ValuesTurned => turned = HeadShape { heads: heads.heads + heads.kv_heads, ..heads },
            _ => {}
        }
        let width = heads.qkv_width();
        let mut rows = self.rows_of(qkv, width);
        for (index, row) in rows.chunks_exact_mut(width).enumerate() {
            let places = self.batch.axes.get(index).copied().zip(changed.axes);
            let at = |pair| match places {
                Some((places, axes)) => places[axes.of_pair(pair)],
                None => self.batch.positions[index],
            };
            let end = (turned.heads + turned.kv_heads) * heads.head_dim;
            for (index, head) in row[..end].chunks_exact_mut(heads.head_dim).enumerate() {
                let norm = if index < heads.heads { q_norm } else { k_norm };
                let normed = |head: &mut [f32]| {
                    if let Some(norm) = norm {
                        let x = head.to_vec();
                        formulas::rms_norm(&x, norm, params.norm_eps, head);
                    }
                };
                let late = self.fault == Fault::NormAfterRope;
                if !late {
                    normed(head);
                }
                formulas::rotate_by(head, changed.kind, changed.inv_freq, changed.magnitude, at);
                if late {
                    normed(head);
                }
            }
        }
        self.store(qkv, rows);
    }

    /// `self_attention`.
    pub(super) fn attend_within(
        &mut self,
        qkv: &ReferenceBuffer,
        params: &SelfAttentionParams<&Vec<f32>, &[u32]>,
        out: &mut ReferenceBuffer,
    ) {
        let HeadShape { heads, kv_heads, head_dim } = params.heads;
        let (width, q_width) = (params.heads.qkv_width(), params.heads.q_width());
        let mut bias = same(&params.bias);
        let (mut table, mut buckets) = (Vec::new(), Vec::new());
        match (self.fault, &params.bias) {
            (Fault::PositionBiasIgnored, _) => bias = PositionBias::None,
            (Fault::PositionBiasMirrored, PositionBias::ByDistance { table: right, reach }) => {
                for head in right.chunks_exact(2 * *reach as usize + 1) {
                    table.extend(head.iter().rev());
                }
                bias = PositionBias::ByDistance { table: &table, reach: *reach };
            }
            (
                Fault::PositionBiasMirrored,
                &PositionBias::Disentangled { keys, queries, buckets: count, bucket_of, reach },
            ) => {
                buckets.extend(bucket_of.iter().rev());
                let bucket_of = &buckets[..];
                bias = PositionBias::Disentangled { keys, queries, buckets: count, bucket_of, reach };
            }
            (Fault::PositionBiasOfFirstHead, PositionBias::Alibi { slopes }) => {
                table = vec![slopes[0]; heads];
                bias = PositionBias::Alibi { slopes: &table };
            }
            (Fault::PositionBiasOfFirstHead, PositionBias::ByDistance { table: right, reach }) => {
                table = right[..2 * *reach as usize + 1].repeat(heads);
                bias = PositionBias::ByDistance { table: &table, reach: *reach };
            }
            (Fault::FarBiasIgnored, PositionBias::ByDistance { table: right, reach }) => {
                // One step further there is nothing.
                for head in right.chunks_exact(2 * *reach as usize + 1) {
                    table.push(0.0);
                    table.extend(head);
                    table.push(0.0);
                }
                bias = PositionBias::ByDistance { table: &table, reach: reach + 1 };
            }
            (
                Fault::KeyTermDropped,
                &PositionBias::Disentangled { queries, buckets, bucket_of, reach, .. },
            ) => {
                bias = PositionBias::Disentangled { keys: None, queries, buckets, bucket_of, reach };
            }
            (
                Fault::QueryTermDropped,
                &PositionBias::Disentangled { keys, buckets, bucket_of, reach, .. },
            ) => {
                bias = PositionBias::Disentangled { keys, queries: None, buckets, bucket_of, reach };
            }
            (
                Fault::TermsNotScaled,
                &PositionBias::Disentangled { keys: Some(keys), buckets, bucket_of, reach, .. },
            ) => {
                table = keys.iter().map(|key| key / params.scale).collect();
                let keys = Some(&table);
                bias = PositionBias::Disentangled { keys, queries: None, buckets, bucket_of, reach };
            }
            _ => {}
        }
        let mut changed = SelfAttentionParams { bias, ..*params };
        match self.fault {
            Fault::ScaleIgnored => changed.scale = 1.0 / (head_dim as f32).sqrt(),
            Fault::ReachIgnored => changed.reach = None,
            Fault::PaddingSeen => changed.padding = 0,
            Fault::ReachOneMore => changed.reach = params.reach.map(|reach| reach + 1),
            Fault::ReachOneLess => changed.reach = params.reach.map(|reach| reach.saturating_sub(1)),
            _ => {}
        }
        let mut batch = self.batch.clone();
        let mut qkv = qkv.clone();
        let mut rows = self.rows_of(&qkv, width);
        match self.fault {
            Fault::NeighboursSeen => {
                let rows = batch.rows() as u32;
                batch.sequences = vec![SequenceSpan { row_first: 0, rows, context: rows, table_first: 0 }];
            }
            Fault::KeysHalved => {
                for row in rows.chunks_exact_mut(width) {
                    let keys = &mut row[q_width..q_width + kv_heads * head_dim];
                    keys.iter_mut().for_each(|k| *k = f16::from_f32(*k).to_f32());
                }
            }
            Fault::LastKeyMissed => {
                // A key that belongs to no row: a row that sees it gives it negligible weight.
                for span in batch.sequences.iter().filter(|span| span.rows % 16 == 1 && span.rows > 1) {
                    let last = (span.row_first + span.rows - 1) as usize;
                    rows[last * width + q_width..(last + 1) * width].fill(0.0);
                }
            }
            Fault::HeadsInterleaved if kv_heads > 1 => {
                // Keys and values are placed so that query head h finds those of h % kv_heads.
                for row in rows.chunks_exact_mut(width) {
                    let both = row[q_width..].to_vec();
                    for (i, to) in row[q_width..].chunks_exact_mut(head_dim).enumerate() {
                        let (part, head) = (i / kv_heads, i % kv_heads);
                        let from = part * kv_heads + head * (heads / kv_heads) % kv_heads;
                        to.copy_from_slice(&both[from * head_dim..][..head_dim]);
                    }
                }
            }
            _ => {}
        }
        if self.fault == Fault::AlwaysCausal {
            self.attend_causally(&rows, &changed, out);
            return;
        }
        self.store(&mut qkv, rows);
        let last = self.batch.sequences.len() > 1 && self.fault == Fault::RowsOfChunkMatter;
        self.with_batch(&batch, |inner| inner.self_attention(&qkv, &changed, out));
        let mut rows = self.rows_of(out, q_width);
        if last {
            rows.iter_mut().step_by(q_width).for_each(|v| *v *= 1.0 + f32::EPSILON);
        }
        self.store(out, rows);
    }
}

impl Faulty {
    /// Attention of each row of `[q | k | v]` as the last of a sequence that ends with it.
    fn attend_causally(
        &mut self,
        rows: &[f32],
        params: &SelfAttentionParams<&Vec<f32>, &[u32]>,
        out: &mut ReferenceBuffer,
    ) {
        let (width, q_width) = (params.heads.qkv_width(), params.heads.q_width());
        let mut attended = Vec::new();
        for span in self.batch.sequences.clone() {
            let first = span.row_first as usize;
            for count in 1..=span.rows {
                let mut prefix = self.inner.buffer(BufferRole::Operand, count as usize, width).unwrap();
                let end = (first + count as usize) * width;
                self.inner.write_rows(&mut prefix, 0, &rows[first * width..end]).unwrap();
                let mut seen = self.inner.buffer(BufferRole::Operand, count as usize, q_width).unwrap();
                let batch = whole_batch(&[count]);
                self.with_batch(&batch, |inner| inner.self_attention(&prefix, params, &mut seen));
                let mut last = vec![0.0; q_width];
                self.inner.read_rows(&seen, count as usize - 1, &mut last).unwrap();
                attended.extend(last);
            }
        }
        self.store(out, attended);
    }
}

impl Faulty {
    pub(super) fn unfold(&mut self, x: &ReferenceBuffer, window: usize, out: &mut ReferenceBuffer) {
        let rows = self.unfolded(x, window);
        self.store(out, rows);
    }

    pub(super) fn rope(&mut self, qkv: &mut ReferenceBuffer, params: &QkvParams<&Vec<f32>>) {
        self.turned(qkv, params);
    }

    pub(super) fn self_attention(
        &mut self,
        qkv: &ReferenceBuffer,
        params: &SelfAttentionParams<&Vec<f32>, &[u32]>,
        out: &mut ReferenceBuffer,
    ) {
        self.attend_within(qkv, params, out);
    }

    pub(super) fn attend_part(
        &mut self,
        qkv: &ReferenceBuffer,
        rows: Range<usize>,
        queries: Range<usize>,
        params: &SelfAttentionParams<&Vec<f32>, &[u32]>,
        out: &mut ReferenceBuffer,
    ) {
        let rows = match self.fault {
            Fault::LastKeyMissed if queries.end < rows.len() => rows.start..rows.end - 1,
            Fault::NeighboursSeen if rows.start > 5 => rows.start - 1..rows.end,
            _ => rows,
        };
        let batch = self.batch.clone();
        self.with_batch(&batch, |inner| inner.attend_part(qkv, rows, queries, params, out));
        self.restore(out);
    }
}

/// The same bias.
fn same<'a>(bias: &PositionBias<&'a Vec<f32>, &'a [u32]>) -> PositionBias<&'a Vec<f32>, &'a [u32]> {
    match *bias {
        PositionBias::None => PositionBias::None,
        PositionBias::Alibi { slopes } => PositionBias::Alibi { slopes },
        PositionBias::ByDistance { table, reach } => PositionBias::ByDistance { table, reach },
        PositionBias::Disentangled { keys, queries, buckets, bucket_of, reach } => {
            PositionBias::Disentangled { keys, queries, buckets, bucket_of, reach }
        }
    }
}
