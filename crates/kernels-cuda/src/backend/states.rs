//! Ops of layers with recurrent states.

use super::*;
use hanzo_engine_ops::{GateKind, StateRule};

impl<D: Device> CudaBackend<D> {
    pub(super) fn convolve_channels(
        &mut self,
        x: &CudaBuffer<D>,
        ConvolutionParams { shape, weight, bias }: &ConvolutionParams<&CudaVector<D>>,
        kv: &CudaKv<D>,
        layer: usize,
    ) {
        let channels = shape.channels();
        assert!(x.cols >= channels, "fewer columns than channels");
        assert_eq!(weight.length, shape.taps * channels, "a factor for each tap and channel");
        assert!(bias.is_none_or(|bias| bias.length == channels), "an addend for each channel");
        let [inputs, _] = kv.states(shape, layer);
        let mut ops = self.ops();
        let params = ConvolveParams {
            batch: ops.batch,
            x: x.memory.address(),
            inputs,
            weight: weight.memory.address(),
            bias: address_of(bias.map(|bias| &bias.memory)),
            x_stride: x.cols as u32,
            channels: channels as u32,
            taps: shape.taps as u32,
            activates: u32::from(shape.rule != StateRule::Convolution),
        };
        let blocks = [ops.bucket.sequences, (channels as u32).div_ceil(THREADS), 1];
        let mut holds = vec![&x.memory, &kv.memory, &weight.memory];
        holds.extend(bias.map(|bias| &bias.memory));
        ops.push(Kernel::Convolve, Grid { blocks, threads: THREADS, shared_bytes: 0 }, &params, &holds);
    }

    pub(super) fn recur_heads(
        &mut self,
        x: &CudaBuffer<D>,
        params: &RecurrenceParams<&CudaVector<D>>,
        kv: &CudaKv<D>,
        layer: usize,
        out: &mut CudaBuffer<D>,
    ) {
        let shape = params.shape;
        assert!(shape.rule != StateRule::Convolution, "nothing recurs");
        self.check(x, shape.width(), "x");
        self.check(out, shape.value_width(), "out");
        let vectors = [Some(params.decay), Some(params.step_bias), params.skip];
        assert!(vectors.iter().flatten().all(|of| of.length == shape.value_heads), "a number for each head");
        let [_, heads] = kv.states(&shape, layer);
        let [query, key, value] = shape.columns().map(|column| column as u32);
        let mut ops = self.ops();
        let recur = RecurParams {
            batch: ops.batch,
            x: x.memory.address(),
            heads,
            out: out.memory.address(),
            decay: params.decay.memory.address(),
            step_bias: params.step_bias.memory.address(),
            skip: address_of(params.skip.map(|skip| &skip.memory)),
            step_min: params.step_limits[0],
            step_max: params.step_limits[1],
            x_stride: x.cols as u32,
            out_stride: out.cols as u32,
            delta: u32::from(shape.rule == StateRule::Delta),
            value_heads: shape.value_heads as u32,
            key_heads: shape.key_heads as u32,
            key_dim: shape.key_dim as u32,
            value_dim: shape.value_dim as u32,
            tiled: u32::from(shape.tiled),
            query_column: query,
            key_column: key,
            value_column: value,
            step_column: shape.step_column() as u32,
            beta_column: shape.beta_column() as u32,
            unused: 0,
        };
        let grid = Grid {
            blocks: [ops.bucket.sequences, shape.value_heads as u32, 1],
            threads: THREADS,
            shared_bytes: 8 * shape.key_dim as u32 + SUM_BYTES,
        };
        let mut holds = vec![&x.memory, &out.memory, &kv.memory];
        holds.extend(vectors.into_iter().flatten().map(|of| &of.memory));
        ops.push(Kernel::Recur, grid, &recur, &holds);
    }

    pub(super) fn gate_rows(
        &mut self,
        gate: &CudaBuffer<D>,
        params: &OutputGateParams<&CudaVector<D>>,
        out: &mut CudaBuffer<D>,
    ) {
        let cols = out.cols;
        assert!(gate.cols >= params.column + cols, "a gate narrower than what it multiplies");
        let norm = params.norm.as_ref();
        let (part, weights) = norm.map_or((cols, cols), |norm| (norm.part, norm.weight.length));
        assert!(cols.is_multiple_of(part) && (weights == cols || weights == part), "parts of a row");
        let mut ops = self.ops();
        let gate_params = GateOutputParams {
            batch: ops.batch,
            gate: gate.memory.address().offset(4 * params.column),
            out: out.memory.address(),
            weight: address_of(norm.map(|norm| &norm.weight.memory)),
            gate_stride: gate.cols as u32,
            cols: cols as u32,
            part: part as u32,
            weights: weights as u32,
            eps: norm.map_or(0.0, |norm| norm.eps),
            silu: u32::from(params.kind == GateKind::Silu),
            before_gate: u32::from(norm.is_some_and(|norm| norm.before_gate)),
            unused: 0,
        };
        let blocks = [ops.bucket.rows, (cols / part) as u32, 1];
        let mut holds = vec![&gate.memory, &out.memory];
        holds.extend(norm.map(|norm| &norm.weight.memory));
        ops.push(
            Kernel::GateOutput,
            Grid { blocks, threads: THREADS, shared_bytes: SUM_BYTES },
            &gate_params,
            &holds,
        );
    }
}
