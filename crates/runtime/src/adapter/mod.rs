//! Low-rank adapters (LoRA, arxiv.org/abs/2106.09685) of a decoder: opened from the files that PEFT or llama.cpp's converter
//! write, matched with the weights of the model they are for, and checked before anything is kept. What a setting or a
//! tensor says that cannot be computed is refused by its name.
//!
//! Absent: where they are computed (`crate::network`), who asks for which (`crate::engine`).

mod config;
mod gguf;
mod peft;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::LoadError;
use crate::limits::{ADAPTER_BYTES_MAX, ADAPTER_RANK_MAX};
use crate::load::adapted;
use crate::mapped::ModelBytes;
use crate::spec::{LayerPart, Names, Part, Projection, TransformerSpec, Weight};
use crate::tensor::Tensor;

/// An adapter, opened and checked against the model it is for.
#[derive(Debug)]
pub struct Adapter {
    /// Where it was opened; for one of bytes in memory its name.
    pub origin: PathBuf,
    /// The file or directory, for errors.
    pub file: String,
    /// `peft` or `gguf`.
    pub format: &'static str,
    /// The largest rank of any of its pairs.
    pub rank: usize,
    /// Bytes of its matrices as stored.
    pub size_bytes: u64,
    /// Of its numbers and factors: adapters of equal digests compute the same.
    pub digest: [u8; 32],
    pairs: BTreeMap<Weight, Pair>,
}

/// What is added to one matrix: `scale · B · (A · x)`.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    pub(crate) a: Tensor, // (rank, inputs)
    pub(crate) b: Tensor, // (outputs, rank)
    pub(crate) scale: f32,
}

/// A pair as a file has it, before it is checked. The file may keep several of the model's matrices as one.
#[derive(Default)]
struct FilePair {
    a: Option<Tensor>, // (rank, inputs)
    b: Option<Tensor>, // (outputs of the file's matrix, rank)
}

impl FilePair {
    /// Keeps a half.
    ///
    /// # Errors
    /// `Corrupt` where it is there already.
    fn put(&mut self, tensor: Tensor, is_a: bool) -> Result<(), LoadError> {
        let half = if is_a { &mut self.a } else { &mut self.b };
        if half.is_some() {
            return Err(LoadError::Corrupt {
                file: tensor.file.to_string(),
                what: format!("tensor {}", tensor.name),
                reason: "its matrix is there twice".into(),
            });
        }
        *half = Some(tensor);
        Ok(())
    }

    /// That all pairs have both halves.
    ///
    /// # Errors
    /// `Missing` where one has not.
    fn check<'a>(pairs: impl Iterator<Item = &'a FilePair> + Clone, file: &str) -> Result<(), LoadError> {
        let alone = |pair: &'a FilePair| pair.a.as_ref().filter(|_| pair.b.is_none());
        let other = |pair: &'a FilePair| pair.b.as_ref().filter(|_| pair.a.is_none());
        match pairs.clone().find_map(alone).or_else(|| pairs.clone().find_map(other)) {
            None => Ok(()),
            Some(half) => Err(LoadError::Missing {
                file: file.to_owned(),
                what: format!("the other matrix of tensor {}", half.name),
                hint: "; an adapter has A and B of each weight".into(),
            }),
        }
    }
}

/// Content of an opened file.
struct FileContent {
    file: String,
    format: &'static str,
    /// Rows of queries and keys are permuted as llama.cpp's converter does it.
    permuted: bool,
    pairs: BTreeMap<Weight, Pair>,
}

/// The matrices of a model, by the names that a format gives them.
struct Matrices<'a> {
    spec: &'a TransformerSpec,
    names: &'static Names,
    prefix: &'static str,
    by_name: BTreeMap<String, Result<Weight, &'static str>>, // without `.weight`
}

impl<'a> Matrices<'a> {
    fn new(spec: &'a TransformerSpec, names: &'static Names, prefix: &'static str) -> Self {
        let by_name = adaptable(spec, |weight| names.of(prefix, weight));
        Self { spec, names, prefix, by_name }
    }

    /// The parts of the model that a file's matrix `module` holds, each with its rows of B. None: the network does not use it.
    ///
    /// # Errors
    /// `Unsupported` where the model has no such matrix, or it takes no adapters; `Corrupt` where its rows do not fit.
    fn parts(&self, module: &str, b: &Tensor) -> Result<Option<Vec<(Weight, Tensor)>>, LoadError> {
        // Saved of the network alone, names lack the prefix of the class that generates.
        for name in [module.to_owned(), format!("{}{module}", self.prefix)] {
            let cut =
                adapted::cut((self.names, self.prefix), self.spec, &format!("{name}.weight"), b.clone())?;
            let known = |(name, rows): &(String, Tensor)| {
                let stem = name.strip_suffix(".weight").unwrap_or(name);
                self.by_name.get(stem).map(|weight| (*weight, rows.clone()))
            };
            let Some(found) = cut.iter().map(known).collect::<Option<Vec<_>>>() else {
                if self.is_unused(&name) {
                    return Ok(None);
                }
                continue;
            };
            let parts = found.into_iter().map(|(weight, rows)| match weight {
                Ok(weight) => Ok((weight, rows)),
                Err(reason) => Err(refused(b, reason)),
            });
            return parts.collect::<Result<Vec<_>, _>>().map(Some);
        }
        Err(refused(b, format!("the model has no {module}; load an adapter made for it")))
    }

    /// Whether a matrix makes keys or values of a layer that reads those of another (Gemma 3n, Gemma 4).
    fn is_unused(&self, module: &str) -> bool {
        let mut layers = self.spec.layers.iter().enumerate();
        layers.any(|(index, layer)| {
            let is = |part| {
                let name = self.names.of(self.prefix, Part::Layer(index, part).weight());
                name.strip_suffix(".weight") == Some(module)
            };
            layer.attention.queries_alone() && (is(LayerPart::Key) || is(LayerPart::Value))
        })
    }
}

/// An adapter that an engine has, here or in another process. A job that holds one keeps it there.
#[derive(Debug, PartialEq, Eq)]
pub struct LoadedAdapter {
    /// Its place in the engine's lists.
    pub(crate) slot: u32,
    /// [`Adapter::digest`].
    pub digest: [u8; 32],
}

impl LoadedAdapter {
    /// The handle of one that an engine elsewhere has in this slot.
    pub fn elsewhere(slot: u32, digest: [u8; 32]) -> LoadedAdapter {
        LoadedAdapter { slot, digest }
    }

    /// Its place in its engine's lists.
    pub fn slot(&self) -> u32 {
        self.slot
    }
}

impl Adapter {
    /// Opens a directory that PEFT has saved (`adapter_config.json` and `adapter_model.safetensors` or `adapter_model.bin`),
    /// or a GGUF file of an adapter, for a model.
    ///
    /// # Errors
    /// [`LoadError`] naming the file and the setting or tensor in it: what is no such file, what does not fit the model, and
    /// what cannot be computed.
    pub fn open(path: &Path, spec: &TransformerSpec) -> Result<Self, LoadError> {
        let origin = path.to_owned();
        let found =
            std::fs::metadata(path).map_err(|source| LoadError::Io { path: path.to_owned(), source })?;
        if found.is_dir() {
            return Ok(Adapter { origin, ..peft::open(path, spec)? });
        }
        let bytes =
            ModelBytes::map(path).map_err(|source| LoadError::Io { path: path.to_owned(), source })?;
        Ok(Adapter { origin, ..Self::from_gguf(&path.display().to_string(), &bytes, spec)? })
    }

    /// As [`Adapter::open`], of a GGUF file's bytes.
    ///
    /// # Errors
    /// As [`Adapter::open`].
    pub fn from_gguf(file: &str, bytes: &ModelBytes, spec: &TransformerSpec) -> Result<Self, LoadError> {
        gguf::parse(file, bytes, spec)
    }

    /// As [`Adapter::open`], of the text of an `adapter_config.json` and the bytes of a safetensors file.
    ///
    /// # Errors
    /// As [`Adapter::open`].
    pub fn from_peft(
        file: &str,
        config: &[u8],
        weights: &ModelBytes,
        spec: &TransformerSpec,
    ) -> Result<Self, LoadError> {
        peft::parse(file, config, weights, spec)
    }

    /// What is added to a matrix.
    pub(crate) fn pair(&self, weight: Weight) -> Option<&Pair> {
        self.pairs.get(&weight)
    }

    /// Gives the pages of its files back.
    pub(crate) fn release(&self) {
        self.pairs.values().flat_map(|pair| [&pair.a, &pair.b]).for_each(|tensor| tensor.bytes.release());
    }

    /// Checks the pairs of a file; `scale` is asked for the factor of each, with its A.
    fn checked(
        content: FileContent,
        spec: &TransformerSpec,
        scale: impl Fn(&Weight, &Tensor) -> Result<f32, LoadError>,
    ) -> Result<Self, LoadError> {
        let FileContent { file, format, permuted, mut pairs } = content;
        let shapes: BTreeMap<Weight, Vec<usize>> = spec.weights().into_iter().collect();
        let (mut rank, mut size_bytes) = (0, 0);
        for (weight, Pair { a, b, scale: factor }) in &mut pairs {
            let Some(&[outputs, inputs]) = shapes.get(weight).map(|shape| shape.as_slice()) else {
                return Err(refused(a, "this model has no such matrix"));
            };
            check_pair(a, b, [outputs, inputs])?;
            *factor = scale(weight, a)?;
            let factors = spec.row_factors_of(*weight);
            if !factors.is_empty() {
                *b = adapted::scaled(b, &factors)?;
            }
            if permuted != spec.permuted
                && let Part::Layer(layer, LayerPart::Query | LayerPart::Key) = weight.part
            {
                let head_dim = spec.layers[layer].attention.projection.head_shape().head_dim;
                *b = permute(b, head_dim, spec.permuted)?;
            }
            rank = rank.max(a.shape[0]);
            size_bytes += (a.bytes.len() + b.bytes.len()) as u64;
        }
        if pairs.is_empty() {
            return Err(LoadError::Missing {
                file,
                what: "any pair of low-rank matrices".into(),
                hint: "; an adapter that changes nothing is not one".into(),
            });
        }
        if size_bytes > ADAPTER_BYTES_MAX {
            return Err(LoadError::Unsupported {
                file,
                key: "bytes of all matrices".into(),
                value: size_bytes.to_string(),
                reason: format!("an adapter has at most {ADAPTER_BYTES_MAX}"),
            });
        }
        let digest = digest(&pairs);
        let origin = PathBuf::from(&file);
        Ok(Self { origin, file, format, rank, size_bytes, digest, pairs })
    }
}

/// That a tensor of an adapter cannot be computed.
fn refused(tensor: &Tensor, reason: impl Into<String>) -> LoadError {
    LoadError::Unsupported {
        file: tensor.file.to_string(),
        key: "tensor".into(),
        value: tensor.name.clone(),
        reason: reason.into(),
    }
}

/// Whether matrices are what is added to one of this shape.
fn check_pair(a: &Tensor, b: &Tensor, [outputs, inputs]: [usize; 2]) -> Result<(), LoadError> {
    let rank = a.shape.first().copied().unwrap_or(0);
    if rank == 0 {
        return Err(refused(a, "a pair of no rank adds nothing"));
    }
    let expected = [(a, [rank, inputs], "(rank, inputs)"), (b, [outputs, rank], "(outputs, rank)")];
    for (tensor, expected, of) in expected {
        if tensor.shape != expected {
            return Err(LoadError::Corrupt {
                file: tensor.file.to_string(),
                what: format!("tensor {}", tensor.name),
                reason: format!(
                    "expected {expected:?} {of}, file has {:?}; it is of an adapter for another model",
                    tensor.shape
                ),
            });
        }
        if !hanzo_engine_kernels::quant::can_dequantize(tensor.dtype) {
            return Err(refused(tensor, format!("matrices of {} cannot be computed", tensor.dtype)));
        }
    }
    if rank > ADAPTER_RANK_MAX {
        return Err(refused(
            a,
            format!("its rank of {rank} is above {ADAPTER_RANK_MAX}, the largest there may be"),
        ));
    }
    Ok(())
}

/// The parts of a model that may be adapted, by the name that a table gives them, without `.weight`.
fn adaptable(
    spec: &TransformerSpec,
    name: impl Fn(Weight) -> String,
) -> BTreeMap<String, Result<Weight, &'static str>> {
    let named = |(weight, shape): (Weight, Vec<usize>)| {
        if weight.bias || shape.len() != 2 {
            return None;
        }
        let name = name(weight);
        let stem = name.strip_suffix(".weight").unwrap_or(&name).to_owned();
        Some((stem, is_adaptable(spec, weight).map(|()| weight)))
    };
    spec.weights().into_iter().filter_map(named).collect()
}

fn is_adaptable(spec: &TransformerSpec, weight: Weight) -> Result<(), &'static str> {
    let Part::Layer(layer, part) = weight.part else {
        return Err("embeddings and heads take no adapters here: train it on the layers' projections alone");
    };
    let layer = &spec.layers[layer];
    match part {
        LayerPart::Query | LayerPart::QueryDown
            if matches!(layer.attention.projection, Projection::Latent(_)) =>
        {
            Err("queries of latent attention take no adapters here: kv_a_proj_with_mqa and o_proj do")
        }
        LayerPart::LatentUp | LayerPart::LatentKeyUp | LayerPart::LatentValueUp => Err(
            "matrices that make keys and values of latents take no adapters here: kv_a_proj_with_mqa and o_proj do",
        ),
        LayerPart::Query
        | LayerPart::Key
        | LayerPart::Value
        | LayerPart::QueryGate
        | LayerPart::LatentDown
        | LayerPart::AttentionOutput
        | LayerPart::StateInput
        | LayerPart::StateGate
        | LayerPart::StateBeta
        | LayerPart::StateStep
        | LayerPart::StateOutput
        | LayerPart::Gate
        | LayerPart::Up
        | LayerPart::Down => Ok(()),
        _ => Err("routers and experts take no adapters here: train it on attention's projections alone"),
    }
}

/// B with the rows of each head in the other order: two rows that rotate together lie beside each other (`to_pairs`), or half a
/// head apart.
fn permute(b: &Tensor, head_dim: usize, to_pairs: bool) -> Result<Tensor, LoadError> {
    let (rows, half) = (b.shape[0], head_dim / 2);
    let row_bytes = b.bytes.len() / rows;
    let source = |row: usize| {
        let (head, at) = (row / head_dim * head_dim, row % head_dim);
        head + match to_pairs {
            true => at % 2 * half + at / 2,
            false => at % half * 2 + at / half,
        }
    };
    let fill = |out: &mut [u8]| {
        let bytes = b.bytes.read();
        for (row, out) in out.chunks_exact_mut(row_bytes).enumerate() {
            let at = source(row) * row_bytes;
            out.copy_from_slice(&bytes[at..at + row_bytes]);
        }
    };
    let made = ModelBytes::made(b.bytes.len(), fill);
    let bytes = made.map_err(|source| LoadError::Io { path: b.file.to_string().into(), source })?;
    Ok(Tensor { bytes, ..b.clone() })
}

fn digest(pairs: &BTreeMap<Weight, Pair>) -> [u8; 32] {
    let mut sha = Sha256::new();
    for (weight, pair) in pairs {
        // The description of a part is its own, and of bounded length.
        let part = format!("{weight:?} {}", pair.scale.to_bits());
        sha.update((part.len() as u64).to_le_bytes());
        sha.update(part);
        for tensor in [&pair.a, &pair.b] {
            sha.update(format!("{:?} {:?};", tensor.dtype, tensor.shape));
            sha.update(&tensor.bytes[..]);
        }
    }
    sha.finalize().into()
}
