//! Position biases: addends to scores that depend on the positions of query and key.

use std::ops::Range;

use hanzo_engine_ops::{HeadShape, PositionBias};

/// A position bias whose tables have been checked.
#[derive(Clone, Copy)]
pub(in crate::cpu) enum Bias<'a> {
    None,
    Distance(Distance<'a>),
    Disentangled(Disentangled<'a>),
}

/// Bias that depends only on the head and the distance.
#[derive(Clone, Copy)]
pub(in crate::cpu) enum Distance<'a> {
    /// Slope of each head.
    Slopes(&'a [f32]),
    /// (heads, 2 * reach + 1)
    Table(&'a [f32], u32),
}

/// Rows that queries and keys are multiplied with.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Disentangled<'a> {
    pub(super) keys: Option<&'a [f32]>, // (buckets, q_width)
    pub(super) queries: Option<&'a [f32]>,
    shape: HeadShape,
    bucket_of: &'a [u32],
    reach: u32,
}

impl<'a> Bias<'a> {
    /// # Panics
    /// If a table's shape does not fit the heads.
    pub(in crate::cpu) fn new<V>(
        bias: &PositionBias<&'a V, &'a [u32]>,
        shape: HeadShape,
        values: impl Fn(&'a V) -> &'a [f32],
    ) -> Bias<'a> {
        let distances = |reach: u32| 2 * reach as usize + 1;
        match *bias {
            PositionBias::None => Bias::None,
            PositionBias::Alibi { slopes } => {
                let slopes = values(slopes);
                assert_eq!(slopes.len(), shape.heads, "one slope a head");
                Bias::Distance(Distance::Slopes(slopes))
            }
            PositionBias::ByDistance { table, reach } => {
                let table = values(table);
                assert_eq!(table.len(), shape.heads * distances(reach), "one bias a head and distance");
                Bias::Distance(Distance::Table(table, reach))
            }
            PositionBias::Disentangled { keys, queries, buckets, bucket_of, reach } => {
                assert_eq!(bucket_of.len(), distances(reach), "one bucket a distance");
                assert!(bucket_of.iter().all(|&bucket| bucket < buckets), "a bucket of more than {buckets}");
                let (keys, queries) = (keys.map(&values), queries.map(&values));
                for table in [keys, queries].into_iter().flatten() {
                    assert_eq!(table.len(), buckets as usize * shape.q_width(), "one row a bucket");
                }
                Bias::Disentangled(Disentangled { keys, queries, shape, bucket_of, reach })
            }
        }
    }
}

impl Distance<'_> {
    /// Writes `factor` times the head's addends, for the key `ahead` rows after the query and one row more for each
    /// further number.
    pub(super) fn fill(self, head: usize, ahead: isize, factor: f32, to: &mut [f32]) {
        match self {
            Distance::Slopes(slopes) => {
                let slope = -factor * slopes[head];
                for (to, ahead) in to.iter_mut().zip(ahead..) {
                    *to = slope * ahead.unsigned_abs() as f32;
                }
            }
            Distance::Table(table, reach) => {
                let table = &table[head * (2 * reach as usize + 1)..];
                for (to, ahead) in to.iter_mut().zip(ahead..) {
                    *to = factor * table[clamped(ahead, reach)];
                }
            }
        }
    }
}

impl Disentangled<'_> {
    /// Writes the columns of `table` for a head, one for each distance in `ahead`: the rows from the query to a key after it.
    /// Element d of column c goes to `to[d * stride + c]`, times `factor`.
    pub(super) fn fill(
        &self,
        table: &[f32],
        head: usize,
        ahead: Range<isize>,
        factor: f32,
        to: &mut [f32],
        stride: usize,
    ) {
        let shape = self.shape;
        for (column, ahead) in ahead.enumerate() {
            let bucket = self.bucket_of[clamped(-ahead, self.reach)] as usize;
            let row = &table[bucket * shape.q_width() + head * shape.head_dim..][..shape.head_dim];
            for (to, value) in to[column..].iter_mut().step_by(stride).zip(row) {
                *to = factor * value;
            }
        }
    }
}

/// Distance from `-reach` to `reach`, as an index from 0.
fn clamped(distance: isize, reach: u32) -> usize {
    let reach = reach as isize;
    (distance.clamp(-reach, reach) + reach) as usize
}
