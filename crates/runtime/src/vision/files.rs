//! Files of an opened tower: settings, tensors and the image processor's settings, stored beside a text model.
//! Opening them checks every shape.

use std::path::Path;
use std::sync::Arc;

use hanzo_engine_media::Processor;
use hanzo_engine_ops::DType;

use super::joiner::JoinerFiles;
use super::layout::Layout;
use super::mosaic::MosaicFiles;
use super::perceiver::PerceiverFiles;
use super::pooled::PooledFiles;
use super::spec::{COLORS, Family, TextShape, TowerNorm, TowerSpec};
use super::{gemma3, idefics3, llava, mllama, pixtral, qwen};
use crate::error::LoadError;
use crate::limits::{EXTRA_LOGIT_ROWS, LAYERS_MAX};
use crate::load::{Found, Tensors, huggingface::read_config};
use crate::mapped::ModelBytes;
use crate::spec::{Config, Names, Part, TransformerSpec};
use crate::tensor::Tensor;

/// Vision tower, opened.
#[derive(Debug)]
pub struct TowerFiles {
    /// Description of the tower.
    pub spec: TowerSpec,
    /// Preprocessing of pictures.
    pub processor: Processor,
    pub(super) tensors: Tensors,
    pub(super) patch: Tensor,              // (hidden, 3 * patch * patch)
    pub(super) patch_bias: Option<Tensor>, // (hidden)
    pub(super) learned: Option<Tensor>,    // (side * side, hidden): position embeddings that are interpolated
    pub(super) given_norm: Option<Tensor>, // (hidden): weights of the norm of patches after the layers
    pub(super) line_end: Option<Tensor>,   // (text hidden): row at line ends
    /// Projector to the text model's rows; `None` if a vector is made, or a perceiver makes the rows.
    pub(super) joiner: Option<JoinerFiles>,
    pub(super) perceiver: Option<PerceiverFiles>,
    pub(super) mosaic: Option<MosaicFiles>,
    pub(super) pooled: Option<PooledFiles>,
    pub(super) deep: Vec<JoinerFiles>,
}

/// Settings of a directory's image processor, or `None` if it has none. They stand in their own file, or in the
/// file in which newer libraries save the settings of all inputs.
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
    /// Whether a directory has settings for preparing pictures.
    ///
    /// # Errors
    /// Errors of reading the files.
    pub(crate) fn are_said(directory: &Path) -> Result<bool, LoadError> {
        Ok(processor_config(directory)?.is_some())
    }

    /// Opens the vision tower of a model from its `config.json` and the tensors left beside the text model's.
    /// Returns `None` if the directory does not say how pictures are prepared: the model then takes text only.
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
        let is_llava = config.string("model_type")?.is_some_and(|kind| kind.starts_with("llava"));
        if is_llava && !llava::knows(config)? {
            return Ok(None);
        }
        for tensor in &mut tensors {
            let own = tensor.name.strip_prefix("model.").unwrap_or(&tensor.name);
            // SigLIP's and CLIP's classes once had one more level.
            tensor.name = match own.strip_prefix("vision_tower.vision_model.") {
                Some(rest) => format!("vision_tower.{rest}"),
                None => own.to_owned(),
            };
        }
        let name = directory.display().to_string();
        TowerFiles::of_settings(&name, config, &settings, tensors, TextShape::of(text)).map(Some)
    }

    /// Opens the vision side of a model with vectors of `dimensions` elements in one space for texts and pictures;
    /// `tensors` are those of that side. Returns `None` if the directory does not say how pictures are prepared.
    ///
    /// # Errors
    /// As for [`TowerFiles::open`].
    pub(crate) fn of_pairs(
        directory: &Path,
        config: &Config,
        tensors: Vec<Tensor>,
        dimensions: usize,
    ) -> Result<Option<TowerFiles>, LoadError> {
        let Some(settings) = processor_config(directory)? else { return Ok(None) };
        let name = directory.display().to_string();
        TowerFiles::of_settings(&name, config, &settings, tensors, TextShape { hidden: dimensions, pairs: 0 })
            .map(Some)
    }

    /// Opens a tower from the whole model's `config.json`, the image processor's settings, and tensors by
    /// transformers' names. `text` is the shape of the text model's rows. `name` is for errors.
    pub(super) fn of_settings(
        name: &str,
        config: &Config,
        settings: &Config,
        tensors: Vec<Tensor>,
        text: TextShape,
    ) -> Result<TowerFiles, LoadError> {
        let unsupported = |key: String, reason: String| LoadError::Unsupported {
            file: settings.file.clone(),
            value: settings.get(&key).map(ToString::to_string).unwrap_or_default(),
            key,
            reason,
        };
        let processor = Processor::from_config(&settings.settings)
            .map_err(|error| unsupported(error.key, error.reason))?;
        let (frame, squares) = (processor.frame_side(), processor.squares_max());
        let mut spec = TowerSpec::from_config(config, frame, squares, text)?;
        if let (Some(longest), true) = (processor.longest_side(), spec.perceiver.is_some()) {
            spec.patches_max = spec.patches_max.min((longest as usize / spec.patch).pow(2));
        }
        let processor = processor.joining(spec.joined as u32);
        if let Some((patch, joined)) = processor.patches()
            && (patch as usize, joined as usize) != (spec.patch, spec.joined)
        {
            let reason = format!(
                "squares of {joined} x {joined} patches of {patch} pixels, and the tower's are {} x {} of {}",
                spec.joined, spec.joined, spec.patch
            );
            return Err(unsupported("patch_size".into(), reason));
        }
        TowerFiles::resolve(name, spec, processor, tensors)
    }

    /// Opens a tower from tensors by transformers' names.
    fn resolve(
        name: &str,
        spec: TowerSpec,
        processor: Processor,
        mut tensors: Vec<Tensor>,
    ) -> Result<TowerFiles, LoadError> {
        let (hidden, patch) = (spec.layers.hidden, spec.patch);
        let (names, stem) = match spec.family {
            Family::Idefics2 | Family::Idefics3 | Family::Dual => {
                (&idefics3::NAMES, "vision_model.embeddings.patch_embedding")
            }
            Family::Qwen => (qwen::names(&spec), "visual.patch_embed.proj"),
            Family::Gemma3 | Family::Llava => (&gemma3::NAMES, "vision_tower.embeddings.patch_embedding"),
            Family::Pixtral => (&pixtral::NAMES, "vision_tower.patch_conv"),
            Family::Mllama => (&mllama::NAMES, "vision_model.patch_embedding"),
        };
        if let Some(mosaic) = &spec.mosaic {
            mllama::name_layers(&mut tensors, mosaic.local);
        }
        tensors.push(no_tokens(names, hidden));
        let mut found = Found::new(name, names, tensors)?;
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
        let learned = learned_positions(&mut found, &spec, names)?;
        if !spec.reads.normed {
            neutral_final_norm(name, &mut found, &spec);
        }
        let given_norm =
            spec.reads.norm.map(|norm| norm_weights(name, &mut found, norm, hidden)).transpose()?;
        let line_end = match spec.lines {
            true => Some(found.take("image_newline", &[spec.text_hidden])?),
            false => None,
        };
        let joiner = match (&spec.pooled, &spec.perceiver) {
            (None, None) => Some(joiner(&mut found, &spec, None)?),
            _ => None,
        };
        let perceiver = spec.perceiver.as_ref();
        let perceiver = perceiver.map(|own| PerceiverFiles::take(&mut found, &spec, own)).transpose()?;
        let mosaic = spec.mosaic.as_ref();
        let mosaic = mosaic.map(|own| MosaicFiles::take(&mut found, &spec, own)).transpose()?;
        let pooled = spec.pooled.map(|pooled| PooledFiles::take(&mut found, &spec, pooled)).transpose()?;
        let deep = (0..spec.deep.len()).map(|index| joiner_of(&mut found, &spec, index));
        let deep = deep.collect::<Result<Vec<_>, _>>()?;
        let tensors = found.resolve(&spec.layers)?;
        check_left_out(found, &spec, names)?;
        Ok(TowerFiles {
            spec,
            processor,
            tensors,
            patch: first,
            patch_bias,
            learned,
            given_norm,
            line_end,
            joiner,
            perceiver,
            mosaic,
            pooled,
            deep,
        })
    }

    /// Tensors outside the layers.
    pub(super) fn beside(&self) -> impl Iterator<Item = &Tensor> {
        let joiners = self.joiner.iter().chain(&self.deep);
        let pooled = self.pooled.iter().flat_map(PooledFiles::all);
        let first = [&self.patch].into_iter().chain(&self.patch_bias).chain(&self.learned);
        let first = first.chain(&self.given_norm).chain(&self.line_end);
        let perceiver = self.perceiver.iter().flat_map(PerceiverFiles::all);
        let mosaic = self.mosaic.iter().flat_map(MosaicFiles::all);
        first.chain(joiners.flat_map(JoinerFiles::all)).chain(pooled).chain(perceiver).chain(mosaic)
    }

    /// Refuses step sizes that have no room for a picture with mutual attention beside other sequences.
    ///
    /// # Errors
    /// [`LoadError::Unsupported`] naming the setting and its minimum.
    pub fn check_steps(&self, step_tokens_max: usize, sequences_max: usize) -> Result<(), LoadError> {
        let together = if self.spec.mutual { self.spec.one_square().count() } else { 0 };
        let needed = together + sequences_max + EXTRA_LOGIT_ROWS;
        if together == 0 || step_tokens_max >= needed {
            return Ok(());
        }
        Err(LoadError::Unsupported {
            file: self.patch.file.to_string(),
            key: "engine.step_tokens_max".into(),
            value: step_tokens_max.to_string(),
            reason: format!(
                "a picture's {together} rows see each other, so they are computed in one step, beside {sequences_max} running \
                 sequences: make it {needed} or more"
            ),
        })
    }

    /// Number of parameters.
    pub(crate) fn parameters(&self) -> u64 {
        self.tensors.parameters() + self.beside().map(|tensor| tensor.elements() as u64).sum::<u64>()
    }
}

/// Takes the learned positions, if they are added by frame. Positions of frames of one size are put back in the order of
/// the patches, for the network to add.
fn learned_positions(
    found: &mut Found<'_>,
    spec: &TowerSpec,
    names: &Names,
) -> Result<Option<Tensor>, LoadError> {
    let Some(table) = spec.learned else { return Ok(None) };
    let hidden = spec.layers.hidden;
    let before = usize::from(spec.first);
    let shape = [table.side * table.side + before, hidden];
    if table.between {
        return found.take("visual.pos_embed.weight", &shape).map(Some);
    }
    let positions = found.name(Part::PositionEmbedding.weight());
    let all = found.take(&positions, &shape)?;
    if spec.frame.is_none() {
        return Ok(Some(all));
    }
    let layout = Layout::new(spec, spec.one_square());
    let nearest = layout.nearest(table, 0..layout.patches());
    let order = (0..before).chain(nearest.into_iter().map(|place| before + place));
    let mut places = in_order(&all, &order.collect::<Vec<_>>(), hidden)?;
    if spec.first {
        // The class token always has the first position, so both are added here.
        let own = found.take(&format!("{}embeddings.class_embedding", names.prefix), &[hidden])?;
        places = added(&places, &own)?;
    }
    found.put_back(places);
    Ok(None)
}

/// Replaces a final norm that is not used: readers take the rows before it. The network gets neutral weights.
fn neutral_final_norm(name: &str, found: &mut Found<'_>, spec: &TowerSpec) {
    let hidden = spec.layers.hidden;
    let norm = found.name(Part::FinalNorm.weight());
    found.take_any(&norm);
    found.take_any(&found.name(Part::FinalNorm.bias()));
    found.put_back(f32s(name, norm, vec![1.0; hidden]));
    if spec.layers.norm.kind.is_layer() {
        found.put_back(f32s(name, found.name(Part::FinalNorm.bias()), vec![0.0; hidden]));
    }
}

/// Takes the weights of the norm between the layers and the projector.
fn norm_weights(
    name: &str,
    found: &mut Found<'_>,
    norm: TowerNorm,
    hidden: usize,
) -> Result<Tensor, LoadError> {
    let which = if norm.from_one { "mm_soft_emb_norm" } else { "norm" };
    let factors = found.take(&format!("multi_modal_projector.{which}.weight"), &[hidden])?;
    if !norm.from_one {
        return Ok(factors);
    }
    Ok(f32s(name, factors.name.clone(), factors.to_f32()?.iter().map(|n| n + 1.0).collect()))
}

/// Checks that the tensors left over are those of layers after the last one that is read.
fn check_left_out(found: Found<'_>, spec: &TowerSpec, names: &Names) -> Result<(), LoadError> {
    let behind: Vec<String> = match spec.reads.normed {
        true => Vec::new(),
        false => {
            (spec.layers.layers.len()..LAYERS_MAX).map(|layer| format!("{}{layer}.", names.layer)).collect()
        }
    };
    found.left_out(&spec.layers.architecture, &behind.iter().map(String::as_str).collect::<Vec<_>>())?;
    Ok(())
}

fn joiner_of(found: &mut Found<'_>, spec: &TowerSpec, index: usize) -> Result<JoinerFiles, LoadError> {
    joiner(found, spec, Some(index))
}

/// Projector after the layers, or of a DeepStack layer.
fn joiner(found: &mut Found<'_>, spec: &TowerSpec, deep: Option<usize>) -> Result<JoinerFiles, LoadError> {
    let (square, text) = (spec.square_width(), spec.text_hidden);
    let (read, inner) = (spec.read_width(), spec.reads.inner);
    let plain = |down| JoinerFiles { norm: None, merge: None, up: None, down, down_bias: None };
    match spec.family {
        Family::Idefics3 => {
            return Ok(plain(found.take("connector.modality_projection.proj.weight", &[text, square])?));
        }
        Family::Gemma3 => {
            let name = "multi_modal_projector.mm_input_projection_weight";
            return Ok(plain(turned(&found.take(name, &[square, text])?)?));
        }
        Family::Mllama => {
            let down = found.take("multi_modal_projector.weight", &[text, square])?;
            let down_bias = Some(found.take("multi_modal_projector.bias", &[text])?);
            return Ok(JoinerFiles { norm: None, merge: None, up: None, down, down_bias });
        }
        Family::Llava | Family::Pixtral => {
            const AT: &str = "multi_modal_projector";
            let merge = match spec.reads.merged {
                true => {
                    let name = format!("{AT}.patch_merger.merging_layer.weight");
                    Some(patches_last(&found.take(&name, &[read, square])?, spec)?)
                }
                false => None,
            };
            let up = found.take(&format!("{AT}.linear_1.weight"), &[inner, read])?;
            let down = found.take(&format!("{AT}.linear_2.weight"), &[text, inner])?;
            let mut bias = |name: &str, rows| match spec.reads.bias {
                true => Ok::<_, LoadError>(Some(found.take(&format!("{AT}.{name}.bias"), &[rows])?)),
                false => Ok(None),
            };
            let up = Some((up, bias("linear_1", inner)?));
            let down_bias = bias("linear_2", text)?;
            return Ok(JoinerFiles { norm: None, merge, up, down, down_bias });
        }
        // two of them have no such projector
        Family::Qwen | Family::Dual | Family::Idefics2 => {}
    }
    let [norm, up, down] = qwen::joiner(spec, deep).map(|name| format!("visual.{name}"));
    let mut both = |name: &str, shape: &[usize]| -> Result<[Tensor; 2], LoadError> {
        let weight = found.take(&format!("{name}.weight"), shape)?;
        Ok([weight, found.take(&format!("{name}.bias"), &shape[..1])?])
    };
    // The norm after the layers belongs to the network.
    let norm = if deep.is_some() { Some(both(&norm, &[square])?) } else { None };
    let [up, up_bias] = both(&up, &[inner, square])?;
    let [down, down_bias] = both(&down, &[text, inner])?;
    Ok(JoinerFiles { norm, merge: None, up: Some((up, Some(up_bias))), down, down_bias: Some(down_bias) })
}

/// Row of the token embedding, which no patch uses.
pub(crate) fn no_tokens(names: &Names, hidden: usize) -> Tensor {
    let zeros = f32s("no file", names.of(names.prefix, Part::TokenEmbedding.weight()), vec![0.0; hidden]);
    Tensor { shape: vec![1, hidden], ..zeros }
}

pub(crate) fn f32s(file: &str, name: String, values: Vec<f32>) -> Tensor {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let file: Arc<str> = file.into();
    Tensor { file, name, dtype: DType::F32, shape: vec![values.len()], bytes: ModelBytes::from(bytes) }
}

/// Rows of a table in another order.
fn in_order(table: &Tensor, order: &[usize], hidden: usize) -> Result<Tensor, LoadError> {
    let values = table.to_f32()?;
    let rows = order.iter().flat_map(|&row| &values[row * hidden..][..hidden]).copied().collect();
    let taken = f32s(&table.file, table.name.clone(), rows);
    Ok(Tensor { shape: vec![order.len(), hidden], ..taken })
}

/// Transposes a matrix.
fn turned(matrix: &Tensor) -> Result<Tensor, LoadError> {
    let ([rows, cols], values) = ([matrix.shape[0], matrix.shape[1]], matrix.to_f32()?);
    let turned = (0..cols).flat_map(|col| values.iter().skip(col).step_by(cols).copied()).collect();
    let turned = f32s(&matrix.file, matrix.name.clone(), turned);
    Ok(Tensor { shape: vec![cols, rows], ..turned })
}

/// Reorders the columns of a matrix over squares: from element by element to patch by patch.
fn patches_last(matrix: &Tensor, spec: &TowerSpec) -> Result<Tensor, LoadError> {
    let (hidden, patches) = (spec.layers.hidden, spec.square_patches());
    let values = matrix.to_f32()?;
    let columns = (0..patches).flat_map(|patch| (0..hidden).map(move |element| element * patches + patch));
    let columns: Vec<usize> = columns.collect();
    let rows = values.chunks_exact(hidden * patches);
    let values = rows.flat_map(|row| columns.iter().map(|&column| row[column])).collect();
    let ordered = f32s(&matrix.file, matrix.name.clone(), values);
    Ok(Tensor { shape: matrix.shape.clone(), ..ordered })
}

/// Adds a vector to a table's first row.
fn added(table: &Tensor, first: &Tensor) -> Result<Tensor, LoadError> {
    let mut values = table.to_f32()?;
    values.iter_mut().zip(first.to_f32()?).for_each(|(value, more)| *value += more);
    let summed = f32s(&table.file, table.name.clone(), values);
    Ok(Tensor { shape: table.shape.clone(), ..summed })
}

/// Patch embedding for one frame instead of two equal ones: sums the weights of both, `pixels` at a time.
fn once(both: &Tensor, pixels: usize) -> Result<Tensor, LoadError> {
    let values = both.to_f32()?;
    let pairs = values.chunks_exact(2 * pixels).map(|two| two.split_at(pixels));
    let sums = pairs.flat_map(|(a, b)| a.iter().zip(b).map(|(a, b)| a + b)).collect();
    Ok(f32s(&both.file, both.name.clone(), sums))
}
