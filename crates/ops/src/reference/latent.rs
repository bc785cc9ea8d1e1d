//! Reference implementation of multi-head latent attention.

use super::storage::store;
use super::{ReferenceBuffer, ReferenceKv, ReferenceMatrix, formulas};
use crate::{Batch, LatentHeads, LatentParams};

/// The contract's `heads_matmul`. Returns the number of elements of a row that all heads together read and write.
pub(super) fn heads_matmul(
    rows: usize,
    weights: &[ReferenceMatrix],
    x: &ReferenceBuffer,
    out: &mut ReferenceBuffer,
) -> usize {
    let (heads, outputs, cols) = (weights.len(), weights[0].rows, weights[0].cols);
    assert!(weights.iter().all(|of| (of.rows, of.cols) == (outputs, cols)), "heads of one shape");
    assert!(x.cols.is_multiple_of(heads) && x.cols / heads >= cols, "{} columns for {heads} heads", x.cols);
    let (stride, rest) = (x.cols / heads, x.cols / heads - cols);
    x.check(rows, heads * stride, "x");
    out.check(rows, heads * (outputs + rest), "out");
    for row in 0..rows {
        for (head, weight) in weights.iter().enumerate() {
            let x = &x.row(row)[head * stride..][..stride];
            let out = &mut out.row_mut(row)[head * (outputs + rest)..][..outputs + rest];
            for (output, out) in out[..outputs].iter_mut().enumerate() {
                *out = formulas::dot(weight.row(output), &x[..cols]) as f32;
            }
            out[outputs..].copy_from_slice(&x[cols..]);
        }
    }
    heads * (cols + outputs)
}

/// The contract's `latent_to_cache`.
pub(super) fn to_cache(
    batch: &Batch,
    latent: &mut ReferenceBuffer,
    queries: &mut ReferenceBuffer,
    params: &LatentParams<&Vec<f32>>,
    kv: &mut ReferenceKv,
    layer: usize,
) {
    let LatentHeads { heads, rank, rope_dim } = params.shape;
    let width = params.shape.width();
    latent.check(batch.rows(), width, "latent");
    queries.check(batch.rows(), heads * width, "queries");
    kv.check_latent(&params.shape, layer);
    assert_eq!(params.norm.len(), rank, "a weight for each number of the latent");
    assert!(2 * params.rope.pairs(params.rope.inv_freq.len()) <= rope_dim, "more pairs than are turned");
    let group = kv.groups.place(layer).group;
    for row in 0..batch.rows() {
        let turn = |x: &mut [f32]| {
            let (rope, position) = (&params.rope, |pair| batch.turn_position(row, params.rope.axes, pair));
            let (inv_freq, magnitude) = rope.of_type(batch.type_of(row));
            formulas::rotate_by(x, rope.kind, inv_freq, magnitude, position);
        };
        let plain = latent.row(row)[..rank].to_vec();
        formulas::rms_norm(&plain, params.norm, params.norm_eps, &mut latent.row_mut(row)[..rank]);
        turn(&mut latent.row_mut(row)[rank..]);
        queries.row_mut(row).chunks_exact_mut(width).for_each(|query| turn(&mut query[rank..]));
        let at = kv.at(layer, batch.row_slot(row, group), 0);
        store(kv.kv_type, latent.row(row), &mut kv.keys[at]);
    }
}

/// The contract's `latent_attention`.
pub(super) fn attention(
    batch: &Batch,
    queries: &ReferenceBuffer,
    shape: LatentHeads,
    scale: f32,
    kv: &ReferenceKv,
    layer: usize,
    out: &mut ReferenceBuffer,
) {
    let (LatentHeads { heads, rank, .. }, width) = (shape, shape.width());
    queries.check(batch.rows(), heads * width, "queries");
    out.check(batch.rows(), heads * rank, "out");
    kv.check_latent(&shape, layer);
    let group = kv.groups.place(layer).group;
    for span in &batch.sequences {
        for row in 0..span.rows {
            let seen = span.context - span.rows + row + 1;
            let latents: Vec<&[f32]> =
                (0..seen).map(|key| &kv.keys[kv.at(layer, batch.slot(span, group, key), 0)]).collect();
            let row = (span.row_first + row) as usize;
            for head in 0..heads {
                let query = &queries.row(row)[head * width..][..width];
                let score = |latent: &&[f32]| formulas::score(query, latent, scale, None);
                let mut scores: Vec<f64> = latents.iter().map(score).collect();
                let values = latents.iter().map(|latent| &latent[..rank]);
                formulas::attend(&mut scores, values, None, &mut out.row_mut(row)[head * rank..][..rank]);
            }
        }
    }
}
