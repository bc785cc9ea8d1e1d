//! An encoder on disk, opened: what it is, its text files, its weights by the names of
//! [`crate::spec::Weight`], and its head.
//! Opening reads headers, the head's few numbers, and checks every shape against the spec.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::families::{self, ClassifierPlan, Task, dual};
use crate::embedding::{EmbeddingSpec, Module};
use crate::error::LoadError;
use crate::gguf::Gguf;
use crate::head::{self, Classifier, Head, HeadActivation, HeadLayer, HeadNorm, Scores};
use crate::limits::LABELS_MAX;
use crate::load::{
    Found, ModelInfo, Tensors, TextFiles, check_tokens, huggingface, quantised, size_bytes,
    weights::{self, Weights},
};
use crate::overrides::Overrides;
use crate::spec::{Config, HeadSpec, Part, TransformerSpec};
use crate::vision::TowerFiles;

/// An opened encoder.
#[derive(Debug)]
pub struct EncoderFiles {
    /// What it is.
    pub info: ModelInfo,
    /// How it is run.
    pub spec: TransformerSpec,
    /// Its text files.
    pub text: TextFiles,
    /// What its class puts on top.
    pub head: Option<Head>,
    /// Tensors that were left out because they change nothing here: buffers, and heads of other tasks.
    pub left_out: Vec<String>,
    /// Its weights.
    pub tensors: Tensors,
    /// How its hidden states become vectors, where its own class says so.
    pub(crate) embedding: Option<EmbeddingSpec>,
    /// What sees pictures for it, if something does.
    pub tower: Option<TowerFiles>,
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
        Self::from_directory_with(directory, config, &Overrides::default())
    }

    /// The same with what is said in place of the directory's text files; of those of `config` it has been put there.
    pub(crate) fn from_directory_with(
        directory: &Path,
        config: &Config,
        overrides: &Overrides,
    ) -> Result<Self, LoadError> {
        let name = directory.display().to_string();
        let Some(family) = families::family_of(config)? else {
            let value = config.get("model_type").map(ToString::to_string).unwrap_or_default();
            return Err(config.unsupported("model_type", value, "it is no encoder's"));
        };
        let Weights { tensors, files, format } = weights::open(directory)?;
        let mut config = config.clone();
        let quantised = quantised::Settings::take(&mut config, directory)?;
        let (tensors, rounded) = match &quantised {
            Some(settings) => quantised::assemble(settings, tensors)?,
            None => (tensors, None),
        };
        let (beside, tensors): (Vec<_>, Vec<_>) = tensors.into_iter().partition(|tensor| {
            family.sees() && dual::SEEING.iter().any(|start| tensor.name.starts_with(start))
        });
        if tensors.iter().any(|tensor| tensor.name.ends_with(families::JINA_CODE_TENSOR)) {
            config.set(families::JINA_CODE_KEY, true.into());
        }
        let config = &config;
        let (plan, task) = family.plan(config)?;
        let text = overrides.text_files(directory, config, None)?;
        check_tokens(&name, plan.spec.vocab, &text)?;
        let mut found = Found::new(&name, &plan.names, tensors)?;
        let mut spec = plan.spec;
        // Files of embedding models often name the class of masked language models and leave its head out.
        if task == Task::MaskedLm
            && let Some(head) = plan.masked_lm
            && found.get(&found.name(Part::LmDense.weight())).is_some()
        {
            spec.head = HeadSpec::MaskedLm(head);
        }
        found.settle_head(&mut spec)?;
        let tensors = found.resolve(&spec)?;
        let head = match task {
            Task::Classifier => {
                let labels = Labels::from_config(config)?;
                Some(Head::Classifier(read_classifier(&mut found, &spec, &plan.classifier, labels)?))
            }
            Task::MaskedLm => spec.head.masked_lm().map(|_| Head::MaskedLm),
            Task::Encoder => None,
        };
        let mut parameters = tensors.parameters() + head.as_ref().map_or(0, Head::parameters);
        let words = huggingface::tokenizer_config(directory)?;
        let vectors = dual::vectors(config, words.as_ref(), spec.hidden)?;
        let embedding =
            vectors.map(|vectors| with_projection(&mut found, vectors, spec.hidden)).transpose()?;
        let width = embedding.as_ref().map(|embedding| embedding.dimensions(spec.hidden));
        let tower = width.map(|width| TowerFiles::of_pairs(directory, config, beside, width));
        let tower = tower.transpose()?.flatten();
        parameters += tower.as_ref().map_or(0, TowerFiles::parameters);
        let blind = embedding.is_some() && tower.is_none();
        let left_out = found.left_out(&spec.architecture, plan.heads)?;
        let info = ModelInfo {
            name: huggingface::name_of(directory),
            format,
            architecture: spec.architecture.clone(),
            quantization: rounded.unwrap_or_else(|| tensors.dominant_type()),
            parameters,
            size_bytes: size_bytes(&files)?,
            context_tokens_max: spec.context_tokens_max,
            license: None,
            not_read: if blind { &["images"] } else { &[] },
            files,
        };
        Ok(Self { info, spec, text, head, left_out, tensors, embedding, tower })
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
        let tensors = found.resolve(&plan.spec)?;
        let mut parameters = tensors.parameters();
        let head = match &plan.classifier {
            None => None,
            Some(classifier) => {
                let labels = Labels { names: plan.labels, problem: None };
                let head = Head::Classifier(read_classifier(&mut found, &plan.spec, classifier, labels)?);
                parameters += head.parameters();
                Some(head)
            }
        };
        let left_out = found.left_out(&plan.spec.architecture, &[])?;
        let file_type = crate::load::gguf::file_type(&metadata)?;
        let info = ModelInfo {
            name: metadata.string("general.name")?.unwrap_or(fallback_name).to_owned(),
            format: "gguf",
            architecture: plan.spec.architecture.clone(),
            quantization: file_type.unwrap_or_else(|| tensors.dominant_type()),
            parameters,
            size_bytes: if files.is_empty() { bytes_in_memory } else { size_bytes(&files)? },
            context_tokens_max: plan.spec.context_tokens_max,
            license: metadata.string("general.license")?.map(str::to_owned),
            not_read: &[],
            files,
        };
        let (embedding, tower) = (None, None);
        Ok(Self { info, spec: plan.spec, text, head, left_out, tensors, embedding, tower })
    }
}

impl Head {
    /// Number of parameters that are not among the network's tensors.
    fn parameters(&self) -> u64 {
        match self {
            Head::Classifier(classifier) => classifier.layers.iter().map(HeadLayer::parameters).sum(),
            Head::MaskedLm => 0,
        }
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

/// What becomes of hidden states, with the matrix that a file has for it besides the network.
fn with_projection(
    found: &mut Found<'_>,
    vectors: dual::Vectors,
    hidden: usize,
) -> Result<EmbeddingSpec, LoadError> {
    let dual::Vectors { projection, bias, dimensions, mut embedding } = vectors;
    let weight = found.take(&format!("{projection}.weight"), &[dimensions, hidden])?;
    let bias = match bias {
        true => Some(found.take(&format!("{projection}.bias"), &[dimensions])?),
        false => None,
    };
    let layer = head::layer(&weight, bias.as_ref(), HeadActivation::Identity, None)?;
    embedding.modules.insert(0, Module::Dense(layer));
    Ok(embedding)
}

/// A classifier's layers, from what a file has besides the network.
fn read_classifier(
    found: &mut Found<'_>,
    spec: &TransformerSpec,
    plan: &ClassifierPlan,
    labels: Labels,
) -> Result<Classifier, LoadError> {
    let mut layers: Vec<HeadLayer> = Vec::with_capacity(plan.layers.len());
    for (index, layer) in plan.layers.iter().enumerate() {
        let prefix = if layer.in_encoder { found.prefix() } else { "" };
        let name = format!("{prefix}{}.weight", layer.name);
        let inputs = layers.last().map_or(spec.hidden, |before| before.outputs);
        let last = index + 1 == plan.layers.len();
        let rows = match (&labels.names, found.get(&name)) {
            _ if !last => spec.hidden,
            (Some(names), _) => names.len(),
            (None, Some(tensor)) => tensor.shape.first().map_or(0, |&rows| rows.min(LABELS_MAX)),
            (None, None) => 2,
        };
        let weight = found.take(&name, &[rows, inputs])?;
        let bias = match layer.bias {
            true => Some(found.take(&format!("{prefix}{}.bias", layer.name), &[rows])?),
            false => None,
        };
        let norm = match layer.norm {
            Some(norm) => Some(read_norm(found, spec, norm, rows)?),
            None => None,
        };
        layers.push(head::layer(&weight, bias.as_ref(), layer.activation, norm)?);
    }
    let Some(count) = layers.last().map(|layer| layer.outputs) else {
        return Err(LoadError::Unsupported {
            file: found.file().to_owned(),
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

fn read_norm(
    found: &mut Found<'_>,
    spec: &TransformerSpec,
    name: &str,
    width: usize,
) -> Result<HeadNorm, LoadError> {
    Ok(HeadNorm {
        weight: found.take(&format!("{name}.weight"), &[width])?.to_f32()?,
        bias: match spec.norm_bias() {
            true => Some(found.take(&format!("{name}.bias"), &[width])?.to_f32()?),
            false => None,
        },
        eps: spec.norm.eps,
    })
}
