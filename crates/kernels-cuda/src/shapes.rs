//! Shapes of kernels' blocks as the sources in `cuda/` have them: threads, tiles, and bytes of shared memory.

/// Threads of a block, and of a block of a single warp.
pub(crate) const THREADS: u32 = 128;
pub(crate) const WARP: u32 = 32;
/// Outputs of a block of [`THREADS`] if each warp has one.
pub(crate) const WARPS: u32 = THREADS / WARP;

/// Bytes of shared memory that any GPU gives a block, and that it gives a block on request.
pub(crate) const SHARED_BYTES: u32 = 48 << 10;
pub(crate) const SHARED_BYTES_ASKED: u32 = 72 << 10;

/// Keys of a span, which attention sums separately and which begins at an absolute position: a block of a warp's lanes
/// for each warp.
pub(crate) const SPAN: u32 = THREADS;

/// Outputs of a tile of split-precision products.
pub(crate) const TILE_OUTPUTS: usize = 16;
/// Bytes of a piece of a group of eight rows in split-precision products.
pub(crate) const PIECE_BYTES: u32 = 512;

/// Warpgroup products: rows of a block, from which on they are used; outputs of a warpgroup; and warpgroups of a block.
pub(crate) const WIDE_ROWS: u32 = 128;
pub(crate) const WIDE_OUTPUTS: usize = 64;
pub(crate) const WIDE_GROUPS: u32 = 2;
/// Threads of a block. `WIDE_BYTES` is its shared memory: barriers, four stages of two pieces or three of three, and
/// the totals of its threads.
pub(crate) const WIDE_THREADS: u32 = 2 * THREADS;
pub(crate) const WIDE_BYTES: u32 = 128 + 9 * WIDE_ROWS / 8 * PIECE_BYTES + WIDE_ROWS / 2 * 4 * WIDE_THREADS;

/// Warpgroup attention: queries of a warpgroup, warpgroups of a block, its threads including those that load keys, its
/// stages of keys or values, and columns of a row of keys in shared memory, of which a head has one or two.
pub(crate) const GROUP_QUERIES: u32 = 64;
pub(crate) const GROUPS: u32 = 2;
pub(crate) const GROUPS_THREADS: u32 = (GROUPS + 1) * THREADS;
const GROUPS_STAGES: u32 = 4;
pub(crate) const PART_COLS: u32 = 64;

/// Bytes of shared memory of a block of warpgroup attention for heads of `parts` times 64 columns: alternating keys and
/// values, two pieces of queries, the inverse of their powers of two, and two barriers for each stage and each
/// warpgroup.
pub(crate) const fn groups_bytes(parts: u32) -> u32 {
    let row = 2 * PART_COLS * parts;
    GROUPS_STAGES * SPAN * row + GROUPS * GROUP_QUERIES * (2 * row + 4) + 16 * (GROUPS_STAGES + GROUPS)
}
