//! Layers that read what a sequence remembers instead of itself (Llama 3.2 Vision): what makes keys and values of that, rows that
//! see nothing of it, and steps in which nobody remembers anything, which pass such layers by.

use hanzo_engine_ops as ops;
use hanzo_engine_ops::{AnyBackend, BufferRole, KernelError, KvId, Op, QkvParams, Stage};

use super::Network;
use super::forward::PREPARED;
use super::program::{CacheLayer, ProgramBuilder, ToMemory};
use crate::spec::TransformerSpec;

/// Activations of such layers.
pub(crate) struct MemoryBuffers {
    pairs: ops::Buffer,             // (rows, 2 * kv_heads * head_dim): keys and values
    own: ops::Buffer,               // (rows, qkv_width): the same with room for queries before them
    pub(super) seeing: ops::Buffer, // (rows, hidden): 1 in the rows that see something, 0 in the others
}

/// Columns of keys and values of the layers that remember, and of queries before them too.
fn widths(spec: &TransformerSpec) -> Option<[usize; 2]> {
    let layer = spec.layers.iter().find(|layer| layer.attention.memory)?;
    let shape = layer.attention.projection.head_shape();
    Some([shape.qkv_width() - shape.q_width(), shape.qkv_width()])
}

/// Role and columns of the buffers that are there for this.
pub(super) fn shapes(spec: &TransformerSpec) -> impl Iterator<Item = (BufferRole, usize)> {
    let all = widths(spec).map(|[pairs, own]| [pairs, own, spec.hidden]);
    all.into_iter().flatten().map(|cols| (BufferRole::Operand, cols))
}

impl MemoryBuffers {
    pub(super) fn new(
        backend: &AnyBackend,
        spec: &TransformerSpec,
        rows: usize,
    ) -> Result<Option<Self>, KernelError> {
        let Some([pairs, own]) = widths(spec) else { return Ok(None) };
        let buffer = |cols| backend.buffer(BufferRole::Operand, rows, cols);
        Ok(Some(MemoryBuffers { pairs: buffer(pairs)?, own: buffer(own)?, seeing: buffer(spec.hidden)? }))
    }
}

impl Network {
    /// Says which rows of the step see something of what their sequences remember.
    ///
    /// # Errors
    /// The backend's.
    pub(crate) fn set_seeing(
        &mut self,
        backend: &mut AnyBackend,
        seeing: &[bool],
    ) -> Result<(), KernelError> {
        let hidden = self.spec.hidden;
        let buffers = self.buffers.as_mut().and_then(|buffers| buffers.memory.as_mut());
        let Some(buffers) = buffers else { return Ok(()) };
        self.programs.conditions.unseeing_rows = seeing.contains(&false);
        if !self.programs.conditions.unseeing_rows {
            return Ok(());
        }
        let numbers: Vec<f32> =
            seeing.iter().flat_map(|&sees| std::iter::repeat_n(f32::from(u8::from(sees)), hidden)).collect();
        backend.write_rows(&mut buffers.seeing, 0, &numbers)
    }

    /// Norms the sum behind a layer again, once it was changed, or the layer passed by.
    pub(crate) fn norm_behind(&mut self, backend: &mut AnyBackend, layer: usize) {
        self.run(backend, Stage::Layer(layer), |program| &program.layers[layer].norm);
    }

    /// Norms the sum as a layer reads it.
    pub(crate) fn norm_before(&mut self, backend: &mut AnyBackend, layer: usize) {
        match layer.checked_sub(1) {
            None => self.begin(backend),
            Some(before) => self.norm_behind(backend, before),
        }
    }

    /// Ops that put keys and values of rows into what is remembered: those of [`Network::give_remembered`].
    pub(crate) fn memory_ops(&self, memories: KvId) -> Vec<Op> {
        let b = self.buffers.as_ref().expect(PREPARED);
        let MemoryBuffers { pairs, own, .. } = b.memory.as_ref().expect("a layer remembers");
        let mut p = ProgramBuilder::default();
        for (layer, spec) in self.layers.iter().zip(&self.spec.layers) {
            let Some(weight) = &layer.remembered else { continue };
            let params = QkvParams {
                k_norm: layer.k_norm.as_ref().map(|norm| norm.weight.id()),
                norm_eps: self.spec.norm.eps,
                ..QkvParams::plain(spec.attention.projection.head_shape())
            };
            let to = ToMemory { weight, bias: None, params, pairs: pairs.id(), own: own.id() };
            p.remember(b.normed.id(), to, CacheLayer { kv: memories, layer: layer.cache });
        }
        p.finish_ops()
    }

    /// Writes rows that are to be remembered, `(n, hidden)`.
    ///
    /// # Errors
    /// The backend's.
    pub(crate) fn give_remembered(
        &mut self,
        backend: &mut AnyBackend,
        rows: &[f32],
    ) -> Result<(), KernelError> {
        let b = self.buffers.as_mut().expect(PREPARED);
        backend.write_rows(&mut b.normed, 0, rows)
    }
}
