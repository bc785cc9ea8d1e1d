//! What matrices meet while a model runs: for each the squares of its inputs, column by column, summed over rows. It is what an
//! importance matrix is made of. A network that nobody observes has none of it.

use std::collections::{BTreeMap, HashMap};

use hanzo_engine_ops as ops;
use hanzo_engine_ops::{AnyBackend, BufferId, ExpertsId, HeadsId, KernelError, MatrixId, NO_EXPERT, Op};

use super::packing::{expert_groups, groups};
use super::program::{Program, Work};
use super::{Latent, Mlp, Network};
use crate::spec::{
    ExpertsSpec, LatentShape, LayerPart, LayerSpec, MlpSpec, Part, Projection, TransformerSpec,
};

/// A place of a layer whose numbers are the inputs of one product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// Before queries, keys and values, what makes latents, and what a state takes up.
    Attention,
    /// Between the two products that make queries of latents.
    QueryLatent,
    /// Queries of single heads, before they meet keys' latents.
    HeadQueries,
    /// What attention gives of latents, before values are made of it.
    HeadValues,
    /// After attention, or what is read of a state, before its output matrix.
    Attended,
    /// Before the matrices that go up in an MLP, or in that beside experts.
    Mlp,
    /// Inside of one, before the matrix that goes down.
    Inner,
    /// Before a router.
    Router,
    /// Before each expert's matrices that go up.
    Experts,
    /// Inside of each expert.
    ExpertsInner,
}

/// Sums over the activations that a matrix was multiplied with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ActivationSums<'a> {
    /// Sum of squares of each column over all rows; for a matrix per head, of each head's columns.
    pub squares: &'a [f64],
    /// Number of rows.
    pub rows: u64,
}

/// Sums of one place, of one matrix after the other.
#[derive(Debug, Default)]
struct Sums {
    squares: Vec<f64>,
    rows: Vec<u64>,
}

/// Sums of all matrices, for an importance matrix.
#[derive(Debug, Default)]
pub(crate) struct ImportanceSums {
    sums: BTreeMap<(usize, Place), Sums>,
    rows: usize,
    room: Vec<f32>,
    failed: Option<KernelError>,
}

/// Activations that an instruction adds to the sums.
#[derive(Clone, Copy, Debug)]
pub(super) enum Observation {
    /// Inputs of a matrix, or of one matrix a head.
    Rows { layer: usize, place: Place, x: BufferId, columns: HeadColumns },
    /// Inputs of the experts that rows went to.
    Experts {
        layer: usize,
        /// (rows, columns)
        x: BufferId,
        columns: usize,
        /// (rows, used * ffn)
        hidden: BufferId,
        experts: ExpertsSpec,
    },
}

/// Columns of a row that are read: the first `columns` of the `width` that each head has.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadColumns {
    heads: usize,
    width: usize,
    columns: usize,
}

impl HeadColumns {
    fn all(columns: usize) -> Self {
        Self { heads: 1, width: columns, columns }
    }
}

/// Places of a network's matrices.
#[derive(Default)]
struct Places {
    matrices: HashMap<MatrixId, (usize, Place, HeadColumns)>,
    heads: HashMap<HeadsId, (usize, Place, HeadColumns)>,
    experts: HashMap<ExpertsId, usize>,
}

impl Places {
    fn of(network: &Network) -> Self {
        let (mut all, hidden) = (Self::default(), network.spec.hidden);
        for (index, (layer, spec)) in network.layers.iter().zip(&network.spec.layers).enumerate() {
            all.put(&layer.qkv, index, Place::Attention, hidden);
            all.put(&layer.output, index, Place::Attended, spec.attention.projection.attended_width());
            if let (Some(latent), Projection::Latent(shape)) = (&layer.latent, spec.attention.projection) {
                all.put_latent(latent, index, shape);
            }
            match &spec.mlp {
                MlpSpec::None => {}
                MlpSpec::Dense(dense) => all.put_mlp(&layer.mlp, index, hidden, dense.ffn),
                MlpSpec::Experts(_) => all.put_experts(&layer.mlp, index, hidden),
            }
        }
        all
    }

    fn put(&mut self, matrix: &ops::Matrix, layer: usize, place: Place, columns: usize) {
        self.matrices.insert(matrix.id(), (layer, place, HeadColumns::all(columns)));
    }

    fn put_latent(&mut self, latent: &Latent, layer: usize, shape: LatentShape) {
        if let Some(rank) = shape.query_rank {
            self.put(&latent.query, layer, Place::QueryLatent, rank);
        }
        let LatentShape { heads, rank, nope_dim, .. } = shape;
        let queries = HeadColumns { heads, width: shape.query_dim(), columns: nope_dim };
        self.heads.insert(latent.key_up.id(), (layer, Place::HeadQueries, queries));
        let values = HeadColumns { heads, width: rank, columns: rank };
        self.heads.insert(latent.value_up.id(), (layer, Place::HeadValues, values));
    }

    fn put_mlp(&mut self, mlp: &Mlp, layer: usize, hidden: usize, ffn: usize) {
        let (Mlp::Curved { up, down, .. }
        | Mlp::Plain { up, down, .. }
        | Mlp::Gated { gate_up: up, down, .. }) = mlp
        else {
            return;
        };
        self.put(up, layer, Place::Mlp, hidden);
        self.put(down, layer, Place::Inner, ffn);
    }

    fn put_experts(&mut self, mlp: &Mlp, layer: usize, hidden: usize) {
        let Mlp::Experts { router, experts, shared, .. } = mlp else { return };
        self.put(router, layer, Place::Router, hidden);
        self.experts.insert(experts.id(), layer);
        if let Some(shared) = shared {
            self.put_mlp(&shared.mlp, layer, hidden, shared.ffn);
        }
    }

    /// Reading of a matrix's input.
    fn input(&self, matrix: MatrixId, x: BufferId) -> Option<Observation> {
        let &(layer, place, columns) = self.matrices.get(&matrix)?;
        Some(Observation::Rows { layer, place, x, columns })
    }
}

impl Network {
    /// A program that also reads the inputs of all matrices.
    pub(super) fn with_observations(&self, mut program: Program) -> Program {
        let places = Places::of(self);
        program.expand(|op| self.observed_op(&places, op));
        program
    }

    /// An op with the readings around it.
    fn observed_op(&self, places: &Places, op: Op) -> Vec<Work> {
        let (before, behind) = match &op {
            Op::MatMul { weight, x, .. } | Op::MatMulActivated { weight, x, .. } => {
                (places.input(*weight, *x), None)
            }
            Op::HeadsMatMul { weights, x, .. } => {
                let place = places.heads.get(weights);
                let rows = |&(layer, place, columns)| Observation::Rows { layer, place, x: *x, columns };
                (place.map(rows), None)
            }
            Op::Moe { weights, x, hidden, .. } => {
                let chosen = places.experts.get(&weights.experts).and_then(|&layer| {
                    let experts = *self.spec.layers[layer].mlp.experts()?;
                    let columns = self.spec.hidden;
                    Some(Observation::Experts { layer, x: *x, columns, hidden: *hidden, experts })
                });
                (places.input(weights.router, weights.routed.unwrap_or(*x)), chosen)
            }
            _ => (None, None),
        };
        let observe = |of: Option<Observation>| of.map(Work::Observe).into_iter();
        observe(before).chain([Work::Run(op)]).chain(observe(behind)).collect()
    }
}

impl Sums {
    fn add(&mut self, matrix: usize, row: &[f32]) {
        let squares = self.squares[matrix * row.len()..][..row.len()].iter_mut();
        squares.zip(row).for_each(|(sum, &x)| *sum += f64::from(x * x));
    }
}

impl ImportanceSums {
    /// The next step has so many rows.
    pub(super) fn begin(&mut self, rows: usize) {
        self.rows = rows;
    }

    /// Adds activations of the step under way.
    pub(super) fn add(&mut self, backend: &AnyBackend, of: &Observation) {
        let added = match *of {
            Observation::Rows { layer, place, x, columns } => {
                self.add_rows(backend, layer, place, x, columns)
            }
            Observation::Experts { layer, x, columns, hidden, ref experts } => {
                self.add_experts(backend, layer, x, columns, hidden, experts)
            }
        };
        if let Err(error) = added {
            self.failed.get_or_insert(error);
        }
    }

    /// Adds the columns that each head has of a row.
    fn add_rows(
        &mut self,
        backend: &AnyBackend,
        layer: usize,
        place: Place,
        x: BufferId,
        HeadColumns { heads, width, columns }: HeadColumns,
    ) -> Result<(), KernelError> {
        self.room.resize(self.rows * heads * width, 0.0);
        backend.read_rows(x, 0, &mut self.room)?;
        let sums = self.sums.entry((layer, place)).or_default();
        sums.squares.resize(heads * columns, 0.0);
        sums.rows.resize(1, 0);
        sums.rows[0] += self.rows as u64;
        for (at, of_head) in self.room.chunks_exact(width).enumerate() {
            sums.add(at % heads, &of_head[..columns]);
        }
        Ok(())
    }

    /// Adds to each expert's sums the rows that went to it.
    fn add_experts(
        &mut self,
        backend: &AnyBackend,
        layer: usize,
        x: BufferId,
        columns: usize,
        hidden: BufferId,
        &ExpertsSpec { count, used, ffn, .. }: &ExpertsSpec,
    ) -> Result<(), KernelError> {
        let pairs = self.rows * used;
        let (mut chosen, mut inner) = (vec![NO_EXPERT; pairs], vec![0.0; pairs * ffn]);
        self.room.resize(self.rows * columns, 0.0);
        backend.read_rows(x, 0, &mut self.room)?;
        backend.read_experts(hidden, &mut chosen, &mut inner)?;
        let before = self.room.chunks_exact(columns).flat_map(|row| std::iter::repeat_n(row, used));
        let sums = self.sums.entry((layer, Place::Experts)).or_default();
        Self::add_pairs(sums, count, columns, &chosen, before);
        let between = self.sums.entry((layer, Place::ExpertsInner)).or_default();
        Self::add_pairs(between, count, ffn, &chosen, inner.chunks_exact(ffn));
        Ok(())
    }

    fn add_pairs<'r>(
        sums: &mut Sums,
        count: usize,
        columns: usize,
        chosen: &[u32],
        rows: impl Iterator<Item = &'r [f32]>,
    ) {
        sums.squares.resize(count * columns, 0.0);
        sums.rows.resize(count, 0);
        for (&expert, row) in chosen.iter().zip(rows).filter(|(expert, _)| **expert != NO_EXPERT) {
            sums.rows[expert as usize] += 1;
            sums.add(expert as usize, row);
        }
    }

    /// What each matrix of the layers met.
    ///
    /// # Errors
    /// The device's, if it could not be read on the way.
    pub(crate) fn of_parts(
        &self,
        spec: &TransformerSpec,
    ) -> Result<Vec<(Part, ActivationSums<'_>)>, KernelError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let parts = groups(spec).into_iter().flat_map(|group| group.parts);
        let split = (0..spec.layers.len()).filter(|&layer| splits_latents(&spec.layers[layer]));
        let heads = split.flat_map(|layer| {
            [LayerPart::LatentKeyUp, LayerPart::LatentValueUp].map(|part| Part::Layer(layer, part))
        });
        let experts = (0..spec.layers.len()).flat_map(|layer| expert_groups(spec, layer));
        let experts = experts.flat_map(|expert| expert.gate_up.into_iter().chain(expert.down));
        let met = |part: Part| {
            let Part::Layer(layer, of) = part else { return None };
            let (place, matrix) = place_of(spec, layer, of)?;
            let sums = self.sums.get(&(layer, place))?;
            let columns = sums.squares.len() / sums.rows.len();
            let squares = &sums.squares[matrix * columns..][..columns];
            Some((part, ActivationSums { squares, rows: sums.rows[matrix] }))
        };
        let mut parts: Vec<(Part, ActivationSums<'_>)> =
            parts.chain(heads).chain(experts).filter_map(met).collect();
        // Keys that are values too are packed twice.
        parts.dedup_by_key(|(part, _)| *part);
        Ok(parts)
    }
}

fn splits_latents(layer: &LayerSpec) -> bool {
    matches!(layer.attention.projection, Projection::Latent(shape) if shape.split_up)
}

/// Where a matrix's inputs are, and which of those there it is.
fn place_of(spec: &TransformerSpec, layer: usize, part: LayerPart) -> Option<(Place, usize)> {
    use LayerPart::{
        AttentionOutput, Down, ExpertDown, ExpertGate, ExpertUp, Gate, Key, LatentDown, LatentKeyUp,
        LatentValueUp, Query, QueryDown, QueryGate, Router, SharedDown, SharedGate, SharedUp, StateBeta,
        StateGate, StateInput, StateOutput, StateStep, Up, Value,
    };
    let of_latents = |place| match spec.layers[layer].attention.projection {
        Projection::Latent(shape) if shape.query_rank.is_some() => place,
        _ => Place::Attention,
    };
    Some(match part {
        Query => (of_latents(Place::QueryLatent), 0),
        Key | Value | QueryDown | LatentDown | QueryGate => (Place::Attention, 0),
        StateInput | StateGate | StateBeta | StateStep => (Place::Attention, 0),
        LatentKeyUp => (Place::HeadQueries, 0),
        LatentValueUp => (Place::HeadValues, 0),
        AttentionOutput | StateOutput => (Place::Attended, 0),
        Gate | Up | SharedGate | SharedUp => (Place::Mlp, 0),
        Down | SharedDown => (Place::Inner, 0),
        Router => (Place::Router, 0),
        ExpertGate(expert) | ExpertUp(expert) => (Place::Experts, expert),
        ExpertDown(expert) => (Place::ExpertsInner, expert),
        _ => return None,
    })
}
