//! Heads and latents: norm, rotation, cache, attention.

use super::*;
use hanzo_engine_kernels::{HeadShape, QueryScale, Rope, RopeKind};

/// Blocks from which on a card has enough to do, so that rows are not shared out: on an H200, of 132 multiprocessors, 512 blocks that
/// have rows to themselves took 0.6 to 0.85 times as long as more of them with spans, and 128 blocks 1.3 to 1.7 times.
const BLOCKS_ENOUGH: u32 = 512;
/// Spans of keys that a block is done with before two kernels would be.
const SPANS_OF_ONE: u32 = 2;
/// Bytes of the parts of rows that are shared out at once, but for a single row's.
const PARTS_BYTES: usize = 16 << 20;
/// Of shared memory, that any card gives a block.
const SHARED_BYTES_MAX: u32 = 48 << 10;

/// How a rotation is told to the kernel.
struct Turn<'a, D: Device> {
    inv_freq: Option<&'a CudaVector<D>>,
    interleaved: u32,
    sections: [u32; 3],
    sections_interleaved: u32,
    magnitude: f32,
}

impl<'a, D: Device> Turn<'a, D> {
    fn of(rope: Option<&Rope<'a, CudaVector<D>>>) -> Self {
        let axes = rope.and_then(|rope| rope.axes);
        Self {
            inv_freq: rope.map(|rope| rope.inv_freq),
            interleaved: u32::from(rope.is_some_and(|rope| rope.kind == RopeKind::Interleaved)),
            sections: axes.map_or([NONE; 3], |axes| axes.sections),
            sections_interleaved: u32::from(axes.is_some_and(|axes| axes.interleaved)),
            magnitude: rope.map_or(1.0, |rope| rope.magnitude),
        }
    }

    fn pairs(&self) -> usize {
        self.inv_freq.map_or(0, |inv_freq| inv_freq.length)
    }
}

impl<D: Device> CudaBackend<D> {
    /// Norms and turns queries in place, and keys in place or into the cache with the values.
    pub(super) fn turn_heads(
        &mut self,
        qkv: &CudaBuffer<D>,
        params: &QkvParams<'_, CudaVector<D>>,
        kv: Option<(&CudaKv<D>, usize)>,
    ) {
        let HeadShape { heads, kv_heads, head_dim } = params.shape;
        let (q_width, kv_width) = (heads * head_dim, kv_heads * head_dim);
        self.check(qkv, params.width(), "qkv");
        let turn = Turn::of(params.rope.as_ref());
        assert!(2 * turn.pairs() <= head_dim, "more pairs than are turned");
        // A norm of all heads as one comes first, and leaves none for each.
        let mut of_each = |norm: Option<&'_ CudaVector<D>>, first: usize, width: usize| match norm {
            Some(weight) if weight.length != head_dim => {
                assert!(!params.norm_after_rope, "a norm of all heads after their rotation");
                assert_eq!(weight.length, width, "a norm has one weight an element, of a head or of all");
                self.norm_in_place(qkv, (first, width), (weight, None, params.norm_eps, false));
                0
            }
            norm => u32::from(norm.is_some()) * head_dim as u32,
        };
        let q_normed = of_each(params.q_norm, 0, q_width);
        let k_normed = if params.queries_alone { 0 } else { of_each(params.k_norm, q_width, kv_width) };
        let scale = params.query_scale.unwrap_or(QueryScale { factor: 0.0, every: 0, offset: 0 });
        let place = kv.map(|(kv, layer)| kv.layer(layer));
        let place = place.as_ref();
        let mut ops = self.ops();
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
        ops.push(Kernel::Heads, grid, &head_params, &holds);
    }

    pub(super) fn attend(
        &mut self,
        qkv: &CudaBuffer<D>,
        params: &AttentionParams<'_, CudaVector<D>>,
        (kv, layer): (&CudaKv<D>, usize),
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
            spans: 1,
            unused: 0,
        };
        let mut holds = vec![&qkv.memory, &out.memory, &kv.memory];
        holds.extend(of_heads.into_iter().flatten().map(|of| &of.memory));
        self.attend_by_spans(paged, &holds);
    }

    /// A block has some heads of a row. Where there are few of them and several spans, blocks share a row's spans of keys, and another
    /// kernel brings together what they leave; rows whose parts there is no room for at once follow one another. The numbers are the
    /// same.
    fn attend_by_spans(&mut self, paged: PagedAttentionParams, holds: &[&Arc<Memory<D>>]) {
        let (parts, shares_rows) = (self.scratch().parts.clone(), self.shares_rows);
        let mut ops = self.ops();
        let rows = ops.bucket.rows;
        let (kernel, grid) = paged_grid(rows, &paged);
        let spans = match paged.window {
            0 => ops.bucket.spans,
            window => ops.bucket.spans.min(window.div_ceil(SPAN) + 1),
        };
        let row_bytes = part_bytes(paged.heads as usize, paged.value_dim as usize) * spans as usize;
        let rows_at_once = (parts.bytes() / row_bytes) as u32;
        let blocks = rows * grid.blocks[1];
        if !shares_rows || spans <= SPANS_OF_ONE || blocks >= BLOCKS_ENOUGH || rows_at_once == 0 {
            ops.push(kernel, grid, &paged, holds);
            return;
        }
        let holds = [holds, &[&parts]].concat();
        for row_first in (0..rows).step_by(rows_at_once as usize) {
            let rows = rows_at_once.min(rows - row_first);
            let shared = PagedAttentionParams { parts: parts.address(), row_first, spans, ..paged };
            let grid = Grid { blocks: [rows, grid.blocks[1], spans], ..grid };
            ops.push(kernel, grid, &shared, &holds);
            let grid = Grid { blocks: [rows, paged.heads, 1], threads: THREADS, shared_bytes: 0 };
            ops.push(Kernel::AttentionJoin, grid, &shared, &holds);
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
            let from = (&x.memory, head * stride, x.cols);
            let to = (&out.memory, head * (outputs + rest), out.cols);
            self.product(weight, &Product { x: from, out: to, ..Product::of(x, out) });
        }
        if rest > 0 {
            self.copy_tails(x, (stride, outputs + rest, rest), out);
        }
    }

    pub(super) fn turn_latent(
        &mut self,
        latent: &CudaBuffer<D>,
        queries: &CudaBuffer<D>,
        params: &LatentParams<'_, CudaVector<D>>,
        (kv, layer): (&CudaKv<D>, usize),
    ) {
        let LatentHeads { heads, rank, rope_dim } = params.shape;
        let width = params.shape.width();
        self.check(latent, width, "latent");
        self.check(queries, heads * width, "queries");
        kv.check_latent(&params.shape, layer);
        let turn = Turn::of(Some(&params.rope));
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
        (shape, scale): (LatentHeads, f32),
        (kv, layer): (&CudaKv<D>, usize),
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
            spans: 1,
            unused: 0,
        };
        self.attend_by_spans(paged, &[&queries.memory, &out.memory, &kv.memory]);
    }
}

/// Bytes of what is left of a span of keys of a row: of each head a maximum, a total, and sums.
fn part_bytes(heads: usize, value_dim: usize) -> usize {
    4 * heads * (value_dim + 2)
}

/// Bytes of the parts of rows: of all that a step may have, if that is not too much, and of one at least.
pub(super) fn parts_bytes(limits: &StepLimits) -> usize {
    let spans = spans_of(limits.context);
    if spans <= SPANS_OF_ONE {
        return 0;
    }
    let row_bytes = part_bytes(limits.heads.heads, limits.heads.head_dim) * spans as usize;
    (limits.rows * row_bytes).min(PARTS_BYTES.max(row_bytes))
}

/// The kernel, and a block for as many heads of each row as share keys, are few enough for it and leave room for the queries, for what
/// was folded, and for what each warp has: sums, the weights and slots of a block of keys, maxima and totals.
fn paged_grid(rows: u32, paged: &PagedAttentionParams) -> (Kernel, Grid) {
    let PagedAttentionParams { heads, kv_heads, head_dim, value_dim, .. } = *paged;
    let of_each = heads / kv_heads;
    let shared_bytes = |at_once: u32| {
        4 * (at_once * (head_dim + value_dim) + WARPS * (at_once * (value_dim + WARP + 2) + WARP))
    };
    let kernels = [(Kernel::AttentionFour, 4), (Kernel::AttentionTwo, 2)];
    let suits =
        |&(_, at_once): &(Kernel, u32)| at_once < 2 * of_each && shared_bytes(at_once) <= SHARED_BYTES_MAX;
    let (kernel, at_once) = kernels.into_iter().find(suits).unwrap_or((Kernel::Attention, 1));
    let blocks = [rows, kv_heads * of_each.div_ceil(at_once), 1];
    (kernel, Grid { blocks, threads: THREADS, shared_bytes: shared_bytes(at_once) })
}

/// A warp for each head of each row, with room for its query, its sums and the weights of a block of keys.
pub(super) fn attention_grid(rows: u32, heads: usize, (head_dim, value_dim): (usize, usize)) -> Grid {
    let shared_bytes = 4 * (head_dim + value_dim) as u32 + 4 * WARP;
    Grid { blocks: [rows, heads as u32, 1], threads: WARP, shared_bytes }
}
