//! Attention inside each sequence of the batch, whose queries, keys and values are all rows of `[q | k | v]`.
//!
//! An item of the loop is some heads of one sequence, or a block of the queries of one head if that gives enough items
//! for all threads. It takes the keys in blocks of [`KEYS`], lays keys and values out for the tiles, and processes
//! groups of queries against them: scores, the bias, weights relative to the largest score so far, and the weighted
//! sum of values. The vector kernels do this in f32 (`tile`), the matrix unit in split precision (`amx::attention`).
//!
//! Groups begin at fixed rows of their sequence and see the same blocks of keys however the items are cut, so a row's
//! bits depend on its sequence alone. Scores are kept times log₂ e, because powers of two cost less than those of e.

#![allow(unsafe_op_in_unsafe_fn)] // The contract is that of `lanes`, and of the makers of the kernels below.

mod bias;
mod tile;

use std::f32::consts::LOG2_E;

pub(super) use self::bias::Bias;
pub(super) use self::tile::{Group, KvBlock, ScoreBias};
use self::tile::{Vectors, VisibleKeys, Workspace};
use super::aligned::{AlignedArray, SharedPointer};
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use super::amx;
use super::cores::Cores;
use super::lanes::{Kernel, Lanes, dispatch};
use super::tier::Tier;
use hanzo_engine_ops::{Batch, HeadShape, KernelError};

pub(super) const LANES: usize = 16;
/// Keys of a block; with their values they stay in the second-level cache.
pub(super) const KEYS: usize = 256;
/// Largest number of queries of an item.
const QUERIES: usize = 288;
/// Largest number of queries of an item if scores have terms of content and position, which are laid out for each
/// item.
const QUERIES_WITH_TERMS: usize = 96;
/// Smallest number of queries of an item, if its sequence has as many.
const QUERIES_FEW: usize = 24;
/// Queries that an item's number of queries is a multiple of, for vectors and for the matrix unit.
const QUERIES_UNIT: usize = 12;
const QUERIES_UNIT_AMX: usize = 16;
/// Granularity of partial attention: parts of a sequence begin at multiples of this, on any tier.
const QUERIES_PART: usize = hanzo_engine_ops::backend::QUERIES_PART;
/// Largest number of queries of a group.
const GROUP_MAX: usize = 16;
/// Row length of a query's scores: plus one vector that is written and never read. Rows of a power of two would share
/// cache sets.
pub(super) const SCORES: usize = KEYS + LANES;
/// Distances between the queries of an item and a block of keys, plus vectors that are read and ignored.
const DISTANCES: usize = QUERIES + KEYS + 2 * LANES;
/// Same as `DISTANCES`, if there are terms.
const TERMS: usize = QUERIES_WITH_TERMS + KEYS + 2 * LANES;
/// Items that each thread has on average, so that losing a core costs only its share.
const ITEMS_PER_THREAD: usize = 8;
/// Number of products of a query's and a key's elements from which an item pays off: some microseconds.
const ITEM_PRODUCTS_MIN: usize = 100_000;
const _: () = assert!(QUERIES.is_multiple_of(QUERIES_UNIT) && QUERIES.is_multiple_of(QUERIES_UNIT_AMX));
const _: () = assert!(QUERIES_WITH_TERMS.is_multiple_of(QUERIES_UNIT));
const _: () =
    assert!(QUERIES_PART.is_multiple_of(QUERIES_UNIT) && QUERIES_PART.is_multiple_of(QUERIES_UNIT_AMX));
const _: () = assert!(KEYS.is_multiple_of(2 * LANES));

/// Columns of a head's values: whole pairs of vectors.
pub(super) const fn width(head_dim: usize) -> usize {
    head_dim.next_multiple_of(2 * LANES)
}

/// Sizes in f32s of keys, values and queries in the workspace.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn packed(head_dim: usize) -> [usize; 3] {
    let [keys, values, queries] = amx::attention::parts(head_dim);
    let [keys_here, values_here, queries_here] = packed_for_vectors(head_dim);
    [keys.max(keys_here), values.max(values_here), queries.max(queries_here)]
}
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
use self::packed_for_vectors as packed;

fn packed_for_vectors(head_dim: usize) -> [usize; 3] {
    [KEYS * head_dim, KEYS * width(head_dim), LANES * width(head_dim)]
}

/// Scratch of the whole pool.
#[derive(Debug)]
pub(super) struct SelfAttentionScratch {
    head_dim: usize,
    threads: Vec<AlignedArray<f32>>, // a workspace each
    /// First item of each sequence in the current loop, then the total number of items.
    item_first: Vec<usize>, // (sequences + 1)
}

impl SelfAttentionScratch {
    /// Sizes in f32s of the parts of a thread's workspace.
    fn parts(head_dim: usize) -> [usize; 8] {
        let width = width(head_dim);
        let [keys, values, queries] = packed(head_dim);
        [
            keys,
            values,
            queries,
            GROUP_MAX * SCORES,
            (QUERIES + GROUP_MAX) * (LANES + width),
            DISTANCES,
            TERMS * head_dim,
            TERMS * head_dim,
        ]
    }

    pub(super) fn bytes(head_dim: usize, sequences: usize, threads: usize) -> usize {
        let workspace = SelfAttentionScratch::parts(head_dim).iter().sum::<usize>() * size_of::<f32>();
        threads.saturating_mul(workspace) + (sequences + 1) * size_of::<usize>()
    }

    pub(super) fn new(
        head_dim: usize,
        sequences: usize,
        threads: usize,
    ) -> Result<SelfAttentionScratch, KernelError> {
        let size = SelfAttentionScratch::parts(head_dim).iter().sum();
        let workspace = |_| AlignedArray::zeroed(size, "scratch of attention inside sequences");
        Ok(SelfAttentionScratch {
            head_dim,
            threads: (0..threads).map(workspace).collect::<Result<_, _>>()?,
            item_first: Vec::with_capacity(sequences + 1),
        })
    }
}

/// Parts of a thread's memory.
fn workspace(memory: &mut [f32], head_dim: usize) -> Workspace {
    let mut rest = memory;
    let parts = SelfAttentionScratch::parts(head_dim).map(|size| {
        let (part, after) = std::mem::take(&mut rest).split_at_mut(size);
        rest = after;
        part.as_mut_ptr()
    });
    let [keys, values, queries, scores, states, distances, key_terms, query_terms] = parts;
    Workspace { keys, values, queries, scores, states, distances, key_terms, query_terms }
}

/// Parameters of the op.
#[derive(Clone, Copy)]
pub(super) struct SelfAttentionJob<'a> {
    pub(super) shape: HeadShape,
    pub(super) scale: f32,
    pub(super) reach: Option<u32>,
    pub(super) padding: u32,
    pub(super) bias: Bias<'a>,
}

impl SelfAttentionJob<'_> {
    fn reach(&self) -> usize {
        self.reach.map_or(usize::MAX, |reach| reach as usize)
    }

    /// Range of the keys that row `i` of a sequence of `rows` sees. Neither end ever decreases with the row.
    fn visible(&self, rows: usize, i: usize) -> (usize, usize) {
        let reach = self.reach();
        (i.saturating_sub(reach), i.saturating_add(reach).saturating_add(1).min(rows))
    }

    /// Queries of a sequence of so many rows, grouped by the end of the keys that they see: either all queries, or
    /// those before the padding and those of the padding.
    fn halves(&self, rows: usize) -> [(std::ops::Range<usize>, usize); 2] {
        let own = rows - self.padding as usize;
        [(0..own, rows), (own..rows, own)]
    }

    /// Approximate number of products for a head of a sequence of `rows`.
    fn products(&self, rows: usize) -> usize {
        rows * rows.min(self.reach().saturating_mul(2).saturating_add(1)) * self.shape.head_dim
    }
}

/// Division of a sequence into items.
struct Share {
    /// Queries of an item. `blocks` is the number of items for the queries of a head.
    queries: usize,
    blocks: usize,
    /// Heads of an item. `chunks` is the number of items for all heads.
    heads: usize,
    chunks: usize,
}

impl Share {
    /// Division into items of about `products`, whose queries are whole groups of `unit`.
    fn new(job: &SelfAttentionJob<'_>, rows: usize, products: usize, unit: usize) -> Share {
        Share::of(job, rows, job.products(rows), products, unit)
    }

    /// Same as [`Share::new`], for rows that have so many products for each head.
    fn of(job: &SelfAttentionJob<'_>, rows: usize, head: usize, products: usize, unit: usize) -> Share {
        if rows == 0 {
            return Share { queries: 0, blocks: 0, heads: 0, chunks: 0 };
        }
        let most = if matches!(job.bias, Bias::Disentangled(_)) { QUERIES_WITH_TERMS } else { QUERIES };
        let head = head.max(1);
        let blocks = head.div_ceil(products).min(rows.div_ceil(QUERIES_FEW)).max(rows.div_ceil(most));
        let queries = rows.div_ceil(blocks).next_multiple_of(unit);
        let blocks = rows.div_ceil(queries);
        let heads = if blocks == 1 { (products / head).clamp(1, job.shape.heads) } else { 1 };
        Share { queries, blocks, heads, chunks: job.shape.heads.div_ceil(heads) }
    }

    fn items(&self) -> usize {
        self.blocks * self.chunks
    }
}

/// Some queries of some heads of one sequence. The creator guarantees the sequence's rows of `qkv`, the rows and heads
/// of the output, and a workspace of the heads' width.
pub(super) struct QueryPart<'a> {
    job: &'a SelfAttentionJob<'a>,
    workspace: Workspace,
    heads: std::ops::Range<usize>,
    queries: std::ops::Range<usize>,
    /// Rows of the sequence up to the last that any of the queries sees. `readable` counts the batch's rows from the
    /// sequence's first.
    rows: usize,
    readable: usize,
    qkv: *const f32, // from the sequence's first row on
    out: *mut f32,
    out_first: usize, // row of the sequence that is the output's first
}

impl Kernel for &QueryPart<'_> {
    type Out = ();
    const MULTIPLIES_BYTES: bool = false;

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        self.attend::<Vectors<L>>();
    }
}

/// Layout of keys and values, and the processing of queries against them.
pub(super) trait TileLayout {
    /// Queries of a group.
    const ROWS: usize;

    /// Lays out keys and values.
    ///
    /// # Safety
    /// The guarantees of `KvBlock`, and the instructions of the implementing type.
    unsafe fn pack(block: KvBlock);

    /// Processes a group of queries against the keys in the workspace.
    ///
    /// # Safety
    /// The guarantees of `Group`, and the instructions of the implementing type.
    unsafe fn group(group: Group);
}

impl QueryPart<'_> {
    /// Computes on the matrix unit or with vectors.
    ///
    /// # Safety
    /// The guarantees of `QueryPart`; `tier` is available, and has the unit if that is asked for.
    unsafe fn run_by(&self, tier: Tier, by_unit: bool) {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if by_unit {
            return amx::attention::attend(self);
        }
        let _ = by_unit;
        dispatch(tier, self);
    }

    /// Computes all heads and queries of the part.
    #[inline(always)]
    pub(super) unsafe fn attend<T: TileLayout>(&self) {
        let job = self.job;
        let HeadShape { heads, kv_heads, head_dim } = job.shape;
        let (stride, scale) = (job.shape.qkv_width(), job.scale * LOG2_E);
        let (first, end) =
            (job.visible(self.rows, self.queries.start).0, job.visible(self.rows, self.queries.end - 1).1);
        let mut packed = None;
        for head in self.heads.clone() {
            let kv_head = head * kv_heads / heads;
            for block in first / KEYS..end.div_ceil(KEYS) {
                let key_first = block * KEYS;
                let (from, to) = (first.max(key_first) - key_first, end.min(key_first + KEYS) - key_first);
                if packed != Some((kv_head, block)) {
                    packed = Some((kv_head, block));
                    let keys = self.qkv.add(key_first * stride + (heads + kv_head) * head_dim);
                    let value_offset = kv_heads * head_dim;
                    let workspace = self.workspace;
                    let there = (self.rows - key_first).min(KEYS);
                    T::pack(KvBlock {
                        workspace,
                        keys,
                        value_offset,
                        stride,
                        head_dim,
                        scale,
                        from,
                        to,
                        there,
                    });
                }
                let bias = self.prepare_bias(head, key_first, to, scale);
                for query in self.queries.clone().step_by(T::ROWS) {
                    self.group::<T>(head, query, key_first, bias);
                }
            }
        }
    }

    /// Writes to the workspace the addends to the scores with the first `keys` keys of a block.
    unsafe fn prepare_bias(&self, head: usize, key_first: usize, keys: usize, scale: f32) -> ScoreBias {
        let QueryPart { job, workspace, queries, .. } = self;
        let ahead = key_first as isize - (queries.end - 1) as isize;
        let count = queries.len() + keys - 1;
        match job.bias {
            Bias::None => ScoreBias::None,
            Bias::Distance(distance) => {
                let to = std::slice::from_raw_parts_mut(workspace.distances, count);
                distance.fill(head, ahead, LOG2_E, to);
                ScoreBias::Distances
            }
            Bias::Disentangled(tables) => {
                let size = TERMS * job.shape.head_dim;
                // Keys in the workspace include the scale, queries do not.
                for (table, to, factor) in
                    [(tables.keys, workspace.key_terms, scale), (tables.queries, workspace.query_terms, 1.0)]
                {
                    if let Some(table) = table {
                        let to = std::slice::from_raw_parts_mut(to, size);
                        tables.fill(table, head, ahead..ahead + count as isize, factor, to, TERMS);
                    }
                }
                ScoreBias::Terms { keys: tables.keys.is_some(), queries: tables.queries.is_some() }
            }
        }
    }

    /// Processes a group of queries from `query` on against a block of keys.
    #[inline(always)]
    unsafe fn group<T: TileLayout>(&self, head: usize, query: usize, key_first: usize, bias: ScoreBias) {
        let job = self.job;
        let HeadShape { heads, kv_heads, head_dim } = job.shape;
        let kv_head = head * kv_heads / heads;
        let (stride, out_stride) = (job.shape.qkv_width(), job.shape.q_width());
        let count = (self.queries.end - query).min(T::ROWS);
        let (first, end) = (job.visible(self.rows, query).0, job.visible(self.rows, query + count - 1).1);
        let (from, to) = (first.max(key_first), end.min(key_first + KEYS));
        if from >= to {
            return;
        }
        let reach = job.reach().min(self.rows + query + count) as isize;
        let at = query as isize - key_first as isize;
        let group = Group {
            workspace: self.workspace,
            bias,
            query: self.qkv.add(query * stride + head * head_dim),
            values: self.qkv.add(key_first * stride + (heads + kv_heads + kv_head) * head_dim),
            stride,
            count,
            readable: self.readable - query,
            head_dim,
            state: query - self.queries.start,
            from: from - key_first,
            to: to - key_first,
            visible: VisibleKeys { from: at - reach, to: at + reach + 1 },
            bias_at: self.queries.end - 1 - query,
            first: first >= key_first,
            last: end <= key_first + KEYS,
            out: self.out.add((query - self.out_first) * out_stride + head * head_dim),
            out_stride,
        };
        T::group(group);
    }
}

/// Attention of the batch's rows of `[q | k | v]` inside each sequence.
pub(super) fn self_attention(
    Cores { tier, turn }: Cores<'_>,
    scratch: &mut SelfAttentionScratch,
    batch: &Batch,
    job: &SelfAttentionJob<'_>,
    qkv: &[f32],
    out: &mut [f32],
) {
    let HeadShape { heads, kv_heads, head_dim } = job.shape;
    let (rows, width, q_width) = (batch.rows(), job.shape.qkv_width(), job.shape.q_width());
    assert!(heads.is_multiple_of(kv_heads), "key-value heads divide heads");
    assert!(qkv.len() >= rows * width && out.len() >= rows * q_width, "fewer rows than the batch");
    assert!(head_dim <= scratch.head_dim, "heads wider than the step limits");
    assert!(scratch.threads.len() >= turn.threads(), "scratch for every thread");
    for span in &batch.sequences {
        assert_eq!(span.context, span.rows, "{span:?}: a sequence that is not whole");
        assert!((span.row_first + span.rows) as usize <= rows, "a bad span");
        assert!(job.padding < span.rows, "{span:?}: nothing but padding");
    }
    let plain = job.reach.is_none() && matches!(job.bias, Bias::None);
    assert!(job.padding == 0 || plain, "padding stands nowhere");
    let products = batch.sequences.iter().map(|span| job.products(span.rows as usize) * heads);
    let products = products.fold(0, usize::saturating_add) / (turn.threads() * ITEMS_PER_THREAD);
    let products = products.max(ITEM_PRODUCTS_MIN);
    // Terms of content and position are computed with vectors on every tier.
    let by_unit = tier == Tier::Amx && !matches!(job.bias, Bias::Disentangled(_));
    let unit = if by_unit { QUERIES_UNIT_AMX } else { QUERIES_UNIT };
    let halves = |index: usize| job.halves(batch.sequences[index].rows as usize);
    let share = |index: usize| halves(index).map(|(own, _)| Share::new(job, own.len(), products, unit));
    scratch.item_first.clear();
    scratch.item_first.push(0);
    let mut items = 0;
    for index in 0..batch.sequences.len() {
        items += share(index).iter().map(Share::items).sum::<usize>();
        scratch.item_first.push(items);
    }
    let item_first = &scratch.item_first[..];
    let (qkv, out) = (SharedPointer::new_const(qkv.as_ptr()), SharedPointer::new(out));
    let threads = SharedPointer::new(&mut scratch.threads);
    turn.run(items, 1, &|worker, range| {
        // SAFETY: the pool gives each thread a number of its own, below the length asserted above.
        let memory = unsafe { &mut *threads.get().add(worker) };
        let workspace = workspace(memory, head_dim);
        for item in range {
            let index = item_first.partition_point(|&first| first <= item) - 1;
            let ([first, second], [before, padding]) = (share(index), halves(index));
            let local = item - item_first[index];
            let (share, (own, seen), local) = match local.checked_sub(first.items()) {
                None => (first, before, local),
                Some(local) => (second, padding, local),
            };
            let (chunk, block) = (local / share.blocks, local % share.blocks);
            let row = batch.sequences[index].row_first as usize;
            // SAFETY: the sequence's rows are there (asserted), and its part of the output is the item's own.
            unsafe {
                let part = QueryPart {
                    job,
                    workspace,
                    heads: chunk * share.heads..heads.min((chunk + 1) * share.heads),
                    queries: own.start + block * share.queries
                        ..own.end.min(own.start + (block + 1) * share.queries),
                    rows: seen,
                    readable: rows - row,
                    qkv: qkv.get().add(row * width),
                    out: out.get().add(row * q_width),
                    out_first: 0,
                };
                part.run_by(tier, by_unit);
            }
        }
    });
}

/// Same as [`self_attention`] without reach, padding or bias, for the queries `queries` of one sequence. The sequence
/// has all rows of `qkv`, and the output's first row is the first of the queries.
pub(super) fn some_queries(
    Cores { tier, turn }: Cores<'_>,
    scratch: &mut SelfAttentionScratch,
    queries: std::ops::Range<usize>,
    job: &SelfAttentionJob<'_>,
    qkv: &[f32],
    out: &mut [f32],
) {
    let HeadShape { heads, kv_heads, head_dim } = job.shape;
    let (rows, q_width) = (qkv.len() / job.shape.qkv_width(), job.shape.q_width());
    assert!(heads.is_multiple_of(kv_heads), "key-value heads divide heads");
    assert!(queries.end <= rows && out.len() >= queries.len() * q_width, "queries that are not there");
    assert!(queries.start.is_multiple_of(QUERIES_PART), "a part begins where groups do");
    assert!(head_dim <= scratch.head_dim, "heads wider than the step limits");
    assert!(scratch.threads.len() >= turn.threads(), "scratch for every thread");
    assert!(
        job.reach.is_none() && job.padding == 0 && matches!(job.bias, Bias::None),
        "parts of plain attention"
    );
    let head = queries.len() * rows * head_dim;
    let products = (head * heads / (turn.threads() * ITEMS_PER_THREAD)).max(ITEM_PRODUCTS_MIN);
    let by_unit = tier == Tier::Amx;
    let unit = if by_unit { QUERIES_UNIT_AMX } else { QUERIES_UNIT };
    let share = Share::of(job, queries.len(), head, products, unit);
    let (qkv, out) = (SharedPointer::new_const(qkv.as_ptr()), SharedPointer::new(out));
    let threads = SharedPointer::new(&mut scratch.threads);
    turn.run(share.items(), 1, &|worker, range| {
        // SAFETY: the pool gives each thread a number of its own, below the length asserted above.
        let memory = unsafe { &mut *threads.get().add(worker) };
        let workspace = workspace(memory, head_dim);
        for item in range {
            let (chunk, block) = (item / share.blocks, item % share.blocks);
            // SAFETY: the sequence's rows are there, and its part of the output is the item's own (both asserted).
            unsafe {
                let part = QueryPart {
                    job,
                    workspace,
                    heads: chunk * share.heads..heads.min((chunk + 1) * share.heads),
                    queries: queries.start + block * share.queries
                        ..queries.end.min(queries.start + (block + 1) * share.queries),
                    rows,
                    readable: rows,
                    qkv: qkv.get(),
                    out: out.get(),
                    out_first: queries.start,
                };
                part.run_by(tier, by_unit);
            }
        }
    });
}
