//! What matrices meet while a model runs: for each the squares of its inputs, column by column, summed over rows. It is what an
//! importance matrix is made of. A network that nobody observes has none of it.

use std::collections::BTreeMap;

use hanzo_engine_kernels::{AnyBackend, Backend, KernelError, NO_EXPERT, ops};

use super::LatentBuffers;
use super::packing::{expert_groups, groups};
use crate::spec::{LayerPart, LayerSpec, MlpSpec, Part, Projection, TransformerSpec};

/// A place of a layer whose numbers are the inputs of one product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
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

/// What a matrix met.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Met<'a> {
    /// Of each column, the sum of the squares of all rows; where it is one for each head, of each head's columns.
    pub squares: &'a [f64],
    /// Rows.
    pub rows: u64,
}

/// Sums of one place, of one matrix after the other.
#[derive(Debug, Default)]
struct Sums {
    squares: Vec<f64>,
    rows: Vec<u64>,
}

/// All sums.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    sums: BTreeMap<(usize, Place), Sums>,
    rows: usize,
    room: Vec<f32>,
    failed: Option<KernelError>,
}

/// Who looks on while a layer is computed.
pub(super) struct Watcher<'a> {
    pub(super) sums: &'a mut Observed,
    pub(super) layer: usize,
    pub(super) spec: &'a LayerSpec,
    pub(super) hidden: usize,
}

impl Watcher<'_> {
    /// What the first products of a layer read.
    pub(super) fn attention(&mut self, backend: &AnyBackend, x: &ops::Buffer) {
        self.sums.see(backend, (self.layer, Place::Attention), x, self.hidden);
    }

    /// What is between the products of latent attention.
    pub(super) fn latents(&mut self, backend: &AnyBackend, buffers: &LatentBuffers) {
        let Projection::Latent(shape) = self.spec.attention.projection else { return };
        if let Some(rank) = shape.query_rank {
            self.sums.see(backend, (self.layer, Place::QueryLatent), &buffers.normed, rank);
        }
        let heads = (shape.heads, shape.query_dim(), shape.nope_dim);
        self.sums.see_heads(backend, (self.layer, Place::HeadQueries), &buffers.queries, heads);
        let heads = (shape.heads, shape.rank, shape.rank);
        self.sums.see_heads(backend, (self.layer, Place::HeadValues), &buffers.mixed, heads);
    }

    /// What the output matrix reads.
    pub(super) fn attended(&mut self, backend: &AnyBackend, attended: &ops::Buffer) {
        let width = self.spec.attention.projection.attended_width();
        self.sums.see(backend, (self.layer, Place::Attended), attended, width);
    }

    /// What an MLP read that has just run, and what is in it.
    pub(super) fn mlp(&mut self, backend: &AnyBackend, x: &ops::Buffer, inner: &ops::Buffer) {
        match &self.spec.mlp {
            MlpSpec::None => {}
            MlpSpec::Dense(dense) => self.dense(backend, x, inner, dense.ffn),
            MlpSpec::Experts(_) => self.experts(backend, (x, x), inner),
        }
    }

    /// Likewise, of one that every row goes to.
    pub(super) fn dense(&mut self, backend: &AnyBackend, x: &ops::Buffer, inner: &ops::Buffer, ffn: usize) {
        self.sums.see(backend, (self.layer, Place::Mlp), x, self.hidden);
        self.sums.see(backend, (self.layer, Place::Inner), inner, ffn);
    }

    /// Likewise, of experts and of the router, which may read something else.
    pub(super) fn experts(
        &mut self,
        backend: &AnyBackend,
        (x, routed): (&ops::Buffer, &ops::Buffer),
        inner: &ops::Buffer,
    ) {
        let Some(experts) = self.spec.mlp.experts() else { return };
        self.sums.see(backend, (self.layer, Place::Router), routed, self.hidden);
        let (count, used, ffn) = (experts.count, experts.used, experts.ffn);
        self.sums.see_experts(backend, self.layer, (x, self.hidden), (inner, ffn), (count, used));
    }
}

impl Sums {
    fn add(&mut self, matrix: usize, row: &[f32]) {
        let squares = self.squares[matrix * row.len()..][..row.len()].iter_mut();
        squares.zip(row).for_each(|(sum, &x)| *sum += f64::from(x * x));
    }
}

impl Observed {
    /// The next step has so many rows.
    pub(super) fn begin(&mut self, rows: usize) {
        self.rows = rows;
    }

    /// Adds the rows of a buffer of so many columns.
    fn see(&mut self, backend: &AnyBackend, place: (usize, Place), x: &ops::Buffer, columns: usize) {
        self.see_heads(backend, place, x, (1, columns, columns));
    }

    /// Adds the first `columns` of the `width` that each head has of a row.
    fn see_heads(
        &mut self,
        backend: &AnyBackend,
        place: (usize, Place),
        x: &ops::Buffer,
        (heads, width, columns): (usize, usize, usize),
    ) {
        self.room.resize(self.rows * heads * width, 0.0);
        if let Err(error) = backend.read_rows(x, 0, &mut self.room) {
            self.failed.get_or_insert(error);
            return;
        }
        let sums = self.sums.entry(place).or_default();
        sums.squares.resize(heads * columns, 0.0);
        sums.rows.resize(1, 0);
        sums.rows[0] += self.rows as u64;
        for (at, of_head) in self.room.chunks_exact(width).enumerate() {
            sums.add(at % heads, &of_head[..columns]);
        }
    }

    /// Adds to each expert's sums the rows that went to it, `count` experts being there and `used` of them in a row.
    fn see_experts(
        &mut self,
        backend: &AnyBackend,
        layer: usize,
        (x, columns): (&ops::Buffer, usize),
        (inner, ffn): (&ops::Buffer, usize),
        (count, used): (usize, usize),
    ) {
        let pairs = self.rows * used;
        let (mut chosen, mut hidden) = (vec![NO_EXPERT; pairs], vec![0.0; pairs * ffn]);
        self.room.resize(self.rows * columns, 0.0);
        let read = backend.read_rows(x, 0, &mut self.room);
        if let Err(error) = read.and_then(|()| backend.read_experts(inner, &mut chosen, &mut hidden)) {
            self.failed.get_or_insert(error);
            return;
        }
        let before = self.room.chunks_exact(columns).flat_map(|row| std::iter::repeat_n(row, used));
        Self::add_pairs(
            self.sums.entry((layer, Place::Experts)).or_default(),
            count,
            columns,
            &chosen,
            before,
        );
        let between = self.sums.entry((layer, Place::ExpertsInner)).or_default();
        Self::add_pairs(between, count, ffn, &chosen, hidden.chunks_exact(ffn));
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
    pub(crate) fn of_parts(&self, spec: &TransformerSpec) -> Result<Vec<(Part, Met<'_>)>, KernelError> {
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
            Some((part, Met { squares, rows: sums.rows[matrix] }))
        };
        let mut parts: Vec<(Part, Met<'_>)> = parts.chain(heads).chain(experts).filter_map(met).collect();
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
