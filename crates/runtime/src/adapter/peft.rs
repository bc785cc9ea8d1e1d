//! Adapters as PEFT saves them: `base_model.model.model.layers.N.self_attn.q_proj.lora_A.weight` and `lora_B`, beside the
//! settings of `config`.

use std::collections::BTreeMap;
use std::path::Path;

use super::config::Settings;
use super::{Adapter, FileContent, FilePair, Matrices, Pair, gguf, refused};
use crate::error::LoadError;
use crate::json;
use crate::limits::SETTINGS_VALUES_MAX;
use crate::load::TextFile;
use crate::mapped::ModelBytes;
use crate::spec::{Config, LayerPart, Names, Part, TransformerSpec, Weight};
use crate::tensor::Tensor;
use crate::{pytorch, safetensors};

const SETTINGS: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
const PICKLED: &str = "adapter_model.bin";

pub(super) fn open(directory: &Path, spec: &TransformerSpec) -> Result<Adapter, LoadError> {
    let path = directory.join(SETTINGS);
    if !path.exists() {
        return Err(LoadError::Missing {
            file: directory.display().to_string(),
            what: SETTINGS.into(),
            hint: "; an adapter is a directory that PEFT has saved, or a GGUF file of an adapter".into(),
        });
    }
    let settings = Config::new(path.display().to_string(), TextFile::Settings.read_object(&path)?);
    let (weights, pickled) = (directory.join(WEIGHTS), directory.join(PICKLED));
    let tensors = match weights.exists() || !pickled.exists() {
        true => safetensors::open(&weights)?,
        false => pytorch::open(&pickled)?,
    };
    adapter(&directory.display().to_string(), settings, tensors, spec)
}

pub(super) fn parse(
    file: &str,
    config: &[u8],
    weights: &ModelBytes,
    spec: &TransformerSpec,
) -> Result<Adapter, LoadError> {
    let settings = json::object(config, SETTINGS_VALUES_MAX, None).map_err(|error| LoadError::Corrupt {
        file: file.to_owned(),
        what: SETTINGS.into(),
        reason: error.to_string(),
    })?;
    adapter(file, Config::new(SETTINGS, settings), safetensors::parse(WEIGHTS, weights)?, spec)
}

fn adapter(
    file: &str,
    settings: Config,
    tensors: Vec<Tensor>,
    spec: &TransformerSpec,
) -> Result<Adapter, LoadError> {
    let names = Names::of_model_type(gguf::model_type(&spec.architecture));
    let settings = Settings::read(settings, names)?;
    let mut files: BTreeMap<String, FilePair> = BTreeMap::new();
    for tensor in tensors {
        let (module, is_a) = module_of(&tensor)?;
        files.entry(module.to_owned()).or_default().put(tensor, is_a)?;
    }
    FilePair::check(files.values(), file)?;
    let matrices = Matrices::new(spec, names, names.prefix);
    let (mut pairs, mut modules) = (BTreeMap::new(), BTreeMap::new());
    for (module, pair) in files {
        let FilePair { a: Some(a), b: Some(b) } = pair else { continue };
        let Some(parts) = matrices.parts(&module, &b)? else { continue };
        for (weight, b) in parts {
            settings.check_target(&b, &module, weight)?;
            check_rows(spec, weight).map_err(|reason| refused(&b, reason))?;
            modules.insert(weight, module.clone());
            if pairs.insert(weight, Pair { a: a.clone(), b, scale: 1.0 }).is_some() {
                return Err(LoadError::Corrupt {
                    file: a.file.to_string(),
                    what: format!("tensor {}", a.name),
                    reason: "its matrix is there twice, under two names".into(),
                });
            }
        }
    }
    // Names and rows are the transformers library's.
    let content = FileContent { file: file.to_owned(), format: "peft", permuted: false, pairs };
    Adapter::checked(content, spec, |weight, a| settings.scale(&modules[weight], a))
}

/// That the model has the rows of a matrix as the published one has them, or permuted ([`TransformerSpec::permuted`]).
fn check_rows(spec: &TransformerSpec, weight: Weight) -> Result<(), &'static str> {
    use LayerPart::{StateBeta, StateGate, StateInput, StateOutput, StateStep};
    let of_state =
        matches!(weight.part, Part::Layer(_, StateInput | StateGate | StateBeta | StateStep | StateOutput));
    match spec.architecture.as_str() {
        "falcon-h1" => {
            Err("GGUF files have this model's multipliers in their matrices: load the model from safetensors")
        }
        "qwen35" | "qwen35moe" if of_state => {
            Err("GGUF files order the heads of linear attention otherwise: load the model from safetensors")
        }
        _ => Ok(()),
    }
}

/// The module that a tensor is of, and whether it is A.
fn module_of(tensor: &Tensor) -> Result<(&str, bool), LoadError> {
    const HALVES: [(&str, bool); 2] = [(".lora_A", true), (".lora_B", false)];
    let name = tensor.name.as_str();
    let name = name.strip_prefix("base_model.model.").unwrap_or(name);
    for (of, reason) in [
        ("lora_embedding_", "embeddings take no adapters here: train it on the layers' projections alone"),
        ("lora_magnitude_vector", "DoRA cannot be computed; save the adapter without use_dora"),
    ] {
        if name.contains(of) {
            return Err(refused(tensor, reason));
        }
    }
    for (half, is_a) in HALVES {
        let Some((module, rest)) = name.rsplit_once(half) else { continue };
        // Between them a name of the adapter's own may stand.
        if rest == ".weight" || rest.starts_with('.') && rest.ends_with(".weight") {
            return Ok((module, is_a));
        }
        if rest.ends_with(".bias") {
            return Err(refused(tensor, "a bias of B (lora_bias) cannot be computed"));
        }
    }
    Err(refused(
        tensor,
        "it is neither lora_A nor lora_B: whole modules (modules_to_save) and biases cannot be exchanged by an adapter",
    ))
}
