//! The parameters of ops with what they name on another device: for backends that hand ops on.

use crate::{
    AttentionParams, Backend, ConvolutionParams, LatentParams, LayerNormParams, MoeWeights, OutputGateParams,
    OutputNorm, QkvParams, RecurrenceParams, Rope, RowOp,
};

impl<'a, V> LayerNormParams<'a, V> {
    pub(crate) fn with<W>(&self, of: impl Fn(&'a V) -> &'a W) -> LayerNormParams<'a, W> {
        LayerNormParams { weight: of(self.weight), bias: self.bias.map(of), eps: self.eps }
    }
}

impl<'a, V> Rope<'a, V> {
    fn with<W>(&self, of: impl Fn(&'a V) -> &'a W) -> Rope<'a, W> {
        let &Rope { kind, inv_freq, magnitude, axes, long } = self;
        Rope { kind, inv_freq: of(inv_freq), magnitude, axes, long }
    }
}

impl<'a, V> QkvParams<'a, V> {
    pub(crate) fn with<W>(&self, of: impl Fn(&'a V) -> &'a W) -> QkvParams<'a, W> {
        QkvParams {
            shape: self.shape,
            q_norm: self.q_norm.map(&of),
            k_norm: self.k_norm.map(&of),
            norm_eps: self.norm_eps,
            norm_after_rope: self.norm_after_rope,
            rope: self.rope.as_ref().map(|rope| rope.with(&of)),
            query_scale: self.query_scale,
            values_normed: self.values_normed,
            queries_alone: self.queries_alone,
        }
    }
}

impl<'a, V> AttentionParams<'a, V> {
    pub(crate) fn with<W>(&self, of: impl Fn(&'a V) -> &'a W) -> AttentionParams<'a, W> {
        AttentionParams {
            shape: self.shape,
            scale: self.scale,
            softcap: self.softcap,
            window: self.window,
            chunked: self.chunked,
            sinks: self.sinks.map(&of),
            slopes: self.slopes.map(&of),
            queries_alone: self.queries_alone,
            memory: self.memory,
        }
    }
}

impl<'a, V> LatentParams<'a, V> {
    pub(crate) fn with<W>(&self, of: impl Fn(&'a V) -> &'a W) -> LatentParams<'a, W> {
        let LatentParams { shape, norm, norm_eps, rope } = self;
        LatentParams { shape: *shape, norm: of(norm), norm_eps: *norm_eps, rope: rope.with(of) }
    }
}

impl<'a, V> ConvolutionParams<'a, V> {
    pub(crate) fn with<W>(&self, of: impl Fn(&'a V) -> &'a W) -> ConvolutionParams<'a, W> {
        ConvolutionParams { shape: self.shape, weight: of(self.weight), bias: self.bias.map(of) }
    }
}

impl<'a, V> RecurrenceParams<'a, V> {
    pub(crate) fn with<W>(&self, of: impl Fn(&'a V) -> &'a W) -> RecurrenceParams<'a, W> {
        RecurrenceParams {
            shape: self.shape,
            decay: of(self.decay),
            step_bias: of(self.step_bias),
            step_limits: self.step_limits,
            skip: self.skip.map(of),
        }
    }
}

impl<'a, V> OutputGateParams<'a, V> {
    pub(crate) fn with<W>(&self, of: impl Fn(&'a V) -> &'a W) -> OutputGateParams<'a, W> {
        let norm = self.norm.as_ref().map(|&OutputNorm { weight, eps, part, before_gate }| OutputNorm {
            weight: of(weight),
            eps,
            part,
            before_gate,
        });
        OutputGateParams { column: self.column, kind: self.kind, norm }
    }
}

impl<'a, B: Backend> MoeWeights<'a, B> {
    pub(crate) fn with<'b, C: Backend>(
        &self,
        matrix: impl Fn(&'a B::Matrix) -> &'b C::Matrix,
        vector: impl Fn(&'a B::Vector) -> &'b C::Vector,
        experts: impl Fn(&'a B::Experts) -> &'b C::Experts,
        routed: Option<&'b C::Buffer>,
    ) -> MoeWeights<'b, C> {
        MoeWeights {
            router: matrix(self.router),
            router_bias: self.router_bias.map(&vector),
            correction: self.correction.map(&vector),
            experts: experts(self.experts),
            up_bias: self.up_bias.map(&vector),
            down_bias: self.down_bias.map(&vector),
            expert_scale: self.expert_scale.map(&vector),
            routed,
        }
    }
}

/// The buffers that an op on rows reads.
pub(crate) fn read_by<'a, T, V>(op: &RowOp<'a, T, V>) -> [Option<&'a T>; 3] {
    match *op {
        RowOp::Multiply { by, .. } => [Some(by), None, None],
        RowOp::Take { x, .. }
        | RowOp::Put { x, .. }
        | RowOp::Add { x, .. }
        | RowOp::Spread { x, .. }
        | RowOp::MatchSize { x, .. } => [Some(x), None, None],
        RowOp::Mix { base, x, weights, .. } => [Some(base), Some(x), Some(weights)],
        RowOp::Scale(_)
        | RowOp::Weigh(_)
        | RowOp::Tanh
        | RowOp::Xielu { .. }
        | RowOp::KeepOutliers { .. } => [None; 3],
    }
}

/// An op on rows that reads these instead, in the order of [`read_by`].
pub(crate) fn reading<'a: 'b, 'b, T, V, U, W: 'a>(
    op: &RowOp<'a, T, V>,
    read: [Option<&'b U>; 3],
    of: impl Fn(&'a V) -> &'a W,
) -> RowOp<'b, U, W> {
    let buffer = |index: usize| read[index].expect("as many as the op reads");
    match *op {
        RowOp::Multiply { first, .. } => RowOp::Multiply { by: buffer(0), first },
        RowOp::Take { first, .. } => RowOp::Take { x: buffer(0), first },
        RowOp::Put { first, .. } => RowOp::Put { x: buffer(0), first },
        RowOp::Add { first, factor, .. } => RowOp::Add { x: buffer(0), first, factor },
        RowOp::Spread { first, .. } => RowOp::Spread { x: buffer(0), first },
        RowOp::MatchSize { least, .. } => RowOp::MatchSize { x: buffer(0), least },
        RowOp::Mix { plus, .. } => RowOp::Mix { base: buffer(0), x: buffer(1), weights: buffer(2), plus },
        RowOp::Scale(factor) => RowOp::Scale(factor),
        RowOp::Weigh(weights) => RowOp::Weigh(of(weights)),
        RowOp::Tanh => RowOp::Tanh,
        RowOp::Xielu { positive, negative, linear } => RowOp::Xielu { positive, negative, linear },
        RowOp::KeepOutliers { deviations } => RowOp::KeepOutliers { deviations },
    }
}
