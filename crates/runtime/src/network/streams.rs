//! Several streams beside each other (AltUp, arxiv.org/abs/2301.13310), as Gemma 3n has them: a layer predicts all of them by mixing them,
//! computes one, and corrects all by what that has become. Beside attention there is a narrow way (LAuReL), and of some layers'
//! gates only the largest numbers count.

use std::mem::swap;

use hanzo_engine_kernels::{Activation, AnyBackend, Backend, BufferRole, KernelError, RowOp, Stage, ops};

use super::forward::{Normer, Sum};
use super::inputs::{InputBuffers, LayerInput};
use super::loader::Loader;
use super::packing::{LAUREL_DOWN, LAUREL_UP, STREAM_CORRECTION, STREAM_PREDICTION, STREAM_ROUTER};
use super::{AdapterBuffers, Group, Layer, Mlp, Network, Norm, packing};
use crate::error::LoadError;
use crate::spec::{GemmaPart, LayerPart, NormSpec, Part, StreamsSpec, TransformerSpec};

/// What makes streams of embeddings, and one of streams.
pub(super) struct Streams {
    pub(super) up: Vec<ops::Matrix>,   // (streams - 1) of (hidden, hidden)
    pub(super) down: Vec<ops::Matrix>, // likewise
}

/// What a layer has of its own.
pub(super) struct LayerStreams {
    pub(super) input_norm: Norm,           // (hidden): of the stream that is computed
    pub(super) router: ops::Matrix,        // (streams, hidden)
    pub(super) router_norm: ops::Vector,   // (hidden), by the width
    pub(super) prediction: ops::Matrix,    // (streams * streams, streams)
    pub(super) correction: ops::Matrix,    // (streams, streams)
    pub(super) scale: Option<ops::Vector>, // (hidden): of what is multiplied with the layer's vector
    pub(super) laurel_down: ops::Matrix,   // (rank, hidden)
    pub(super) laurel_up: ops::Matrix,     // (hidden, rank)
    pub(super) laurel_norm: Norm,          // (hidden)
    pub(super) outliers: Option<f32>,      // what a gate's number must be above the mean to count
}

/// Activations.
pub(super) struct StreamBuffers {
    streams: ops::Buffer,              // (rows, streams * hidden)
    predicted: ops::Buffer,            // likewise
    routed: ops::Buffer,               // (rows, streams)
    corrections: ops::Buffer,          // likewise
    weights: ops::Buffer,              // (rows, streams * streams)
    low: ops::Buffer,                  // (rows, rank)
    laurel: ops::Buffer,               // (rows, hidden): what the narrow way gives
    one: ops::Buffer,                  // (rows, hidden)
    pub(super) both: Vec<ops::Buffer>, // (rows, 2 * ffn), for each width inside MLPs, in the order of `inner_widths`
}

/// Sizes below it are taken for it.
const SIZE_MIN: f32 = 0.003_162_277_7; // √1e-5

/// Role and columns of [`StreamBuffers`]' members, in their order.
pub(super) fn shapes(spec: &TransformerSpec) -> Vec<(BufferRole, usize)> {
    use BufferRole::{Operand, Residual};
    let Some(streams) = &spec.streams else { return Vec::new() };
    let (count, hidden) = (streams.count, spec.hidden);
    let mut shapes = vec![
        (Residual, count * hidden),
        (Residual, count * hidden),
        (Residual, count),
        (Residual, count),
        (Residual, count * count),
        (Operand, streams.laurel_rank),
        (Residual, hidden),
        (Operand, hidden),
    ];
    shapes.extend(super::inner_widths(spec).into_iter().map(|cols| (Residual, 2 * cols)));
    shapes
}

impl StreamBuffers {
    /// Those of a network, where it has several streams.
    pub(super) fn new(
        backend: &AnyBackend,
        spec: &TransformerSpec,
        rows: usize,
    ) -> Result<Option<Self>, KernelError> {
        let made: Result<Vec<_>, _> =
            shapes(spec).into_iter().map(|(role, cols)| backend.buffer(role, rows, cols)).collect();
        let mut made = made?.into_iter();
        let mut next = || made.next();
        let (Some(streams), Some(predicted), Some(routed)) = (next(), next(), next()) else {
            return Ok(None);
        };
        let (Some(corrections), Some(weights)) = (next(), next()) else { return Ok(None) };
        let (Some(low), Some(laurel), Some(one)) = (next(), next(), next()) else { return Ok(None) };
        let both = made.collect();
        Ok(Some(StreamBuffers { streams, predicted, routed, corrections, weights, low, laurel, one, both }))
    }
}

impl Streams {
    /// Makes the streams of embeddings, which are as large as they are.
    pub(super) fn part(
        &self,
        backend: &mut AnyBackend,
        sum: &ops::Buffer,
        hidden: usize,
        buffers: &mut StreamBuffers,
    ) {
        let StreamBuffers { streams, one, .. } = buffers;
        backend.row_op(&RowOp::Put { x: sum, first: 0 }, streams);
        for (stream, up) in self.up.iter().enumerate() {
            backend.matmul(up, None, sum, one);
            backend.row_op(&RowOp::MatchSize { x: sum, least: SIZE_MIN }, one);
            backend.row_op(&RowOp::Put { x: one, first: (stream + 1) * hidden }, streams);
        }
    }

    /// Makes one of the streams: their mean, each as large as the first.
    pub(super) fn join(
        &self,
        backend: &mut AnyBackend,
        hidden: usize,
        (sum, first, one_more): (&mut ops::Buffer, &mut ops::Buffer, &mut ops::Buffer),
        buffers: &mut StreamBuffers,
    ) {
        let StreamBuffers { streams, one, .. } = buffers;
        backend.row_op(&RowOp::Take { x: streams, first: 0 }, sum);
        backend.row_op(&RowOp::Take { x: streams, first: 0 }, first);
        for (stream, down) in self.down.iter().enumerate() {
            backend.row_op(&RowOp::Take { x: streams, first: (stream + 1) * hidden }, one);
            backend.matmul(down, None, one, one_more);
            backend.row_op(&RowOp::MatchSize { x: first, least: SIZE_MIN }, one_more);
            backend.row_op(&RowOp::Add { x: one_more, first: 0, factor: 1.0 }, sum);
        }
        backend.row_op(&RowOp::Scale(1.0 / (1 + self.down.len()) as f32), sum);
    }
}

impl LayerStreams {
    /// How streams mix, by one of them in `x`.
    fn route(
        &self,
        backend: &mut AnyBackend,
        eps: f32,
        x: &ops::Buffer,
        one: &mut ops::Buffer,
        routed: &mut ops::Buffer,
    ) {
        backend.rms_norm(x, &self.router_norm, eps, one);
        backend.matmul(&self.router, None, one, routed);
        backend.row_op(&RowOp::Tanh, routed);
    }

    /// Predicts all streams; the one that is computed becomes the sum, its norm what attention reads.
    pub(super) fn predict(
        &self,
        backend: &mut AnyBackend,
        first: usize,
        norm: NormSpec,
        (residual, normed): (&mut ops::Buffer, &mut ops::Buffer),
        buffers: &mut StreamBuffers,
    ) {
        let StreamBuffers { streams, predicted, routed, weights, low, laurel, one, .. } = buffers;
        backend.row_op(&RowOp::Take { x: streams, first }, residual);
        self.route(backend, norm.eps, residual, one, routed);
        backend.matmul(&self.prediction, None, routed, weights);
        let (from, weights) = (&*streams, &*weights);
        backend.row_op(&RowOp::Mix { base: from, x: from, weights, plus: 0.0 }, predicted);
        backend.row_op(&RowOp::Take { x: predicted, first }, residual);
        Normer { norm: &self.input_norm, spec: norm }.run(backend, residual, normed);
        backend.matmul(&self.laurel_down, None, normed, low);
        backend.matmul(&self.laurel_up, None, low, one);
        Normer { norm: &self.laurel_norm, spec: norm }.run(backend, one, laurel);
        backend.row_op(&RowOp::Add { x: normed, first: 0, factor: 1.0 }, laurel);
    }

    /// Adds what the narrow way gives to the sum, which has what attention gives, and keeps its size.
    pub(super) fn add_laurel(
        &self,
        backend: &mut AnyBackend,
        sum: &mut ops::Buffer,
        buffers: &StreamBuffers,
    ) {
        backend.row_op(&RowOp::Add { x: &buffers.laurel, first: 0, factor: 1.0 }, sum);
        backend.row_op(&RowOp::Scale(std::f32::consts::FRAC_1_SQRT_2), sum);
    }

    /// Corrects all streams by what the sum has become, and adds what the layer's vector gives to all but the first.
    pub(super) fn correct(
        &self,
        backend: &mut AnyBackend,
        (index, hidden, streams_spec): (usize, usize, &StreamsSpec),
        sum: &mut Sum<'_>,
        (input, inputs, width): (&LayerInput, &mut InputBuffers, usize),
        buffers: &mut StreamBuffers,
    ) {
        let first = streams_spec.active * hidden;
        let StreamBuffers { streams, predicted, routed, corrections, one, .. } = buffers;
        self.route(backend, sum.norm.eps, sum.residual, one, routed);
        backend.row_op(&RowOp::Add { x: predicted, first, factor: -1.0 }, sum.residual);
        backend.matmul(&self.correction, None, routed, corrections);
        let mixed = RowOp::Mix { base: &*predicted, x: &*sum.residual, weights: &*corrections, plus: 1.0 };
        backend.row_op(&mixed, streams);
        backend.row_op(&RowOp::Take { x: streams, first }, one);
        if let Some(scale) = &self.scale {
            backend.row_op(&RowOp::Weigh(scale), one);
        }
        input.run(backend, (Activation::GeluTanh, index * width), one, inputs, sum.branch);
        sum.normer(&input.norm).run(backend, sum.branch, sum.normed);
        swap(sum.branch, sum.normed);
        backend.row_op(&RowOp::Spread { x: sum.branch, first: 1 }, streams);
    }
}

impl Layer {
    /// What a gate's number must be above the mean to count, where not all do.
    pub(super) fn outliers(&self) -> Option<f32> {
        self.streams.as_ref()?.outliers
    }

    /// An MLP of whose gate only the largest numbers count, of rows of `x`.
    pub(super) fn sparse_mlp(
        &self,
        backend: &mut AnyBackend,
        deviations: f32,
        x: &ops::Buffer,
        (inner, both): (&mut ops::Buffer, &mut ops::Buffer),
        mut adapters: Option<&mut AdapterBuffers>,
        out: &mut ops::Buffer,
    ) {
        let Mlp::Gated { activation, gate_up, down, .. } = &self.mlp else { return };
        backend.matmul(gate_up, None, x, both);
        if let Some(adapters) = &mut adapters {
            backend.add_low_rank(&self.deltas.up, x, Some(&mut adapters.low), both);
        }
        backend.row_op(&RowOp::KeepOutliers { deviations }, both);
        backend.gate(*activation, both, inner);
        backend.matmul(down, None, inner, out);
        if let Some(adapters) = &mut adapters {
            backend.add_low_rank(&self.deltas.down, inner, Some(&mut adapters.low), out);
        }
        backend.all_reduce(out);
    }
}

impl Network {
    /// From what the last layer gives to hidden states, where that is not what it leaves.
    pub(crate) fn end(&mut self, backend: &mut AnyBackend) {
        let (Some(streams), Some(b)) = (&self.streams, &mut self.buffers) else { return };
        let Some(buffers) = &mut b.streams else { return };
        streams.join(backend, self.spec.hidden, (&mut b.residual, &mut b.normed, &mut b.branch), buffers);
        if let Some(norm) = self.layers.last().and_then(|layer| layer.last_norm.as_ref()) {
            Normer { norm, spec: self.spec.norm }.run(backend, &b.residual, &mut b.normed);
        }
    }
}

impl Loader<'_> {
    /// What makes streams, where there are several.
    pub(super) fn streams(&mut self) -> Result<Option<Streams>, LoadError> {
        let Some(count) = self.spec.streams.as_ref().map(|streams| streams.count) else { return Ok(None) };
        let all = |loader: &mut Self, part: fn(usize) -> GemmaPart| -> Result<Vec<ops::Matrix>, LoadError> {
            (0..count - 1).map(|stream| loader.pack(&Group::multiplied(Part::Gemma(part(stream))))).collect()
        };
        let up = all(self, GemmaPart::StreamUp)?;
        self.backend.enter(packing::last_layer(self.spec));
        let down = all(self, GemmaPart::StreamDown);
        self.backend.enter(Stage::Inputs);
        Ok(Some(Streams { up, down: down? }))
    }

    /// What a layer has of streams.
    pub(super) fn layer_streams(&mut self, layer: usize) -> Result<Option<LayerStreams>, LoadError> {
        let Some(streams) = &self.spec.streams else { return Ok(None) };
        let part = |part| Part::Layer(layer, LayerPart::Gemma(part));
        // What the router reads is divided by the width.
        let router_norm = self.take(part(GemmaPart::StreamRouterNorm).weight())?;
        let router_norm: Vec<f32> = router_norm.iter().map(|of| of / self.spec.hidden as f32).collect();
        Ok(Some(LayerStreams {
            input_norm: self.norm(Part::Layer(layer, LayerPart::AttentionNorm))?,
            router: self.matrix(layer, STREAM_ROUTER)?,
            router_norm: self.backend.vector(&router_norm)?,
            prediction: self.matrix(layer, STREAM_PREDICTION)?,
            correction: self.matrix(layer, STREAM_CORRECTION)?,
            scale: match streams.scaled {
                true => Some(self.vector(part(GemmaPart::StreamScale).weight())?),
                false => None,
            },
            laurel_down: self.matrix(layer, LAUREL_DOWN)?,
            laurel_up: self.matrix(layer, LAUREL_UP)?,
            laurel_norm: self.norm(part(GemmaPart::LaurelNorm))?,
            outliers: streams.outliers[layer],
        }))
    }
}
