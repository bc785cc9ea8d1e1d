//! Which matrices a network is packed as, in which types, and what memory it takes.

use hanzo_engine_ops::{AnyBackend, BufferRole, DType, ExpertParts, MatrixShape, Stage, StateRule};
use serde::{Deserialize, Serialize};

use super::{MemoryPlan, all_buffer_shapes};
use crate::load::Tensors;
use crate::spec::{
    AttentionSpec, DisentangledAttention, Distance, GemmaPart, LayerPart, MlpSpec, Part, Projection, QkNorm,
    StateSpec, TransformerSpec, Weight,
};

/// How matrices are packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum WeightType {
    /// As the file has them.
    #[default]
    Stored,
    /// Floats that are multiplied with activations as Q8_0, so that both are integers; those whose columns are not
    /// whole blocks, and embeddings, as stored.
    Q8_0,
}

impl WeightType {
    /// Every one.
    pub const ALL: [WeightType; 2] = [WeightType::Stored, WeightType::Q8_0];

    /// The name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            WeightType::Stored => "stored",
            WeightType::Q8_0 => "q8_0",
        }
    }

    /// What a matrix that is multiplied with activations is packed as.
    fn of(self, dtype: DType, cols: usize) -> DType {
        let float = matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
        let whole = cols.is_multiple_of(DType::Q8_0.block_weights());
        if self == WeightType::Q8_0 && float && whole { DType::Q8_0 } else { dtype }
    }
}

pub(super) const QKV: &[LayerPart] = &[LayerPart::Query, LayerPart::Key, LayerPart::Value];
pub(super) const STATE_OUTPUT: &[LayerPart] = &[LayerPart::StateOutput];
pub(super) const QUERY_GATE: &[LayerPart] = &[LayerPart::QueryGate];
const QUERY_KEY: &[LayerPart] = &[LayerPart::Query, LayerPart::Key, LayerPart::Key];
pub(super) const LATENT_DOWN: &[LayerPart] = &[LayerPart::LatentDown];
pub(super) const QUERY: &[LayerPart] = &[LayerPart::Query];
pub(super) const QUERY_DOWN: &[LayerPart] = &[LayerPart::QueryDown];
pub(super) const SHARED_DOWN: &[LayerPart] = &[LayerPart::SharedDown];
pub(super) const STREAM_ROUTER: &[LayerPart] = &[LayerPart::Gemma(GemmaPart::StreamRouter)];
pub(super) const STREAM_PREDICTION: &[LayerPart] = &[LayerPart::Gemma(GemmaPart::StreamPrediction)];
pub(super) const STREAM_CORRECTION: &[LayerPart] = &[LayerPart::Gemma(GemmaPart::StreamCorrection)];
pub(super) const LAUREL_DOWN: &[LayerPart] = &[LayerPart::Gemma(GemmaPart::LaurelDown)];
pub(super) const LAUREL_UP: &[LayerPart] = &[LayerPart::Gemma(GemmaPart::LaurelUp)];
pub(super) const INPUT_GATE: &[LayerPart] = &[LayerPart::Gemma(GemmaPart::InputGate)];
pub(super) const INPUT_UP: &[LayerPart] = &[LayerPart::Gemma(GemmaPart::InputUp)];
pub(super) const KEY_VALUE: &[LayerPart] = &[LayerPart::Key, LayerPart::Value];
pub(super) const OUTPUT: &[LayerPart] = &[LayerPart::AttentionOutput];
pub(super) const DOWN: &[LayerPart] = &[LayerPart::Down];
pub(super) const ROUTER: &[LayerPart] = &[LayerPart::Router];

/// What a state takes up and is read through, in the order of its columns.
fn state_in(state: &StateSpec) -> &'static [LayerPart] {
    use LayerPart::{StateBeta, StateGate, StateInput, StateStep};
    match state.shape.rule {
        StateRule::Delta => &[StateInput, StateGate, StateBeta, StateStep],
        StateRule::Ssd => &[StateInput, StateGate, StateStep],
        StateRule::Convolution => &[StateInput],
    }
}

/// What a layer makes of the sum before attention.
pub(super) fn first(attention: &AttentionSpec) -> &'static [LayerPart] {
    match &attention.projection {
        Projection::Latent(_) => LATENT_DOWN,
        Projection::State(state) => state_in(state),
        Projection::Heads(_) if attention.queries_alone() => QUERY,
        // The same rows twice: what values are is normed apart.
        Projection::Heads(_) if attention.values_are_keys => QUERY_KEY,
        Projection::Heads(_) => QKV,
    }
}

/// What goes up in an MLP.
pub(super) fn up(gated: bool) -> &'static [LayerPart] {
    if gated { &[LayerPart::Gate, LayerPart::Up] } else { &[LayerPart::Up] }
}

/// What goes up in the MLP beside experts.
pub(super) fn shared_up(gated: bool) -> &'static [LayerPart] {
    if gated { &[LayerPart::SharedGate, LayerPart::SharedUp] } else { &[LayerPart::SharedUp] }
}

/// What the matrices of single heads are packed as: a device multiplies them as floats.
pub(super) fn heads_type(dtype: DType) -> DType {
    match dtype {
        DType::F32 | DType::BF16 => dtype,
        // As many digits as a quantised number has.
        _ => DType::F16,
    }
}

/// The tensors of one packed matrix, stacked by rows, and whether it is multiplied with activations rather than looked up.
pub(crate) struct Group {
    pub(super) parts: Vec<Part>,
    pub(super) multiplied: bool,
}

impl Group {
    pub(crate) fn looked_up(part: Part) -> Self {
        Group { parts: vec![part], multiplied: false }
    }

    pub(crate) fn multiplied(part: Part) -> Self {
        Group { parts: vec![part], multiplied: true }
    }

    /// Of parts of a layer.
    pub(super) fn of_layer(layer: usize, parts: &[LayerPart]) -> Self {
        Group { parts: parts.iter().map(|&part| Part::Layer(layer, part)).collect(), multiplied: true }
    }

    /// Where in the network it is.
    pub(super) fn stage(&self, spec: &TransformerSpec) -> Stage {
        self.parts.first().map_or(Stage::Everywhere, |&part| stage_of(spec, part))
    }

    /// Of each part as it is packed.
    pub(super) fn shapes(
        &self,
        spec: &TransformerSpec,
        tensors: &Tensors,
        weight_type: WeightType,
    ) -> Vec<MatrixShape> {
        let shape = |&part: &Part| {
            let tensor = tensors.get(part.weight());
            // Of two dimensions, as opening has checked.
            let (mut rows, mut cols) = (tensor.shape[0], tensor.shape[1]);
            if spec.is_transposed(part) {
                (rows, cols) = (cols, rows);
            }
            // A router's scores decide, and steps are exponents, so they keep their digits.
            let keeps = !self.multiplied
                || matches!(
                    part,
                    Part::Layer(_, LayerPart::Router | LayerPart::StateBeta | LayerPart::StateStep)
                );
            let packed = tensors.packed_type(part.weight());
            let dtype = if keeps { packed } else { weight_type.of(packed, cols) };
            MatrixShape { rows, cols, dtype }
        };
        self.parts.iter().map(shape).collect()
    }
}

/// The last layer's stage, which ends with the last norm.
pub(super) fn last_layer(spec: &TransformerSpec) -> Stage {
    Stage::Layer(spec.layers.len().saturating_sub(1))
}

/// Where in the network a part is read.
fn stage_of(spec: &TransformerSpec, part: Part) -> Stage {
    match part {
        Part::Layer(layer, LayerPart::Router) => Stage::Undivided(layer),
        Part::Layer(layer, _) => Stage::Layer(layer),
        Part::Head | Part::LmDense => Stage::Head,
        Part::FinalNorm | Part::Gemma(GemmaPart::StreamDown(_)) => last_layer(spec),
        _ => Stage::Inputs,
    }
}

/// As [`stage_of`], of a vector: the norm that a layer's attention reads through belongs to the layer before, where that ends with it.
fn stage_of_vector(spec: &TransformerSpec, part: Part) -> Stage {
    if let Part::Layer(layer, of) = part
        && layer > 0
        && spec.streams.is_none()
        && spec.layers[layer].order.first_norm() == Some(of)
        && !spec.layers[layer - 1].order.on_sum()
    {
        return Stage::Layer(layer - 1);
    }
    stage_of(spec, part)
}

/// Every packed matrix but for the experts'.
pub(super) fn groups(spec: &TransformerSpec) -> Vec<Group> {
    let mut groups = vec![Group::looked_up(Part::TokenEmbedding)];
    if spec.positions.is_some() {
        groups.push(Group::looked_up(Part::PositionEmbedding));
    }
    if spec.type_vocab > 0 {
        groups.push(Group::looked_up(Part::TypeEmbedding));
    }
    if spec.convolution.is_some() {
        groups.push(Group::multiplied(Part::Convolution));
    }
    if spec.layer_inputs.is_some() {
        groups.push(Group::looked_up(Part::Gemma(GemmaPart::InputEmbedding)));
        groups.push(Group::multiplied(Part::Gemma(GemmaPart::InputProjection)));
    }
    for stream in 0..spec.streams.as_ref().map_or(0, |streams| streams.count - 1) {
        let both = [GemmaPart::StreamUp(stream), GemmaPart::StreamDown(stream)];
        groups.extend(both.map(|part| Group::multiplied(Part::Gemma(part))));
    }
    for (index, layer) in spec.layers.iter().enumerate() {
        let group = |parts: &[LayerPart]| Group::of_layer(index, parts);
        match layer.attention.projection {
            Projection::Heads(_) => groups.extend([first(&layer.attention), OUTPUT].map(group)),
            Projection::State(_) => groups.extend([first(&layer.attention), STATE_OUTPUT].map(group)),
            Projection::Latent(shape) => {
                groups.extend([LATENT_DOWN, QUERY, OUTPUT].map(group));
                groups.extend(shape.query_rank.map(|_| group(QUERY_DOWN)));
            }
        }
        if layer.attention.output_gate {
            groups.push(group(QUERY_GATE));
        }
        if layer.attention.memory {
            groups.push(group(KEY_VALUE));
        }
        if spec.streams.is_some() {
            let all = [STREAM_ROUTER, STREAM_PREDICTION, STREAM_CORRECTION, LAUREL_DOWN, LAUREL_UP];
            groups.extend(all.map(group));
        }
        if spec.layer_inputs.is_some() {
            groups.extend([INPUT_GATE, INPUT_UP].map(group));
        }
        if let Some(shared) = layer.mlp.shared() {
            groups.extend([shared_up(shared.gated), SHARED_DOWN].map(group));
        }
        match &layer.mlp {
            MlpSpec::Dense(dense) => groups.extend([up(dense.gated), DOWN].map(group)),
            MlpSpec::Experts(_) => groups.push(group(ROUTER)),
            MlpSpec::None => {}
        }
    }
    if spec.head.masked_lm().is_some() {
        groups.push(Group::multiplied(Part::LmDense));
    }
    if spec.head.has_matrix() {
        groups.push(Group::multiplied(Part::Head));
    }
    groups
}

/// What each of a layer's experts is packed from.
pub(super) fn expert_groups(spec: &TransformerSpec, layer: usize) -> Vec<ExpertParts<Part>> {
    let Some(experts) = spec.layers[layer].mlp.experts() else { return Vec::new() };
    let of_one = |expert| {
        let gate = experts.gated.then_some(LayerPart::ExpertGate(expert));
        let parts = gate.into_iter().chain([LayerPart::ExpertUp(expert)]);
        ExpertParts {
            gate_up: parts.map(|part| Part::Layer(layer, part)).collect(),
            down: vec![Part::Layer(layer, LayerPart::ExpertDown(expert))],
        }
    };
    (0..experts.count).map(of_one).collect()
}

/// Shapes of experts as they are packed.
pub(super) fn expert_shapes(
    spec: &TransformerSpec,
    tensors: &Tensors,
    weight_type: WeightType,
    experts: &[ExpertParts<Part>],
) -> Vec<ExpertParts<MatrixShape>> {
    let shapes =
        |parts: &[Part]| Group { parts: parts.to_vec(), multiplied: true }.shapes(spec, tensors, weight_type);
    let of_one = |expert: &ExpertParts<Part>| ExpertParts {
        gate_up: shapes(&expert.gate_up),
        down: shapes(&expert.down),
    };
    experts.iter().map(of_one).collect()
}

/// Shapes of the matrices of single heads of a layer: those that take queries to latents, then those that make values.
pub(super) fn latent_shapes(spec: &TransformerSpec, tensors: &Tensors, layer: usize) -> Vec<MatrixShape> {
    let Projection::Latent(shape) = spec.layers[layer].attention.projection else { return Vec::new() };
    let dtype = |part| heads_type(tensors.get(Part::Layer(layer, part).weight()).dtype);
    let [keys, values] = match shape.split_up {
        true => [dtype(LayerPart::LatentKeyUp), dtype(LayerPart::LatentValueUp)],
        false => [dtype(LayerPart::LatentUp); 2],
    };
    let key = MatrixShape { rows: shape.rank, cols: shape.nope_dim, dtype: keys };
    let value = MatrixShape { rows: shape.value_dim, cols: shape.rank, dtype: values };
    [vec![key; shape.heads], vec![value; shape.heads]].concat()
}

/// What a network takes, and operands of so many columns that its caller has beside it. Reads no weights.
pub(crate) fn plan(
    backend: &AnyBackend,
    spec: &TransformerSpec,
    tensors: &Tensors,
    weight_type: WeightType,
    more_cols: usize,
) -> MemoryPlan {
    let mut bytes = 0;
    for group in groups(spec) {
        backend.enter(group.stage(spec));
        let parts = group.shapes(spec, tensors, weight_type);
        bytes += if parts.iter().all(|part| backend.supports(part.dtype)) {
            backend.matrix_bytes(&parts)
        } else {
            group.parts.iter().map(|part| tensors.get(part.weight()).bytes.len()).sum()
        };
    }
    for layer in 0..spec.layers.len() {
        backend.enter(Stage::Undivided(layer));
        bytes += latent_shapes(spec, tensors, layer)
            .iter()
            .map(|shape| backend.matrix_bytes(&[*shape]))
            .sum::<usize>();
        backend.enter(Stage::Layer(layer));
        let experts = expert_groups(spec, layer);
        let shapes = expert_shapes(spec, tensors, weight_type, &experts);
        let mut parts = shapes.iter().flat_map(|expert| expert.gate_up.iter().chain(&expert.down));
        bytes += if parts.all(|part| backend.supports(part.dtype)) {
            backend.experts_bytes(&shapes)
        } else {
            let parts = experts.iter().flat_map(|expert| expert.gate_up.iter().chain(&expert.down));
            parts.map(|part| tensors.get(part.weight()).bytes.len()).sum()
        };
    }
    let vector_bytes = |(stage, length)| {
        backend.enter(stage);
        backend.vector_bytes(length)
    };
    bytes += vector_lengths(spec).map(vector_bytes).sum::<usize>();
    let more = (more_cols > 0).then_some((BufferRole::Operand, more_cols));
    MemoryPlan { weights_bytes: bytes as u64, buffers: all_buffer_shapes(spec).chain(more).collect() }
}

/// Lengths of all vectors, and where in the network each is: norms, biases, frequencies, and tables over distances.
fn vector_lengths(spec: &TransformerSpec) -> impl Iterator<Item = (Stage, usize)> {
    // These make tables, counted below.
    let is_table = |weight: &Weight| {
        use LayerPart::{DistanceKey, DistanceQuery};
        matches!(weight.part, Part::DistanceNorm | Part::Layer(_, DistanceKey | DistanceQuery))
    };
    let weights = spec.weights_and_factors().into_iter();
    // Of all experts together, counted below; and one row, which is a vector here.
    let is_joined = |weight: &Weight| {
        use LayerPart::{ExpertDown, ExpertGate, ExpertUp};
        weight.bias && matches!(weight.part, Part::Layer(_, ExpertGate(_) | ExpertUp(_) | ExpertDown(_)))
    };
    let vectors = weights.filter(move |(weight, shape)| {
        let gate = matches!(weight.part, Part::Layer(_, LayerPart::SharedRouter));
        use LayerPart::{CurveLinear, CurveNegative, CurvePositive, Gemma, HalfFactor};
        let Part::Layer(_, of_layer) = weight.part else {
            return shape.len() == 1 && !is_table(weight);
        };
        let factor = matches!(
            of_layer,
            Gemma(GemmaPart::OutputScale) | HalfFactor(_) | CurvePositive | CurveNegative | CurveLinear
        );
        (shape.len() == 1 && !is_table(weight) && !is_joined(weight) && !factor) || gate
    });
    let layers = || spec.layers.iter().enumerate().map(|(index, layer)| (Stage::Layer(index), layer));
    let experts = layers().filter_map(|(stage, layer)| Some((stage, layer.mlp.experts()?)));
    let experts = experts.filter(|(_, of)| of.expert_bias);
    // Norms of queries and keys that files have no weights of.
    let unit = layers().filter(|(_, layer)| layer.attention.qk_norm == QkNorm::Unit);
    let units =
        unit.flat_map(|(stage, layer)| [(stage, layer.attention.projection.head_shape().head_dim); 2]);
    let hidden = spec.hidden;
    let joined = experts.flat_map(move |(stage, of)| {
        let parts = if of.gated { 2 } else { 1 };
        [of.count * parts * of.ffn, of.count * hidden].map(|length| (stage, length))
    });
    let tables = match spec.distance {
        Distance::None => Vec::new(),
        Distance::Alibi(_) => vec![spec.heads().heads],
        Distance::Behind => vec![3 * spec.heads().heads],
        Distance::Learned { distance_max, .. } => {
            vec![spec.heads().heads * (2 * distance_max as usize + 1)]
        }
        Distance::Disentangled(DisentangledAttention { keys, queries, buckets, .. }) => {
            let tables = usize::from(keys) + usize::from(queries);
            let mut lengths = vec![buckets.rows() * spec.heads().q_width(); spec.layers.len() * tables];
            lengths.push(2 * spec.context_tokens_max as usize - 1);
            lengths
        }
    };
    vectors
        .map(move |(weight, shape)| (stage_of_vector(spec, weight.part), shape[shape.len() - 1]))
        .chain(joined)
        .chain(units)
        .chain(
            spec.ropes
                .iter()
                .map(|rope| rope.dim / 2 * (1 + usize::from(rope.long.is_some())))
                .chain(tables)
                .map(|length| (Stage::Everywhere, length)),
        )
}
