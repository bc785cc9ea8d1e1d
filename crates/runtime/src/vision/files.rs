//! A tower on disk, opened: settings, tensors and the processor's settings beside a text model's. Opening checks every shape.

use std::path::Path;
use std::sync::Arc;

use hanzo_engine_kernels::DType;
use hanzo_engine_media::Processor;

use super::layout::{Grid, Layout};
use super::spec::{COLORS, Family, TowerSpec};
use super::{idefics3, qwen};
use crate::error::LoadError;
use crate::load::{Found, Tensors, huggingface::read_config};
use crate::mapped::ModelBytes;
use crate::spec::{Config, Names, Part, TransformerSpec};
use crate::tensor::Tensor;

/// An opened tower.
#[derive(Debug)]
pub struct TowerFiles {
    /// What it is.
    pub spec: TowerSpec,
    /// What is made of pictures for it.
    pub processor: Processor,
    pub(super) tensors: Tensors,
    pub(super) patch: Tensor,              // (hidden, 3 * patch * patch)
    pub(super) patch_bias: Option<Tensor>, // (hidden)
    pub(super) learned: Option<Tensor>,    // (side * side, hidden): where numbers lie between its own
    pub(super) joiner: JoinerFiles,
    pub(super) deep: Vec<JoinerFiles>,
}

/// What makes rows of squares of patches.
#[derive(Debug)]
pub(super) struct JoinerFiles {
    /// Factors and addends of a norm of squares.
    pub(super) norm: Option<[Tensor; 2]>, // (square) each
    /// The first matrix of an MLP, and its addends.
    pub(super) up: Option<[Tensor; 2]>, // (square, square), (square)
    pub(super) down: Tensor,              // (text hidden, square)
    pub(super) down_bias: Option<Tensor>, // (text hidden)
}

impl JoinerFiles {
    pub(super) fn all(&self) -> impl Iterator<Item = &Tensor> {
        self.norm.iter().flatten().chain(self.up.iter().flatten()).chain([&self.down]).chain(&self.down_bias)
    }
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
        text: &TransformerSpec,
    ) -> Result<Option<TowerFiles>, LoadError> {
        let Some(settings) = processor_config(directory)? else { return Ok(None) };
        let unsupported = |key: String, reason: String| LoadError::Unsupported {
            file: settings.file.clone(),
            value: settings.get(&key).map(ToString::to_string).unwrap_or_default(),
            key,
            reason,
        };
        let processor = Processor::from_config(&settings.settings)
            .map_err(|error| unsupported(error.key, error.reason))?;
        let pairs = text.ropes.first().map_or(0, |rope| rope.dim / 2);
        let spec = TowerSpec::from_config(config, processor.frame_side(), (text.hidden, pairs))?;
        if let Some((patch, joined)) = processor.patches()
            && (patch as usize, joined as usize) != (spec.patch, spec.joined)
        {
            let reason = format!(
                "squares of {joined} x {joined} patches of {patch} pixels, and the tower's are {} x {} of {}",
                spec.joined, spec.joined, spec.patch
            );
            return Err(unsupported("patch_size".into(), reason));
        }
        for tensor in &mut tensors {
            if let Some(own) = tensor.name.strip_prefix("model.") {
                tensor.name = own.to_owned();
            }
        }
        TowerFiles::resolve(&directory.display().to_string(), spec, processor, tensors).map(Some)
    }

    /// Of tensors by the names that transformers' classes give them.
    pub(super) fn resolve(
        name: &str,
        spec: TowerSpec,
        processor: Processor,
        mut tensors: Vec<Tensor>,
    ) -> Result<TowerFiles, LoadError> {
        let (hidden, patch) = (spec.layers.hidden, spec.patch);
        let names = match spec.family {
            Family::Idefics3 => &idefics3::NAMES,
            Family::Qwen => qwen::names(&spec),
        };
        tensors.push(no_tokens(names, hidden));
        let mut found = Found::new(name, names, tensors)?;
        let stem = match spec.family {
            Family::Idefics3 => "vision_model.embeddings.patch_embedding",
            Family::Qwen => "visual.patch_embed.proj",
        };
        let weight = format!("{stem}.weight");
        let first = match spec.twofold {
            true => once(&found.take(&weight, &[hidden, COLORS, 2, patch, patch])?, patch * patch)?,
            false => found.take(&weight, &[hidden, COLORS, patch, patch])?,
        };
        let first = Tensor { shape: vec![hidden, spec.patch_width()], ..first };
        let patch_bias = match spec.patch_bias {
            true => Some(found.take(&format!("{stem}.bias"), &[hidden])?),
            false => None,
        };
        let mut learned = None;
        if let Some(table) = spec.learned {
            let shape = [table.side * table.side, hidden];
            if table.between {
                learned = Some(found.take("visual.pos_embed.weight", &shape)?);
            } else {
                let positions = found.name(Part::PositionEmbedding.weight());
                let all = found.take(&positions, &shape)?;
                let side = spec.frame.map_or(0, |frame| frame / spec.square());
                let layout = Layout::new(&spec, Grid { rows: side, cols: side });
                found.put_back(in_order(&all, &layout.nearest(table), hidden)?);
            }
        }
        let joiner = joiner(&mut found, &spec, None)?;
        let deep = (0..spec.deep.len()).map(|index| joiner_of(&mut found, &spec, index));
        let deep = deep.collect::<Result<Vec<_>, _>>()?;
        let tensors = found.resolve(&spec.layers)?;
        found.left_out(&spec.layers.architecture, &[])?;
        Ok(TowerFiles { spec, processor, tensors, patch: first, patch_bias, learned, joiner, deep })
    }

    /// Tensors beside those of the layers.
    fn beside(&self) -> impl Iterator<Item = &Tensor> {
        let joiners = [&self.joiner].into_iter().chain(&self.deep);
        let first = [&self.patch].into_iter().chain(&self.patch_bias).chain(&self.learned);
        first.chain(joiners.flat_map(JoinerFiles::all))
    }

    /// Numbers in all its weights.
    pub(crate) fn parameters(&self) -> u64 {
        self.tensors.parameters() + self.beside().map(|tensor| tensor.elements() as u64).sum::<u64>()
    }
}

fn joiner_of(found: &mut Found<'_>, spec: &TowerSpec, index: usize) -> Result<JoinerFiles, LoadError> {
    joiner(found, spec, Some(index))
}

/// What makes the rows behind the layers, or those between them.
fn joiner(found: &mut Found<'_>, spec: &TowerSpec, deep: Option<usize>) -> Result<JoinerFiles, LoadError> {
    let (square, text) = (spec.square_width(), spec.text_hidden);
    if spec.family == Family::Idefics3 {
        let down = found.take("connector.modality_projection.proj.weight", &[text, square])?;
        return Ok(JoinerFiles { norm: None, up: None, down, down_bias: None });
    }
    let [norm, up, down] = qwen::joiner(spec, deep).map(|name| format!("visual.{name}"));
    let mut both = |name: &str, shape: &[usize]| -> Result<[Tensor; 2], LoadError> {
        let weight = found.take(&format!("{name}.weight"), shape)?;
        Ok([weight, found.take(&format!("{name}.bias"), &shape[..1])?])
    };
    // The norm behind the layers is the network's last.
    let norm = if deep.is_some() { Some(both(&norm, &[square])?) } else { None };
    let up = Some(both(&up, &[square, square])?);
    let [down, down_bias] = both(&down, &[text, square])?;
    Ok(JoinerFiles { norm, up, down, down_bias: Some(down_bias) })
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

/// Of two frames that are the same one is enough: the sum of what each is multiplied with, `pixels` at a time.
fn once(both: &Tensor, pixels: usize) -> Result<Tensor, LoadError> {
    let values = both.to_f32()?;
    let pairs = values.chunks_exact(2 * pixels).map(|two| two.split_at(pixels));
    let sums = pairs.flat_map(|(a, b)| a.iter().zip(b).map(|(a, b)| a + b)).collect();
    Ok(f32s(&both.file, both.name.clone(), sums))
}
