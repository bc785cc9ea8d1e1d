//! Adapters as saved by PEFT: `base_model.model.model.layers.N.self_attn.q_proj.lora_A.weight` and `lora_B`, with the
//! settings of `config`. Magnitudes, biases, and modules that replace the model's have their own names.

use std::collections::BTreeMap;
use std::path::Path;

use hanzo_engine_ops::DType;

use super::config::Settings;
use super::delta::DeltaMaker;
use super::{Adapter, AdapterBase, FileContent, FileDelta, Matrices, refused, shapes};
use crate::error::LoadError;
use crate::json;
use crate::limits::SETTINGS_VALUES_MAX;
use crate::load::TextFile;
use crate::mapped::ModelBytes;
use crate::spec::{Config, LayerPart, Part, TransformerSpec, Weight, huggingface_names};
use crate::tensor::Tensor;
use crate::{pytorch, safetensors};

const SETTINGS: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
const PICKLED: &str = "adapter_model.bin";

pub(super) fn open(directory: &Path, base: &AdapterBase<'_>) -> Result<Adapter, LoadError> {
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
    adapter(&directory.display().to_string(), settings, tensors, base)
}

pub(super) fn parse(
    file: &str,
    config: &[u8],
    weights: &ModelBytes,
    base: &AdapterBase<'_>,
) -> Result<Adapter, LoadError> {
    let settings = json::object(config, SETTINGS_VALUES_MAX, None).map_err(|error| LoadError::Corrupt {
        file: file.to_owned(),
        what: SETTINGS.into(),
        reason: error.to_string(),
    })?;
    adapter(file, Config::new(SETTINGS, settings), safetensors::parse(WEIGHTS, weights)?, base)
}

fn adapter(
    file: &str,
    settings: Config,
    tensors: Vec<Tensor>,
    base: &AdapterBase<'_>,
) -> Result<Adapter, LoadError> {
    let spec = base.spec;
    let names = huggingface_names(&spec.architecture);
    let settings = Settings::read(settings)?;
    let mut files: BTreeMap<String, FileDelta> = BTreeMap::new();
    for tensor in tensors {
        let (module, role) = place_of(&tensor)?;
        let module = module.to_owned();
        let found =
            files.entry(module.clone()).or_insert_with(|| FileDelta { module, ..FileDelta::default() });
        match role {
            TensorRole::A => FileDelta::put(&mut found.a, tensor)?,
            TensorRole::EmbeddingA => FileDelta::put(&mut found.embedding_a, tensor)?,
            TensorRole::B => FileDelta::put(&mut found.b, tensor)?,
            TensorRole::BiasOfB => FileDelta::put(&mut found.b_bias, column(tensor))?,
            TensorRole::Magnitude => FileDelta::put(&mut found.magnitude, column(tensor))?,
            TensorRole::Weight => FileDelta::put(&mut found.weight, tensor)?,
            TensorRole::Bias => FileDelta::put(&mut found.bias, column(tensor))?,
            TensorRole::Base => {
                // PEFT also saves the base of an adapted embedding.
                let own = [spec.vocab, spec.hidden];
                if tensor.shape.len() == 2 && tensor.shape != own {
                    let (rows, vocab) = (tensor.shape[0], spec.vocab);
                    let reason = format!(
                        "the adapter has {rows} tokens and the model {vocab}: merge it into its model and load that"
                    );
                    return Err(refused(&tensor, reason));
                }
            }
        }
    }
    // If one name of a pair is wrong, A tells which.
    if let Some(half) = files.values().find(|found| found.a.is_some() && found.b.is_none()) {
        half.halves(file)?;
    }
    let shapes = shapes(spec);
    let reader = ModuleReader {
        spec,
        settings: &settings,
        matrices: Matrices::new(spec, names, names.prefix),
        maker: DeltaMaker { base, shapes: &shapes, permuted: false },
        inputs_first: names.inputs_first,
    };
    let mut deltas = BTreeMap::new();
    for (module, found) in files {
        reader.read(file, &module, found, &mut deltas)?;
    }
    for part in [Part::TokenEmbedding, Part::Head] {
        settings.check_ties(spec.head.tied(), deltas.get(&part.weight()))?;
    }
    // Names and rows are the transformers library's.
    let content = FileContent { file: file.to_owned(), format: "peft", permuted: false, deltas };
    Adapter::checked(content, base, |found, a| {
        settings.scale(&found.module, found.b.as_ref().unwrap_or(a), a)
    })
}

/// Mapping from a file's modules to the model's weights.
struct ModuleReader<'a> {
    spec: &'a TransformerSpec,
    settings: &'a Settings,
    matrices: Matrices<'a>,
    maker: DeltaMaker<'a>,
    inputs_first: bool,
}

impl ModuleReader<'_> {
    fn read(
        &self,
        file: &str,
        module: &str,
        mut found: FileDelta,
        deltas: &mut BTreeMap<Weight, FileDelta>,
    ) -> Result<(), LoadError> {
        self.settings.check_kind(file, &found)?;
        if let Some(a) = found.embedding_a.take() {
            FileDelta::put(&mut found.a, turned(&a)?)?;
        }
        if found.a.is_some() || found.b.is_some() || found.magnitude.is_some() || found.b_bias.is_some() {
            let (a, b) = found.halves(file)?;
            for (weight, rows) in self.matrices.parts(module, b)?.into_iter().flatten() {
                self.settings.check_target(&rows, module, weight)?;
                check_rows(self.spec, weight).map_err(|reason| refused(&rows, reason))?;
                let of = deltas.entry(weight).or_insert_with(|| named(module));
                FileDelta::put(&mut of.a, a.clone()).map_err(|_| under_two_names(a))?;
                FileDelta::put(&mut of.b, rows)?;
            }
            for (tensor, place) in
                [(&found.magnitude, TensorRole::Magnitude), (&found.b_bias, TensorRole::BiasOfB)]
            {
                let Some(tensor) = tensor else { continue };
                for (weight, rows) in self.matrices.parts(module, tensor)?.into_iter().flatten() {
                    let of = deltas.entry(weight).or_insert_with(|| named(module));
                    let place =
                        if place == TensorRole::Magnitude { &mut of.magnitude } else { &mut of.b_bias };
                    FileDelta::put(place, rows)?;
                }
            }
        }
        if let Some(weight) = found.weight.take() {
            let is_matrix = weight.shape.len() == 2;
            let turns = self.inputs_first && is_matrix && module.split('.').any(is_number);
            let weight = if turns { turned(&weight)? } else { weight };
            let weight = if is_matrix { weight } else { column(weight) };
            self.replace(module, &weight, false, deltas)?;
        }
        if let Some(bias) = found.bias.take() {
            self.replace(module, &bias, true, deltas)?;
        }
        Ok(())
    }

    /// A module's weight or bias that replaces the model's.
    fn replace(
        &self,
        module: &str,
        tensor: &Tensor,
        bias: bool,
        deltas: &mut BTreeMap<Weight, FileDelta>,
    ) -> Result<(), LoadError> {
        for (of, rows) in self.matrices.find(module, tensor)?.into_iter().flatten() {
            let weight = Weight { bias, ..of.weight };
            // The addend to a state's step is no bias of its matrix.
            let is_step = bias && matches!(weight.part, Part::Layer(_, LayerPart::StateStep));
            let has_own = !is_step && self.maker.shapes.contains_key(&weight);
            if has_own && self.maker.is_own(weight, &rows)? {
                continue;
            }
            of.reason.map_err(|reason| refused(tensor, reason))?;
            if !has_own {
                return Err(refused(tensor, format!("the model's {module} has no such bias")));
            }
            check_rows(self.spec, of.weight).map_err(|reason| refused(tensor, reason))?;
            let of = deltas.entry(of.weight).or_insert_with(|| named(module));
            let place = if bias { &mut of.bias } else { &mut of.weight };
            FileDelta::put(place, rows).map_err(|_| under_two_names(tensor))?;
        }
        Ok(())
    }
}

fn named(module: &str) -> FileDelta {
    FileDelta { module: module.to_owned(), ..FileDelta::default() }
}

fn under_two_names(tensor: &Tensor) -> LoadError {
    tensor.corrupt("its matrix is there twice, under two names")
}

fn is_number(part: &str) -> bool {
    !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit())
}

/// A vector as a matrix of one column.
fn column(tensor: Tensor) -> Tensor {
    Tensor { shape: vec![tensor.elements(), 1], ..tensor }
}

/// Transpose of a matrix, as F32.
fn turned(matrix: &Tensor) -> Result<Tensor, LoadError> {
    let &[rows, cols] = matrix.shape.as_slice() else {
        return Err(refused(matrix, "it is no matrix"));
    };
    let numbers = matrix.decoded()?;
    let by_column = (0..cols).flat_map(|col| (0..rows).map(move |row| row * cols + col));
    let bytes: Vec<u8> = by_column.flat_map(|at| numbers[at].to_le_bytes()).collect();
    Ok(Tensor { dtype: DType::F32, shape: vec![cols, rows], bytes: bytes.into(), ..matrix.clone() })
}

/// Checks that the model has a matrix's rows in the published order, or permuted ([`TransformerSpec::permuted`]).
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

/// Role of a tensor in its module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TensorRole {
    A,
    B,
    BiasOfB,
    EmbeddingA,
    Magnitude,
    Weight,
    Bias,
    Base,
}

/// Module of a tensor, and its role in it.
fn place_of(tensor: &Tensor) -> Result<(&str, TensorRole), LoadError> {
    const INFIXES: [(&str, TensorRole); 5] = [
        (".lora_embedding_A", TensorRole::EmbeddingA),
        (".lora_embedding_B", TensorRole::B),
        (".lora_magnitude_vector", TensorRole::Magnitude),
        (".lora_A", TensorRole::A),
        (".lora_B", TensorRole::B),
    ];
    let name = tensor.name.as_str();
    let name = name.strip_prefix("base_model.model.").unwrap_or(name);
    for (infix, role) in INFIXES {
        let Some((module, rest)) = name.rsplit_once(infix) else { continue };
        // The adapter's own name may follow.
        let role = match (role, rest.ends_with(".bias")) {
            (TensorRole::B, true) => TensorRole::BiasOfB,
            (role, false) if rest.is_empty() || rest.starts_with('.') => role,
            _ => continue,
        };
        return Ok((module, role));
    }
    if name.contains(".lora_") {
        return Err(refused(tensor, "it is neither lora_A nor lora_B, nor a magnitude"));
    }
    let (module, role) = match (name.strip_suffix(".weight"), name.strip_suffix(".bias")) {
        (Some(module), _) => (module, TensorRole::Weight),
        (_, Some(module)) => (module, TensorRole::Bias),
        _ => {
            return Err(refused(
                tensor,
                "it is neither of a pair, nor a weight or bias in place of the model's",
            ));
        }
    };
    if let Some(module) = module.strip_suffix(".base_layer") {
        return Ok((module, if role == TensorRole::Weight { TensorRole::Base } else { role }));
    }
    match module.rsplit_once(".modules_to_save") {
        Some((module, rest)) if rest.is_empty() || rest.starts_with('.') => Ok((module, role)),
        _ => Ok((module, role)),
    }
}
