//! Attention of heads and latents: norm, rotation, cache, attention kernels.

use super::then::GROUPS_MAX;
use super::*;
use crate::shapes::{GROUP_QUERIES, GROUPS, GROUPS_THREADS, PART_COLS};
use hanzo_engine_ops::{HeadShape, QueryScale, Rope, RopeKind};

/// Blocks that keep a GPU busy, so that rows need not be split over blocks. On an H200, with 132 multiprocessors, 512
/// blocks with whole rows took 0.6 to 0.85 times as long as more blocks with spans; 128 blocks took 1.3 to 1.7 times
/// as long.
const BLOCKS_ENOUGH: u32 = 512;
/// Spans of keys that a single block finishes sooner than two kernels would.
const SPANS_OF_ONE: u32 = 2;
/// Spans up to which one block merges them as fast as a kernel with more blocks: each lane loads four at once.
const SPANS_JOINED_MAX: u32 = 32;
/// Bytes for the partial results of rows that are split at the same time; a single row may need more.
const PARTS_BYTES: usize = 16 << 20;
/// Queries of a tile. `TILES_OF_MANY` is the number of tiles of a block in the kernel for many queries.
const TILE: u32 = 16;
const TILES_OF_MANY: u32 = 2;
/// Widest heads of keys and values that tiles support. `MANY_COLS_MAX` limits the kernels for many queries and for few
/// with everything in registers; `CHUNK_COLS` are the columns of a chunk.
const TILE_COLS_MAX: u32 = 256;
const MANY_COLS_MAX: u32 = 128;
const CHUNK_COLS: u32 = 32;
/// Rows times heads from which the kernel for many queries has enough blocks, so that no row is split.
const QUERIES_MANY: u32 = 4096;
/// Rows times heads from which warpgroup kernels ([`super::wide`]) have enough blocks: half as many as an H200's
/// multiprocessors, whose tensor cores they use best. Not measured on a GPU.
const QUERIES_OF_GROUPS: u32 = 8192;

/// Choice between kernels that compute attention with the same results.
pub(super) struct Kinds {
    shares_rows: bool, // whether blocks may share a row's keys
    queries_many: u32, // number of queries in the batch from which the kernel for many is used
}

impl Default for Kinds {
    fn default() -> Self {
        Self { shares_rows: true, queries_many: QUERIES_MANY }
    }
}

/// Parameters of a rotation in the kernel's form.
struct RotationParams<'a, D: Device> {
    inv_freq: Option<&'a CudaVector<D>>,
    interleaved: u32,
    sections: [u32; 3],
    sections_interleaved: u32,
    magnitude: f32,
    long_magnitude: Option<f32>, // of a second table of frequencies
}

impl<'a, D: Device> RotationParams<'a, D> {
    fn of(rope: Option<&Rope<&'a CudaVector<D>>>) -> Self {
        let axes = rope.and_then(|rope| rope.axes);
        Self {
            inv_freq: rope.map(|rope| rope.inv_freq),
            interleaved: u32::from(rope.is_some_and(|rope| rope.kind == RopeKind::Interleaved)),
            sections: axes.map_or([NONE; 3], |axes| axes.sections),
            sections_interleaved: u32::from(axes.is_some_and(|axes| axes.interleaved)),
            magnitude: rope.map_or(1.0, |rope| rope.magnitude),
            long_magnitude: rope.and_then(|rope| rope.long),
        }
    }

    fn two_tables(&self) -> u32 {
        u32::from(self.long_magnitude.is_some())
    }

    fn pairs(&self) -> usize {
        self.inv_freq.map_or(0, |inv_freq| inv_freq.length) / (1 + self.two_tables() as usize)
    }
}

impl<D: Device> CudaBackend<D> {
    /// Makes a single block process all keys of a row in attention, however many keys and however few blocks there
    /// are.
    pub fn without_shared_rows(mut self) -> Self {
        self.kinds.shares_rows = false;
        self
    }

    /// Sets the number of queries (rows times heads) from which attention uses the kernel for many queries.
    pub fn with_many_queries_from(mut self, queries: u32) -> Self {
        self.kinds.queries_many = queries;
        self
    }

    /// Norms and rotates queries in place, and keys in place or into the cache together with the values.
    pub(super) fn turn_heads(
        &mut self,
        qkv: &CudaBuffer<D>,
        params: &QkvParams<&CudaVector<D>>,
        kv: Option<(&CudaKv<D>, usize)>,
    ) {
        let HeadShape { heads, kv_heads, head_dim } = params.shape;
        let (q_width, kv_width) = (heads * head_dim, kv_heads * head_dim);
        self.check(qkv, params.width(), "qkv");
        let turn = RotationParams::of(params.rope.as_ref());
        assert!(2 * turn.pairs() <= head_dim, "more pairs than are turned");
        // A norm of all heads as one comes first, and leaves no norm for each head.
        let mut of_each = |norm: Option<&'_ CudaVector<D>>, first: usize, width: usize| match norm {
            Some(weight) if weight.length != head_dim => {
                assert!(!params.norm_after_rope, "a norm of all heads after their rotation");
                assert_eq!(weight.length, width, "a norm has one weight an element, of a head or of all");
                let norm = CudaNorm { weight, bias: None, eps: params.norm_eps, centered: false };
                self.norm_in_place(qkv, NormColumns { first, width }, norm);
                0
            }
            norm => u32::from(norm.is_some()) * head_dim as u32,
        };
        let q_normed = of_each(params.q_norm, 0, q_width);
        let k_normed = if params.queries_alone { 0 } else { of_each(params.k_norm, q_width, kv_width) };
        let scale = params.query_scale.unwrap_or(QueryScale { factor: 0.0, every: 0, offset: 0 });
        let place = kv.map(|(kv, layer)| kv.layer(layer));
        let place = place.as_ref();
        let ops = self.ops();
        let at = |columns: usize| qkv.memory.address().offset(4 * columns);
        let head_params = HeadParams {
            batch: ops.batch,
            q: at(0),
            k: at(q_width),
            v: at(q_width + kv_width),
            q_weight: address_of(params.q_norm.map(|norm| &norm.memory)),
            k_weight: address_of(params.k_norm.map(|norm| &norm.memory)),
            inv_freq: address_of(turn.inv_freq.map(|inv_freq| &inv_freq.memory)),
            key_plane: place.map_or(Address::NONE, |place| place.keys),
            value_plane: place.map_or(Address::NONE, |place| place.values),
            q_stride: qkv.cols as u32,
            kv_stride: qkv.cols as u32,
            heads: heads as u32,
            kv_heads: kv_heads as u32,
            head_dim: head_dim as u32,
            turned_first: 0,
            q_normed,
            k_normed,
            pairs: turn.pairs() as u32,
            interleaved: turn.interleaved,
            norm_after: u32::from(params.norm_after_rope),
            values_normed: u32::from(params.values_normed),
            sections: turn.sections,
            sections_interleaved: turn.sections_interleaved,
            kv_type: place.map_or(0, |place| place.kv_type),
            group: place.map_or(0, |place| place.group),
            slot_bytes: place.map_or(0, |place| place.slot_bytes),
            scale_every: scale.every,
            scale_factor: scale.factor,
            scale_offset: scale.offset,
            eps: params.norm_eps,
            magnitude: turn.magnitude,
            two_tables: turn.two_tables(),
            long_magnitude: turn.long_magnitude.unwrap_or(turn.magnitude),
        };
        let turned = match (params.queries_alone, place) {
            (true, _) => heads,
            (false, None) => heads + kv_heads,
            (false, Some(_)) => heads + 2 * kv_heads,
        };
        let grid = Grid {
            blocks: [ops.bucket.rows, turned as u32, 1],
            threads: WARP,
            shared_bytes: 4 * head_dim as u32,
        };
        let vectors = [params.q_norm, params.k_norm, turn.inv_freq];
        let mut holds = vec![&qkv.memory];
        holds.extend(vectors.into_iter().flatten().map(|vector| &vector.memory));
        holds.extend(kv.map(|(kv, _)| &kv.memory));
        if !self.turn_where_written(&head_params, turned as u32, &holds) {
            self.ops().push(Kernel::Heads, grid, &head_params, &holds);
        }
    }

    pub(super) fn attend(
        &mut self,
        qkv: &CudaBuffer<D>,
        params: &AttentionParams<&CudaVector<D>>,
        kv: &CudaKv<D>,
        layer: usize,
        out: &mut CudaBuffer<D>,
    ) {
        let HeadShape { heads, kv_heads, head_dim } = params.shape;
        assert!(!params.memory, "memories are not known here");
        self.check(qkv, params.width(), "qkv");
        self.check(out, params.shape.q_width(), "out");
        kv.check_heads(&params.shape, layer);
        let of_heads = [params.sinks, params.slopes];
        assert!(of_heads.into_iter().flatten().all(|of| of.length == heads), "one sink and one slope a head");
        let place = kv.layer(layer);
        let paged = PagedAttentionParams {
            batch: self.ops().batch,
            q: qkv.memory.address(),
            key_plane: place.keys,
            value_plane: place.values,
            out: out.memory.address(),
            sinks: address_of(params.sinks.map(|sinks| &sinks.memory)),
            slopes: address_of(params.slopes.map(|slopes| &slopes.memory)),
            parts: Address::NONE,
            arrived: Address::NONE,
            cut: PiecesToParams::default(),
            q_stride: qkv.cols as u32,
            out_stride: out.cols as u32,
            heads: heads as u32,
            kv_heads: kv_heads as u32,
            head_dim: head_dim as u32,
            value_dim: head_dim as u32,
            kv_type: place.kv_type,
            group: place.group,
            slot_bytes: place.slot_bytes,
            window: params.window.unwrap_or(0),
            chunked: u32::from(params.chunked),
            scale: params.scale,
            softcap: params.softcap.unwrap_or(0.0),
            row_first: 0,
            row_end: NONE,
            spans: 1,
            short_rows: 0,
            unused: 0,
        };
        let mut holds = vec![&qkv.memory, &out.memory, &kv.memory];
        holds.extend(of_heads.into_iter().flatten().map(|of| &of.memory));
        self.attend_by_spans(paged, &holds);
    }

    /// Attention by tiles of queries that read the same keys, or by rows for heads that tiles do not support. The
    /// choice of tile kernel does not change a row's results. Prompts use the kernel for many queries; sequences with
    /// few rows in the same batch use the kernel for few.
    fn attend_by_spans(&mut self, paged: PagedAttentionParams, holds: &[&Arc<Memory<D>>]) {
        let bucket = self.ops().bucket;
        if !suits_tiles(&paged) {
            let (kernel, grid) = paged_grid(bucket.rows, &paged);
            return self.share_rows(kernel, grid, bucket.rows * grid.blocks[1], &paged, holds);
        }
        let [few, many] = [1, TILES_OF_MANY].map(|tiles| QueryTiles::of(&paged, tiles));
        let of_each = paged.heads / paged.kv_heads;
        let is_many = paged.head_dim <= MANY_COLS_MAX
            && bucket.rows * paged.heads >= self.kinds.queries_many
            && bucket.rows / bucket.sequences * of_each >= TILE;
        let groups = self.groups_of(&paged, bucket);
        if !is_many && groups.is_none() {
            let (kernel, grid) = few.launch(&paged, few.count(bucket));
            let busy = bucket.rows.div_ceil(few.rows).max(bucket.sequences);
            return self.share_rows(kernel, grid, busy * grid.blocks[1], &paged, holds);
        }
        let short_rows = if bucket.sequences > 1 { few.rows } else { 0 };
        let paged = PagedAttentionParams { short_rows, ..paged };
        let (kernel, grid) = match groups {
            Some(groups) => groups.launch_groups(&paged, groups.count(bucket)),
            None => many.launch(&paged, many.count(bucket)),
        };
        self.ops().push(kernel, grid, &paged, holds);
        if short_rows > 0 {
            let (kernel, grid) = few.launch(&paged, bucket.sequences);
            self.ops().push(kernel, grid, &paged, holds);
        }
    }

    /// Tiling of queries for warpgroups, if they are to be used: a sequence has enough queries for at least one
    /// warpgroup.
    fn groups_of(&self, paged: &PagedAttentionParams, bucket: Bucket) -> Option<QueryTiles> {
        let of_each = paged.heads / paged.kv_heads;
        let suits = paged.kv_type == 0 && paged.head_dim <= MANY_COLS_MAX;
        let queries_many = self.kinds.queries_many.max(QUERIES_OF_GROUPS);
        let are_many = bucket.rows * paged.heads >= queries_many
            && bucket.rows / bucket.sequences * of_each >= GROUP_QUERIES;
        let wanted = self.has_few_rows_wide() || (self.is_wide() && are_many);
        (suits && wanted).then(|| QueryTiles::of(paged, GROUPS * GROUP_QUERIES / TILE))
    }

    /// If few blocks are busy and there are several spans, splits a row's spans of keys over blocks, whose partial
    /// results another kernel merges. Rows whose partial results do not fit at once are processed in turn. The results
    /// are the same.
    fn share_rows(
        &mut self,
        kernel: Kernel,
        grid: Grid,
        busy: u32,
        paged: &PagedAttentionParams,
        holds: &[&Arc<Memory<D>>],
    ) {
        let (parts, shares_rows) = (self.scratch().parts.clone(), self.kinds.shares_rows);
        let (arrived, fuses) = (self.scratch().arrived.clone(), self.fuses);
        let mut ops = self.ops();
        let rows = ops.bucket.rows;
        let spans = match paged.window {
            0 => ops.bucket.spans,
            window => ops.bucket.spans.min(window.div_ceil(SPAN) + 1),
        };
        let row_bytes = part_bytes(paged.heads as usize, paged.value_dim as usize) * spans as usize;
        // Tiles that begin with a turn's first row belong to that turn alone.
        let tile_rows = if suits_tiles(paged) { QueryTiles::of(paged, 1).rows } else { 1 };
        let rows_at_once = match (parts.bytes() / row_bytes) as u32 {
            rows if rows > tile_rows => rows - rows % tile_rows,
            rows => rows,
        };
        if !shares_rows || spans <= SPANS_OF_ONE || busy >= BLOCKS_ENOUGH || rows_at_once == 0 {
            ops.push(kernel, grid, paged, holds);
            return;
        }
        // Rows of a tile see different keys, which may begin in different spans.
        let blocks_of_spans = if suits_tiles(paged) { ops.bucket.spans.min(spans + 1) } else { spans };
        // The last of a tile's blocks merges the partial results of all.
        let tiles = grid.blocks[0] * grid.blocks[1];
        let joins = fuses && suits_tiles(paged) && spans <= SPANS_JOINED_MAX && tiles <= GROUPS_MAX;
        let arrived = if joins { Some(&arrived) } else { None };
        let holds = [holds, &[&parts], arrived.as_slice()].concat();
        for row_first in (0..rows).step_by(rows_at_once as usize) {
            let rows = rows_at_once.min(rows - row_first);
            let row_end = row_first + rows;
            let shared = PagedAttentionParams {
                parts: parts.address(),
                arrived: address_of(arrived),
                row_first,
                row_end,
                spans,
                ..*paged
            };
            let blocks = if suits_tiles(paged) { grid.blocks[0] } else { rows };
            let grid = Grid { blocks: [blocks, grid.blocks[1], blocks_of_spans], ..grid };
            ops.push(kernel, grid, &shared, &holds);
            if !joins {
                let grid = Grid { blocks: [rows, paged.heads, 1], threads: THREADS, shared_bytes: 0 };
                ops.push(Kernel::AttentionJoin, grid, &shared, &holds);
            }
        }
    }

    pub(super) fn multiply_heads(
        &mut self,
        weights: &[CudaMatrix<D>],
        x: &CudaBuffer<D>,
        out: &mut CudaBuffer<D>,
    ) {
        let (heads, outputs, cols) = (weights.len(), weights[0].rows(), weights[0].cols());
        let alike = |of: &CudaMatrix<D>| (of.rows(), of.cols()) == (outputs, cols) && of.product.floats;
        assert!(weights.iter().all(alike), "heads of one shape, of floats");
        assert!(
            x.cols.is_multiple_of(heads) && x.cols / heads >= cols,
            "{} columns for {heads} heads",
            x.cols
        );
        assert!(
            heads * (cols + outputs) <= self.steps.limits().heads_matmul_width,
            "heads wider than the step's limits"
        );
        let (stride, rest) = (x.cols / heads, x.cols / heads - cols);
        self.check(out, heads * (outputs + rest), "out");
        for (head, weight) in weights.iter().enumerate() {
            let from = MemoryRows { memory: &x.memory, first: head * stride, cols: x.cols };
            let first = head * (outputs + rest);
            let to = MemoryRows { memory: &out.memory, first, cols: out.cols };
            self.product(weight, &Product { x: from, out: to, ..Product::of(x, out) });
        }
        if rest > 0 {
            self.copy_tails(x, stride, outputs + rest, rest, out);
        }
    }

    pub(super) fn turn_latent(
        &mut self,
        latent: &CudaBuffer<D>,
        queries: &CudaBuffer<D>,
        params: &LatentParams<&CudaVector<D>>,
        kv: &CudaKv<D>,
        layer: usize,
    ) {
        let LatentHeads { heads, rank, rope_dim } = params.shape;
        let width = params.shape.width();
        self.check(latent, width, "latent");
        self.check(queries, heads * width, "queries");
        kv.check_latent(&params.shape, layer);
        let turn = RotationParams::of(Some(&params.rope));
        assert!(
            params.norm.length == rank && 2 * turn.pairs() <= rope_dim,
            "a norm and pairs that fit the latent"
        );
        let place = kv.layer(layer);
        let mut ops = self.ops();
        let head_params = HeadParams {
            batch: ops.batch,
            q: queries.memory.address(),
            k: latent.memory.address(),
            v: Address::NONE,
            q_weight: Address::NONE,
            k_weight: params.norm.memory.address(),
            inv_freq: params.rope.inv_freq.memory.address(),
            key_plane: place.keys,
            value_plane: Address::NONE,
            q_stride: queries.cols as u32,
            kv_stride: latent.cols as u32,
            heads: heads as u32,
            kv_heads: 1,
            head_dim: width as u32,
            turned_first: rank as u32,
            q_normed: 0,
            k_normed: rank as u32,
            pairs: turn.pairs() as u32,
            interleaved: turn.interleaved,
            norm_after: 0,
            values_normed: 0,
            sections: turn.sections,
            sections_interleaved: turn.sections_interleaved,
            kv_type: place.kv_type,
            group: place.group,
            slot_bytes: place.slot_bytes,
            scale_every: 0,
            scale_factor: 0.0,
            scale_offset: 0,
            eps: params.norm_eps,
            magnitude: turn.magnitude,
            two_tables: turn.two_tables(),
            long_magnitude: turn.long_magnitude.unwrap_or(turn.magnitude),
        };
        let grid = Grid {
            blocks: [ops.bucket.rows, heads as u32 + 1, 1],
            threads: WARP,
            shared_bytes: 4 * width as u32,
        };
        let holds =
            [&queries.memory, &latent.memory, &params.norm.memory, &params.rope.inv_freq.memory, &kv.memory];
        ops.push(Kernel::Heads, grid, &head_params, &holds);
    }

    pub(super) fn attend_latent(
        &mut self,
        queries: &CudaBuffer<D>,
        shape: LatentHeads,
        scale: f32,
        kv: &CudaKv<D>,
        layer: usize,
        out: &mut CudaBuffer<D>,
    ) {
        let (LatentHeads { heads, rank, .. }, width) = (shape, shape.width());
        self.check(queries, heads * width, "queries");
        self.check(out, heads * rank, "out");
        kv.check_latent(&shape, layer);
        let place = kv.layer(layer);
        let paged = PagedAttentionParams {
            batch: self.ops().batch,
            q: queries.memory.address(),
            key_plane: place.keys,
            value_plane: place.keys,
            out: out.memory.address(),
            sinks: Address::NONE,
            slopes: Address::NONE,
            parts: Address::NONE,
            arrived: Address::NONE,
            cut: PiecesToParams::default(),
            q_stride: queries.cols as u32,
            out_stride: out.cols as u32,
            heads: heads as u32,
            kv_heads: 1,
            head_dim: width as u32,
            value_dim: rank as u32,
            kv_type: place.kv_type,
            group: place.group,
            slot_bytes: place.slot_bytes,
            window: 0,
            chunked: 0,
            scale,
            softcap: 0.0,
            row_first: 0,
            row_end: NONE,
            spans: 1,
            short_rows: 0,
            unused: 0,
        };
        self.attend_by_spans(paged, &[&queries.memory, &out.memory, &kv.memory]);
    }
}

/// Bytes of a row's partial result for a span of keys: for each head a maximum, a total, and sums.
fn part_bytes(heads: usize, value_dim: usize) -> usize {
    4 * heads * (value_dim + 2)
}

/// Bytes of the partial results of rows: for all rows of a step, if that is not too much, and for at least one row.
pub(super) fn parts_bytes(limits: &StepLimits) -> usize {
    let spans = spans_of(limits.context);
    if spans <= SPANS_OF_ONE {
        return 0;
    }
    let row_bytes = part_bytes(limits.heads.heads, limits.heads.head_dim) * spans as usize;
    (limits.rows * row_bytes).min(PARTS_BYTES.max(row_bytes))
}

/// Kernel and grid with a block for as many heads of each row as share keys and suit the kernel. Shared memory holds
/// the queries, the merged results, and for each warp its sums, the weights and slots of a block of keys, maxima and
/// totals.
fn paged_grid(rows: u32, paged: &PagedAttentionParams) -> (Kernel, Grid) {
    let PagedAttentionParams { heads, kv_heads, head_dim, value_dim, .. } = *paged;
    let of_each = heads / kv_heads;
    let shared_bytes = |at_once: u32| {
        4 * (at_once * (head_dim + value_dim) + WARPS * (at_once * (value_dim + WARP + 2) + WARP))
    };
    let kernels = [(Kernel::AttentionFour, 4), (Kernel::AttentionTwo, 2)];
    let suits =
        |&(_, at_once): &(Kernel, u32)| at_once < 2 * of_each && shared_bytes(at_once) <= SHARED_BYTES;
    let (kernel, at_once) = kernels.into_iter().find(suits).unwrap_or((Kernel::Attention, 1));
    let blocks = [rows, kv_heads * of_each.div_ceil(at_once), 1];
    (kernel, Grid { blocks, threads: THREADS, shared_bytes: shared_bytes(at_once) })
}

/// Whether tensor-core kernels support heads of this shape: keys and values of equal width, in whole copies of 16
/// bytes.
fn suits_tiles(paged: &PagedAttentionParams) -> bool {
    let PagedAttentionParams { head_dim, value_dim, kv_type, slot_bytes, .. } = *paged;
    let even_slots = match kv_type {
        0 => slot_bytes.is_multiple_of(16),
        2 => slot_bytes.is_multiple_of(8),
        _ => true,
    };
    let even = head_dim.is_multiple_of(8) && even_slots;
    head_dim == value_dim && head_dim <= TILE_COLS_MAX && even
}

/// Columns of a row that one block of the kernels for few queries computes, if all blocks have equally many and they
/// are contiguous.
pub(super) fn columns_of_block(paged: &PagedAttentionParams) -> Option<u32> {
    let of_each = paged.heads / paged.kv_heads;
    let heads = of_each.min(TILE);
    of_each.is_multiple_of(heads).then_some(heads * paged.head_dim)
}

/// Tiling of queries: the heads of a group are neighbouring rows of a sequence, in blocks of so many tiles.
struct QueryTiles {
    tiles: u32,
    rows: u32,
    blocks_of_heads: u32,
}

impl QueryTiles {
    fn of(paged: &PagedAttentionParams, tiles: u32) -> QueryTiles {
        let (of_each, queries) = (paged.heads / paged.kv_heads, TILE * tiles);
        let heads = of_each.min(queries);
        QueryTiles { tiles, rows: queries / heads, blocks_of_heads: paged.kv_heads * of_each.div_ceil(heads) }
    }

    /// Number of blocks for the rows of a batch; `find_rows` defines their numbering.
    fn count(&self, bucket: Bucket) -> u32 {
        bucket.rows / self.rows + bucket.sequences
    }

    /// Kernel and grid. Shared memory holds chunks of keys and values in one or two pieces, pieces of queries and
    /// weights, maxima, totals and inverse factors.
    fn launch(&self, paged: &PagedAttentionParams, blocks: u32) -> (Kernel, Grid) {
        let (tiles, share) = (self.tiles, WARPS / self.tiles);
        let kernel = match (paged.kv_type, tiles, paged.head_dim > MANY_COLS_MAX) {
            (0, 1, false) => Kernel::AttentionFew,
            (0, 1, true) => Kernel::AttentionWide,
            (0, ..) => Kernel::AttentionMany,
            (_, 1, false) => Kernel::AttentionFewQ8,
            (_, 1, true) => Kernel::AttentionWideQ8,
            _ => Kernel::AttentionManyQ8,
        };
        let queries = paged.head_dim.div_ceil(CHUNK_COLS) * 2 * (2 * CHUNK_COLS * TILE);
        let weights = 2 * (2 * SPAN * TILE);
        let shared_bytes =
            4 * (2 * CHUNK_COLS * SPAN) + tiles * (queries + weights + 4 * TILE * (share + SPAN / WARP + 1));
        (kernel, Grid { blocks: [blocks, self.blocks_of_heads, 1], threads: THREADS, shared_bytes })
    }

    fn launch_groups(&self, paged: &PagedAttentionParams, blocks: u32) -> (Kernel, Grid) {
        let kernel = match paged.head_dim <= PART_COLS {
            true => Kernel::AttentionGroupsNarrow,
            false => Kernel::AttentionGroups,
        };
        let blocks = [blocks, self.blocks_of_heads, 1];
        (kernel, Grid { blocks, threads: GROUPS_THREADS, shared_bytes: kernel.shared_bytes_max() })
    }
}

/// Grid with one warp for each head of each row; shared memory holds its query, its sums and the weights of a block of
/// keys.
pub(super) fn attention_grid(rows: u32, heads: usize, head_dim: usize, value_dim: usize) -> Grid {
    let shared_bytes = 4 * (head_dim + value_dim) as u32 + 4 * WARP;
    Grid { blocks: [rows, heads as u32, 1], threads: WARP, shared_bytes }
}
