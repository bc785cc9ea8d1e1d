//! Change by an adapter to one weight, made from its file's tensors and the model's weights.
//!
//! An adapted matrix computes `f (W x) + f s B (A x) + b`. `f` is 1 or, with DoRA, the magnitude over the length of
//! the row of `W + s B A`, which does not apply to the bias. `b` is the model's bias or its replacement, plus that of
//! B. A replacement of the model's matrix is stored as B, without A, and `f` of the rest is 0.

use std::collections::BTreeMap;

use hanzo_engine_ops::{DType, quant};

use super::base::{self, AdapterBase, each_row};
use super::{check_pair, permute, refused};
use crate::error::LoadError;
use crate::load::adapted;
use crate::spec::{HeadSpec, LayerPart, LogitsSpec, Part, Weight};
use crate::tensor::Tensor;

/// Low-rank addition to a matrix's outputs: `scale · B · (A · x)`, or `scale · B · x`.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    pub(crate) a: Option<Tensor>, // (rank, inputs)
    pub(crate) b: Tensor,         // (outputs, rank), or (outputs, inputs) without A
    pub(crate) scale: f32,
}

/// Factors on outputs and addends, applied before a pair is added.
#[derive(Clone, Debug)]
pub(crate) struct OutputFactors {
    pub(crate) factors: Vec<f32>,
    pub(crate) addends: Vec<f32>,
}

/// Change by an adapter to the outputs of a matrix, or of a norm.
#[derive(Clone, Debug, Default)]
pub(crate) struct WeightDelta {
    pub(crate) pair: Option<Pair>,
    pub(crate) change: Option<OutputFactors>,
}

/// Change by an adapter to the embeddings of tokens.
#[derive(Clone, Debug)]
pub(crate) struct EmbeddingDelta {
    /// (vocab, rank), or (vocab, hidden) as a replacement of the model's.
    pub(crate) table: Tensor,
    /// (hidden, rank), with its scale: expands rows of the table to additions to embeddings.
    pub(crate) widen: Option<Pair>,
}

/// Tensors of a file for one weight, with rows in the file's order; vectors are matrices of one column.
#[derive(Clone, Debug, Default)]
pub(super) struct FileDelta {
    pub(super) module: String,
    pub(super) a: Option<Tensor>, // (rank, inputs); for embeddings (vocab, rank)
    pub(super) embedding_a: Option<Tensor>, // (rank, vocab): PEFT's form of A for embeddings
    pub(super) b: Option<Tensor>, // (outputs, rank)
    pub(super) b_bias: Option<Tensor>, // (outputs, 1)
    pub(super) magnitude: Option<Tensor>,
    pub(super) weight: Option<Tensor>, // replaces the model's
    pub(super) bias: Option<Tensor>,
}

/// Both matrices of an adapter's pair, and the factor on their product.
#[derive(Clone, Copy)]
struct LoraFactors<'a> {
    a: &'a Tensor,
    b: &'a Tensor,
    scale: f32,
}

/// Converter from a file's tensors to changes.
pub(super) struct DeltaMaker<'a> {
    pub(super) base: &'a AdapterBase<'a>,
    pub(super) shapes: &'a BTreeMap<Weight, Vec<usize>>,
    /// Whether rows of queries and keys are permuted as by llama.cpp's converter.
    pub(super) permuted: bool,
}

impl FileDelta {
    /// Any of its tensors, for errors.
    pub(super) fn some(&self) -> Option<&Tensor> {
        let Self { a, b, b_bias, magnitude, weight, bias, .. } = self;
        [a, b, b_bias, magnitude, weight, bias].into_iter().flatten().next()
    }

    /// Stores a tensor in its place.
    ///
    /// # Errors
    /// `Corrupt` if there already is one.
    pub(super) fn put(place: &mut Option<Tensor>, tensor: Tensor) -> Result<(), LoadError> {
        if place.is_some() {
            return Err(tensor.corrupt("its matrix is there twice"));
        }
        *place = Some(tensor);
        Ok(())
    }

    /// Both matrices of a required pair.
    ///
    /// # Errors
    /// `Missing` if one is missing.
    pub(super) fn halves(&self, file: &str) -> Result<(&Tensor, &Tensor), LoadError> {
        let nothing = || LoadError::Missing {
            file: file.to_owned(),
            what: format!("lora_A and lora_B of {}", self.module),
            hint: String::new(),
        };
        self.pair(file)?.ok_or_else(nothing)
    }

    /// The pair, if there is one; then both matrices must exist.
    fn pair(&self, file: &str) -> Result<Option<(&Tensor, &Tensor)>, LoadError> {
        match (&self.a, &self.b) {
            (Some(a), Some(b)) => Ok(Some((a, b))),
            (None, None) => match self.magnitude.as_ref().or(self.b_bias.as_ref()) {
                Some(tensor) => Err(without(file, "lora_A and lora_B", tensor)),
                None => Ok(None),
            },
            (Some(half), None) | (None, Some(half)) => Err(without(file, "the other matrix", half)),
        }
    }
}

fn without(file: &str, what: &str, tensor: &Tensor) -> LoadError {
    LoadError::Missing {
        file: file.to_owned(),
        what: format!("{what} of tensor {}", tensor.name),
        hint: "; an adapter has A and B of each weight".into(),
    }
}

impl DeltaMaker<'_> {
    /// Addend to each output of a matrix besides its product: the adapter's bias in place of the model's, and that of
    /// B.
    fn addends(
        &self,
        weight: Weight,
        found: &FileDelta,
        factors: &[f32],
        scale: f32,
        bias: Option<&[f32]>,
        b_bias: Option<&[f32]>,
    ) -> Result<Vec<f32>, LoadError> {
        let own = Weight { bias: true, ..weight };
        let own = match self.shapes.contains_key(&own) {
            true => Some(self.base.numbers(own)?),
            false => None,
        };
        if let (Some(tensor), None) = (&found.bias, &own) {
            return Err(refused(tensor, "this matrix of the model has no bias"));
        }
        // The head's own bias is added to logits last, and that of steps where they are used.
        let is_behind = matches!(weight.part, Part::Head | Part::Layer(_, LayerPart::StateStep));
        let number = |of: Option<&[f32]>, row: usize| of.map_or(0.0, |of| of[row]);
        let addend = |row: usize| {
            let own = number(own.as_deref(), row);
            let last = bias.map_or(own, |bias| bias[row]);
            let before = if is_behind { own } else { factors[row] * own };
            last - before + scale * number(b_bias, row)
        };
        Ok((0..factors.len()).map(addend).collect())
    }

    /// Change to a matrix; `scale` is the factor on its pair, if it has one.
    pub(super) fn matrix(
        &self,
        file: &str,
        weight: Weight,
        found: &FileDelta,
        scale: f32,
    ) -> Result<WeightDelta, LoadError> {
        let Some(&[outputs, inputs]) = self.shapes.get(&weight).map(Vec::as_slice) else {
            return Err(LoadError::Missing {
                file: file.into(),
                what: found.module.clone(),
                hint: String::new(),
            });
        };
        let is_scaled = !self.base.spec.row_factors_of(weight).is_empty();
        if let Some(tensor) = found.bias.as_ref().or(found.b_bias.as_ref()).filter(|_| is_scaled) {
            return Err(refused(
                tensor,
                "this family's multipliers are in the matrix, and its biases cannot be",
            ));
        }
        let vector = |tensor: &Option<Tensor>, scales: bool| -> Result<Option<Vec<f32>>, LoadError> {
            let Some(tensor) = tensor else { return Ok(None) };
            check_rows(tensor, outputs)?;
            Ok(Some(self.held(weight, tensor.clone(), scales)?.decoded()?))
        };
        let (magnitude, bias) = (vector(&found.magnitude, true)?, vector(&found.bias, false)?);
        let b_bias = vector(&found.b_bias, false)?;
        let mut delta = WeightDelta::default();
        let mut factors = None;
        if let Some((a, b)) = found.pair(file)? {
            check_pair(a, b, [outputs, inputs])?;
            let mut b = self.held(weight, b.clone(), true)?;
            if let Some(magnitude) = magnitude {
                let of_rows = self.row_factors(weight, &magnitude, LoraFactors { a, b: &b, scale })?;
                b = rows_times(&b, &of_rows)?;
                factors = Some(of_rows);
            }
            delta.pair = Some(Pair { a: Some(a.clone()), b, scale });
        }
        if let Some(whole) = &found.weight {
            if delta.pair.is_some() {
                return Err(refused(
                    whole,
                    "its matrix is there as a whole and as a pair; save it as one of them",
                ));
            }
            check_whole(whole, [outputs, inputs])?;
            delta.pair = Some(Pair { a: None, b: self.held(weight, whole.clone(), true)?, scale: 1.0 });
            factors = Some(vec![0.0; outputs]);
        }
        if factors.is_none() && bias.is_none() && b_bias.is_none() {
            return Ok(delta);
        }
        let factors = factors.unwrap_or_else(|| vec![1.0; outputs]);
        let addends = self.addends(weight, found, &factors, scale, bias.as_deref(), b_bias.as_deref())?;
        delta.change = Some(OutputFactors { factors, addends });
        Ok(delta)
    }

    /// Change to a norm of hidden states.
    pub(super) fn norm(&self, weight: Weight, found: &FileDelta) -> Result<WeightDelta, LoadError> {
        let spec = self.base.spec;
        let width = spec.hidden;
        let of_file = |tensor: &Option<Tensor>| -> Result<Option<Vec<f32>>, LoadError> {
            let Some(tensor) = tensor else { return Ok(None) };
            check_rows(tensor, width)?;
            tensor.decoded().map(Some)
        };
        let (factors, bias) = (of_file(&found.weight)?, of_file(&found.bias)?);
        let less = if spec.norm.kind.stored_less_one() { 1.0 } else { 0.0 };
        let own_bias = Weight { bias: true, ..weight };
        let own_bias = match self.shapes.contains_key(&own_bias) {
            true => Some(self.base.numbers(own_bias)?),
            false => None,
        };
        if let (Some(tensor), None) = (&found.bias, &own_bias) {
            return Err(refused(tensor, "this norm of the model has no bias"));
        }
        let ratios = match (factors, &found.weight) {
            (Some(factors), Some(tensor)) => {
                let architecture = spec.architecture.as_str();
                let less_in_files = ["gemma", "qwen35", "qwen3next", "nemotron"];
                if less_in_files.iter().any(|of| architecture.starts_with(of)) && self.base.is_gguf()? {
                    let reason = "GGUF files have this family's norms in another form: load the model from safetensors";
                    return Err(refused(tensor, reason));
                }
                let own = self.base.numbers(weight)?;
                let ratio = |(&new, &own): (&f32, &f32)| match (new + less, own + less) {
                    (new, own) if new == own => Ok(1.0),
                    (new, own) if own != 0.0 && (new / own).is_finite() => Ok(new / own),
                    _ => Err(refused(
                        tensor,
                        "the model's norm has a factor of 0, which no other can take the place of",
                    )),
                };
                factors.iter().zip(&own).map(ratio).collect::<Result<Vec<f32>, _>>()?
            }
            _ => vec![1.0; width],
        };
        // The head's factor on logits is applied in the last norm.
        let scale = if weight.part == Part::FinalNorm { spec.head.logit_scale() } else { 1.0 };
        let addend = |row: usize| {
            let own = own_bias.as_ref().map_or(0.0, |own| own[row]);
            let last = bias.as_ref().map_or(own, |bias| bias[row]);
            scale * (last - ratios[row] * own)
        };
        let addends = (0..width).map(addend).collect();
        Ok(WeightDelta { pair: None, change: Some(OutputFactors { factors: ratios, addends }) })
    }

    /// Change to the embeddings of tokens.
    pub(super) fn embedding(
        &self,
        file: &str,
        found: &FileDelta,
        scale: f32,
    ) -> Result<EmbeddingDelta, LoadError> {
        let spec = self.base.spec;
        let [vocab, hidden] = [spec.vocab, spec.hidden];
        if let Some(table) = &found.weight {
            if found.a.is_some() {
                return Err(refused(
                    table,
                    "embeddings are there as a whole and as a pair; save them as one of them",
                ));
            }
            check_whole(table, [vocab, hidden])?;
            return Ok(EmbeddingDelta { table: table.clone(), widen: None });
        }
        let Some((a, b)) = found.pair(file)? else {
            let tensor = found.some().map_or("embeddings", |tensor| &tensor.name);
            return Err(LoadError::Missing {
                file: file.to_owned(),
                what: format!("the matrix of {tensor}"),
                hint: String::new(),
            });
        };
        let rank = b.shape.get(1).copied().unwrap_or(0);
        check_whole(a, [vocab, rank])?;
        check_whole(b, [hidden, rank])?;
        let Some(magnitude) = &found.magnitude else {
            let scale = scale * spec.embedding_scale;
            let widen = Pair { a: None, b: b.clone(), scale };
            return Ok(EmbeddingDelta { table: a.clone(), widen: Some(widen) });
        };
        check_rows(magnitude, hidden)?;
        let table = self.embedding_by_magnitude(LoraFactors { a, b, scale }, &magnitude.decoded()?)?;
        Ok(EmbeddingDelta { table, widen: None })
    }

    /// DoRA's embeddings: `m (E + s AᵀBᵀ) / ‖·‖`, where lengths are of columns.
    fn embedding_by_magnitude(
        &self,
        LoraFactors { a, b, scale }: LoraFactors<'_>,
        magnitude: &[f32],
    ) -> Result<Tensor, LoadError> {
        let own = self.base.tensor(Part::TokenEmbedding.weight())?;
        let (a, b) = (a.decoded()?, b.decoded()?);
        let rank = b.len() / magnitude.len();
        let add = |row: usize, numbers: &mut [f32]| {
            for (number, b) in numbers.iter_mut().zip(b.chunks_exact(rank)) {
                *number += scale * b.iter().zip(&a[row * rank..]).map(|(b, a)| b * a).sum::<f32>();
            }
        };
        let hidden = magnitude.len();
        let dtype = if own.dtype == DType::F32 { DType::F32 } else { DType::F16 };
        // Two passes over the rows, so that the table is never held as floats.
        let mut squares = vec![0.0f64; hidden];
        base::rows_of(own, |row, numbers| {
            add(row, numbers);
            squares.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += f64::from(*number).powi(2));
        })?;
        let lengths = squares.iter().map(|sum| sum.sqrt());
        let factors: Vec<f32> =
            magnitude.iter().zip(lengths).map(|(&m, length)| over_length(m, length)).collect();
        let row_bytes = hidden * dtype.block_bytes();
        let mut bytes = vec![0; own.shape[0] * row_bytes];
        base::rows_of(own, |row, numbers| {
            add(row, numbers);
            numbers.iter_mut().zip(&factors).for_each(|(number, factor)| *number *= factor);
            quant::quantize_row(dtype, numbers, &mut bytes[row * row_bytes..][..row_bytes]);
        })?;
        Ok(Tensor { dtype, bytes: bytes.into(), ..own.clone() })
    }

    /// DoRA's factor on each output: its magnitude over the length of its row of `W + s B A`, all in the model's row
    /// order.
    fn row_factors(
        &self,
        weight: Weight,
        magnitude: &[f32],
        LoraFactors { a, b, scale }: LoraFactors<'_>,
    ) -> Result<Vec<f32>, LoadError> {
        // A tied head is the embedding.
        let own = if self.is_tied_head(weight) { Part::TokenEmbedding.weight() } else { weight };
        let own = self.base.tensor(own)?;
        let (a, b) = (a.decoded()?, b.decoded()?);
        let rank = b.len() / magnitude.len();
        each_row(own, |row, numbers| {
            for (&b, a) in b[row * rank..][..rank].iter().zip(a.chunks_exact(numbers.len())) {
                let factor = scale * b;
                numbers.iter_mut().zip(a).for_each(|(number, &a)| *number += factor * a);
            }
            let sum: f64 = numbers.iter().map(|&number| f64::from(number).powi(2)).sum();
            over_length(magnitude[row], sum.sqrt())
        })
    }

    fn is_tied_head(&self, weight: Weight) -> bool {
        weight.part == Part::Head && self.base.spec.head.tied()
    }

    /// Rows in the model's form: multiplied, if the model's are, and in its order.
    fn held(&self, weight: Weight, rows: Tensor, multiplied: bool) -> Result<Tensor, LoadError> {
        let spec = self.base.spec;
        let factors = if multiplied { spec.row_factors_of(weight) } else { Vec::new() };
        let rows = if factors.is_empty() { rows } else { adapted::scaled(&rows, &factors)? };
        match weight.part {
            Part::Layer(layer, LayerPart::Query | LayerPart::Key) if self.permuted != spec.permuted => {
                let head_dim = spec.layers[layer].attention.projection.head_shape().head_dim;
                permute(&rows, head_dim, spec.permuted)
            }
            _ => Ok(rows),
        }
    }

    /// Whether a tensor equals the model's weight, so that it changes nothing.
    pub(super) fn is_own(&self, weight: Weight, tensor: &Tensor) -> Result<bool, LoadError> {
        let weight = if self.is_tied_head(weight) { Part::TokenEmbedding.weight() } else { weight };
        let own = self.base.tensor(weight)?;
        if own.elements() != tensor.elements() {
            return Ok(false);
        }
        if own.dtype == tensor.dtype && own.bytes.read() == tensor.bytes.read() {
            return Ok(true);
        }
        // Vectors are small; whole matrices of other types are accepted as they are.
        let is_vector = own.shape.len() < 2 && quant::can_dequantize(tensor.dtype);
        Ok(is_vector && own.decoded()? == tensor.decoded()?)
    }
}

/// A magnitude over a length; 1 for a row of zeros.
fn over_length(magnitude: f32, length: f64) -> f32 {
    if length == 0.0 { 1.0 } else { (f64::from(magnitude) / length) as f32 }
}

/// Rows multiplied by a factor each, as F32.
fn rows_times(rows: &Tensor, factors: &[f32]) -> Result<Tensor, LoadError> {
    let mut numbers = rows.decoded()?;
    let cols = numbers.len() / factors.len().max(1);
    for (row, factor) in numbers.chunks_exact_mut(cols.max(1)).zip(factors) {
        row.iter_mut().for_each(|number| *number *= factor);
    }
    let bytes: Vec<u8> = numbers.into_iter().flat_map(f32::to_le_bytes).collect();
    Ok(Tensor { dtype: DType::F32, bytes: bytes.into(), ..rows.clone() })
}

/// Checks that a vector, a matrix of one column, has so many elements.
fn check_rows(tensor: &Tensor, rows: usize) -> Result<(), LoadError> {
    if tensor.elements() == rows && quant::can_dequantize(tensor.dtype) {
        return Ok(());
    }
    Err(tensor.corrupt(format!(
        "expected {rows} floats, file has {:?}; it is of an adapter for another model",
        tensor.shape
    )))
}

/// Checks the shape of a matrix. If it has more tokens than the model, the error says what to do.
fn check_whole(tensor: &Tensor, [rows, cols]: [usize; 2]) -> Result<(), LoadError> {
    if tensor.shape == [rows, cols] && quant::can_dequantize(tensor.dtype) {
        return Ok(());
    }
    Err(tensor.corrupt(format!(
            "expected {:?}, file has {:?}; an adapter with another number of tokens, or other widths, than the model's is \
             merged into its model and loaded as one",
            [rows, cols],
            tensor.shape
        )))
}

/// Reason why a head supports no adapters, if it does not.
pub(super) fn head_reason(head: HeadSpec) -> Result<(), &'static str> {
    match head {
        HeadSpec::Logits(LogitsSpec { unit_rows: false, .. }) => Ok(()),
        HeadSpec::Logits(_) => {
            Err("this model's head divides its rows by their lengths and takes no adapters")
        }
        HeadSpec::None | HeadSpec::MaskedLm(_) => Err("the model makes no logits"),
    }
}
