//! [`Op`]: one step of a network as plain data, over operands by number, and the map of an op to other operands.
//!
//! Longer than 600 lines because one enum has every op with its formula.

mod map;
mod operands;

use std::ops::Range;
use std::sync::Arc;

pub(crate) use map::WRITTEN_MAX;
pub use map::{Access, MappedOp, OperandMap};
pub(crate) use operands::Release;
pub use operands::{
    Buffer, BufferId, Experts, ExpertsId, Handle, Heads, HeadsId, Kv, KvId, LowRank, LowRankId, Matrix,
    MatrixId, OperandId, Vector, VectorId, kind,
};

use crate::{
    Activation, AttentionParams, ConvParams, ConvolutionParams, DeviceMemory, LatentHeads, LatentParams,
    LayerNormParams, MoeOperands, MoeParams, NormColumns, OutputGateParams, PointActivation, QkvParams,
    RecurrenceParams, RelativeParams, RowIds, RowOp, SelfAttentionParams,
};

/// Buckets of a disentangled position bias.
pub type Buckets = Arc<[u32]>;

/// Op of a step, on the rows of the batch that the open step began with.
///
/// The parameters are the kinds of its operands: packed matrices `M`, vectors `V`, experts `E`, matrices of heads `H`, adapters'
/// changes `L`, buffers that it reads `R` or writes `W`, KV caches `K`, and tables of buckets `T`. As plain data, which is the
/// default, each operand is a number that an [`Executor`](crate::Executor) knows. A device gets the operands themselves
/// ([`DeviceOp`]).
#[derive(Clone, Debug)]
pub enum Op<
    M = MatrixId,
    V = VectorId,
    E = ExpertsId,
    H = HeadsId,
    L = LowRankId,
    R = BufferId,
    W = BufferId,
    K = KvId,
    T = Buckets,
> {
    /// Embeddings of tokens.
    ///
    /// `out[r] = scale * table[token(r)]`. Rows that the host writes ([`crate::RowSource::Embedding`]) stay.
    Embed {
        /// `(vocab, cols)`
        table: M,
        /// Factor on every number.
        scale: f32,
        /// `(rows, cols)`, written.
        out: W,
    },
    /// Addition of learned embeddings of positions or types.
    ///
    /// `out[r] += table[id(r)]`, where every id is a row of the table.
    AddEmbedding {
        /// `(ids, cols)`
        table: M,
        /// Choice of the row.
        ids: RowIds,
        /// `(rows, cols)`, changed.
        out: W,
    },
    /// RMS norm.
    ///
    /// `out[r] = x[r] / sqrt(mean(x[r]²) + eps) * weight`, for each part of a row that is as long as `weight`.
    RmsNorm {
        /// `(rows, cols)`, read.
        x: R,
        /// `(cols)`, or of each part of a row.
        weight: V,
        /// Added to the mean of the squares.
        eps: f32,
        /// `(rows, cols)`, written.
        out: W,
    },
    /// Residual addition, then RMS norm of the sum.
    ///
    /// `residual[r] += x[r]`, then `out[r] = rms_norm(residual[r])`.
    AddRmsNorm {
        /// `(rows, cols)`, changed.
        residual: W,
        /// `(rows, cols)`, read.
        x: R,
        /// `(cols)`
        weight: V,
        /// Added to the mean of the squares.
        eps: f32,
        /// `(rows, cols)`, written.
        out: W,
    },
    /// Product with a matrix.
    ///
    /// `out[r] = weight · x[r] + bias`.
    MatMul {
        /// `(outputs, inputs)`
        weight: M,
        /// `(outputs)`
        bias: Option<V>,
        /// `(rows, inputs)`, read.
        x: R,
        /// `(rows, outputs)`, written.
        out: W,
    },
    /// Product with a matrix, through a non-linearity.
    ///
    /// `out[r] = activation(weight · x[r] + bias)`.
    MatMulActivated {
        /// `(outputs, inputs)`
        weight: M,
        /// `(outputs)`
        bias: Option<V>,
        /// The non-linearity.
        activation: Activation,
        /// `(rows, inputs)`, read.
        x: R,
        /// `(rows, outputs)`, written.
        out: W,
    },
    /// Addition of a bias.
    ///
    /// `out[r] += bias`: adds a bias to the output of an op that takes none.
    AddBias {
        /// `(cols)`
        bias: V,
        /// `(rows, cols)`, changed.
        out: W,
    },
    /// Change of rows, number by number.
    ///
    /// Applies an element-wise op to rows.
    Row {
        /// The change, and what it reads.
        op: RowOp<R, V>,
        /// Changed, or written by [`RowOp::Take`].
        out: W,
    },
    /// Layer norm.
    ///
    /// `out[r] = (x[r] - mean) / sqrt(variance + eps) * weight + bias`, with the mean and variance of the row.
    LayerNorm {
        /// `(rows, cols)`, read.
        x: R,
        /// Scale and shift.
        params: LayerNormParams<V>,
        /// `(rows, cols)`, written.
        out: W,
    },
    /// Residual addition, then layer norm of the sum.
    ///
    /// `residual[r] += x[r]`, then `out[r] = layer_norm(residual[r])`.
    AddLayerNorm {
        /// `(rows, cols)`, changed.
        residual: W,
        /// `(rows, cols)`, read.
        x: R,
        /// Scale and shift.
        params: LayerNormParams<V>,
        /// `(rows, cols)`, written.
        out: W,
    },
    /// Layer norm of some columns, in place.
    ///
    /// `layer_norm` in place on the columns `first..first + weight.len()` of each row, in parts of `width` columns that
    /// are normed separately. Other columns stay as they are.
    LayerNormColumns {
        /// `(rows, cols)`, changed.
        x: W,
        /// First column, and columns of one norm.
        columns: NormColumns,
        /// Scale and shift.
        params: LayerNormParams<V>,
    },
    /// Norms and rotary embedding of queries and keys; keys and values go to the cache.
    ///
    /// Works on rows of `[q | k | v]`. Norms and rotates queries in place, norms and rotates keys, and writes keys
    /// and values to the batch's slots of the layer's group in its cache. The content of the key and value columns of
    /// `qkv` is unspecified afterwards. With [`QkvParams::queries_alone`] the cache stays as it is.
    RopeToCache {
        /// `(rows, q + k + v)`, changed.
        qkv: W,
        /// Norms and rotation.
        params: QkvParams<V>,
        /// Written at the batch's slots.
        kv: K,
        /// The cache's layer.
        layer: usize,
    },
    /// Causal attention over a layer of the cache.
    ///
    /// Causal attention of the queries in rows of `[q | k | v]` over the layer's cache, into which the batch's own
    /// keys and values have been written. `out` is `(rows, heads * head_dim)`. The window is at most that of the
    /// layer's group: blocks before it are in no block table.
    Attention {
        /// `(rows, q + k + v)`, read.
        qkv: R,
        /// Heads, scale, window.
        params: AttentionParams<V>,
        /// Read.
        kv: K,
        /// The cache's layer.
        layer: usize,
        /// `(rows, heads * head_dim)`, written.
        out: W,
    },
    /// Product of each head with a matrix of its own.
    ///
    /// Multiplies each head by its own matrix. For head h with `weights[h]` of `(outputs, cols)`, `out[r][h]` is
    /// `weights[h]` times the head's first `cols` elements, followed by a copy of its remaining elements. All
    /// matrices have one shape and hold floats.
    HeadsMatMul {
        /// Matrices, one for each head.
        weights: H,
        /// `(rows, heads * inputs)`, read.
        x: R,
        /// `(rows, heads * outputs)`, written.
        out: W,
    },
    /// Norm and rotary embedding of latents and queries; latents go to the cache.
    ///
    /// Works on rows of `latent`, `(rank + rope_dim)`, and of `queries`, `(heads, rank + rope_dim)`. Norms the first
    /// `rank` elements of the latent and rotates the last `rope_dim` elements of it and of each query, in place.
    /// Writes the latent to the batch's slots of the layer's group in its cache, whose layout must be latent.
    LatentToCache {
        /// `(rows, rank + rope_dim)`, changed.
        latent: W,
        /// `(rows, heads * (rank + rope_dim))`, changed.
        queries: W,
        /// Norm and rotation.
        params: LatentParams<V>,
        /// Written at the batch's slots.
        kv: K,
        /// The cache's layer.
        layer: usize,
    },
    /// Causal attention over latents.
    ///
    /// Causal attention of `queries` over the layer's cache, into which the batch's own latents have been written:
    /// `softmax(scale * q·latent)` weighs the first `rank` elements of the latents. `out` is `(rows, heads * rank)`.
    LatentAttention {
        /// `(rows, heads * (rank + rope_dim))`, read.
        queries: R,
        /// Shape of the heads.
        heads: LatentHeads,
        /// Factor on the dot products.
        scale: f32,
        /// Read.
        kv: K,
        /// The cache's layer.
        layer: usize,
        /// `(rows, heads * rank)`, written.
        out: W,
    },
    /// Short convolution along each sequence.
    ///
    /// Convolution in place on a layer's channels, the first columns of `x`: `x[r][c] = silu(bias[c] + Σ_t
    /// weight[t][c] * x[r - taps + 1 + t][c])` along each sequence, with zeros before its first token. Under
    /// [`StateRule::Convolution`] the result is the sum itself, without `silu`. The inputs that later tokens need
    /// stay in the sequence's state of the layer ([`Batch::states`]).
    Convolve {
        /// `(rows, channels and more)`, changed.
        x: W,
        /// Taps and bias.
        params: ConvolutionParams<V>,
        /// State of the convolution, changed.
        kv: K,
        /// The cache's layer.
        layer: usize,
    },
    /// Recurrence of a state along each sequence.
    ///
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
    Recur {
        /// `(rows, channels and more)`, read.
        x: R,
        /// Decay, steps, skip.
        params: RecurrenceParams<V>,
        /// State of the heads, changed.
        kv: K,
        /// The cache's layer.
        layer: usize,
        /// `(rows, value_heads * value_dim)`, written.
        out: W,
    },
    /// Gate on a half's output.
    ///
    /// `out[r] *= gate[r]`, with the gate passed through the function that its kind names, and the norm before or
    /// after the product.
    GateOutput {
        /// Read, from the column that `params` name.
        gate: R,
        /// Kind of gate, and the norm beside it.
        params: OutputGateParams<V>,
        /// Changed.
        out: W,
    },
    /// Gated MLP.
    ///
    /// `hidden[r] = activation(gate · x[r]) * (up · x[r])`, then `out[r] = down · hidden[r]`. `gate_up` holds gate's
    /// rows, then up's. `hidden` is scratch of `(rows, gate_up.rows / 2)`, unspecified afterwards.
    GatedMlp {
        /// `(2 * ffn, inputs)`
        gate_up: M,
        /// `(outputs, ffn)`
        down: M,
        /// The non-linearity.
        activation: Activation,
        /// `(rows, inputs)`, read.
        x: R,
        /// `(rows, ffn)`, scratch.
        hidden: W,
        /// `(rows, outputs)`, written.
        out: W,
    },
    /// First half of a gated MLP.
    ///
    /// First half of [`Op::GatedMlp`]: `hidden[r] = activation(gate · x[r]) * (up · x[r])`.
    Gated {
        /// `(2 * ffn, inputs)`
        gate_up: M,
        /// The non-linearity.
        activation: Activation,
        /// `(rows, inputs)`, read.
        x: R,
        /// `(rows, ffn)`, written.
        hidden: W,
    },
    /// Changes of outputs by the adapters that the batch's rows have.
    ///
    /// Applies adapters. For each row whose sequence has an adapter ([`Batch::adapters`]) with an entry in `deltas`:
    /// makes its changes ([`OutputChange`]), then `out[r] += scale · B · (A · x[r])` at its columns. Other rows stay
    /// as they are. `low` is scratch of the batch's rows, as wide as the ranks of any adapter's pairs together; none
    /// if no pair has A.
    AddLowRank {
        /// Changes, with a slot for each adapter.
        deltas: Vec<Option<L>>,
        /// `(rows, inputs)`, read.
        x: R,
        /// `(rows, ranks)`, scratch; none where no pair has A.
        low: Option<W>,
        /// `(rows, outputs)`, changed.
        out: W,
    },
    /// Product of an activated gate and its partner, halves of one row.
    ///
    /// `hidden[r] = activation(gate[r]) * up[r]`, where gate and up are the halves of a row of `both`, a buffer of
    /// [`BufferRole::Residual`]. `matmul`, this and `matmul` give bit for bit the results of [`Op::GatedMlp`].
    Gate {
        /// The non-linearity.
        activation: Activation,
        /// `(rows, 2 * ffn)`, read.
        both: R,
        /// `(rows, ffn)`, written.
        hidden: W,
    },
    /// Addition of a shared MLP's output, through a gate where there is one.
    ///
    /// Adds the shared expert, which every row uses: `out[r] += sigmoid(gate · x[r]) * shared[r]`, or `out[r] +=
    /// shared[r]` without a gate. The gate is as long as a row of `x`.
    AddShared {
        /// `(cols)`
        gate: Option<V>,
        /// `(rows, cols)`, read by the gate alone.
        x: R,
        /// `(rows, cols)`, read.
        shared: R,
        /// `(rows, cols)`, changed.
        out: W,
    },
    /// Mixture of experts.
    ///
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
    Moe {
        /// Router, experts, biases.
        weights: MoeOperands<M, V, E, R>,
        /// Choice and weighting of experts.
        params: MoeParams,
        /// `(rows, inputs)`, read.
        x: R,
        /// `(rows, experts_used * ffn)`, scratch.
        hidden: W,
        /// `(rows, outputs)`, written.
        out: W,
    },
    /// Non-linearity of each number.
    ///
    /// `out[r] = activation(out[r])`.
    Activate {
        /// The non-linearity.
        activation: PointActivation<V>,
        /// `(rows, cols)`, changed.
        out: W,
    },
    /// Sum of entries of codebooks, as residual vector quantisation has it (arxiv.org/abs/2107.03312).
    ///
    /// `out[r] = Σ tables[b * entries + codes[r][b]]` over the codebooks b.
    CodebookLookup {
        /// `(codebooks * entries, cols)`
        tables: M,
        /// Entries of a codebook.
        entries: usize,
        /// `(rows, codebooks)`, read: whole numbers below `entries`. The role is [`BufferRole::Residual`](crate::BufferRole), so
        /// that none is rounded.
        codes: R,
        /// `(rows, cols)`, written.
        out: W,
    },
    /// Sum over the devices of a tensor-parallel group.
    ///
    /// All-reduce: sums the batch's rows of `x` over the ranks that share this model, in order, and leaves the sum on
    /// each. Does nothing on one device or without matrices split by columns ([`crate::TensorParallel`]). A bias that
    /// is added before it must count once, so all ranks but the first hold zeros.
    AllReduce {
        /// `(rows, cols)`, changed.
        x: W,
    },
    /// Windows along the tokens, for a convolution by a product.
    ///
    /// Input columns of a convolution along the tokens (im2col): `out[r][c * window + t] = x[r + t - window / 2][c]`,
    /// or 0 outside r's sequence. `window` is odd; `out` is `(rows, cols * window)`.
    Unfold {
        /// `(rows, cols)`, read.
        x: R,
        /// Tokens of a window; odd.
        window: usize,
        /// `(rows, cols * window)`, written.
        out: W,
    },
    /// Group norm of each sequence (arxiv.org/abs/1803.08494).
    ///
    /// Columns are divided into `groups` of neighbours. `out[r][c] = (x[r][c] - mean) / sqrt(variance + eps) * weight[c] +
    /// bias[c]`, with the mean and variance of the column's group over all rows of the sequence. Sequences are whole.
    GroupNorm {
        /// `(rows, cols)`, read.
        x: R,
        /// Groups, a divisor of the columns.
        groups: usize,
        /// Scale and shift of each column.
        params: LayerNormParams<V>,
        /// `(rows, cols)`, written.
        out: W,
    },
    /// Scale and shift of rows by numbers of their sequence (adaLN, arxiv.org/abs/2212.09748).
    ///
    /// `out[r] = out[r] * (1 + by[s][scale..]) + by[s][shift..]`, where s is the number of r's sequence in the batch.
    Modulate {
        /// `(rows, columns)`, read: row s has the numbers of sequence s, as many as `out` has columns from `scale` and from
        /// `shift` on. The buffer has room for the batch's rows, so that a pipeline can bring it.
        by: R,
        /// First column of the scales.
        scale: usize,
        /// First column of the shifts.
        shift: usize,
        /// `(rows, cols)`, changed.
        out: W,
    },
    /// Convolution over the grids of the batch, each a whole sequence: of two or three axes.
    ///
    /// `out[o][f] = bias[f] + Σ weight[f][c * taps + t] * x[i][c]`, over the channels c of f's group and the taps t of the
    /// kernel, i being the place that t reads for o, `o * stride + t * dilation - padding` on each axis. Places outside the
    /// grid are 0. The outputs of one grid follow those of the other, so that `out` may have more or fewer rows than the batch.
    ///
    /// A row may hold several neighbouring places, so that a sequence has more places than rows: a row of `x` with `n *
    /// channels` columns holds n, and a row of `out` with `m * outputs` columns holds m. Numbers past the last place are neither
    /// read nor written, so that the number of places need not be a multiple of the rows.
    ///
    /// With `affine`, `x[i][c] * scale[c] + shift[c]` takes the place of `x`, and with `before` the activation of that. With `add`,
    /// its numbers are added to those of `out`.
    Conv {
        /// `(rows, places * channels)`, read.
        x: R,
        /// Scale, then shift, of each channel: row s has those of sequence s, as [`Op::InstanceAffine`] writes them.
        affine: Option<R>,
        /// Activation of x.
        before: Option<PointActivation<V>>,
        /// `(outputs, channels / groups * taps)`, packed by [`DeviceMemory::pack_kernel`](crate::DeviceMemory::pack_kernel).
        weight: M,
        /// `(outputs)`
        bias: Option<V>,
        /// Extents, stride, padding, dilation, groups.
        params: ConvParams,
        /// Read in the shape of `out`.
        add: Option<R>,
        /// `(grids * places of the output, outputs)`, written.
        out: W,
    },
    /// Transposed convolution over the grids of the batch, each a whole sequence: of one, two or three axes.
    ///
    /// `out[o][f] = bias[f] + Σ weight[c][f * taps + t] * x[i][c]`, over the channels c of f's group, f counting in it, and over
    /// the places i and taps t with `o = i * stride + t * dilation - padding` on each axis. The outputs of one grid follow those of
    /// the other, so that `out` may have more or fewer rows than the batch. Rows hold places, and `affine` and `before`
    /// change `x`, as in [`Op::Conv`].
    ConvTranspose {
        /// `(rows, places * channels)`, read.
        x: R,
        /// Scale, then shift, of each channel: row s has those of sequence s, as [`Op::InstanceAffine`] writes them.
        affine: Option<R>,
        /// Activation of x.
        before: Option<PointActivation<V>>,
        /// `(channels, outputs / groups * taps)`, packed by [`DeviceMemory::pack_kernel`](crate::DeviceMemory::pack_kernel).
        weight: M,
        /// `(outputs)`
        bias: Option<V>,
        /// Extents, stride, padding, dilation, groups.
        params: ConvParams,
        /// `(grids * places of the output, outputs)`, written.
        out: W,
    },
    /// Instance norm (arxiv.org/abs/1607.08022) as a scale and a shift of each channel, for the op that reads the channels.
    ///
    /// `out[s] = [scale | shift]` of sequence s with `scale[c] = weight[c] / sqrt(variance + eps)` and `shift[c] = bias[c] - mean *
    /// scale[c]`, with the mean and variance of channel c over the places of the sequence.
    InstanceAffine {
        /// `(rows, places * channels)`, read.
        x: R,
        /// Places of each sequence, as in [`Op::Conv`]; none for all that its rows hold.
        places: Option<usize>,
        /// Scale and shift of each channel.
        params: LayerNormParams<V>,
        /// `(sequences, 2 * channels)`, written. The buffer has room for the batch's rows.
        out: W,
    },
    /// Places of each sequence, behind some that mirror them: place `-i` is place `i`.
    Mirror {
        /// `(rows, places * channels)`, read.
        x: R,
        /// Channels of a place.
        channels: usize,
        /// Places of each sequence, as in [`Op::Conv`]; none for all that its rows hold.
        places: Option<usize>,
        /// Mirrored places, fewer than the places of a sequence.
        before: usize,
        /// The sequences' places one behind the other, written.
        out: W,
    },
    /// Long short-term memory (doi.org/10.1162/neco.1997.9.8.1735) along each sequence, in both directions.
    ///
    /// With the gates `[i | f | g | o] = gates[r] + recurrent · h`, each of `hidden` numbers, the cell `c = sigmoid(f) * c +
    /// sigmoid(i) * tanh(g)` and the state `h = sigmoid(o) * tanh(c)`, which are zeros before the first row. `out[r]` is the state
    /// of the forward direction, then that of the backward one.
    Lstm {
        /// `(rows, 2 * 4 * hidden)`, read: the inputs' part of the gates of both directions.
        gates: R,
        /// `(2, hidden, 4 * hidden)`: for each direction and state the addition to each gate.
        recurrent: V,
        /// `(rows, 2 * hidden)`, written.
        out: W,
    },
    /// Norms and rotary embedding in place, without a cache.
    ///
    /// Works in place on rows of `[q | k | v]`: norms queries and keys and rotates them by each row's position. Values
    /// stay as they are, and no cache is written.
    Rope {
        /// `(rows, q + k + v)`, changed.
        qkv: W,
        /// Norms and rotation.
        params: QkvParams<V>,
    },
    /// Attention inside whole sequences.
    ///
    /// Attention inside each sequence of the batch, all of which must be whole (`context == rows`). Queries, keys and
    /// values are the sequence's rows of `[q | k | v]`, in f32; `out` is `(rows, heads * head_dim)`. There is no
    /// cache.
    SelfAttention {
        /// `(rows, q + k + v)`, read.
        qkv: R,
        /// Heads, scale, bias.
        params: SelfAttentionParams<V, T>,
        /// `(rows, heads * head_dim)`, written.
        out: W,
    },
    /// Attention inside whole sequences, with learned keys and values of near places.
    ///
    /// `out[r] = Σ_k softmax_k(scale * q_r · (key_k + near_key)) * (value_k + near_value)` over the rows k of r's sequence, in
    /// each head. The near ones are those of the distance from r to k, where it is within reach. Queries, keys and values are
    /// the sequence's rows of `[q | k | v]`.
    RelativeAttention {
        /// `(rows, q + k + v)`, read.
        qkv: R,
        /// Heads, scale, near keys and values.
        params: RelativeParams<V>,
        /// `(rows, heads * head_dim)`, written.
        out: W,
    },
    /// Attention of some queries of one sequence to all of it.
    ///
    /// Attention of some queries of one sequence to all of it, without reach, padding or bias. `rows` of `qkv` are the
    /// sequence's `[q | k | v]`, from any step. `queries` count from its first row, begin at a multiple of
    /// [`QUERIES_PART`], and are as many as the batch has rows. `out` is `(queries, heads * head_dim)`, bit for bit
    /// equal to [`Op::SelfAttention`] of the whole sequence.
    ///
    /// # Panics
    /// If [`Facts::attends_in_parts`](crate::Facts::attends_in_parts) is false.
    AttendPart {
        /// `(rows, q + k + v)` of the sequence, read.
        qkv: R,
        /// Rows of the sequence in `qkv`.
        rows: Range<usize>,
        /// Queries, counted from the sequence's first row.
        queries: Range<usize>,
        /// Heads and scale.
        params: SelfAttentionParams<V, T>,
        /// `(queries, heads * head_dim)`, written.
        out: W,
    },
}

/// An op over the operands of a backend, by reference.
pub type DeviceOp<'a, B> = Op<
    &'a <B as DeviceMemory>::Matrix,
    &'a <B as DeviceMemory>::Vector,
    &'a <B as DeviceMemory>::Experts,
    &'a Vec<<B as DeviceMemory>::Matrix>,
    &'a <B as DeviceMemory>::LowRank,
    &'a <B as DeviceMemory>::Buffer,
    &'a mut <B as DeviceMemory>::Buffer,
    &'a mut <B as DeviceMemory>::Kv,
    &'a [u32],
>;

/// The head of a step, and what adapters do to its logits.
#[derive(Clone, Debug)]
pub struct HeadOperands {
    /// `(vocab, hidden)`
    pub matrix: MatrixId,
    /// A slot an adapter, and scratch of `(rows, ranks)`.
    pub adapted: Option<(Vec<Option<LowRankId>>, BufferId)>,
}

impl HeadOperands {
    /// A matrix without adapters.
    pub fn of(matrix: &Matrix) -> Self {
        Self { matrix: matrix.id(), adapted: None }
    }
}
