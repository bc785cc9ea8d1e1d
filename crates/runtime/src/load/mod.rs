//! A model on disk, opened: what it is, how it is run, its text files, and its weights by the names of
//! [`Weight`]. Opening reads headers and checks every shape against the spec; weights are read when a
//! [`crate::decoder::Decoder`] packs them.

mod file;
pub(crate) mod gguf;
pub(crate) mod huggingface;
pub(crate) mod json;
mod opened;
mod tensor;
#[cfg(test)]
mod tests;
pub(crate) mod weights;
mod word_pieces;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

pub(crate) use file::TextFile;
pub use opened::{Network, Opened};
pub use tensor::Tensor;

use crate::chat::Opening;
use crate::error::LoadError;
use crate::gguf::Metadata;
use crate::mapped::ModelBytes;
use crate::spec::{DecoderSpec, LayerWeight, Naming, Weight};

/// What a model is, for people.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelInfo {
    /// The name its files give it, or that of the file or directory.
    pub name: String,
    /// `gguf`, `safetensors` or `pytorch`.
    pub format: &'static str,
    /// The family: `qwen3`, `llama`.
    pub architecture: String,
    /// How most weights are stored, as users name it: `Q4_K_M`, `BF16`.
    pub quantization: String,
    /// Numbers in all weights.
    pub parameters: u64,
    /// Of all its weight files.
    pub size_bytes: u64,
    /// Tokens of the longest context it was made for.
    pub context_tokens_max: u32,
    /// Its licence, where the files say.
    pub license: Option<String>,
    /// Its weight files; none for a model built into the program.
    pub files: Vec<PathBuf>,
}

/// Where the tokenizer comes from.
#[derive(Clone, Debug)]
pub enum TokenizerSource {
    /// The `tokenizer.ggml.*` keys.
    Gguf(Arc<Metadata>),
    /// `tokenizer.json` and `tokenizer_config.json`.
    HuggingFace {
        /// The file, as it is.
        tokenizer_json: Vec<u8>,
        /// The settings beside it.
        tokenizer_config: Option<Value>,
    },
}

/// Everything about text: what a tokenizer, a chat template and a sampler's defaults are made from.
#[derive(Clone, Debug)]
pub struct TextFiles {
    /// The file or directory, for errors.
    pub file: String,
    /// The tokenizer's source.
    pub tokenizer: TokenizerSource,
    /// The default chat template, in Jinja.
    pub chat_template: Option<String>,
    /// The token that begins a text.
    pub bos: Option<u32>,
    /// Tokens that end a text or a turn, ascending.
    pub eos: Vec<u32>,
    /// How the model's makers would sample it.
    pub generation: GenerationDefaults,
    /// What its makers put before every conversation.
    pub opening: Opening,
}

/// Settings of sampling and stopping that a model comes with; what it does not say is `None` or empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// False means greedy, whatever the other settings say.
    pub do_sample: Option<bool>,
    /// Divides logits.
    pub temperature: Option<f32>,
    /// Only so many best tokens.
    pub top_k: Option<u32>,
    /// Only the best tokens that together have this probability.
    pub top_p: Option<f32>,
    /// Only tokens this probable, relative to the best.
    pub min_p: Option<f32>,
    /// Divides the logits of tokens that were there.
    pub repetition_penalty: Option<f32>,
    /// Subtracted for each time a token was generated.
    pub frequency_penalty: Option<f32>,
    /// Subtracted once from tokens that were generated.
    pub presence_penalty: Option<f32>,
    /// What every request draws with.
    pub seed: Option<u64>,
    /// Tokens to generate at most.
    pub max_new_tokens: Option<u32>,
    /// Texts that end a completion; one that is a control token's is that token.
    pub stop: Vec<String>,
}

/// An opened model.
#[derive(Debug)]
pub struct ModelFiles {
    /// What it is.
    pub info: ModelInfo,
    /// How it is run.
    pub spec: DecoderSpec,
    /// Its text files.
    pub text: TextFiles,
    tensors: BTreeMap<Weight, Tensor>,
    /// A head stored beside the embedding it is tied to: checked to be the same when weights are read.
    tied_twin: Option<Tensor>,
    /// The rows of yes and no, of a GGUF file made to rerank: (2, hidden).
    pub(crate) score: Option<Tensor>,
}

impl ModelFiles {
    /// Opens a GGUF file (of a split model, any of its files), or a directory with `config.json`,
    /// `tokenizer.json` and safetensors or PyTorch weights.
    ///
    /// # Errors
    /// [`LoadError`] naming the file and the key, tensor or file in it.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        let found = fs::metadata(path).map_err(|source| LoadError::Io { path: path.to_owned(), source })?;
        if found.is_dir() {
            return huggingface::open(path);
        }
        let (stem, gguf, files) = Self::open_gguf(path)?;
        gguf::assemble(&stem, gguf, files)
    }

    /// A GGUF file's header, after its name, and the files it is in.
    fn open_gguf(path: &Path) -> Result<(String, crate::gguf::Gguf, Vec<PathBuf>), LoadError> {
        if path.extension().is_some_and(|extension| extension == "safetensors" || extension == "bin") {
            return Err(LoadError::Unsupported {
                file: path.display().to_string(),
                key: "model".into(),
                value: "a file of weights alone".into(),
                reason: "give the directory it is in, which holds config.json and tokenizer.json too".into(),
            });
        }
        let (gguf, files) = crate::gguf::open(path)?;
        let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        Ok((stem, gguf, files))
    }

    /// Opens a GGUF file built into the program.
    ///
    /// # Errors
    /// As [`ModelFiles::open`].
    pub fn from_static(name: &str, gguf: &'static [u8]) -> Result<Self, LoadError> {
        Self::from_bytes(name, ModelBytes::from_static(gguf))
    }

    /// Opens a GGUF file's bytes.
    ///
    /// # Errors
    /// As [`ModelFiles::open`].
    pub fn from_bytes(name: &str, gguf: ModelBytes) -> Result<Self, LoadError> {
        gguf::assemble(name, crate::gguf::Gguf::parse(name, &gguf)?, Vec::new())
    }

    /// One of the weights that [`DecoderSpec::weights`] lists.
    pub fn tensor(&self, weight: Weight) -> &Tensor {
        self.tensors
            .get(&weight)
            .expect("every weight of the spec is there because opening refuses otherwise")
    }

    /// Bytes of all weights, as stored.
    pub fn weight_bytes(&self) -> u64 {
        self.tensors.values().map(|tensor| tensor.bytes.len() as u64).sum()
    }

    /// The head a file has beside the embedding its configuration ties it to.
    pub(crate) fn tied_twin(&self) -> Option<&Tensor> {
        self.tied_twin.as_ref()
    }
}

/// A file's tensors matched with the weights a spec asks for.
struct Resolved {
    tensors: BTreeMap<Weight, Tensor>,
    parameters: u64,
    tied_twin: Option<Tensor>,
    score: Option<Tensor>,
}

/// The rows of yes and no in a GGUF file.
const SCORE: &str = "cls.output.weight";

/// Finds each weight of the spec and checks its shape. `harmless` names tensors that a file may have although
/// the spec does not ask for them.
fn resolve(
    file: &str,
    spec: &DecoderSpec,
    naming: Naming,
    tensors: Vec<Tensor>,
    harmless: fn(&str) -> bool,
) -> Result<Resolved, LoadError> {
    let mut by_name: HashMap<String, Tensor> =
        tensors.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
    unstack(spec, naming, &mut by_name)?;
    let mut resolved = Resolved { tensors: BTreeMap::new(), parameters: 0, tied_twin: None, score: None };
    for (weight, shape) in spec.weights() {
        let name = weight.name(naming);
        let Some(tensor) = by_name.remove(&name) else {
            return Err(LoadError::Missing {
                file: file.to_owned(),
                what: format!("tensor {name} {shape:?}"),
                hint: match weight.stack_name(naming) {
                    Some(stack) => format!(", and so is {stack}"),
                    None => String::new(),
                },
            });
        };
        check_shape(&tensor, &shape)?;
        resolved.parameters += tensor.elements() as u64;
        resolved.tensors.insert(weight, tensor);
    }
    if spec.tied_embeddings {
        resolved.tied_twin = by_name.remove(&Weight::Output.name(naming));
        if let Some(twin) = &resolved.tied_twin {
            check_shape(twin, &[spec.vocab, spec.hidden])?;
        }
    }
    if naming == Naming::Gguf
        && let Some(score) = by_name.remove(SCORE)
    {
        check_shape(&score, &[2, spec.hidden])?;
        resolved.score = Some(score);
    }
    let unused = by_name.values().filter(|tensor| !harmless(&tensor.name)).min_by_key(|tensor| &tensor.name);
    match unused {
        None => Ok(resolved),
        Some(tensor) => Err(LoadError::Unsupported {
            file: tensor.file.to_string(),
            key: format!("tensor {}", tensor.name),
            value: format!("{:?} of {}", tensor.shape, tensor.dtype),
            reason: format!(
                "a {} model with these settings does not use it, and leaving it out could change the model",
                spec.architecture
            ),
        }),
    }
}

/// One of the weights an expert has.
type OfExpert = fn(usize) -> LayerWeight;

/// Replaces each tensor that holds one matrix of all of a layer's experts by those matrices, under their own names.
fn unstack(
    spec: &DecoderSpec,
    naming: Naming,
    by_name: &mut HashMap<String, Tensor>,
) -> Result<(), LoadError> {
    let Some(moe) = &spec.moe else { return Ok(()) };
    let parts: [(OfExpert, [usize; 2]); 3] = [
        (LayerWeight::ExpertGate, [moe.ffn, spec.hidden]),
        (LayerWeight::ExpertUp, [moe.ffn, spec.hidden]),
        (LayerWeight::ExpertDown, [spec.hidden, moe.ffn]),
    ];
    for layer in (0..spec.layers).filter(|&layer| moe.sparse[layer]) {
        for (part, [rows, cols]) in parts {
            let of_expert = |expert| Weight::Layer(layer, part(expert));
            let stack = of_expert(0).stack_name(naming).and_then(|name| by_name.remove(&name));
            let Some(stack) = stack else { continue };
            check_shape(&stack, &[moe.experts, rows, cols])?;
            for (expert, tensor) in stack.parts().enumerate() {
                if let Some(twice) = by_name.insert(of_expert(expert).name(naming), tensor) {
                    return Err(LoadError::Corrupt {
                        file: twice.file.to_string(),
                        what: format!("tensor {}", twice.name),
                        reason: format!("it is in {} too", stack.name),
                    });
                }
            }
        }
    }
    Ok(())
}

pub(crate) fn check_shape(tensor: &Tensor, expected: &[usize]) -> Result<(), LoadError> {
    if tensor.shape == expected {
        return Ok(());
    }
    Err(LoadError::Corrupt {
        file: tensor.file.to_string(),
        what: format!("tensor {}", tensor.name),
        reason: format!("expected {expected:?}, file has {:?}", tensor.shape),
    })
}

/// The type most bytes of the matrices are stored in.
pub(crate) fn dominant_type<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> String {
    let mut bytes_of = BTreeMap::new();
    for tensor in tensors.filter(|tensor| tensor.shape.len() > 1) {
        *bytes_of.entry(tensor.dtype).or_insert(0u64) += tensor.bytes.len() as u64;
    }
    let dominant = bytes_of.into_iter().max_by_key(|&(_, bytes)| bytes);
    dominant.map_or_else(|| "unknown".to_owned(), |(dtype, _)| dtype.to_string())
}

pub(crate) fn size_bytes(files: &[PathBuf]) -> Result<u64, LoadError> {
    let mut total = 0;
    for path in files {
        let found = fs::metadata(path).map_err(|source| LoadError::Io { path: path.clone(), source })?;
        total += found.len();
    }
    Ok(total)
}

/// Refuses token ids that no row of the head belongs to.
pub(crate) fn check_tokens(file: &str, vocab: usize, text: &TextFiles) -> Result<(), LoadError> {
    match text.bos.iter().chain(&text.eos).find(|&&token| token as usize >= vocab) {
        None => Ok(()),
        Some(token) => Err(LoadError::Corrupt {
            file: file.to_owned(),
            what: "begin and end tokens".into(),
            reason: format!("token {token} is not among the {vocab} of the vocabulary"),
        }),
    }
}
