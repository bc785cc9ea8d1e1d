//! Attention over the paged KV cache: division of the loop into items, and merging of a long context's parts.
//!
//! The queries of one sequence that read the same key-value head, over all its rows, are *vectors* of one list. An
//! item has up to [`VECTORS`] of them, so that each key and value is read once for all; it has fewer if there would be
//! too few items. Keys are taken in tiles of 64 by absolute position. Tiles are gathered in partitions of 512, each of
//! which yields a maximum, a total and a weighted sum, and partitions are merged in order. This is the same whether
//! one thread takes all partitions of an item, as in prefill, or several threads take one each, as when one long
//! sequence decodes. So a row's bits depend on its own position alone.

mod format;
mod latent;
mod softmax;
mod state;
#[cfg(test)]
mod tests;
mod tile;

use super::aligned::{AlignedArray, SharedPointer};
use super::cores::Cores;
use super::kv::LayerKv;
use super::lanes::dispatch;
use hanzo_engine_ops::{BLOCK_TOKENS, Batch, HeadShape, KernelError, KvType, MemorySpan, SequenceSpan};

use state::{Finish, Merge, SoftmaxState};
use tile::{Pack, PartitionSums, Workspace};

/// Keys of a tile.
pub(super) const TILE: usize = 64;
/// Keys of a partition.
pub(super) const PARTITION: usize = 512;
/// Query vectors of an item when there are many: whole groups on any tier.
pub(super) const VECTORS: usize = 96;
/// Query vectors of an item when there are too few for all threads.
const VECTORS_FEW: usize = 24;
/// Number of query vectors up to which widening keys and values first does not pay off.
const FEW: usize = 8;
/// Items for each thread that are enough for balance.
const ITEMS_ENOUGH: usize = 4;
const _: () = assert!(PARTITION.is_multiple_of(TILE) && TILE.is_multiple_of(BLOCK_TOKENS));
const _: () = assert!(VECTORS.is_multiple_of(12) && VECTORS_FEW.is_multiple_of(12) && VECTORS_FEW <= VECTORS);

/// Scratch of the whole pool.
#[derive(Debug)]
pub(super) struct AttentionScratch {
    width: usize,
    threads: Vec<ThreadScratch>,
    /// Partial results of contexts that several threads share: (slots, slot_vectors) states.
    parts: AlignedArray<f32>,
    parts_max: usize,
    slot_vectors: usize,
    /// First item of each sequence in the current loop, then the total number of items.
    item_first: Vec<usize>, // (spans + 1)
}

#[derive(Debug)]
struct ThreadScratch {
    part: AlignedArray<f32>,      // VECTORS states
    total: AlignedArray<f32>,     // VECTORS states
    workspace: AlignedArray<f32>, // memory of a `Workspace`
    width: usize,
}

impl ThreadScratch {
    /// Length of the workspace in f32s.
    fn desk_len(width: usize) -> usize {
        VECTORS * (width + TILE + 1) + 2 * TILE * width
    }

    fn new(head_dim: usize) -> Result<ThreadScratch, KernelError> {
        let what = "attention scratch";
        let width = state::width(head_dim);
        Ok(ThreadScratch {
            part: AlignedArray::zeroed(VECTORS * SoftmaxState::size(head_dim), what)?,
            total: AlignedArray::zeroed(VECTORS * SoftmaxState::size(head_dim), what)?,
            workspace: AlignedArray::zeroed(ThreadScratch::desk_len(width), what)?,
            width,
        })
    }

    fn workspace(&mut self) -> Workspace {
        let (tile, vectors) = (TILE * self.width, VECTORS * self.width);
        let (keys, rest) = self.workspace.split_at_mut(tile);
        let (values, rest) = rest.split_at_mut(tile);
        let (queries, rest) = rest.split_at_mut(vectors);
        let (scores, rescales) = rest.split_at_mut(VECTORS * TILE);
        Workspace {
            queries: queries.as_mut_ptr(),
            scores: scores.as_mut_ptr(),
            rescales: rescales.as_mut_ptr(),
            keys: keys.as_mut_ptr(),
            values: values.as_mut_ptr(),
        }
    }
}

/// Sizes that determine the scratch.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttentionLimits {
    pub(super) heads: HeadShape,
    pub(super) context: usize,
    /// Sequences, or cross-attention spans.
    pub(super) spans: usize,
    pub(super) threads: usize,
}

impl AttentionLimits {
    /// Number of items below which contexts are split between threads.
    fn split_below(&self) -> usize {
        2 * self.threads
    }

    fn slot_vectors(&self) -> usize {
        (self.heads.heads / self.heads.kv_heads.max(1)).min(VECTORS_FEW)
    }

    /// Largest number of partial results at a time.
    fn parts_max(&self) -> usize {
        let splits = self.threads > 1 && self.heads.kv_heads < self.split_below();
        if splits { self.split_below() * self.context.div_ceil(PARTITION) } else { 0 }
    }

    pub(super) fn bytes(&self) -> usize {
        let state = SoftmaxState::size(self.heads.head_dim);
        let thread = 2 * VECTORS * state + ThreadScratch::desk_len(state::width(self.heads.head_dim));
        let parts = self.parts_max().saturating_mul(self.slot_vectors() * state);
        (self.threads * thread).saturating_add(parts).saturating_mul(size_of::<f32>())
            + (self.spans + 1) * size_of::<usize>()
    }
}

impl AttentionScratch {
    pub(super) fn new(limits: &AttentionLimits) -> Result<AttentionScratch, KernelError> {
        let head_dim = limits.heads.head_dim;
        let (parts_max, slot_vectors) = (limits.parts_max(), limits.slot_vectors());
        let parts = parts_max.saturating_mul(slot_vectors * SoftmaxState::size(head_dim));
        Ok(AttentionScratch {
            width: state::width(head_dim),
            threads: (0..limits.threads).map(|_| ThreadScratch::new(head_dim)).collect::<Result<_, _>>()?,
            parts: AlignedArray::zeroed(parts, "attention scratch")?,
            parts_max,
            slot_vectors,
            item_first: Vec::with_capacity(limits.spans + 1),
        })
    }
}

/// Parameters of the op.
#[derive(Clone, Copy)]
pub(super) struct AttentionJob<'a> {
    pub(super) kv: LayerKv<&'a [u8]>,
    /// Shape of the heads. For latents: all heads, and one of keys that is as long as a latent.
    pub(super) shape: HeadShape,
    /// Elements between the queries of one head in successive rows.
    pub(super) q_stride: usize,
    /// Elements of a value; for latents, where keys and values are one, the first elements of a latent.
    pub(super) value_dim: usize,
    pub(super) latent: bool,
    pub(super) scale: f32,
    pub(super) softcap: Option<f32>,
    pub(super) window: Option<u32>,
    pub(super) chunked: bool,
    /// Whether this is cross-attention: items are then of the rows of each span.
    pub(super) memory: bool,
    pub(super) sinks: Option<&'a [f32]>,
    pub(super) slopes: Option<&'a [f32]>,
}

impl AttentionJob<'_> {
    /// Number of spans: sequences, or cross-attention spans.
    fn count(&self, batch: &Batch) -> usize {
        if self.memory { batch.memories.len() } else { batch.sequences.len() }
    }

    /// Rows of a span, and the end of the keys that the last of them sees.
    fn span(&self, batch: &Batch, index: usize) -> SequenceSpan {
        if !self.memory {
            return batch.sequences[index];
        }
        let MemorySpan { row_first, rows, context, table_first, .. } = batch.memories[index];
        SequenceSpan { row_first, rows, context, table_first }
    }

    /// First key that a cross-attention span sees.
    fn first(&self, batch: &Batch, index: usize) -> Option<usize> {
        self.memory.then(|| batch.memories[index].first as usize)
    }

    /// Block ids of a span's keys, and the index of the first of these blocks.
    fn blocks<'b>(&self, batch: &'b Batch, index: usize) -> (usize, &'b [u32]) {
        match self.memory {
            true => (0, batch.memory_blocks(&batch.memories[index])),
            false => batch.blocks(&batch.sequences[index], self.kv.layout.group),
        }
    }

    fn window(&self) -> VisibleWindow {
        VisibleWindow {
            tokens: self.window.map_or(usize::MAX, |window| window as usize),
            chunked: self.chunked,
        }
    }
}

/// Sliding or chunked window of visible keys.
#[derive(Clone, Copy)]
pub(super) struct VisibleWindow {
    /// Number of keys in the window.
    tokens: usize,
    /// Whether the window starts at the last multiple of `tokens` instead.
    chunked: bool,
}

impl VisibleWindow {
    /// First key visible to a row whose own key is the last before `end`. It never decreases with the row.
    #[inline(always)]
    fn first(self, end: usize) -> usize {
        if self.chunked { (end - 1) / self.tokens * self.tokens } else { end.saturating_sub(self.tokens) }
    }
}

/// Query vectors `first..first + count` of one sequence and key-value head: vector v is row `v / group`, head
/// `head_first + v % group`.
#[derive(Clone, Copy)]
pub(super) struct Vectors {
    pub(super) first: usize,
    pub(super) count: usize,
    pub(super) group: usize,
    pub(super) head_dim: usize,
    pub(super) value_dim: usize,
    /// Whether keys and values are the same, stored as values.
    pub(super) latent: bool,
    /// The sequence's first row of queries, at `head_first`.
    pub(super) q: *const f32,
    pub(super) q_stride: usize,
    pub(super) out: *mut f32,
    pub(super) out_stride: usize,
    /// Attention sink of each head, from `head_first` on.
    pub(super) sinks: Option<*const f32>,
    /// ALiBi slope of each head, from `head_first` on.
    pub(super) slopes: Option<*const f32>,
    pub(super) scale: f32,
    pub(super) softcap: Option<f32>,
    /// Number of keys before the sequence's first row. `context` is the number of all its keys.
    pub(super) before: usize,
    pub(super) context: usize,
    /// First visible key of a cross-attention span.
    pub(super) memory: Option<usize>,
    /// Number of keys that each row of the sequence sees, from its first row on. None: each row sees the keys up to
    /// its own.
    pub(super) sees: Option<*const u32>,
    pub(super) window: VisibleWindow,
    /// The sequence's block ids; `first_block` is the index of the first of them, because earlier blocks have left the
    /// window.
    pub(super) blocks: *const u32,
    pub(super) first_block: usize,
    /// This head's part of block 0, and bytes from a block to the next.
    pub(super) keys: *const u8,
    pub(super) key_block_stride: usize,
    pub(super) values: *const u8,
    pub(super) value_block_stride: usize,
    pub(super) kv_type: KvType,
}

impl Vectors {
    /// Range of the positions that vector `v` (counted from `first`) sees.
    #[inline(always)]
    pub(super) fn visible(&self, v: usize) -> (usize, usize) {
        if let Some(first) = self.memory {
            return (first, self.context);
        }
        let row = (self.first + v) / self.group;
        let end = self.before + row + 1;
        // SAFETY: there is one for each of the sequence's rows (asserted in `attention`).
        let seen = self.sees.map_or(end, |sees| unsafe { sees.add(row).read() } as usize);
        (self.window.first(end), seen)
    }

    /// Whether all vectors belong to one row, or are so few that they are best computed row by row.
    #[inline(always)]
    pub(super) fn are_few(&self) -> bool {
        !self.latent
            && (self.count <= FEW || self.first / self.group == (self.first + self.count - 1) / self.group)
    }

    /// Range of the positions that any of the vectors sees.
    #[inline(always)]
    pub(super) fn span(&self) -> (usize, usize) {
        // Neither end ever decreases with the row.
        (self.visible(0).0, self.visible(self.count - 1).1)
    }
}

/// Division of a sequence's work into items.
struct Share {
    vectors: usize,
    chunks: usize,
    first_partition: usize,
    partitions: usize,
}

impl Share {
    fn new(batch: &Batch, index: usize, job: &AttentionJob<'_>, item_vectors: usize) -> Share {
        let span = job.span(batch, index);
        let vectors = span.rows as usize * (job.shape.heads / job.shape.kv_heads);
        let context = span.context as usize;
        let oldest = match job.first(batch, index) {
            Some(first) => first,
            None => job.window().first(context - span.rows as usize + 1),
        };
        let first_partition = oldest / PARTITION;
        let partitions = context.div_ceil(PARTITION) - first_partition;
        Share { vectors, chunks: vectors.div_ceil(item_vectors), first_partition, partitions }
    }
}

/// Attention of the batch's rows of `[q | k | v]` in `qkv` over a layer of the cache.
pub(super) fn attention(
    Cores { tier, turn }: Cores<'_>,
    scratch: &mut AttentionScratch,
    batch: &Batch,
    job: &AttentionJob<'_>,
    qkv: &[f32],
    out: &mut [f32],
) {
    let HeadShape { heads, kv_heads, head_dim } = job.shape;
    let (rows, kv) = (batch.rows(), &job.kv);
    let (q_stride, value_dim) = (job.q_stride, job.value_dim);
    let out_stride = heads * value_dim;
    let group = heads / kv_heads;
    assert!(value_dim <= head_dim && q_stride >= heads * head_dim, "values, and rows of queries");
    assert!(heads == group * kv_heads && kv_heads == kv.layout.kv_heads, "key-value heads divide heads");
    assert!(qkv.len() >= rows * q_stride && out.len() >= rows * out_stride, "fewer rows than the batch");
    assert!(state::width(head_dim) <= scratch.width, "heads wider than the step limits");
    assert!(job.sinks.is_none_or(|sinks| sinks.len() == heads), "one sink a head");
    assert!(job.slopes.is_none_or(|slopes| slopes.len() == heads), "one slope a head");
    assert!(
        !job.memory || (job.window.is_none() && job.slopes.is_none()),
        "what sees a memory has neither a window nor distances"
    );
    assert!(scratch.threads.len() >= turn.threads(), "scratch for every thread");
    assert!(batch.sees.is_empty() || batch.sees.len() == rows, "what each row sees");
    assert!(batch.sees.is_empty() || job.slopes.is_none(), "what is behind a row is at no distance of it");
    assert!(kv.layout.group < batch.groups(), "a layer of a group that the batch does not have");
    assert!(
        kv.layout.window.is_none_or(|kept| job.window.is_some_and(|window| window <= kept)),
        "a window beyond what its layer's group keeps"
    );
    let count = job.count(batch);
    let mut row = 0;
    for index in 0..count {
        let (span, (_, blocks)) = (job.span(batch, index), job.blocks(batch, index));
        assert!(blocks.iter().all(|&block| (block as usize) < kv.layout.blocks), "a block outside the cache");
        let behind = (span.row_first + span.rows) as usize;
        assert!((job.memory || span.rows <= span.context) && behind <= rows, "a bad span");
        if job.memory {
            // Rows without a cross-attention span get zeros.
            out[row * out_stride..span.row_first as usize * out_stride].fill(0.0);
            row = behind;
        }
    }
    if job.memory {
        out[row * out_stride..rows * out_stride].fill(0.0);
    }

    let items_of = |item_vectors: usize| -> usize {
        let chunks = |index| Share::new(batch, index, job, item_vectors).chunks;
        (0..count).map(chunks).sum::<usize>() * kv_heads
    };
    let enough = items_of(VECTORS) >= ITEMS_ENOUGH * turn.threads();
    let item_vectors = if enough { VECTORS } else { VECTORS_FEW };
    let shares = |index: usize| Share::new(batch, index, job, item_vectors);
    let split = items_of(item_vectors) < 2 * turn.threads() && turn.threads() > 1;
    let splits = |share: &Share| {
        split && share.chunks == 1 && share.partitions > 1 && share.vectors <= scratch.slot_vectors
    };
    scratch.item_first.clear();
    scratch.item_first.push(0);
    let (mut total, mut parts) = (0, 0);
    for index in 0..count {
        let share = shares(index);
        let pieces = if splits(&share) {
            parts += kv_heads * share.partitions;
            share.partitions
        } else {
            share.chunks
        };
        total += kv_heads * pieces;
        scratch.item_first.push(total);
    }
    assert!(parts <= scratch.parts_max, "contexts longer than the step limits");

    let qkv = SharedPointer::new_const(qkv.as_ptr());
    let out = SharedPointer::new(out);
    let vectors_of = |index: usize, kv_head: usize, first: usize, count: usize| -> Vectors {
        let span = job.span(batch, index);
        let (row, head) = (span.row_first as usize, kv_head * group);
        let (first_block, blocks) = job.blocks(batch, index);
        let values = kv.values[kv_head * kv.layout.value_stride..].as_ptr();
        let (keys, key_block_stride) = match job.latent {
            true => (values, kv.layout.value_block),
            false => (kv.keys[kv_head * kv.layout.key_stride..].as_ptr(), kv.layout.key_block),
        };
        Vectors {
            first,
            count,
            group,
            head_dim,
            value_dim,
            latent: job.latent,
            q: qkv.get().wrapping_add(row * q_stride + head * head_dim),
            q_stride,
            out: out.get().wrapping_add(row * out_stride + head * value_dim),
            out_stride,
            sinks: job.sinks.map(|sinks| sinks[head..].as_ptr()),
            slopes: job.slopes.map(|slopes| slopes[head..].as_ptr()),
            scale: job.scale,
            softcap: job.softcap,
            // Unused in cross-attention.
            before: span.context.saturating_sub(span.rows) as usize,
            context: span.context as usize,
            memory: job.first(batch, index),
            sees: batch.sees.get(row..).filter(|sees| !sees.is_empty()).map(<[u32]>::as_ptr),
            window: job.window(),
            blocks: blocks.as_ptr(),
            first_block,
            keys,
            key_block_stride,
            values,
            value_block_stride: kv.layout.value_block,
            kv_type: kv.layout.kv_type,
        }
    };
    let state_size = SoftmaxState::size(head_dim);
    let slot_size = scratch.slot_vectors * state_size;
    let parts = scratch.parts.shared();
    let item_first = &scratch.item_first[..];
    let threads = SharedPointer::new(&mut scratch.threads);
    turn.run(total, 1, &|worker, range| {
        // SAFETY: the pool gives each thread a number of its own, below the length asserted above.
        let scratch = unsafe { &mut *threads.get().add(worker) };
        let workspace = scratch.workspace();
        for item in range {
            let index = item_first.partition_point(|&first| first <= item) - 1;
            let share = shares(index);
            let local = item - item_first[index];
            if splits(&share) {
                let (kv_head, partition) = (local / share.partitions, local % share.partitions);
                let vectors = vectors_of(index, kv_head, 0, share.vectors);
                // SAFETY: slots are counted over the items that split, of which there are at most `parts_max`
                // (asserted); each item has its own.
                let slot =
                    unsafe { parts.get().add(slot_of(&shares, &splits, kv_heads, index, local) * slot_size) };
                let state = SoftmaxState { first: slot, head_dim };
                let partition = share.first_partition + partition;
                // SAFETY: the queries, the sequence's blocks and the state are there (asserted above).
                unsafe {
                    dispatch(tier, Pack { vectors, workspace });
                    dispatch(tier, PartitionSums { vectors, partition, state, workspace });
                }
                continue;
            }
            let (kv_head, chunk) = (local / share.chunks, local % share.chunks);
            // The last rows see the most keys, so they go first.
            let first = (share.chunks - 1 - chunk) * item_vectors;
            let vectors = vectors_of(index, kv_head, first, item_vectors.min(share.vectors - first));
            let (begin, end) = vectors.span();
            let total = SoftmaxState { first: scratch.total.as_mut_ptr(), head_dim };
            let part = SoftmaxState { first: scratch.part.as_mut_ptr(), head_dim };
            // SAFETY: the queries are there (asserted above), and the workspace holds VECTORS of them.
            unsafe { dispatch(tier, Pack { vectors, workspace }) };
            for partition in begin / PARTITION..end.div_ceil(PARTITION) {
                let first_part = partition == begin / PARTITION;
                let state = if first_part { total } else { part };
                // SAFETY: as above; a thread's states hold VECTORS vectors.
                unsafe {
                    dispatch(tier, PartitionSums { vectors, partition, state, workspace });
                    if !first_part {
                        dispatch(tier, Merge { total, part, count: vectors.count });
                    }
                }
            }
            // SAFETY: the item's rows and heads of the output are its own.
            unsafe { dispatch(tier, Finish { vectors, state: total }) };
        }
    });
    if !split {
        return;
    }
    turn.run(count * kv_heads, 1, &|_, range| {
        for item in range {
            let (index, kv_head) = (item / kv_heads, item % kv_heads);
            let share = shares(index);
            if !splits(&share) {
                continue;
            }
            let vectors = vectors_of(index, kv_head, 0, share.vectors);
            let slot = slot_of(&shares, &splits, kv_heads, index, kv_head * share.partitions);
            // SAFETY: these slots were filled by the loop above and belong to this item alone now.
            unsafe {
                let at = |partition: usize| SoftmaxState {
                    first: parts.get().add((slot + partition) * slot_size),
                    head_dim,
                };
                let total = at(0);
                for partition in 1..share.partitions {
                    dispatch(tier, Merge { total, part: at(partition), count: vectors.count });
                }
                dispatch(tier, Finish { vectors, state: total });
            }
        }
    });
}

/// Slot of item `local` of sequence `index`: after the slots of the sequences before it that are split.
fn slot_of(
    shares: &impl Fn(usize) -> Share,
    splits: &impl Fn(&Share) -> bool,
    kv_heads: usize,
    index: usize,
    local: usize,
) -> usize {
    let before = (0..index).map(shares).filter(splits).map(|share| share.partitions * kv_heads);
    before.sum::<usize>() + local
}
