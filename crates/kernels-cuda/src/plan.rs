//! Kernels, and plans: lists of their launches that a step's ops append to and a device runs or records. Two plans
//! with the same bytes do the same work, so a recorded plan may replace the other.

use std::hash::{DefaultHasher, Hash, Hasher};

use bytemuck::Pod;

use crate::params::*;
use crate::shapes::{SHARED_BYTES, SHARED_BYTES_ASKED, WIDE_BYTES, groups_bytes};

macro_rules! kernels {
    ($($(#[$doc:meta])* $name:ident = $symbol:literal, $params:ty;)*) => {
        /// Kernel, named after what it computes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Kernel {
            $($(#[$doc])* $name,)*
        }

        impl Kernel {
            /// Every kernel, with those for compute capability 9.0 last.
            pub const ALL: &[Kernel] = &[$(Kernel::$name,)*];

            /// Name in the module.
            pub const fn symbol(self) -> &'static str {
                match self { $(Kernel::$name => $symbol,)* }
            }

            /// Size of its parameters in bytes.
            pub const fn params_bytes(self) -> usize {
                match self { $(Kernel::$name => size_of::<$params>(),)* }
            }
        }
    };
}

impl Kernel {
    /// Largest shared memory of its blocks, in bytes.
    pub const fn shared_bytes_max(self) -> u32 {
        match self {
            Kernel::AttentionFew
            | Kernel::AttentionFewQ8
            | Kernel::AttentionWide
            | Kernel::AttentionWideQ8
            | Kernel::AttentionMany
            | Kernel::AttentionManyQ8 => SHARED_BYTES_ASKED,
            Kernel::ProductWide | Kernel::ProductWideBlocks => WIDE_BYTES,
            Kernel::AttentionGroupsNarrow => groups_bytes(1),
            Kernel::AttentionGroups => groups_bytes(2),
            _ => SHARED_BYTES,
        }
    }

    /// Whether it is a warpgroup kernel, in the module for compute capability 9.0.
    pub const fn is_wide(self) -> bool {
        matches!(
            self,
            Kernel::ProductWide
                | Kernel::ProductWideBlocks
                | Kernel::AttentionGroupsNarrow
                | Kernel::AttentionGroups
        )
    }
}

kernels! {
    /// RMS norms and layer norms.
    Norm = "kernel_norm", NormParams;
    /// Element-wise ops on rows.
    RowOp = "kernel_row_op", RowParams;
    /// Element-wise changes of outputs by an adapter.
    ChangeOutputs = "kernel_change_outputs", ChangeOutputsParams;
    /// Windows of rows (im2col).
    Unfold = "kernel_unfold", UnfoldParams;
    /// Splitting of rows into pieces, for the split-precision products below.
    Pieces = "kernel_pieces", PiecesParams;
    /// Products of up to eight rows with a matrix of 16-bit floats.
    ProductFew = "kernel_product_few", FewParams;
    /// Products of some rows with a matrix of 16-bit floats.
    ProductSome = "kernel_product_some", ProductParams;
    /// Products of tens of rows with a matrix of 16-bit floats.
    ProductBatch = "kernel_product_batch", ProductParams;
    /// Products of many rows with a matrix of 16-bit floats.
    ProductMany = "kernel_product_many", ProductParams;
    /// Products of up to eight rows with a matrix of quantised blocks, or of blocks and floats.
    ProductFewBlocks = "kernel_product_few_blocks", FewParams;
    /// Products of some rows with a matrix of quantised blocks, or of blocks and floats.
    ProductSomeBlocks = "kernel_product_some_blocks", ProductParams;
    /// Products of tens of rows with a matrix of quantised blocks, or of blocks and floats.
    ProductBatchBlocks = "kernel_product_batch_blocks", ProductParams;
    /// Products of many rows with a matrix of quantised blocks, or of blocks and floats.
    ProductManyBlocks = "kernel_product_many_blocks", ProductParams;
    /// Products of up to eight rows with a matrix in F32.
    MatmulFew = "kernel_matmul_few", MatmulParams;
    /// Products of some rows with a matrix in F32.
    Matmul = "kernel_matmul", MatmulParams;
    /// Products of tens of rows with a matrix in F32.
    MatmulBatch = "kernel_matmul_batch", MatmulParams;
    /// Products of many rows with a matrix in F32.
    MatmulWide = "kernel_matmul_wide", MatmulParams;
    /// Rows of an embedding table.
    Embed = "kernel_embed", EmbedParams;
    /// Gated activation: activation of one half times the other.
    Gate = "kernel_gate", GateParams;
    /// Routing of rows to experts.
    Route = "kernel_route", RouteParams;
    /// Grouping of pairs of a row and an expert by expert.
    Group = "kernel_group", GroupParams;
    /// Splitting of the experts' inputs into pieces.
    ExpertPieces = "kernel_expert_pieces", ExpertPiecesParams;
    /// Hidden units between an expert's products, in pieces or not.
    ExpertHidden = "kernel_expert_hidden", ExpertHiddenParams;
    /// Products of some pairs with experts in 16-bit floats.
    ExpertSome = "kernel_expert_some", ExpertProductParams;
    /// Products of some pairs with experts in quantised blocks, or in blocks and floats.
    ExpertSomeBlocks = "kernel_expert_some_blocks", ExpertProductParams;
    /// Products of tens of pairs with experts in 16-bit floats.
    ExpertMany = "kernel_expert_many", ExpertProductParams;
    /// Products of tens of pairs with experts in quantised blocks, or in blocks and floats.
    ExpertManyBlocks = "kernel_expert_many_blocks", ExpertProductParams;
    /// Weighted sum of a row's experts.
    ExpertSum = "kernel_expert_sum", ExpertSumParams;
    /// First products of the experts, pair by pair.
    ExpertUp = "kernel_expert_up", ExpertParams;
    /// Second products of the experts, and the sum of a row's experts.
    ExpertDown = "kernel_expert_down", ExpertParams;
    /// Addition of the shared expert.
    AddShared = "kernel_add_shared", SharedParams;
    /// Norm and rotation of heads, and writing to the cache.
    Heads = "kernel_heads", HeadParams;
    /// Attention over the cache, one head a block.
    Attention = "kernel_attention", PagedAttentionParams;
    /// Attention over the cache, two heads that share keys a block.
    AttentionTwo = "kernel_attention_two", PagedAttentionParams;
    /// Attention over the cache, four heads that share keys a block.
    AttentionFour = "kernel_attention_four", PagedAttentionParams;
    /// Attention over the cache on tensor cores, for few queries of each sequence and heads up to 128 wide.
    AttentionFew = "kernel_attention_few", PagedAttentionParams;
    /// `AttentionFew` with a cache in Q8_0.
    AttentionFewQ8 = "kernel_attention_few_q8", PagedAttentionParams;
    /// `AttentionFew` with heads over 128 wide.
    AttentionWide = "kernel_attention_wide", PagedAttentionParams;
    /// `AttentionWide` with a cache in Q8_0.
    AttentionWideQ8 = "kernel_attention_wide_q8", PagedAttentionParams;
    /// Attention over the cache on tensor cores, for many queries and heads up to 128 wide.
    AttentionMany = "kernel_attention_many", PagedAttentionParams;
    /// `AttentionMany` with a cache in Q8_0.
    AttentionManyQ8 = "kernel_attention_many_q8", PagedAttentionParams;
    /// Merging of the partial results of a row's keys.
    AttentionJoin = "kernel_attention_join", PagedAttentionParams;
    /// Merging of the partial results, and splitting of the result into pieces.
    AttentionJoinPieces = "kernel_attention_join_pieces", PagedAttentionParams;
    /// Attention inside whole sequences.
    AttentionWhole = "kernel_attention_whole", WholeAttentionParams;
    /// Short convolutions.
    Convolve = "kernel_convolve", ConvolveParams;
    /// Recurrences.
    Recur = "kernel_recur", RecurParams;
    /// Gate on a sublayer's output.
    GateOutput = "kernel_gate_output", GateOutputParams;
    /// Sampling of tokens from rows of logits.
    Draw = "kernel_draw", DrawParams;
    /// Barrier between ranks, and copying of each other's columns.
    Meet = "kernel_meet", MeetParams;
    /// Products of many rows with a matrix of 16-bit floats, by warpgroups.
    ProductWide = "kernel_product_wide", ProductParams;
    /// Products of many rows with a matrix of quantised blocks, or of blocks and floats, by warpgroups.
    ProductWideBlocks = "kernel_product_wide_blocks", ProductParams;
    /// Attention of many queries by warpgroups, with heads up to 64 wide and a cache in F16.
    AttentionGroupsNarrow = "kernel_attention_groups_narrow", PagedAttentionParams;
    /// Attention of many queries by warpgroups, with heads up to 128 wide and a cache in F16.
    AttentionGroups = "kernel_attention_groups", PagedAttentionParams;
}

/// Grid of a kernel launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grid {
    /// Blocks.
    pub blocks: [u32; 3],
    /// Threads of each block.
    pub threads: u32,
    /// Bytes of shared memory of each block.
    pub shared_bytes: u32,
}

/// A launch of a plan.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// Kernel.
    pub kernel: Kernel,
    /// Grid.
    pub grid: Grid,
    /// Parameters.
    pub params: &'a [u8],
}

/// A list of launches, run in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    launches: Vec<(Kernel, Grid)>,
    params: Vec<u8>, // of each launch, in turn
}

impl Plan {
    /// Appends a launch; a grid without blocks is skipped.
    pub(crate) fn push(&mut self, kernel: Kernel, grid: Grid, params: &impl Pod) {
        debug_assert_eq!(
            kernel.params_bytes(),
            size_of_val(params),
            "{kernel:?}: parameters of another kernel"
        );
        if grid.blocks.contains(&0) {
            return;
        }
        self.launches.push((kernel, grid));
        self.params.extend_from_slice(bytemuck::bytes_of(params));
    }

    /// The last launch.
    pub(crate) fn last(&self) -> Option<Launch<'_>> {
        let &(kernel, grid) = self.launches.last()?;
        Some(Launch { kernel, grid, params: &self.params[self.params.len() - kernel.params_bytes()..] })
    }

    /// Replaces the last launch.
    pub(crate) fn replace_last(&mut self, kernel: Kernel, grid: Grid, params: &impl Pod) {
        let Some((last, _)) = self.launches.pop() else { return };
        self.params.truncate(self.params.len() - last.params_bytes());
        self.push(kernel, grid, params);
    }

    /// Removes the launches and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.launches.clear();
        self.params.clear();
    }

    /// Whether there are no launches.
    pub fn is_empty(&self) -> bool {
        self.launches.is_empty()
    }

    /// The launches, in order.
    pub fn iter(&self) -> impl Iterator<Item = Launch<'_>> {
        let mut rest = &self.params[..];
        self.launches.iter().map(move |&(kernel, grid)| {
            let (params, after) = rest.split_at(kernel.params_bytes());
            rest = after;
            Launch { kernel, grid, params }
        })
    }

    /// Hash of the plan; equal for equal plans.
    pub(crate) fn key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.launches.hash(&mut hasher);
        self.params.hash(&mut hasher);
        hasher.finish()
    }
}
