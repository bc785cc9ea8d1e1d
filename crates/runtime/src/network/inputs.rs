//! What each layer reads of each token beside the sum (Gemma 3n's embeddings for each layer): a vector of its own, half of
//! it looked up by the token, half made of the token's embedding. A layer multiplies what it makes of the sum with its vector,
//! and adds what it makes of that.

use hanzo_engine_ops as ops;
use hanzo_engine_ops::{Activation, AnyBackend, BufferId, BufferRole, KernelError, Op, RowOp};

use super::loader::Loader;
use super::packing::{INPUT_GATE, INPUT_UP};
use super::program::ProgramBuilder;
use super::{Apart, Group, Network, Norm};
use crate::error::LoadError;
use crate::spec::{GemmaPart, LayerPart, Part, TransformerSpec};

/// What makes the vectors of all layers.
pub(super) struct Inputs {
    pub(super) embedding: ops::Matrix,  // (vocab, layers * inputs)
    pub(super) projection: ops::Matrix, // (layers * inputs, hidden)
    pub(super) norm: ops::Vector,       // (inputs), times the factor on the sum of both halves
    padding: Vec<f32>,                  // (layers * inputs): what is looked up for rows that are no token's
    scale: f32,                         // on what is looked up
    eps: f32,
}

/// What a layer makes of its vector.
pub(super) struct LayerInput {
    pub(super) gate: ops::Matrix, // (inputs, hidden)
    pub(super) up: ops::Matrix,   // (hidden, inputs)
    pub(super) norm: Norm,        // (hidden)
}

/// Activations.
pub(super) struct InputBuffers {
    pub(super) vectors: ops::Buffer, // (rows, layers * inputs)
    projected: ops::Buffer,          // likewise
    normed: ops::Buffer,             // likewise
    pub(super) gated: ops::Buffer,   // (rows, inputs)
}

/// Role and columns of [`InputBuffers`]' members, in their order.
pub(super) fn shapes(spec: &TransformerSpec) -> impl Iterator<Item = (BufferRole, usize)> {
    use BufferRole::{Operand, Residual};
    let shapes = spec.layer_inputs.map(|inputs| {
        let all = inputs * spec.layers.len();
        [(Residual, all), (Operand, all), (Operand, all), (Operand, inputs)]
    });
    shapes.into_iter().flatten()
}

impl InputBuffers {
    /// Those of a network, where it has such vectors.
    pub(super) fn new(
        backend: &AnyBackend,
        spec: &TransformerSpec,
        rows: usize,
    ) -> Result<Option<Self>, KernelError> {
        let mut made = shapes(spec).map(|(role, cols)| backend.buffer(role, rows, cols));
        let mut next = || made.next().transpose();
        let (Some(vectors), Some(projected), Some(normed), Some(gated)) =
            (next()?, next()?, next()?, next()?)
        else {
            return Ok(None);
        };
        Ok(Some(InputBuffers { vectors, projected, normed, gated }))
    }
}

impl Inputs {
    /// Makes the vectors of a step whose embeddings are in `sum`.
    pub(super) fn build(&self, p: &mut ProgramBuilder, sum: BufferId, b: &InputBuffers) {
        let (vectors, projected, normed) = (b.vectors.id(), b.projected.id(), b.normed.id());
        p.embed(&self.embedding, self.scale, vectors);
        p.matmul(&self.projection, None, sum, projected);
        p.rms_norm(projected, &self.norm, self.eps, normed);
        p.add(normed, vectors);
    }
}

impl LayerInput {
    /// From rows of `x` to what the layer adds to the sum, before the norm. The layer's vector begins `first` columns in.
    pub(super) fn build(
        &self,
        p: &mut ProgramBuilder,
        activation: Activation,
        first: usize,
        x: BufferId,
        b: &InputBuffers,
        out: BufferId,
    ) {
        let gated = b.gated.id();
        p.op(Op::MatMulActivated { weight: self.gate.id(), bias: None, activation, x, out: gated });
        p.row(RowOp::Multiply { by: b.vectors.id(), first }, gated);
        p.matmul(&self.up, None, gated, out);
    }
}

impl Network {
    /// Has rows that are no token's, `count` from `first` on, look up what padding does.
    ///
    /// # Errors
    /// The backend's.
    pub(crate) fn pad_inputs(
        &mut self,
        backend: &mut AnyBackend,
        first: usize,
        count: usize,
    ) -> Result<(), KernelError> {
        let buffers = self.buffers.as_mut().and_then(|buffers| buffers.inputs.as_mut());
        let (Some(inputs), Some(buffers)) = (&self.inputs, buffers) else { return Ok(()) };
        (first..first + count)
            .try_for_each(|row| backend.write_rows(&mut buffers.vectors, row, &inputs.padding))
    }
}

impl Loader<'_> {
    /// What makes the vectors of all layers.
    pub(super) fn inputs(&mut self) -> Result<Option<Inputs>, LoadError> {
        // The sum of both halves is as large as each of them.
        let half = std::f32::consts::FRAC_1_SQRT_2;
        let Some(inputs) = self.spec.layer_inputs else { return Ok(None) };
        let embedding = Part::Gemma(GemmaPart::InputEmbedding);
        let scale = (inputs as f32).sqrt() * half;
        let first = self.tensors.get(embedding.weight()).rows(0..1);
        let padding = first.decoded()?.iter().map(|number| number * scale).collect();
        let norm = self.factors(Part::Gemma(GemmaPart::InputProjectionNorm))?;
        let norm: Vec<f32> = norm.iter().map(|factor| factor * half).collect();
        Ok(Some(Inputs {
            embedding: self.pack(&Group::looked_up(embedding))?,
            projection: self.pack(&Group::multiplied(Part::Gemma(GemmaPart::InputProjection)))?,
            norm: self.backend.vector(&norm)?,
            padding,
            scale,
            // What is normed is not divided by the root of the width first.
            eps: self.spec.norm.eps * self.spec.hidden as f32,
        }))
    }

    /// What a layer makes of its vector.
    pub(super) fn input(&mut self, layer: usize) -> Result<Option<LayerInput>, LoadError> {
        if self.spec.layer_inputs.is_none() {
            return Ok(None);
        }
        Ok(Some(LayerInput {
            gate: self.matrix(layer, INPUT_GATE)?,
            up: self.matrix(layer, INPUT_UP)?,
            norm: self.norm(Part::Layer(layer, LayerPart::Gemma(GemmaPart::InputNorm)))?,
        }))
    }

    /// The factor on what a layer gives.
    pub(super) fn factor(&mut self, layer: usize) -> Result<f32, LoadError> {
        if !self.spec.layers_scaled {
            return Ok(1.0);
        }
        let factor = self.take(Part::Layer(layer, LayerPart::Gemma(GemmaPart::OutputScale)).weight())?;
        Ok(factor[0])
    }

    /// The norms of a mixture whose parts read and give each their own.
    pub(super) fn apart(&mut self, layer: usize) -> Result<Apart, LoadError> {
        let part = |part| Part::Layer(layer, LayerPart::Gemma(part));
        let root = (self.spec.hidden as f32).sqrt();
        let router = self.take(part(GemmaPart::RouterScale).weight())?;
        let router: Vec<f32> = router.iter().map(|factor| factor / root).collect();
        Ok(Apart {
            router_norm: self.backend.vector(&router)?,
            expert_scale: self.vector(part(GemmaPart::ExpertScale).weight())?,
            norm: self.norm(part(GemmaPart::ExpertsNorm))?,
            post_norm: self.norm(part(GemmaPart::ExpertsPostNorm))?,
            shared_post_norm: self.norm(part(GemmaPart::SharedPostNorm))?,
        })
    }
}
