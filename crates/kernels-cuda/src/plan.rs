//! Kernels, and lists of their launches: what a step's ops append to, and what a device runs or records. Two plans of the same
//! bytes do the same work, so that a recorded one may stand for the other.

use std::hash::{DefaultHasher, Hash, Hasher};

use bytemuck::Pod;

use crate::backend::{WIDE_BYTES, groups_bytes};
use crate::params::*;

macro_rules! kernels {
    ($($(#[$doc:meta])* $name:ident = $symbol:literal, $params:ty;)*) => {
        /// A kernel, by what it computes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Kernel {
            $($(#[$doc])* $name,)*
        }

        impl Kernel {
            /// Every kernel, those for compute capability 9.0 last.
            pub const ALL: &[Kernel] = &[$(Kernel::$name,)*];

            /// Its name in the module.
            pub const fn symbol(self) -> &'static str {
                match self { $(Kernel::$name => $symbol,)* }
            }

            /// Bytes of its parameters.
            pub const fn params_bytes(self) -> usize {
                match self { $(Kernel::$name => size_of::<$params>(),)* }
            }
        }
    };
}

/// Bytes of shared memory that any card gives a block, and those that it gives one which asks for them.
pub(crate) const SHARED_BYTES: u32 = 48 << 10;
pub(crate) const SHARED_BYTES_ASKED: u32 = 72 << 10;

impl Kernel {
    /// Bytes of shared memory that its blocks may have.
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

    /// Whether it is in the module for compute capability 9.0.
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
    /// Root mean square and layer norms.
    Norm = "kernel_norm", NormParams;
    /// Changes of rows number by number.
    RowOp = "kernel_row_op", RowParams;
    /// Changes of one adapter's outputs number by number.
    ChangeOutputs = "kernel_change_outputs", ChangeOutputsParams;
    /// Windows of rows.
    Unfold = "kernel_unfold", UnfoldParams;
    /// Rows in pieces, for the products below.
    Pieces = "kernel_pieces", PiecesParams;
    /// Products of eight rows or fewer with a matrix of floats of 16 bits.
    ProductFew = "kernel_product_few", FewParams;
    /// The same for some rows.
    ProductSome = "kernel_product_some", ProductParams;
    /// The same for tens of rows.
    ProductBatch = "kernel_product_batch", ProductParams;
    /// The same for more.
    ProductMany = "kernel_product_many", ProductParams;
    /// Products of eight rows or fewer with a matrix of blocks, or of blocks and floats.
    ProductFewBlocks = "kernel_product_few_blocks", FewParams;
    /// The same for some rows.
    ProductSomeBlocks = "kernel_product_some_blocks", ProductParams;
    /// The same for tens of rows.
    ProductBatchBlocks = "kernel_product_batch_blocks", ProductParams;
    /// The same for more.
    ProductManyBlocks = "kernel_product_many_blocks", ProductParams;
    /// Products of eight rows or fewer with a matrix in F32.
    MatmulFew = "kernel_matmul_few", MatmulParams;
    /// The same for some rows.
    Matmul = "kernel_matmul", MatmulParams;
    /// The same for tens of rows.
    MatmulBatch = "kernel_matmul_batch", MatmulParams;
    /// The same for more.
    MatmulWide = "kernel_matmul_wide", MatmulParams;
    /// Rows of a table.
    Embed = "kernel_embed", EmbedParams;
    /// Activation of one half times the other.
    Gate = "kernel_gate", GateParams;
    /// Which experts a row goes to.
    Route = "kernel_route", RouteParams;
    /// Pairs of a row and an expert, by expert.
    Group = "kernel_group", GroupParams;
    /// What pairs read, in pieces.
    ExpertPieces = "kernel_expert_pieces", ExpertPiecesParams;
    /// What is between an expert's products, in pieces or not.
    ExpertHidden = "kernel_expert_hidden", ExpertHiddenParams;
    /// Products of some pairs with experts in floats of 16 bits.
    ExpertSome = "kernel_expert_some", ExpertProductParams;
    /// The same with experts in blocks, or in blocks and floats.
    ExpertSomeBlocks = "kernel_expert_some_blocks", ExpertProductParams;
    /// Products of tens of pairs with experts in floats of 16 bits.
    ExpertMany = "kernel_expert_many", ExpertProductParams;
    /// The same with experts in blocks, or in blocks and floats.
    ExpertManyBlocks = "kernel_expert_many_blocks", ExpertProductParams;
    /// What a row's experts give, as one.
    ExpertSum = "kernel_expert_sum", ExpertSumParams;
    /// The experts' first products, pair by pair.
    ExpertUp = "kernel_expert_up", ExpertParams;
    /// Their second ones, and what a row's experts give.
    ExpertDown = "kernel_expert_down", ExpertParams;
    /// What every row goes to beside its experts.
    AddShared = "kernel_add_shared", SharedParams;
    /// Norm and rotation of heads, into the cache.
    Heads = "kernel_heads", HeadParams;
    /// Attention over the cache, one head to a block.
    Attention = "kernel_attention", PagedAttentionParams;
    /// The same for two heads, which share keys.
    AttentionTwo = "kernel_attention_two", PagedAttentionParams;
    /// The same for four.
    AttentionFour = "kernel_attention_four", PagedAttentionParams;
    /// The same on the tensor cores, for few queries of each sequence, of heads up to 128 wide.
    AttentionFew = "kernel_attention_few", PagedAttentionParams;
    /// The same of a cache in Q8_0.
    AttentionFewQ8 = "kernel_attention_few_q8", PagedAttentionParams;
    /// The same, of heads over 128 wide.
    AttentionWide = "kernel_attention_wide", PagedAttentionParams;
    /// The same of a cache in Q8_0.
    AttentionWideQ8 = "kernel_attention_wide_q8", PagedAttentionParams;
    /// The same for many queries, of heads up to 128 wide.
    AttentionMany = "kernel_attention_many", PagedAttentionParams;
    /// The same of a cache in Q8_0.
    AttentionManyQ8 = "kernel_attention_many_q8", PagedAttentionParams;
    /// What blocks have left of a row's keys, brought together.
    AttentionJoin = "kernel_attention_join", PagedAttentionParams;
    /// The same, in pieces too.
    AttentionJoinPieces = "kernel_attention_join_pieces", PagedAttentionParams;
    /// Attention inside whole sequences.
    AttentionWhole = "kernel_attention_whole", WholeAttentionParams;
    /// Short convolutions.
    Convolve = "kernel_convolve", ConvolveParams;
    /// Recurrences.
    Recur = "kernel_recur", RecurParams;
    /// Gates on what a half gives.
    GateOutput = "kernel_gate_output", GateOutputParams;
    /// Tokens of rows of logits.
    Draw = "kernel_draw", DrawParams;
    /// Where ranks meet, and bring each other's columns.
    Meet = "kernel_meet", MeetParams;
    /// Products of many rows with a matrix of floats of 16 bits, by groups of four warps.
    ProductWide = "kernel_product_wide", ProductParams;
    /// The same with a matrix of blocks, or of blocks and floats.
    ProductWideBlocks = "kernel_product_wide_blocks", ProductParams;
    /// Attention of many queries by groups of four warps, of heads up to 64 wide and a cache in F16.
    AttentionGroupsNarrow = "kernel_attention_groups_narrow", PagedAttentionParams;
    /// The same of heads up to 128 wide.
    AttentionGroups = "kernel_attention_groups", PagedAttentionParams;
}

/// Threads of a block, and of one that is a single warp.
pub(crate) const THREADS: u32 = 128;
pub(crate) const WARP: u32 = 32;
/// Outputs that a block of [`THREADS`] has where a warp has one.
pub(crate) const WARPS: u32 = THREADS / WARP;

/// Keys that attention sums up by themselves, from an absolute position on: a block of a warp's lanes for each warp.
pub(crate) const SPAN: u32 = THREADS;

/// How a kernel is laid out over blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grid {
    /// Blocks.
    pub blocks: [u32; 3],
    /// Threads of each.
    pub threads: u32,
    /// Bytes of shared memory of each.
    pub shared_bytes: u32,
}

/// One launch of a plan.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// What.
    pub kernel: Kernel,
    /// Over what.
    pub grid: Grid,
    /// Its parameters.
    pub params: &'a [u8],
}

/// Launches, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    launches: Vec<(Kernel, Grid)>,
    params: Vec<u8>, // of each launch, in turn
}

impl Plan {
    /// Appends a launch; one without blocks is none.
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

    /// Has another launch stand where the last one does.
    pub(crate) fn replace_last(&mut self, kernel: Kernel, grid: Grid, params: &impl Pod) {
        let Some((last, _)) = self.launches.pop() else { return };
        self.params.truncate(self.params.len() - last.params_bytes());
        self.push(kernel, grid, params);
    }

    /// Forgets the launches and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.launches.clear();
        self.params.clear();
    }

    /// Whether nothing is to be done.
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

    /// Equal for equal plans.
    pub(crate) fn key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.launches.hash(&mut hasher);
        self.params.hash(&mut hasher);
        hasher.finish()
    }
}
