//! Parameters of ops with their operands replaced by those of another device, for backends that pass ops on.

use crate::{
    AttentionParams, ConvolutionParams, LatentParams, LayerNormParams, MoeOperands, OutputGateParams,
    OutputNorm, QkvParams, RecurrenceParams, Rope, RowOp,
};

impl<V: Copy> LayerNormParams<V> {
    pub(crate) fn with<W>(&self, mut of: impl FnMut(V) -> W) -> LayerNormParams<W> {
        LayerNormParams { weight: of(self.weight), bias: self.bias.map(of), eps: self.eps }
    }
}

impl<V: Copy> Rope<V> {
    fn with<W>(&self, mut of: impl FnMut(V) -> W) -> Rope<W> {
        let &Rope { kind, inv_freq, magnitude, axes, long } = self;
        Rope { kind, inv_freq: of(inv_freq), magnitude, axes, long }
    }
}

impl<V: Copy> QkvParams<V> {
    pub(crate) fn with<W>(&self, mut of: impl FnMut(V) -> W) -> QkvParams<W> {
        QkvParams {
            shape: self.shape,
            q_norm: self.q_norm.map(&mut of),
            k_norm: self.k_norm.map(&mut of),
            norm_eps: self.norm_eps,
            norm_after_rope: self.norm_after_rope,
            rope: self.rope.as_ref().map(|rope| rope.with(&mut of)),
            query_scale: self.query_scale,
            values_normed: self.values_normed,
            queries_alone: self.queries_alone,
        }
    }
}

impl<V: Copy> AttentionParams<V> {
    pub(crate) fn with<W>(&self, mut of: impl FnMut(V) -> W) -> AttentionParams<W> {
        AttentionParams {
            shape: self.shape,
            scale: self.scale,
            softcap: self.softcap,
            window: self.window,
            chunked: self.chunked,
            sinks: self.sinks.map(&mut of),
            slopes: self.slopes.map(&mut of),
            queries_alone: self.queries_alone,
            memory: self.memory,
        }
    }
}

impl<V: Copy> LatentParams<V> {
    pub(crate) fn with<W>(&self, mut of: impl FnMut(V) -> W) -> LatentParams<W> {
        let &LatentParams { shape, norm, norm_eps, rope } = self;
        LatentParams { shape, norm: of(norm), norm_eps, rope: rope.with(of) }
    }
}

impl<V: Copy> ConvolutionParams<V> {
    pub(crate) fn with<W>(&self, mut of: impl FnMut(V) -> W) -> ConvolutionParams<W> {
        ConvolutionParams { shape: self.shape, weight: of(self.weight), bias: self.bias.map(of) }
    }
}

impl<V: Copy> RecurrenceParams<V> {
    pub(crate) fn with<W>(&self, mut of: impl FnMut(V) -> W) -> RecurrenceParams<W> {
        RecurrenceParams {
            shape: self.shape,
            decay: of(self.decay),
            step_bias: of(self.step_bias),
            step_limits: self.step_limits,
            skip: self.skip.map(of),
        }
    }
}

impl<V: Copy> OutputGateParams<V> {
    pub(crate) fn with<W>(&self, mut of: impl FnMut(V) -> W) -> OutputGateParams<W> {
        let norm = self.norm.as_ref().map(|&OutputNorm { weight, eps, part, before_gate }| OutputNorm {
            weight: of(weight),
            eps,
            part,
            before_gate,
        });
        OutputGateParams { column: self.column, kind: self.kind, norm }
    }
}

impl<M: Copy, V: Copy, E: Copy, R: Copy> MoeOperands<M, V, E, R> {
    pub(crate) fn with<N, W, F, S>(
        &self,
        mut matrix: impl FnMut(M) -> N,
        mut vector: impl FnMut(V) -> W,
        mut experts: impl FnMut(E) -> F,
        routed: Option<S>,
    ) -> MoeOperands<N, W, F, S> {
        MoeOperands {
            router: matrix(self.router),
            router_bias: self.router_bias.map(&mut vector),
            correction: self.correction.map(&mut vector),
            experts: experts(self.experts),
            up_bias: self.up_bias.map(&mut vector),
            down_bias: self.down_bias.map(&mut vector),
            expert_scale: self.expert_scale.map(&mut vector),
            routed,
        }
    }
}

impl<T: Copy, V: Copy> RowOp<T, V> {
    pub(crate) fn with<U: Copy, W>(
        &self,
        mut buffer: impl FnMut(T) -> U,
        vector: impl FnMut(V) -> W,
    ) -> RowOp<U, W> {
        reading(self, read_by(self).map(|of| of.map(&mut buffer)), vector)
    }
}

/// Buffers that an op on rows reads.
pub(crate) fn read_by<T: Copy, V: Copy>(op: &RowOp<T, V>) -> [Option<T>; 3] {
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

/// An op on rows that reads these buffers instead, in the order of [`read_by`].
pub(crate) fn reading<T: Copy, V: Copy, U: Copy, W>(
    op: &RowOp<T, V>,
    read: [Option<U>; 3],
    mut of: impl FnMut(V) -> W,
) -> RowOp<U, W> {
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
