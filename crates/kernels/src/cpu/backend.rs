//! The CPU implementation of the contract's ops.

mod convolution;
mod embeddings;
mod encoder;
mod experts;
mod latent;
mod peers;
mod rotation;
mod rows;
mod states;

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::activations::Input;
use super::adapted_rows::AdapterTiles;
use super::aligned::AlignedArray;
use super::attention::{self, AttentionJob, AttentionLimits};
use super::convolution::CpuKernel;
use super::cores::Cores;
use super::gate;
use super::kv::CpuKv;
use super::low_rank::CpuLowRank;
use super::matmul::{Groups, Product};
use super::matrix::{CpuMatrix, PanelKind, packed_bytes};
use super::moe::{CpuExperts, MoeScratch};
use super::norm;
use super::pool::{PoolTurn, ThreadPool};
use super::rows::Rows;
use super::scratch::Scratch;
use super::tier::Tier;
use convolution::ConvJob;
use hanzo_engine_ops::{
    Activation, Allocation, AttentionParams, Backend, Batch, BlockCopy, BufferRole, DeviceMemory, DeviceOp,
    Draws, ExpertParts, Facts, KernelError, KernelUse, KvSpec, LayerNormParams, LogitsHead, MatrixShape,
    MatrixSource, NormColumns, Op, Operands, OutputDelta, Rounding, SampleSpecs, StepLimits,
};
use rotation::qkv_job;

/// Backend that runs steps on CPU cores. Between `begin` and `end` it holds a turn of its pool, so models that share a
/// pool alternate by whole steps.
#[derive(Debug)]
pub struct CpuBackend {
    pool: Arc<ThreadPool>,
    tier: Tier,
    scratch: Option<Scratch>,
    turn: RefCell<Option<PoolTurn>>, // held while a step is open
    batch: Batch,
    tokens: Vec<Option<u32>>, // (rows); none if the host writes the row
    adapted: AdapterTiles,    // rows with an adapter
    draws: Draws,
    facts: Facts,
    written: Vec<u32>,                // scratch of `Batch::check`
    kernel_scratch: [AtomicUsize; 4], // what the packed kernels of convolutions need
}

/// A vector of f32.
#[derive(Debug)]
pub struct CpuVector {
    values: AlignedArray<f32>,
    id: u64, // unique for the life of the process
}

/// Activations, `(rows, cols)` f32.
#[derive(Debug)]
pub struct CpuBuffer {
    rows: usize,
    cols: usize,
    data: AlignedArray<f32>,
}

/// State of an open step, for its ops.
struct OpenStep<'a> {
    cores: Cores<'a>,
    batch: &'a Batch,
    tokens: &'a [Option<u32>],
    adapted: &'a AdapterTiles,
    draws: &'a mut Draws,
    scratch: &'a mut Scratch,
}

impl CpuBackend {
    /// Creates a backend on a pool's threads.
    ///
    /// # Panics
    /// If this processor does not have the tier ([`Tier::is_available`]).
    pub fn new(pool: Arc<ThreadPool>, tier: Tier) -> CpuBackend {
        assert!(tier.is_available(), "this processor has no {tier}");
        let threads = pool.threads();
        let device = format!("cpu: {tier}, {threads} thread{}", if threads == 1 { "" } else { "s" });
        let rounding = Rounding { operands: Operands::F32, bytes_before_quantised: true };
        let facts = Facts::new(device, rounding, |dtype| PanelKind::of(dtype).is_some());
        CpuBackend {
            pool,
            tier,
            scratch: None,
            turn: RefCell::new(None),
            batch: Batch::default(),
            tokens: Vec::new(),
            adapted: AdapterTiles::default(),
            draws: Draws::default(),
            facts: Facts { attends_in_parts: true, ..facts },
            written: Vec::new(),
            kernel_scratch: Default::default(),
        }
    }

    /// Lets the host prepare one more step before it receives the draws of the current one, as with an asynchronous
    /// device. This gains nothing, because the host's thread computes; it is for tests of hosts.
    pub fn with_lookahead(mut self) -> CpuBackend {
        self.facts.lookahead = 1;
        self
    }

    /// State of the open step.
    ///
    /// # Panics
    /// If there is none: an op outside `begin` and `end`, or without a previous `reserve`.
    fn step(&mut self) -> OpenStep<'_> {
        let (Some(turn), Some(scratch)) = (self.turn.get_mut(), &mut self.scratch) else {
            panic!("an op outside a step: reserve once, then begin each step");
        };
        OpenStep {
            cores: Cores { tier: self.tier, turn },
            batch: &self.batch,
            tokens: &self.tokens,
            adapted: &self.adapted,
            draws: &mut self.draws,
            scratch,
        }
    }

    fn attention_limits(&self, limits: &StepLimits) -> AttentionLimits {
        AttentionLimits {
            heads: limits.heads,
            context: limits.context,
            spans: limits.sequences.max(limits.rows),
            threads: self.pool.threads(),
        }
    }
}

impl OpenStep<'_> {
    /// A matrix product over the batch's rows of `x`.
    fn product(&mut self) -> Product<'_> {
        self.experts().0
    }

    /// Resources for products, and the scratch for experts.
    fn experts(&mut self) -> (Product<'_>, &mut MoeScratch) {
        let Scratch { activations, plan, panels, moe, .. } = &mut *self.scratch;
        (Product { tier: self.cores.tier, turn: self.cores.turn, activations, plan, scratch: panels }, moe)
    }

    fn matmul(
        &mut self,
        weight: &CpuMatrix,
        bias: Option<&CpuVector>,
        activation: Option<Activation>,
        x: &CpuBuffer,
        out: &mut CpuBuffer,
    ) {
        let rows = self.batch.rows();
        x.check(rows, weight.cols(), "x");
        out.check(rows, weight.rows(), "out");
        let input = Input { x: x.data.as_ptr(), rows, step: None, places: None };
        let bias = bias.map(|bias| &bias.values[..]);
        // SAFETY: `x` holds the batch's rows of the matrix's inputs, checked above.
        unsafe { self.product().store(weight, bias, activation, input, &mut out.data) };
    }
}

impl CpuVector {
    /// The numbers.
    pub(super) fn numbers(&self) -> &[f32] {
        &self.values
    }
}

impl CpuBuffer {
    /// The buffer's rows, to read.
    fn rows(&self) -> Rows<&[f32]> {
        Rows { numbers: &self.data, stride: self.cols }
    }

    /// The buffer's rows, to write.
    fn rows_mut(&mut self) -> Rows<&mut [f32]> {
        Rows { numbers: &mut self.data, stride: self.cols }
    }

    /// Asserts that the buffer holds the batch's rows and is `cols` wide.
    fn check(&self, rows: usize, cols: usize, name: &str) {
        assert!(self.rows >= rows, "{name} has {} rows, the batch {rows}", self.rows);
        assert_eq!(self.cols, cols, "{name} has {} columns, the op needs {cols}", self.cols);
    }
}

impl DeviceMemory for CpuBackend {
    type Matrix = CpuMatrix;
    type Vector = CpuVector;
    type Experts = CpuExperts;
    type LowRank = CpuLowRank;
    type Buffer = CpuBuffer;
    type Kv = CpuKv;

    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn bytes(&self, of: &Allocation<'_>) -> usize {
        match *of {
            Allocation::Matrix(parts) => matrix_bytes(parts),
            Allocation::Kernel(shape, of) => CpuKernel::bytes(shape, of),
            Allocation::Experts(experts) => {
                let matrices = experts.iter().flat_map(|expert| [&expert.gate_up, &expert.down]);
                matrices.map(|parts| matrix_bytes(parts)).fold(0, usize::saturating_add)
            }
            Allocation::LowRank { pairs, changes } => CpuLowRank::bytes(pairs, changes),
            Allocation::Vector(length) => length.saturating_mul(size_of::<f32>()),
            Allocation::Buffer { rows, cols, .. } => {
                rows.saturating_mul(cols).saturating_mul(size_of::<f32>())
            }
            Allocation::Kv(spec) => CpuKv::bytes(spec),
            Allocation::Scratch(limits) => Scratch::bytes(self.tier, limits, &self.attention_limits(limits)),
        }
    }

    /// Packs on the pool, in a separate turn between the steps of other models.
    fn pack(&self, parts: &[MatrixSource<'_>]) -> Result<CpuMatrix, KernelError> {
        assert!(self.turn.borrow().is_none(), "pack inside a step");
        CpuMatrix::pack(parts, &mut self.pool.turn(), &self.facts.device)
    }

    fn pack_kernel(&self, source: &MatrixSource<'_>, of: &KernelUse) -> Result<CpuMatrix, KernelError> {
        self.pack_grid_kernel(source, of)
    }

    fn experts(&self, shapes: &[ExpertParts<MatrixShape>]) -> Result<CpuExperts, KernelError> {
        Ok(CpuExperts::with_room_for(shapes.len()))
    }

    fn pack_expert(
        &self,
        experts: &mut CpuExperts,
        parts: &ExpertParts<MatrixSource<'_>>,
    ) -> Result<(), KernelError> {
        experts.push(self.pack(&parts.gate_up)?, self.pack(&parts.down)?);
        Ok(())
    }

    fn low_rank(&self, delta: &OutputDelta<'_>) -> Result<CpuLowRank, KernelError> {
        CpuLowRank::new(delta, &self.facts.device)
    }

    fn vector(&self, values: &[f32]) -> Result<CpuVector, KernelError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut copy = AlignedArray::zeroed(values.len(), "a vector")?;
        copy.copy_from_slice(values);
        Ok(CpuVector { values: copy, id: NEXT.fetch_add(1, Ordering::Relaxed) })
    }

    fn buffer(&self, _role: BufferRole, rows: usize, cols: usize) -> Result<CpuBuffer, KernelError> {
        Ok(CpuBuffer { rows, cols, data: AlignedArray::zeroed(rows.saturating_mul(cols), "activations")? })
    }

    fn kv(&self, spec: &KvSpec) -> Result<CpuKv, KernelError> {
        CpuKv::new(spec)
    }

    fn kv_block_form(&self, kv: &CpuKv) -> Option<(usize, String)> {
        Some((kv.block_bytes(), CpuKv::BLOCK_FORM.to_owned()))
    }

    fn copy_kv_block(&mut self, kv: &mut CpuKv, block: u32, copy: BlockCopy<'_>) -> Result<(), KernelError> {
        kv.copy_block(block as usize, copy);
        Ok(())
    }

    fn read_rows(&self, x: &CpuBuffer, row_first: usize, out: &mut [f32]) -> Result<(), KernelError> {
        out.copy_from_slice(&x.data[row_first * x.cols..][..out.len()]);
        Ok(())
    }

    fn write_rows(&mut self, x: &mut CpuBuffer, row_first: usize, rows: &[f32]) -> Result<(), KernelError> {
        x.data[row_first * x.cols..][..rows.len()].copy_from_slice(rows);
        Ok(())
    }
}

impl Backend for CpuBackend {
    fn reserve(&mut self, limits: &StepLimits) -> Result<(), KernelError> {
        assert!(self.scratch.is_none(), "reserve is called once");
        self.scratch = Some(Scratch::new(self.tier, limits, &self.attention_limits(limits))?);
        let slots = limits.rows.saturating_mul(limits.kv_groups);
        self.batch.reserve(limits);
        self.tokens.reserve(limits.rows);
        self.adapted.reserve(limits.rows, limits.logit_rows);
        self.draws.reserve(limits.logit_rows);
        self.written.reserve(slots);
        Ok(())
    }

    fn begin(&mut self, batch: &Batch) -> Result<(), KernelError> {
        assert!(self.turn.get_mut().is_none(), "begin inside a step");
        self.reserve_kernels()?;
        let Some(scratch) = &mut self.scratch else { panic!("begin before reserve") };
        // Ops rely on this when they write rows and slots from several threads.
        batch.check(&scratch.limits, &mut self.written);
        scratch.rope.clear();
        self.batch.copy_of(batch);
        self.tokens.clear();
        self.tokens.extend(batch.tokens(&self.draws));
        self.draws.begin();
        self.adapted.set(batch);
        *self.turn.get_mut() = Some(self.pool.turn());
        Ok(())
    }

    fn run(&mut self, op: DeviceOp<'_, Self>) {
        match op {
            Op::Embed { table, scale, out } => self.step().embed(table, scale, out),
            Op::AddEmbedding { table, ids, out } => self.step().add_embedding(table, ids, out),
            Op::RmsNorm { x, weight, eps, out } => self.step().rms_norm(x, weight, eps, out),
            Op::AddRmsNorm { residual, x, weight, eps, out } => {
                self.step().add_rms_norm(residual, x, weight, eps, out);
            }
            Op::MatMul { weight, bias, x, out } => self.step().matmul(weight, bias, None, x, out),
            Op::MatMulActivated { weight, bias, activation, x, out } => {
                self.step().matmul(weight, bias, Some(activation), x, out);
            }
            Op::AddBias { bias, out } => self.step().add_bias(bias, out),
            Op::Row { op, out } => self.step().row_op(&op, out),
            Op::LayerNorm { x, params, out } => self.layer_norm(x, &params, out),
            Op::AddLayerNorm { residual, x, params, out } => self.add_layer_norm(residual, x, &params, out),
            Op::LayerNormColumns { x, columns, params } => self.layer_norm_columns(x, columns, &params),
            Op::HeadsMatMul { weights, x, out } => self.step().heads_matmul(weights, x, out),
            Op::GateOutput { gate, params, out } => self.step().gate_output(gate, &params, out),
            Op::GatedMlp { gate_up, down, activation, x, hidden, out } => {
                self.gated(gate_up, activation, x, hidden);
                self.step().matmul(down, None, None, hidden, out);
            }
            Op::Gated { gate_up, activation, x, hidden } => self.gated(gate_up, activation, x, hidden),
            Op::AddLowRank { deltas, x, low, out } => self.step().add_low_rank(&deltas, x, low, out),
            Op::Gate { activation, both, hidden } => self.gate(activation, both, hidden),
            Op::AddShared { gate, x, shared, out } => self.step().add_shared(gate, x, shared, out),
            Op::Moe { weights, params, x, hidden, out } => self.step().moe(&weights, &params, x, hidden, out),
            Op::Activate { activation, out } => self.step().activate(&activation, out),
            Op::AllReduce { .. } => {}
            op => self.run_over_sequences(op),
        }
    }

    fn read_experts(
        &self,
        hidden: &CpuBuffer,
        chosen: &mut [u32],
        inner: &mut [f32],
    ) -> Result<(), KernelError> {
        experts::read(self, hidden, chosen, inner);
        Ok(())
    }

    fn logits(
        &mut self,
        head: LogitsHead<'_, Self>,
        x: &CpuBuffer,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        self.step().logits(head, x, out);
        Ok(())
    }

    /// Runs in the open step's turn, or else in a turn between the steps of other models.
    fn on_host(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        let run = |turn: &mut PoolTurn| turn.run(tasks, 1, &|_, range| range.for_each(task));
        match &mut *self.turn.borrow_mut() {
            Some(turn) => run(turn),
            None => run(&mut self.pool.turn()),
        }
    }

    /// Draws rows in parallel, each on one thread.
    fn sample(
        &mut self,
        head: LogitsHead<'_, Self>,
        x: &CpuBuffer,
        specs: &SampleSpecs,
        room: &mut [f32],
    ) -> Result<(), KernelError> {
        let vocab = head.matrix.rows();
        self.logits(head, x, room)?;
        self.step().draw(vocab, specs, room);
        Ok(())
    }

    fn draws(&mut self) -> &mut Draws {
        &mut self.draws
    }

    fn end(&mut self) -> Result<(), KernelError> {
        *self.turn.get_mut() = None;
        Ok(())
    }
}

impl CpuBackend {
    fn layer_norm(&mut self, x: &CpuBuffer, params: &LayerNormParams<&CpuVector>, out: &mut CpuBuffer) {
        let mut step = self.step();
        let (rows, cols) = (step.batch.rows(), params.weight.values.len());
        x.check(rows, cols, "x");
        out.check(rows, cols, "out");
        norm::layer_norm(step.cores.lend(), rows, &x.data, None, params.into(), &mut out.data);
    }

    fn add_layer_norm(
        &mut self,
        residual: &mut CpuBuffer,
        x: &CpuBuffer,
        params: &LayerNormParams<&CpuVector>,
        out: &mut CpuBuffer,
    ) {
        let mut step = self.step();
        let (rows, cols) = (step.batch.rows(), params.weight.values.len());
        residual.check(rows, cols, "residual");
        x.check(rows, cols, "x");
        out.check(rows, cols, "out");
        let residual = Some(&mut residual.data[..]);
        norm::layer_norm(step.cores.lend(), rows, &x.data, residual, params.into(), &mut out.data);
    }

    fn layer_norm_columns(
        &mut self,
        x: &mut CpuBuffer,
        columns: NormColumns,
        params: &LayerNormParams<&CpuVector>,
    ) {
        let mut step = self.step();
        let (rows, cols) = (step.batch.rows(), x.cols);
        x.check(rows, cols, "x");
        norm::layer_norm_columns(step.cores.lend(), rows, x.rows_mut(), columns, params.into());
    }

    fn attention(
        &mut self,
        qkv: &CpuBuffer,
        params: &AttentionParams<&CpuVector>,
        kv: &CpuKv,
        layer: usize,
        out: &mut CpuBuffer,
    ) {
        let mut step = self.step();
        qkv.check(step.batch.rows(), params.width(), "qkv");
        out.check(step.batch.rows(), params.shape.q_width(), "out");
        let job = AttentionJob {
            kv: kv.layer(layer, &params.shape),
            shape: params.shape,
            q_stride: params.width(),
            value_dim: params.shape.head_dim,
            latent: false,
            scale: params.scale,
            softcap: params.softcap,
            window: params.window,
            chunked: params.chunked,
            memory: params.memory,
            sinks: params.sinks.map(|sinks| &sinks.values[..]),
            slopes: params.slopes.map(|slopes| &slopes.values[..]),
        };
        let scratch = &mut step.scratch.attention;
        attention::attention(step.cores.lend(), scratch, step.batch, &job, &qkv.data, &mut out.data);
    }

    fn gated(&mut self, gate_up: &CpuMatrix, activation: Activation, x: &CpuBuffer, hidden: &mut CpuBuffer) {
        let mut step = self.step();
        let rows = step.batch.rows();
        x.check(rows, gate_up.cols(), "x");
        hidden.check(rows, gate_up.rows() / 2, "hidden");
        let input = Input { x: x.data.as_ptr(), rows, step: None, places: None };
        let groups = Groups { matrices: std::slice::from_ref(gate_up), firsts: &[0, rows as u32] };
        // SAFETY: `x` holds the batch's rows of the matrix's inputs, checked above.
        unsafe { step.product().gated(groups, activation, None, input, &mut hidden.data) };
    }

    fn gate(&mut self, activation: Activation, both: &CpuBuffer, hidden: &mut CpuBuffer) {
        let mut step = self.step();
        let (rows, width) = (step.batch.rows(), hidden.cols);
        both.check(rows, 2 * width, "both");
        gate::gate(step.cores.lend(), rows, activation, &both.data, hidden.rows_mut());
    }

    /// Runs an op over sequences, with or without a cache.
    fn run_over_sequences(&mut self, op: DeviceOp<'_, Self>) {
        match op {
            Op::RopeToCache { qkv, params, kv, layer } => self.step().rope_to_cache(qkv, &params, kv, layer),
            Op::Attention { qkv, params, kv, layer, out } => self.attention(qkv, &params, kv, layer, out),
            Op::LatentToCache { latent, queries, params, kv, layer } => {
                let kv = kv.latents_mut(layer, &params.shape);
                self.step().latent_to_cache(latent, queries, &params, kv);
            }
            Op::LatentAttention { queries, heads, scale, kv, layer, out } => {
                let kv = kv.latents(layer, &heads);
                self.step().latent_attention(queries, heads, scale, kv, out);
            }
            Op::Convolve { x, params, kv, layer } => {
                self.step().convolve(x, &params, kv.states_mut(layer, &params.shape));
            }
            Op::Recur { x, params, kv, layer, out } => {
                self.step().recur(x, &params, kv.states_mut(layer, &params.shape), out);
            }
            Op::Unfold { x, window, out } => self.unfold(x, window, out),
            Op::Rope { qkv, params } => self.rope(qkv, &params),
            Op::SelfAttention { qkv, params, out } => self.self_attention(qkv, &params, out),
            Op::AttendPart { qkv, rows, queries, params, out } => {
                self.attend_part(qkv, rows, queries, &params, out);
            }
            Op::InstanceAffine { x, places, params, out } => {
                self.step().instance_affine(x, places, &params, out);
            }
            Op::Mirror { x, channels, places, before, out } => {
                self.step().mirror(x, channels, places, before, out);
            }
            Op::Lstm { gates, recurrent, out } => self.step().lstm(gates, recurrent, out),
            Op::RelativeAttention { qkv, params, out } => self.step().relative_attention(qkv, &params, out),
            Op::Conv { x, affine, before, weight, bias, params, add, out } => {
                let transposed = false;
                let job = ConvJob { x, affine, before, weight, bias, params, transposed, add, out };
                self.step().convolve_grids(job);
            }
            Op::ConvTranspose { x, affine, before, weight, bias, params, out } => {
                let (transposed, add) = (true, None);
                let job = ConvJob { x, affine, before, weight, bias, params, transposed, add, out };
                self.step().convolve_grids(job);
            }
            _ => panic!("{} does not compute this op", self.facts.device),
        }
    }
}

fn matrix_bytes(parts: &[MatrixShape]) -> usize {
    parts.iter().map(packed_bytes).fold(0, usize::saturating_add)
}
