//! Reads [`EmbeddingSpec`] from a model's files: sentence-transformers' `modules.json` and the files it names, or
//! GGUF's `pooling_type`. An unsupported module is an error that names it.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use super::{EmbeddingSpec, Lexical, Module, Pooling, Splade};
use crate::error::{LoadError, shorten};
use crate::gguf::Metadata;
use crate::head::{HeadActivation, HeadLayer, HeadNorm};
use crate::limits::{CONTEXT_TOKENS_MAX, EMBEDDING_MODULES_MAX, WIDTH_MAX};
use crate::load::{TextFile, weights};
use crate::pytorch;
use crate::spec::Config;
use crate::tensor::Tensor;

/// Maximum bytes of a prompt in the model's files.
const PROMPT_BYTES_MAX: usize = 1 << 16;

/// Reads the settings of a Hugging Face directory whose network has `hidden` elements; `None` if its files have
/// none.
pub(crate) fn read(directory: &Path, hidden: usize) -> Result<Option<EmbeddingSpec>, LoadError> {
    let modules_path = directory.join("modules.json");
    if !modules_path.exists() {
        return Ok(None);
    }
    let mut spec =
        EmbeddingSpec { stated: true, pooling: Vec::new(), ..EmbeddingSpec::plain(Pooling::Mean, false) };
    let mut width = hidden;
    for (kind, folder) in module_list(directory, &modules_path)? {
        let unsupported = |reason: &str| LoadError::Unsupported {
            file: modules_path.display().to_string(),
            key: "type".into(),
            value: kind.clone(),
            reason: reason.to_owned(),
        };
        match kind.as_str() {
            "Transformer" | "MLMTransformer" => transformer(directory, &folder, &mut spec)?,
            "Pooling" => {
                pooling(&folder, &mut spec)?;
                width = hidden * spec.pooling.len();
            }
            "Dense" => {
                let dense = dense(&folder, width)?;
                width = dense.outputs;
                spec.modules.push(Module::Dense(dense));
            }
            "LayerNorm" => spec.modules.push(layer_norm(&folder, width)?),
            "Normalize" => spec.modules.push(Module::Normalize),
            "Dropout" => {} // only acts during training
            "SpladePooling" => spec.splade = splade(&folder)?,
            _ => {
                return Err(unsupported(
                    "Transformer, MLMTransformer, Pooling, Dense, LayerNorm, Normalize, Dropout and SpladePooling are",
                ));
            }
        }
    }
    if spec.pooling.is_empty() {
        spec.pooling = vec![Pooling::Mean];
    }
    prompts(directory, &mut spec)?;
    spec.lexical = lexical(directory, hidden)?;
    Ok(Some(spec))
}

/// Folder of the network: the directory itself, or the folder that `modules.json` names. (In the first releases of
/// sentence-transformers the directory has another `config.json`.)
pub(crate) fn network_folder(directory: &Path) -> Result<PathBuf, LoadError> {
    let modules_path = directory.join("modules.json");
    if !modules_path.exists() {
        return Ok(directory.to_owned());
    }
    let modules = module_list(directory, &modules_path)?;
    let network = modules
        .into_iter()
        .find(|(kind, _)| matches!(kind.as_str(), "Transformer" | "MLMTransformer" | "CLIPModel"));
    let folder = network.map(|(_, folder)| folder).filter(|folder| folder.join("config.json").exists());
    Ok(folder.unwrap_or_else(|| directory.to_owned()))
}

/// Modules as pairs of the last segment of their type and their folder.
fn module_list(directory: &Path, path: &Path) -> Result<Vec<(String, PathBuf)>, LoadError> {
    let corrupt =
        |reason: String| LoadError::Corrupt { file: path.display().to_string(), what: "file".into(), reason };
    let list = TextFile::Settings.read_list(path)?;
    if list.len() > EMBEDDING_MODULES_MAX {
        return Err(corrupt(format!("{} modules; at most {EMBEDDING_MODULES_MAX} are possible", list.len())));
    }
    let module = |entry: Value| {
        let text = |key: &str| entry.get(key).and_then(Value::as_str);
        let kind =
            text("type").ok_or_else(|| corrupt(format!("{} has no type", shorten(entry.to_string()))))?;
        let folder = Path::new(text("path").unwrap_or_default());
        // A name could point outside the model.
        if !folder.components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(corrupt(format!("path {} is not a folder of the model", folder.display())));
        }
        let kind = kind.rsplit('.').next().unwrap_or_default().to_owned();
        Ok((kind, directory.join(folder)))
    };
    list.into_iter().map(module).collect()
}

fn config(folder: &Path, name: &str) -> Result<Config, LoadError> {
    let path = folder.join(name);
    Ok(Config::new(path.display().to_string(), TextFile::Settings.read_object(&path)?))
}

fn config_if(folder: &Path, name: &str) -> Result<Option<Config>, LoadError> {
    if folder.join(name).exists() { config(folder, name).map(Some) } else { Ok(None) }
}

/// Names that `sentence_bert_config.json` has had over the years.
const TRANSFORMER_CONFIGS: &[&str] = &[
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];

fn transformer(directory: &Path, folder: &Path, spec: &mut EmbeddingSpec) -> Result<(), LoadError> {
    for (place, name) in [folder, directory]
        .into_iter()
        .flat_map(|place| TRANSFORMER_CONFIGS.iter().map(move |name| (place, name)))
    {
        if let Some(config) = config_if(place, name)? {
            spec.tokens_max = config.count("max_seq_length", CONTEXT_TOKENS_MAX)?;
            spec.lowercase = config.bool("do_lower_case")?.unwrap_or(false);
            break;
        }
    }
    Ok(())
}

/// Older settings for the pooling modes: one switch for each.
const POOLING_SWITCHES: &[(&str, Pooling)] = &[
    ("pooling_mode_cls_token", Pooling::Cls),
    ("pooling_mode_max_tokens", Pooling::Max),
    ("pooling_mode_mean_tokens", Pooling::Mean),
    ("pooling_mode_mean_sqrt_len_tokens", Pooling::MeanSqrtLen),
    ("pooling_mode_weightedmean_tokens", Pooling::WeightedMean),
    ("pooling_mode_lasttoken", Pooling::Last),
];

fn pooling(folder: &Path, spec: &mut EmbeddingSpec) -> Result<(), LoadError> {
    let config = config(folder, "config.json")?;
    let named = |value: &Value| {
        let mode = value.as_str().and_then(Pooling::by_name);
        mode.ok_or_else(|| {
            let names = Pooling::ALL.map(Pooling::name).join(", ");
            config.unsupported("pooling_mode", value, format!("{names} are"))
        })
    };
    let modes = match config.get("pooling_mode") {
        Some(Value::Array(values)) => values.iter().map(named).collect::<Result<Vec<_>, _>>()?,
        Some(value) => vec![named(value)?],
        None => {
            let mut modes = Vec::new();
            for &(key, mode) in POOLING_SWITCHES {
                if config.bool(key)?.unwrap_or(false) {
                    modes.push(mode);
                }
            }
            modes
        }
    };
    if modes.len() > Pooling::ALL.len() {
        return Err(config.corrupt("pooling_mode", format!("{} modes", modes.len())));
    }
    spec.pooling = if modes.is_empty() { vec![Pooling::Mean] } else { modes };
    spec.include_prompt = config.bool("include_prompt")?.unwrap_or(true);
    Ok(())
}

fn dense(folder: &Path, width: usize) -> Result<HeadLayer, LoadError> {
    let config = config(folder, "config.json")?;
    let inputs = config.required("in_features", WIDTH_MAX)?;
    let outputs = config.required("out_features", WIDTH_MAX)?;
    if inputs != width {
        let reason = format!("{inputs}, and what comes before has {width} elements");
        return Err(config.corrupt("in_features", reason));
    }
    if config.bool("use_residual")?.unwrap_or(false) {
        return Err(config.unsupported("use_residual", "true", "only false is"));
    }
    for key in ["module_input_name", "module_output_name"] {
        if let Some(name) = config.string(key)?.filter(|&name| name != "sentence_embedding") {
            return Err(config.unsupported(key, name, "only sentence_embedding is"));
        }
    }
    let activation = match config.string("activation_function")? {
        None => HeadActivation::Tanh,
        Some(name) => match name.rsplit('.').next().unwrap_or_default() {
            "Identity" => HeadActivation::Identity,
            "Tanh" => HeadActivation::Tanh,
            "Sigmoid" => HeadActivation::Sigmoid,
            "ReLU" => HeadActivation::Relu,
            "GELU" => HeadActivation::Gelu,
            "SiLU" => HeadActivation::Silu,
            _ => {
                let known = "Identity, Tanh, Sigmoid, ReLU, GELU and SiLU are";
                return Err(config.unsupported("activation_function", name, known));
            }
        },
    };
    let mut tensors = tensors(folder)?;
    let weight = take(&mut tensors, folder, "linear.weight", &[outputs, inputs])?;
    let bias = match config.bool("bias")?.unwrap_or(true) {
        true => Some(take(&mut tensors, folder, "linear.bias", &[outputs])?),
        false => None,
    };
    Ok(HeadLayer { weight, bias, inputs, outputs, activation, norm: None })
}

fn layer_norm(folder: &Path, width: usize) -> Result<Module, LoadError> {
    let mut tensors = tensors(folder)?;
    let weight = take(&mut tensors, folder, "norm.weight", &[width])?;
    let bias = Some(take(&mut tensors, folder, "norm.bias", &[width])?);
    // epsilon of torch.nn.LayerNorm, which the files do not state
    Ok(Module::LayerNorm(HeadNorm { weight, bias, eps: 1e-5 }))
}

fn splade(folder: &Path) -> Result<Splade, LoadError> {
    let config = config(folder, "config.json")?;
    let sums = match config.string("pooling_strategy")?.unwrap_or("max") {
        "max" => false,
        "sum" => true,
        other => return Err(config.unsupported("pooling_strategy", other, "max and sum are")),
    };
    let log_twice = match config.string("activation_function")?.unwrap_or("relu") {
        "relu" => false,
        "log1p_relu" => true,
        other => return Err(config.unsupported("activation_function", other, "relu and log1p_relu are")),
    };
    Ok(Splade { sums, log_twice })
}

/// Reads BGE-M3's layer of token weights.
fn lexical(directory: &Path, hidden: usize) -> Result<Option<Lexical>, LoadError> {
    let path = directory.join("sparse_linear.pt");
    if !path.exists() {
        return Ok(None);
    }
    let mut tensors = by_name(pytorch::open(&path)?);
    let weight = take(&mut tensors, &path, "weight", &[1, hidden])?;
    let bias = take(&mut tensors, &path, "bias", &[1])?[0];
    Ok(Some(Lexical { weight, bias, special: Vec::new() }))
}

fn tensors(folder: &Path) -> Result<BTreeMap<String, Tensor>, LoadError> {
    Ok(by_name(weights::open(folder)?.tensors))
}

fn by_name(tensors: Vec<Tensor>) -> BTreeMap<String, Tensor> {
    tensors.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect()
}

fn take(
    tensors: &mut BTreeMap<String, Tensor>,
    folder: &Path,
    name: &str,
    shape: &[usize],
) -> Result<Vec<f32>, LoadError> {
    let missing = || LoadError::Missing {
        file: folder.display().to_string(),
        what: format!("tensor {name} {shape:?}"),
        hint: String::new(),
    };
    let tensor = tensors.remove(name).ok_or_else(missing)?;
    tensor.check_shape(shape)?;
    tensor.to_f32()
}

fn prompts(directory: &Path, spec: &mut EmbeddingSpec) -> Result<(), LoadError> {
    let Some(config) = config_if(directory, "config_sentence_transformers.json")? else { return Ok(()) };
    if let Some(prompts) = config.typed("prompts", "an object of texts", Value::as_object)? {
        for (name, prompt) in prompts {
            let text = prompt.as_str().filter(|text| text.len() <= PROMPT_BYTES_MAX);
            let text = text.ok_or_else(|| {
                config.corrupt(
                    "prompts",
                    format!("{name:?} is no text, or longer than {PROMPT_BYTES_MAX} bytes"),
                )
            })?;
            spec.prompts.insert(name.clone(), text.to_owned());
        }
    }
    if let Some(name) = config.string("default_prompt_name")? {
        if !spec.prompts.contains_key(name) {
            return Err(config.corrupt("default_prompt_name", format!("there is no prompt {name:?}")));
        }
        spec.default_prompt = Some(name.to_owned());
    }
    Ok(())
}

/// Default system prompt of Qwen3-VL-Embedding, from its makers' code.
const REPRESENT: &str = "Represent the user's input.";

/// Adds the system prompt if the model `name` is a Qwen3-VL-Embedding model. Its files equal those of the chat model. It
/// is recognised by sentence-transformers' files, by the pooling settings, or else by its name. `seeing` is the
/// architecture of a decoder with a tower for pictures.
pub(crate) fn asking(spec: EmbeddingSpec, seeing: Option<&str>, name: &str) -> EmbeddingSpec {
    let sees = seeing.is_some_and(|architecture| architecture.starts_with("qwen3"));
    let is_named = name.to_ascii_lowercase().replace('_', "-").contains("qwen3-vl-embedding");
    if !sees || !(spec.stated || is_named) {
        return spec;
    }
    let told = spec.default_prompt.as_ref().and_then(|name| spec.prompts.get(name));
    let told = told.filter(|told| !told.trim().is_empty()).cloned();
    EmbeddingSpec { stated: true, asks: Some(told.unwrap_or_else(|| REPRESENT.to_owned())), ..spec }
}

/// Reads the settings of a GGUF file; `None` if it has none. Vectors are normalised to length 1, as in llama.cpp.
pub(crate) fn of_gguf(metadata: &Metadata, architecture: &str) -> Result<Option<EmbeddingSpec>, LoadError> {
    let key = format!("{architecture}.pooling_type");
    let mode = match metadata.u32(&key)? {
        None | Some(0) => return Ok(None),
        Some(1) => Pooling::Mean,
        // 4 is a reranker. For encoders its classifier reads the first row; for decoders see the embedder.
        Some(2) => Pooling::Cls,
        Some(3) => Pooling::Last,
        Some(4) => Pooling::Last,
        Some(other) => {
            return Err(LoadError::Unsupported {
                file: metadata.file().to_owned(),
                key,
                value: other.to_string(),
                reason: "1 (mean), 2 (cls), 3 (last) and 4 (rank) are".into(),
            });
        }
    };
    Ok(Some(EmbeddingSpec { stated: true, ..EmbeddingSpec::plain(mode, true) }))
}
