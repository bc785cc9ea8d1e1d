//! What is added to scores by where query and key stand.

use crate::{HeadShape, PositionBias};

/// A position bias whose tables have been checked.
#[derive(Clone, Copy)]
pub(in crate::cpu) enum Bias<'a> {
    None,
    Distance(Distance<'a>),
    Disentangled(Disentangled<'a>),
}

/// A bias that a head's distances alone decide.
#[derive(Clone, Copy)]
pub(in crate::cpu) enum Distance<'a> {
    /// One slope a head.
    Slopes(&'a [f32]),
    /// (heads, 2 * reach + 1)
    Table(&'a [f32], u32),
}

/// Rows that queries and keys are multiplied with.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Disentangled<'a> {
    pub(super) keys: Option<&'a [f32]>, // (buckets, q_width)
    pub(super) queries: Option<&'a [f32]>,
    bucket_of: &'a [u32],
    reach: u32,
}

impl<'a> Bias<'a> {
    /// # Panics
    /// If a table has not the shape that the heads ask for.
    pub(in crate::cpu) fn new<V>(
        bias: &PositionBias<'a, V>,
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
                Bias::Disentangled(Disentangled { keys, queries, bucket_of, reach })
            }
        }
    }
}

impl Distance<'_> {
    /// What is added where the key stands `ahead` rows behind the query's row.
    pub(super) fn at(self, head: usize, ahead: i64) -> f32 {
        match self {
            Distance::Slopes(slopes) => -slopes[head] * ahead.unsigned_abs() as f32,
            Distance::Table(table, reach) => table[head * (2 * reach as usize + 1) + clamped(ahead, reach)],
        }
    }
}

impl Disentangled<'_> {
    /// Where in the tables the row for a distance has the part of a head.
    pub(super) fn at(self, shape: HeadShape, head: usize, distance: i64) -> usize {
        let bucket = self.bucket_of[clamped(distance, self.reach)] as usize;
        bucket * shape.q_width() + head * shape.head_dim
    }
}

/// A distance from `-reach` to `reach` as an index from 0.
fn clamped(distance: i64, reach: u32) -> usize {
    let reach = i64::from(reach);
    (distance.clamp(-reach, reach) + reach) as usize
}
