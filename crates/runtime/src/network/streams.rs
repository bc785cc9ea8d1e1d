//! Several streams beside each other (AltUp, arxiv.org/abs/2301.13310), as Gemma 3n has them: a layer predicts all of them by mixing them,
//! computes one, and corrects all by what that has become. Beside attention there is a narrow way (LAuReL), and of some layers'
//! gates only the largest numbers count.

use hanzo_engine_ops as ops;
use hanzo_engine_ops::{AnyBackend, BufferId, BufferRole, KernelError, RowOp, Stage};

use super::layers::LayerBuilder;
use super::loader::Loader;
use super::packing::{LAUREL_DOWN, LAUREL_UP, STREAM_CORRECTION, STREAM_PREDICTION, STREAM_ROUTER};
use super::program::{ProgramBuilder, Sum};
use super::{Group, Layer, Norm, packing};
use crate::error::LoadError;
use crate::spec::{GemmaPart, LayerPart, Part, StreamsSpec, TransformerSpec};

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
    pub(super) fn part(&self, p: &mut ProgramBuilder, sum: BufferId, hidden: usize, b: &StreamBuffers) {
        let (streams, one) = (b.streams.id(), b.one.id());
        p.row(RowOp::Put { x: sum, first: 0 }, streams);
        for (stream, up) in self.up.iter().enumerate() {
            p.matmul(up, None, sum, one);
            p.row(RowOp::MatchSize { x: sum, least: SIZE_MIN }, one);
            p.row(RowOp::Put { x: one, first: (stream + 1) * hidden }, streams);
        }
    }

    /// Scales each stream to the first one's size and averages them.
    pub(super) fn join(&self, p: &mut ProgramBuilder, hidden: usize, roles: Sum, b: &StreamBuffers) {
        let Sum { residual: sum, normed: first, branch: one_more } = roles;
        let (streams, one) = (b.streams.id(), b.one.id());
        p.row(RowOp::Take { x: streams, first: 0 }, sum);
        p.row(RowOp::Take { x: streams, first: 0 }, first);
        for (stream, down) in self.down.iter().enumerate() {
            p.row(RowOp::Take { x: streams, first: (stream + 1) * hidden }, one);
            p.matmul(down, None, one, one_more);
            p.row(RowOp::MatchSize { x: first, least: SIZE_MIN }, one_more);
            p.row(RowOp::Add { x: one_more, first: 0, factor: 1.0 }, sum);
        }
        p.row(RowOp::Scale(1.0 / (1 + self.down.len()) as f32), sum);
    }
}

impl LayerStreams {
    /// How streams mix, by one of them in `x`.
    fn route(&self, p: &mut ProgramBuilder, eps: f32, x: BufferId, b: &StreamBuffers) {
        let (one, routed) = (b.one.id(), b.routed.id());
        p.rms_norm(x, &self.router_norm, eps, one);
        p.matmul(&self.router, None, one, routed);
        p.row(RowOp::Tanh, routed);
    }

    /// Adds the output of the narrow way to the sum, which has attention's output, and keeps the sum's size.
    pub(super) fn add_laurel(&self, p: &mut ProgramBuilder, sum: BufferId, b: &StreamBuffers) {
        p.row(RowOp::Add { x: b.laurel.id(), first: 0, factor: 1.0 }, sum);
        p.row(RowOp::Scale(std::f32::consts::FRAC_1_SQRT_2), sum);
    }
}

impl<'a> LayerBuilder<'a> {
    fn streams(&self) -> Option<(&'a LayerStreams, &'a StreamBuffers, &'a StreamsSpec)> {
        Some((self.layer.streams.as_ref()?, self.b.streams.as_ref()?, self.network.spec.streams.as_ref()?))
    }

    /// Predicts all streams. The active one becomes the sum, and its norm what attention reads.
    pub(super) fn predict_streams(&mut self) {
        let Some((of, b, spec)) = self.streams() else { return };
        let (Sum { residual, normed, .. }, norm, p) = (self.sum, self.norm, &mut self.p);
        let first = spec.active * self.network.spec.hidden;
        let (streams, predicted, weights) = (b.streams.id(), b.predicted.id(), b.weights.id());
        let (low, laurel, one) = (b.low.id(), b.laurel.id(), b.one.id());
        p.row(RowOp::Take { x: streams, first }, residual);
        of.route(p, norm.eps, residual, b);
        p.matmul(&of.prediction, None, b.routed.id(), weights);
        p.row(RowOp::Mix { base: streams, x: streams, weights, plus: 0.0 }, predicted);
        p.row(RowOp::Take { x: predicted, first }, residual);
        p.norm(&of.input_norm, norm, residual, normed);
        p.matmul(&of.laurel_down, None, normed, low);
        p.matmul(&of.laurel_up, None, low, one);
        p.norm(&of.laurel_norm, norm, one, laurel);
        p.row(RowOp::Add { x: normed, first: 0, factor: 1.0 }, laurel);
    }

    /// Corrects all streams by what the sum has become, and adds what the layer makes of the token's own vector to all but the
    /// first. Returns whether the network has streams.
    pub(super) fn correct_streams(&mut self) -> bool {
        let Some((of, b, spec)) = self.streams() else { return false };
        self.add_branch(None);
        let inputs = (&self.layer.input, &self.b.inputs, self.network.spec.layer_inputs);
        let (Some(input), Some(inputs), Some(width)) = inputs else { return true };
        let first = spec.active * self.network.spec.hidden;
        let (residual, p) = (self.sum.residual, &mut self.p);
        let (streams, corrections, one) = (b.streams.id(), b.corrections.id(), b.one.id());
        of.route(p, self.norm.eps, residual, b);
        p.row(RowOp::Add { x: b.predicted.id(), first, factor: -1.0 }, residual);
        p.matmul(&of.correction, None, b.routed.id(), corrections);
        let mixed = RowOp::Mix { base: b.predicted.id(), x: residual, weights: corrections, plus: 1.0 };
        p.row(mixed, streams);
        p.row(RowOp::Take { x: streams, first }, one);
        if let Some(scale) = &of.scale {
            p.row(RowOp::Weigh(scale.id()), one);
        }
        self.layer_input(input, inputs, width, one);
        self.p.row(RowOp::Spread { x: self.sum.branch, first: 1 }, streams);
        true
    }
}

impl Layer {
    /// Deviations above the mean that a gate's number must have to count, where not all do.
    pub(super) fn outliers(&self) -> Option<f32> {
        self.streams.as_ref()?.outliers
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
