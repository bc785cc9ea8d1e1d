//! Quantisation of a folder's matrices to affine groups in MLX's layout: names, files and settings as written by
//! mlx-lm. A matrix is three tensors: `weight` (codes in words of 32 bits), `scales` and `biases`.

use std::fs;
use std::path::{Path, PathBuf};

use hanzo_engine_ops::DType;
use serde_json::{Map, Value, json};

use super::{name_has, unsupported};
use crate::convert;
use crate::error::LoadError;
use crate::load::TextFile;
use crate::model_files::ModelFiles;
use crate::overrides::Overrides;
use crate::safetensors::Written;
use crate::spec::{LayerPart, MlpSpec, Part, huggingface_names};
use crate::tensor::Tensor;

/// Requested quantisation.
#[derive(Clone, Debug)]
pub struct Affine {
    /// Type of matrices: one of [`DType::affine`].
    pub dtype: DType,
    /// Whether the output matrix stays as it is.
    pub keep_output: bool,
    /// Types of matrices by patterns of names, in which `*` stands for any text; the first match counts.
    pub named: Vec<(String, DType)>,
    /// Whether quantised matrices may be quantised again.
    pub requantize: bool,
}

/// Tensor of the new folder.
#[derive(Clone, Debug)]
pub struct FolderTensor {
    /// Source tensor, under its new name.
    pub tensor: Tensor,
    /// Type that a matrix is quantised to. None: it stays as it is.
    pub to: Option<DType>,
}

/// Plan of the new folder.
#[derive(Debug)]
pub struct FolderPlan {
    /// Tensors, in the folder's order.
    pub tensors: Vec<FolderTensor>,
    /// Content of `config.json`.
    pub config: String,
    /// Files that are copied: of the tokenizer, of sampling, and for people.
    pub files: Vec<PathBuf>,
}

/// Extensions of files that accompany weights.
const KEPT_FILES: [&str; 6] = ["json", "jinja", "md", "model", "tiktoken", "txt"];

impl FolderPlan {
    /// Makes the plan.
    ///
    /// # Errors
    /// As opening the folder; `Unsupported` for a model whose matrices have another form in MLX, for one that reads
    /// more than text, for a matrix that is already quantised, and for a name pattern that matches no tensor.
    pub fn new(directory: &Path, wanted: &Affine) -> Result<FolderPlan, LoadError> {
        let (files, _) = ModelFiles::from_directory(directory, &Overrides::default())?;
        let file = directory.display().to_string();
        let mut unused: Vec<&str> = wanted.named.iter().map(|(part, _)| part.as_str()).collect();
        let (mut tensors, mut modules) = (Vec::new(), Map::new());
        for (tensor, fixed) in weights(&files, &file)? {
            unused.retain(|part| !name_has(&tensor.name, part));
            let to = if fixed { None } else { chosen(&tensor, wanted) };
            check(&tensor, to, wanted.requantize)?;
            if let Some(to) = to.filter(|&to| to != wanted.dtype) {
                let stem = tensor.name.trim_end_matches(".weight").to_owned();
                modules.insert(stem, settings(to));
            }
            tensors.push(FolderTensor { tensor, to });
        }
        if let Some(part) = unused.first() {
            return Err(unsupported(&file, "tensor type of", part, "no tensor has such a name"));
        }
        let mut config = TextFile::Settings.read_object(&directory.join("config.json"))?;
        let mut quantization = settings(wanted.dtype);
        if let Some(all) = quantization.as_object_mut() {
            all.extend(modules);
        }
        // Libraries look for either key.
        for key in ["quantization", "quantization_config"] {
            config.insert(key.into(), quantization.clone());
        }
        settle_tied(&mut config, &files);
        let config = format!("{:#}\n", Value::Object(config));
        Ok(FolderPlan { tensors, config, files: kept_files(directory)? })
    }

    /// Runs of tensors, each for a file of at most so many bytes, or of one tensor.
    pub fn shards(&self, bytes_max: u64) -> Vec<&[FolderTensor]> {
        let (mut shards, mut first, mut bytes) = (Vec::new(), 0, 0);
        for (index, placed) in self.tensors.iter().enumerate() {
            let own = placed.bytes();
            if index > first && bytes + own > bytes_max {
                shards.push(&self.tensors[first..index]);
                (first, bytes) = (index, 0);
            }
            bytes += own;
        }
        shards.push(&self.tensors[first..]);
        shards
    }
}

/// Records that a head that differs from the embedding is not tied to it: MLX relies on the configuration alone.
fn settle_tied(config: &mut Map<String, Value>, files: &ModelFiles) {
    if !files.spec.head.has_matrix() {
        return;
    }
    for key in ["tie_word_embeddings", "tie_embedding"] {
        if config.get(key).is_some_and(|tied| *tied == true) {
            config.insert(key.into(), false.into());
        }
    }
    config.entry("tie_word_embeddings").or_insert(false.into());
}

impl FolderTensor {
    /// Size in the new folder in bytes.
    pub fn bytes(&self) -> u64 {
        self.entries().iter().map(|entry| entry.bytes).sum()
    }

    /// Tensors in the new folder: codes, scales and biases of a quantised matrix.
    pub fn entries(&self) -> Vec<Written> {
        let Tensor { name, shape, dtype, .. } = &self.tensor;
        let entry = |name: String, dtype: &'static str, bits: usize, shape: Vec<usize>| {
            let elements: usize = shape.iter().product();
            Written { name, dtype, bytes: (elements * bits / 8) as u64, shape }
        };
        let Some((bits, group)) = self.to.and_then(DType::affine) else {
            let bits = 8 * self.tensor.bytes.len() / self.tensor.elements().max(1);
            return vec![entry(name.clone(), dtype.label(), bits, shape.clone())];
        };
        let of_rows = |columns: usize| [&shape[..shape.len() - 1], &[columns]].concat();
        let columns = shape[shape.len() - 1];
        let stem = name.trim_end_matches(".weight");
        let (factors, size) = match self.factors() {
            DType::F16 => ("F16", 16),
            DType::BF16 => ("BF16", 16),
            _ => ("F32", 32),
        };
        vec![
            entry(name.clone(), "U32", 32, of_rows(columns * bits as usize / 32)),
            entry(format!("{stem}.scales"), factors, size, of_rows(columns / group)),
            entry(format!("{stem}.biases"), factors, size, of_rows(columns / group)),
        ]
    }

    /// Type of scales and biases: the matrix's own floats.
    pub fn factors(&self) -> DType {
        match self.tensor.dtype {
            dtype @ (DType::F16 | DType::BF16) => dtype,
            _ => DType::F32,
        }
    }
}

fn settings(dtype: DType) -> Value {
    let (bits, group) = dtype.affine().unwrap_or_default();
    json!({"group_size": group, "bits": bits, "mode": "affine"})
}

/// Every weight by its name in MLX's files, and whether it always stays as it is.
fn weights(files: &ModelFiles, file: &str) -> Result<Vec<(Tensor, bool)>, LoadError> {
    const EXPERTS: &str = "mlp.experts.{}.";
    let spec = &files.spec;
    let names = huggingface_names(&spec.architecture);
    let refused = |what: &str, reason: &str| Err(unsupported(file, "model_type", what, reason));
    let own_experts = |mlp: &MlpSpec| {
        mlp.experts().is_some_and(|experts| experts.expert_bias || !names.experts.gate.starts_with(EXPERTS))
    };
    if !files.info.not_read.is_empty() {
        return refused(&spec.architecture, "a model that reads more than text is not written");
    }
    if names.qkv.is_some()
        || names.gate_up.is_some()
        || !spec.row_factors.is_empty()
        || spec.layers.iter().any(|layer| own_experts(&layer.mlp))
    {
        return refused(
            &spec.architecture,
            "its matrices are stored otherwise than one by one, and MLX's are not written",
        );
    }
    let (mut all, mut stacks) = (Vec::new(), Vec::<(String, Vec<Tensor>)>::new());
    for (weight, _) in spec.weights() {
        let tensor = &files.tensors.get(weight).clone().widened();
        let Part::Layer(layer, of) = weight.part else {
            all.push((tensor.clone(), false));
            continue;
        };
        let pattern = match of {
            LayerPart::ExpertGate(_) => names.experts.gate,
            LayerPart::ExpertUp(_) => names.experts.up,
            LayerPart::ExpertDown(_) => names.experts.down,
            _ => {
                let router = matches!(of, LayerPart::Router | LayerPart::SharedRouter);
                all.push((tensor.clone(), router));
                continue;
            }
        };
        // MLX stacks all experts of a layer in one tensor.
        let name = names.in_layer(names.prefix, layer, &pattern.replace(EXPERTS, "mlp.switch_mlp."));
        match stacks.iter_mut().find(|(known, _)| *known == name) {
            Some((_, experts)) => experts.push(tensor.clone()),
            None => stacks.push((name, vec![tensor.clone()])),
        }
    }
    for (name, experts) in stacks {
        all.push((convert::stacked(name, &experts)?, false));
    }
    Ok(all)
}

fn chosen(tensor: &Tensor, wanted: &Affine) -> Option<DType> {
    let columns = tensor.shape.last().copied().unwrap_or_default();
    let is_matrix = tensor.shape.len() > 1 && tensor.name.ends_with(".weight");
    let keeps = wanted.keep_output && tensor.name.starts_with("lm_head.");
    let named = wanted.named.iter().find(|(part, _)| name_has(&tensor.name, part)).map(|&(_, dtype)| dtype);
    let dtype = named.unwrap_or(wanted.dtype);
    (is_matrix && !keeps && columns.is_multiple_of(dtype.block_weights())).then_some(dtype)
}

fn check(tensor: &Tensor, to: Option<DType>, requantize: bool) -> Result<(), LoadError> {
    let plain = matches!(tensor.dtype, DType::F32 | DType::F16 | DType::BF16);
    let key = format!("tensor {}: element type", tensor.name);
    let refused = |reason: String| Err(unsupported(&tensor.file, &key, &tensor.dtype.to_string(), &reason));
    match to {
        None if !plain => refused("it would stay as it is, and no safetensors file has it".to_owned()),
        Some(to) if !plain && to != tensor.dtype && !requantize => refused(format!(
            "it would become {to} and loses by each rounding: take a folder of F32, F16 or BF16, or allow to requantize"
        )),
        _ => Ok(()),
    }
}

fn kept_files(directory: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let failed = |source| LoadError::Io { path: directory.to_owned(), source };
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let kind = path.extension().and_then(|kind| kind.to_str()).unwrap_or_default();
        let told_anew = name == "config.json" || name.ends_with(".index.json");
        let of_old_types =
            ["quantize_config.json", "quant_config.json", "hf_quant_config.json"].contains(&name);
        if KEPT_FILES.contains(&kind) && !told_anew && !of_old_types && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
