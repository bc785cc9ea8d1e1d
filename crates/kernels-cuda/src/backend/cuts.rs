//! Splitting of rows for split-precision products. The last kernel that was asked for does it if it writes those rows,
//! which saves a launch; otherwise a separate kernel does. The pieces are the same.

use bytemuck::pod_read_unaligned;

use super::attention::columns_of_block;
use super::products::BLOCK_COLS;
use super::rows::NORM_BYTES;
use super::*;

impl<D: Device> CudaBackend<D> {
    /// Disables fusion: each operation is a separate kernel.
    pub fn without_fusion(self) -> Self {
        Self { fuses: false, ..self }
    }

    /// Kernels that ops have asked for and that are not started yet, in order.
    pub fn planned(&self) -> Vec<Kernel> {
        self.steps.planned()
    }
}

/// Splits rows as `params` says; `holds` is the memory that it names.
pub(super) fn cut_rows<D: Device>(
    ops: &mut Ops<'_, D>,
    fuses: bool,
    params: &PiecesParams,
    holds: &[&Arc<Memory<D>>],
) {
    if fuses && cut_where_written(ops, params, holds) {
        return;
    }
    let rows = if params.logits == 0 { ops.bucket.rows } else { ops.bucket.logit_rows };
    let blocks = [rows, blocks_of(params.cols).div_ceil(WARPS), 1];
    ops.push(Kernel::Pieces, Grid { blocks, threads: THREADS, shared_bytes: 0 }, params, holds);
}

fn blocks_of(cols: u32) -> u32 {
    cols.div_ceil(BLOCK_COLS as u32)
}

/// Lets the last launch also write these rows in pieces, if it writes them completely. Returns whether it does.
fn cut_where_written<D: Device>(
    ops: &mut Ops<'_, D>,
    params: &PiecesParams,
    holds: &[&Arc<Memory<D>>],
) -> bool {
    let &PiecesParams { x, x_stride, cols, pieces, inverses, sums, form, .. } = params;
    let (rows, blocks) = (ops.bucket.rows, blocks_of(cols));
    let cut = PiecesToParams { pieces, inverses, sums, blocks, form };
    // The single row of a step is its single row of logits.
    let rows_are_all = params.logits == 0 || (rows, ops.bucket.logit_rows) == (1, 1);
    let Some(last) = ops.last().filter(|_| rows_are_all) else { return false };
    let (kernel, grid) = (last.kernel, last.grid);
    match kernel {
        Kernel::ProductFew | Kernel::ProductFewBlocks => {
            let few: FewParams = pod_read_unaligned(last.params);
            let (then, shared_bytes) = if let Some(norm) = few.then.norm() {
                let shared_bytes = grid.shared_bytes.max(NORM_BYTES + 4 * blocks * BLOCK_COLS as u32);
                let is_row = (norm.out, norm.out_stride, norm.width) == (x, x_stride, cols);
                if !is_row || norm.cut.pieces != Address::NONE || shared_bytes > SHARED_BYTES {
                    return false;
                }
                (few.then.with(&NormParams { cut, ..norm }), shared_bytes)
            } else if let Some(gate) = few.then.gate() {
                let is_row = (gate.hidden, gate.width, gate.width) == (x, x_stride, cols);
                // Its own input rows are still being read.
                if !is_row || gate.cut.pieces != Address::NONE || few.product.pieces == pieces {
                    return false;
                }
                (few.then.with(&GateParams { cut, ..gate }), grid.shared_bytes)
            } else {
                return false;
            };
            ops.replace_last(kernel, Grid { shared_bytes, ..grid }, &FewParams { then, ..few }, holds);
        }
        Kernel::Norm => {
            let norm: NormParams = pod_read_unaligned(last.params);
            let shared_bytes = grid.shared_bytes + 4 * blocks * BLOCK_COLS as u32;
            let is_row =
                (norm.out, norm.out_stride, norm.width) == (x, x_stride, cols) && grid.blocks[1] == 1;
            if !is_row || norm.cut.pieces != Address::NONE || shared_bytes > SHARED_BYTES {
                return false;
            }
            ops.replace_last(kernel, Grid { shared_bytes, ..grid }, &NormParams { cut, ..norm }, holds);
        }
        Kernel::Gate => {
            let gate: GateParams = pod_read_unaligned(last.params);
            if (gate.hidden, gate.width, gate.width) != (x, x_stride, cols)
                || gate.cut.pieces != Address::NONE
            {
                return false;
            }
            let grid = Grid { blocks: [rows, blocks.div_ceil(WARPS), 1], ..grid };
            ops.replace_last(kernel, grid, &GateParams { cut, ..gate }, holds);
        }
        Kernel::AttentionFew
        | Kernel::AttentionFewQ8
        | Kernel::AttentionWide
        | Kernel::AttentionWideQ8
        | Kernel::AttentionJoin => {
            let paged: PagedAttentionParams = pod_read_unaligned(last.params);
            let is_row = (paged.out, paged.out_stride, paged.heads * paged.value_dim) == (x, x_stride, cols);
            if !is_row || paged.cut.pieces != Address::NONE {
                return false;
            }
            let given = PagedAttentionParams { cut, ..paged };
            if kernel == Kernel::AttentionJoin {
                // If rows were processed in turn, the last launch has only the last ones.
                if paged.row_first > 0 {
                    return false;
                }
                let shared_bytes = 4 * BLOCK_COLS as u32;
                let grid = Grid { blocks: [rows, blocks, 1], threads: BLOCK_COLS as u32, shared_bytes };
                ops.replace_last(Kernel::AttentionJoinPieces, grid, &given, holds);
                return true;
            }
            let whole =
                columns_of_block(&paged).is_some_and(|columns| columns.is_multiple_of(BLOCK_COLS as u32));
            // Rows processed in turn, or whose partial results another kernel merges, are not complete yet.
            let there =
                paged.parts == Address::NONE || (paged.arrived != Address::NONE && paged.row_first == 0);
            // If the batch has a prompt, other kernels have written its rows; and these kernels write pieces only lane
            // by lane.
            if form & BY_WORDS != 0 || !there || paged.short_rows > 0 || !whole {
                return false;
            }
            ops.replace_last(kernel, grid, &given, holds);
        }
        _ => return false,
    }
    true
}
