//! Adapters beside a network's packed matrices: what each adds to which, laid out for the backend, and the buffers that
//! takes. A network without adapters has none of it and computes as if there were none.

use hanzo_engine_kernels::{
    Backend, BufferRole, KernelError, LowRankPair, LowRankShape, MatrixShape, MatrixSource, Stage,
};

use super::packing::{DOWN, OUTPUT, first, up};
use super::{Layer, Mlp, Network};
use crate::adapter::{Adapter, Pair};
use crate::error::LoadError;
use crate::limits::ADAPTER_RANK_MAX;
use crate::spec::{LayerPart, MlpSpec, Part, TransformerSpec};
use crate::tensor::Tensor;

/// What adapters add to the matrices of a layer, each a list by the adapter's slot.
pub(crate) struct Deltas<B: Backend> {
    pub(super) qkv: Vec<Option<B::LowRank>>,
    pub(super) output: Vec<Option<B::LowRank>>,
    pub(super) up: Vec<Option<B::LowRank>>, // to gate and up
    pub(super) down: Vec<Option<B::LowRank>>,
}

/// Buffers of steps that have adapters.
pub(crate) struct AdapterBuffers<B: Backend> {
    pub(super) low: B::Buffer,       // (rows, ranks of one matrix's pairs together)
    pub(super) both: Vec<B::Buffer>, // (rows, 2 * ffn), for each width inside MLPs, in the order of `inner_widths`
}

impl<B: Backend> Default for Deltas<B> {
    fn default() -> Self {
        Self { qkv: Vec::new(), output: Vec::new(), up: Vec::new(), down: Vec::new() }
    }
}

impl<B: Backend> Deltas<B> {
    fn lists(&mut self) -> [&mut Vec<Option<B::LowRank>>; 4] {
        [&mut self.qkv, &mut self.output, &mut self.up, &mut self.down]
    }
}

/// The widest `low` that any adapter needs: three matrices are packed as one.
const LOW_COLS: usize = 3 * ADAPTER_RANK_MAX;

/// Bytes of the buffers that the first adapter of a network makes.
pub(crate) fn buffer_bytes<B: Backend>(backend: &B, spec: &TransformerSpec, rows: usize) -> u64 {
    let both = super::inner_widths(spec).into_iter();
    let both = both.map(|cols| backend.buffer_bytes(BufferRole::Residual, rows, 2 * cols) as u64);
    backend.buffer_bytes(BufferRole::Operand, rows, LOW_COLS) as u64 + both.sum::<u64>()
}

/// Bytes of an adapter's matrices.
pub(crate) fn bytes<B: Backend>(backend: &B, spec: &TransformerSpec, adapter: &Adapter) -> u64 {
    let groups = (0..spec.layers.len()).flat_map(|layer| groups(spec, layer).map(|parts| (layer, parts)));
    let of_group = |(layer, parts): (usize, &'static [LayerPart])| {
        backend.enter(Stage::Layer(layer));
        let pairs = pairs_of(spec, adapter, layer, parts);
        let shapes: Vec<LowRankShape> =
            pairs.iter().map(|(_, pair)| LowRankShape { a: shape(&pair.a), b: shape(&pair.b) }).collect();
        backend.low_rank_bytes(&shapes) as u64
    };
    groups.map(of_group).sum()
}

/// The parts of the matrices of a layer that adapters may change, as [`Deltas`] lists them.
fn groups(spec: &TransformerSpec, layer: usize) -> [&'static [LayerPart]; 4] {
    let qkv = first(&spec.layers[layer].attention);
    match &spec.layers[layer].mlp {
        MlpSpec::Dense(dense) => [qkv, OUTPUT, up(dense.gated), DOWN],
        MlpSpec::Experts(_) | MlpSpec::None => [qkv, OUTPUT, &[], &[]],
    }
}

/// An adapter's pairs of a packed matrix, and where in its outputs each begins.
fn pairs_of<'a>(
    spec: &TransformerSpec,
    adapter: &'a Adapter,
    layer: usize,
    parts: &[LayerPart],
) -> Vec<(usize, &'a Pair)> {
    let (mut first, mut pairs) = (0, Vec::new());
    for &part in parts {
        if let Some(pair) = adapter.pair(Part::Layer(layer, part).weight()) {
            pairs.push((first, pair));
        }
        first += outputs(spec, layer, part);
    }
    pairs
}

/// Outputs of a part of a packed matrix of several.
fn outputs(spec: &TransformerSpec, layer: usize, part: LayerPart) -> usize {
    let layer = &spec.layers[layer];
    let shape = layer.attention.projection.head_shape();
    match part {
        LayerPart::Query => shape.q_width(),
        LayerPart::Key | LayerPart::Value => shape.kv_heads * shape.head_dim,
        LayerPart::Gate | LayerPart::Up => layer.mlp.inner_width(),
        _ => spec.hidden,
    }
}

impl<B: Backend> Network<B> {
    /// Puts an adapter in a slot, which is free.
    ///
    /// # Errors
    /// `Kernel` where the backend cannot compute its types or give the memory; nothing is kept then.
    pub(crate) fn adapt(&mut self, backend: &B, slot: usize, adapter: &Adapter) -> Result<(), LoadError> {
        let mut made = Vec::with_capacity(self.layers.len());
        for layer in 0..self.layers.len() {
            backend.enter(Stage::Layer(layer));
            let mut of_layer = [None, None, None, None];
            for (made, parts) in of_layer.iter_mut().zip(groups(&self.spec, layer)) {
                let pairs = pairs_of(&self.spec, adapter, layer, parts);
                if !pairs.is_empty() {
                    let pairs: Vec<LowRankPair<'_>> = pairs.into_iter().map(source).collect();
                    *made = Some(backend.low_rank(&pairs)?);
                }
            }
            made.push(of_layer);
        }
        adapter.release();
        self.make_adapter_buffers(backend)?;
        for (layer, deltas) in self.layers.iter_mut().zip(made) {
            for (list, delta) in layer.deltas.lists().into_iter().zip(deltas) {
                if list.len() <= slot {
                    list.resize_with(slot + 1, || None);
                }
                list[slot] = delta;
            }
        }
        Ok(())
    }

    pub(super) fn make_adapter_buffers(&mut self, backend: &B) -> Result<(), KernelError> {
        let Some(buffers) = self.buffers.as_mut().filter(|buffers| buffers.adapters.is_none()) else {
            return Ok(());
        };
        let rows = buffers.rows;
        let both = super::inner_widths(&self.spec).into_iter();
        let both = both.map(|cols| backend.buffer(BufferRole::Residual, rows, 2 * cols));
        buffers.adapters = Some(AdapterBuffers {
            low: backend.buffer(BufferRole::Operand, rows, LOW_COLS)?,
            both: both.collect::<Result<_, _>>()?,
        });
        Ok(())
    }

    /// Empties a slot.
    pub(crate) fn unadapt(&mut self, slot: usize) {
        for list in self.layers.iter_mut().flat_map(|layer| layer.deltas.lists()) {
            if let Some(delta) = list.get_mut(slot) {
                *delta = None;
            }
        }
    }
}

impl<B: Backend> Layer<B> {
    /// The MLP of a step that has adapters.
    pub(super) fn adapted_mlp(
        &self,
        backend: &mut B,
        x: &B::Buffer,
        inner: &mut B::Buffer,
        adapters: &mut AdapterBuffers<B>,
        out: &mut B::Buffer,
    ) {
        let AdapterBuffers { low, both } = adapters;
        match &self.mlp {
            // Its two products apart, with the same numbers where nothing is added between them.
            Mlp::Gated { activation, gate_up, down, bias, .. } => {
                let both = &mut both[self.inner];
                backend.matmul(gate_up, None, x, both);
                backend.add_low_rank(&self.deltas.up, x, low, both);
                backend.gate(*activation, both, inner);
                backend.matmul(down, None, inner, out);
                backend.add_low_rank(&self.deltas.down, inner, low, out);
                if let Some(bias) = bias {
                    backend.add_bias(bias, out);
                }
            }
            Mlp::Plain { .. } | Mlp::Curved { .. } => {
                self.mlp.run(backend, x, inner, out);
                backend.add_low_rank(&self.deltas.down, inner, low, out);
            }
            Mlp::Experts { .. } | Mlp::None => self.mlp.run(backend, x, inner, out),
        }
    }
}

fn source((first, pair): (usize, &Pair)) -> LowRankPair<'_> {
    LowRankPair { a: matrix(&pair.a), b: matrix(&pair.b), scale: pair.scale, first }
}

fn matrix(tensor: &Tensor) -> MatrixSource<'_> {
    MatrixSource { name: &tensor.name, shape: shape(tensor), bytes: &tensor.bytes }
}

/// Of two dimensions, as opening has checked.
fn shape(tensor: &Tensor) -> MatrixShape {
    MatrixShape { rows: tensor.shape[0], cols: tensor.shape[1], dtype: tensor.dtype }
}
