//! Kernel parameters, passed by value: the structs of `cuda/params.cuh`, field by field. [`Pod`] guarantees that there
//! is no padding, so equal parameters are equal bytes; the emulator compares the sizes at every launch.

use bytemuck::{Pod, Zeroable};

/// Address in a device's memory; 0 is none.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Address(pub u64);

impl Address {
    /// Null address.
    pub const NONE: Address = Address(0);

    /// The address so many bytes further.
    pub fn offset(self, bytes: usize) -> Address {
        Address(self.0 + bytes as u64)
    }
}

/// Value of "no token", "no adapter" and "no reach" in kernels.
pub const NONE: u32 = u32::MAX;

/// Bytes of the largest parameters of a fused op.
type ThenBytes = [[u64; 17]; 2];
const _: () = assert!(
    size_of::<HeadParams>() == size_of::<ThenBytes>()
        && size_of::<NormParams>() <= size_of::<ThenBytes>()
        && size_of::<GateParams>() <= size_of::<ThenBytes>()
);

/// Largest number of ranks.
pub(crate) const RANKS_MAX: usize = 8;

/// Form of split rows: bit 0 for BF16 rather than f16 pieces, bit 1 for pieces word by word rather than lane by lane.
pub(crate) const IN_BF16S: u32 = 1;
pub(crate) const BY_WORDS: u32 = 2;

macro_rules! params {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $kind:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
            pub(crate) struct $name { $($(#[$field_doc])* pub(crate) $field: $kind,)* }
        )*
    };
}

params! {
    /// Addresses of a step's batch; see [`crate::step::BatchLayout`].
    BatchParams {
        counts: Address,
        tokens: Address,
        positions: Address,
        axes: Address,
        types: Address,
        adapters: Address,
        sequence_of: Address,
        slots: Address,
        spans: Address,
        tables: Address,
        logit_rows: Address,
        blocks: Address,
        groups: u32,
        unused: u32,
    }
    /// Rows of a matrix with one type.
    PartParams {
        bytes: Address,
        dtype: u32,
        row_first: u32,
        rows: u32,
        row_bytes: u32,
    }
    /// Parts stacked by rows.
    StackParams {
        parts: Address,
        codebooks: Address,
        count: u32,
        rows: u32,
        cols: u32,
        unused: u32,
    }
    /// Destination of rows in pieces; none without an address.
    PiecesToParams {
        pieces: Address,
        inverses: Address,
        sums: Address,
        blocks: u32,
        form: u32,
    }
    NormParams {
        batch: BatchParams,
        residual: Address,
        x: Address,
        out: Address,
        weight: Address,
        bias: Address,
        cut: PiecesToParams,
        x_stride: u32,
        out_stride: u32,
        width: u32,
        repeats: u32,
        eps: f32,
        centered: u32,
    }
    RowParams {
        batch: BatchParams,
        out: Address,
        x: Address,
        base: Address,
        weights: Address,
        op: u32,
        cols: u32,
        x_cols: u32,
        first: u32,
        factors: [f32; 3],
        width: u32,
        tail: u32,
        unused: u32,
    }
    EmbedParams {
        batch: BatchParams,
        table: StackParams,
        out: Address,
        scale: f32,
        ids: u32,
        offset: u32,
        adds: u32,
    }
    MatmulParams {
        batch: BatchParams,
        weights: StackParams,
        x: Address,
        out: Address,
        bias: Address,
        x_stride: u32,
        out_stride: u32,
        activation: u32,
        adds: u32,
        logits: u32,
        adapter: u32,
        scale: f32,
        unused: u32,
    }
    PiecesParams {
        batch: BatchParams,
        x: Address,
        pieces: Address,
        inverses: Address,
        sums: Address,
        x_stride: u32,
        cols: u32,
        logits: u32,
        form: u32,
    }
    ProductParams {
        batch: BatchParams,
        weights: StackParams,
        pieces: Address,
        inverses: Address,
        sums: Address,
        out: Address,
        bias: Address,
        out_stride: u32,
        segments: u32,
        activation: u32,
        adds: u32,
        logits: u32,
        adapter: u32,
        scale: f32,
        bf16s: u32,
    }
    HeadParams {
        batch: BatchParams,
        q: Address,
        k: Address,
        v: Address,
        q_weight: Address,
        k_weight: Address,
        inv_freq: Address,
        key_plane: Address,
        value_plane: Address,
        q_stride: u32,
        kv_stride: u32,
        heads: u32,
        kv_heads: u32,
        head_dim: u32,
        turned_first: u32,
        q_normed: u32,
        k_normed: u32,
        pairs: u32,
        interleaved: u32,
        norm_after: u32,
        values_normed: u32,
        sections: [u32; 3],
        sections_interleaved: u32,
        kv_type: u32,
        group: u32,
        slot_bytes: u32,
        scale_every: u32,
        scale_factor: f32,
        scale_offset: u32,
        eps: f32,
        magnitude: f32,
        two_tables: u32,
        long_magnitude: f32,
    }
    PagedAttentionParams {
        batch: BatchParams,
        q: Address,
        key_plane: Address,
        value_plane: Address,
        out: Address,
        sinks: Address,
        slopes: Address,
        parts: Address,
        arrived: Address,
        cut: PiecesToParams,
        q_stride: u32,
        out_stride: u32,
        heads: u32,
        kv_heads: u32,
        head_dim: u32,
        value_dim: u32,
        kv_type: u32,
        group: u32,
        slot_bytes: u32,
        window: u32,
        chunked: u32,
        scale: f32,
        softcap: f32,
        row_first: u32,
        row_end: u32,
        spans: u32,
        short_rows: u32,
        unused: u32,
    }
    WholeAttentionParams {
        batch: BatchParams,
        qkv: Address,
        out: Address,
        table: Address,
        queries: Address,
        bucket_of: Address,
        heads: u32,
        kv_heads: u32,
        head_dim: u32,
        bias: u32,
        reach: u32,
        bias_reach: u32,
        scale: f32,
        unused: u32,
    }
    RouteParams {
        batch: BatchParams,
        scores: Address,
        correction: Address,
        expert_scale: Address,
        chosen: Address,
        weights: Address,
        experts: u32,
        used: u32,
        softmax: u32,
        normalized: u32,
        scale: f32,
        by_weight: u32,
        groups: u32,
        groups_used: u32,
        best: u32,
        reach: f32,
    }
    ExpertParams {
        batch: BatchParams,
        experts: Address,
        chosen: Address,
        weights: Address,
        x: Address,
        hidden: Address,
        out: Address,
        up_bias: Address,
        down_bias: Address,
        used: u32,
        cols: u32,
        ffn: u32,
        gated: u32,
        activation: u32,
        scales_input: u32,
    }
    GroupParams {
        batch: BatchParams,
        chosen: Address,
        places: Address,
        units: Address,
        experts: u32,
        used: u32,
        unit_bits: u32,
        units_max: u32,
    }
    ExpertPiecesParams {
        batch: BatchParams,
        places: Address,
        weights: Address,
        x: Address,
        pieces: Address,
        inverses: Address,
        sums: Address,
        used: u32,
        cols: u32,
        pairs_of_row: u32,
        bf16s: u32,
    }
    ExpertHiddenParams {
        batch: BatchParams,
        chosen: Address,
        places: Address,
        products: Address,
        bias: Address,
        hidden: Address,
        pieces: Address,
        inverses: Address,
        sums: Address,
        used: u32,
        ffn: u32,
        gated: u32,
        activation: u32,
        bf16s: u32,
        unused: u32,
    }
    ExpertProductParams {
        batch: BatchParams,
        experts: Address,
        units: Address,
        pieces: Address,
        inverses: Address,
        sums: Address,
        out: Address,
        cols: u32,
        segments: u32,
        outputs: u32,
        down: u32,
        bf16s: u32,
        unused: u32,
    }
    ExpertSumParams {
        batch: BatchParams,
        chosen: Address,
        places: Address,
        weights: Address,
        products: Address,
        bias: Address,
        out: Address,
        used: u32,
        cols: u32,
    }
    SharedParams {
        batch: BatchParams,
        gate: Address,
        x: Address,
        shared: Address,
        out: Address,
        cols: u32,
        x_cols: u32,
    }
    GateParams {
        batch: BatchParams,
        both: Address,
        hidden: Address,
        cut: PiecesToParams,
        width: u32,
        activation: u32,
    }
    /// Op fused to a product of few rows; see [`crate::backend`]'s `then`.
    ThenParams {
        arrived: Address,
        what: u32,
        groups: u32,
        at_once: u32,
        unused: u32,
        of: ThenBytes,
    }
    FewParams {
        product: ProductParams,
        then: ThenParams,
    }
    ConvolveParams {
        batch: BatchParams,
        x: Address,
        inputs: Address,
        weight: Address,
        bias: Address,
        x_stride: u32,
        channels: u32,
        taps: u32,
        activates: u32,
    }
    RecurParams {
        batch: BatchParams,
        x: Address,
        heads: Address,
        out: Address,
        decay: Address,
        step_bias: Address,
        skip: Address,
        step_min: f32,
        step_max: f32,
        x_stride: u32,
        out_stride: u32,
        delta: u32,
        value_heads: u32,
        key_heads: u32,
        key_dim: u32,
        value_dim: u32,
        tiled: u32,
        query_column: u32,
        key_column: u32,
        value_column: u32,
        step_column: u32,
        beta_column: u32,
        unused: u32,
    }
    GateOutputParams {
        batch: BatchParams,
        gate: Address,
        out: Address,
        weight: Address,
        gate_stride: u32,
        cols: u32,
        part: u32,
        weights: u32,
        eps: f32,
        silu: u32,
        before_gate: u32,
        unused: u32,
    }
    ChangeOutputsParams {
        batch: BatchParams,
        out: Address,
        x: Address,
        factors: Address,
        addends: Address,
        cols: u32,
        first: u32,
        count: u32,
        logits: u32,
        adapter: u32,
        unused: u32,
    }
    UnfoldParams {
        batch: BatchParams,
        x: Address,
        out: Address,
        cols: u32,
        window: u32,
    }
    /// Sampling parameters of a row.
    DrawSpecParams {
        uniform: f64,
        temperature: f32,
        top_p: f32,
        min_p: f32,
        top_k: u32,
        by_host: u32,
        edited: u32,
        softcap: f32,
        repetition: f32,
        mask: u32,
        mask_words: u32,
        seen: u32,
        seen_words: u32,
        changes: u32,
        changes_count: u32,
    }
    DrawParams {
        batch: BatchParams,
        logits: Address,
        specs: Address,
        tokens: Address,
        edits: Address,
        vocab: u32,
        unused: u32,
    }
    MeetParams {
        batch: BatchParams,
        flags: [Address; RANKS_MAX],
        turn: Address,
        arrived: Address,
        late: Address,
        sources: [Address; RANKS_MAX],
        out: Address,
        rank: u32,
        ranks: u32,
        count: u32,
        width: u32,
        source_stride: u32,
        out_stride: u32,
        by_fours: u32,
        patience_ms: u32,
        is_trial: u32,
        unused: u32,
    }
}
