//! Attention with learned keys and values of near places, for short sequences: row by row, without scratch.

use super::pool::PoolTurn;
use hanzo_engine_ops::{Batch, RelativeParams};

/// Rows in one piece of the loop.
const PIECE_ROWS: usize = 4;

/// Operands of one call, checked by the caller.
pub(super) struct RelativeJob<'a> {
    pub(super) params: RelativeParams<&'a [f32]>,
    pub(super) qkv: &'a [f32], // (rows, q + k + v)
}

impl RelativeJob<'_> {
    /// Part of a row of `[q | k | v]`.
    fn part(&self, row: usize, side: usize, head: usize) -> &[f32] {
        let (dim, width) = (self.params.heads.head_dim, self.params.heads.q_width());
        &self.qkv[row * 3 * width + side * width + head * dim..][..dim]
    }

    fn score(&self, first: usize, row: usize, key: usize, head: usize) -> f32 {
        let (query, dim) = (self.part(first + row, 0, head), self.params.heads.head_dim);
        let mut sum = dot(query, self.part(first + key, 1, head));
        if let Some(distance) = self.params.near(row, key) {
            sum += dot(query, &self.params.keys[distance * dim..][..dim]);
        }
        sum * self.params.scale
    }

    /// Output of one head for a row of a sequence that begins at row `first`.
    fn attend(&self, first: usize, row: usize, rows: usize, head: usize, out: &mut [f32]) {
        let score = |key| self.score(first, row, key, head);
        let most = (0..rows).map(score).fold(f32::NEG_INFINITY, f32::max);
        let mut total = 0.0;
        out.fill(0.0);
        for key in 0..rows {
            let weight = (score(key) - most).exp();
            total += weight;
            add_scaled(out, weight, self.part(first + key, 2, head));
            if let Some(distance) = self.params.near(row, key) {
                add_scaled(out, weight, &self.params.values[distance * out.len()..]);
            }
        }
        out.iter_mut().for_each(|out| *out /= total);
    }
}

/// The contract's `relative_attention`. `out` is `(rows, heads * head_dim)`.
pub(super) fn relative_attention(turn: &mut PoolTurn, batch: &Batch, job: &RelativeJob<'_>, out: &mut [f32]) {
    let (dim, width) = (job.params.heads.head_dim, job.params.heads.q_width());
    for span in &batch.sequences {
        let (first, rows) = (span.row_first as usize, span.rows as usize);
        let own = &mut out[first * width..][..rows * width];
        super::convolution::each_rows_of(turn, own, width, PIECE_ROWS, &|row, piece| {
            for (row, out) in (row..).zip(piece.chunks_exact_mut(width)) {
                for (head, out) in out.chunks_exact_mut(dim).enumerate() {
                    job.attend(first, row, rows, head, out);
                }
            }
        });
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add_scaled(out: &mut [f32], factor: f32, numbers: &[f32]) {
    out.iter_mut().zip(numbers).for_each(|(out, number)| *out += factor * number);
}
