//! Ops on rows: norms, embeddings, element-wise ops, and gates.

use super::*;

/// Threads of a block of norms.
pub(super) const NORM_THREADS: u32 = 256;
/// Bytes of shared memory for the sums of a norm.
pub(super) const NORM_BYTES: u32 = NORM_THREADS / WARP * 4;

/// A norm of rows or of parts of them.
pub(super) struct CudaNorm<'a, D: Device> {
    pub(super) weight: &'a CudaVector<D>, // as long as what is normed as one
    pub(super) bias: Option<&'a CudaVector<D>>, // the same
    pub(super) eps: f32,
    /// Whether the mean is subtracted first, as in a layer norm.
    pub(super) centered: bool,
}

impl<D: Device> CudaBackend<D> {
    /// `out[r] = table[id(r)]` times the scale, or that added to `out[r]`. Ids are a kind and an offset.
    pub(super) fn gather(
        &mut self,
        table: &CudaMatrix<D>,
        ids: u32,
        offset: u32,
        scale: Option<f32>,
        out: &mut CudaBuffer<D>,
    ) {
        self.check(out, table.cols(), "out");
        let mut ops = self.ops();
        let params = EmbedParams {
            batch: ops.batch,
            table: table.stack,
            out: out.memory.address(),
            scale: scale.unwrap_or(1.0),
            ids,
            offset,
            adds: u32::from(scale.is_none()),
        };
        let grid = Grid { blocks: [ops.bucket.rows, 1, 1], threads: THREADS, shared_bytes: 0 };
        let holds: Vec<_> = table.memories().chain([&out.memory]).collect();
        ops.push(Kernel::Embed, grid, &params, &holds);
    }

    /// Norm of each part of a row that is as long as the weights, with or without an addition to a residual first.
    pub(super) fn norm_rows(
        &mut self,
        x: &CudaBuffer<D>,
        residual: Option<&mut CudaBuffer<D>>,
        CudaNorm { weight, bias, eps, centered }: CudaNorm<'_, D>,
        out: &mut CudaBuffer<D>,
    ) {
        let width = weight.length;
        assert!(width > 0 && x.cols.is_multiple_of(width), "parts of a row as long as the weights");
        assert!(bias.is_none_or(|bias| bias.length == width), "one weight and one bias a column");
        self.check(out, x.cols, "out");
        if let Some(residual) = &residual {
            self.check(residual, x.cols, "residual");
            residual.check_sum();
        }
        let residual = residual.map(|residual| &residual.memory);
        let ops = self.ops();
        let params = NormParams {
            batch: ops.batch,
            residual: address_of(residual),
            x: x.memory.address(),
            out: out.memory.address(),
            weight: weight.memory.address(),
            bias: address_of(bias.map(|bias| &bias.memory)),
            cut: PiecesToParams::default(),
            x_stride: x.cols as u32,
            out_stride: x.cols as u32,
            width: width as u32,
            repeats: 1,
            eps,
            centered: u32::from(centered),
        };
        let blocks = [ops.bucket.rows, (x.cols / width) as u32, 1];
        let mut holds = vec![&x.memory, &out.memory, &weight.memory];
        holds.extend(residual);
        holds.extend(bias.map(|bias| &bias.memory));
        let grid = Grid { blocks, threads: NORM_THREADS, shared_bytes: NORM_BYTES };
        if !self.norm_where_written(&params, &grid, &holds) {
            self.ops().push(Kernel::Norm, grid, &params, &holds);
        }
    }

    pub(super) fn norm_columns(
        &mut self,
        x: &mut CudaBuffer<D>,
        columns @ NormColumns { first, width }: NormColumns,
        &LayerNormParams { weight, bias, eps }: &LayerNormParams<&CudaVector<D>>,
    ) {
        assert!(bias.is_none_or(|bias| bias.length == weight.length), "one weight and one bias a column");
        assert!(first + weight.length <= x.cols, "columns the rows have");
        assert!(width > 0 && weight.length.is_multiple_of(width), "columns that are normed apart");
        self.norm_in_place(x, columns, CudaNorm { weight, bias, eps, centered: true });
    }

    /// Norm in place of some columns, as many as there are weights.
    pub(super) fn norm_in_place(
        &mut self,
        x: &CudaBuffer<D>,
        NormColumns { first, width }: NormColumns,
        CudaNorm { weight, bias, eps, centered }: CudaNorm<'_, D>,
    ) {
        let mut ops = self.ops();
        let columns = x.memory.address().offset(4 * first);
        let params = NormParams {
            batch: ops.batch,
            residual: Address::NONE,
            x: columns,
            out: columns,
            weight: weight.memory.address(),
            bias: address_of(bias.map(|bias| &bias.memory)),
            cut: PiecesToParams::default(),
            x_stride: x.cols as u32,
            out_stride: x.cols as u32,
            width: width as u32,
            repeats: 0,
            eps,
            centered: u32::from(centered),
        };
        let blocks = [ops.bucket.rows, (weight.length / width) as u32, 1];
        let mut holds = vec![&x.memory, &weight.memory];
        holds.extend(bias.map(|bias| &bias.memory));
        let grid = Grid { blocks, threads: NORM_THREADS, shared_bytes: NORM_BYTES };
        ops.push(Kernel::Norm, grid, &params, &holds);
    }

    pub(super) fn add_to_rows(&mut self, bias: &CudaVector<D>, out: &mut CudaBuffer<D>) {
        self.check(out, bias.length, "out");
        self.push_row_op(Change { op: 12, weights: Some(&bias.memory), ..Change::default() }, out);
    }

    pub(super) fn change_rows(
        &mut self,
        op: &RowOp<&CudaBuffer<D>, &CudaVector<D>>,
        out: &mut CudaBuffer<D>,
    ) {
        let cols = out.cols;
        let reads = |op, x: &'_ CudaBuffer<D>, first: usize| {
            assert!(first + cols <= x.cols, "columns that are not there");
            (op, first)
        };
        let change = match *op {
            RowOp::Scale(factor) => Change { op: 0, factors: [factor, 0.0, 0.0], ..Change::default() },
            RowOp::Multiply { by, first } => {
                let (op, first) = reads(1, by, first);
                Change { op, x: Some(by), first, ..Change::default() }
            }
            RowOp::Weigh(weights) => {
                assert_eq!(weights.length, cols, "a weight a column");
                Change { op: 2, weights: Some(&weights.memory), ..Change::default() }
            }
            RowOp::Tanh => Change { op: 3, ..Change::default() },
            RowOp::Take { x, first } => {
                let (op, first) = reads(4, x, first);
                Change { op, x: Some(x), first, ..Change::default() }
            }
            RowOp::Put { x, first } => {
                assert!(first + x.cols <= cols, "columns that are not there");
                Change { op: 5, x: Some(x), first, ..Change::default() }
            }
            RowOp::Add { x, first, factor } => {
                let (op, first) = reads(6, x, first);
                Change { op, x: Some(x), first, factors: [factor, 0.0, 0.0], ..Change::default() }
            }
            RowOp::Spread { x, first } => {
                assert!(cols.is_multiple_of(x.cols), "whole streams");
                Change { op: 7, x: Some(x), first, ..Change::default() }
            }
            RowOp::Mix { base, x, weights, plus } => {
                self.check(base, cols, "base");
                let squared = x.cols * cols / weights.cols;
                let width = squared.isqrt();
                let whole = x.cols.is_multiple_of(width) && cols.is_multiple_of(width);
                assert!(
                    whole && width * width * weights.cols == x.cols * cols,
                    "a weight for each pair of streams"
                );
                Change {
                    op: 8,
                    x: Some(x),
                    base: Some(base),
                    weights: Some(&weights.memory),
                    factors: [plus, 0.0, 0.0],
                    width,
                    ..Change::default()
                }
            }
            RowOp::MatchSize { x, least } => {
                self.check(x, cols, "x");
                Change { op: 9, x: Some(x), factors: [least, 0.0, 0.0], ..Change::default() }
            }
            RowOp::Xielu { positive, negative, linear } => {
                Change { op: 10, factors: [positive, negative, linear], ..Change::default() }
            }
            RowOp::KeepOutliers { deviations } => {
                Change { op: 11, factors: [deviations, 0.0, 0.0], ..Change::default() }
            }
        };
        self.push_row_op(change, out);
    }

    /// Copies the last `tail` elements of each head, which has `width` elements in `out` and `from` in `x`.
    pub(super) fn copy_tails(
        &mut self,
        x: &CudaBuffer<D>,
        from: usize,
        width: usize,
        tail: usize,
        out: &CudaBuffer<D>,
    ) {
        self.push_row_op(Change { op: 13, x: Some(x), first: from, width, tail, ..Change::default() }, out);
    }

    fn push_row_op(&mut self, change: Change<'_, D>, out: &CudaBuffer<D>) {
        let mut ops = self.ops();
        let params = RowParams {
            batch: ops.batch,
            out: out.memory.address(),
            x: address_of(change.x.map(|x| &x.memory)),
            base: address_of(change.base.map(|base| &base.memory)),
            weights: address_of(change.weights),
            op: change.op,
            cols: out.cols as u32,
            x_cols: change.x.map_or(0, |x| x.cols) as u32,
            first: change.first as u32,
            factors: change.factors,
            width: change.width as u32,
            tail: change.tail as u32,
            unused: 0,
        };
        let grid = Grid { blocks: [ops.bucket.rows, 1, 1], threads: THREADS, shared_bytes: SUM_BYTES };
        let mut holds = vec![&out.memory];
        holds.extend(change.x.map(|x| &x.memory));
        holds.extend(change.base.map(|base| &base.memory));
        holds.extend(change.weights);
        ops.push(Kernel::RowOp, grid, &params, &holds);
    }

    pub(super) fn gate_halves(
        &mut self,
        activation: Activation,
        both: &Arc<Memory<D>>,
        hidden: &CudaBuffer<D>,
    ) {
        let ops = self.ops();
        let params = GateParams {
            batch: ops.batch,
            both: both.address(),
            hidden: hidden.memory.address(),
            cut: PiecesToParams::default(),
            width: hidden.cols as u32,
            activation: activation_code(activation),
        };
        // Each thread has four columns.
        let columns = (hidden.cols as u32).div_ceil(4 * THREADS);
        let grid = Grid { blocks: [ops.bucket.rows, columns, 1], threads: THREADS, shared_bytes: 0 };
        let holds = [both, &hidden.memory];
        if !self.gate_where_written(&params, &holds) {
            self.ops().push(Kernel::Gate, grid, &params, &holds);
        }
    }
}

/// Parameters of `row_op`, with the kernel's numbering of ops.
struct Change<'a, D: Device> {
    op: u32,
    x: Option<&'a CudaBuffer<D>>,
    base: Option<&'a CudaBuffer<D>>,
    weights: Option<&'a Arc<Memory<D>>>,
    first: usize,
    factors: [f32; 3],
    width: usize,
    tail: usize,
}

impl<D: Device> Default for Change<'_, D> {
    fn default() -> Self {
        Self { op: 0, x: None, base: None, weights: None, first: 0, factors: [0.0; 3], width: 0, tail: 0 }
    }
}
