//! A step's way through the layers, in the order of the papers. What attention is made of is its caller's: a decoder
//! reads a paged cache, an encoder whole sequences.

use std::mem::swap;

use hanzo_engine_kernels::{
    Activation, AdaptedLogits, AnyBackend, Backend, BufferRole, GateKind, HeadShape, KernelError,
    LatentParams, LayerNormParams, LogitsHead, OutputGateParams, QkvParams, Rope, RowIds, RowOp, Stage, ops,
};

use super::observed::{Observed, Watcher};
use super::remembering::MemoryBuffers;
use super::states::{StateBuffers, gate_width, state_widths};
use super::{
    Buffers, DeepBuffers, InputBuffers, Latent, LatentBuffers, Layer, Network, Norm, StreamBuffers,
    attended_width, buffer_shapes, inner_widths, latent_widths, own_width, routed_width, seeing,
    shared_width, widths_of,
};
use crate::spec::{AttentionSpec, NormKind, NormOrder, NormSpec, Projection, QkNorm, RopeSpec};

const PREPARED: &str = "`prepare` is called before the first step, as its docs ask";

/// A norm's numbers and how they are used.
pub(crate) struct Normer<'a> {
    pub(crate) norm: &'a Norm,
    pub(crate) spec: NormSpec,
}

impl Normer<'_> {
    pub(crate) fn params(&self) -> LayerNormParams<&ops::Vector> {
        let Norm { weight, bias, .. } = self.norm;
        LayerNormParams { weight, bias: bias.as_ref(), eps: self.spec.eps }
    }

    pub(crate) fn run(&self, backend: &mut AnyBackend, x: &ops::Buffer, out: &mut ops::Buffer) {
        match self.spec.kind {
            kind if kind.is_layer() => backend.layer_norm(x, &self.params(), out),
            _ => backend.rms_norm(x, &self.norm.weight, self.spec.eps, out),
        }
        self.adapt(backend, x, out);
    }

    /// `residual += x`, then the norm of that.
    pub(crate) fn add(
        &self,
        backend: &mut AnyBackend,
        residual: &mut ops::Buffer,
        x: &ops::Buffer,
        out: &mut ops::Buffer,
    ) {
        match self.spec.kind {
            kind if kind.is_layer() => backend.add_layer_norm(residual, x, &self.params(), out),
            _ => backend.add_rms_norm(residual, x, &self.norm.weight, self.spec.eps, out),
        }
        self.adapt(backend, x, out);
    }

    /// Changes what it gives of rows whose adapters do so.
    fn adapt(&self, backend: &mut AnyBackend, x: &ops::Buffer, out: &mut ops::Buffer) {
        if !self.norm.deltas.is_empty() {
            backend.add_low_rank(&self.norm.deltas, x, None, out);
        }
    }
}

/// What a layer's attention is computed with.
pub(crate) struct Attention<'a> {
    pub(crate) spec: &'a AttentionSpec,
    pub(crate) layer: &'a Layer,
    pub(crate) shape: HeadShape,
    pub(crate) norm: NormSpec,
    rope: Option<(&'a RopeSpec, &'a ops::Vector)>,
}

/// What of a layer is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// All of it.
    All,
    /// Rows of queries, keys and values, and no further.
    UpToRows,
    /// What stands behind those, which are kept elsewhere.
    BehindRows,
}

/// Rows that attention reads.
pub(crate) struct Rows<'a> {
    /// Queries, keys and values; or latents.
    pub(crate) own: &'a mut ops::Buffer,
    /// Queries of latents, as they meet them.
    pub(crate) queries: Option<&'a mut ops::Buffer>,
}

impl Latent {
    /// From what a layer reads to queries of its latents.
    fn queries(&self, backend: &mut AnyBackend, x: &ops::Buffer, eps: f32, buffers: &mut LatentBuffers) {
        let LatentBuffers { low, normed, queries, absorbed, .. } = buffers;
        match &self.query_down {
            Some((down, norm)) => {
                backend.matmul(down, None, x, low);
                backend.rms_norm(low, &norm.weight, eps, normed);
                backend.matmul(&self.query, None, normed, queries);
            }
            None => backend.matmul(&self.query, None, x, queries),
        }
        backend.heads_matmul(&self.key_up, queries, absorbed);
    }
}

impl Attention<'_> {
    /// What happens to latents and queries on the way to the cache; none where there are no latents.
    pub(crate) fn latent_params(&self) -> Option<LatentParams<&ops::Vector>> {
        let (Projection::Latent(shape), Some(latent)) = (self.spec.projection, &self.layer.latent) else {
            return None;
        };
        let (rope, inv_freq) = self.rope?;
        Some(LatentParams {
            shape: shape.heads_in_cache(),
            norm: &latent.norm.weight,
            norm_eps: self.spec.latent_eps.unwrap_or(self.norm.eps),
            rope: turn(rope, inv_freq),
        })
    }

    /// Layer norms of queries and keys: of all heads as one, or of each with factors of its own.
    pub(crate) fn layer_norm_heads(&self, backend: &mut AnyBackend, qkv: &mut ops::Buffer) {
        let HeadShape { heads, kv_heads, head_dim } = self.shape;
        let of = match self.spec.qk_norm {
            QkNorm::HeadsApart => [head_dim; 2],
            QkNorm::Whole if self.norm.kind.is_layer() => [heads * head_dim, kv_heads * head_dim],
            _ => return,
        };
        let norms = [(0, &self.layer.q_norm), (self.shape.q_width(), &self.layer.k_norm)];
        for ((first, norm), width) in norms.into_iter().zip(of) {
            if let Some(norm) = norm {
                let normer = Normer { norm, spec: self.norm };
                backend.layer_norm_columns(qkv, (first, width), &normer.params());
            }
        }
    }

    /// What happens to queries and keys before they meet, or none where nothing does.
    pub(crate) fn qkv_params(&self) -> QkvParams<&ops::Vector> {
        let (q_norm, k_norm) = match (self.spec.qk_norm, self.norm.kind) {
            (QkNorm::Heads | QkNorm::Unit, _) | (QkNorm::Whole, NormKind::Rms { .. }) => {
                (self.layer.q_norm.as_ref(), self.layer.k_norm.as_ref())
            }
            // A layer norm is an op of its own.
            (QkNorm::None | QkNorm::HeadsApart | QkNorm::Whole, _) => (None, None),
        };
        QkvParams {
            shape: self.shape,
            q_norm: q_norm.map(|norm| &norm.weight),
            k_norm: k_norm.map(|norm| &norm.weight),
            norm_eps: self.norm.eps,
            norm_after_rope: self.spec.norm_after_rope,
            query_scale: self.spec.query_scale,
            values_normed: self.spec.values_normed,
            queries_alone: self.spec.queries_alone(),
            rope: self.rope.map(|(rope, inv_freq)| turn(rope, inv_freq)),
        }
    }
}

fn turn<'a, V>(rope: &RopeSpec, inv_freq: &'a V) -> Rope<&'a V> {
    Rope {
        kind: rope.kind,
        inv_freq,
        magnitude: rope.magnitude,
        axes: rope.axes.map(|axes| axes.axes),
        long: rope.long.as_ref().map(|long| long.magnitude),
    }
}

impl Network {
    /// Makes all buffers for steps of at most this many rows.
    pub(crate) fn prepare(&mut self, backend: &AnyBackend, rows: usize) -> Result<(), KernelError> {
        let spec = &self.spec;
        let [residual, normed, branch] =
            buffer_shapes(spec).map(|(role, cols)| backend.buffer(role, rows, cols));
        let each = |widths: Vec<usize>| -> Result<Vec<ops::Buffer>, KernelError> {
            widths.into_iter().map(|cols| backend.buffer(BufferRole::Operand, rows, cols)).collect()
        };
        let latent = latent_widths(spec).map(|widths| -> Result<LatentBuffers, KernelError> {
            let [low, normed, queries, absorbed, mixed] =
                widths.map(|cols| backend.buffer(BufferRole::Operand, rows, cols));
            Ok(LatentBuffers {
                low: low?,
                normed: normed?,
                queries: queries?,
                absorbed: absorbed?,
                mixed: mixed?,
            })
        });
        let one = |width: Option<usize>| {
            width.map(|cols| backend.buffer(BufferRole::Operand, rows, cols)).transpose()
        };
        let state = state_widths(spec).map(|widths| StateBuffers::new(backend, rows, widths));
        self.buffers = Some(Buffers {
            rows,
            latent: latent.transpose()?,
            gates: one(gate_width(spec))?,
            state: state.transpose()?,
            shared: one(shared_width(spec))?,
            routed: one(routed_width(spec))?,
            inputs: InputBuffers::new(backend, spec, rows)?,
            streams: StreamBuffers::new(backend, spec, rows)?,
            deep: DeepBuffers::new(backend, spec, rows)?,
            memory: MemoryBuffers::new(backend, spec, rows)?,
            both: seeing::both(backend, spec, rows)?,
            residual: residual?,
            normed: normed?,
            qkv: each(widths_of(spec, own_width))?,
            attended: each(widths_of(spec, attended_width))?,
            branch: branch?,
            inner: each(inner_widths(spec))?,
            adapters: None,
            adapting: false,
        });
        Ok(())
    }

    /// Where a step's embeddings are written, for rows that are not those of tokens.
    pub(crate) fn residual(&mut self) -> &mut ops::Buffer {
        &mut self.buffers.as_mut().expect(PREPARED).residual
    }

    /// As `residual`, and a buffer that holds nothing before the first layer.
    pub(crate) fn residual_and_branch(&mut self) -> (&mut ops::Buffer, &mut ops::Buffer) {
        let buffers = self.buffers.as_mut().expect(PREPARED);
        (&mut buffers.residual, &mut buffers.branch)
    }

    /// Writes the embeddings of a step of so many rows, of tokens, positions and types, and gives what holds the sum of them.
    pub(crate) fn embed(&mut self, backend: &mut AnyBackend, rows: usize) -> &ops::Buffer {
        let b = self.buffers.as_mut().expect(PREPARED);
        assert!(rows <= b.rows, "{rows} rows; buffers were made for {}", b.rows);
        if let Some(observed) = &mut self.observed {
            observed.begin(rows);
            // An MLP's two products apart, with the same numbers, so that what is between them can be read.
            b.adapting = true;
        }
        backend.enter(Stage::Inputs);
        backend.embed(&self.embedding, self.spec.embedding_scale, &mut b.residual);
        self.adapt_embeddings(backend);
        let b = self.buffers.as_mut().expect(PREPARED);
        if let (Some(table), Some(positions)) = (&self.positions, self.spec.positions) {
            let ids = RowIds::Positions { offset: positions.offset };
            backend.add_embedding(table, ids, &mut b.residual);
        }
        if let Some(table) = &self.types {
            backend.add_embedding(table, RowIds::Types, &mut b.residual);
        }
        if let Some(norm) = &self.embedding_norm {
            Normer { norm, spec: self.spec.norm }.run(backend, &b.residual, &mut b.normed);
            swap(&mut b.residual, &mut b.normed);
        }
        if let (Some(inputs), Some(buffers)) = (&self.inputs, &mut b.inputs) {
            inputs.run(backend, &b.residual, buffers);
        }
        if let (Some(streams), Some(buffers)) = (&self.streams, &mut b.streams) {
            streams.part(backend, &b.residual, self.spec.hidden, buffers);
        }
        &b.residual
    }

    /// Sums what matrices meet from now on.
    ///
    /// # Errors
    /// The backend's, when it cannot give the memory.
    pub(crate) fn observe(&mut self, backend: &mut AnyBackend) -> Result<(), KernelError> {
        self.make_adapter_buffers(backend)?;
        self.observed = Some(Observed::default());
        Ok(())
    }

    /// What was summed.
    pub(crate) fn observed(&self) -> Option<&Observed> {
        self.observed.as_ref()
    }

    /// Says whether a sequence of the step has an adapter. It holds until it is said anew.
    pub(crate) fn set_adapting(&mut self, adapting: bool) {
        self.buffers.as_mut().expect(PREPARED).adapting = adapting;
    }

    /// From the sum of the embeddings to what the first layer reads.
    pub(crate) fn begin(&mut self, backend: &mut AnyBackend) {
        backend.enter(Stage::Layer(0));
        if let (Some(norm), Some(b)) = (&self.first_norm, &mut self.buffers) {
            Normer { norm, spec: self.spec.norm }.run(backend, &b.residual, &mut b.normed);
        }
    }

    /// One layer. `attend` turns rows of queries, keys and values into what attention gives of them.
    pub(crate) fn layer(
        &mut self,
        backend: &mut AnyBackend,
        index: usize,
        attend: impl FnOnce(&mut AnyBackend, &Attention<'_>, Rows<'_>, &mut ops::Buffer),
    ) {
        self.share_of_layer(backend, (index, Share::All), attend);
    }

    /// One layer, or what of it can be computed apart for some rows; of a layer whose norms stand before halves that is.
    pub(crate) fn share_of_layer(
        &mut self,
        backend: &mut AnyBackend,
        (index, share): (usize, Share),
        attend: impl FnOnce(&mut AnyBackend, &Attention<'_>, Rows<'_>, &mut ops::Buffer),
    ) {
        backend.enter(Stage::Layer(index));
        let (layer, spec, norm) = (&self.layers[index], &self.spec.layers[index], self.spec.norm);
        let hidden = self.spec.hidden;
        let mut watcher = self.observed.as_mut().map(|sums| Watcher { sums, layer: index, spec, hidden });
        let b = self.buffers.as_mut().expect("the step's embeddings were written to them");
        let Buffers {
            residual,
            normed,
            qkv,
            latent,
            gates,
            state,
            shared,
            routed,
            inputs,
            streams,
            deep,
            memory,
            both,
            attended,
            branch,
            inner,
            adapters,
            adapting,
            ..
        } = b;
        let mut adapters = adapters.as_mut().filter(|_| *adapting);
        let (qkv, attended) = match (&layer.state, state) {
            (Some(_), Some(state)) => (&mut state.own, &mut state.given),
            _ => (&mut qkv[layer.own], &mut attended[layer.attended]),
        };
        let on_sum = spec.order.on_sum();
        assert!(share == Share::All || spec.order == NormOrder::Pre, "a layer of another order is one piece");
        let attention = Attention {
            spec: &spec.attention,
            layer,
            shape: spec.attention.projection.head_shape(),
            norm,
            rope: spec.attention.rope.map(|rope| (&self.spec.ropes[rope], &self.ropes[rope])),
        };
        let mut sum = Sum { norm, residual, normed, branch };
        let streams_spec = self.spec.streams.as_ref();
        if let (Some(of), Some(buffers), Some(streams)) = (&layer.streams, &mut *streams, streams_spec) {
            of.predict(backend, streams.active * hidden, norm, (sum.residual, sum.normed), buffers);
        }
        // Halves that read the same sum may be computed in either order; attention's input is kept for it.
        if spec.order.is_parallel() {
            let between = (&mut inner[..], &mut *shared);
            layer.mlp_half(
                backend,
                sum.normed,
                between,
                (adapters.as_deref_mut(), watcher.as_mut()),
                sum.branch,
            );
            if let Some(of) = &layer.middle_norm {
                sum.normer(of).run(backend, sum.residual, sum.normed);
            }
            sum.add(backend, None);
        }
        let x = if spec.order.attention_reads_sum() { &*sum.residual } else { &*sum.normed };
        if let Some(watcher) = &mut watcher {
            watcher.attention(backend, x);
        }
        if share != Share::BehindRows {
            backend.matmul(&layer.qkv, layer.qkv_bias.as_ref(), x, qkv);
        }
        if let Some(adapters) = &mut adapters {
            backend.add_low_rank(&layer.deltas.qkv, x, Some(&mut adapters.low), qkv);
        }
        match (&layer.latent, latent) {
            (Some(weights), Some(buffers)) => {
                weights.queries(backend, x, spec.attention.latent_eps.unwrap_or(norm.eps), buffers);
                let LatentBuffers { absorbed, mixed, .. } = buffers;
                attend(backend, &attention, Rows { own: qkv, queries: Some(absorbed) }, mixed);
                backend.heads_matmul(&weights.value_up, mixed, attended);
                if let Some(watcher) = &mut watcher {
                    watcher.latents(backend, buffers);
                }
            }
            _ => attend(backend, &attention, Rows { own: qkv, queries: None }, attended),
        }
        if share == Share::UpToRows {
            return;
        }
        if let (Some(gate), Some(gates)) = (&layer.gate, gates) {
            backend.matmul(gate, None, x, gates);
            if let Some(adapters) = &mut adapters {
                backend.add_low_rank(&layer.deltas.gate, x, Some(&mut adapters.low), gates);
            }
            let params = OutputGateParams { column: 0, kind: GateKind::Sigmoid, norm: None };
            backend.gate_output(gates, &params, attended);
        }
        if let Some(watcher) = &mut watcher {
            watcher.attended(backend, attended);
        }
        backend.matmul(&layer.output, layer.output_bias.as_ref(), attended, sum.branch);
        if let Some(adapters) = &mut adapters {
            backend.add_low_rank(&layer.deltas.output, attended, Some(&mut adapters.low), sum.branch);
        }
        backend.all_reduce(sum.branch);
        if let Some([factor, _]) = layer.half_factors {
            backend.row_op(&RowOp::Scale(factor), sum.branch);
        }
        if let Some(post) = &layer.attention_post_norm {
            match spec.order {
                NormOrder::PostTwice => sum.normer(post).add(backend, sum.branch, sum.residual, sum.normed),
                _ => sum.normer(post).run(backend, sum.branch, sum.normed),
            }
            swap(sum.branch, sum.normed);
        }
        if !spec.order.is_parallel() && !spec.mlp.is_none() {
            match (&layer.streams, &*streams) {
                (Some(of), Some(buffers)) => {
                    sum.add(backend, None);
                    of.add_laurel(backend, sum.residual, buffers);
                    if let Some(norm) = &layer.middle_norm {
                        sum.normer(norm).run(backend, sum.residual, sum.normed);
                    }
                }
                _ => sum.add(backend, layer.middle_norm.as_ref()),
            }
            // Where norms stand after halves, what a half reads is the sum itself, normed.
            if on_sum {
                swap(sum.residual, sum.normed);
            }
            let reads_sum = on_sum || layer.middle_norm.is_none();
            if let (Some((apart, beside)), Some(shared), Some(routed)) = (layer.apart(), &mut *shared, routed)
            {
                let between = (&mut inner[..], shared, routed);
                let looking_on = (adapters, watcher.as_mut());
                layer.experts_apart(backend, (apart, beside), &mut sum, between, looking_on);
            } else if let (Some(outliers), Some(buffers)) = (layer.outliers(), &mut *streams) {
                let between = (&mut inner[layer.inner], &mut buffers.both[layer.inner]);
                layer.sparse_mlp(backend, outliers, sum.normed, between, adapters, sum.branch);
                if let Some(watcher) = &mut watcher {
                    watcher.mlp(backend, sum.normed, &inner[layer.inner]);
                }
            } else {
                let x = if reads_sum { &*sum.residual } else { &*sum.normed };
                let biased = (&mut *both, &mut inner[layer.inner]);
                if adapters.is_some() || !layer.biased_mlp(backend, x, biased, sum.branch) {
                    layer.mlp_half(backend, x, (inner, shared), (adapters, watcher.as_mut()), sum.branch);
                } else if let Some(watcher) = &mut watcher {
                    watcher.mlp(backend, x, &inner[layer.inner]);
                }
            }
            if let Some([_, factor]) = layer.half_factors {
                if let Some(memory) = memory.as_ref().filter(|_| spec.attention.memory) {
                    memory.leave_out(backend, sum.branch);
                }
                backend.row_op(&RowOp::Scale(factor), sum.branch);
            }
            if let Some(post) = &layer.mlp_post_norm {
                sum.normer(post).run(backend, sum.branch, sum.normed);
                swap(sum.branch, sum.normed);
            }
        }
        let of_input = (&layer.input, inputs, self.spec.layer_inputs);
        if let (Some(of), Some(buffers), Some(streams)) = (&layer.streams, streams, streams_spec) {
            sum.add(backend, None);
            if let (Some(input), Some(inputs), Some(width)) = of_input {
                let place = (index, hidden, streams);
                of.correct(backend, place, &mut sum, (input, inputs, width), buffers);
            }
            return;
        }
        if let (Some(input), Some(buffers), Some(inputs)) = of_input {
            sum.add(backend, None);
            let place = (Activation::GeluTanh, index * inputs);
            input.run(backend, place, sum.residual, buffers, sum.branch);
            sum.normer(&input.norm).run(backend, sum.branch, sum.normed);
            swap(sum.branch, sum.normed);
        }
        let deep_layers = self.spec.deep_layers;
        let deep = deep.as_ref().filter(|deep| deep.adds(index, deep_layers));
        if layer.factor == 1.0 && deep.is_none() {
            sum.add(backend, layer.last_norm.as_ref());
        } else {
            sum.add(backend, None);
            match deep {
                Some(deep) => deep.add(backend, index, hidden, sum.residual),
                None => backend.row_op(&RowOp::Scale(layer.factor), sum.residual),
            }
            if let Some(norm) = &layer.last_norm {
                sum.normer(norm).run(backend, sum.residual, sum.normed);
            }
        }
        if on_sum {
            swap(sum.residual, sum.normed);
        }
    }

    /// Calls `run` with the matrix that makes logits, the adapters that change them, and what it reads.
    pub(crate) fn with_head<T>(
        &mut self,
        run: impl FnOnce(LogitsHead<'_, AnyBackend>, &ops::Buffer) -> T,
    ) -> T {
        let matrix = self.head.as_ref().unwrap_or(&self.embedding);
        let b = self.buffers.as_mut().expect("a step has run on the buffers");
        let hidden = if self.spec.layers[0].order.on_sum() { &b.residual } else { &b.normed };
        let adapts = b.adapting && self.head_deltas.iter().any(Option::is_some);
        let Some(adapters) = b.adapters.as_mut().filter(|_| adapts) else {
            return run(LogitsHead::of(matrix), hidden);
        };
        // A list of as many as adapters are loaded.
        let deltas: Vec<Option<&ops::LowRank>> = self.head_deltas.iter().map(Option::as_ref).collect();
        let adapted = AdaptedLogits { deltas: &deltas, low: &mut adapters.low };
        run(LogitsHead { matrix, adapted: Some(adapted) }, hidden)
    }

    /// Hidden states, `(rows, hidden)`, once the last layer has run.
    ///
    /// # Panics
    /// Without a step.
    pub(crate) fn hidden(&self) -> &ops::Buffer {
        let b = self.buffers.as_ref().expect("a step has run on the buffers");
        if self.spec.layers[0].order.on_sum() { &b.residual } else { &b.normed }
    }
}

/// The sum that halves add to, and what it takes to add to it.
pub(super) struct Sum<'a> {
    pub(super) norm: NormSpec,
    pub(super) residual: &'a mut ops::Buffer,
    pub(super) normed: &'a mut ops::Buffer,
    pub(super) branch: &'a mut ops::Buffer,
}

impl Sum<'_> {
    pub(super) fn normer<'n>(&self, of: &'n Norm) -> Normer<'n> {
        Normer { norm: of, spec: self.norm }
    }

    /// Adds what a half has given, and norms the sum where something reads that.
    pub(super) fn add(&mut self, backend: &mut AnyBackend, norm: Option<&Norm>) {
        match norm {
            Some(norm) => self.normer(norm).add(backend, self.residual, self.branch, self.normed),
            None => backend.add_shared(None, self.normed, self.branch, self.residual),
        }
    }
}
