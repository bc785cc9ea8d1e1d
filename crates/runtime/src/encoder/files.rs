//! An encoder on disk, opened: what it is, its text files, its weights by the names of [`Weight`], and its head.
//! Opening reads headers, the head's few numbers, and checks every shape against the spec.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use hanzo_engine_kernels::DType;
use serde_json::Value;

use super::families::{self, ClassifierPlan, Task};
use super::head::{self, Classifier, Head, HeadLayer, HeadNorm, Scores};
use super::names::{Experts, GateUp, Names};
use super::spec::{ConvolutionSpec, EncoderSpec, ExpertsSpec, MaskedLmSpec, NormKind};
use super::weights::{LayerPart, Part, Weight};
use crate::error::LoadError;
use crate::gguf::Gguf;
use crate::limits::LABELS_MAX;
use crate::load::{
    ModelInfo, Tensor, TextFiles, check_shape, check_tokens, dominant_type, huggingface, size_bytes,
    weights::{self, Weights},
};
use crate::spec::Config;

/// An opened encoder.
#[derive(Debug)]
pub struct EncoderFiles {
    /// What it is.
    pub info: ModelInfo,
    /// How it is run.
    pub spec: EncoderSpec,
    /// Its text files.
    pub text: TextFiles,
    /// What its class puts on top.
    pub head: Option<Head>,
    /// Tensors that were left out because they change nothing here: buffers, and heads of other tasks.
    pub left_out: Vec<String>,
    tensors: BTreeMap<Weight, Tensor>,
    tied_twin: Option<Tensor>,
}

/// Whether a `config.json` is an encoder's: of one of the families, or of Gemma 3 with attention to both sides.
///
/// # Errors
/// `Corrupt` for settings of the wrong type.
pub fn is_encoder(config: &Config) -> Result<bool, LoadError> {
    Ok(families::family_of(config)?.is_some())
}

impl EncoderFiles {
    /// Opens a directory with `config.json`, `tokenizer.json` and weights whose [`is_encoder`].
    ///
    /// # Errors
    /// [`LoadError`] naming the file and the key, tensor or file in it.
    pub fn from_directory(directory: &Path, config: &Config) -> Result<Self, LoadError> {
        let name = directory.display().to_string();
        let Some(family) = families::family_of(config)? else {
            let value = config.get("model_type").map(ToString::to_string).unwrap_or_default();
            return Err(config.unsupported("model_type", value, "it is no encoder's"));
        };
        let Weights { tensors, files, format } = weights::open(directory)?;
        let mut config = config.clone();
        if tensors.iter().any(|tensor| tensor.name.ends_with(families::JINA_CODE_TENSOR)) {
            config.set(families::JINA_CODE_KEY, true.into());
        }
        let config = &config;
        let (plan, task) = family.plan(config)?;
        let text = huggingface::text_files(directory, config, None)?;
        check_tokens(&name, plan.spec.vocab, &text)?;
        let mut found = Found::new(&name, &plan.names, tensors)?;
        let mut spec = plan.spec;
        if task == Task::MaskedLm {
            spec.masked_lm = found.masked_lm(&plan.names, plan.masked_lm);
        }
        found.unstack(&spec, &plan.names)?;
        let Resolved { tensors, tied_twin, mut parameters } = found.resolve(&spec, &plan.names)?;
        let head = match task {
            Task::Classifier => {
                let classifier = found.classifier(&spec, &plan.classifier, Labels::from_config(config)?)?;
                parameters += classifier.layers.iter().map(HeadLayer::parameters).sum::<u64>();
                Some(Head::Classifier(classifier))
            }
            Task::MaskedLm => spec.masked_lm.map(|_| Head::MaskedLm),
            Task::Encoder => None,
        };
        let left_out = found.left_out(&spec.architecture, plan.heads)?;
        let info = ModelInfo {
            name: directory
                .canonicalize()
                .ok()
                .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
                .unwrap_or(name),
            format,
            architecture: spec.architecture.clone(),
            quantization: dominant_type(tensors.values()),
            parameters,
            size_bytes: size_bytes(&files)?,
            context_tokens_max: spec.input_tokens_max,
            license: None,
            files,
        };
        Ok(Self { info, spec, text, head, left_out, tensors, tied_twin })
    }

    /// Opens a parsed GGUF file whose [`super::is_encoder_gguf`]. `fallback_name` is for files that do not name their
    /// model; `files` are where the bytes came from.
    ///
    /// # Errors
    /// As [`EncoderFiles::from_directory`].
    pub fn from_gguf(fallback_name: &str, gguf: Gguf, files: Vec<PathBuf>) -> Result<Self, LoadError> {
        let plan = families::gguf::plan(&gguf)?;
        let metadata = gguf.metadata;
        let file = metadata.file();
        let text = crate::load::gguf::text_files(&metadata)?;
        check_tokens(file, plan.spec.vocab, &text)?;
        let bytes_in_memory: u64 = gguf.tensors.iter().map(|tensor| tensor.bytes.len() as u64).sum();
        let mut found = Found::new(file, &plan.names, gguf.tensors)?;
        found.unstack(&plan.spec, &plan.names)?;
        let Resolved { tensors, tied_twin, mut parameters } = found.resolve(&plan.spec, &plan.names)?;
        let head = match &plan.classifier {
            None => None,
            Some(classifier) => {
                let labels = Labels { names: plan.labels, problem: None };
                let classifier = found.classifier(&plan.spec, classifier, labels)?;
                parameters += classifier.layers.iter().map(HeadLayer::parameters).sum::<u64>();
                Some(Head::Classifier(classifier))
            }
        };
        let left_out = found.left_out(&plan.spec.architecture, &[])?;
        let file_type = crate::load::gguf::file_type(&metadata)?;
        let info = ModelInfo {
            name: metadata.string("general.name")?.unwrap_or(fallback_name).to_owned(),
            format: "gguf",
            architecture: plan.spec.architecture.clone(),
            quantization: file_type.unwrap_or_else(|| dominant_type(tensors.values())),
            parameters,
            size_bytes: if files.is_empty() { bytes_in_memory } else { size_bytes(&files)? },
            context_tokens_max: plan.spec.input_tokens_max,
            license: metadata.string("general.license")?.map(str::to_owned),
            files,
        };
        Ok(Self { info, spec: plan.spec, text, head, left_out, tensors, tied_twin })
    }

    /// One of the weights that [`EncoderSpec::weights`] lists.
    pub fn tensor(&self, weight: Weight) -> &Tensor {
        self.tensors
            .get(&weight)
            .expect("every weight of the spec is there because opening refuses otherwise")
    }

    /// Bytes of all weights, as stored.
    pub fn weight_bytes(&self) -> u64 {
        self.tensors.values().map(|tensor| tensor.bytes.len() as u64).sum()
    }

    #[cfg(test)]
    pub(super) fn tensors_mut(&mut self) -> &mut BTreeMap<Weight, Tensor> {
        &mut self.tensors
    }

    /// The decoder a file has beside the token embedding that it is.
    pub(super) fn tied_twin(&self) -> Option<&Tensor> {
        self.tied_twin.as_ref()
    }
}

impl HeadLayer {
    fn parameters(&self) -> u64 {
        let norm =
            self.norm.as_ref().map_or(0, |norm| norm.weight.len() + norm.bias.as_ref().map_or(0, Vec::len));
        (self.weight.len() + self.bias.as_ref().map_or(0, Vec::len) + norm) as u64
    }
}

/// What a file says about a classifier's labels.
struct Labels {
    names: Option<Vec<String>>,
    /// The kind of problem, where it is said.
    problem: Option<Scores>,
}

impl Labels {
    fn from_config(config: &Config) -> Result<Self, LoadError> {
        const NAMES: &str = "id2label";
        const PROBLEM: &str = "problem_type";
        let problem = match config.string(PROBLEM)? {
            None => None,
            Some("regression") => Some(Scores::Raw),
            Some("single_label_classification") => Some(Scores::Softmax),
            Some("multi_label_classification") => Some(Scores::Sigmoid),
            Some(other) => return Err(config.unsupported(PROBLEM, other, "the library knows no such kind")),
        };
        let Some(map) = config.typed(NAMES, "an object", Value::as_object)? else {
            return Ok(Self { names: None, problem });
        };
        if map.len() > LABELS_MAX {
            return Err(
                config.corrupt(NAMES, format!("{} labels; at most {LABELS_MAX} are allowed", map.len()))
            );
        }
        let mut names = vec![None; map.len()];
        for (id, name) in map {
            let slot = id.parse::<usize>().ok().and_then(|id| names.get_mut(id));
            match (slot, name) {
                (Some(slot), Value::String(name)) => *slot = Some(name.clone()),
                (Some(slot), other) => *slot = Some(other.to_string()),
                (None, _) => {
                    return Err(config.corrupt(NAMES, format!("{id} is not one of {} labels", map.len())));
                }
            }
        }
        // As many ids as labels, each in range: two spellings of one would leave another out.
        let names: Option<Vec<String>> = names.into_iter().collect();
        match names {
            Some(names) => Ok(Self { names: Some(names), problem }),
            None => Err(config.corrupt(NAMES, "two labels have the same number")),
        }
    }
}

/// A file's tensors by name, fewer with each that found its use.
struct Found {
    file: String,
    prefix: &'static str,
    by_name: HashMap<String, Tensor>,
}

struct Resolved {
    tensors: BTreeMap<Weight, Tensor>,
    tied_twin: Option<Tensor>,
    parameters: u64,
}

impl Found {
    fn new(file: &str, names: &Names, tensors: Vec<Tensor>) -> Result<Self, LoadError> {
        let mut by_name = HashMap::with_capacity(tensors.len());
        for mut tensor in tensors {
            // Checkpoints made from the first releases have the paper's names.
            for (old, new) in [(".gamma", ".weight"), (".beta", ".bias")] {
                if let Some(stem) = tensor.name.strip_suffix(old) {
                    tensor.name = format!("{stem}{new}");
                }
            }
            if let Some(twice) = by_name.insert(tensor.name.clone(), tensor) {
                return Err(LoadError::Corrupt {
                    file: twice.file.to_string(),
                    what: format!("tensor {}", twice.name),
                    reason: "it is there twice".into(),
                });
            }
        }
        let prefixed = names.of(names.prefix, Part::TokenEmbedding.weight());
        let prefix = if by_name.contains_key(&prefixed) { names.prefix } else { "" };
        Ok(Self { file: file.to_owned(), prefix, by_name })
    }

    fn take(&mut self, name: &str, shape: &[usize]) -> Result<Tensor, LoadError> {
        let Some(tensor) = self.by_name.remove(name) else {
            return Err(LoadError::Missing {
                file: self.file.clone(),
                what: format!("tensor {name} {shape:?}"),
                hint: String::new(),
            });
        };
        check_shape(&tensor, shape)?;
        Ok(tensor)
    }

    /// The head of a masked language model, where the file has it: files of embedding models often name its class and
    /// leave it out.
    fn masked_lm(&mut self, names: &Names, head: Option<MaskedLmSpec>) -> Option<MaskedLmSpec> {
        let dense = names.of(self.prefix, Part::LmDense.weight());
        head.filter(|_| self.by_name.contains_key(&dense))
    }

    /// Cuts tensors that hold several parts into those, under names of their own.
    fn unstack(&mut self, spec: &EncoderSpec, names: &Names) -> Result<(), LoadError> {
        let (q, hidden) = (spec.heads.q_width(), spec.hidden);
        let kv = spec.heads.kv_heads * spec.heads.head_dim;
        for layer in 0..spec.layers.len() {
            if let Some(stem) = names.qkv {
                let parts = [(LayerPart::Query, q), (LayerPart::Key, kv), (LayerPart::Value, kv)];
                self.cut(names, layer, stem, false, &[q + 2 * kv, hidden], &parts)?;
                if spec.qkv_bias {
                    self.cut(names, layer, stem, true, &[q + 2 * kv], &parts)?;
                }
            }
            if let Some(GateUp { name, gate_first }) = names.gate_up {
                let mut parts = [(LayerPart::Gate, spec.ffn), (LayerPart::Up, spec.ffn)];
                if !gate_first {
                    parts.reverse();
                }
                self.cut(names, layer, name, false, &[2 * spec.ffn, hidden], &parts)?;
            }
            if spec.layers[layer].experts
                && let (Some(stacks), Some(experts)) = (names.experts, spec.experts)
            {
                self.unstack_experts(spec, names, layer, stacks, experts)?;
            }
        }
        if let Some(ConvolutionSpec { window, .. }) = spec.convolution {
            let name = names.of(self.prefix, Part::Convolution.weight());
            let mut tensor = self.take(&name, &[hidden, hidden, window])?;
            tensor.shape = vec![hidden, hidden * window];
            self.by_name.insert(name, tensor);
        }
        Ok(())
    }

    /// Cuts a layer's stacks of experts' matrices, of three dimensions or of two, into those.
    fn unstack_experts(
        &mut self,
        spec: &EncoderSpec,
        names: &Names,
        layer: usize,
        stacks: Experts,
        experts: ExpertsSpec,
    ) -> Result<(), LoadError> {
        let (ffn, hidden) = (spec.ffn, spec.hidden);
        let down = if experts.down_transposed { [ffn, hidden] } else { [hidden, ffn] };
        for (name, [rows, cols]) in [(stacks.up, [ffn, hidden]), (stacks.down, down)] {
            let name = names.in_layer(self.prefix, layer, name);
            let flat = [experts.count * rows, cols];
            let is_flat = self.by_name.get(&name).is_some_and(|tensor| tensor.shape.len() == 2);
            let mut whole = match is_flat {
                true => self.take(&name, &flat)?,
                false => self.take(&name, &[experts.count, rows, cols])?,
            };
            whole.shape = vec![experts.count, rows, cols];
            // Named by their numbers, as `Names` names them.
            self.by_name.extend(whole.parts().map(|part| (part.name.clone(), part)));
        }
        Ok(())
    }

    fn cut(
        &mut self,
        names: &Names,
        layer: usize,
        stem: &str,
        bias: bool,
        shape: &[usize],
        parts: &[(LayerPart, usize)],
    ) -> Result<(), LoadError> {
        let suffix = if bias { "bias" } else { "weight" };
        let name = names.in_layer(self.prefix, layer, &format!("{stem}.{suffix}"));
        let whole = self.take(&name, shape)?;
        let mut first = 0;
        for &(part, rows) in parts {
            let weight = Weight { part: Part::Layer(layer, part), bias };
            let mut tensor = whole.rows(first..first + rows);
            tensor.name = format!("{}[{first}..{}]", whole.name, first + rows);
            if self.by_name.insert(names.of(self.prefix, weight), tensor).is_some() {
                return Err(LoadError::Corrupt {
                    file: whole.file.to_string(),
                    what: format!("tensor {}", names.of(self.prefix, weight)),
                    reason: format!("it is in {name} too"),
                });
            }
            first += rows;
        }
        Ok(())
    }

    fn resolve(&mut self, spec: &EncoderSpec, names: &Names) -> Result<Resolved, LoadError> {
        let mut resolved = Resolved { tensors: BTreeMap::new(), tied_twin: None, parameters: 0 };
        // Some files have the decoder's bias under the decoder's name, some under both.
        let second_bias = format!("{}.bias", names.lm_decoder);
        if spec.masked_lm.is_some_and(|head| head.decoder_bias)
            && second_bias != names.lm_bias
            && let Some(mut second) = self.by_name.remove(&second_bias)
        {
            match self.by_name.get(names.lm_bias) {
                None => {
                    second.name = names.lm_bias.to_owned();
                    self.by_name.insert(names.lm_bias.to_owned(), second);
                }
                Some(first) if first.bytes[..] == second.bytes[..] => {}
                Some(first) => {
                    return Err(LoadError::Corrupt {
                        file: first.file.to_string(),
                        what: format!("tensor {second_bias}"),
                        reason: format!("it differs from {}, which stands for the same", names.lm_bias),
                    });
                }
            }
        }
        for (weight, shape) in spec.weights() {
            let tensor = self.take(&names.of(self.prefix, weight), &shape)?;
            resolved.parameters += tensor.elements() as u64;
            resolved.tensors.insert(weight, tensor);
        }
        if spec.masked_lm.is_some_and(|head| head.tied) {
            resolved.tied_twin = self.by_name.remove(&names.of(self.prefix, Part::LmDecoder.weight()));
            if let Some(twin) = &resolved.tied_twin {
                check_shape(twin, &[spec.vocab, spec.hidden])?;
            }
        }
        Ok(resolved)
    }

    fn classifier(
        &mut self,
        spec: &EncoderSpec,
        plan: &ClassifierPlan,
        labels: Labels,
    ) -> Result<Classifier, LoadError> {
        let mut layers: Vec<HeadLayer> = Vec::with_capacity(plan.layers.len());
        for (index, layer) in plan.layers.iter().enumerate() {
            let prefix = if layer.in_encoder { self.prefix } else { "" };
            let name = format!("{prefix}{}.weight", layer.name);
            let inputs = layers.last().map_or(spec.hidden, |before| before.outputs);
            let last = index + 1 == plan.layers.len();
            let rows = match (&labels.names, self.by_name.get(&name)) {
                _ if !last => spec.hidden,
                (Some(names), _) => names.len(),
                (None, Some(tensor)) => tensor.shape.first().map_or(0, |&rows| rows.min(LABELS_MAX)),
                (None, None) => 2,
            };
            let weight = self.take(&name, &[rows, inputs])?;
            let bias = match layer.bias {
                true => Some(self.take(&format!("{prefix}{}.bias", layer.name), &[rows])?),
                false => None,
            };
            let norm = match layer.norm {
                Some(norm) => Some(self.norm(spec, norm, rows)?),
                None => None,
            };
            layers.push(head::layer(&weight, bias.as_ref(), layer.activation, norm)?);
        }
        let Some(count) = layers.last().map(|layer| layer.outputs) else {
            return Err(LoadError::Unsupported {
                file: self.file.clone(),
                key: "architectures".into(),
                value: "a class for sequence classification".into(),
                reason: format!("{} has none that is known", spec.architecture),
            });
        };
        let numbered = || (0..count).map(|label| format!("LABEL_{label}")).collect();
        let scores = if count == 1 { Scores::Sigmoid } else { Scores::Softmax };
        Ok(Classifier {
            input: plan.input,
            layers,
            labels: labels.names.unwrap_or_else(numbered),
            scores: match labels.problem {
                // Of one label alone a share of 1 would say nothing.
                Some(Scores::Softmax) if count == 1 => scores,
                Some(problem) => problem,
                None => scores,
            },
        })
    }

    fn norm(&mut self, spec: &EncoderSpec, name: &str, width: usize) -> Result<HeadNorm, LoadError> {
        let bias = spec.norm.kind == NormKind::Layer { bias: true };
        Ok(HeadNorm {
            weight: self.take(&format!("{name}.weight"), &[width])?.to_f32()?,
            bias: match bias {
                true => Some(self.take(&format!("{name}.bias"), &[width])?.to_f32()?),
                false => None,
            },
            eps: spec.norm.eps,
        })
    }

    /// The names of what is left, all of which must be known to change nothing.
    fn left_out(self, architecture: &str, heads: &[&str]) -> Result<Vec<String>, LoadError> {
        let harmless = |tensor: &Tensor| {
            let own = tensor.name.strip_prefix(self.prefix).unwrap_or(&tensor.name);
            is_buffer(tensor)
                || heads.iter().any(|head| own.starts_with(head) || tensor.name.starts_with(head))
        };
        if let Some(tensor) =
            self.by_name.values().filter(|tensor| !harmless(tensor)).min_by_key(|tensor| &tensor.name)
        {
            return Err(LoadError::Unsupported {
                file: tensor.file.to_string(),
                key: format!("tensor {}", tensor.name),
                value: format!("{:?} of {}", tensor.shape, tensor.dtype),
                reason: format!(
                    "a {architecture} model with these settings does not use it, and leaving it out could change the \
                     model"
                ),
            });
        }
        let mut names: Vec<String> = self.by_name.into_keys().collect();
        names.sort_unstable();
        Ok(names)
    }
}

/// Numbers that follow from the configuration and that the library has saved with weights.
fn is_buffer(tensor: &Tensor) -> bool {
    let integers = matches!(tensor.dtype, DType::I64 | DType::I32);
    let ends = |end: &str| tensor.name.ends_with(end);
    (integers && (ends("position_ids") || ends("token_type_ids"))) || ends("rotary_emb.inv_freq")
}
