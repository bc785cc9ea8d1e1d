//! Ops that each rank computes its part of.

use super::TensorParallel;
use super::layout::Layout;
use super::operands::{RankKv, RankVector, whole};
use crate::executor::Cells;
use crate::{AttentionParams, Executor, HeadShape, Op, Peers, QkvParams, VectorId};

impl<B: Peers> TensorParallel<B> {
    /// Each rank's runs of a vector that there may be; none where they could not be made, which the step's end tells.
    fn runs(
        &mut self,
        vectors: &Cells<RankVector>,
        vector: Option<VectorId>,
        layout: Layout,
    ) -> Option<Vec<Option<VectorId>>> {
        let Some(vector) = vector else { return Some(vec![None; self.ranks.len()]) };
        let runs = vectors.get(vector).runs(&self.ranks, layout);
        let runs = runs.map(|runs| runs.iter().map(|run| Some(run.id())).collect());
        self.kept(runs)
    }

    /// Heads of a rank.
    fn own_heads(&self, HeadShape { heads, kv_heads, head_dim }: HeadShape) -> HeadShape {
        let count = self.ranks.len();
        HeadShape { heads: heads / count, kv_heads: kv_heads / count, head_dim }
    }

    /// Runs an op that ranks have parts of. Says whether it is one.
    pub(super) fn run_divided(&mut self, op: &Op) -> bool {
        match *op {
            Op::GatedMlp { gate_up, down, activation, x, hidden, out } => {
                self.run(&Op::Gated { gate_up, activation, x, hidden });
                self.run(&Op::MatMul { weight: down, bias: None, x: hidden, out });
                true
            }
            Op::MatMul { .. } | Op::MatMulActivated { .. } => self.run_product(op),
            Op::Gated { .. } | Op::Gate { .. } | Op::AddBias { .. } => self.run_between(op),
            Op::RopeToCache { kv, layer, .. } | Op::Attention { kv, layer, .. } => {
                let kvs = self.kvs.clone();
                let kvs = kvs.lock();
                kvs.get(kv).divided[layer] && self.run_attention(op, kvs.get(kv))
            }
            _ => false,
        }
    }

    fn run_product(&mut self, op: &Op) -> bool {
        let (Op::MatMul { weight, bias, x, out } | Op::MatMulActivated { weight, bias, x, out, .. }) = op
        else {
            return false;
        };
        let (matrices, vectors, buffers) =
            (self.matrices.clone(), self.vectors.clone(), self.buffers.clone());
        let (matrices, vectors) = (matrices.lock(), vectors.lock());
        let Some((layout, own)) = &matrices.get(*weight).divided else { return false };
        let Some(bias) = self.runs(&vectors, *bias, *layout) else { return true };
        buffers.lock().change(*out, |buffers, to| {
            let x = buffers.get_mut(*x);
            self.bring(x, &self.all());
            self.claim_parts(to);
            for rank in self.all() {
                let (weight, bias, x, out) = (own[rank].id(), bias[rank], x.at(rank), to.part(rank));
                self.ranks[rank].run(&match *op {
                    Op::MatMulActivated { activation, .. } => {
                        Op::MatMulActivated { weight, bias, activation, x, out }
                    }
                    _ => Op::MatMul { weight, bias, x, out },
                });
            }
            to.only_divided(*layout, self.rows);
        });
        true
    }

    /// Ops inside an MLP, and biases of what is divided.
    fn run_between(&mut self, op: &Op) -> bool {
        let (matrices, vectors, buffers) =
            (self.matrices.clone(), self.vectors.clone(), self.buffers.clone());
        let mut buffers = buffers.lock();
        match *op {
            Op::Gated { gate_up, activation, x, hidden } => {
                let matrices = matrices.lock();
                let divided = matrices.get(gate_up).divided.as_ref();
                let Some((_, own)) = divided.filter(|(layout, _)| layout.is_halves()) else { return false };
                buffers.change(hidden, |buffers, to| {
                    let x = buffers.get_mut(x);
                    self.bring(x, &self.all());
                    self.claim_parts(to);
                    for rank in self.all() {
                        let (gate_up, x, hidden) = (own[rank].id(), x.at(rank), to.part(rank));
                        self.ranks[rank].run(&Op::Gated { gate_up, activation, x, hidden });
                    }
                    to.only_divided(Layout::parts(&[to.cols]), self.rows);
                });
            }
            Op::Gate { activation, both, hidden } => {
                if !buffers.get(both).divided.is_some_and(|layout| layout.is_halves()) {
                    return false;
                }
                buffers.change(hidden, |buffers, to| {
                    let both = buffers.get(both);
                    self.claim_parts(to);
                    for rank in self.all() {
                        let (both, hidden) = (both.part(rank), to.part(rank));
                        self.ranks[rank].run(&Op::Gate { activation, both, hidden });
                    }
                    to.only_divided(Layout::parts(&[to.cols]), self.rows);
                });
            }
            Op::AddBias { bias, out } => {
                let out = buffers.get_mut(out);
                let Some(layout) = out.divided else { return false };
                let Some(bias) = self.runs(&vectors.lock(), Some(bias), layout) else { return true };
                self.claim_parts(out);
                for (rank, bias) in bias.into_iter().enumerate() {
                    let bias = bias.expect("the runs of a vector that there is");
                    self.ranks[rank].run(&Op::AddBias { bias, out: out.part(rank) });
                }
                out.only_divided(layout, self.rows);
            }
            _ => return false,
        }
        true
    }

    /// Attention over a layer of the cache whose heads are divided.
    fn run_attention(&mut self, op: &Op, kv: &RankKv) -> bool {
        let (vectors, buffers) = (self.vectors.clone(), self.buffers.clone());
        let (vectors, mut buffers) = (vectors.lock(), buffers.lock());
        match op {
            Op::RopeToCache { qkv, params, layer, .. } => {
                let layout = Layout::of_heads(params.shape, params.queries_alone);
                let shape = self.own_heads(params.shape);
                let qkv = buffers.get_mut(*qkv);
                self.divide(qkv, layout);
                self.claim_parts(qkv);
                for rank in self.all() {
                    let own = params.with(|vector| whole(vectors.get(vector).whole(), rank));
                    let params = QkvParams { shape, ..own };
                    let (qkv, kv) = (qkv.part(rank), kv.parts[rank].id());
                    self.ranks[rank].run(&Op::RopeToCache { qkv, params, kv, layer: *layer });
                }
                qkv.only_divided(layout, self.rows);
            }
            Op::Attention { qkv, params, layer, out, .. } => {
                let shape = self.own_heads(params.shape);
                let of_heads = Layout::parts(&[params.shape.heads]);
                let Some(sinks) = self.runs(&vectors, params.sinks, of_heads) else { return true };
                let Some(slopes) = self.runs(&vectors, params.slopes, of_heads) else { return true };
                let layout = Layout::of_heads(params.shape, params.queries_alone);
                buffers.change(*out, |buffers, to| {
                    let qkv = buffers.get_mut(*qkv);
                    self.divide(qkv, layout);
                    self.claim_parts(to);
                    for rank in self.all() {
                        let (sinks, slopes) = (sinks[rank], slopes[rank]);
                        let params = AttentionParams { shape, sinks, slopes, ..*params };
                        let (qkv, kv, out) = (qkv.part(rank), kv.parts[rank].id(), to.part(rank));
                        self.ranks[rank].run(&Op::Attention { qkv, params, kv, layer: *layer, out });
                    }
                    to.only_divided(Layout::parts(&[to.cols]), self.rows);
                });
            }
            _ => return false,
        }
        true
    }
}
