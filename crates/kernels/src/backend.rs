//! The contract: what a device must compute for a decoder ([`Backend`]) or an encoder ([`EncoderOps`]) to run on it.
//!
//! A step is `begin`, a straight line of ops, `end`. Every op works on the rows of the batch given to `begin`,
//! on buffers made beforehand; none allocates (but lists of log probabilities that were asked for), locks or spawns. Shapes
//! that do not fit are programmer errors and panic. A device's own failures surface where a [`Result`] is given: where a step
//! begins and ends, and where the host waits for it anyway; what lies between has none, so that a GPU step can be captured as
//! a graph. A [`Backend::begin`], [`Backend::submit`] or [`Backend::end`] that fails leaves no step open, anything else does:
//! the caller ends it. A [`Backend::wait`] that fails has taken its ticket.
//!
//! A step that draws its tokens itself ends with [`Backend::submit`] instead: the device may compute it while the host makes
//! the next, whose rows may be tokens that only the device knows yet ([`crate::RowSource::Sampled`]).
//!
//! Results must not depend on what else is in the batch: a row's numbers are bit-for-bit the same alone, among
//! others, in any order, and however its prompt was cut into chunks.

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

/// One tensor of a model file, row-major, as stored.
#[derive(Clone, Copy, Debug)]
pub struct MatrixSource<'a> {
    /// Name for errors.
    pub name: &'a str,
    /// Its shape and type.
    pub shape: MatrixShape,
    /// `shape.rows` rows of whole blocks, little endian, any alignment.
    pub bytes: &'a [u8],
}

/// The non-linearity of an MLP.
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
    /// `g * sigmoid(1.702 g)` of `g = min(x, 7)`; what it is multiplied with is held between -7 and 7, and 1 more
    /// (GPT-OSS).
    ClampedSwish,
}

/// What a buffer is for: how exactly a device must keep its numbers. Ops read and write buffers of either role, but for what
/// `embed` begins and `add_…` adds to, which are sums: where norms stand behind a half, its output is one too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferRole {
    /// The sum that layers add to, where small addends meet large numbers: f32 on every device.
    Residual,
    /// What ops hand to each other: as [`Backend::rounding`] says.
    Operand,
}

/// What a device keeps and multiplies operands as. Sums are f32 in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operands {
    /// f32: no rounding that is worth the name.
    F32,
    /// bfloat16, of 8 significant bits: the numbers in buffers of [`BufferRole::Operand`], and both sides of products,
    /// quantised weights after their scales.
    Bf16,
}

/// How a device rounds what its ops read and hand on. The conformance suite takes its bounds from it, so a device that
/// promises more than it keeps fails, and one that promises little is held to that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounding {
    /// Operands.
    pub operands: Operands,
    /// Whether activations are rounded besides, to 1/127 of the largest of 256 of them (or fewer), before they meet
    /// quantised weights.
    pub bytes_before_quantised: bool,
}

/// The largest step that will be asked for, so that all scratch can be made at once.
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
    /// Experts of the layers that have most of them; 0 where no layer has any.
    pub experts: usize,
    /// Experts that a row of those layers goes to at most; 0 where no layer has any.
    pub experts_used: usize,
    /// Widest input or output of an expert's products, of gate and up together; 0 where no layer has any.
    pub experts_width: usize,
    /// Layer groups of the cache; at least 1.
    pub kv_groups: usize,
    /// Numbers that all heads together read and give in the widest [`Backend::heads_matmul`], but for those that stay as they
    /// are; 0 where there is none.
    pub heads_matmul_width: usize,
}

/// A device that a decoder's steps run on.
pub trait Backend: Send + 'static {
    /// Weights in the layout the device's kernels read.
    type Matrix: Send + Sync + 'static;
    /// A vector of f32: norm weights, biases, frequencies.
    type Vector: Send + Sync + 'static;
    /// Experts of one layer, in the layout the device's kernels read.
    type Experts: Send + Sync + 'static;
    /// Matrices of single heads, for [`Backend::heads_matmul`].
    type Heads: Send + Sync + 'static;
    /// What one adapter adds to one packed matrix, in the layout the device's kernels read.
    type LowRank: Send + Sync + 'static;
    /// Activations: `(rows, cols)`, on the device; f32 to the host.
    type Buffer: Send + 'static;
    /// The paged KV cache of all layers.
    type Kv: Send + 'static;

    /// Whether it knows memories ([`AttentionParams::memory`](crate::AttentionParams::memory)), what a row sees of them, and padding.
    fn knows_memories(&self) -> bool {
        true
    }

    /// What this is, for people: `cpu: avx512vnni, 8 threads`.
    fn device(&self) -> String;

    /// How it rounds. The same for as long as it lives.
    fn rounding(&self) -> Rounding;

    /// What is counted, packed, made and computed from here on is of this part of a network, until another is named: devices that
    /// share a network ([`crate::pipeline`]) tell by it whose it is. Ops name what was packed in the part that they are of.
    fn enter(&self, _stage: Stage) {}

    /// Whether matrices of this type can be packed.
    fn supports(&self, dtype: DType) -> bool;

    /// Bytes [`Backend::pack`] would take, to the byte, without taking them.
    fn matrix_bytes(&self, parts: &[MatrixShape]) -> usize;

    /// Lays out one matrix made of `parts` stacked by rows (query, key and value projections as one; gate and
    /// up as one). The parts have equal `cols` and may differ in type.
    fn pack(&self, parts: &[MatrixSource<'_>]) -> Result<Self::Matrix, KernelError>;

    /// Packed matrices, one for each head.
    fn heads(&self, matrices: Vec<Self::Matrix>) -> Self::Heads;

    /// Bytes [`Backend::experts`] would take, packed, to the byte.
    fn experts_bytes(&self, experts: &[ExpertParts<MatrixShape>]) -> usize;

    /// Makes room for experts of these shapes, alike but for their types.
    fn experts(&self, shapes: &[ExpertParts<MatrixShape>]) -> Result<Self::Experts, KernelError>;

    /// Lays out the next of the experts that there is room for, so that a loader need not hold all of them as stored.
    /// Refuses what [`Backend::pack`] does.
    fn pack_expert(
        &self,
        experts: &mut Self::Experts,
        parts: &ExpertParts<MatrixSource<'_>>,
    ) -> Result<(), KernelError>;

    /// Bytes [`Backend::low_rank`] would take, to the byte, of pairs and of changes of so many outputs each.
    fn low_rank_bytes(&self, pairs: &[LowRankShape], changes: &[usize]) -> usize;

    /// Lays out what one adapter does to the outputs of one packed matrix. Floats are kept as stored.
    fn low_rank(&self, delta: &OutputDelta<'_>) -> Result<Self::LowRank, KernelError>;

    /// Bytes [`Backend::vector`] takes for so many numbers.
    fn vector_bytes(&self, length: usize) -> usize;

    /// Puts a vector on the device.
    fn vector(&self, values: &[f32]) -> Result<Self::Vector, KernelError>;

    /// Bytes [`Backend::buffer`] would take.
    fn buffer_bytes(&self, role: BufferRole, rows: usize, cols: usize) -> usize;

    /// Makes a zeroed buffer.
    fn buffer(&self, role: BufferRole, rows: usize, cols: usize) -> Result<Self::Buffer, KernelError>;

    /// Bytes [`Backend::kv`] would take; 0 for layers it cannot hold.
    fn kv_bytes(&self, spec: &KvSpec) -> usize;

    /// Makes the paged cache. Its content before the first write is never read. Refuses what [`KvSpec::check`] does, and
    /// by name a layer's layout that the device does not know.
    fn kv(&self, spec: &KvSpec) -> Result<Self::Kv, KernelError>;

    /// What a block of a cache is outside of it, where it can be taken out: its bytes, and a name that is another's wherever
    /// they mean anything else. The same for every set of instructions. `None`: it cannot be.
    fn kv_block_form(&self, _kv: &Self::Kv) -> Option<(usize, String)> {
        None
    }

    /// Copies a block out of the cache, as many bytes as [`Backend::kv_block_form`] says. What the steps
    /// that were submitted write to it is in it.
    ///
    /// # Errors
    /// The device's, or that it cannot.
    fn read_kv_block(&self, _kv: &Self::Kv, _block: u32, _out: &mut [u8]) -> Result<(), KernelError> {
        let reason = "takes no block out of its cache".to_owned();
        Err(KernelError::Device { device: self.device(), reason })
    }

    /// Puts a block into the cache, after the steps that were submitted, as [`Backend::read_kv_block`] has taken it out of
    /// one of the same layers and type.
    ///
    /// # Errors
    /// The device's, or that it cannot.
    fn write_kv_block(&mut self, _kv: &mut Self::Kv, _block: u32, _bytes: &[u8]) -> Result<(), KernelError> {
        let reason = "puts no block into its cache".to_owned();
        Err(KernelError::Device { device: self.device(), reason })
    }

    /// Bytes [`Backend::reserve`] would take.
    fn scratch_bytes(&self, limits: &StepLimits) -> usize;

    /// Makes all scratch for steps within `limits`, that of drawing too. Called once, before the first step.
    fn reserve(&mut self, limits: &StepLimits) -> Result<(), KernelError>;

    /// Starts a step: uploads the batch and takes the device for this step.
    fn begin(&mut self, batch: &Batch) -> Result<(), KernelError>;

    /// `out[r] = scale * table[token(r)]`; rows that the host writes ([`crate::RowSource::Embedding`]) stay as they are.
    fn embed(&mut self, table: &Self::Matrix, scale: f32, out: &mut Self::Buffer);

    /// `out[r] += table[id(r)]`, every id a row of the table.
    fn add_embedding(&mut self, table: &Self::Matrix, ids: RowIds, out: &mut Self::Buffer);

    /// `out[r] = x[r] / sqrt(mean(x[r]²) + eps) * weight`. Where a row is several times as long as `weight`, each part of it is
    /// normed by itself.
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

    /// `out[r] += bias`: of what an op that takes none has given.
    fn add_bias(&mut self, bias: &Self::Vector, out: &mut Self::Buffer);

    /// Changes rows number by number.
    fn row_op(&mut self, op: &RowOp<&Self::Buffer, &Self::Vector>, out: &mut Self::Buffer);

    /// `out[r] = (x[r] - mean) / sqrt(variance + eps) * weight + bias`, mean and variance of the row's own numbers.
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

    /// As `layer_norm`, in place, of columns `first..first + weight` of each row, as many as there are weights, each `width` of them
    /// apart; the others stay. `columns` are `first` and `width`.
    fn layer_norm_columns(
        &mut self,
        x: &mut Self::Buffer,
        columns: (usize, usize),
        params: &LayerNormParams<&Self::Vector>,
    );

    /// On rows of `[q | k | v]`: norms and turns queries in place, norms and turns keys, and writes keys and
    /// values to the batch's slots of the layer's group in its cache. What `qkv` holds of keys and values afterwards is the
    /// device's own business. Where there are queries alone ([`QkvParams::queries_alone`]) the cache stays as it is.
    fn rope_to_cache(
        &mut self,
        qkv: &mut Self::Buffer,
        params: &QkvParams<&Self::Vector>,
        kv: &mut Self::Kv,
        layer: usize,
    );

    /// Causal attention of the queries in rows of `[q | k | v]` over the layer's cache, into which the batch's own keys and
    /// values have been written; `out` is `(rows, heads * head_dim)`. The window is no wider than that of the layer's group:
    /// blocks that lie before it are in no block table.
    fn attention(
        &mut self,
        qkv: &Self::Buffer,
        params: &AttentionParams<&Self::Vector>,
        kv: &Self::Kv,
        layer: usize,
        out: &mut Self::Buffer,
    );

    /// For each head h, whose matrix is `weights[h]` of `(outputs, cols)`, `out[r][h]` is `weights[h] · x[r][h]` of the first
    /// `cols` numbers of the head in the row, and behind it those that the head has more, as they are. All matrices have one
    /// shape and are of floats.
    fn heads_matmul(&mut self, weights: &Self::Heads, x: &Self::Buffer, out: &mut Self::Buffer);

    /// On rows of `latent`, `(rank + rope_dim)`, and of `queries`, `(heads, rank + rope_dim)`: norms the first `rank` numbers of
    /// the latent, turns the last `rope_dim` of it and of each query in place, and writes the latent to the batch's slots of
    /// the layer's group in its cache, which is of such a layout.
    fn latent_to_cache(
        &mut self,
        latent: &mut Self::Buffer,
        queries: &mut Self::Buffer,
        params: &LatentParams<&Self::Vector>,
        kv: &mut Self::Kv,
        layer: usize,
    );

    /// Causal attention of `queries` over the layer's cache, into which the batch's own latents have been written:
    /// `softmax(scale * q·latent)` weighs the first `rank` numbers of the latents. `out` is `(rows, heads * rank)`.
    fn latent_attention(
        &mut self,
        queries: &Self::Buffer,
        heads_and_scale: (LatentHeads, f32),
        kv: &Self::Kv,
        layer: usize,
        out: &mut Self::Buffer,
    );

    /// On the first columns of `x`, a layer's channels, in place: `x[r][c] = silu(bias[c] + Σ_t weight[t][c] * x[r - taps + 1 + t][c])`
    /// along each sequence, zeros before its first token; the sum itself under [`StateRule::Convolution`]. The inputs that later tokens see stay in the sequence's state of
    /// the layer ([`Batch::states`]).
    fn convolve(
        &mut self,
        x: &mut Self::Buffer,
        params: &ConvolutionParams<&Self::Vector>,
        kv: &mut Self::Kv,
        layer: usize,
    );

    /// Each value head's recurrence along each sequence, over rows of `x` whose channels were convolved ([`StateShape`]). Of its
    /// query q, key k and value v, S being the head's state, `(key_dim, value_dim)`, zeros before the first token, and
    /// step `s = softplus(x + step_bias)` within its limits:
    ///
    /// - `Delta`: q and k are divided by `sqrt(Σ x² + 1e-6)`, q by `sqrt(key_dim)` besides; then `S = exp(decay * s) S`,
    ///   `S += k ⊗ sigmoid(beta) (v - kᵀS)`;
    /// - `Ssd`: `S = exp(decay * s) S + k ⊗ s v`.
    ///
    /// `out` is `qᵀS`, `(rows, value_heads * value_dim)`, and `skip * v` more where there is one. The order of operations is that
    /// of single tokens however many rows a sequence has.
    fn recur(
        &mut self,
        x: &Self::Buffer,
        params: &RecurrenceParams<&Self::Vector>,
        kv: &mut Self::Kv,
        layer: usize,
        out: &mut Self::Buffer,
    );

    /// `out[r] *= gate[r]`, through what the gate's kind says, the norm standing before or after it.
    fn gate_output(
        &mut self,
        gate: &Self::Buffer,
        params: &OutputGateParams<&Self::Vector>,
        out: &mut Self::Buffer,
    );

    /// `hidden[r] = activation(gate · x[r]) * (up · x[r])`, `out[r] = down · hidden[r]`. `gate_up` holds gate's
    /// rows, then up's; `hidden` is scratch of `(rows, gate_up.rows / 2)`, and what it holds afterwards the device's
    /// own business.
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

    /// The first half of [`Backend::gated_mlp`]: `hidden[r] = activation(gate · x[r]) * (up · x[r])`.
    fn gated(
        &mut self,
        gate_up: &Self::Matrix,
        activation: Activation,
        x: &Self::Buffer,
        hidden: &mut Self::Buffer,
    );

    /// Makes the changes ([`OutputChange`]), then `out[r] += scale · B · (A · x[r])`, for each row of a sequence whose adapter
    /// ([`Batch::adapters`]) has something in `deltas`, at the columns that it says; other rows stay as they are. `low` is
    /// scratch of the batch's rows, as wide as the ranks of any adapter's pairs together; none where no pair has A.
    fn add_low_rank<L: Borrow<Self::LowRank> + Sync>(
        &mut self,
        deltas: &[Option<L>],
        x: &Self::Buffer,
        low: Option<&mut Self::Buffer>,
        out: &mut Self::Buffer,
    );

    /// `hidden[r] = activation(gate[r]) * up[r]`, gate and up being the halves of a row of `both`, a buffer of
    /// [`BufferRole::Residual`]: `matmul`, this and `matmul` give bit for bit what [`Backend::gated_mlp`] does.
    fn gate(&mut self, activation: Activation, both: &Self::Buffer, hidden: &mut Self::Buffer);

    /// `out[r] += sigmoid(gate · x[r]) * shared[r]`, or `out[r] += shared[r]` without a gate, whose length is x's: what every
    /// row goes to beside the experts it chose.
    fn add_shared(
        &mut self,
        gate: Option<&Self::Vector>,
        x: &Self::Buffer,
        shared: &Self::Buffer,
        out: &mut Self::Buffer,
    );

    /// An MLP chosen row by row: `out[r] = Σ_i w_i * (down[e_i] · hidden_i)`,
    /// `hidden_i = activation(gate[e_i] · x[r]) * (up[e_i] · x[r])`, or `activation(up[e_i] · x[r])` where experts are
    /// not gated, over the `experts_used` experts `e_i` whose scores `router · x[r]` are largest, in descending order
    /// of score; of equal scores the lower index comes first. The weights `w` are made of the scores as `params` say.
    /// Every product has its bias added where there is one. Where there is a correction, or where groups are worth two
    /// experts, the choice is by `w` of all experts, before they are divided by the sum of the chosen, plus the correction.
    ///
    /// `hidden` is scratch of `(rows, experts_used * ffn)`, ffn being down's inputs, and what it holds afterwards the
    /// device's own business.
    ///
    /// A row with a score that is not a number has no order of experts: all its outputs are NaN.
    fn moe(
        &mut self,
        weights: &MoeWeights<'_, Self>,
        params: &MoeParams,
        x: &Self::Buffer,
        hidden: &mut Self::Buffer,
        out: &mut Self::Buffer,
    );

    /// For who observes a model: which experts the open step's last [`Backend::moe`] sent each row to, `(rows, experts_used)`, and
    /// what their second products read, `(rows, experts_used, ffn)`, of the `hidden` that it left. A row without an order of experts
    /// went to [`NO_EXPERT`] alone. Waits for the device.
    ///
    /// # Errors
    /// `Device` where a device keeps none of it.
    fn read_experts(
        &self,
        _hidden: &Self::Buffer,
        _chosen: &mut [u32],
        _inner: &mut [f32],
    ) -> Result<(), KernelError> {
        let reason = "it does not tell which experts rows go to".to_owned();
        Err(KernelError::Device { device: self.device(), reason })
    }

    /// Sums the batch's rows of `x` over the devices that share this model, in the order of their ranks, and leaves the sum
    /// with each; on one device they stay as they are, and on those that divide no sums ([`crate::tensor_parallel`]). What is added before it must be in the sum once: of the bias of a matrix
    /// that ranks hold columns of, all but the first have zeros.
    fn all_reduce(&mut self, _x: &mut Self::Buffer) {}

    /// `out[i] = head · x[logit_rows[i]]` to the host, `(logit_rows, vocab)`, with the changes by its adapters. Waits for the device.
    fn logits(
        &mut self,
        head: LogitsHead<'_, Self>,
        x: &Self::Buffer,
        out: &mut [f32],
    ) -> Result<(), KernelError>;

    /// Numbers of room on the host that [`Backend::sample`] needs for so many rows: none where the device draws.
    fn sample_room(&self, rows: usize, vocab: usize) -> usize {
        rows * vocab
    }

    /// Calls `task` with each number below `tasks`, in any order, each once; the host's processors may do so side by side. For
    /// what the host has to find out while a step is computed, between its ops and [`Backend::sample`].
    fn on_host(&mut self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        (0..tasks).for_each(task);
    }

    /// As [`Backend::on_host`], outside a step: for what a load computes of its weights.
    fn between_steps(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        (0..tasks).for_each(task);
    }

    /// Draws a token for each row of [`Backend::logits`] by `specs.rows[i]`, as [`crate::sampling`] says.
    /// [`Backend::wait`] gives them, and the rows of the next step may come from them. `room` is
    /// [`Backend::sample_room`]'s; what it holds afterwards is the device's own business.
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

    /// What the host has drawn of the last step.
    fn draws(&mut self) -> &mut Draws;

    /// Steps that may be submitted before the first of them is waited for, besides that one: 0 or 1. 0 where steps are
    /// computed in `submit`, so that there is nothing to run ahead of.
    fn lookahead(&self) -> usize {
        0
    }

    /// Ends the step, which the device computes from here on, and gives the device to others when it has. A device that holds
    /// what it draws makes the ticket itself ([`Ticket::new`]), and then `wait` too.
    fn submit(&mut self) -> Result<Ticket, KernelError> {
        self.end()?;
        Ok(self.draws().submit())
    }

    /// Waits for a step, in the order in which they were submitted, and gives what it drew for each of its logit rows;
    /// nothing where the logits were not numbers.
    fn wait(&mut self, ticket: Ticket, drawn: &mut Vec<Option<Sampled>>) -> Result<(), KernelError> {
        self.draws().wait(ticket, drawn);
        Ok(())
    }

    /// Ends the step and gives the device back. Waits for it. Safe to call when no step is open.
    fn end(&mut self) -> Result<(), KernelError>;

    /// Copies rows to the host: `out` is `(rows, cols)`. Waits for the device.
    fn read_rows(&self, x: &Self::Buffer, row_first: usize, out: &mut [f32]) -> Result<(), KernelError>;

    /// Copies rows from the host: media embeddings, tests.
    fn write_rows(&mut self, x: &mut Self::Buffer, row_first: usize, rows: &[f32])
    -> Result<(), KernelError>;
}
