//! Networks as programs: lists of ops over values on a device, recorded for the length of a piece and run in one step.

use std::sync::{Arc, Mutex, PoisonError};

use hanzo_engine_kernels::cpu::{CpuBackend, ThreadPool, Tier};
use hanzo_engine_ops::{
    Allocation, AnyBackend, Batch, Buffer, BufferId, BufferRole, ConvParams, DeviceMemory as _, GateKind,
    HeadShape, KernelError, LayerNormParams, Op, OutputGateParams, PointActivation, PositionBias,
    RelativeParams, RowOp, RowSource, SelfAttentionParams, SequenceSpan, StepLimits, Vector, VectorId,
};

use super::weights::f32_shape;
use super::{ChannelAffine, DenseWeights, KernelWeights, LstmWeights, NearWeights, NormWeights, same};
use crate::limits::FRAMES_MAX;

/// Maximum numbers kept for reuse: half of the memory budgeted for signals.
const SPARE_NUMBERS: usize = 32 << 20;
/// Numbers in one piece of a parallel loop.
const PIECE_NUMBERS: usize = 1 << 14;
/// Maximum rows of a program.
pub(crate) const PROGRAM_ROWS_MAX: usize = FRAMES_MAX;

/// Device that runs programs, and the buffers that earlier ones have left.
pub(crate) struct Device {
    pub(super) backend: AnyBackend,
    spare: Vec<Signal>,
}

/// Signal on a device: `(places, channels)`, several places a row if there are more of them than rows.
pub(crate) struct Signal {
    buffer: Buffer,
    rows: usize,
    cols: usize, // of the buffer
    places: usize,
    channels: usize,
}

/// Changes of a convolution's input and output.
#[derive(Clone, Copy, Default)]
pub(crate) struct ConvExtras<'a> {
    /// Scale and shift of each channel of the input ([`Program::instance_affine`]).
    pub(crate) affine: Option<&'a Signal>,
    /// Activation of the input.
    pub(crate) before: Option<PointActivation<VectorId>>,
    /// Addend of the output.
    pub(crate) add: Option<&'a Signal>,
}

/// Ops for a piece of so many rows.
pub(crate) struct Program<'a> {
    device: &'a mut Device,
    rows: usize,
    ops: Vec<Op>,
    vectors: Vec<Vector>, // of these ops
}

fn limits(width: usize, heads: HeadShape) -> StepLimits {
    StepLimits {
        rows: PROGRAM_ROWS_MAX,
        sequences: 1,
        logit_rows: 1,
        context: PROGRAM_ROWS_MAX,
        width,
        vocab: 16,
        heads,
        experts: 0,
        experts_used: 0,
        experts_width: 0,
        kv_groups: 1,
        heads_matmul_width: 0,
    }
}

/// Bytes that [`Device::reserve`] takes for matrices of this width and these heads.
pub(crate) fn program_scratch_bytes(
    pool: &Arc<ThreadPool>,
    tier: Tier,
    width: usize,
    heads: HeadShape,
) -> u64 {
    bytes(pool, tier, &Allocation::Scratch(&limits(width, heads)))
}

/// Bytes of a packed matrix of this shape.
pub(crate) fn matrix_bytes(pool: &Arc<ThreadPool>, tier: Tier, [rows, cols]: [usize; 2]) -> u64 {
    bytes(pool, tier, &Allocation::Matrix(&[f32_shape(rows, cols)]))
}

/// Bytes of a packed kernel of a convolution of shape `(outer, inner, taps)`.
pub(crate) fn kernel_bytes(pool: &Arc<ThreadPool>, tier: Tier, [outer, inner, taps]: [usize; 3]) -> u64 {
    bytes(pool, tier, &Allocation::Kernel(&f32_shape(outer, inner * taps), &same(taps, 1)))
}

fn bytes(pool: &Arc<ThreadPool>, tier: Tier, of: &Allocation<'_>) -> u64 {
    CpuBackend::new(pool.clone(), tier).bytes(of) as u64
}

impl Device {
    pub(crate) fn new(pool: Arc<ThreadPool>, tier: Tier) -> Device {
        Device { backend: AnyBackend::new(CpuBackend::new(pool, tier)), spare: Vec::new() }
    }

    /// Name of the device for people.
    pub(crate) fn name(&self) -> String {
        self.backend.facts().device.clone()
    }

    /// Reserves scratch for matrices up to `width` wide, and for attention with these heads. Call it once.
    pub(crate) fn reserve(&mut self, width: usize, heads: HeadShape) -> Result<(), KernelError> {
        self.backend.reserve(&limits(width, heads))
    }

    /// Calls `task` in parallel with groups of whole rows of `data`, and the index of the first row.
    pub(crate) fn rows(&self, data: &mut [f32], cols: usize, task: &(dyn Fn(usize, &mut [f32]) + Sync)) {
        let rows = (PIECE_NUMBERS / cols).max(1);
        let pieces: Vec<Mutex<&mut [f32]>> = data.chunks_mut(rows * cols).map(Mutex::new).collect();
        self.backend.on_host(pieces.len(), &|index| {
            task(index * rows, &mut pieces[index].lock().unwrap_or_else(PoisonError::into_inner));
        });
    }

    /// Begins a program of so many rows, at most [`PROGRAM_ROWS_MAX`].
    pub(crate) fn program(&mut self, rows: usize) -> Program<'_> {
        Program { device: self, rows, ops: Vec::new(), vectors: Vec::new() }
    }

    /// Keeps a value's memory for reuse, because fresh memory pages are expensive.
    pub(crate) fn spent(&mut self, value: Signal) {
        self.spare.push(value);
    }

    /// Frees the oldest spare memory above the limit.
    fn trim(&mut self) {
        while self.spare.iter().map(|spare| spare.rows * spare.cols).sum::<usize>() > SPARE_NUMBERS {
            self.spare.remove(0);
        }
    }
}

impl Signal {
    /// Channels of a place.
    pub(crate) fn channels(&self) -> usize {
        self.channels
    }
}

impl Program<'_> {
    /// A value with unspecified numbers.
    fn value(&mut self, places: usize, channels: usize) -> Result<Signal, KernelError> {
        let (rows, cols) = (self.rows, places.div_ceil(self.rows).max(1) * channels);
        let fitting = self.device.spare.iter().enumerate();
        let fitting = fitting.filter(|(_, spare)| spare.cols == cols && spare.rows >= rows);
        let smallest = fitting.min_by_key(|(_, spare)| spare.rows).map(|(at, _)| at);
        Ok(match smallest {
            Some(at) => Signal { places, channels, ..self.device.spare.swap_remove(at) },
            None => {
                let buffer = self.device.backend.buffer(BufferRole::Residual, rows, cols)?;
                Signal { buffer, rows, cols, places, channels }
            }
        })
    }

    /// A value of one place a row with these numbers.
    pub(crate) fn given(&mut self, numbers: &[f32], channels: usize) -> Result<Signal, KernelError> {
        assert_eq!(numbers.len(), self.rows * channels, "a number for each row and channel");
        self.given_places(numbers, channels)
    }

    /// A value of so many channels with these numbers.
    pub(crate) fn given_places(&mut self, numbers: &[f32], channels: usize) -> Result<Signal, KernelError> {
        let mut value = self.value(numbers.len() / channels, channels)?;
        let mut all = numbers.to_vec();
        all.resize(self.rows * value.cols, 0.0);
        self.device.backend.write_rows(&mut value.buffer, 0, &all)?;
        Ok(value)
    }

    /// Gives a value's memory to later values.
    pub(crate) fn free(&mut self, value: Signal) {
        self.device.spent(value);
    }

    /// Computes `weights · x + bias` for every row.
    pub(crate) fn dense(&mut self, weights: &DenseWeights, x: &Signal) -> Result<Signal, KernelError> {
        assert_eq!(x.cols, weights.inputs, "as many channels as the matrix reads");
        let out = self.value(self.rows, weights.outputs)?;
        let (weight, bias) = (weights.weight.id(), weights.bias.as_ref().map(|bias| bias.id()));
        self.ops.push(Op::MatMul { weight, bias, x: x.buffer.id(), out: out.buffer.id() });
        Ok(out)
    }

    /// Convolves `x`.
    pub(crate) fn conv(
        &mut self,
        kernel: &KernelWeights,
        x: &Signal,
        ConvExtras { affine, before, add }: ConvExtras<'_>,
    ) -> Result<Signal, KernelError> {
        assert_eq!(x.channels, kernel.channels, "as many channels as the convolution reads");
        let params = ConvParams { input: [1, 1, x.places], ..kernel.of.params };
        let places = if kernel.of.transposed { params.output_transposed() } else { params.output() };
        let out = self.value(places[2], kernel.outputs)?;
        let (weight, bias) = (kernel.weight.id(), kernel.bias.as_ref().map(|bias| bias.id()));
        let (x, affine, to) = (x.buffer.id(), affine.map(|affine| affine.buffer.id()), out.buffer.id());
        self.ops.push(match kernel.of.transposed {
            false => {
                let add = add.map(|add| add.buffer.id());
                Op::Conv { x, affine, before, weight, bias, params, add, out: to }
            }
            true => {
                assert!(add.is_none(), "a transposed convolution adds nothing");
                Op::ConvTranspose { x, affine, before, weight, bias, params, out: to }
            }
        });
        Ok(out)
    }

    fn row(&mut self, op: RowOp<BufferId, VectorId>, out: &Signal) {
        self.ops.push(Op::Row { op, out: out.buffer.id() });
    }

    /// Copies `channels` of the channels of a value of one place a row, from the first one on.
    pub(crate) fn take(&mut self, x: &Signal, first: usize, channels: usize) -> Result<Signal, KernelError> {
        let out = self.value(self.rows, channels)?;
        self.row(RowOp::Take { x: x.buffer.id(), first }, &out);
        Ok(out)
    }

    /// Copies a value.
    pub(crate) fn copy(&mut self, x: &Signal) -> Result<Signal, KernelError> {
        let out = self.value(x.places, x.channels)?;
        self.row(RowOp::Take { x: x.buffer.id(), first: 0 }, &out);
        Ok(out)
    }

    /// Writes a value into channels of another, from the first one on.
    pub(crate) fn put(&mut self, x: &Signal, first: usize, out: &Signal) {
        self.row(RowOp::Put { x: x.buffer.id(), first }, out);
    }

    /// Computes `sum += factor · x`, with the channels of `x` from `first` on.
    pub(crate) fn add(&mut self, sum: &Signal, x: &Signal, first: usize, factor: f32) {
        self.row(RowOp::Add { x: x.buffer.id(), first, factor }, sum);
    }

    /// Multiplies every number.
    pub(crate) fn scale(&mut self, x: &Signal, factor: f32) {
        self.row(RowOp::Scale(factor), x);
    }

    /// Adds a number to each channel of a value of one place a row.
    pub(crate) fn add_each(&mut self, x: &Signal, numbers: &[f32]) -> Result<(), KernelError> {
        let vector = self.device.backend.vector(numbers)?;
        self.ops.push(Op::AddBias { bias: vector.id(), out: x.buffer.id() });
        self.vectors.push(vector);
        Ok(())
    }

    /// Applies an activation to every number.
    pub(crate) fn activate(&mut self, activation: PointActivation<VectorId>, x: &Signal) {
        self.ops.push(Op::Activate { activation, out: x.buffer.id() });
    }

    /// Multiplies `x` by the sigmoid of the channels of `gate` from `column` on.
    pub(crate) fn gate(&mut self, gate: &Signal, column: usize, x: &Signal) {
        let params = OutputGateParams { column, kind: GateKind::Sigmoid, norm: None };
        self.ops.push(Op::GateOutput { gate: gate.buffer.id(), params, out: x.buffer.id() });
    }

    /// Layer norm of every row.
    pub(crate) fn norm(&mut self, weights: &NormWeights, x: &Signal) -> Result<Signal, KernelError> {
        let out = self.value(x.places, x.channels)?;
        let (x, params, out_id) = (x.buffer.id(), weights.params(), out.buffer.id());
        self.ops.push(Op::LayerNorm { x, params, out: out_id });
        Ok(out)
    }

    /// Layer norm of every row, with a scale and a shift that belong to this piece.
    pub(crate) fn norm_by(
        &mut self,
        affine: &ChannelAffine,
        eps: f32,
        x: &Signal,
    ) -> Result<Signal, KernelError> {
        let params = self.own_affine(affine, eps)?;
        let out = self.value(x.places, x.channels)?;
        self.ops.push(Op::LayerNorm { x: x.buffer.id(), params, out: out.buffer.id() });
        Ok(out)
    }

    /// Instance norm of `x` as a scale and a shift of each channel, followed by those of `affine`.
    pub(crate) fn instance_affine(
        &mut self,
        affine: &ChannelAffine,
        eps: f32,
        x: &Signal,
    ) -> Result<Signal, KernelError> {
        let params = self.own_affine(affine, eps)?;
        let out = self.value(self.rows, 2 * x.channels)?;
        let places = Some(x.places);
        self.ops.push(Op::InstanceAffine { x: x.buffer.id(), places, params, out: out.buffer.id() });
        Ok(out)
    }

    fn own_affine(
        &mut self,
        affine: &ChannelAffine,
        eps: f32,
    ) -> Result<LayerNormParams<VectorId>, KernelError> {
        let backend = &self.device.backend;
        let (scale, shift) = (backend.vector(&affine.scale)?, backend.vector(&affine.shift)?);
        let params = LayerNormParams { weight: scale.id(), bias: Some(shift.id()), eps };
        self.vectors.extend([scale, shift]);
        Ok(params)
    }

    /// Puts the channels of values of one place a row beside each other.
    pub(crate) fn beside(&mut self, parts: &[&Signal]) -> Result<Signal, KernelError> {
        let out = self.value(self.rows, parts.iter().map(|part| part.channels).sum())?;
        let mut first = 0;
        for part in parts {
            self.put(part, first, &out);
            first += part.channels;
        }
        Ok(out)
    }

    /// Puts so many mirrored places before those of `x`.
    pub(crate) fn mirror(&mut self, x: &Signal, before: usize) -> Result<Signal, KernelError> {
        let out = self.value(x.places + before, x.channels)?;
        let (channels, places) = (x.channels, Some(x.places));
        self.ops.push(Op::Mirror { x: x.buffer.id(), channels, places, before, out: out.buffer.id() });
        Ok(out)
    }

    /// States of an LSTM, those of the forward direction first.
    pub(crate) fn lstm(&mut self, weights: &LstmWeights, x: &Signal) -> Result<Signal, KernelError> {
        let gates = self.dense(&weights.input, x)?;
        let out = self.value(self.rows, 2 * weights.hidden)?;
        let (recurrent, to) = (weights.recurrent.id(), out.buffer.id());
        self.ops.push(Op::Lstm { gates: gates.buffer.id(), recurrent, out: to });
        self.free(gates);
        Ok(out)
    }

    /// Adds `x` to `sum`, and returns the layer norm of it.
    pub(crate) fn add_norm(
        &mut self,
        weights: &NormWeights,
        sum: &Signal,
        x: &Signal,
    ) -> Result<Signal, KernelError> {
        let out = self.value(x.places, x.channels)?;
        let (residual, params) = (sum.buffer.id(), weights.params());
        self.ops.push(Op::AddLayerNorm { residual, x: x.buffer.id(), params, out: out.buffer.id() });
        Ok(out)
    }

    /// Attention inside the piece, with keys and values of near places. `qkv` has the queries, keys and values of all heads.
    pub(crate) fn attend(&mut self, near: &NearWeights, qkv: &Signal) -> Result<Signal, KernelError> {
        let out = self.value(self.rows, qkv.channels / 3)?;
        let RelativeParams { heads, scale, reach, ref keys, ref values } = near.params;
        let params = RelativeParams { heads, scale, reach, keys: keys.id(), values: values.id() };
        self.ops.push(Op::RelativeAttention { qkv: qkv.buffer.id(), params, out: out.buffer.id() });
        Ok(out)
    }

    /// Attention inside the piece.
    pub(crate) fn self_attention(&mut self, heads: HeadShape, qkv: &Signal) -> Result<Signal, KernelError> {
        let out = self.value(self.rows, heads.q_width())?;
        let scale = 1.0 / (heads.head_dim as f32).sqrt();
        let params = SelfAttentionParams { heads, scale, reach: None, padding: 0, bias: PositionBias::None };
        self.ops.push(Op::SelfAttention { qkv: qkv.buffer.id(), params, out: out.buffer.id() });
        Ok(out)
    }

    /// Runs the ops that were recorded so far, in a step of their own, and frees spare memory above the limit.
    pub(crate) fn run(&mut self) -> Result<(), KernelError> {
        let rows = self.rows as u32;
        let batch = Batch {
            sources: vec![RowSource::Embedding; self.rows],
            positions: (0..rows).collect(),
            sequences: vec![SequenceSpan { row_first: 0, rows, context: rows, table_first: 0 }],
            ..Batch::default()
        };
        let (ops, _vectors) = (std::mem::take(&mut self.ops), std::mem::take(&mut self.vectors));
        self.device.backend.begin(&batch)?;
        self.device.backend.run_all(&ops);
        self.device.backend.end()?;
        self.device.trim();
        Ok(())
    }

    /// Reads a value that was computed: `(places, channels)`.
    pub(crate) fn read(&self, value: &Signal) -> Result<Vec<f32>, KernelError> {
        let mut numbers = vec![0.0; self.rows * value.cols];
        self.device.backend.read_rows(&value.buffer, 0, &mut numbers)?;
        numbers.truncate(value.places * value.channels);
        Ok(numbers)
    }
}
