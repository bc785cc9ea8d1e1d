//! What matrices meet while a model runs: for each the squares of its inputs, column by column, summed over rows. It is what an
//! importance matrix is made of. A network that nobody observes has none of it.

use std::collections::BTreeMap;

use hanzo_engine_kernels::{Backend, KernelError};

use super::packing::groups;
use crate::spec::{LayerPart, MlpSpec, Part, Projection, TransformerSpec};

/// A place of a layer whose numbers are the inputs of one product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// Before queries, keys and values.
    Attention,
    /// After attention, before its output matrix.
    Attended,
    /// Before the matrices that go up in an MLP.
    Mlp,
    /// Inside of an MLP, before the one that goes down.
    Inner,
}

/// What one place met.
#[derive(Clone, Debug, Default)]
pub struct Met {
    /// Of each column, the sum of the squares of all rows.
    pub squares: Vec<f64>,
    /// Rows.
    pub rows: u64,
}

/// All sums.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    sums: BTreeMap<(usize, Place), Met>,
    rows: usize,
    room: Vec<f32>,
    failed: Option<KernelError>,
}

/// Why a model cannot be observed, if it cannot: inputs of experts and of single heads never are in a buffer of their own.
pub(crate) fn unobservable(spec: &TransformerSpec) -> Option<&'static str> {
    let experts = spec.layers.iter().any(|layer| matches!(layer.mlp, MlpSpec::Experts(_)));
    let latent = spec.layers.iter().any(|layer| matches!(layer.attention.projection, Projection::Latent(_)));
    let gated = spec.keeps_states() || spec.layers.iter().any(|layer| layer.attention.output_gate);
    match (experts, latent) {
        _ if gated => Some("what layers with a state or a gated output meet is not observed"),
        (true, _) => Some("what single experts meet is not observed"),
        (_, true) => Some("what the matrices of latent attention meet is not observed"),
        _ => None,
    }
}

impl Observed {
    /// The next step has so many rows.
    pub(super) fn begin(&mut self, rows: usize) {
        self.rows = rows;
    }

    /// Adds the rows of a buffer of so many columns.
    pub(super) fn see<B: Backend>(
        &mut self,
        backend: &B,
        (layer, place): (usize, Place),
        x: &B::Buffer,
        columns: usize,
    ) {
        self.room.resize(self.rows * columns, 0.0);
        if let Err(error) = backend.read_rows(x, 0, &mut self.room) {
            self.failed.get_or_insert(error);
            return;
        }
        let met = self.sums.entry((layer, place)).or_default();
        met.squares.resize(columns, 0.0);
        met.rows += self.rows as u64;
        for row in self.room.chunks_exact(columns) {
            for (sum, &x) in met.squares.iter_mut().zip(row) {
                *sum += f64::from(x * x);
            }
        }
    }

    /// What each matrix of the layers met.
    ///
    /// # Errors
    /// The device's, if it could not be read on the way.
    pub(crate) fn of_parts(&self, spec: &TransformerSpec) -> Result<Vec<(Part, &Met)>, KernelError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let parts = groups(spec).into_iter().flat_map(|group| group.parts);
        let met = |part: Part| {
            let Part::Layer(layer, of) = part else { return None };
            let place = match of {
                LayerPart::Query | LayerPart::Key | LayerPart::Value => Place::Attention,
                LayerPart::AttentionOutput => Place::Attended,
                LayerPart::Gate | LayerPart::Up => Place::Mlp,
                LayerPart::Down => Place::Inner,
                _ => return None,
            };
            Some((part, self.sums.get(&(layer, place))?))
        };
        let mut parts: Vec<(Part, &Met)> = parts.filter_map(met).collect();
        // Keys that are values too are packed twice.
        parts.dedup_by_key(|(part, _)| *part);
        Ok(parts)
    }
}
