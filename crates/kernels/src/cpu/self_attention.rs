//! Attention inside each sequence of the batch, whose queries, keys and values are all rows of `[q | k | v]`.

#![allow(unsafe_op_in_unsafe_fn)] // The contract is that of `lanes`, and of the makers of the kernels below.

mod bias;

pub(super) use bias::Bias;

use super::aligned::Shared;
use super::lanes::{Kernel, Lanes, dispatch};
use super::matmul::{get, put};
use super::pool::Turn;
use super::tier::Tier;
use crate::{Batch, HeadShape};

const LANES: usize = 16;

/// The op's parameters.
#[derive(Clone, Copy)]
pub(super) struct SelfAttentionJob<'a> {
    pub(super) shape: HeadShape,
    pub(super) scale: f32,
    pub(super) reach: Option<u32>,
    pub(super) causal: bool,
    pub(super) bias: Bias<'a>,
}

impl SelfAttentionJob<'_> {
    /// Keys that row `i` of a sequence of `rows` sees, first and end.
    fn seen(&self, rows: usize, i: usize) -> (usize, usize) {
        let reach = self.reach.map_or(usize::MAX, |reach| reach as usize);
        let end = if self.causal { i + 1 } else { i.saturating_add(reach).saturating_add(1).min(rows) };
        (i.saturating_sub(reach), end)
    }
}

/// One query's attention, one key after the other.
struct Query<'a> {
    job: &'a SelfAttentionJob<'a>,
    head: usize,
    first: *const f32, // row 0 of the sequence in qkv
    row: usize,
    rows: usize,
    out: *mut f32,
}

impl Query<'_> {
    #[inline(always)]
    unsafe fn dot<L: Lanes>(&self, a: *const f32, b: *const f32) -> f32 {
        let head_dim = self.job.shape.head_dim;
        let mut sum = L::splat(0.0);
        for at in (0..head_dim).step_by(LANES) {
            let count = LANES.min(head_dim - at);
            sum = L::fma(get::<L>(a.add(at), count), get::<L>(b.add(at), count), sum);
        }
        L::sum(sum)
    }
}

impl Kernel for Query<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let HeadShape { heads, kv_heads, head_dim } = self.job.shape;
        let (width, kv_head) = (self.job.shape.qkv_width(), self.head * kv_heads / heads);
        let query = self.first.add(self.row * width + self.head * head_dim);
        let (from, to) = self.job.seen(self.rows, self.row);
        let (mut top, mut total) = (f32::NEG_INFINITY, 0.0f32);
        for j in from..to {
            let key = self.first.add(j * width + (heads + kv_head) * head_dim);
            let value = key.add(kv_heads * head_dim);
            let mut score = self.dot::<L>(query, key) * self.job.scale;
            match self.job.bias {
                Bias::None => {}
                Bias::Distance(distance) => score += distance.at(self.head, j as i64 - self.row as i64),
                Bias::Disentangled(tables) => {
                    let at = tables.at(self.job.shape, self.head, self.row as i64 - j as i64);
                    let keys = tables.keys.map_or(0.0, |keys| self.dot::<L>(query, keys[at..].as_ptr()));
                    let queries =
                        tables.queries.map_or(0.0, |table| self.dot::<L>(key, table[at..].as_ptr()));
                    score += self.job.scale * (keys + queries);
                }
            }
            let raised = if score > top { score } else { top };
            let fade = (top - raised).exp();
            let weight = (score - raised).exp();
            top = raised;
            total = total * fade + weight;
            for at in (0..head_dim).step_by(LANES) {
                let count = LANES.min(head_dim - at);
                let before = if j == from { L::splat(0.0) } else { get::<L>(self.out.add(at), count) };
                let faded = L::mul(before, L::splat(fade));
                put::<L>(
                    self.out.add(at),
                    L::fma(get::<L>(value.add(at), count), L::splat(weight), faded),
                    count,
                );
            }
        }
        for at in (0..head_dim).step_by(LANES) {
            let count = LANES.min(head_dim - at);
            put::<L>(
                self.out.add(at),
                L::mul(get::<L>(self.out.add(at), count), L::splat(1.0 / total)),
                count,
            );
        }
    }
}

/// Attention of the batch's rows of `[q | k | v]` inside each sequence.
pub(super) fn self_attention(
    tier: Tier,
    turn: &mut Turn,
    batch: &Batch,
    job: &SelfAttentionJob<'_>,
    qkv: &[f32],
    out: &mut [f32],
) {
    let HeadShape { heads, kv_heads, head_dim } = job.shape;
    let (rows, width, q_width) = (batch.rows(), job.shape.qkv_width(), job.shape.q_width());
    assert!(heads.is_multiple_of(kv_heads), "key-value heads divide heads");
    assert!(qkv.len() >= rows * width && out.len() >= rows * q_width, "fewer rows than the batch");
    for span in &batch.sequences {
        assert_eq!(span.context, span.rows, "{span:?}: a sequence that is not whole");
        assert!((span.row_first + span.rows) as usize <= rows, "a bad span");
    }
    let qkv = Shared::new_const(qkv.as_ptr());
    let out = Shared::new(out);
    turn.run(rows, 1, &|_, range| {
        for row in range {
            let index = batch.sequences.partition_point(|span| span.row_first as usize <= row) - 1;
            let span = &batch.sequences[index];
            let row_first = span.row_first as usize;
            for head in 0..heads {
                // SAFETY: the rows of the sequence and of the output are there (asserted); the item's row of the output
                // is its own.
                unsafe {
                    let first = qkv.get().add(row_first * width).cast_const();
                    let out = out.get().add(row * q_width + head * head_dim);
                    let rows = span.rows as usize;
                    dispatch(tier, Query { job, head, first, row: row - row_first, rows, out });
                }
            }
        }
    });
}
