//! From an opened file's tensors to weights on a backend: groups of parts packed as one matrix (`packing`), vectors, and how
//! far it is.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use hanzo_engine_ops as ops;
use hanzo_engine_ops::{
    AnyBackend, DType, ExpertParts, KernelError, MatrixShape, MatrixSource, Stage, quant,
};

use super::adapted::Deltas;
use super::hqq;
use super::packing::{
    DOWN, Group, KEY_VALUE, OUTPUT, QUERY, QUERY_DOWN, QUERY_GATE, ROUTER, SHARED_DOWN, STATE_OUTPUT,
    expert_groups, expert_shapes, first, groups, latent_shapes, shared_up, up,
};
use super::program::Programs;
use super::{
    Latent, Layer, Mlp, Network, Norm, SharedMlp, WeightType, attended_width, inner_widths, own_width,
    widths_of,
};
use crate::error::LoadError;
use crate::limits::QUANTISED_AT_ONCE;
use crate::load::Tensors;
use crate::spec::{
    LatentShape, LayerPart, LayerSpec, MlpSpec, NormKind, NormOrder, Part, Projection, QkNorm,
    TransformerSpec, Weight,
};
use crate::tensor::Tensor;

/// Packs weights and tells how far it is.
pub(crate) struct Loader<'a> {
    pub(crate) backend: &'a AnyBackend,
    pub(crate) spec: &'a TransformerSpec,
    pub(crate) tensors: &'a Tensors,
    weight_type: WeightType,
    progress: &'a mut dyn FnMut(f32),
    bytes_done: u64,
    bytes_total: u64,
}

impl<'a> Loader<'a> {
    /// A loader of tensors that can all be packed. `progress` hears the share that is done, up to 1.
    ///
    /// # Errors
    /// `Kernel` where the backend cannot pack a type.
    pub(crate) fn new(
        backend: &'a AnyBackend,
        spec: &'a TransformerSpec,
        tensors: &'a Tensors,
        weight_type: WeightType,
        progress: &'a mut dyn FnMut(f32),
    ) -> Result<Self, LoadError> {
        let experts = (0..spec.layers.len()).flat_map(|layer| expert_groups(spec, layer));
        let experts = experts.flat_map(|expert| [expert.gate_up, expert.down]);
        let experts = experts.map(|parts| Group { parts, multiplied: true });
        for group in groups(spec).into_iter().chain(experts) {
            for (part, shape) in group.parts.iter().zip(group.shapes(spec, tensors, weight_type)) {
                backend.enter(group.stage(spec));
                if !backend.supports(shape.dtype) {
                    let (tensor, dtype) = (tensors.get(part.weight()).name.clone(), shape.dtype);
                    let device = backend.facts().device.clone();
                    return Err(KernelError::UnsupportedType { tensor, dtype, device }.into());
                }
            }
        }
        let bytes_total = tensors.bytes();
        Ok(Self { backend, spec, tensors, weight_type, progress, bytes_done: 0, bytes_total })
    }

    /// What every transformer has.
    ///
    /// # Errors
    /// `Kernel` where the backend cannot give the memory.
    pub(crate) fn network(&mut self) -> Result<Network, LoadError> {
        let spec = self.spec;
        self.backend.enter(Stage::Inputs);
        let embedding = self.pack(&Group::looked_up(Part::TokenEmbedding))?;
        let (inputs, streams) = (self.inputs()?, self.streams()?);
        let positions = self.pack_if(spec.positions.is_some(), &Group::looked_up(Part::PositionEmbedding))?;
        let types = self.pack_if(spec.type_vocab > 0, &Group::looked_up(Part::TypeEmbedding))?;
        let embedding_norm = self.norm_if(spec.embedding_norm, Part::EmbeddingNorm)?;
        self.backend.enter(Stage::Layer(0));
        // Of several streams each layer norms the one that it computes.
        let first_norm = spec.layers[0].order.first_norm().filter(|_| streams.is_none());
        let first_norm = first_norm.map(|part| self.norm(Part::Layer(0, part))).transpose()?;
        let layers: Result<Vec<_>, _> = (0..spec.layers.len()).map(|layer| self.layer(layer)).collect();
        self.backend.enter(Stage::Everywhere);
        let ropes: Result<Vec<_>, _> =
            spec.ropes.iter().map(|rope| self.backend.vector(&rope.tables())).collect();
        self.backend.enter(Stage::Head);
        Ok(Network {
            embedding,
            inputs,
            streams,
            positions,
            types,
            embedding_norm,
            first_norm,
            layers: layers?,
            ropes: ropes?,
            head: match spec.head.has_matrix() {
                true => Some(self.pack(&Group::multiplied(Part::Head))?),
                false => None,
            },
            buffers: None,
            programs: Programs::default(),
            observed: None,
            head_deltas: Vec::new(),
            adapted_embeddings: Vec::new(),
            spec: spec.clone(),
        })
    }

    fn layer(&mut self, index: usize) -> Result<Layer, LoadError> {
        self.backend.enter(Stage::Layer(index));
        let layer = &self.spec.layers[index];
        let attention = &layer.attention;
        let of_layer = |part| Part::Layer(index, part);
        let middle = match layer.order {
            NormOrder::Post | NormOrder::PostTwice | NormOrder::ParallelApart => {
                Some(LayerPart::AttentionNorm)
            }
            NormOrder::Parallel | NormOrder::Branch => None,
            NormOrder::Pre if layer.mlp.is_none() => None,
            NormOrder::Pre | NormOrder::PreMlp | NormOrder::Beside | NormOrder::Sandwich => {
                Some(LayerPart::MlpNorm)
            }
        };
        let last = match self.spec.layers.get(index + 1) {
            _ if layer.order.on_sum() => Some(of_layer(LayerPart::MlpNorm)),
            Some(_) if self.spec.streams.is_some() => None,
            Some(next) => next.order.first_norm().map(|part| Part::Layer(index + 1, part)),
            None => Some(Part::FinalNorm),
        };
        let (attention_post, mlp_post) = (layer.order.attention_post_norm(), layer.order.mlp_post_norm());
        // Not looked at where a layer keeps a state, which has buffers of its own.
        let place = |width: fn(&LayerSpec) -> usize| {
            widths_of(self.spec, width).binary_search(&width(layer)).unwrap_or(0)
        };
        let qkv = first(attention);
        Ok(Layer {
            cache: self.spec.cache_of(index),
            own: place(own_width),
            attended: place(attended_width),
            qkv: self.matrix(index, qkv)?,
            latent: match attention.projection {
                Projection::Heads(_) | Projection::State(_) => None,
                Projection::Latent(shape) => Some(self.latent(index, shape)?),
            },
            gate: self.pack_if(attention.output_gate, &Group::of_layer(index, QUERY_GATE))?,
            state: attention.projection.state().map(|state| self.state(index, state)).transpose()?,
            qkv_bias: self.biases_if(attention.qkv_bias, index, qkv)?,
            q_norm: self.qk_norm(index, LayerPart::QueryNorm)?,
            remembered: self.pack_if(attention.memory, &Group::of_layer(index, KEY_VALUE))?,
            half_factors: self.half_factors(index)?,
            k_norm: match attention.shares {
                None => self.qk_norm(index, LayerPart::KeyNorm)?,
                Some(_) => None,
            },
            sinks: match attention.sinks {
                true => Some(self.vector(of_layer(LayerPart::Sinks).weight())?),
                false => None,
            },
            output: match attention.projection {
                Projection::State(_) => self.matrix(index, STATE_OUTPUT)?,
                Projection::Heads(_) | Projection::Latent(_) => self.matrix(index, OUTPUT)?,
            },
            output_bias: self.biases_if(attention.output_bias, index, OUTPUT)?,
            attention_post_norm: self.norm_if(attention_post, of_layer(LayerPart::AttentionPostNorm))?,
            middle_norm: middle.map(|part| self.norm(of_layer(part))).transpose()?,
            mlp: self.mlp(index)?,
            // Not looked at where there is no MLP.
            inner: inner_widths(self.spec).binary_search(&layer.mlp.inner_width()).unwrap_or(0),
            mlp_post_norm: self.norm_if(mlp_post, of_layer(LayerPart::MlpPostNorm))?,
            input: self.input(index)?,
            factor: self.factor(index)?,
            streams: self.layer_streams(index)?,
            deltas: Deltas::default(),
            last_norm: last.map(|part| self.norm(part)).transpose()?,
        })
    }

    fn mlp(&mut self, index: usize) -> Result<Mlp, LoadError> {
        Ok(match &self.spec.layers[index].mlp {
            MlpSpec::Dense(dense) if dense.gated => Mlp::Gated {
                activation: dense.activation,
                gate_up: self.matrix(index, up(true))?,
                up_bias: self.biases_if(dense.up_bias, index, up(true))?,
                down: self.matrix(index, DOWN)?,
                bias: self.biases_if(dense.down_bias, index, DOWN)?,
            },
            MlpSpec::Dense(_) if self.spec.curved => Mlp::Curved {
                curve: self.curve(index)?,
                up: self.matrix(index, up(false))?,
                down: self.matrix(index, DOWN)?,
            },
            MlpSpec::Dense(dense) => Mlp::Plain {
                activation: dense.activation,
                up: self.matrix(index, up(false))?,
                up_bias: self.biases_if(dense.up_bias, index, up(false))?,
                down: self.matrix(index, DOWN)?,
                down_bias: self.biases_if(dense.down_bias, index, DOWN)?,
            },
            MlpSpec::None => Mlp::None,
            MlpSpec::Experts(experts) => Mlp::Experts {
                params: experts.params(),
                router_bias: match experts.router_bias {
                    true => Some(self.vector(Part::Layer(index, LayerPart::Router).bias())?),
                    false => None,
                },
                correction: match experts.correction_bias {
                    true => Some(self.vector(Part::Layer(index, LayerPart::Router).bias())?),
                    false => None,
                },
                up_bias: self.expert_biases(index, |expert| {
                    let gate = experts.gated.then_some(LayerPart::ExpertGate(expert));
                    gate.into_iter().chain([LayerPart::ExpertUp(expert)]).collect()
                })?,
                down_bias: self.expert_biases(index, |expert| vec![LayerPart::ExpertDown(expert)])?,
                shared: self.shared(index)?,
                router: self.matrix(index, ROUTER)?,
                experts: self.experts(index)?,
                bias: self.biases_if(experts.bias, index, &[LayerPart::Experts])?,
                apart: if experts.apart { Some(self.apart(index)?) } else { None },
            },
        })
    }

    /// Factors on what the halves of a layer give.
    fn half_factors(&mut self, index: usize) -> Result<Option<[f32; 2]>, LoadError> {
        if !self.spec.layers[index].attention.gated_halves {
            return Ok(None);
        }
        let mut factors = [0.0; 2];
        for (half, factor) in factors.iter_mut().enumerate() {
            *factor = self.take(Part::Layer(index, LayerPart::HalfFactor(half)).weight())?[0].tanh();
        }
        Ok(Some(factors))
    }

    /// The numbers of an MLP's xIELU, for squares, exponentials and the number itself.
    fn curve(&mut self, index: usize) -> Result<[f32; 3], LoadError> {
        let parts = [LayerPart::CurvePositive, LayerPart::CurveNegative, LayerPart::CurveLinear];
        let mut numbers = [0.0; 3];
        for (number, part) in numbers.iter_mut().zip(parts) {
            *number = self.take(Part::Layer(index, part).weight())?[0];
        }
        let [positive, negative, linear] = numbers;
        let softplus = |x: f32| if x > 20.0 { x } else { x.exp().ln_1p() };
        Ok([softplus(positive), linear + softplus(negative), linear])
    }

    /// The biases of parts of all experts one after the other, where they have some.
    fn expert_biases(
        &mut self,
        layer: usize,
        parts: impl Fn(usize) -> Vec<LayerPart>,
    ) -> Result<Option<ops::Vector>, LoadError> {
        let experts = self.spec.layers[layer].mlp.experts().filter(|experts| experts.expert_bias);
        let Some(count) = experts.map(|experts| experts.count) else { return Ok(None) };
        let parts: Vec<LayerPart> = (0..count).flat_map(parts).collect();
        self.biases_if(true, layer, &parts)
    }

    /// The MLP beside experts.
    fn shared(&mut self, index: usize) -> Result<Option<SharedMlp>, LoadError> {
        let mlp = &self.spec.layers[index].mlp;
        let (Some(shared), Some(experts)) = (mlp.shared(), mlp.experts()) else { return Ok(None) };
        let (up, down) = (self.matrix(index, shared_up(shared.gated))?, self.matrix(index, SHARED_DOWN)?);
        let activation = shared.activation;
        let mlp = match shared.gated {
            true => Mlp::Gated { activation, gate_up: up, up_bias: None, down, bias: None },
            false => Mlp::Plain { activation, up, up_bias: None, down, down_bias: None },
        };
        Ok(Some(SharedMlp {
            mlp: Box::new(mlp),
            gate: match experts.shared.is_some_and(|shared| shared.gate) {
                true => Some(self.vector(Part::Layer(index, LayerPart::SharedRouter).weight())?),
                false => None,
            },
            averaged: experts.averaged,
            ffn: shared.ffn,
            inner: inner_widths(self.spec)
                .binary_search(&shared.ffn)
                .expect("every layer's width is among them"),
        }))
    }

    /// What latent attention has beside what it makes latents with.
    fn latent(&mut self, index: usize, shape: LatentShape) -> Result<Latent, LoadError> {
        let LatentShape { heads, rank, nope_dim, value_dim, .. } = shape;
        let of_layer = |part| Part::Layer(index, part);
        let query_down = if shape.query_rank.is_some() {
            Some((self.matrix(index, QUERY_DOWN)?, self.plain_norm(of_layer(LayerPart::QueryDownNorm))?))
        } else {
            None
        };
        // Of each head the numbers that make keys, (rank, nope_dim), and those that make values, (value_dim, rank).
        let (mut keys, mut values) = (Vec::with_capacity(heads), Vec::with_capacity(heads));
        let names = if shape.split_up {
            let names =
                [LayerPart::LatentKeyUp, LayerPart::LatentValueUp].map(|part| of_layer(part).weight());
            let [key, value] = [self.take(names[0])?, self.take(names[1])?];
            keys.extend(key.chunks_exact(rank * nope_dim).map(<[f32]>::to_vec));
            values.extend(value.chunks_exact(value_dim * rank).map(<[f32]>::to_vec));
            names
        } else {
            let name = of_layer(LayerPart::LatentUp).weight();
            for both in self.take(name)?.chunks_exact((nope_dim + value_dim) * rank) {
                let (key, value) = both.split_at(nope_dim * rank);
                let turned = (0..rank).flat_map(|col| key.iter().skip(col).step_by(rank).copied());
                keys.push(turned.collect());
                values.push(value.to_vec());
            }
            [name; 2]
        };
        let shapes = latent_shapes(self.spec, self.tensors, index);
        let mut packed = Vec::with_capacity(2 * heads);
        self.backend.enter(Stage::Undivided(index));
        for (head, (numbers, shape)) in keys.iter().chain(&values).zip(shapes).enumerate() {
            let bytes = encoded(shape.dtype, numbers, Quantiser::Own(None));
            let name = &self.tensors.get(names[head / heads]).name;
            packed.push(self.backend.pack(&[MatrixSource { name, shape, bytes: &bytes }])?);
        }
        let value_up = self.backend.heads(packed.split_off(heads));
        self.backend.enter(Stage::Layer(index));
        let norm = self.plain_norm(of_layer(LayerPart::LatentNorm))?;
        Ok(Latent {
            query_down,
            query: self.matrix(index, QUERY)?,
            norm,
            key_up: self.backend.heads(packed),
            value_up,
        })
    }

    /// A root mean square norm inside attention.
    fn plain_norm(&mut self, part: Part) -> Result<Norm, LoadError> {
        Ok(Norm::new(self.vector(part.weight())?, None))
    }

    fn experts(&mut self, layer: usize) -> Result<ops::Experts, LoadError> {
        let groups = expert_groups(self.spec, layer);
        let shapes = expert_shapes(self.spec, self.tensors, self.weight_type, &groups);
        let mut experts = self.backend.experts(&shapes)?;
        for ExpertParts { gate_up, down } in groups {
            let [gate_up, down] = [gate_up, down].map(|parts| Group { parts, multiplied: true });
            let stored = [self.stored(&gate_up)?, self.stored(&down)?];
            let parts = ExpertParts { gate_up: sources(&stored[0]), down: sources(&stored[1]) };
            self.backend.pack_expert(&mut experts, &parts)?;
            gate_up.parts.iter().chain(&down.parts).for_each(|part| self.done(part.weight()));
        }
        Ok(experts)
    }

    pub(super) fn matrix(&mut self, layer: usize, parts: &[LayerPart]) -> Result<ops::Matrix, LoadError> {
        let group = Group::of_layer(layer, parts);
        self.backend.enter(group.stage(self.spec));
        let packed = self.pack(&group);
        self.backend.enter(Stage::Layer(layer));
        packed
    }

    /// One packed matrix. Its tensors' pages are given back.
    pub(crate) fn pack(&mut self, group: &Group) -> Result<ops::Matrix, LoadError> {
        let packed = self.backend.pack(&sources(&self.stored(group)?))?;
        group.parts.iter().for_each(|part| self.done(part.weight()));
        Ok(packed)
    }

    /// A group's tensors in the types they are packed as.
    fn stored(&self, group: &Group) -> Result<Vec<MatrixBytes<'a>>, LoadError> {
        let stored = |(&part, shape): (&Part, MatrixShape)| {
            let tensor = self.tensors.get(part.weight());
            let quantiser = match self.tensors.by_hqq(part.weight()) {
                true => Quantiser::Hqq,
                false => Quantiser::Own(self.tensors.importance(part.weight(), shape.cols)),
            };
            let bytes = match self.spec.is_transposed(part) {
                true => transposed_as(tensor, shape, quantiser)?,
                false => stored_as(self.backend, tensor, shape.dtype, quantiser)?,
            };
            Ok(MatrixBytes { name: &tensor.name, shape, bytes })
        };
        let shapes = group.shapes(self.spec, self.tensors, self.weight_type);
        group.parts.iter().zip(shapes).map(stored).collect()
    }

    pub(crate) fn pack_if(&mut self, present: bool, group: &Group) -> Result<Option<ops::Matrix>, LoadError> {
        if present { Ok(Some(self.pack(group)?)) } else { Ok(None) }
    }

    /// A group's biases one after the other.
    fn biases_if(
        &mut self,
        present: bool,
        layer: usize,
        parts: &[LayerPart],
    ) -> Result<Option<ops::Vector>, LoadError> {
        if !present {
            return Ok(None);
        }
        let biases = parts.iter().map(|&part| self.take(Part::Layer(layer, part).bias()));
        let biases = biases.collect::<Result<Vec<_>, _>>()?.concat();
        Ok(Some(self.backend.vector(&biases)?))
    }

    pub(crate) fn norm(&mut self, part: Part) -> Result<Norm, LoadError> {
        // The head's factor on logits is in what it reads.
        let scale = if part == Part::FinalNorm { self.spec.head.logit_scale() } else { 1.0 };
        if scale != 1.0 {
            let weight: Vec<f32> = self.factors(part)?.iter().map(|factor| factor * scale).collect();
            let bias = if self.spec.norm_bias() { Some(self.take(part.bias())?) } else { None };
            let bias = bias.map(|bias| bias.iter().map(|addend| addend * scale).collect::<Vec<f32>>());
            let bias = bias.map(|bias| self.backend.vector(&bias)).transpose()?;
            return Ok(Norm::new(self.backend.vector(&weight)?, bias).of(part));
        }
        let weight = self.factor_vector(part)?;
        let bias = match self.spec.norm_bias() {
            true => Some(self.vector(part.bias())?),
            false => None,
        };
        Ok(Norm::new(weight, bias).of(part))
    }

    pub(crate) fn norm_if(&mut self, present: bool, part: Part) -> Result<Option<Norm>, LoadError> {
        if present { Ok(Some(self.norm(part)?)) } else { Ok(None) }
    }

    /// A norm of queries or of keys.
    fn qk_norm(&mut self, layer: usize, part: LayerPart) -> Result<Option<Norm>, LoadError> {
        let attention = &self.spec.layers[layer].attention;
        let part = Part::Layer(layer, part);
        Ok(match attention.qk_norm {
            QkNorm::None => None,
            QkNorm::Unit => {
                let ones = vec![1.0; attention.projection.head_shape().head_dim];
                Some(Norm::new(self.backend.vector(&ones)?, None))
            }
            QkNorm::Heads | QkNorm::HeadsApart => Some(Norm::new(self.factor_vector(part)?, None)),
            QkNorm::Whole => Some(self.norm(part)?),
        })
    }

    /// A norm's factors, which some files store less 1.
    pub(super) fn factors(&mut self, part: Part) -> Result<Vec<f32>, LoadError> {
        if self.spec.norm.kind == NormKind::LayerUnit {
            return Ok(vec![1.0; self.spec.hidden]);
        }
        let mut values = self.take(part.weight())?;
        if self.spec.norm.kind.stored_less_one() {
            values.iter_mut().for_each(|value| *value += 1.0);
        }
        Ok(values)
    }

    fn factor_vector(&mut self, part: Part) -> Result<ops::Vector, LoadError> {
        let factors = self.factors(part)?;
        Ok(self.backend.vector(&factors)?)
    }

    pub(crate) fn vector(&mut self, weight: Weight) -> Result<ops::Vector, LoadError> {
        let values = self.take(weight)?;
        Ok(self.backend.vector(&values)?)
    }

    /// A tensor's numbers.
    pub(crate) fn take(&mut self, weight: Weight) -> Result<Vec<f32>, LoadError> {
        let values = self.tensors.get(weight).decoded()?;
        self.done(weight);
        Ok(values)
    }

    /// Gives a tensor's pages back and counts it.
    pub(crate) fn done(&mut self, weight: Weight) {
        let bytes = &self.tensors.get(weight).bytes;
        bytes.release();
        self.bytes_done += bytes.len() as u64;
        (self.progress)((self.bytes_done as f64 / self.bytes_total as f64).min(1.0) as f32);
    }
}

/// Tensor as it will be packed into a matrix.
struct MatrixBytes<'a> {
    name: &'a str,
    shape: MatrixShape,
    bytes: Cow<'a, [u8]>,
}

fn sources<'a>(stored: &'a [MatrixBytes<'_>]) -> Vec<MatrixSource<'a>> {
    let source = |of: &'a MatrixBytes<'_>| MatrixSource { name: of.name, shape: of.shape, bytes: &of.bytes };
    stored.iter().map(source).collect()
}

/// How numbers become codes of a type.
#[derive(Clone, Copy)]
pub(crate) enum Quantiser<'a> {
    /// As the type has it; errors of columns count as much as this says.
    Own(Option<&'a [f32]>),
    /// As HQQ does it, of an affine type.
    Hqq,
}

impl Quantiser<'_> {
    /// Whole rows, whose blocks they fill.
    fn quantize(self, dtype: DType, values: &[f32], out: &mut [u8]) {
        match self {
            Quantiser::Own(importance) => quant::fit_rows(dtype, values, importance, out),
            Quantiser::Hqq => hqq::quantize(dtype, values, out),
        }
    }
}

/// A tensor's bytes in a type, which is its own or one it is quantised to.
pub(crate) fn stored_as<'a>(
    backend: &AnyBackend,
    tensor: &'a Tensor,
    dtype: DType,
    quantiser: Quantiser<'_>,
) -> Result<Cow<'a, [u8]>, LoadError> {
    if dtype == tensor.dtype {
        return Ok(tensor.bytes.read());
    }
    quantised(backend, tensor, dtype, quantiser).map(Cow::Owned)
}

/// A matrix in a type whose blocks its rows fill: some rows at a time, side by side, so that no matrix is held as floats.
fn quantised(
    backend: &AnyBackend,
    tensor: &Tensor,
    dtype: DType,
    quantiser: Quantiser<'_>,
) -> Result<Vec<u8>, LoadError> {
    if !quant::can_dequantize(tensor.dtype) {
        return tensor.to_f32().map(|values| encoded(dtype, &values, quantiser));
    }
    let (rows, cols) = (tensor.shape[0], tensor.shape[1]);
    let row_bytes =
        |dtype: DType| dtype.bytes_of(cols).expect("whole blocks, because their types are chosen so");
    let (bytes_in, bytes_out) = (row_bytes(tensor.dtype), row_bytes(dtype));
    let rows_at_once = (QUANTISED_AT_ONCE / cols).max(1);
    let stored = tensor.bytes.read();
    let mut bytes = vec![0; rows * bytes_out];
    let parts = bytes.chunks_mut(rows_at_once * bytes_out).zip(stored.chunks(rows_at_once * bytes_in));
    let parts: Vec<_> = parts.map(Mutex::new).collect();
    let broken = AtomicBool::new(false);
    backend.on_host(parts.len(), &|part| {
        let mut part = parts[part].lock().unwrap_or_else(PoisonError::into_inner);
        let (out, stored) = &mut *part;
        let mut values = vec![0.0; stored.len() / bytes_in * cols];
        quant::dequantize_row(tensor.dtype, stored, &mut values);
        if values.iter().all(|value: &f32| value.is_finite()) {
            quantiser.quantize(dtype, &values, out);
        } else {
            broken.store(true, Relaxed);
        }
    });
    drop(parts);
    if broken.into_inner() {
        return Err(tensor.corrupt(format!("it has numbers that are not finite, and {dtype} has no such")));
    }
    Ok(bytes)
}

/// As `stored_as`, rows and columns exchanged.
fn transposed_as<'a>(
    tensor: &'a Tensor,
    packed: MatrixShape,
    quantiser: Quantiser<'_>,
) -> Result<Cow<'a, [u8]>, LoadError> {
    let values = tensor.decoded()?;
    let (rows, cols) = (tensor.shape[0], tensor.shape[1]);
    let turned: Vec<f32> = (0..cols).flat_map(|col| values.iter().skip(col).step_by(cols).copied()).collect();
    debug_assert_eq!(turned.len(), rows * cols);
    Ok(Cow::Owned(encoded(packed.dtype, &turned, quantiser)))
}

/// Numbers in a type whose blocks they fill.
fn encoded(dtype: DType, values: &[f32], quantiser: Quantiser<'_>) -> Vec<u8> {
    let length = dtype.bytes_of(values.len()).expect("whole blocks, because their types are chosen so");
    let mut bytes = vec![0; length];
    quantiser.quantize(dtype, values, &mut bytes);
    bytes
}
