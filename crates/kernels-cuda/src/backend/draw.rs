//! Tokens: drawn where the logits are, for rows that ask for nothing but a temperature, top-k, top-p and min-p; for the others the host
//! has their logits.

use hanzo_engine_kernels::{SampleSpec, SampleSpecs};

use super::*;

/// Threads of a block, as `draw.cu` has them, and bytes of what they share.
const DRAW_THREADS: u32 = 1024;
const ROOM_BYTES: u32 = 8 * (DRAW_THREADS + 32 + 2048 + 3);

/// What a step's draws are told and tell, kept from step to step.
#[derive(Default)]
pub(super) struct Drawing {
    specs: Vec<DrawSpecParams>,
    tokens: Vec<u32>,
}

impl Drawing {
    /// Bytes on the device: specs, and tokens behind them.
    pub(super) fn bytes(limits: &StepLimits) -> usize {
        limits.logit_rows * (size_of::<DrawSpecParams>() + size_of::<u32>())
    }
}

/// A row's spec, where the device draws it.
fn on_device(spec: &SampleSpec, specs: &SampleSpecs, row: usize) -> Option<DrawSpecParams> {
    let as_it_comes = specs.softcap.is_none() && specs.bias.is_none() && spec.mask.is_none();
    let penalized = spec.repetition != 1.0 && !specs.seen_of(row).is_empty();
    let unchanged = as_it_comes && specs.adjustments_of(row).is_empty() && !penalized;
    let plain = unchanged && spec.shape.is_neutral() && spec.logprobs.is_none() && spec.given.is_none();
    plain.then_some(DrawSpecParams {
        uniform: spec.uniform,
        temperature: spec.temperature,
        top_p: spec.top_p,
        min_p: spec.min_p,
        top_k: spec.top_k,
        by_host: 0,
        unused: 0,
    })
}

impl<D: Device> CudaBackend<D> {
    /// A token for each of `head · x[logit_rows[i]]`.
    pub(super) fn draw_rows(
        &mut self,
        head: &CudaMatrix<D>,
        x: &CudaBuffer<D>,
        specs: &SampleSpecs,
        room: &mut [f32],
    ) -> Result<(), KernelError> {
        let mut drawing = std::mem::take(&mut self.drawing);
        let by_host = DrawSpecParams { by_host: 1, ..bytemuck::Zeroable::zeroed() };
        let rows = specs.rows.iter().enumerate();
        drawing.specs.clear();
        drawing.specs.extend(rows.map(|(row, spec)| on_device(spec, specs, row).unwrap_or(by_host)));
        let result = if drawing.specs.iter().all(|spec| spec.by_host == 1) {
            self.logits(head, x, room).map(|()| self.draws.draw(specs, room))
        } else {
            self.draw_on_device(head, x, &mut drawing)
                .and_then(|()| self.draw_the_rest(head.rows(), specs, &drawing, room))
        };
        self.drawing = drawing;
        result
    }

    /// `head · x[logit_rows[i]]`, into the scratch's logits.
    pub(super) fn multiply_head(&mut self, head: &CudaMatrix<D>, x: &CudaBuffer<D>) {
        self.check(x, head.cols(), "x");
        assert!(head.rows() <= self.steps.limits().vocab, "a vocabulary beyond the step's limits");
        let logits = self.scratch().logits.clone();
        let into = (&logits, 0, head.rows());
        self.product(head, &Product { logits: true, out: into, ..Product::of(x, x) });
    }

    /// Rows that the device draws; logits of the others are there then.
    fn draw_on_device(
        &mut self,
        head: &CudaMatrix<D>,
        x: &CudaBuffer<D>,
        drawing: &mut Drawing,
    ) -> Result<(), KernelError> {
        self.multiply_head(head, x);
        let scratch = self.scratch();
        let (logits, drawn) = (scratch.logits.clone(), scratch.drawn.clone());
        let tokens_at = size_of::<DrawSpecParams>() * self.steps.limits().logit_rows;
        drawn.write(0, bytemuck::cast_slice(&drawing.specs))?;
        let mut ops = self.steps.ops();
        let params = DrawParams {
            batch: ops.batch,
            logits: logits.address(),
            specs: drawn.address(),
            tokens: drawn.address().offset(tokens_at),
            vocab: head.rows() as u32,
            unused: 0,
        };
        let blocks = [ops.bucket.logit_rows, 1, 1];
        let grid = Grid { blocks, threads: DRAW_THREADS, shared_bytes: ROOM_BYTES };
        ops.push(Kernel::Draw, grid, &params, &[&logits, &drawn]);
        self.steps.start()?;
        drawing.tokens.clear();
        drawing.tokens.resize(drawing.specs.len(), NONE);
        drawn.read(tokens_at, bytemuck::cast_slice_mut(&mut drawing.tokens))
    }

    fn draw_the_rest(
        &mut self,
        vocab: usize,
        specs: &SampleSpecs,
        drawing: &Drawing,
        room: &mut [f32],
    ) -> Result<(), KernelError> {
        let logits = self.scratch().logits.clone();
        let rows = room.chunks_exact_mut(vocab).zip(&drawing.specs).enumerate();
        for (row, (room, _)) in rows.filter(|(_, (_, spec))| spec.by_host == 1) {
            logits.read(4 * row * vocab, bytemuck::cast_slice_mut(room))?;
        }
        let token = |row: usize| (drawing.tokens[row] != NONE).then_some(drawing.tokens[row]);
        let drawn = |row: usize| (drawing.specs[row].by_host == 0).then(|| token(row));
        self.draws.draw_others(specs, room, drawn);
        Ok(())
    }
}
