//! From an opened encoder's tensors to weights on a backend: groups of parts packed as one matrix, tables computed
//! once on the host, and, where it is asked for, matrices packed in eight bits.

use std::borrow::Cow;

use hanzo_engine_kernels::{Backend, DType, KernelError, MatrixShape, MatrixSource, quant};

use super::distance::{alibi_slopes, learned_table};
use super::forward::buffer_cols;
use super::head::{HeadNorm, dense};
use super::spec::{Disentangled, Distance, EncoderSpec, MlpSpec, NormKind, NormOrder};
use super::weights::{LayerPart, Part, Weight};
use super::{DistanceTables, Encoder, EncoderFiles, Layer, MaskedLm, Mlp, Norm};
use crate::decoder::MemoryPlan;
use crate::error::LoadError;
use crate::load::Tensor;

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

    /// What a tensor that is multiplied with activations is packed as.
    fn of(self, tensor: &Tensor) -> DType {
        let float = matches!(tensor.dtype, DType::F32 | DType::F16 | DType::BF16);
        let whole = tensor.shape.last().is_some_and(|cols| cols.is_multiple_of(DType::Q8_0.block_weights()));
        if self == WeightType::Q8_0 && float && whole { DType::Q8_0 } else { tensor.dtype }
    }
}

const QKV: &[LayerPart] = &[LayerPart::Query, LayerPart::Key, LayerPart::Value];
const OUTPUT: &[LayerPart] = &[LayerPart::AttentionOutput];
const GATE_UP: &[LayerPart] = &[LayerPart::Gate, LayerPart::Up];
const UP: &[LayerPart] = &[LayerPart::Up];
const DOWN: &[LayerPart] = &[LayerPart::Down];

/// The tensors of one packed matrix, and whether it is multiplied with activations rather than looked up.
struct Group {
    parts: Vec<Part>,
    multiplied: bool,
}

fn groups(spec: &EncoderSpec) -> Vec<Group> {
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
    for layer in 0..spec.layers.len() {
        groups.extend([QKV, OUTPUT, up, DOWN].map(|parts| Group {
            parts: parts.iter().map(|&part| Part::Layer(layer, part)).collect(),
            multiplied: true,
        }));
    }
    if let Some(head) = spec.masked_lm {
        groups.push(Group { parts: vec![Part::LmDense], multiplied: true });
        if !head.tied {
            groups.push(Group { parts: vec![Part::LmDecoder], multiplied: true });
        }
    }
    groups
}

impl Group {
    fn shapes(&self, files: &EncoderFiles, weight_type: WeightType) -> Vec<MatrixShape> {
        let shape = |&part: &Part| {
            let tensor = files.tensor(part.weight());
            let dtype = if self.multiplied { weight_type.of(tensor) } else { tensor.dtype };
            // Of two dimensions, as opening has checked.
            MatrixShape { rows: tensor.shape[0], cols: tensor.shape[1], dtype }
        };
        self.parts.iter().map(shape).collect()
    }
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
    if let Some(shape) = down_bias_shape(spec) {
        bytes += spec.layers.len() * backend.matrix_bytes(&[shape]);
    }
    bytes += vector_elements(spec) * size_of::<f32>();
    MemoryPlan::new(bytes as u64, buffer_cols(spec).iter().sum())
}

/// Numbers of all vectors: norms, biases, frequencies, and tables over distances.
fn vector_elements(spec: &EncoderSpec) -> usize {
    let gated = matches!(spec.mlp, MlpSpec::Gated { .. });
    let is_vector = |weight: &Weight| match weight.part {
        // Its rows are a matrix's, counted there.
        Part::Layer(_, LayerPart::Down) if gated => false,
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

/// The matrix that a gated MLP's bias is made, one row for each token type.
fn down_bias_shape(spec: &EncoderSpec) -> Option<MatrixShape> {
    matches!(spec.mlp, MlpSpec::Gated { down_bias: true, .. }).then_some(MatrixShape {
        rows: spec.type_vocab.max(1),
        cols: spec.hidden,
        dtype: DType::F32,
    })
}

pub(super) fn load<B: Backend>(
    backend: &B,
    files: &EncoderFiles,
    weight_type: WeightType,
    progress: &mut dyn FnMut(f32),
) -> Result<Encoder<B>, LoadError> {
    let spec = files.spec.clone();
    for group in groups(&spec) {
        for (part, shape) in group.parts.iter().zip(group.shapes(files, weight_type)) {
            if !backend.supports(shape.dtype) {
                let (tensor, dtype) = (files.tensor(part.weight()).name.clone(), shape.dtype);
                return Err(KernelError::UnsupportedType { tensor, dtype, device: backend.device() }.into());
            }
        }
    }
    check_tied_twin(files)?;
    let bytes_total = files.weight_bytes();
    let mut loader =
        Loader { backend, files, spec: &spec, weight_type, progress, bytes_done: 0, bytes_total };
    let embedding = loader.table(Part::TokenEmbedding)?;
    let positions = loader.table_if(spec.positions.is_some(), Part::PositionEmbedding)?;
    let types = loader.table_if(spec.type_vocab > 0, Part::TypeEmbedding)?;
    let embedding_norm = match spec.embedding_norm {
        true => Some(loader.norm(Part::EmbeddingNorm)?),
        false => None,
    };
    let first_norm = match spec.order {
        NormOrder::Post | NormOrder::Pre { first: false } => None,
        NormOrder::Pre { first: true } | NormOrder::Sandwich => {
            Some(loader.norm(Part::Layer(0, LayerPart::AttentionNorm))?)
        }
    };
    let (distance, distances) = loader.distance()?;
    let layers: Result<Vec<_>, _> =
        (0..spec.layers.len()).map(|layer| loader.layer(layer, distances.as_deref())).collect();
    let ropes: Result<Vec<_>, _> = spec.ropes.iter().map(|rope| backend.vector(&rope.inv_freq())).collect();
    Ok(Encoder {
        embedding,
        positions,
        types,
        embedding_norm,
        first_norm,
        layers: layers?,
        ropes: ropes?,
        distance,
        masked_lm: loader.masked_lm()?,
        buffers: None,
        spec,
    })
}

/// Packs weights and tells how far it is.
struct Loader<'a, B: Backend> {
    backend: &'a B,
    files: &'a EncoderFiles,
    spec: &'a EncoderSpec,
    weight_type: WeightType,
    progress: &'a mut dyn FnMut(f32),
    bytes_done: u64,
    bytes_total: u64,
}

impl<B: Backend> Loader<'_, B> {
    /// One layer. `distances` is the embedding of distances, where there is one.
    fn layer(&mut self, layer: usize, distances: Option<&[f32]>) -> Result<Layer<B>, LoadError> {
        let spec = self.spec;
        let of_layer = |part| Part::Layer(layer, part);
        let qk_norm = |part: LayerPart| spec.qk_norm.then_some(of_layer(part));
        let sandwich = |part: LayerPart| (spec.order == NormOrder::Sandwich).then_some(of_layer(part));
        // Tables first: they may be made by projections that are packed below.
        let [distance_keys, distance_queries] = self.distance_tables(layer, distances)?;
        let (middle, last) = match spec.order {
            NormOrder::Post => (LayerPart::AttentionNorm, of_layer(LayerPart::MlpNorm)),
            _ if layer + 1 < spec.layers.len() => {
                (LayerPart::MlpNorm, Part::Layer(layer + 1, LayerPart::AttentionNorm))
            }
            _ => (LayerPart::MlpNorm, Part::FinalNorm),
        };
        Ok(Layer {
            qkv: self.matrix(layer, QKV)?,
            qkv_bias: self.biases_if(spec.qkv_bias, layer, QKV)?,
            q_norm: self.rms_weight(qk_norm(LayerPart::QueryNorm))?,
            k_norm: self.rms_weight(qk_norm(LayerPart::KeyNorm))?,
            distance_keys,
            distance_queries,
            output: self.matrix(layer, OUTPUT)?,
            output_bias: self.biases_if(spec.output_bias, layer, OUTPUT)?,
            attention_post_norm: self.norm_if(sandwich(LayerPart::AttentionPostNorm))?,
            middle_norm: self.norm(of_layer(middle))?,
            mlp: match spec.mlp {
                MlpSpec::Plain { bias, .. } => Mlp::Plain {
                    up: self.matrix(layer, UP)?,
                    up_bias: self.biases_if(bias, layer, UP)?,
                    down: self.matrix(layer, DOWN)?,
                    down_bias: self.biases_if(bias, layer, DOWN)?,
                },
                MlpSpec::Gated { .. } => Mlp::Gated {
                    gate_up: self.matrix(layer, GATE_UP)?,
                    down: self.matrix(layer, DOWN)?,
                    down_bias: self.down_bias(layer)?,
                },
            },
            mlp_post_norm: self.norm_if(sandwich(LayerPart::MlpPostNorm))?,
            last_norm: self.norm(last)?,
        })
    }

    /// A gated MLP's bias as a table of equal rows: there is an op that adds rows of a table.
    fn down_bias(&mut self, layer: usize) -> Result<Option<B::Matrix>, LoadError> {
        let Some(shape) = down_bias_shape(self.spec) else { return Ok(None) };
        let weight = Part::Layer(layer, LayerPart::Down).bias();
        let row: Vec<u8> = self.take(weight)?.iter().flat_map(|value| value.to_le_bytes()).collect();
        let name = &self.files.tensor(weight).name;
        let source = MatrixSource { name, shape, bytes: &row.repeat(shape.rows) };
        Ok(Some(self.backend.pack(&[source])?))
    }

    /// What distances add to scores in all layers, and their embedding where each layer makes tables of it.
    fn distance(&mut self) -> Result<(DistanceTables<B>, Option<Vec<f32>>), LoadError> {
        let heads = self.spec.heads.heads;
        match self.spec.distance {
            Distance::None => Ok((DistanceTables::None, None)),
            Distance::Alibi => {
                let slopes = self.backend.vector(&alibi_slopes(heads))?;
                Ok((DistanceTables::Alibi { slopes }, None))
            }
            Distance::Learned { buckets, distance_max: reach } => {
                let weights = self.take(Part::DistanceBias.weight())?;
                let table = self.backend.vector(&learned_table(&weights, heads, buckets, reach))?;
                Ok((DistanceTables::Learned { table, reach }, None))
            }
            Distance::Disentangled(Disentangled { normed, buckets, .. }) => {
                let mut embedding = self.take(Part::DistanceEmbedding.weight())?;
                if normed {
                    let norm = HeadNorm {
                        weight: self.take(Part::DistanceNorm.weight())?,
                        bias: match self.spec.norm_bias() {
                            true => Some(self.take(Part::DistanceNorm.bias())?),
                            false => None,
                        },
                        eps: self.spec.norm.eps,
                    };
                    embedding.chunks_exact_mut(self.spec.hidden).for_each(|row| norm.apply(row));
                }
                let reach = self.spec.input_tokens_max - 1;
                let tables = DistanceTables::Disentangled {
                    bucket_of: buckets.table(reach),
                    reach,
                    buckets: buckets.rows() as u32,
                };
                Ok((tables, Some(embedding)))
            }
        }
    }

    /// A layer's keys and queries of distances: one row a bucket, projected here once.
    fn distance_tables(
        &mut self,
        layer: usize,
        distances: Option<&[f32]>,
    ) -> Result<[Option<B::Vector>; 2], LoadError> {
        let (Distance::Disentangled(kind), Some(distances)) = (self.spec.distance, distances) else {
            return Ok([None, None]);
        };
        let parts = match kind.shared {
            true => [LayerPart::Key, LayerPart::Query],
            false => [LayerPart::DistanceKey, LayerPart::DistanceQuery],
        };
        let mut tables = [None, None];
        for ((table, part), wanted) in tables.iter_mut().zip(parts).zip([kind.keys, kind.queries]) {
            if !wanted {
                continue;
            }
            let part = Part::Layer(layer, part);
            let weight = matrix_as_f32(self.files.tensor(part.weight()))?;
            let bias = self.files.tensor(part.bias()).to_f32()?;
            let rows = distances.chunks_exact(self.spec.hidden);
            let values: Vec<f32> = rows.flat_map(|row| dense(&weight, Some(&bias), row)).collect();
            *table = Some(self.backend.vector(&values)?);
            if !kind.shared {
                self.done(part.weight());
                self.done(part.bias());
            }
        }
        Ok(tables)
    }

    fn masked_lm(&mut self) -> Result<Option<MaskedLm<B>>, LoadError> {
        let Some(head) = self.spec.masked_lm else { return Ok(None) };
        Ok(Some(MaskedLm {
            dense: self.pack(&[Part::LmDense], true)?,
            dense_bias: match head.dense_bias {
                true => {
                    let bias = self.take(Part::LmDense.bias())?;
                    Some(self.backend.vector(&bias)?)
                }
                false => None,
            },
            norm: self.norm(Part::LmNorm)?,
            decoder: match head.tied {
                true => None,
                false => Some(self.pack(&[Part::LmDecoder], true)?),
            },
            decoder_bias: match head.decoder_bias {
                true => Some(self.take(Part::LmDecoder.bias())?),
                false => None,
            },
        }))
    }

    fn matrix(&mut self, layer: usize, parts: &[LayerPart]) -> Result<B::Matrix, LoadError> {
        let parts: Vec<Part> = parts.iter().map(|&part| Part::Layer(layer, part)).collect();
        self.pack(&parts, true)
    }

    fn table(&mut self, part: Part) -> Result<B::Matrix, LoadError> {
        self.pack(&[part], false)
    }

    fn table_if(&mut self, present: bool, part: Part) -> Result<Option<B::Matrix>, LoadError> {
        if present { Ok(Some(self.table(part)?)) } else { Ok(None) }
    }

    fn pack(&mut self, parts: &[Part], multiplied: bool) -> Result<B::Matrix, LoadError> {
        let group = Group { parts: parts.to_vec(), multiplied };
        let shapes = group.shapes(self.files, self.weight_type);
        let tensors: Vec<&Tensor> = parts.iter().map(|part| self.files.tensor(part.weight())).collect();
        let bytes: Result<Vec<Cow<'_, [u8]>>, LoadError> =
            tensors.iter().zip(&shapes).map(|(tensor, shape)| stored_as(tensor, shape.dtype)).collect();
        let bytes = bytes?;
        let sources: Vec<MatrixSource<'_>> = tensors
            .iter()
            .zip(shapes)
            .zip(&bytes)
            .map(|((tensor, shape), bytes)| MatrixSource { name: &tensor.name, shape, bytes })
            .collect();
        let packed = self.backend.pack(&sources)?;
        for part in parts {
            self.done(part.weight());
        }
        Ok(packed)
    }

    /// A group's biases one after the other.
    fn biases_if(
        &mut self,
        present: bool,
        layer: usize,
        parts: &[LayerPart],
    ) -> Result<Option<B::Vector>, LoadError> {
        if !present {
            return Ok(None);
        }
        let mut values = Vec::new();
        for &part in parts {
            values.extend(self.take(Part::Layer(layer, part).bias())?);
        }
        Ok(Some(self.backend.vector(&values)?))
    }

    fn norm(&mut self, part: Part) -> Result<Norm<B>, LoadError> {
        let weight = self.factors(part)?;
        let bias = match self.spec.norm_bias() {
            true => Some(self.backend.vector(&self.take(part.bias())?)?),
            false => None,
        };
        Ok(Norm { weight, bias })
    }

    fn norm_if(&mut self, part: Option<Part>) -> Result<Option<Norm<B>>, LoadError> {
        part.map(|part| self.norm(part)).transpose()
    }

    fn rms_weight(&mut self, part: Option<Part>) -> Result<Option<B::Vector>, LoadError> {
        part.map(|part| self.factors(part)).transpose()
    }

    /// A norm's factors, which some files store less 1.
    fn factors(&mut self, part: Part) -> Result<B::Vector, LoadError> {
        let mut values = self.take(part.weight())?;
        if self.spec.norm.kind == (NormKind::Rms { from_one: true }) {
            values.iter_mut().for_each(|value| *value += 1.0);
        }
        Ok(self.backend.vector(&values)?)
    }

    /// A tensor's numbers.
    fn take(&mut self, weight: Weight) -> Result<Vec<f32>, LoadError> {
        let values = matrix_as_f32(self.files.tensor(weight))?;
        self.done(weight);
        Ok(values)
    }

    fn done(&mut self, weight: Weight) {
        let bytes = &self.files.tensor(weight).bytes;
        bytes.release();
        self.bytes_done += bytes.len() as u64;
        (self.progress)((self.bytes_done as f64 / self.bytes_total as f64) as f32);
    }
}

/// A tensor's bytes in a type, which is its own or one it is quantised to.
fn stored_as(tensor: &Tensor, dtype: DType) -> Result<Cow<'_, [u8]>, LoadError> {
    if dtype == tensor.dtype {
        return Ok(Cow::Borrowed(&tensor.bytes));
    }
    let values = tensor.to_f32()?;
    let length = dtype.bytes_of(values.len()).expect("whole blocks, because their types are chosen so");
    let mut bytes = vec![0; length];
    quant::quantize_row(dtype, &values, &mut bytes);
    Ok(Cow::Owned(bytes))
}

/// A tensor's numbers, of whatever type that can be decoded.
fn matrix_as_f32(tensor: &Tensor) -> Result<Vec<f32>, LoadError> {
    if tensor.shape.len() < 2 || !quant::can_dequantize(tensor.dtype) {
        return tensor.to_f32();
    }
    let mut values = vec![0.0; tensor.elements()];
    quant::dequantize_row(tensor.dtype, &tensor.bytes, &mut values);
    Ok(values)
}

/// A decoder stored beside the embedding it is tied to must be the same numbers: the configuration and the weights
/// would say different things otherwise.
fn check_tied_twin(files: &EncoderFiles) -> Result<(), LoadError> {
    let Some(twin) = files.tied_twin() else { return Ok(()) };
    let embedding = files.tensor(Part::TokenEmbedding.weight());
    let same = (twin.dtype, &twin.bytes[..]) == (embedding.dtype, &embedding.bytes[..]);
    twin.bytes.release();
    if same {
        return Ok(());
    }
    Err(LoadError::Unsupported {
        file: twin.file.to_string(),
        key: "tie_word_embeddings".into(),
        value: "true".into(),
        reason: format!("tensor {} differs from {}, to which it is tied", twin.name, embedding.name),
    })
}
