//! Which matrices an encoder is packed as, in which types, and what memory it takes.

use hanzo_engine_kernels::{Backend, DType, ExpertParts, MatrixShape};

use super::EncoderFiles;
use super::forward::buffer_shapes;
use super::spec::{Disentangled, Distance, EncoderSpec, MlpSpec};
use super::weights::{LayerPart, Part, Weight};
use crate::decoder::MemoryPlan;

/// How matrices are packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
pub(super) const OUTPUT: &[LayerPart] = &[LayerPart::AttentionOutput];
pub(super) const GATE_UP: &[LayerPart] = &[LayerPart::Gate, LayerPart::Up];
pub(super) const UP: &[LayerPart] = &[LayerPart::Up];
pub(super) const DOWN: &[LayerPart] = &[LayerPart::Down];

/// The tensors of one packed matrix, and whether it is multiplied with activations rather than looked up.
pub(super) struct Group {
    pub(super) parts: Vec<Part>,
    pub(super) multiplied: bool,
}

pub(super) fn groups(spec: &EncoderSpec) -> Vec<Group> {
    let looked_up = |part| Group { parts: vec![part], multiplied: false };
    let mut groups = vec![looked_up(Part::TokenEmbedding)];
    if spec.positions.is_some() {
        groups.push(looked_up(Part::PositionEmbedding));
    }
    if spec.type_vocab > 0 {
        groups.push(looked_up(Part::TypeEmbedding));
    }
    let up = match spec.mlp {
        MlpSpec::Plain { .. } => UP,
        MlpSpec::Gated { .. } => GATE_UP,
    };
    if spec.convolution.is_some() {
        groups.push(Group { parts: vec![Part::Convolution], multiplied: true });
    }
    for (layer, layer_spec) in spec.layers.iter().enumerate() {
        let group = |parts: &[LayerPart]| Group {
            parts: parts.iter().map(|&part| Part::Layer(layer, part)).collect(),
            multiplied: true,
        };
        groups.extend([QKV, OUTPUT].map(group));
        match spec.experts.filter(|_| layer_spec.experts) {
            None => groups.extend([up, DOWN].map(group)),
            Some(_) => groups.push(group(&[LayerPart::Router])),
        }
    }
    if let Some(head) = spec.masked_lm {
        groups.push(Group { parts: vec![Part::LmDense], multiplied: true });
        if !head.tied {
            groups.push(Group { parts: vec![Part::LmDecoder], multiplied: true });
        }
    }
    groups
}

/// Up and down of each of a layer's experts.
pub(super) fn expert_groups(spec: &EncoderSpec, layer: usize) -> Vec<[Group; 2]> {
    let group = |part| Group { parts: vec![Part::Layer(layer, part)], multiplied: true };
    let of_one = |expert| [LayerPart::ExpertUp(expert), LayerPart::ExpertDown(expert)].map(group);
    let experts = spec.experts.filter(|_| spec.layers[layer].experts);
    (0..experts.map_or(0, |experts| experts.count)).map(of_one).collect()
}

impl Group {
    pub(super) fn shapes(&self, files: &EncoderFiles, weight_type: WeightType) -> Vec<MatrixShape> {
        let shape = |&part: &Part| {
            let tensor = files.tensor(part.weight());
            // Of two dimensions, as opening has checked.
            let (mut rows, mut cols) = (tensor.shape[0], tensor.shape[1]);
            if is_transposed(&files.spec, part) {
                (rows, cols) = (cols, rows);
            }
            // A router's scores decide, so they keep their digits.
            let keeps = !self.multiplied || matches!(part, Part::Layer(_, LayerPart::Router));
            let dtype = if keeps { tensor.dtype } else { weight_type.of(tensor.dtype, cols) };
            MatrixShape { rows, cols, dtype }
        };
        self.parts.iter().map(shape).collect()
    }
}

/// Whether files store a matrix with its inputs outermost.
pub(super) fn is_transposed(spec: &EncoderSpec, part: Part) -> bool {
    matches!(part, Part::Layer(_, LayerPart::ExpertDown(_)))
        && spec.experts.is_some_and(|experts| experts.down_transposed)
}

/// Shapes of a layer's experts.
pub(super) fn expert_shapes(
    files: &EncoderFiles,
    weight_type: WeightType,
    groups: &[[Group; 2]],
) -> Vec<ExpertParts<MatrixShape>> {
    let of_one = |[up, down]: &[Group; 2]| ExpertParts {
        gate_up: up.shapes(files, weight_type),
        down: down.shapes(files, weight_type),
    };
    groups.iter().map(of_one).collect()
}

pub(super) fn plan<B: Backend>(backend: &B, files: &EncoderFiles, weight_type: WeightType) -> MemoryPlan {
    let spec = &files.spec;
    let mut bytes = 0;
    for group in groups(spec) {
        let parts = group.shapes(files, weight_type);
        bytes += if parts.iter().all(|part| backend.supports(part.dtype)) {
            backend.matrix_bytes(&parts)
        } else {
            group.parts.iter().map(|part| files.tensor(part.weight()).bytes.len()).sum()
        };
    }
    for layer in 0..spec.layers.len() {
        let groups = expert_groups(spec, layer);
        let shapes = expert_shapes(files, weight_type, &groups);
        let parts = shapes.iter().flat_map(|expert| expert.gate_up.iter().chain(&expert.down));
        bytes += if parts.into_iter().all(|part| backend.supports(part.dtype)) {
            backend.experts_bytes(&shapes)
        } else {
            let parts = groups.iter().flatten().flat_map(|group| &group.parts);
            parts.map(|part| files.tensor(part.weight()).bytes.len()).sum()
        };
    }
    let row_biases = spec.weights().into_iter().filter(|&(weight, _)| is_row_bias(spec, weight)).count();
    if row_biases > 0 {
        bytes += row_biases * backend.matrix_bytes(&[row_bias_shape(spec)]);
    }
    bytes += backend.vector_bytes(vector_elements(spec));
    MemoryPlan::new(bytes as u64, &buffer_shapes(spec))
}

/// Numbers of all vectors: norms, biases, frequencies, and tables over distances.
fn vector_elements(spec: &EncoderSpec) -> usize {
    let is_vector = |weight: &Weight| match weight.part {
        // Its rows are a matrix's, counted there.
        _ if is_row_bias(spec, *weight) => false,
        // These make tables, counted below.
        Part::DistanceNorm | Part::Layer(_, LayerPart::DistanceKey | LayerPart::DistanceQuery) => false,
        _ => true,
    };
    let weights = spec.weights();
    let vectors = weights.iter().filter(|(weight, shape)| shape.len() == 1 && is_vector(weight));
    let mut elements: usize = vectors.map(|(_, shape)| shape[0]).sum();
    elements += spec.ropes.iter().map(|rope| rope.dim / 2).sum::<usize>();
    elements += match spec.distance {
        Distance::None => 0,
        Distance::Alibi => spec.heads.heads,
        Distance::Learned { distance_max, .. } => spec.heads.heads * (2 * distance_max as usize + 1),
        Distance::Disentangled(Disentangled { keys, queries, buckets, .. }) => {
            let tables = usize::from(keys) + usize::from(queries);
            let bucket_of = 2 * spec.input_tokens_max as usize - 1;
            spec.layers.len() * tables * buckets.rows() * spec.heads.q_width() + bucket_of
        }
    };
    elements
}

/// Whether a bias is added as a table of equal rows: the op that computes what it belongs to adds none.
fn is_row_bias(spec: &EncoderSpec, weight: Weight) -> bool {
    let gated = matches!(spec.mlp, MlpSpec::Gated { .. });
    weight.bias
        && match weight.part {
            Part::Layer(_, LayerPart::Down) => gated,
            Part::Layer(_, LayerPart::Experts) => true,
            _ => false,
        }
}

/// The matrix that such a bias is made, one row for each token type.
pub(super) fn row_bias_shape(spec: &EncoderSpec) -> MatrixShape {
    MatrixShape { rows: spec.type_vocab.max(1), cols: spec.hidden, dtype: DType::F32 }
}
