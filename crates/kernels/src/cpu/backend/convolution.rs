//! Convolutions over grids on CPU cores, and activations of single numbers.

use std::sync::atomic::Ordering;

use super::{CpuBackend, CpuBuffer, CpuMatrix, CpuVector, OpenStep, Product, Scratch};
use crate::cpu::convolution::{
    ConvScratch, ConvScratchSize, CpuKernel, Grid, LineActivation, LineInput, activate, each_rows_of,
};
use crate::cpu::line;
use crate::cpu::relative::{RelativeJob, relative_attention};
use hanzo_engine_ops::quant::dequantize_row;
use hanzo_engine_ops::{
    Batch, ConvParams, KernelError, KernelUse, LayerNormParams, MatrixSource, PointActivation, RelativeParams,
};

/// Operands of a convolution.
pub(super) struct ConvJob<'a> {
    pub(super) x: &'a CpuBuffer,
    pub(super) affine: Option<&'a CpuBuffer>,
    pub(super) before: Option<PointActivation<&'a CpuVector>>,
    pub(super) weight: &'a CpuMatrix,
    pub(super) bias: Option<&'a CpuVector>,
    pub(super) params: ConvParams,
    pub(super) transposed: bool,
    pub(super) add: Option<&'a CpuBuffer>,
    pub(super) out: &'a mut CpuBuffer,
}

impl OpenStep<'_> {
    /// The contract's `conv` and `conv_transpose`.
    pub(super) fn convolve_grids(&mut self, job: ConvJob<'_>) {
        let ConvJob { x, affine, before, weight, bias, params, transposed, add, out } = job;
        let (kernel, channels) = (weight.kernel(), weight.kernel().channels());
        kernel.check(&params, transposed);
        x.check(self.batch.rows(), x.cols, "x");
        assert!(x.cols.is_multiple_of(channels), "rows hold whole places");
        if let Some(PointActivation::Snake { alpha }) = before {
            assert_eq!(alpha.values.len(), channels, "a frequency for each channel");
        }
        if let Some(affine) = affine {
            affine.check(self.batch.sequences.len(), 2 * channels, "affine");
        }
        let Scratch { activations, plan, panels, convolution, .. } = &mut *self.scratch;
        let (mut numbers, room) = convolution.parts();
        let activation = LineActivation::of(self.cores.tier, before, room);
        let mut product =
            Product { tier: self.cores.tier, turn: self.cores.turn, activations, plan, scratch: panels };
        let mut done = 0;
        for (sequence, span) in self.batch.sequences.iter().enumerate() {
            let params = params.of(span.rows as usize, x.cols / channels);
            let count = kernel.output(&params).iter().product::<usize>() * kernel.outputs();
            let place = done..done + count;
            let affine = affine.map(|affine| affine.data[sequence * 2 * channels..].split_at(channels));
            let affine = affine.map(|(scale, shift)| [scale, &shift[..channels]]);
            let first = span.row_first as usize * x.cols;
            let grid = Grid {
                params,
                x: &x.data[first..][..params.input.iter().product::<usize>() * channels],
                before: LineInput { affine, activation },
                bias: bias.map(|bias| &bias.values[..]),
                add: add.map(|add| &add.data[place.clone()]),
                out: &mut out.data[place],
            };
            kernel.run(&mut product, &mut numbers, grid);
            done += count;
        }
    }

    /// The contract's `instance_affine`.
    pub(super) fn instance_affine(
        &mut self,
        x: &CpuBuffer,
        places: Option<usize>,
        params: &LayerNormParams<&CpuVector>,
        out: &mut CpuBuffer,
    ) {
        let channels = params.weight.values.len();
        out.check(self.batch.rows(), 2 * channels, "out");
        assert!(params.bias.is_none_or(|bias| bias.values.len() == channels), "a shift for each channel");
        let rows = out.data.chunks_exact_mut(2 * channels);
        for (line, out) in lines_of(self.batch, x, channels, places).zip(rows) {
            line::instance_affine(self.cores.turn, line, &params.into(), out);
        }
    }

    /// The contract's `mirror`.
    pub(super) fn mirror(
        &mut self,
        x: &CpuBuffer,
        channels: usize,
        places: Option<usize>,
        before: usize,
        out: &mut CpuBuffer,
    ) {
        let mut rest = &mut out.data[..];
        for line in lines_of(self.batch, x, channels, places) {
            assert!(before < line.len() / channels, "fewer mirrored places than there are");
            let (mirrored, behind) = std::mem::take(&mut rest).split_at_mut(before * channels);
            for (out, place) in mirrored.chunks_exact_mut(channels).zip((1..=before).rev()) {
                out.copy_from_slice(&line[place * channels..][..channels]);
            }
            let (own, behind) = behind.split_at_mut(line.len());
            own.copy_from_slice(line);
            rest = behind;
        }
    }

    /// The contract's `lstm`.
    pub(super) fn lstm(&mut self, gates: &CpuBuffer, recurrent: &CpuVector, out: &mut CpuBuffer) {
        let hidden = gates.cols / 8;
        gates.check(self.batch.rows(), 8 * hidden, "gates");
        out.check(self.batch.rows(), 2 * hidden, "out");
        assert_eq!(recurrent.values.len(), 8 * hidden * hidden, "additions of each state to each gate");
        let job = line::LstmJob { gates: &gates.data, recurrent: &recurrent.values, hidden };
        line::lstm(self.cores.lend(), &mut self.scratch.panels, self.batch, &job, &mut out.data);
    }

    /// The contract's `activate`.
    pub(super) fn activate(&mut self, activation: &PointActivation<&CpuVector>, out: &mut CpuBuffer) {
        let (rows, cols) = (self.batch.rows(), out.cols);
        out.check(rows, cols, "out");
        if let PointActivation::Snake { alpha } = activation {
            assert_eq!(alpha.values.len(), cols, "a frequency for each column");
        }
        let (tier, own) = (self.cores.tier, &mut out.data[..rows * cols]);
        each_rows_of(self.cores.turn, own, cols, (1 << 13) / cols.max(1) + 1, &|_, piece| {
            piece.chunks_exact_mut(cols).for_each(|row| activate(tier, activation, row));
        });
    }

    /// The contract's `relative_attention`.
    pub(super) fn relative_attention(
        &mut self,
        qkv: &CpuBuffer,
        params: &RelativeParams<&CpuVector>,
        out: &mut CpuBuffer,
    ) {
        let (rows, heads) = (self.batch.rows(), params.heads);
        let near = (2 * params.reach + 1) * heads.head_dim;
        qkv.check(rows, heads.qkv_width(), "qkv");
        out.check(rows, heads.q_width(), "out");
        assert!(heads.heads == heads.kv_heads, "keys and values for each head");
        let params = params.with(|vector| &vector.values[..]);
        assert!(
            params.keys.len() == near && params.values.len() == near,
            "a key and a value of each distance"
        );
        relative_attention(
            self.cores.turn,
            self.batch,
            &RelativeJob { params, qkv: &qkv.data },
            &mut out.data,
        );
    }
}

/// Numbers of each sequence's places.
fn lines_of<'a>(
    batch: &'a Batch,
    x: &'a CpuBuffer,
    channels: usize,
    places: Option<usize>,
) -> impl Iterator<Item = &'a [f32]> {
    x.check(batch.rows(), x.cols, "x");
    assert!(x.cols.is_multiple_of(channels), "rows hold whole places");
    batch.sequences.iter().map(move |span| {
        let held = &x.data[span.row_first as usize * x.cols..][..span.rows as usize * x.cols];
        places.map_or(held, |places| &held[..places * channels])
    })
}

impl CpuBackend {
    /// The contract's `pack_kernel`. Weights are kept as f32, whatever their type was.
    pub(super) fn pack_grid_kernel(
        &self,
        source: &MatrixSource<'_>,
        of: &KernelUse,
    ) -> Result<CpuMatrix, KernelError> {
        assert!(self.turn.borrow().is_none(), "pack inside a step");
        let shape = source.shape;
        let mut numbers = vec![0.0; shape.rows * shape.cols];
        CpuMatrix::check_source(source, &self.facts.device)?;
        dequantize_row(shape.dtype, source.bytes, &mut numbers);
        let kernel = CpuKernel::pack(source, of, &numbers, &mut self.pool.turn(), &self.facts.device)?;
        for (most, size) in self.kernel_scratch.iter().zip(kernel.scratch(self.pool.threads())) {
            most.fetch_max(size, Ordering::Relaxed);
        }
        Ok(CpuMatrix::of_kernel(shape, kernel))
    }

    /// Makes the scratch that the packed kernels need.
    pub(super) fn reserve_kernels(&mut self) -> Result<(), KernelError> {
        let size: ConvScratchSize = self.kernel_scratch.each_ref().map(|most| most.load(Ordering::Relaxed));
        let Some(scratch) = &mut self.scratch else { return Ok(()) };
        if !scratch.convolution.fits(size) {
            scratch.convolution = ConvScratch::new(size)?;
        }
        Ok(())
    }
}
