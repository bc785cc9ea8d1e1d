//! Whisper's network as lists of ops, built once its weights and buffers are there.
//!
//! The encoder runs in pieces of some rows, so attention stands between the two lists of its layers. The decoder's layers are
//! cut before their cross-attention, where the queries of some heads are read.

use hanzo_engine_ops::{Activation, BufferId, HeadShape, Op, QkvParams, RowOp};

use super::network::{Cross, Layer, Linear, WhisperBuffers, WhisperWeights};
use super::spec::WhisperSpec;
use crate::network::{Attend, CacheLayer, Norm, ProgramBuilder, ToMemory};
use crate::spec::{NormKind, NormSpec};

const NORM: NormSpec = NormSpec { kind: NormKind::Layer { bias: true }, eps: 1e-5 };
const GELU: Activation = Activation::GeluErf;

/// Ops of one layer.
pub(super) struct LayerOps {
    /// Ops to queries, keys and values in the encoder, and to the queries of cross-attention in the decoder.
    pub(super) rows: Vec<Op>,
    /// The rest of the layer: in the encoder from attention's output on.
    pub(super) behind: Vec<Op>,
}

/// The network as lists of ops.
pub(super) struct WhisperProgram {
    /// First convolution, from unfolded frames in `narrow` to `normed`.
    pub(super) first: Vec<Op>,
    /// Second convolution, from unfolded rows in `wide`, and positions, to `residual`.
    pub(super) second: Vec<Op>,
    /// Layers of the encoder, on `residual`.
    pub(super) encoder: Vec<LayerOps>,
    /// Attention of the encoder's layers, over a window in `kept`.
    pub(super) attention: Attend,
    /// Norm of the encoder's output in `residual`, to `normed`.
    pub(super) encoded: Vec<Op>,
    /// Keys and values of encoded rows in `normed`, to the cross-attention cache of each layer. They stay in `pair`.
    pub(super) memories: Vec<Vec<Op>>,
    /// Embeddings of tokens and positions, and the first layer's norm.
    pub(super) begin: Vec<Op>,
    /// Layers of the decoder. The queries of cross-attention are in `written` between the two lists.
    pub(super) decoder: Vec<LayerOps>,
}

/// Buffers that a layer's halves use.
#[derive(Clone, Copy)]
struct Roles {
    residual: BufferId,
    normed: BufferId,
    branch: BufferId,
    inner: BufferId,
}

fn scale(heads: HeadShape) -> f32 {
    (heads.head_dim as f32).sqrt().recip()
}

fn matmul(p: &mut ProgramBuilder, Linear { weight, bias }: &Linear, x: BufferId, out: BufferId) {
    p.matmul(weight, Some(bias), x, out);
}

fn gelu(p: &mut ProgramBuilder, Linear { weight, bias }: &Linear, x: BufferId, out: BufferId) {
    p.activated(weight, Some(bias), GELU, x, out);
}

/// Adds attention's output in `normed` to the residual, and leaves the MLP's output in `branch`.
fn mlp(p: &mut ProgramBuilder, layer: &Layer, Roles { residual, normed, branch, inner }: Roles) {
    p.add(normed, residual);
    p.norm(&layer.last_norm, NORM, residual, branch);
    gelu(p, &layer.up, branch, inner);
    matmul(p, &layer.down, inner, branch);
}

impl WhisperProgram {
    pub(super) fn new(spec: &WhisperSpec, weights: &WhisperWeights, b: &WhisperBuffers) -> Self {
        let mut p = ProgramBuilder::default();
        gelu(&mut p, &weights.first, b.narrow.id(), b.normed.id());
        let first = p.finish_ops();
        gelu(&mut p, &weights.second, b.wide.id(), b.residual.id());
        p.add_positions(&weights.moments, b.residual.id());
        let second = p.finish_ops();
        p.norm(&weights.encoder_norm, NORM, b.residual.id(), b.normed.id());
        let encoded = p.finish_ops();
        let (heads, decoder) = (spec.heads(spec.encoder), spec.heads(spec.decoder));
        let attention = Attend { qkv: b.kept.id(), heads, scale: scale(heads), out: b.branch.id() };
        let memory = |(index, (_, cross)): (usize, &(Layer, Cross))| to_memory(cross, decoder, b, index);
        let following = weights.decoder.iter().skip(1).map(|(layer, _)| &layer.norm);
        let following = following.chain([&weights.decoder_norm]);
        let layers = weights.decoder.iter().zip(following).enumerate();
        Self {
            first,
            second,
            encoder: weights.encoder.iter().map(|layer| encoder_layer(layer, b)).collect(),
            attention,
            encoded,
            memories: weights.decoder.iter().enumerate().map(memory).collect(),
            begin: begin(weights, b),
            decoder: layers
                .map(|(index, ((layer, cross), next))| decoder_layer(layer, cross, next, decoder, b, index))
                .collect(),
        }
    }
}

fn encoder_layer(layer: &Layer, b: &WhisperBuffers) -> LayerOps {
    let (residual, normed, branch) = (b.residual.id(), b.normed.id(), b.branch.id());
    let mut p = ProgramBuilder::default();
    p.norm(&layer.norm, NORM, residual, normed);
    matmul(&mut p, &layer.qkv, normed, b.wide.id());
    let rows = p.finish_ops();
    matmul(&mut p, &layer.out, branch, normed);
    mlp(&mut p, layer, Roles { residual, normed, branch, inner: b.inner.id() });
    p.row(RowOp::Add { x: branch, first: 0, factor: 1.0 }, residual);
    LayerOps { rows, behind: p.finish_ops() }
}

/// Keys and values of encoded rows, into one layer of the memories.
fn to_memory(cross: &Cross, heads: HeadShape, b: &WhisperBuffers, index: usize) -> Vec<Op> {
    let Linear { weight, bias } = &cross.memory;
    let params = QkvParams::plain(heads);
    let to = ToMemory { weight, bias: Some(bias), params, pairs: b.pair.id(), own: b.wide.id() };
    let mut p = ProgramBuilder::default();
    p.remember(b.normed.id(), to, CacheLayer { kv: b.memories.id(), layer: index });
    p.finish_ops()
}

/// Embeddings of the decoder's rows, and the norm that its first layer reads.
fn begin(weights: &WhisperWeights, b: &WhisperBuffers) -> Vec<Op> {
    let residual = b.written_residual.id();
    let mut p = ProgramBuilder::default();
    p.embed(&weights.embedding, 1.0, residual);
    p.add_positions(&weights.positions, residual);
    p.norm(&weights.decoder[0].0.norm, NORM, residual, b.written.id());
    p.finish_ops()
}

/// Ops of a decoder's layer, from its input in `written` to that of the next, whose norm is `next`.
fn decoder_layer(
    layer: &Layer,
    cross: &Cross,
    next: &Norm,
    heads: HeadShape,
    b: &WhisperBuffers,
    index: usize,
) -> LayerOps {
    let (residual, written, branch) = (b.written_residual.id(), b.written.id(), b.branch.id());
    let (wide, scale) = (b.wide.id(), scale(heads));
    let mut p = ProgramBuilder::default();
    matmul(&mut p, &layer.qkv, written, wide);
    p.attend(heads, scale, CacheLayer { kv: b.cache.id(), layer: index }, wide, branch);
    matmul(&mut p, &layer.out, branch, written);
    p.add(written, residual);
    p.norm(&cross.norm, NORM, residual, branch);
    matmul(&mut p, &cross.query, branch, written);
    let rows = p.finish_ops();
    p.attend_memory(heads, scale, CacheLayer { kv: b.memories.id(), layer: index }, written, branch);
    matmul(&mut p, &cross.out, branch, written);
    mlp(&mut p, layer, Roles { residual, normed: written, branch, inner: b.written_inner.id() });
    p.add(branch, residual);
    p.norm(next, NORM, residual, written);
    LayerOps { rows, behind: p.finish_ops() }
}
