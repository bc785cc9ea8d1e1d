//! The contract: the ops that a device must compute to run a decoder ([`Backend`]) or an encoder ([`EncoderOps`]).
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
mod kv_groups;
mod kv_layout;
mod kv_type;
mod low_rank;
pub(crate) mod mapped;
mod peers;
mod rows;
mod stage;
mod states;

use std::borrow::Borrow;

use crate::{
    Batch, DType, KernelError,
    sampling::{Draws, SampleSpecs, Sampled, Ticket},
};

pub use attention::{
    AttentionParams, HeadShape, LatentHeads, LatentParams, QkvParams, QueryScale, Rope, RopeAxes, RopeKind,
};
pub use encoder::{EncoderOps, LayerNormParams, PositionBias, QUERIES_PART, RowIds, SelfAttentionParams};
pub use experts::{ExpertGroups, ExpertParts, ExpertScoring, MoeOperands, MoeParams, MoeWeights, NO_EXPERT};
pub use kv_groups::{KvGroups, KvPlace};
pub use kv_layout::{KvLayout, KvSpec};
pub use kv_type::KvType;
pub use low_rank::{AdaptedLogits, LogitsHead, LowRankPair, LowRankShape, OutputChange, OutputDelta};
pub use peers::Peers;
pub use rows::RowOp;
pub use stage::Stage;
pub use states::{
    ConvolutionParams, GateKind, OutputGateParams, OutputNorm, RecurrenceParams, StateRule, StateShape,
};

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
    /// Values that ops pass to each other, rounded as [`Backend::rounding`] says.
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
    /// Widest input or output of any matrix but the head.
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
    /// Elements that all heads together read and write in the widest [`Backend::heads_matmul`], without the ones that
    /// are only copied; 0 if there is none.
    pub heads_matmul_width: usize,
}

/// A device that runs a decoder's steps.
pub trait Backend: Send + 'static {
    /// Weights in the layout that the device's kernels read.
    type Matrix: Send + Sync + 'static;
    /// A vector of f32: norm weights, biases, frequencies.
    type Vector: Send + Sync + 'static;
    /// Experts of one layer, in the layout that the device's kernels read.
    type Experts: Send + Sync + 'static;
    /// Matrices of single heads, for [`Backend::heads_matmul`].
    type Heads: Send + Sync + 'static;
    /// Change by an adapter to one packed matrix, in the layout that the device's kernels read.
    type LowRank: Send + Sync + 'static;
    /// Activations: `(rows, cols)`, on the device; f32 to the host.
    type Buffer: Send + 'static;
    /// The paged KV cache of all layers.
    type Kv: Send + 'static;

    /// Whether the device supports cross-attention ([`AttentionParams::memory`](crate::AttentionParams::memory)),
    /// rows that see later rows of an image, and padding rows.
    fn knows_memories(&self) -> bool {
        true
    }

    /// Name of the device for people, such as `cpu: avx512vnni, 8 threads`.
    fn device(&self) -> String;

    /// The device's rounding. It never changes.
    fn rounding(&self) -> Rounding;

    /// Says that all sizes, packed weights, buffers and ops from here on belong to this part of the network, until
    /// the next call. Devices that share a network ([`crate::pipeline`]) use it to find the owner. An op may only use
    /// weights that were packed in its own part.
    fn enter(&self, _stage: Stage) {}

    /// Whether matrices of this type can be packed.
    fn supports(&self, dtype: DType) -> bool;

    /// Exact number of bytes that [`Backend::pack`] would allocate.
    fn matrix_bytes(&self, parts: &[MatrixShape]) -> usize;

    /// Packs one matrix whose `parts` are stacked by rows (query, key and value projections; or gate and up). The
    /// parts have equal `cols` and may differ in type.
    fn pack(&self, parts: &[MatrixSource<'_>]) -> Result<Self::Matrix, KernelError>;

    /// Packed matrices, one for each head.
    fn heads(&self, matrices: Vec<Self::Matrix>) -> Self::Heads;

    /// Exact number of bytes that [`Backend::experts`] would allocate, with the experts packed.
    fn experts_bytes(&self, experts: &[ExpertParts<MatrixShape>]) -> usize;

    /// Allocates room for experts of these shapes, which may differ only in their types.
    fn experts(&self, shapes: &[ExpertParts<MatrixShape>]) -> Result<Self::Experts, KernelError>;

    /// Packs the next expert, so that a loader need not hold all of them as stored. Refuses the types
    /// [`Backend::pack`] does.
    fn pack_expert(
        &self,
        experts: &mut Self::Experts,
        parts: &ExpertParts<MatrixSource<'_>>,
    ) -> Result<(), KernelError>;

    /// Exact number of bytes that [`Backend::low_rank`] would allocate for these pairs and numbers of changed outputs.
    fn low_rank_bytes(&self, pairs: &[LowRankShape], changes: &[usize]) -> usize;

    /// Packs one adapter's change to the outputs of one packed matrix. Floats are kept as stored.
    fn low_rank(&self, delta: &OutputDelta<'_>) -> Result<Self::LowRank, KernelError>;

    /// Bytes that [`Backend::vector`] allocates for so many numbers.
    fn vector_bytes(&self, length: usize) -> usize;

    /// Copies a vector to the device.
    fn vector(&self, values: &[f32]) -> Result<Self::Vector, KernelError>;

    /// Bytes that [`Backend::buffer`] would allocate.
    fn buffer_bytes(&self, role: BufferRole, rows: usize, cols: usize) -> usize;

    /// Makes a zeroed buffer.
    fn buffer(&self, role: BufferRole, rows: usize, cols: usize) -> Result<Self::Buffer, KernelError>;

    /// Bytes that [`Backend::kv`] would allocate; 0 for layers that the device cannot hold.
    fn kv_bytes(&self, spec: &KvSpec) -> usize;

    /// Makes the paged KV cache. Its content is never read before it is first written. Refuses specs that fail
    /// [`KvSpec::check`], and names a layer whose layout the device does not support.
    fn kv(&self, spec: &KvSpec) -> Result<Self::Kv, KernelError>;

    /// External form of a cache block: its size in bytes, and a name for its layout, the same only if the bytes mean
    /// the same. It does not depend on the instruction set. `None`: blocks cannot be copied out.
    fn kv_block_form(&self, _kv: &Self::Kv) -> Option<(usize, String)> {
        None
    }

    /// Copies a block out of the cache after all submitted steps, as many bytes as [`Backend::kv_block_form`] says.
    ///
    /// # Errors
    /// The device's error, or that it does not support this.
    fn read_kv_block(&self, _kv: &Self::Kv, _block: u32, _out: &mut [u8]) -> Result<(), KernelError> {
        let reason = "takes no block out of its cache".to_owned();
        Err(KernelError::Device { device: self.device(), reason })
    }

    /// Copies a block, read by [`Backend::read_kv_block`] from a cache of the same form, in after all submitted steps.
    ///
    /// # Errors
    /// The device's error, or that it does not support this.
    fn write_kv_block(&mut self, _kv: &mut Self::Kv, _block: u32, _bytes: &[u8]) -> Result<(), KernelError> {
        let reason = "puts no block into its cache".to_owned();
        Err(KernelError::Device { device: self.device(), reason })
    }

    /// Bytes that [`Backend::reserve`] would allocate.
    fn scratch_bytes(&self, limits: &StepLimits) -> usize;

    /// Allocates all scratch for steps within `limits`, including sampling. Called once, before the first step.
    fn reserve(&mut self, limits: &StepLimits) -> Result<(), KernelError>;

    /// Starts a step: uploads the batch and takes exclusive use of the device.
    fn begin(&mut self, batch: &Batch) -> Result<(), KernelError>;

    /// `out[r] = scale * table[token(r)]`. Rows that the host writes ([`crate::RowSource::Embedding`]) stay.
    fn embed(&mut self, table: &Self::Matrix, scale: f32, out: &mut Self::Buffer);

    /// `out[r] += table[id(r)]`, where every id is a row of the table.
    fn add_embedding(&mut self, table: &Self::Matrix, ids: RowIds, out: &mut Self::Buffer);

    /// `out[r] = x[r] / sqrt(mean(x[r]²) + eps) * weight`, for each part of a row that is as long as `weight`.
    fn rms_norm(&mut self, x: &Self::Buffer, weight: &Self::Vector, eps: f32, out: &mut Self::Buffer);

    /// `residual[r] += x[r]`, then `out[r] = rms_norm(residual[r])`.
    fn add_rms_norm(
        &mut self,
        residual: &mut Self::Buffer,
        x: &Self::Buffer,
        weight: &Self::Vector,
        eps: f32,
        out: &mut Self::Buffer,
    );

    /// `out[r] = weight · x[r] + bias`.
    fn matmul(
        &mut self,
        weight: &Self::Matrix,
        bias: Option<&Self::Vector>,
        x: &Self::Buffer,
        out: &mut Self::Buffer,
    );

    /// `out[r] = activation(weight · x[r] + bias)`.
    fn matmul_activated(
        &mut self,
        weight: &Self::Matrix,
        bias: Option<&Self::Vector>,
        activation: Activation,
        x: &Self::Buffer,
        out: &mut Self::Buffer,
    );

    /// `out[r] += bias`: adds a bias to the output of an op that takes none.
    fn add_bias(&mut self, bias: &Self::Vector, out: &mut Self::Buffer);

    /// Applies an element-wise op to rows.
    fn row_op(&mut self, op: &RowOp<&Self::Buffer, &Self::Vector>, out: &mut Self::Buffer);

    /// `out[r] = (x[r] - mean) / sqrt(variance + eps) * weight + bias`, with the mean and variance of the row.
    fn layer_norm(
        &mut self,
        x: &Self::Buffer,
        params: &LayerNormParams<&Self::Vector>,
        out: &mut Self::Buffer,
    );

    /// `residual[r] += x[r]`, then `out[r] = layer_norm(residual[r])`.
    fn add_layer_norm(
        &mut self,
        residual: &mut Self::Buffer,
        x: &Self::Buffer,
        params: &LayerNormParams<&Self::Vector>,
        out: &mut Self::Buffer,
    );

    /// `layer_norm` in place on the columns `first..first + weight.len()` of each row, in parts of `width` columns that
    /// are normed separately. `columns` is `(first, width)`. Other columns stay as they are.
    fn layer_norm_columns(
        &mut self,
        x: &mut Self::Buffer,
        columns: (usize, usize),
        params: &LayerNormParams<&Self::Vector>,
    );

    /// Works on rows of `[q | k | v]`. Norms and rotates queries in place, norms and rotates keys, and writes keys
    /// and values to the batch's slots of the layer's group in its cache. The content of the key and value columns of
    /// `qkv` is unspecified afterwards. With [`QkvParams::queries_alone`] the cache stays as it is.
    fn rope_to_cache(
        &mut self,
        qkv: &mut Self::Buffer,
        params: &QkvParams<&Self::Vector>,
        kv: &mut Self::Kv,
        layer: usize,
    );

    /// Causal attention of the queries in rows of `[q | k | v]` over the layer's cache, into which the batch's own
    /// keys and values have been written. `out` is `(rows, heads * head_dim)`. The window is at most that of the
    /// layer's group: blocks before it are in no block table.
    fn attention(
        &mut self,
        qkv: &Self::Buffer,
        params: &AttentionParams<&Self::Vector>,
        kv: &Self::Kv,
        layer: usize,
        out: &mut Self::Buffer,
    );

    /// Multiplies each head by its own matrix. For head h with `weights[h]` of `(outputs, cols)`, `out[r][h]` is
    /// `weights[h]` times the head's first `cols` elements, followed by a copy of its remaining elements. All
    /// matrices have one shape and hold floats.
    fn heads_matmul(&mut self, weights: &Self::Heads, x: &Self::Buffer, out: &mut Self::Buffer);

    /// Works on rows of `latent`, `(rank + rope_dim)`, and of `queries`, `(heads, rank + rope_dim)`. Norms the first
    /// `rank` elements of the latent and rotates the last `rope_dim` elements of it and of each query, in place.
    /// Writes the latent to the batch's slots of the layer's group in its cache, whose layout must be latent.
    fn latent_to_cache(
        &mut self,
        latent: &mut Self::Buffer,
        queries: &mut Self::Buffer,
        params: &LatentParams<&Self::Vector>,
        kv: &mut Self::Kv,
        layer: usize,
    );

    /// Causal attention of `queries` over the layer's cache, into which the batch's own latents have been written:
    /// `softmax(scale * q·latent)` weighs the first `rank` elements of the latents. `out` is `(rows, heads * rank)`.
    fn latent_attention(
        &mut self,
        queries: &Self::Buffer,
        heads_and_scale: (LatentHeads, f32),
        kv: &Self::Kv,
        layer: usize,
        out: &mut Self::Buffer,
    );

    /// Convolution in place on a layer's channels, the first columns of `x`: `x[r][c] = silu(bias[c] + Σ_t
    /// weight[t][c] * x[r - taps + 1 + t][c])` along each sequence, with zeros before its first token. Under
    /// [`StateRule::Convolution`] the result is the sum itself, without `silu`. The inputs that later tokens need
    /// stay in the sequence's state of the layer ([`Batch::states`]).
    fn convolve(
        &mut self,
        x: &mut Self::Buffer,
        params: &ConvolutionParams<&Self::Vector>,
        kv: &mut Self::Kv,
        layer: usize,
    );

    /// Recurrence of each value head along each sequence, over rows of `x` whose channels were convolved
    /// ([`StateShape`]). q, k and v are the head's query, key and value; S is its state, `(key_dim, value_dim)`,
    /// zeros before the first token; the step is `s = softplus(x + step_bias)` within its limits:
    ///
    /// - `Delta`: q and k are divided by `sqrt(Σ x² + 1e-6)`, and q by `sqrt(key_dim)`; then
    ///   `S = exp(decay * s) S`, `S += k ⊗ sigmoid(beta) (v - kᵀS)`;
    /// - `Ssd`: `S = exp(decay * s) S + k ⊗ s v`.
    ///
    /// `out` is `qᵀS`, `(rows, value_heads * value_dim)`, plus `skip * v` if there is a skip. Operations happen in
    /// the order of single tokens however many rows a sequence has.
    fn recur(
        &mut self,
        x: &Self::Buffer,
        params: &RecurrenceParams<&Self::Vector>,
        kv: &mut Self::Kv,
        layer: usize,
        out: &mut Self::Buffer,
    );

    /// `out[r] *= gate[r]`, with the gate passed through the function that its kind names, and the norm before or
    /// after the product.
    fn gate_output(
        &mut self,
        gate: &Self::Buffer,
        params: &OutputGateParams<&Self::Vector>,
        out: &mut Self::Buffer,
    );

    /// `hidden[r] = activation(gate · x[r]) * (up · x[r])`, then `out[r] = down · hidden[r]`. `gate_up` holds gate's
    /// rows, then up's. `hidden` is scratch of `(rows, gate_up.rows / 2)`, unspecified afterwards.
    fn gated_mlp(
        &mut self,
        gate_up: &Self::Matrix,
        down: &Self::Matrix,
        activation: Activation,
        x: &Self::Buffer,
        hidden: &mut Self::Buffer,
        out: &mut Self::Buffer,
    ) {
        self.gated(gate_up, activation, x, hidden);
        self.matmul(down, None, hidden, out);
    }

    /// First half of [`Backend::gated_mlp`]: `hidden[r] = activation(gate · x[r]) * (up · x[r])`.
    fn gated(
        &mut self,
        gate_up: &Self::Matrix,
        activation: Activation,
        x: &Self::Buffer,
        hidden: &mut Self::Buffer,
    );

    /// Applies adapters. For each row whose sequence has an adapter ([`Batch::adapters`]) with an entry in `deltas`:
    /// makes its changes ([`OutputChange`]), then `out[r] += scale · B · (A · x[r])` at its columns. Other rows stay
    /// as they are. `low` is scratch of the batch's rows, as wide as the ranks of any adapter's pairs together; none
    /// if no pair has A.
    fn add_low_rank<L: Borrow<Self::LowRank> + Sync>(
        &mut self,
        deltas: &[Option<L>],
        x: &Self::Buffer,
        low: Option<&mut Self::Buffer>,
        out: &mut Self::Buffer,
    );

    /// `hidden[r] = activation(gate[r]) * up[r]`, where gate and up are the halves of a row of `both`, a buffer of
    /// [`BufferRole::Residual`]. `matmul`, this and `matmul` give bit for bit the results of [`Backend::gated_mlp`].
    fn gate(&mut self, activation: Activation, both: &Self::Buffer, hidden: &mut Self::Buffer);

    /// Adds the shared expert, which every row uses: `out[r] += sigmoid(gate · x[r]) * shared[r]`, or `out[r] +=
    /// shared[r]` without a gate. The gate is as long as a row of `x`.
    fn add_shared(
        &mut self,
        gate: Option<&Self::Vector>,
        x: &Self::Buffer,
        shared: &Self::Buffer,
        out: &mut Self::Buffer,
    );

    /// Mixture of experts, chosen row by row: `out[r] = Σ_i w_i * (down[e_i] · hidden_i)`, where `hidden_i =
    /// activation(gate[e_i] · x[r]) * (up[e_i] · x[r])`, or `activation(up[e_i] · x[r])` if experts are not gated.
    /// The sum is over the `experts_used` experts `e_i` with the largest scores `router · x[r]`, in descending order
    /// of score; of equal scores the lower index comes first.
    ///
    /// The weights `w` are made from the scores as `params` say. Every product has its bias added, if it has one.
    /// With a correction, or with groups that count two experts, the choice is by `w` plus the correction, before the
    /// weights are normalised.
    ///
    /// `hidden` is scratch of `(rows, experts_used * ffn)`, ffn being down's inputs, unspecified afterwards.
    ///
    /// A row with a score that is NaN has no order of experts: all its outputs are NaN.
    fn moe(
        &mut self,
        weights: &MoeWeights<'_, Self>,
        params: &MoeParams,
        x: &Self::Buffer,
        hidden: &mut Self::Buffer,
        out: &mut Self::Buffer,
    );

    /// Reads the routing of the open step's last [`Backend::moe`], for observers of a model: the experts that each
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
        let reason = "it does not tell which experts rows go to".to_owned();
        Err(KernelError::Device { device: self.device(), reason })
    }

    /// All-reduce: sums the batch's rows of `x` over the ranks that share this model, in order, and leaves the sum on
    /// each. Does nothing on one device or without matrices split by columns ([`crate::tensor_parallel`]). A bias that
    /// is added before it must count once, so all ranks but the first hold zeros.
    fn all_reduce(&mut self, _x: &mut Self::Buffer) {}

    /// `out[i] = head · x[logit_rows[i]]` on the host, `(logit_rows, vocab)`, with adapters applied. Waits.
    fn logits(
        &mut self,
        head: LogitsHead<'_, Self>,
        x: &Self::Buffer,
        out: &mut [f32],
    ) -> Result<(), KernelError>;

    /// Length of the host buffer that [`Backend::sample`] needs for so many rows; 0 if the device draws.
    fn sample_room(&self, rows: usize, vocab: usize) -> usize {
        rows * vocab
    }

    /// Calls `task` once with each number below `tasks`, in any order, possibly on several CPU threads. For host work
    /// while a step is computed, between its ops and [`Backend::sample`].
    fn on_host(&mut self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        (0..tasks).for_each(task);
    }

    /// Same as [`Backend::on_host`], but outside a step: for computations on weights during a load.
    fn between_steps(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        (0..tasks).for_each(task);
    }

    /// Draws a token for each row of [`Backend::logits`] by `specs.rows[i]`, as [`crate::sampling`] defines.
    /// [`Backend::wait`] returns the tokens, and rows of the next step may refer to them. `room` has the length of
    /// [`Backend::sample_room`]; its content is unspecified afterwards.
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

    /// Draws of the last step on the host.
    fn draws(&mut self) -> &mut Draws;

    /// Steps that may be submitted before the first of them is waited for, besides that one: 0 or 1. 0 if steps are
    /// computed inside `submit`, so that nothing can overlap.
    fn lookahead(&self) -> usize {
        0
    }

    /// Ends the step. The device computes it from here on and becomes free for others afterwards. A device that holds
    /// its draws itself makes the ticket ([`Ticket::new`]) and implements `wait` too.
    fn submit(&mut self) -> Result<Ticket, KernelError> {
        self.end()?;
        Ok(self.draws().submit())
    }

    /// Waits for a step, in order of submission. Returns the draw of each logit row; `None` for NaN logits.
    fn wait(&mut self, ticket: Ticket, drawn: &mut Vec<Option<Sampled>>) -> Result<(), KernelError> {
        self.draws().wait(ticket, drawn);
        Ok(())
    }

    /// Ends the step, waits for it and gives the device back. Safe to call when no step is open.
    fn end(&mut self) -> Result<(), KernelError>;

    /// Copies rows to the host; `out` is `(rows, cols)`. Waits for the device.
    fn read_rows(&self, x: &Self::Buffer, row_first: usize, out: &mut [f32]) -> Result<(), KernelError>;

    /// Copies rows from the host, for media embeddings and tests.
    fn write_rows(&mut self, x: &mut Self::Buffer, row_first: usize, rows: &[f32])
    -> Result<(), KernelError>;
}
