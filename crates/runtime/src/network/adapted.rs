//! Adapters beside a network's packed matrices: what each adds to which, laid out for the backend, and the buffers that
//! takes. A network without adapters has none of it and computes as if there were none.

use std::collections::BTreeMap;

use hanzo_engine_kernels::{
    AnyBackend, Backend, BufferRole, KernelError, LowRankPair, LowRankShape, MatrixShape, MatrixSource,
    RowOp, Stage, ops,
};

use super::packing::{DOWN, OUTPUT, QUERY_GATE, STATE_OUTPUT, first, up};
use super::{Layer, Mlp, Network};
use crate::adapter::{Adapter, Pair};
use crate::error::LoadError;
use crate::limits::ADAPTER_RANK_MAX;
use crate::spec::{LayerPart, MlpSpec, Part, TransformerSpec, Weight};
use crate::tensor::Tensor;

/// What adapters add to the matrices of a layer, each a list by the adapter's slot.
pub(crate) struct Deltas {
    pub(super) qkv: Vec<Option<ops::LowRank>>, // or to latents, or to what a state takes up
    pub(super) gate: Vec<Option<ops::LowRank>>, // to the gate of attention's output
    pub(super) output: Vec<Option<ops::LowRank>>,
    pub(super) up: Vec<Option<ops::LowRank>>, // to gate and up
    pub(super) down: Vec<Option<ops::LowRank>>,
}

/// Buffers of steps that have adapters.
pub(crate) struct AdapterBuffers {
    pub(super) low: ops::Buffer,       // (rows, ranks of one matrix's pairs together)
    pub(super) both: Vec<ops::Buffer>, // (rows, 2 * ffn), for each width inside MLPs, in the order of `inner_widths`
    /// (rows, ffn), likewise, where MLPs have no gate; the second half of `both` is ones then.
    pub(super) alone: Vec<Option<ops::Buffer>>,
}

impl Default for Deltas {
    fn default() -> Self {
        Self { qkv: Vec::new(), gate: Vec::new(), output: Vec::new(), up: Vec::new(), down: Vec::new() }
    }
}

impl Deltas {
    fn lists(&mut self) -> [&mut Vec<Option<ops::LowRank>>; 5] {
        [&mut self.qkv, &mut self.gate, &mut self.output, &mut self.up, &mut self.down]
    }
}

/// Columns of the widest `low` that an adapter may need: several matrices are packed as one.
fn low_cols(spec: &TransformerSpec) -> usize {
    let groups = (0..spec.layers.len()).flat_map(|layer| groups(spec, layer));
    groups.map(<[LayerPart]>::len).max().unwrap_or(0) * ADAPTER_RANK_MAX
}

/// Bytes of the buffers that the first adapter of a network makes.
pub(crate) fn buffer_bytes(backend: &AnyBackend, spec: &TransformerSpec, rows: usize) -> u64 {
    let both = super::inner_widths(spec).into_iter();
    let both = both.map(|cols| {
        let alone =
            if is_ungated(spec, cols) { backend.buffer_bytes(BufferRole::Residual, rows, cols) } else { 0 };
        (backend.buffer_bytes(BufferRole::Residual, rows, 2 * cols) + alone) as u64
    });
    backend.buffer_bytes(BufferRole::Operand, rows, low_cols(spec)) as u64 + both.sum::<u64>()
}

/// Bytes of an adapter's matrices.
pub(crate) fn bytes(backend: &AnyBackend, spec: &TransformerSpec, adapter: &Adapter) -> u64 {
    let groups = (0..spec.layers.len()).flat_map(|layer| groups(spec, layer).map(|parts| (layer, parts)));
    let rows = outputs(spec);
    let of_group = |(layer, parts): (usize, &'static [LayerPart])| {
        backend.enter(Stage::Layer(layer));
        let pairs = pairs_of(&rows, adapter, layer, parts);
        let shapes: Vec<LowRankShape> =
            pairs.iter().map(|(_, pair)| LowRankShape { a: shape(&pair.a), b: shape(&pair.b) }).collect();
        backend.low_rank_bytes(&shapes) as u64
    };
    groups.map(of_group).sum()
}

/// The parts of the matrices of a layer that adapters may change, as [`Deltas`] lists them.
fn groups(spec: &TransformerSpec, layer: usize) -> [&'static [LayerPart]; 5] {
    let attention = &spec.layers[layer].attention;
    let gate = if attention.output_gate { QUERY_GATE } else { &[] };
    let output = if attention.projection.state().is_some() { STATE_OUTPUT } else { OUTPUT };
    let [up, down]: [&'static [LayerPart]; 2] = match &spec.layers[layer].mlp {
        MlpSpec::Dense(dense) => [up(dense.gated), DOWN],
        MlpSpec::Experts(_) | MlpSpec::None => [&[], &[]],
    };
    [first(attention), gate, output, up, down]
}

/// Whether MLPs of such a width have no gate and a non-linearity without numbers of its own.
fn is_ungated(spec: &TransformerSpec, width: usize) -> bool {
    let is = |mlp: &MlpSpec| matches!(mlp, MlpSpec::Dense(dense) if dense.ffn == width && !dense.gated);
    !spec.curved && spec.layers.iter().any(|layer| is(&layer.mlp))
}

/// Rows of each of a network's matrices.
fn outputs(spec: &TransformerSpec) -> BTreeMap<Part, usize> {
    let rows =
        |(weight, shape): (Weight, Vec<usize>)| Some((weight.part, *shape.first()?)).filter(|_| !weight.bias);
    spec.weights().into_iter().filter_map(rows).collect()
}

/// An adapter's pairs of a packed matrix, and where in its outputs each begins.
fn pairs_of<'a>(
    outputs: &BTreeMap<Part, usize>,
    adapter: &'a Adapter,
    layer: usize,
    parts: &[LayerPart],
) -> Vec<(usize, &'a Pair)> {
    let (mut first, mut pairs) = (0, Vec::new());
    for &part in parts {
        let part = Part::Layer(layer, part);
        if let Some(pair) = adapter.pair(part.weight()) {
            pairs.push((first, pair));
        }
        first += outputs.get(&part).copied().unwrap_or(0);
    }
    pairs
}

impl Network {
    /// Puts an adapter in a slot, which is free.
    ///
    /// # Errors
    /// `Kernel` where the backend cannot compute its types or give the memory; nothing is kept then.
    pub(crate) fn adapt(
        &mut self,
        backend: &mut AnyBackend,
        slot: usize,
        adapter: &Adapter,
    ) -> Result<(), LoadError> {
        let mut made = Vec::with_capacity(self.layers.len());
        let rows = outputs(&self.spec);
        for layer in 0..self.layers.len() {
            backend.enter(Stage::Layer(layer));
            let mut of_layer = [None, None, None, None, None];
            for (made, parts) in of_layer.iter_mut().zip(groups(&self.spec, layer)) {
                let pairs = pairs_of(&rows, adapter, layer, parts);
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

    pub(super) fn make_adapter_buffers(&mut self, backend: &mut AnyBackend) -> Result<(), KernelError> {
        let Some(buffers) = self.buffers.as_mut().filter(|buffers| buffers.adapters.is_none()) else {
            return Ok(());
        };
        let rows = buffers.rows;
        let low = backend.buffer(BufferRole::Operand, rows, low_cols(&self.spec))?;
        let (mut both, mut alone) = (Vec::new(), Vec::new());
        for cols in super::inner_widths(&self.spec) {
            let mut pair = backend.buffer(BufferRole::Residual, rows, 2 * cols)?;
            let ungated = is_ungated(&self.spec, cols);
            if ungated {
                backend.write_rows(&mut pair, 0, &vec![1.0; rows * 2 * cols])?;
            }
            both.push(pair);
            alone.push(ungated.then(|| backend.buffer(BufferRole::Residual, rows, cols)).transpose()?);
        }
        buffers.adapters = Some(AdapterBuffers { low, both, alone });
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

impl Layer {
    /// The MLP of a step that has adapters.
    pub(super) fn adapted_mlp(
        &self,
        backend: &mut AnyBackend,
        x: &ops::Buffer,
        inner: &mut ops::Buffer,
        adapters: &mut AdapterBuffers,
        out: &mut ops::Buffer,
    ) {
        let AdapterBuffers { low, both, alone } = adapters;
        match &self.mlp {
            // Its two products apart, with the same numbers where nothing is added between them.
            Mlp::Gated { activation, gate_up, up_bias, down, bias } => {
                let both = &mut both[self.inner];
                backend.matmul(gate_up, up_bias.as_ref(), x, both);
                backend.add_low_rank(&self.deltas.up, x, low, both);
                backend.gate(*activation, both, inner);
                backend.matmul(down, None, inner, out);
                backend.add_low_rank(&self.deltas.down, inner, low, out);
                if let Some(bias) = bias {
                    backend.add_bias(bias, out);
                }
            }
            // What goes up is the gate of ones, so that the adapter's part of it is added before the non-linearity.
            Mlp::Plain { activation, up, up_bias, down, down_bias } => {
                let (both, Some(alone)) = (&mut both[self.inner], &mut alone[self.inner]) else { return };
                backend.matmul(up, up_bias.as_ref(), x, alone);
                backend.add_low_rank(&self.deltas.up, x, low, alone);
                backend.row_op(&RowOp::Put { x: alone, first: 0 }, both);
                backend.gate(*activation, both, inner);
                backend.matmul(down, down_bias.as_ref(), inner, out);
                backend.add_low_rank(&self.deltas.down, inner, low, out);
            }
            Mlp::Curved { curve: [positive, negative, linear], up, down } => {
                let xielu = RowOp::Xielu { positive: *positive, negative: *negative, linear: *linear };
                backend.matmul(up, None, x, inner);
                backend.add_low_rank(&self.deltas.up, x, low, inner);
                backend.row_op(&xielu, inner);
                backend.matmul(down, None, inner, out);
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
