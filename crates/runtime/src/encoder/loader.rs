//! From an opened encoder's tensors to weights on a backend: groups of parts packed as one matrix (`packing`), and tables
//! computed once on the host.

use std::borrow::Cow;

use hanzo_engine_kernels::{
    Backend, DType, ExpertParts, ExpertScoring, KernelError, MatrixShape, MatrixSource, MoeParams, quant,
};

use super::distance::{alibi_slopes, learned_table};
use super::head::{HeadNorm, dense};
use super::packing::{
    DOWN, GATE_UP, Group, OUTPUT, QKV, UP, WeightType, expert_groups, expert_shapes, groups, is_transposed,
    row_bias_shape,
};
use super::spec::{Disentangled, Distance, EncoderSpec, ExpertsSpec, MlpSpec, NormKind, NormOrder, QkNorm};
use super::weights::{LayerPart, Part, Weight};
use super::{Convolution, DistanceTables, Encoder, EncoderFiles, Layer, MaskedLm, Mlp, Norm};
use crate::error::LoadError;
use crate::load::Tensor;

pub(super) fn load<B: Backend>(
    backend: &B,
    files: &EncoderFiles,
    weight_type: WeightType,
    progress: &mut dyn FnMut(f32),
) -> Result<Encoder<B>, LoadError> {
    let spec = files.spec.clone();
    let experts = (0..spec.layers.len()).flat_map(|layer| expert_groups(&spec, layer)).flatten();
    for group in groups(&spec).into_iter().chain(experts) {
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
        NormOrder::Post | NormOrder::PostTwice | NormOrder::Pre { first: false } => None,
        NormOrder::Pre { first: true } | NormOrder::Sandwich => {
            Some(loader.norm(Part::Layer(0, LayerPart::AttentionNorm))?)
        }
    };
    let convolution = loader.convolution()?;
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
        convolution,
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

impl<'a, B: Backend> Loader<'a, B> {
    /// One layer. `distances` is the embedding of distances, where there is one.
    fn layer(&mut self, layer: usize, distances: Option<&[f32]>) -> Result<Layer<B>, LoadError> {
        let spec = self.spec;
        let of_layer = |part| Part::Layer(layer, part);
        let attention_post =
            spec.order.attention_post_norm().then_some(of_layer(LayerPart::AttentionPostNorm));
        let mlp_post = (spec.order == NormOrder::Sandwich).then_some(of_layer(LayerPart::MlpPostNorm));
        // Tables first: they may be made by projections that are packed below.
        let [distance_keys, distance_queries] = self.distance_tables(layer, distances)?;
        let (middle, last) = match spec.order {
            NormOrder::Post | NormOrder::PostTwice => {
                (LayerPart::AttentionNorm, of_layer(LayerPart::MlpNorm))
            }
            _ if layer + 1 < spec.layers.len() => {
                (LayerPart::MlpNorm, Part::Layer(layer + 1, LayerPart::AttentionNorm))
            }
            _ => (LayerPart::MlpNorm, Part::FinalNorm),
        };
        Ok(Layer {
            qkv: self.matrix(layer, QKV)?,
            qkv_bias: self.biases_if(spec.qkv_bias, layer, QKV)?,
            q_norm: self.qk_norm(of_layer(LayerPart::QueryNorm))?,
            k_norm: self.qk_norm(of_layer(LayerPart::KeyNorm))?,
            distance_keys,
            distance_queries,
            output: self.matrix(layer, OUTPUT)?,
            output_bias: self.biases_if(spec.output_bias, layer, OUTPUT)?,
            attention_post_norm: self.norm_if(attention_post)?,
            middle_norm: self.norm(of_layer(middle))?,
            mlp: self.mlp(layer)?,
            mlp_post_norm: self.norm_if(mlp_post)?,
            last_norm: self.norm(last)?,
        })
    }

    fn mlp(&mut self, layer: usize) -> Result<Mlp<B>, LoadError> {
        let spec = self.spec;
        Ok(match (spec.experts.filter(|_| spec.layers[layer].experts), spec.mlp) {
            (Some(experts), mlp) => {
                let ExpertsSpec { used, bias, .. } = experts;
                let params = MoeParams {
                    experts_used: used,
                    scoring: ExpertScoring::Softmax,
                    normalized: false,
                    scale: 1.0,
                    activation: mlp.activation(),
                    gated: false,
                };
                let router = self.matrix(layer, &[LayerPart::Router])?;
                let groups = expert_groups(spec, layer);
                let shapes = expert_shapes(self.files, self.weight_type, &groups);
                let mut experts = self.backend.experts(&shapes)?;
                for [up, down] in &groups {
                    let (up_parts, down_parts) = (self.stored(up)?, self.stored(down)?);
                    let parts = ExpertParts { gate_up: sources(&up_parts), down: sources(&down_parts) };
                    self.backend.pack_expert(&mut experts, &parts)?;
                    up.parts.iter().chain(&down.parts).for_each(|part| self.done(part.weight()));
                }
                Mlp::Experts {
                    params,
                    router,
                    experts,
                    bias: self.row_bias(bias, layer, LayerPart::Experts)?,
                }
            }
            (None, MlpSpec::Plain { bias, .. }) => Mlp::Plain {
                up: self.matrix(layer, UP)?,
                up_bias: self.biases_if(bias, layer, UP)?,
                down: self.matrix(layer, DOWN)?,
                down_bias: self.biases_if(bias, layer, DOWN)?,
            },
            (None, MlpSpec::Gated { down_bias, .. }) => Mlp::Gated {
                gate_up: self.matrix(layer, GATE_UP)?,
                down: self.matrix(layer, DOWN)?,
                down_bias: self.row_bias(down_bias, layer, LayerPart::Down)?,
            },
        })
    }

    fn convolution(&mut self) -> Result<Option<Convolution<B>>, LoadError> {
        if self.spec.convolution.is_none() {
            return Ok(None);
        }
        Ok(Some(Convolution {
            weight: self.pack(&[Part::Convolution], true)?,
            bias: self.backend.vector(&self.take(Part::Convolution.bias())?)?,
            norm: self.norm(Part::ConvolutionNorm)?,
        }))
    }

    /// A bias as a table of equal rows: there is an op that adds rows of a table.
    fn row_bias(
        &mut self,
        present: bool,
        layer: usize,
        part: LayerPart,
    ) -> Result<Option<B::Matrix>, LoadError> {
        if !present {
            return Ok(None);
        }
        let shape = row_bias_shape(self.spec);
        let weight = Part::Layer(layer, part).bias();
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
        let stored = self.stored(&Group { parts: parts.to_vec(), multiplied })?;
        let packed = self.backend.pack(&sources(&stored))?;
        for part in parts {
            self.done(part.weight());
        }
        Ok(packed)
    }

    /// A group's tensors in the types they are packed as.
    fn stored(&self, group: &Group) -> Result<Vec<Stored<'a>>, LoadError> {
        let stored = |(&part, shape): (&Part, MatrixShape)| {
            let tensor = self.files.tensor(part.weight());
            let bytes = if is_transposed(self.spec, part) {
                transposed_as(tensor, shape.dtype)?
            } else {
                stored_as(tensor, shape.dtype)?
            };
            Ok(Stored { name: &tensor.name, shape, bytes })
        };
        group.parts.iter().zip(group.shapes(self.files, self.weight_type)).map(stored).collect()
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

    /// A norm of queries or of keys.
    fn qk_norm(&mut self, part: Part) -> Result<Option<Norm<B>>, LoadError> {
        Ok(match self.spec.qk_norm {
            QkNorm::None => None,
            QkNorm::Heads => Some(Norm { weight: self.factors(part)?, bias: None }),
            QkNorm::Whole => Some(self.norm(part)?),
        })
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

/// A tensor as it is packed.
struct Stored<'a> {
    name: &'a str,
    shape: MatrixShape,
    bytes: Cow<'a, [u8]>,
}

fn sources<'a>(stored: &'a [Stored<'_>]) -> Vec<MatrixSource<'a>> {
    let source =
        |part: &'a Stored<'_>| MatrixSource { name: part.name, shape: part.shape, bytes: &part.bytes };
    stored.iter().map(source).collect()
}

/// A tensor's bytes in a type, which is its own or one it is quantised to.
fn stored_as(tensor: &Tensor, dtype: DType) -> Result<Cow<'_, [u8]>, LoadError> {
    if dtype == tensor.dtype {
        return Ok(Cow::Borrowed(&tensor.bytes));
    }
    Ok(Cow::Owned(encoded(dtype, &tensor.to_f32()?)))
}

/// As `stored_as`, rows and columns exchanged.
fn transposed_as(tensor: &Tensor, dtype: DType) -> Result<Cow<'_, [u8]>, LoadError> {
    let values = tensor.to_f32()?;
    let (rows, cols) = (tensor.shape[0], tensor.shape[1]);
    let turned: Vec<f32> = (0..cols).flat_map(|col| values.iter().skip(col).step_by(cols).copied()).collect();
    debug_assert_eq!(turned.len(), rows * cols);
    Ok(Cow::Owned(encoded(dtype, &turned)))
}

/// Numbers in a type whose blocks they fill.
fn encoded(dtype: DType, values: &[f32]) -> Vec<u8> {
    let length = dtype.bytes_of(values.len()).expect("whole blocks, because their types are chosen so");
    let mut bytes = vec![0; length];
    quant::quantize_row(dtype, values, &mut bytes);
    bytes
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
