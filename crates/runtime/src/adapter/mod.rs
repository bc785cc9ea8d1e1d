//! Low-rank adapters (LoRA, arxiv.org/abs/2106.09685) of a decoder, with magnitudes (DoRA), biases, and whole
//! matrices, norms and embeddings that replace the model's. They are opened from files written by PEFT or llama.cpp's
//! converter, matched with the weights of their base model, and checked before anything is kept. Unsupported settings
//! and tensors are refused by name.
//!
//! The computation is in `crate::network`, the assignment to requests in `crate::engine`.

mod base;
mod config;
mod delta;
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
pub use base::{AdapterBase, BaseWeights};
use delta::{DeltaMaker, FileDelta};
pub(crate) use delta::{EmbeddingDelta, OutputFactors, Pair, WeightDelta};

/// Adapter, opened and checked against its base model.
#[derive(Debug)]
pub struct Adapter {
    /// Path that it was opened from; its name if it is from memory.
    pub origin: PathBuf,
    /// The file or directory, for errors.
    pub file: String,
    /// `peft` or `gguf`.
    pub format: &'static str,
    /// Largest rank of any of its pairs; 0 without pairs.
    pub rank: usize,
    /// Size of its matrices in bytes.
    pub size_bytes: u64,
    /// Digest of its elements and factors: adapters with equal digests compute the same.
    pub digest: [u8; 32],
    deltas: BTreeMap<Weight, WeightDelta>,
    embedding: Option<EmbeddingDelta>,
}

/// Content of an opened file.
struct FileContent {
    file: String,
    format: &'static str,
    /// Whether rows of queries and keys are permuted as by llama.cpp's converter.
    permuted: bool,
    deltas: BTreeMap<Weight, FileDelta>,
}

/// Weights of a model, by their names in a format.
struct Matrices<'a> {
    spec: &'a TransformerSpec,
    names: &'static Names,
    prefix: &'static str,
    by_name: BTreeMap<String, AdaptableWeight>, // without `.weight`
}

/// A weight, and the reason why adapters cannot change it, if they cannot.
#[derive(Clone, Copy)]
struct AdaptableWeight {
    weight: Weight,
    reason: Result<(), &'static str>,
}

impl<'a> Matrices<'a> {
    fn new(spec: &'a TransformerSpec, names: &'static Names, prefix: &'static str) -> Self {
        let by_name = adaptable(spec, |weight| names.of(prefix, weight));
        Self { spec, names, prefix, by_name }
    }

    /// Possible names of a file's module in the model's own files.
    fn names_of(&self, module: &str) -> Vec<String> {
        // Names in a multimodal class, which contains the model.
        let inside = module.split_once("language_model.").map_or(module, |(_, inside)| inside);
        let bare = inside.strip_prefix("model.").unwrap_or(inside);
        // If only the network is saved, names lack the prefix of the generating class; some classes have another.
        let prefixed = [module, inside, bare].map(|name| format!("{}{name}", self.prefix));
        let mut names: Vec<String> =
            [module, inside].map(str::to_owned).into_iter().chain(prefixed).collect();
        if self.spec.architecture == "falcon" {
            let own = module.replace("ln_attn", self.names.attention_norm);
            names.push(own.replace("ln_mlp", self.names.mlp_norm));
        }
        // The library's names in every class, whatever files have.
        match bare {
            "lm_head" => names.push(self.names.head.to_owned()),
            "embed_tokens" => names.push(format!("{}{}", self.prefix, self.names.token_embedding)),
            _ => {}
        }
        names
    }

    /// Parts of the model in a file's matrix `module`, each with its rows of a tensor that has a row for each output.
    /// `None`: the network does not use it.
    ///
    /// # Errors
    /// `Unsupported` if the model has no such weight, or it supports no adapters; `Corrupt` if its rows do not fit.
    fn parts(&self, module: &str, rows: &Tensor) -> Result<Option<Vec<(Weight, Tensor)>>, LoadError> {
        let Some(found) = self.find(module, rows)? else { return Ok(None) };
        let parts = found.into_iter().map(|(AdaptableWeight { weight, reason }, part)| match reason {
            Ok(()) => Ok((weight, part)),
            Err(reason) => Err(refused(rows, reason)),
        });
        parts.collect::<Result<Vec<_>, _>>().map(Some)
    }

    /// Same as [`Matrices::parts`], including weights that support no adapters.
    fn find(&self, module: &str, rows: &Tensor) -> Result<Option<Vec<(AdaptableWeight, Tensor)>>, LoadError> {
        for name in self.names_of(module) {
            let cut =
                adapted::cut(self.names, self.prefix, self.spec, &format!("{name}.weight"), rows.clone())?;
            let known = |(name, part): &(String, Tensor)| {
                let stem = name.strip_suffix(".weight").unwrap_or(name);
                self.by_name.get(stem).map(|&of| (of, part.clone()))
            };
            if let Some(found) = cut.iter().map(known).collect::<Option<Vec<_>>>() {
                return Ok(Some(found));
            }
            if self.is_unused(&name) {
                return Ok(None);
            }
        }
        let reason = format!(
            "the text model has no {module}; load an adapter made for this model, of its text part alone"
        );
        Err(refused(rows, reason))
    }

    /// Whether a matrix makes keys or values of a layer that shares those of another (Gemma 3n, Gemma 4).
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

/// Adapter that an engine has loaded, here or in another process. A job that holds this handle keeps it loaded.
#[derive(Debug, PartialEq, Eq)]
pub struct LoadedAdapter {
    /// Index in the engine's lists.
    pub(crate) slot: u32,
    /// [`Adapter::digest`].
    pub digest: [u8; 32],
}

impl LoadedAdapter {
    /// Handle of an adapter that an engine in another process has in this slot.
    pub fn elsewhere(slot: u32, digest: [u8; 32]) -> LoadedAdapter {
        LoadedAdapter { slot, digest }
    }

    /// Index in its engine's lists.
    pub fn slot(&self) -> u32 {
        self.slot
    }
}

impl Adapter {
    /// Opens, for a base model, a directory saved by PEFT (`adapter_config.json` and `adapter_model.safetensors` or
    /// `adapter_model.bin`) or a GGUF file of an adapter.
    ///
    /// # Errors
    /// [`LoadError`] naming the file and the setting or tensor in it: for other files, adapters that do not fit the
    /// model, and unsupported ones.
    pub fn open(path: &Path, base: &AdapterBase<'_>) -> Result<Self, LoadError> {
        let origin = path.to_owned();
        let found =
            std::fs::metadata(path).map_err(|source| LoadError::Io { path: path.to_owned(), source })?;
        if found.is_dir() {
            return Ok(Adapter { origin, ..peft::open(path, base)? });
        }
        let bytes =
            ModelBytes::map(path).map_err(|source| LoadError::Io { path: path.to_owned(), source })?;
        Ok(Adapter { origin, ..Self::from_gguf(&path.display().to_string(), &bytes, base)? })
    }

    /// Same as [`Adapter::open`], for the bytes of a GGUF file.
    ///
    /// # Errors
    /// As [`Adapter::open`].
    pub fn from_gguf(file: &str, bytes: &ModelBytes, base: &AdapterBase<'_>) -> Result<Self, LoadError> {
        gguf::parse(file, bytes, base)
    }

    /// Same as [`Adapter::open`], for the text of an `adapter_config.json` and the bytes of a safetensors file.
    ///
    /// # Errors
    /// As [`Adapter::open`].
    pub fn from_peft(
        file: &str,
        config: &[u8],
        weights: &ModelBytes,
        base: &AdapterBase<'_>,
    ) -> Result<Self, LoadError> {
        peft::parse(file, config, weights, base)
    }

    /// Change to a matrix or a norm.
    pub(crate) fn delta(&self, part: Part) -> Option<&WeightDelta> {
        self.deltas.get(&part.weight())
    }

    /// Norms that it changes.
    pub(crate) fn norms(&self) -> impl Iterator<Item = Part> {
        self.deltas.keys().map(|weight| weight.part).filter(|part| part.is_norm())
    }

    /// Change to the embeddings of tokens.
    pub(crate) fn embedding(&self) -> Option<&EmbeddingDelta> {
        self.embedding.as_ref()
    }

    fn pairs(&self) -> impl Iterator<Item = &Pair> {
        let of_embedding = self.embedding.iter().filter_map(|embedding| embedding.widen.as_ref());
        self.deltas.values().filter_map(|delta| delta.pair.as_ref()).chain(of_embedding)
    }

    fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let of_pairs = self.pairs().flat_map(|pair| pair.a.iter().chain([&pair.b]));
        of_pairs.chain(self.embedding.iter().map(|embedding| &embedding.table))
    }

    /// Releases the pages of its files.
    pub(crate) fn release(&self) {
        self.tensors().for_each(|tensor| tensor.bytes.release());
    }

    /// Checks the tensors of a file; `scale` returns the factor of each pair, given its A.
    fn checked(
        content: FileContent,
        base: &AdapterBase<'_>,
        scale: impl Fn(&FileDelta, &Tensor) -> Result<f32, LoadError>,
    ) -> Result<Self, LoadError> {
        let FileContent { file, format, permuted, deltas } = content;
        let shapes = shapes(base.spec);
        let maker = DeltaMaker { base, shapes: &shapes, permuted };
        let (mut made, mut embedding) = (BTreeMap::new(), None);
        for (weight, found) in &deltas {
            let factor = found.a.as_ref().map_or(Ok(1.0), |a| scale(found, a))?;
            if weight.part == Part::TokenEmbedding {
                embedding = Some(maker.embedding(&file, found, factor)?);
                continue;
            }
            let delta = match weight.part.is_norm() {
                true => maker.norm(*weight, found)?,
                false => maker.matrix(&file, *weight, found, factor)?,
            };
            made.insert(*weight, delta);
        }
        if made.is_empty() && embedding.is_none() {
            return Err(LoadError::Missing {
                file,
                what: "any pair of low-rank matrices".into(),
                hint: "; an adapter that changes nothing is not one".into(),
            });
        }
        let origin = PathBuf::from(&file);
        let (rank, size_bytes, digest) = (0, 0, [0; 32]);
        let mut adapter = Self { origin, file, format, rank, size_bytes, digest, deltas: made, embedding };
        adapter.size_bytes = adapter.tensors().map(|tensor| tensor.bytes.len() as u64).sum();
        if adapter.size_bytes > ADAPTER_BYTES_MAX {
            return Err(LoadError::Unsupported {
                file: adapter.file,
                key: "bytes of all matrices".into(),
                value: adapter.size_bytes.to_string(),
                reason: format!("an adapter has at most {ADAPTER_BYTES_MAX}"),
            });
        }
        let ranks = adapter.pairs().filter_map(|pair| pair.a.as_ref()).map(|a| a.shape[0]);
        let narrow = adapter.embedding.iter().filter_map(|of| of.widen.as_ref()).map(|pair| pair.b.shape[1]);
        adapter.rank = ranks.chain(narrow).max().unwrap_or(0);
        adapter.digest = digest_of(&adapter);
        Ok(adapter)
    }
}

/// Shapes of a model's weights, and of a tied head.
fn shapes(spec: &TransformerSpec) -> BTreeMap<Weight, Vec<usize>> {
    let mut shapes: BTreeMap<Weight, Vec<usize>> = spec.weights().into_iter().collect();
    if spec.head.tied() {
        shapes.insert(Part::Head.weight(), vec![spec.vocab, spec.hidden]);
    }
    shapes
}

/// Error for a tensor of an adapter that is not supported.
fn refused(tensor: &Tensor, reason: impl Into<String>) -> LoadError {
    LoadError::Unsupported {
        file: tensor.file.to_string(),
        key: "tensor".into(),
        value: tensor.name.clone(),
        reason: reason.into(),
    }
}

/// Checks that two matrices form an addition to a matrix of this shape.
fn check_pair(a: &Tensor, b: &Tensor, [outputs, inputs]: [usize; 2]) -> Result<(), LoadError> {
    let rank = a.shape.first().copied().unwrap_or(0);
    if rank == 0 {
        return Err(refused(a, "a pair of no rank adds nothing"));
    }
    let expected = [(a, [rank, inputs], "(rank, inputs)"), (b, [outputs, rank], "(outputs, rank)")];
    for (tensor, expected, of) in expected {
        if tensor.shape != expected {
            return Err(tensor.corrupt(format!(
                "expected {expected:?} {of}, file has {:?}; it is of an adapter for another model",
                tensor.shape
            )));
        }
        if !hanzo_engine_ops::quant::can_dequantize(tensor.dtype) {
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

/// Weights of a model except biases, by their names in a table without `.weight`.
fn adaptable(spec: &TransformerSpec, name: impl Fn(Weight) -> String) -> BTreeMap<String, AdaptableWeight> {
    let named = |weight: Weight| {
        let name = name(weight);
        let stem = name.strip_suffix(".weight").unwrap_or(&name).to_owned();
        (stem, AdaptableWeight { weight, reason: is_adaptable(spec, weight.part) })
    };
    shapes(spec).into_keys().filter(|weight| !weight.bias).map(named).collect()
}

fn is_adaptable(spec: &TransformerSpec, part: Part) -> Result<(), &'static str> {
    let (layer, part) = match part {
        Part::FinalNorm if spec.streams.is_some() => return Err(GEMMA_PARTS),
        Part::TokenEmbedding | Part::EmbeddingNorm | Part::FinalNorm => return Ok(()),
        Part::Head => return delta::head_reason(spec.head),
        Part::Gemma(_) => return Err(GEMMA_PARTS),
        Part::Layer(layer, part) => (layer, part),
        _ => return Err("embeddings of positions and types, and encoders' parts, take no adapters here"),
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
        part if Part::Layer(0, part).is_norm() => match spec.streams.is_some() || layer.mlp.is_apart() {
            true => Err("norms of this family take no adapters here: projections of attention and MLPs do"),
            false => Ok(()),
        },
        LayerPart::QueryNorm | LayerPart::KeyNorm | LayerPart::QueryDownNorm | LayerPart::LatentNorm => {
            Err("norms inside attention take no adapters here: those of hidden states do")
        }
        LayerPart::Router
        | LayerPart::ExpertGate(_)
        | LayerPart::ExpertUp(_)
        | LayerPart::ExpertDown(_)
        | LayerPart::Experts
        | LayerPart::SharedGate
        | LayerPart::SharedUp
        | LayerPart::SharedDown
        | LayerPart::SharedRouter => {
            Err("routers and experts take no adapters here: train it on attention's projections alone")
        }
        LayerPart::Gemma(_) => Err(GEMMA_PARTS),
        _ => Err("this part of a layer takes no adapters here: projections and norms of hidden states do"),
    }
}

const GEMMA_PARTS: &str =
    "laurel, AltUp and inputs of single layers take no adapters here: projections of attention and MLPs do";

/// B with the rows of each head reordered, so that two rows that rotate together are adjacent (`to_pairs`), or half a
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

fn digest_of(adapter: &Adapter) -> [u8; 32] {
    let mut sha = Sha256::new();
    // The description of each part is separate and of bounded length.
    let mut say = |words: String| {
        sha.update((words.len() as u64).to_le_bytes());
        sha.update(words);
    };
    for (weight, WeightDelta { pair, change }) in &adapter.deltas {
        say(format!("{weight:?} {:?}", pair.as_ref().map(|pair| (pair.scale.to_bits(), pair.a.is_some()))));
        for numbers in change.iter().flat_map(|change| [&change.factors, &change.addends]) {
            say(format!("{:?}", numbers.iter().map(|number| number.to_bits()).collect::<Vec<u32>>()));
        }
    }
    if let Some(EmbeddingDelta { widen, .. }) = &adapter.embedding {
        say(format!("{:?}", widen.as_ref().map(|pair| pair.scale.to_bits())));
    }
    for tensor in adapter.tensors() {
        sha.update(format!("{:?} {:?};", tensor.dtype, tensor.shape));
        sha.update(tensor.bytes.read());
    }
    sha.finalize().into()
}
