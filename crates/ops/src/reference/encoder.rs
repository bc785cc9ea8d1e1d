//! Reference implementation of the ops on rows of whole sequences without a cache.

use std::ops::Range;

use super::{ReferenceBackend, ReferenceBuffer, formulas};
use crate::backend::QUERIES_PART;
use crate::{Batch, HeadShape, PositionBias, QkvParams, SelfAttentionParams};

impl ReferenceBackend {
    pub(crate) fn unfold(&mut self, x: &ReferenceBuffer, window: usize, out: &mut ReferenceBuffer) {
        let batch = self.step();
        assert!(window % 2 == 1, "a window has a middle");
        x.check(batch.rows(), x.cols, "x");
        out.check(batch.rows(), x.cols * window, "out");
        for span in &batch.sequences {
            let rows = span.row_first as usize..(span.row_first + span.rows) as usize;
            for row in rows.clone() {
                for t in 0..window {
                    let from = (row + t).checked_sub(window / 2).filter(|from| rows.contains(from));
                    for c in 0..x.cols {
                        out.row_mut(row)[c * window + t] = from.map_or(0.0, |from| x.row(from)[c]);
                    }
                }
            }
        }
    }

    pub(crate) fn rope(&mut self, qkv: &mut ReferenceBuffer, params: &QkvParams<&Vec<f32>>) {
        let batch = self.step();
        let HeadShape { heads, kv_heads, head_dim } = params.shape;
        qkv.check(batch.rows(), params.shape.qkv_width(), "qkv");
        for row in 0..batch.rows() {
            let (queries, rest) = qkv.row_mut(row).split_at_mut(heads * head_dim);
            for (heads, norm) in [(queries, params.q_norm), (&mut rest[..kv_heads * head_dim], params.k_norm)]
            {
                let norm = norm_all(heads, norm, params);
                for head in heads.chunks_exact_mut(head_dim) {
                    prepare(head, norm, params, batch, row);
                }
            }
        }
    }

    pub(crate) fn self_attention(
        &mut self,
        qkv: &ReferenceBuffer,
        params: &SelfAttentionParams<&Vec<f32>, &[u32]>,
        out: &mut ReferenceBuffer,
    ) {
        let batch = self.step();
        let HeadShape { heads, kv_heads, .. } = params.heads;
        qkv.check(batch.rows(), params.heads.qkv_width(), "qkv");
        out.check(batch.rows(), params.heads.q_width(), "out");
        assert!(heads.is_multiple_of(kv_heads), "{:?}: key-value heads divide the heads", params.heads);
        check_bias(params);
        let plain = params.reach.is_none() && matches!(params.bias, PositionBias::None);
        assert!(params.padding == 0 || plain, "padding stands nowhere");
        for span in &batch.sequences {
            assert_eq!(span.context, span.rows, "{span:?}: a sequence that is not whole");
            assert!(params.padding < span.rows, "{span:?}: nothing but padding");
            let first = span.row_first as usize;
            let rows = first..first + span.rows as usize;
            attend(qkv, rows.clone(), 0..rows.len(), params, out, first);
        }
    }

    pub(crate) fn attend_part(
        &mut self,
        qkv: &ReferenceBuffer,
        rows: Range<usize>,
        queries: Range<usize>,
        params: &SelfAttentionParams<&Vec<f32>, &[u32]>,
        out: &mut ReferenceBuffer,
    ) {
        qkv.check(rows.end, params.heads.qkv_width(), "qkv");
        out.check(queries.len(), params.heads.q_width(), "out");
        assert_eq!(queries.len(), self.step().rows(), "a row of the batch for each query");
        let plain = params.reach.is_none() && matches!(params.bias, PositionBias::None);
        assert!(plain && params.padding == 0, "parts of plain attention");
        assert!(
            queries.start.is_multiple_of(QUERIES_PART) && queries.end <= rows.len(),
            "{queries:?} of {rows:?}"
        );
        attend(qkv, rows, queries, params, out, 0);
    }
}

/// Attention of some queries of the sequence in rows `rows` of `qkv`. Their output rows begin at `out_first`.
fn attend(
    qkv: &ReferenceBuffer,
    rows: Range<usize>,
    queries: Range<usize>,
    params: &SelfAttentionParams<&Vec<f32>, &[u32]>,
    out: &mut ReferenceBuffer,
    out_first: usize,
) {
    let HeadShape { heads, kv_heads, head_dim } = params.heads;
    let element = |row: u32, head: usize| &qkv.row(rows.start + row as usize)[head * head_dim..][..head_dim];
    for i in queries.clone().map(|i| i as u32) {
        let keys = seen(params, rows.len() as u32, i);
        for head in 0..heads {
            let kv_head = head * kv_heads / heads;
            let query = element(i, head);
            let mut scores: Vec<f64> = keys
                .clone()
                .map(|j| {
                    let key = element(j, heads + kv_head);
                    let bias = formulas::position_bias(params, head, i, query, j, key);
                    formulas::score(query, key, params.scale, None) + bias
                })
                .collect();
            let values = keys.clone().map(|j| element(j, heads + kv_heads + kv_head));
            let at = head * head_dim..(head + 1) * head_dim;
            let out = &mut out.row_mut(out_first + i as usize - queries.start)[at];
            formulas::attend(&mut scores, values, None, out);
        }
    }
}

/// Norms all heads of a row of queries or keys as one, if the norm has as many weights. Otherwise returns the norm, to
/// be applied to each head.
pub(super) fn norm_all<'a>(
    heads: &mut [f32],
    norm: Option<&'a Vec<f32>>,
    params: &QkvParams<&Vec<f32>>,
) -> Option<&'a Vec<f32>> {
    let weight = norm?;
    if weight.len() == params.shape.head_dim {
        return norm;
    }
    assert!(!params.norm_after_rope, "a norm of all heads after their rotation");
    assert_eq!(weight.len(), heads.len(), "a norm has one weight an element, of a head or of all");
    let x = heads.to_vec();
    formulas::rms_norm(&x, weight, params.norm_eps, heads);
    None
}

/// Norms and rotates one head of a query or key.
pub(super) fn prepare(
    head: &mut [f32],
    norm: Option<&Vec<f32>>,
    params: &QkvParams<&Vec<f32>>,
    batch: &Batch,
    row: usize,
) {
    let normed = |head: &mut [f32]| {
        if let Some(weight) = norm {
            assert_eq!(weight.len(), head.len(), "a head's norm has one weight an element");
            let x = head.to_vec();
            formulas::rms_norm(&x, weight, params.norm_eps, head);
        }
    };
    if !params.norm_after_rope {
        normed(head);
    }
    if let Some(rope) = &params.rope {
        let position = |pair| batch.turn_position(row, rope.axes, pair);
        let (inv_freq, magnitude) = rope.of_type(batch.type_of(row));
        formulas::rotate_by(head, rope.kind, inv_freq, magnitude, position);
    }
    if params.norm_after_rope {
        normed(head);
    }
}

/// Keys that row `i` of a sequence of `rows` sees.
pub(crate) fn seen<V>(params: &SelfAttentionParams<&V, &[u32]>, rows: u32, i: u32) -> std::ops::Range<u32> {
    let reach = params.reach.unwrap_or(u32::MAX);
    let rows = if i < rows - params.padding { rows } else { rows - params.padding };
    i.saturating_sub(reach)..i.saturating_add(reach).saturating_add(1).min(rows)
}

/// Asserts that a bias has the shape it claims.
fn check_bias(params: &SelfAttentionParams<&Vec<f32>, &[u32]>) {
    let (heads, width) = (params.heads.heads, params.heads.q_width());
    match &params.bias {
        PositionBias::None => {}
        PositionBias::Alibi { slopes } => assert_eq!(slopes.len(), heads, "one slope a head"),
        PositionBias::ByDistance { table, reach } => {
            assert_eq!(table.len(), heads * (2 * *reach as usize + 1), "one bias a head and distance");
        }
        PositionBias::Disentangled { keys, queries, buckets, bucket_of, reach } => {
            assert_eq!(bucket_of.len(), 2 * *reach as usize + 1, "one bucket a distance");
            assert!(bucket_of.iter().all(|bucket| bucket < buckets), "a bucket of more than {buckets}");
            for table in [keys, queries].into_iter().flatten() {
                assert_eq!(table.len(), *buckets as usize * width, "one row a bucket");
            }
        }
    }
}
