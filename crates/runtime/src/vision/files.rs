//! A tower on disk, opened: settings, tensors and the processor's settings beside a text model's. Opening checks every shape.

use std::path::Path;
use std::sync::Arc;

use hanzo_engine_kernels::DType;
use hanzo_engine_media::Processor;

use super::families::{COLORS, PATCH, PROJECTION, SIGLIP, TowerSpec};
use crate::error::LoadError;
use crate::load::{Found, Tensors, huggingface::read_config};
use crate::mapped::ModelBytes;
use crate::spec::{Config, Names, Part};
use crate::tensor::Tensor;

/// An opened tower.
#[derive(Debug)]
pub struct TowerFiles {
    /// What it is.
    pub spec: TowerSpec,
    /// What is made of pictures for it.
    pub processor: Processor,
    pub(super) tensors: Tensors,
    pub(super) patch: Tensor,      // (hidden, 3 * patch * patch)
    pub(super) patch_bias: Tensor, // (hidden)
    pub(super) projection: Tensor, // (text hidden, hidden * joined * joined)
}

/// The settings of a directory's image processor, where there are some: in a file of their own, or in what newer libraries
/// save for all inputs together.
fn processor_config(directory: &Path) -> Result<Option<Config>, LoadError> {
    if let Some(config) = read_config(directory, "preprocessor_config.json")? {
        return Ok(Some(config));
    }
    match read_config(directory, "processor_config.json")? {
        Some(config) => config.object("image_processor"),
        None => Ok(None),
    }
}

impl TowerFiles {
    /// Opens the tower of a model whose `config.json` and tensors beside the text's these are. None where the directory says
    /// nothing of how pictures are prepared: the model is one of text then.
    ///
    /// # Errors
    /// [`LoadError`] naming the file and the key or tensor in it.
    pub(crate) fn open(
        directory: &Path,
        config: &Config,
        mut tensors: Vec<Tensor>,
        text_hidden: usize,
    ) -> Result<Option<TowerFiles>, LoadError> {
        let Some(settings) = processor_config(directory)? else { return Ok(None) };
        let processor =
            Processor::from_config(&settings.settings).map_err(|error| LoadError::Unsupported {
                file: settings.file.clone(),
                value: settings.get(&error.key).map(ToString::to_string).unwrap_or_default(),
                key: error.key,
                reason: error.reason,
            })?;
        let spec = TowerSpec::idefics3(config, processor.frame_side() as usize, text_hidden)?;
        let (hidden, patch) = (spec.layers.hidden, spec.patch);
        for tensor in &mut tensors {
            if let Some(own) = tensor.name.strip_prefix("model.") {
                tensor.name = own.to_owned();
            }
        }
        tensors.push(no_tokens(&SIGLIP, hidden));
        let name = directory.display().to_string();
        let mut found = Found::new(&name, &SIGLIP, tensors)?;
        let mut first = found.take(&format!("{PATCH}.weight"), &[hidden, COLORS, patch, patch])?;
        first.shape = vec![hidden, spec.patch_width()];
        let patch_bias = found.take(&format!("{PATCH}.bias"), &[hidden])?;
        let projection = found.take(PROJECTION, &[text_hidden, spec.joined_width()])?;
        let positions = found.name(Part::PositionEmbedding.weight());
        let learned = found.take(&positions, &[spec.learned_side * spec.learned_side, hidden])?;
        found.put_back(in_order(&learned, &spec.positions(), hidden)?);
        let tensors = found.resolve(&spec.layers)?;
        found.left_out(&spec.layers.architecture, &[])?;
        Ok(Some(TowerFiles { spec, processor, tensors, patch: first, patch_bias, projection }))
    }

    /// Numbers in all its weights.
    pub(crate) fn parameters(&self) -> u64 {
        let more = [&self.patch, &self.patch_bias, &self.projection];
        self.tensors.parameters() + more.iter().map(|tensor| tensor.elements() as u64).sum::<u64>()
    }
}

/// The row of a vocabulary that no patch is of.
fn no_tokens(names: &Names, hidden: usize) -> Tensor {
    let zeros = f32s("no file", names.of(names.prefix, Part::TokenEmbedding.weight()), vec![0.0; hidden]);
    Tensor { shape: vec![1, hidden], ..zeros }
}

fn f32s(file: &str, name: String, values: Vec<f32>) -> Tensor {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let file: Arc<str> = file.into();
    Tensor { file, name, dtype: DType::F32, shape: vec![values.len()], bytes: ModelBytes::from(bytes) }
}

/// Rows of a table, in another order.
fn in_order(table: &Tensor, order: &[usize], hidden: usize) -> Result<Tensor, LoadError> {
    let values = table.to_f32()?;
    let rows = order.iter().flat_map(|&row| &values[row * hidden..][..hidden]).copied().collect();
    let taken = f32s(&table.file, table.name.clone(), rows);
    Ok(Tensor { shape: vec![order.len(), hidden], ..taken })
}
