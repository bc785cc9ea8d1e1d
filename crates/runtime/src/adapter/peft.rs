//! Adapters as PEFT saves them: `base_model.model.model.layers.N.self_attn.q_proj.lora_A.weight` and `lora_B`, beside the
//! settings of `config`.

use std::collections::BTreeMap;
use std::path::Path;

use hanzo_engine_kernels::RopeKind;

use super::config::Settings;
use super::{Adapter, Half, Read, adaptable, refused};
use crate::error::LoadError;
use crate::json;
use crate::limits::SETTINGS_VALUES_MAX;
use crate::load::TextFile;
use crate::mapped::ModelBytes;
use crate::spec::{Config, Names, TransformerSpec, Weight};
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
    let settings = Settings::read(settings)?;
    let names = Names::of_model_type(&spec.architecture);
    let by_name = adaptable(spec, |weight| names.of(names.prefix, weight));
    let mut halves: BTreeMap<Weight, Half> = BTreeMap::new();
    let mut modules: BTreeMap<Weight, String> = BTreeMap::new();
    for tensor in tensors {
        let (module, is_a) = module_of(&tensor)?;
        let module = module.to_owned();
        // Saved of the network alone, names lack the prefix of the class that generates.
        let whole = format!("{}{module}", names.prefix);
        let weight = match by_name.get(&module).or_else(|| by_name.get(&whole)) {
            Some(Ok(weight)) => *weight,
            Some(Err(reason)) => return Err(refused(&tensor, *reason)),
            None => {
                return Err(refused(
                    &tensor,
                    format!("the model has no {module}; load an adapter made for it"),
                ));
            }
        };
        settings.check_target(&tensor, &module, weight)?;
        let half = halves.entry(weight).or_default();
        let half = if is_a { &mut half.a } else { &mut half.b };
        if half.is_some() {
            return Err(LoadError::Corrupt {
                file: tensor.file.to_string(),
                what: format!("tensor {}", tensor.name),
                reason: "its matrix is there twice".into(),
            });
        }
        *half = Some(tensor);
        modules.insert(weight, module);
    }
    // Names and rows are the transformers library's.
    let read = Read { file: file.to_owned(), format: "peft", rope: RopeKind::Neox, halves };
    Adapter::checked(read, spec, |weight, a| settings.scale(&modules[weight], a))
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
