//! The contract of a device: [`DeviceMemory`] packs weights and makes buffers and caches, and [`Backend`] runs the ops of
//! steps ([`Op`](crate::Op)).
//!
//! A step is `begin`, a straight line of ops, then `submit` or `end`. Every op works on the rows of the batch given
//! to `begin`, in buffers made beforehand. No op allocates (except the lists of log probabilities that were asked
//! for), takes a lock or spawns a thread. Shapes that do not fit are programmer errors and panic.
//!
//! A device reports its own failures only where a [`Result`] is returned: where a step begins and ends, and where the
//! host waits anyway. Ops between them return none, so that a GPU step can be captured as a CUDA graph. A failed
//! [`Backend::begin`], [`Backend::submit`] or [`Backend::end`] leaves no step open. After any other failure the step
//! is still open, and the caller ends it. A failed [`Backend::wait`] has used up its ticket.
//!
//! A step that draws its tokens on the device ends with [`Backend::submit`]. The host may then prepare the next step,
//! whose rows may be tokens that only the device knows yet ([`crate::RowSource::Sampled`]).
//!
//! Results must not depend on the rest of the batch. A row's numbers are the same bit for bit alone or among other
//! rows, in any order, and however its prompt was cut into chunks.

mod attention;
mod encoder;
mod experts;
pub mod grid;
mod kv_groups;
mod kv_layout;
mod kv_type;
mod low_rank;
pub(crate) mod mapped;
mod peers;
mod rows;
mod stage;
mod states;
mod vocoder;

use crate::{
    Allocation, Batch, DType, DeviceOp, KernelError,
    sampling::{Draws, SampleSpecs, SampledToken, Ticket},
};

pub use attention::{
    AttentionParams, HeadShape, LatentHeads, LatentParams, QkvParams, QueryScale, Rope, RopeAxes, RopeKind,
};
pub use encoder::{LayerNormParams, NormColumns, PositionBias, QUERIES_PART, RowIds, SelfAttentionParams};
pub use experts::{ExpertGroups, ExpertParts, ExpertScoring, MoeOperands, MoeParams, MoeWeights, NO_EXPERT};
pub use grid::{ConvParams, KernelUse};
pub use kv_groups::{KvGroups, KvPlace};
pub use kv_layout::{KvLayout, KvSpec};
pub use kv_type::KvType;
pub use low_rank::{AdaptedLogits, LogitsHead, LowRankPair, LowRankShape, OutputChange, OutputDelta};
pub use peers::Peers;
pub use rows::{RowOp, XIELU_MOST, width_of};
pub use stage::Stage;
pub use states::{
    ConvolutionParams, GateKind, OutputGateParams, OutputNorm, RecurrenceParams, StateRule, StateShape,
};
pub use vocoder::{PointActivation, RelativeParams};

/// Shape of one part of a matrix: `rows` outputs, each the dot product of `cols` inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixShape {
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// How the weights are stored.
    pub dtype: DType,
}

/// Tensor of a model file, row-major, as stored.
#[derive(Clone, Copy, Debug)]
pub struct MatrixSource<'a> {
    /// Name for errors.
    pub name: &'a str,
    /// Its shape and type.
    pub shape: MatrixShape,
    /// `shape.rows` rows of whole blocks, little endian, any alignment.
    pub bytes: &'a [u8],
}

/// Non-linearity of an MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU by tanh.
    GeluTanh,
    /// GELU by erf, within 1e-6 of it.
    GeluErf,
    /// `x * sigmoid(1.702 x)` (CLIP).
    QuickGelu,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)²` (arxiv.org/abs/2109.08668).
    ReluSquared,
    /// `g * sigmoid(1.702 g)` of `g = min(x, 7)`. The other factor is clamped to -7..7 and increased by 1 (GPT-OSS).
    ClampedSwish,
}

/// Purpose of a buffer, which decides how exactly a device must keep its numbers. Ops read and write buffers of
/// either role. The target of `embed` and `add_…` is an exception: it is a sum and has the role `Residual`. With a
/// norm after a sublayer, that sublayer's output is a sum too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferRole {
    /// Sum that layers add to, where small addends meet large numbers. It is f32 on every device.
    Residual,
    /// Values that ops pass to each other, rounded as [`Facts::rounding`] says.
    Operand,
}

/// Precision in which a device keeps and multiplies operands. Sums are always f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operands {
    /// f32: rounding is negligible.
    F32,
    /// bfloat16 with 8 significant bits: numbers in buffers of [`BufferRole::Operand`] and both sides of products,
    /// with quantised weights rounded after scaling.
    Bf16,
}

/// Rounding of an op's inputs and outputs. The conformance suite derives its error bounds from this, so a device must
/// keep exactly as much precision as it claims here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounding {
    /// Operands.
    pub operands: Operands,
    /// Whether activations are also rounded to 8 bits before products with quantised weights: to 1/127 of the largest
    /// of 256 (or fewer) neighbours.
    pub bytes_before_quantised: bool,
}

/// Facts about a device. They never change.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Name of the device for people, such as `cpu: avx512vnni, 8 threads`.
    pub device: String,
    /// The device's rounding.
    pub rounding: Rounding,
    /// Types of matrices that can be packed.
    pub dtypes: Vec<DType>,
    /// Whether the device supports cross-attention ([`AttentionParams::memory`](crate::AttentionParams::memory)),
    /// rows that see later rows of an image, and padding rows.
    pub knows_memories: bool,
    /// Whether [`Op::AttendPart`](crate::Op::AttendPart) is supported, for callers that must interleave other work
    /// with a long sequence.
    pub attends_in_parts: bool,
    /// Steps that may be submitted before the first of them is waited for, besides that one: 0 or 1. 0 if steps are
    /// computed inside `submit`, so that nothing can overlap.
    pub lookahead: usize,
}

impl Facts {
    /// Facts of a device that computes steps inside `submit` and packs the types for which `supports` holds.
    pub fn new(device: impl Into<String>, rounding: Rounding, supports: impl Fn(DType) -> bool) -> Self {
        let dtypes = DType::ALL.iter().copied().filter(|&dtype| supports(dtype)).collect();
        let device = device.into();
        Self { device, rounding, dtypes, knows_memories: true, attends_in_parts: false, lookahead: 0 }
    }

    /// Whether matrices of this type can be packed.
    pub fn supports(&self, dtype: DType) -> bool {
        self.dtypes.contains(&dtype)
    }

    /// An error of the device.
    pub fn failure(&self, reason: &str) -> KernelError {
        KernelError::Device { device: self.device.clone(), reason: reason.to_owned() }
    }
}

/// Direction of a copy of a block of the KV cache, and the host's bytes.
#[derive(Debug)]
pub enum BlockCopy<'a> {
    /// From the cache to the host.
    Out(&'a mut [u8]),
    /// From the host to the cache.
    In(&'a [u8]),
}

impl<'a> BlockCopy<'a> {
    /// Bytes of the block.
    pub fn size(&self) -> usize {
        match self {
            Self::Out(bytes) => bytes.len(),
            Self::In(bytes) => bytes.len(),
        }
    }

    /// Takes the copy of the next `bytes` bytes off this copy.
    pub fn take(&mut self, bytes: usize) -> BlockCopy<'a> {
        match self {
            Self::Out(rest) => {
                let (part, behind) = std::mem::take(rest).split_at_mut(bytes);
                *rest = behind;
                Self::Out(part)
            }
            Self::In(rest) => {
                let (part, behind) = rest.split_at(bytes);
                *rest = behind;
                Self::In(part)
            }
        }
    }
}

/// Largest step that will be run, so that all scratch memory can be allocated at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimits {
    /// Rows of a batch.
    pub rows: usize,
    /// Sequences of a batch.
    pub sequences: usize,
    /// Rows whose logits may be asked for in one step.
    pub logit_rows: usize,
    /// Tokens of the longest context.
    pub context: usize,
    /// Widest input or output of any matrix but the head and the kernels of convolutions.
    pub width: usize,
    /// Rows of the head: the vocabulary.
    pub vocab: usize,
    /// Heads of the attention layers; where they differ, the most, the widest, and the fewest of keys and values.
    pub heads: HeadShape,
    /// Experts of the layer with the most of them; 0 if no layer has experts.
    pub experts: usize,
    /// Largest number of experts that a row is routed to; 0 if no layer has experts.
    pub experts_used: usize,
    /// Widest input or output of an expert's products, with gate and up counted together; 0 if no layer has experts.
    pub experts_width: usize,
    /// Layer groups of the KV cache; at least 1.
    pub kv_groups: usize,
    /// Elements that all heads together read and write in the widest [`Op::HeadsMatMul`](crate::Op::HeadsMatMul), without the ones that
    /// are only copied; 0 if there is none.
    pub heads_matmul_width: usize,
}

/// Memory of a device: the types of its operands, how they are made and sized, and copies to and from the host.
pub trait DeviceMemory: Send + 'static {
    /// Weights in the layout that the device's kernels read.
    type Matrix: Send + Sync + 'static;
    /// A vector of f32: norm weights, biases, frequencies.
    type Vector: Send + Sync + 'static;
    /// Experts of one layer, in the layout that the device's kernels read.
    type Experts: Send + Sync + 'static;
    /// Change by an adapter to one packed matrix, in the layout that the device's kernels read.
    type LowRank: Send + Sync + 'static;
    /// Activations: `(rows, cols)`, on the device; f32 to the host.
    type Buffer: Send + 'static;
    /// The paged KV cache of all layers.
    type Kv: Send + 'static;

    /// The device's facts. They never change.
    fn facts(&self) -> &Facts;

    /// Exact number of bytes of device memory that something would take. 0 for layers of a cache that the device cannot
    /// hold. The suite asks for the sizes of experts and of caches of heads
    /// ([`check_sizes`](crate::conformance::check_sizes)), so a device without them fails that check.
    fn bytes(&self, of: &Allocation<'_>) -> usize;

    /// Packs one matrix whose `parts` are stacked by rows (query, key and value projections; or gate and up). The
    /// parts have equal `cols` and may differ in type.
    ///
    /// # Errors
    /// With the name of the part: `UnsupportedType` for a type that is not in [`Facts::dtypes`], `BadShape` for other
    /// `cols` than the first part's or a row that is not whole blocks, `WrongSize` for bytes that do not fit the shape.
    fn pack(&self, parts: &[MatrixSource<'_>]) -> Result<Self::Matrix, KernelError>;

    /// Packs the kernel of a convolution, in the shape that [`Op::Conv`](crate::Op::Conv) or
    /// [`Op::ConvTranspose`](crate::Op::ConvTranspose) states, for that op alone.
    fn pack_kernel(&self, source: &MatrixSource<'_>, _of: &KernelUse) -> Result<Self::Matrix, KernelError> {
        self.pack(std::slice::from_ref(source))
    }

    /// Allocates room for experts of these shapes, which may differ only in their types.
    fn experts(&self, shapes: &[ExpertParts<MatrixShape>]) -> Result<Self::Experts, KernelError>;

    /// Packs the next expert, so that a loader need not hold all of them as stored. Refuses the types
    /// [`DeviceMemory::pack`] does.
    fn pack_expert(
        &self,
        experts: &mut Self::Experts,
        parts: &ExpertParts<MatrixSource<'_>>,
    ) -> Result<(), KernelError>;

    /// Packs one adapter's change to the outputs of one packed matrix. Floats are kept as stored.
    fn low_rank(&self, delta: &OutputDelta<'_>) -> Result<Self::LowRank, KernelError>;

    /// Copies a vector to the device.
    fn vector(&self, values: &[f32]) -> Result<Self::Vector, KernelError>;

    /// Makes a zeroed buffer.
    fn buffer(&self, role: BufferRole, rows: usize, cols: usize) -> Result<Self::Buffer, KernelError>;

    /// Makes the paged KV cache. Its content is never read before it is first written. Refuses specs that fail
    /// [`KvSpec::check`], and names a layer whose layout the device does not support. For a device that holds heads
    /// alone, [`KvSpec::heads`] does both.
    fn kv(&self, spec: &KvSpec) -> Result<Self::Kv, KernelError>;

    /// External form of a cache block: its size in bytes, and a name for its layout, the same only if the bytes mean
    /// the same. It does not depend on the instruction set. `None`: blocks cannot be copied out.
    fn kv_block_form(&self, _kv: &Self::Kv) -> Option<(usize, String)> {
        None
    }

    /// Copies a block out of the cache, or in from a cache of the same form, after all submitted steps. The copy has as
    /// many bytes as [`DeviceMemory::kv_block_form`] says.
    ///
    /// # Errors
    /// The device's error, or that it does not support this.
    fn copy_kv_block(
        &mut self,
        _kv: &mut Self::Kv,
        _block: u32,
        _copy: BlockCopy<'_>,
    ) -> Result<(), KernelError> {
        Err(self.facts().failure("copies no block of its cache"))
    }

    /// Copies rows to the host; `out` is `(rows, cols)`. Waits for the device.
    fn read_rows(&self, x: &Self::Buffer, row_first: usize, out: &mut [f32]) -> Result<(), KernelError>;

    /// Copies rows from the host, for media embeddings and tests.
    fn write_rows(&mut self, x: &mut Self::Buffer, row_first: usize, rows: &[f32])
    -> Result<(), KernelError>;
}

/// A device: it runs steps of ops on the operands in its memory.
pub trait Backend: DeviceMemory + Sized {
    /// Allocates all scratch for steps within `limits`, including sampling. Called once, before the first step.
    fn reserve(&mut self, limits: &StepLimits) -> Result<(), KernelError>;

    /// Starts a step: uploads the batch and takes exclusive use of the device. The caller promises that the batch passes
    /// [`Batch::check`]. Rows may be draws of the last step ([`Batch::tokens`]), so a device whose draws are on the host
    /// reads their tokens first and then calls [`Draws::begin`].
    fn begin(&mut self, batch: &Batch) -> Result<(), KernelError>;

    /// Runs one op of the open step. [`Op`](crate::Op) documents each. The device may compute it later, in order.
    ///
    /// # Panics
    /// If shapes do not fit, or the device does not implement the op. Every device implements
    /// [`Op::AllReduce`](crate::Op::AllReduce), which does nothing on one device.
    fn run(&mut self, op: DeviceOp<'_, Self>);

    /// Reads the routing of the open step's last [`Op::Moe`](crate::Op::Moe), for observers of a model: the experts that each
    /// row was sent to, `(rows, experts_used)`, and the inputs of their down products, `(rows, experts_used, ffn)`,
    /// from the `hidden` that it left. A row without an order of experts has [`NO_EXPERT`]. Waits for the device.
    ///
    /// # Errors
    /// `Device` if the device does not keep these.
    fn read_experts(
        &self,
        _hidden: &Self::Buffer,
        _chosen: &mut [u32],
        _inner: &mut [f32],
    ) -> Result<(), KernelError> {
        Err(self.facts().failure("it does not tell which experts rows go to"))
    }

    /// `out[i] = head · x[logit_rows[i]]` on the host, `(logit_rows, vocab)`, with adapters applied. Waits.
    fn logits(
        &mut self,
        head: LogitsHead<'_, Self>,
        x: &Self::Buffer,
        out: &mut [f32],
    ) -> Result<(), KernelError>;

    /// Calls `task` once with each number below `tasks`, in any order, possibly on several CPU threads: for host work
    /// while a step is computed, before [`Backend::sample`], or for computations on weights during a load.
    fn on_host(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        (0..tasks).for_each(task);
    }

    /// Draws a token for each row of [`Backend::logits`] by `specs.rows[i]`, as [`crate::sampling`] defines.
    /// [`Backend::wait`] returns the tokens, and rows of the next step may refer to them. `room` is
    /// `(logit_rows, vocab)`; its content is unspecified afterwards.
    fn sample(
        &mut self,
        head: LogitsHead<'_, Self>,
        x: &Self::Buffer,
        specs: &SampleSpecs,
        room: &mut [f32],
    ) -> Result<(), KernelError> {
        self.logits(head, x, room)?;
        self.draws().draw(specs, room);
        Ok(())
    }

    /// Draws of the last step on the host. A device that draws nothing itself holds a `Draws::default()` for them.
    fn draws(&mut self) -> &mut Draws;

    /// Ends the step. The device computes it from here on and becomes free for others afterwards. A device that holds
    /// its draws itself makes the ticket ([`Ticket::new`]) and implements `wait` too.
    fn submit(&mut self) -> Result<Ticket, KernelError> {
        self.end()?;
        Ok(self.draws().submit())
    }

    /// Waits for a step, in order of submission. Returns the draw of each logit row; `None` for NaN logits.
    fn wait(&mut self, ticket: Ticket, drawn: &mut Vec<Option<SampledToken>>) -> Result<(), KernelError> {
        self.draws().wait(ticket, drawn);
        Ok(())
    }

    /// Ends the step, waits for it and gives the device back. Safe to call when no step is open.
    fn end(&mut self) -> Result<(), KernelError>;
}
