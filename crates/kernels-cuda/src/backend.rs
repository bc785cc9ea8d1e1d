//! The contract's ops as kernel launches: shapes are checked and parameters filled in; nothing is computed here.

mod attention;
mod cuts;
mod draw;
mod encoder;
mod experts;
mod low_rank;
mod pairs;
mod products;
mod ranks;
mod rows;
mod scratch;
mod states;
mod then;
mod wide;

use std::borrow::Borrow;
use std::collections::VecDeque;
use std::sync::Arc;

use hanzo_engine_ops::{
    Activation, Allocation, AttentionParams, Backend, Batch, BlockCopy, BufferRole, ConvolutionParams,
    DeviceMemory, DeviceOp, Draws, ExpertParts, Facts, HeadShape, KernelError, KvSpec, LatentHeads,
    LatentParams, LayerNormParams, LogitsHead, MatrixShape, MatrixSource, MoeParams, MoeWeights, NormColumns,
    Op, Operands, OutputDelta, OutputGateParams, QkvParams, RecurrenceParams, Rounding, RowIds, RowOp,
    RowSource, SampleSpecs, SampledToken, StepLimits, Ticket,
};

use crate::codebooks::{self, Codebooks};
use crate::device::{Device, Memory, address_of};
use crate::kv::{self, CudaKv};
use crate::params::*;
use crate::plan::{Grid, Kernel};
use crate::shapes::{SHARED_BYTES, SPAN, THREADS, WARP, WARPS};
use crate::staging::StagingBuffer;
use crate::step::{Bucket, Ops, Steps, batch_bytes, spans_of, staging_bytes};
use crate::weights::{self, CudaExperts, CudaLowRank, CudaMatrix};
use draw::{DrawBuffers, Drawn, Flight};
use products::{BATCH_ROWS, MemoryRows, Product, activation_code};
use ranks::PeerGroup;
use rows::CudaNorm;
use scratch::Scratch;
use then::LastProduct;

/// Bytes of shared memory for a block's sums.
const SUM_BYTES: u32 = WARPS * 4;

/// Backend that runs decoders' and encoders' steps on a CUDA device.
pub struct CudaBackend<D: Device> {
    device: D,
    facts: Facts,
    steps: Steps<D>,
    codebooks: Codebooks<D>,
    scratch: Option<Scratch<D>>,
    block_room: Option<StagingBuffer<D>>, // host memory for a cache block on its way to the host
    adapters: Vec<u32>,                   // adapters that the batch's rows use, ascending
    kinds: attention::Kinds,
    fuses: bool,
    last_product: LastProduct,
    wide_above: u32, // number of rows above which warpgroup kernels multiply
    buckets: Option<(Vec<u32>, Arc<Memory<D>>)>, // the last table of buckets given to attention
    failure: Option<KernelError>, // of an op; reported at the step's end
    draws: Draws,
    buffers: DrawBuffers,
    drawn: Drawn,              // by the open step, or else by the last
    flights: VecDeque<Flight>, // steps not waited for yet
    submitted: u64,            // steps
    peer_group: Option<PeerGroup<D>>,
}

/// A vector of f32.
#[derive(Debug)]
pub struct CudaVector<D: Device> {
    memory: Arc<Memory<D>>,
    length: usize,
}

/// Activations, `(rows, cols)` f32 in either role.
#[derive(Debug)]
pub struct CudaBuffer<D: Device> {
    memory: Arc<Memory<D>>,
    role: BufferRole,
    rows: usize,
    cols: usize,
}

impl<D: Device> CudaBackend<D> {
    /// A backend without limits and without an open step.
    pub fn new(device: D) -> Self {
        let wide = device.wide().is_some_and(|known| *known.get_or_init(|| wide::agrees(&device)));
        Self::with(device, if wide { BATCH_ROWS } else { u32::MAX })
    }

    /// A backend that uses warpgroup products for more rows than these.
    fn with(device: D, wide_above: u32) -> Self {
        let rounding = Rounding { operands: Operands::F32, bytes_before_quantised: false };
        let facts = Facts::new(device.name(), rounding, weights::supports);
        Self {
            facts: Facts { knows_memories: false, lookahead: 1, ..facts },
            steps: Steps::new(device.clone()),
            device,
            codebooks: Codebooks::default(),
            scratch: None,
            block_room: None,
            adapters: Vec::new(),
            kinds: attention::Kinds::default(),
            fuses: true,
            last_product: LastProduct::default(),
            wide_above,
            buckets: None,
            failure: None,
            draws: Draws::default(),
            buffers: DrawBuffers::default(),
            drawn: Drawn::Nothing,
            flights: VecDeque::new(),
            submitted: 0,
            peer_group: None,
        }
    }

    /// Disables running ahead: each step is waited for before the next is prepared.
    pub fn without_lookahead(mut self) -> Self {
        self.facts.lookahead = 0;
        self
    }

    /// Disables CUDA graphs: every kernel is launched separately.
    pub fn without_recording(mut self) -> Self {
        self.steps.record_no_more();
        self
    }

    /// Number of plans that were replayed as a CUDA graph.
    pub fn replays(&self) -> u64 {
        self.steps.replays()
    }

    fn scratch(&self) -> &Scratch<D> {
        self.scratch.as_ref().expect("reserve comes before any step")
    }

    /// Table of buckets on the device. A network passes the same table each time. `None` if the upload failed, which
    /// the step's end reports.
    fn bucket_table(&mut self, buckets: &[u32]) -> Option<Arc<Memory<D>>> {
        if let Some((_, memory)) = self.buckets.as_ref().filter(|(known, _)| known == buckets) {
            return Some(memory.clone());
        }
        let table = Memory::zeroed(&self.device, size_of_val(buckets), "a table of buckets");
        let written = table.and_then(|table| table.write(0, bytemuck::cast_slice(buckets)).map(|()| table));
        match written {
            Ok(table) => Some(self.buckets.insert((buckets.to_vec(), table)).1.clone()),
            Err(error) => {
                self.failure.get_or_insert(error);
                None
            }
        }
    }

    /// Asserts that a buffer has the batch's rows and this width.
    fn check(&self, buffer: &CudaBuffer<D>, cols: usize, name: &str) {
        let rows = self.steps.rows();
        assert!(buffer.rows >= rows, "{name} has {} rows, the batch {rows}", buffer.rows);
        assert_eq!(buffer.cols, cols, "{name} has {} columns, the op needs {cols}", buffer.cols);
    }

    fn ops(&mut self) -> Ops<'_, D> {
        self.steps.ops()
    }
}

impl<D: Device> CudaBuffer<D> {
    /// Memory, rows and columns of the buffer.
    pub(crate) fn extent(&self) -> (&Arc<Memory<D>>, usize, usize) {
        (&self.memory, self.rows, self.cols)
    }

    fn check_sum(&self) {
        assert_eq!(self.role, BufferRole::Residual, "a sum in a buffer of operands");
    }
}

impl<D: Device> DeviceMemory for CudaBackend<D> {
    type Matrix = CudaMatrix<D>;
    type Vector = CudaVector<D>;
    type Experts = CudaExperts<D>;
    type LowRank = CudaLowRank<D>;
    type Buffer = CudaBuffer<D>;
    type Kv = CudaKv<D>;

    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn bytes(&self, of: &Allocation<'_>) -> usize {
        match *of {
            Allocation::Matrix(parts) => weights::matrix_bytes(parts),
            Allocation::Kernel(shape, _) => weights::matrix_bytes(&[*shape]),
            Allocation::Experts(experts) => CudaExperts::<D>::bytes(experts),
            Allocation::LowRank { pairs, changes } => CudaLowRank::<D>::bytes(pairs, changes),
            Allocation::Vector(length) => 4 * length,
            Allocation::Buffer { rows, cols, .. } => 4 * rows * cols,
            Allocation::Kv(spec) => kv::kv_bytes(spec),
            Allocation::Scratch(limits) => {
                let staged = staging_bytes(limits, DrawBuffers::staged_bytes(limits));
                batch_bytes(limits) + Scratch::<D>::bytes(limits) + staged + codebooks::BYTES
            }
        }
    }

    fn pack(&self, parts: &[MatrixSource<'_>]) -> Result<Self::Matrix, KernelError> {
        CudaMatrix::new(&self.device, &self.codebooks, parts)
    }

    fn experts(&self, shapes: &[ExpertParts<MatrixShape>]) -> Result<Self::Experts, KernelError> {
        CudaExperts::new(&self.device, shapes)
    }

    fn pack_expert(
        &self,
        experts: &mut Self::Experts,
        parts: &ExpertParts<MatrixSource<'_>>,
    ) -> Result<(), KernelError> {
        experts.pack(&self.device, &self.codebooks, parts)
    }

    fn low_rank(&self, delta: &OutputDelta<'_>) -> Result<Self::LowRank, KernelError> {
        CudaLowRank::new(&self.device, &self.codebooks, delta)
    }

    fn vector(&self, values: &[f32]) -> Result<Self::Vector, KernelError> {
        let memory = Memory::unknown(&self.device, size_of_val(values), "a vector")?;
        memory.write(0, bytemuck::cast_slice(values))?;
        Ok(CudaVector { memory, length: values.len() })
    }

    fn buffer(&self, role: BufferRole, rows: usize, cols: usize) -> Result<Self::Buffer, KernelError> {
        let memory = Memory::zeroed(&self.device, 4 * rows * cols, "activations")?;
        Ok(CudaBuffer { memory, role, rows, cols })
    }

    fn kv(&self, spec: &KvSpec) -> Result<Self::Kv, KernelError> {
        CudaKv::new(&self.device, spec)
    }

    fn kv_block_form(&self, kv: &Self::Kv) -> Option<(usize, String)> {
        Some((kv.block_bytes(), CudaKv::<D>::BLOCK_FORM.to_owned()))
    }

    fn copy_kv_block(
        &mut self,
        kv: &mut Self::Kv,
        block: u32,
        copy: BlockCopy<'_>,
    ) -> Result<(), KernelError> {
        let out = match copy {
            BlockCopy::Out(out) => out,
            BlockCopy::In(bytes) => return kv.write_block(block as usize, bytes),
        };
        let room = match &mut self.block_room {
            Some(room) => room,
            none => none.insert(StagingBuffer::new(&self.device, kv.block_staging())?),
        };
        kv.read_block(block as usize, room, out)
    }

    fn read_rows(&self, x: &Self::Buffer, row_first: usize, out: &mut [f32]) -> Result<(), KernelError> {
        self.steps.start()?;
        x.memory.read(4 * row_first * x.cols, bytemuck::cast_slice_mut(out))
    }

    fn write_rows(
        &mut self,
        x: &mut Self::Buffer,
        row_first: usize,
        rows: &[f32],
    ) -> Result<(), KernelError> {
        self.steps.start()?;
        x.memory.write(4 * row_first * x.cols, bytemuck::cast_slice(rows))
    }
}

impl<D: Device> Backend for CudaBackend<D> {
    fn reserve(&mut self, limits: &StepLimits) -> Result<(), KernelError> {
        self.steps.reserve(limits, DrawBuffers::staged_bytes(limits))?;
        self.scratch = Some(Scratch::new(&self.device, limits)?);
        Ok(())
    }

    fn begin(&mut self, batch: &Batch) -> Result<(), KernelError> {
        self.begin_step(batch)?;
        self.last_product.in_few_pieces = false; // so that equal batches have equal plans
        self.adapters.clear();
        self.adapters.extend(batch.adapters.iter().flatten());
        self.adapters.sort_unstable();
        self.adapters.dedup();
        Ok(())
    }

    fn run(&mut self, op: DeviceOp<'_, Self>) {
        match op {
            Op::Embed { table, scale, out } => self.gather(table, 0, 0, Some(scale), out),
            Op::AddEmbedding { table, ids, out } => self.add_embedding(table, ids, out),
            Op::RmsNorm { x, weight, eps, out } => {
                self.norm_rows(x, None, CudaNorm { weight, bias: None, eps, centered: false }, out)
            }
            Op::AddRmsNorm { residual, x, weight, eps, out } => {
                let norm = CudaNorm { weight, bias: None, eps, centered: false };
                self.norm_rows(x, Some(residual), norm, out);
            }
            Op::MatMul { weight, bias, x, out } => self.matmul(weight, bias, x, out),
            Op::MatMulActivated { weight, bias, activation, x, out } => {
                self.matmul_activated(weight, bias, activation, x, out);
            }
            Op::AddBias { bias, out } => self.add_to_rows(bias, out),
            Op::Row { op, out } => self.change_rows(&op, out),
            Op::LayerNorm { x, params, out } => self.layer_norm(x, &params, out),
            Op::AddLayerNorm { residual, x, params, out } => self.add_layer_norm(residual, x, &params, out),
            Op::LayerNormColumns { x, columns, params } => self.norm_columns(x, columns, &params),
            Op::HeadsMatMul { weights, x, out } => self.multiply_heads(weights, x, out),
            Op::GateOutput { gate, params, out } => self.gate_rows(gate, &params, out),
            Op::GatedMlp { gate_up, down, activation, x, hidden, out } => {
                self.gated(gate_up, activation, x, hidden);
                self.matmul(down, None, hidden, out);
            }
            Op::Gated { gate_up, activation, x, hidden } => self.gated(gate_up, activation, x, hidden),
            Op::AddLowRank { deltas, x, low, out } => self.adapt(&deltas, x, low.as_deref(), out),
            Op::Gate { activation, both, hidden } => self.gate(activation, both, hidden),
            Op::AddShared { gate, x, shared, out } => self.add_beside_experts(gate, x, shared, out),
            Op::Moe { weights, params, x, hidden, out } => {
                self.mix_experts(&weights, &params, x, hidden, out)
            }
            Op::AllReduce { .. } => {}
            op => self.run_over_sequences(op),
        }
    }

    fn logits(
        &mut self,
        head: LogitsHead<'_, Self>,
        x: &Self::Buffer,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        self.multiply_head(head, x);
        let logits = self.scratch().logits.clone();
        self.steps.start()?;
        logits.read(0, bytemuck::cast_slice_mut(out))
    }

    fn sample(
        &mut self,
        head: LogitsHead<'_, Self>,
        x: &Self::Buffer,
        specs: &SampleSpecs,
        room: &mut [f32],
    ) -> Result<(), KernelError> {
        self.draw_rows(head, x, specs, room)
    }

    fn draws(&mut self) -> &mut Draws {
        if let Err(error) = self.know_draws() {
            self.failure.get_or_insert(error);
        }
        &mut self.draws
    }

    fn submit(&mut self) -> Result<Ticket, KernelError> {
        self.submit_step()
    }

    fn wait(&mut self, ticket: Ticket, drawn: &mut Vec<Option<SampledToken>>) -> Result<(), KernelError> {
        self.wait_for(ticket, drawn)
    }

    fn end(&mut self) -> Result<(), KernelError> {
        let ended = self.steps.end();
        self.failure.take().map_or(ended, Err)
    }
}

impl<D: Device> CudaBackend<D> {
    fn add_embedding(&mut self, table: &CudaMatrix<D>, ids: RowIds, out: &mut CudaBuffer<D>) {
        let (ids, offset) = match ids {
            RowIds::Positions { offset } => (1, offset),
            RowIds::Types => (2, 0),
        };
        self.gather(table, ids, offset, None, out);
    }

    fn matmul(
        &mut self,
        weight: &CudaMatrix<D>,
        bias: Option<&CudaVector<D>>,
        x: &CudaBuffer<D>,
        out: &mut CudaBuffer<D>,
    ) {
        self.check(x, weight.cols(), "x");
        self.check(out, weight.rows(), "out");
        self.product(weight, &Product { bias, ..Product::of(x, out) });
    }

    fn matmul_activated(
        &mut self,
        weight: &CudaMatrix<D>,
        bias: Option<&CudaVector<D>>,
        activation: Activation,
        x: &CudaBuffer<D>,
        out: &mut CudaBuffer<D>,
    ) {
        self.check(x, weight.cols(), "x");
        self.check(out, weight.rows(), "out");
        self.product(weight, &Product { bias, activation: Some(activation), ..Product::of(x, out) });
    }

    fn layer_norm(
        &mut self,
        x: &CudaBuffer<D>,
        params: &LayerNormParams<&CudaVector<D>>,
        out: &mut CudaBuffer<D>,
    ) {
        self.check(x, params.weight.length, "x");
        let &LayerNormParams { weight, bias, eps } = params;
        self.norm_rows(x, None, CudaNorm { weight, bias, eps, centered: true }, out);
    }

    fn add_layer_norm(
        &mut self,
        residual: &mut CudaBuffer<D>,
        x: &CudaBuffer<D>,
        params: &LayerNormParams<&CudaVector<D>>,
        out: &mut CudaBuffer<D>,
    ) {
        self.check(x, params.weight.length, "x");
        let &LayerNormParams { weight, bias, eps } = params;
        self.norm_rows(x, Some(residual), CudaNorm { weight, bias, eps, centered: true }, out);
    }

    fn rope_to_cache(
        &mut self,
        qkv: &mut CudaBuffer<D>,
        params: &QkvParams<&CudaVector<D>>,
        kv: &mut CudaKv<D>,
        layer: usize,
    ) {
        kv.check_heads(&params.shape, layer);
        self.turn_heads(qkv, params, Some((kv, layer)));
    }

    fn gated(
        &mut self,
        gate_up: &CudaMatrix<D>,
        activation: Activation,
        x: &CudaBuffer<D>,
        hidden: &mut CudaBuffer<D>,
    ) {
        let width = gate_up.rows() / 2;
        assert!(gate_up.rows() <= self.steps.limits().width, "a matrix wider than the step's limits");
        self.check(x, gate_up.cols(), "x");
        self.check(hidden, width, "hidden");
        let both = self.scratch().both.clone();
        let out = MemoryRows { memory: &both, first: 0, cols: 2 * width };
        self.product(gate_up, &Product { out, ..Product::of(x, hidden) });
        self.gate_halves(activation, &both, hidden);
    }

    fn gate(&mut self, activation: Activation, both: &CudaBuffer<D>, hidden: &mut CudaBuffer<D>) {
        self.check(both, 2 * hidden.cols, "both");
        both.check_sum();
        self.gate_halves(activation, &both.memory, hidden);
    }

    /// Runs an op over sequences, with or without a cache.
    fn run_over_sequences(&mut self, op: DeviceOp<'_, Self>) {
        match op {
            Op::RopeToCache { qkv, params, kv, layer } => self.rope_to_cache(qkv, &params, kv, layer),
            Op::Attention { qkv, params, kv, layer, out } => self.attend(qkv, &params, kv, layer, out),
            Op::LatentToCache { latent, queries, params, kv, layer } => {
                self.turn_latent(latent, queries, &params, kv, layer);
            }
            Op::LatentAttention { queries, heads, scale, kv, layer, out } => {
                self.attend_latent(queries, heads, scale, kv, layer, out);
            }
            Op::Convolve { x, params, kv, layer } => self.convolve_channels(x, &params, kv, layer),
            Op::Recur { x, params, kv, layer, out } => self.recur_heads(x, &params, kv, layer, out),
            Op::Unfold { x, window, out } => self.unfold(x, window, out),
            Op::Rope { qkv, params } => self.rope(qkv, &params),
            Op::SelfAttention { qkv, params, out } => self.self_attention(qkv, &params, out),
            Op::AttendPart { .. } => panic!("{} attends to whole sequences alone", self.device.name()),
            _ => panic!("{} does not compute this op", self.device.name()),
        }
    }
}
