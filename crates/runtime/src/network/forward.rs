//! A step's way through a network: its program is run list by list, with the attention of a decoder, an encoder or a tower
//! between the two lists of each layer.

use hanzo_engine_ops as ops;
use hanzo_engine_ops::{
    AnyBackend, AttentionParams, BufferId, BufferRole, Handle, HeadOperands, HeadShape, KernelError, KvId,
    LatentParams, NormColumns, Op, PositionBias, QkvParams, Rope, SelfAttentionParams, Stage, VectorId,
};

use super::fused::fuse;
use super::observed::ImportanceSums;
use super::program::{Instruction, Program, Sum, run};
use super::remembering::MemoryBuffers;
use super::states::{StateBuffers, gate_width, state_widths};
use super::{
    Buffers, DeepBuffers, InputBuffers, LatentBuffers, Layer, Network, StreamBuffers, attended_width,
    buffer_shapes, inner_widths, latent_widths, own_width, routed_width, seeing, shared_width, widths_of,
};
use crate::spec::{AttentionSpec, Mask, NormKind, NormSpec, Projection, QkNorm, RopeSpec};

const WIDE: &str = "a program's sums are in the buffers as wide as hidden states";
pub(super) const PREPARED: &str = "`prepare` is called before the first step, as its docs ask";

/// Attention of one layer: its weights, its shape, and the buffers that it reads and writes.
pub(crate) struct Attention<'a> {
    pub(crate) spec: &'a AttentionSpec,
    pub(crate) layer: &'a Layer,
    pub(crate) shape: HeadShape,
    norm: NormSpec,
    rope: Option<(&'a RopeSpec, &'a ops::Vector)>,
    buffers: &'a Buffers,
}

impl Attention<'_> {
    /// Queries, keys and values of the rows, or their latents.
    fn own(&self) -> BufferId {
        self.buffers.own(self.layer).id()
    }

    /// Attention's output.
    fn attended(&self) -> BufferId {
        self.buffers.attended(self.layer).id()
    }

    /// Ops of causal attention over a cache: what the rows add to it, and what they read of it.
    pub(crate) fn over_cache(&self, kv: KvId, slopes: Option<VectorId>) -> Vec<Op> {
        let (layer, own, out) = (self.layer.cache, self.own(), self.attended());
        if let (Some(spec), Some(state)) = (self.spec.projection.state(), &self.layer.state) {
            return state.ops(spec, [own, out], kv, layer);
        }
        if let (Some(params), Some(latent)) = (self.latent_params(), &self.buffers.latent) {
            let (queries, heads, scale) = (latent.absorbed.id(), params.shape, self.spec.scale);
            return vec![
                Op::LatentToCache { latent: own, queries, params, kv, layer },
                Op::LatentAttention { queries, heads, scale, kv, layer, out: latent.mixed.id() },
            ];
        }
        let mut made = self.layer_norm_heads();
        made.push(Op::RopeToCache { qkv: own, params: self.qkv_params(), kv, layer });
        let params = AttentionParams {
            shape: self.shape,
            scale: self.spec.scale,
            softcap: self.spec.softcap,
            window: self.spec.window(),
            chunked: self.spec.chunked,
            sinks: self.layer.sinks.as_ref().map(ops::Vector::id),
            slopes,
            queries_alone: self.spec.queries_alone(),
            memory: self.spec.memory,
        };
        made.push(Op::Attention { qkv: own, params, kv, layer, out });
        made
    }

    /// Ops of attention inside whole sequences. Keys of the last `padding` rows of a sequence are not read.
    pub(crate) fn over_sequences(&self, padding: u32, bias: PositionBias<VectorId, ops::Buckets>) -> Vec<Op> {
        let reach = match self.spec.mask {
            Mask::Whole { reach } => reach,
            Mask::Causal { .. } => None,
        };
        let params = SelfAttentionParams { heads: self.shape, scale: self.spec.scale, reach, padding, bias };
        let mut made = self.turned();
        made.push(Op::SelfAttention { qkv: self.own(), params, out: self.attended() });
        made
    }

    /// Ops that norm and turn queries and keys in place, where anything does.
    pub(crate) fn turned(&self) -> Vec<Op> {
        let mut made = self.layer_norm_heads();
        let params = self.qkv_params();
        if params.rope.is_some() || params.q_norm.is_some() {
            made.push(Op::Rope { qkv: self.own(), params });
        }
        made
    }

    /// Norms and rotary embedding of latents and queries on the way to the cache; none where there are no latents.
    fn latent_params(&self) -> Option<LatentParams<VectorId>> {
        let (Projection::Latent(shape), Some(latent)) = (self.spec.projection, &self.layer.latent) else {
            return None;
        };
        let (rope, inv_freq) = self.rope?;
        Some(LatentParams {
            shape: shape.heads_in_cache(),
            norm: latent.norm.weight.id(),
            norm_eps: self.spec.latent_eps.unwrap_or(self.norm.eps),
            rope: turn(rope, inv_freq),
        })
    }

    /// Layer norms of queries and keys: of all heads as one, or of each with factors of its own.
    fn layer_norm_heads(&self) -> Vec<Op> {
        let HeadShape { heads, kv_heads, head_dim } = self.shape;
        let of = match self.spec.qk_norm {
            QkNorm::HeadsApart => [head_dim; 2],
            QkNorm::Whole if self.norm.kind.is_layer() => [heads * head_dim, kv_heads * head_dim],
            _ => return Vec::new(),
        };
        let norms = [(0, &self.layer.q_norm), (self.shape.q_width(), &self.layer.k_norm)];
        let norms = norms.into_iter().zip(of).filter_map(|((first, norm), width)| {
            let params = norm.as_ref()?.layer_params(self.norm.eps);
            Some(Op::LayerNormColumns { x: self.own(), columns: NormColumns { first, width }, params })
        });
        norms.collect()
    }

    /// Norms and rotary embedding of queries and keys.
    fn qkv_params(&self) -> QkvParams<VectorId> {
        let (q_norm, k_norm) = match (self.spec.qk_norm, self.norm.kind) {
            (QkNorm::Heads | QkNorm::Unit, _) | (QkNorm::Whole, NormKind::Rms { .. }) => {
                (self.layer.q_norm.as_ref(), self.layer.k_norm.as_ref())
            }
            // A layer norm is an op of its own.
            (QkNorm::None | QkNorm::HeadsApart | QkNorm::Whole, _) => (None, None),
        };
        QkvParams {
            shape: self.shape,
            q_norm: q_norm.map(|norm| norm.weight.id()),
            k_norm: k_norm.map(|norm| norm.weight.id()),
            norm_eps: self.norm.eps,
            norm_after_rope: self.spec.norm_after_rope,
            query_scale: self.spec.query_scale,
            values_normed: self.spec.values_normed,
            queries_alone: self.spec.queries_alone(),
            rope: self.rope.map(|(rope, inv_freq)| turn(rope, inv_freq)),
        }
    }
}

fn turn(rope: &RopeSpec, inv_freq: &ops::Vector) -> Rope<VectorId> {
    Rope {
        kind: rope.kind,
        inv_freq: inv_freq.id(),
        magnitude: rope.magnitude,
        axes: rope.axes.map(|axes| axes.axes),
        long: rope.long.as_ref().map(|long| long.magnitude),
    }
}

impl Buffers {
    /// Output of a layer's first product.
    pub(super) fn own(&self, layer: &Layer) -> &ops::Buffer {
        match (&layer.state, &self.state) {
            (Some(_), Some(state)) => &state.own,
            _ => &self.qkv[layer.own],
        }
    }

    /// Output of a layer's attention or state.
    pub(super) fn attended(&self, layer: &Layer) -> &ops::Buffer {
        match (&layer.state, &self.state) {
            (Some(_), Some(state)) => &state.given,
            _ => &self.attended[layer.attended],
        }
    }

    /// Buffers that the host writes.
    pub(super) fn given(&self) -> impl Iterator<Item = &ops::Buffer> {
        let ones = self.adapters.iter().flat_map(|adapters| &adapters.both);
        let deep = self.deep.iter().map(|deep| &deep.rows);
        ones.chain(deep).chain(self.memory.iter().map(|memory| &memory.seeing))
    }

    /// Buffer as wide as hidden states, by its number.
    fn hidden_wide(&self, id: BufferId) -> &ops::Buffer {
        let all = [&self.residual, &self.normed, &self.branch];
        all.into_iter().find(|of| of.id() == id).expect(WIDE)
    }

    fn hidden_wide_mut(&mut self, id: BufferId) -> &mut ops::Buffer {
        let all = [&mut self.residual, &mut self.normed, &mut self.branch];
        all.into_iter().find(|of| of.id() == id).expect(WIDE)
    }
}

impl Network {
    /// Makes all buffers for steps of at most this many rows, and the program.
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
        });
        self.rebuild_programs();
        Ok(())
    }

    /// Builds the program anew, and the one for steps with adapters where there are some.
    pub(super) fn rebuild_programs(&mut self) {
        let Some(b) = &self.buffers else { return };
        let plain = self.build_program(b);
        let adapted = self.has_adapters().then(|| self.with_adapters(plain.clone(), b));
        let finish = |program: Program| {
            let mut program = match &self.observed {
                Some(_) => self.with_observations(program),
                None => program,
            };
            program.rewrite(fuse);
            if cfg!(debug_assertions)
                && let Some((buffer, op)) = self.first_unwritten(&program, b)
            {
                panic!("{op:?} reads {buffer:?}, and no op before it writes that");
            }
            program
        };
        let programs = (finish(plain), adapted.map(finish));
        (self.programs.plain, self.programs.adapted) = (Some(programs.0), programs.1);
    }

    /// Program of the step under way.
    fn program(&self) -> &Program {
        self.programs.current()
    }

    /// Runs a list of the program within a stage.
    pub(super) fn run(
        &mut self,
        backend: &mut AnyBackend,
        stage: Stage,
        list: impl FnOnce(&Program) -> &[Instruction],
    ) {
        run(list(self.programs.current()), backend, stage, self.programs.conditions, &mut self.observed);
    }

    /// Buffer that embeddings are given in, for rows that are not tokens, before [`Network::embed`].
    pub(crate) fn given(&mut self) -> &mut ops::Buffer {
        let id = self.program().given;
        self.buffers.as_mut().expect(PREPARED).hidden_wide_mut(id)
    }

    /// Buffer of [`Network::given`], and one that is free before the first layer.
    pub(crate) fn given_and_branch(&self) -> [BufferId; 2] {
        [self.program().given, self.buffers.as_ref().expect(PREPARED).branch.id()]
    }

    /// Sum that layers add to, between two of them. Layers whose norms stand before their halves keep it in one buffer.
    pub(crate) fn residual(&mut self) -> &mut ops::Buffer {
        debug_assert!(
            self.spec.layers.iter().all(|layer| !layer.order.on_sum()),
            "the sum moves between buffers"
        );
        let id = self.program().last_sum().residual;
        self.buffers.as_mut().expect(PREPARED).hidden_wide_mut(id)
    }

    /// Sum of the embeddings, before the first layer.
    pub(crate) fn embedded(&self) -> BufferId {
        self.program().sum.residual
    }

    /// Output of a layer's first product: queries, keys and values where it has heads.
    pub(crate) fn own_rows(&self, index: usize) -> &ops::Buffer {
        self.buffers.as_ref().expect(PREPARED).own(&self.layers[index])
    }

    /// Output of a layer's attention, for a caller that computes it elsewhere.
    pub(crate) fn attended_rows(&mut self, index: usize) -> &mut ops::Buffer {
        &mut self.buffers.as_mut().expect(PREPARED).attended[self.layers[index].attended]
    }

    /// Writes the sum of a step's embeddings, of so many rows.
    pub(crate) fn embed(&mut self, backend: &mut AnyBackend, rows: usize) {
        let most = self.buffers.as_ref().expect(PREPARED).rows;
        assert!(rows <= most, "{rows} rows; buffers were made for {most}");
        if let Some(observed) = &mut self.observed {
            observed.begin(rows);
        }
        self.run(backend, Stage::Inputs, |program| &program.embed);
    }

    /// Sums the squares of each matrix's inputs from now on.
    ///
    /// # Errors
    /// The backend's, when it cannot give the memory.
    pub(crate) fn observe(&mut self, backend: &mut AnyBackend) -> Result<(), KernelError> {
        self.make_adapter_buffers(backend)?;
        self.observed = Some(ImportanceSums::default());
        self.rebuild_programs();
        Ok(())
    }

    /// Sums so far.
    pub(crate) fn observed(&self) -> Option<&ImportanceSums> {
        self.observed.as_ref()
    }

    /// Says whether a sequence of the step has an adapter. It holds until the next call.
    pub(crate) fn set_adapting(&mut self, adapting: bool) {
        self.programs.adapting = adapting;
    }

    /// Runs the ops from the sum of the embeddings to what the first layer reads.
    pub(crate) fn begin(&mut self, backend: &mut AnyBackend) {
        self.run(backend, Stage::Layer(0), |program| &program.begin);
    }

    /// Attention of a layer.
    pub(crate) fn attention(&self, index: usize) -> Attention<'_> {
        let spec = &self.spec.layers[index].attention;
        Attention {
            spec,
            layer: &self.layers[index],
            shape: spec.projection.head_shape(),
            norm: self.spec.norm,
            rope: spec.rope.map(|rope| (&self.spec.ropes[rope], &self.ropes[rope])),
            buffers: self.buffers.as_ref().expect(PREPARED),
        }
    }

    /// Ops of each layer's attention over whole sequences, without biases. Keys of the last `padding` rows of a sequence are not
    /// read.
    pub(crate) fn whole_attention(&self, padding: u32) -> Vec<Vec<Op>> {
        let of = |index| self.attention(index).over_sequences(padding, PositionBias::None);
        (0..self.layers.len()).map(of).collect()
    }

    /// Runs a layer up to queries, keys and values.
    pub(crate) fn run_rows(&mut self, backend: &mut AnyBackend, index: usize) {
        self.run(backend, Stage::Layer(index), |program| &program.layers[index].rows);
    }

    /// Runs a layer from attention's output on.
    pub(crate) fn run_behind(&mut self, backend: &mut AnyBackend, index: usize) {
        self.run(backend, Stage::Layer(index), |program| &program.layers[index].behind);
    }

    /// Runs one layer, with the ops of its attention.
    pub(crate) fn run_layer(&mut self, backend: &mut AnyBackend, index: usize, attention: &[Op]) {
        self.run_rows(backend, index);
        backend.run_all(attention);
        self.run_behind(backend, index);
    }

    /// Runs the ops from the last layer's output to hidden states.
    pub(crate) fn end(&mut self, backend: &mut AnyBackend) {
        self.run(backend, super::packing::last_layer(&self.spec), |program| &program.end);
    }

    /// Calls `head` with the matrix that makes logits, the adapters that change them, and the hidden states.
    pub(crate) fn with_head<T>(&mut self, head: impl FnOnce(&HeadOperands, BufferId) -> T) -> T {
        let hidden = self.program().hidden;
        let matrix = self.head.as_ref().unwrap_or(&self.embedding).id();
        let adapters = self.buffers.as_ref().expect(PREPARED).adapters.as_ref();
        let adapts = self.programs.adapting && self.head_deltas.iter().any(Option::is_some);
        let adapted = adapters.filter(|_| adapts).map(|adapters| {
            // A list of as many as adapters are loaded.
            let deltas = self.head_deltas.iter().map(|delta| delta.as_ref().map(Handle::id)).collect();
            (deltas, adapters.low.id())
        });
        head(&HeadOperands { matrix, adapted }, hidden)
    }

    /// Roles of the buffers behind a layer.
    pub(crate) fn sum_behind(&self, index: usize) -> Sum {
        self.program().layers[index].sum
    }

    /// Buffer of the hidden states, and two others as wide, which hold nothing behind the last layer.
    pub(crate) fn hidden_and_free(&self) -> (BufferId, [BufferId; 2]) {
        let (hidden, Sum { residual, normed, branch }) = (self.program().hidden, self.program().last_sum());
        (hidden, if hidden == residual { [branch, normed] } else { [branch, residual] })
    }

    /// Hidden states, `(rows, hidden)`, once the last layer has run.
    ///
    /// # Panics
    /// Without a step.
    pub(crate) fn hidden(&self) -> &ops::Buffer {
        self.buffers.as_ref().expect(PREPARED).hidden_wide(self.program().hidden)
    }
}
