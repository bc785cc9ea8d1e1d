//! An MLP's way through its products: one matrix after the other, or experts, and what every row goes to beside them.

use hanzo_engine_kernels::{AnyBackend, Backend, MoeOperands, RowOp, ops};

use super::forward::Sum;
use super::observed::Watcher;
use super::{AdapterBuffers, Apart, Layer, Mlp, Shared};

impl Layer {
    /// The MLP, of rows of `x`.
    pub(super) fn mlp_half(
        &self,
        backend: &mut AnyBackend,
        x: &ops::Buffer,
        (inner, shared): (&mut [ops::Buffer], &mut Option<ops::Buffer>),
        (mut adapters, mut watcher): (Option<&mut AdapterBuffers>, Option<&mut Watcher<'_>>),
        out: &mut ops::Buffer,
    ) {
        match &mut adapters {
            Some(adapters) => self.adapted_mlp(backend, x, &mut inner[self.inner], adapters, out),
            None => self.mlp.run(backend, x, &mut inner[self.inner], out),
        }
        if let Some(watcher) = &mut watcher {
            watcher.mlp(backend, x, &inner[self.inner]);
        }
        if let (Mlp::Experts { shared: Some(beside), .. }, Some(shared)) = (&self.mlp, shared) {
            beside.run(backend, x, inner, (adapters, watcher), shared);
            backend.add_shared(beside.gate.as_ref(), x, shared, out);
            if beside.averaged {
                backend.row_op(&RowOp::Scale(0.5), out);
            }
        }
        backend.all_reduce(out);
    }
}

impl Layer {
    /// What a mixture has whose parts norm for themselves.
    pub(super) fn apart(&self) -> Option<(&Apart, &Shared)> {
        match &self.mlp {
            Mlp::Experts { apart: Some(apart), shared: Some(beside), .. } => Some((apart, beside)),
            _ => None,
        }
    }

    /// Such a mixture. The MLP beside its experts reads what is normed already, and experts and router the sum by norms of their own.
    pub(super) fn experts_apart(
        &self,
        backend: &mut AnyBackend,
        (apart, beside): (&Apart, &Shared),
        sum: &mut Sum<'_>,
        (inner, shared, routed): (&mut [ops::Buffer], &mut ops::Buffer, &mut ops::Buffer),
        (adapters, mut watcher): (Option<&mut AdapterBuffers>, Option<&mut Watcher<'_>>),
    ) {
        beside.run(backend, sum.normed, inner, (adapters, watcher.as_deref_mut()), shared);
        backend.all_reduce(shared);
        sum.normer(&apart.shared_post_norm).run(backend, shared, sum.branch);
        sum.normer(&apart.norm).run(backend, sum.residual, sum.normed);
        backend.rms_norm(sum.residual, &apart.router_norm, sum.norm.eps, routed);
        self.mlp.run_routed(backend, sum.normed, Some(routed), &mut inner[self.inner], shared);
        if let Some(watcher) = watcher {
            watcher.experts(backend, (sum.normed, routed), &inner[self.inner]);
        }
        backend.all_reduce(shared);
        sum.normer(&apart.post_norm).run(backend, shared, routed);
        backend.add_shared(None, sum.normed, routed, sum.branch);
    }
}

impl Shared {
    /// What every row goes to beside experts. Its two products apart where somebody looks on, with the same numbers.
    fn run(
        &self,
        backend: &mut AnyBackend,
        x: &ops::Buffer,
        inner: &mut [ops::Buffer],
        (adapters, watcher): (Option<&mut AdapterBuffers>, Option<&mut Watcher<'_>>),
        out: &mut ops::Buffer,
    ) {
        let inner_of = &mut inner[self.inner];
        match (&*self.mlp, adapters) {
            (Mlp::Gated { activation, gate_up, down, .. }, Some(adapters)) if watcher.is_some() => {
                let both = &mut adapters.both[self.inner];
                backend.matmul(gate_up, None, x, both);
                backend.gate(*activation, both, inner_of);
                backend.matmul(down, None, inner_of, out);
            }
            (mlp, _) => mlp.run(backend, x, inner_of, out),
        }
        if let Some(watcher) = watcher {
            watcher.dense(backend, x, inner_of, self.ffn);
        }
    }
}

impl Mlp {
    pub(super) fn run(
        &self,
        backend: &mut AnyBackend,
        x: &ops::Buffer,
        inner: &mut ops::Buffer,
        out: &mut ops::Buffer,
    ) {
        self.run_routed(backend, x, None, inner, out);
    }

    /// As `run`, of a mixture whose router reads something else.
    fn run_routed(
        &self,
        backend: &mut AnyBackend,
        x: &ops::Buffer,
        routed: Option<&ops::Buffer>,
        inner: &mut ops::Buffer,
        out: &mut ops::Buffer,
    ) {
        let bias = match self {
            Mlp::None => None,
            Mlp::Curved { curve: [positive, negative, linear], up, down } => {
                let xielu = RowOp::Xielu { positive: *positive, negative: *negative, linear: *linear };
                backend.matmul(up, None, x, inner);
                backend.row_op(&xielu, inner);
                backend.matmul(down, None, inner, out);
                None
            }
            Mlp::Plain { activation, up, up_bias, down, down_bias } => {
                backend.matmul_activated(up, up_bias.as_ref(), *activation, x, inner);
                backend.matmul(down, down_bias.as_ref(), inner, out);
                None
            }
            Mlp::Gated { activation, gate_up, down, bias, .. } => {
                backend.gated_mlp(gate_up, down, *activation, x, inner, out);
                bias.as_ref()
            }
            Mlp::Experts {
                params,
                router,
                router_bias,
                correction,
                up_bias,
                down_bias,
                experts,
                bias,
                apart,
                ..
            } => {
                let weights = MoeOperands {
                    router,
                    router_bias: router_bias.as_ref(),
                    correction: correction.as_ref(),
                    experts,
                    up_bias: up_bias.as_ref(),
                    down_bias: down_bias.as_ref(),
                    expert_scale: apart.as_ref().map(|apart| &apart.expert_scale),
                    routed,
                };
                backend.moe(&weights, params, x, inner, out);
                bias.as_ref()
            }
        };
        if let Some(bias) = bias {
            backend.add_bias(bias, out);
        }
    }
}
