//! Adapters: changes of outputs, then products with their matrices, for the rows of each adapter in the batch.

use hanzo_engine_ops::AdaptedLogits;

use super::*;
use crate::weights::ChangedOutputs;

/// Outputs that adapters change: those of a buffer, or the scratch's logits.
struct Outputs<'a, D: Device> {
    memory: &'a Arc<Memory<D>>,
    cols: usize,
    logits: bool,
}

impl<D: Device> CudaBackend<D> {
    /// The contract's `add_low_rank`.
    pub(super) fn adapt<L: Borrow<CudaLowRank<D>>>(
        &mut self,
        deltas: &[Option<L>],
        x: &CudaBuffer<D>,
        low: Option<&CudaBuffer<D>>,
        out: &CudaBuffer<D>,
    ) {
        self.adapt_outputs(deltas, x, low, &Outputs { memory: &out.memory, cols: out.cols, logits: false });
    }

    /// Applies adapters to the scratch's logits, which have `vocab` columns.
    pub(super) fn adapt_logits(
        &mut self,
        adapted: Option<AdaptedLogits<'_, Self>>,
        x: &CudaBuffer<D>,
        vocab: usize,
    ) {
        let Some(AdaptedLogits { deltas, low }) = adapted else { return };
        let logits = self.scratch().logits.clone();
        self.adapt_outputs(deltas, x, Some(low), &Outputs { memory: &logits, cols: vocab, logits: true });
    }

    fn adapt_outputs<L: Borrow<CudaLowRank<D>>>(
        &mut self,
        deltas: &[Option<L>],
        x: &CudaBuffer<D>,
        low: Option<&CudaBuffer<D>>,
        out: &Outputs<'_, D>,
    ) {
        for adapter in std::mem::take(&mut self.adapters) {
            self.adapters.push(adapter);
            let Some(delta) = deltas.get(adapter as usize).and_then(Option::as_ref) else { continue };
            let delta: &CudaLowRank<D> = delta.borrow();
            for change in &delta.changes {
                self.change_outputs(change, adapter, x, out);
            }
            let mut first = 0;
            for pair in &delta.pairs {
                let inputs = pair.a.as_ref().map_or(pair.b.cols(), |a| a.cols());
                self.check(x, inputs, "x");
                assert!(pair.first + pair.b.rows() <= out.cols, "outputs that the rows do not have");
                let read = match &pair.a {
                    Some(a) => {
                        let rank = a.rows();
                        let low = low.expect("a caller whose adapters have pairs with A gives scratch");
                        assert!(first + rank <= low.cols, "scratch narrower than the ranks");
                        // For logits, all rows are computed too: the product with B reads the rows that the logits
                        // come from.
                        let narrow = MemoryRows { memory: &low.memory, first, cols: low.cols };
                        self.product(a, &Product { adapter, out: narrow, ..Product::of(x, low) });
                        first += rank;
                        narrow
                    }
                    None => MemoryRows { memory: &x.memory, first: 0, cols: x.cols },
                };
                let into = MemoryRows { memory: out.memory, first: pair.first, cols: out.cols };
                let (adds, logits) = (Some(pair.scale), out.logits);
                let product = Product { adapter, adds, logits, x: read, out: into, ..Product::of(x, x) };
                self.product(&pair.b, &product);
            }
        }
    }

    fn change_outputs(
        &mut self,
        change: &ChangedOutputs<D>,
        adapter: u32,
        x: &CudaBuffer<D>,
        out: &Outputs<'_, D>,
    ) {
        let &ChangedOutputs { first, count, reads_input, ref memory } = change;
        assert!(first + count <= out.cols, "outputs that the rows do not have");
        if reads_input {
            self.check(x, out.cols, "x");
        }
        let mut ops = self.ops();
        let params = ChangeOutputsParams {
            batch: ops.batch,
            out: out.memory.address(),
            x: address_of(reads_input.then_some(&x.memory)),
            factors: memory.address(),
            addends: memory.address().offset(size_of::<f32>() * count),
            cols: out.cols as u32,
            first: first as u32,
            count: count as u32,
            logits: u32::from(out.logits),
            adapter,
            unused: 0,
        };
        let rows = if out.logits { ops.bucket.logit_rows } else { ops.bucket.rows };
        let grid = Grid { blocks: [rows, 1, 1], threads: THREADS, shared_bytes: 0 };
        let holds = [out.memory, &x.memory, memory];
        ops.push(Kernel::ChangeOutputs, grid, &params, &holds[..]);
    }
}
