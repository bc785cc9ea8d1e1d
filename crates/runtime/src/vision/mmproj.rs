//! Vision tower in a llama.cpp file (mmproj), beside a text model in GGUF. Its keys and tensors are converted to
//! the form of the model's own files, and read like those. Processor settings that the file lacks are the family's
//! defaults.

mod keys;
mod processor;
mod tensors;

pub(super) use keys::Usual;
pub(super) use tensors::halves_behind;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::files::TowerFiles;
use super::spec::TextShape;
use super::{gemma3, idefics3, pixtral, qwen};
use crate::error::LoadError;
use crate::gguf::{self, Gguf, Metadata};
use crate::limits::WIDTH_MAX;
use crate::overrides::Mmproj;
use crate::spec::{Config, Names, TransformerSpec};
use crate::tensor::Tensor;

/// Kind of tower, from `clip.projector_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Projector {
    Mlp,
    Qwen2,
    Qwen25,
    Qwen3,
    Gemma3,
    Idefics3,
    Pixtral,
}

use Projector::{Gemma3, Idefics3, Mlp, Pixtral, Qwen2, Qwen3, Qwen25};

/// Supported kinds by name.
const PROJECTORS: [(&str, Projector); 7] = [
    ("mlp", Mlp),
    ("qwen2vl_merger", Qwen2),
    ("qwen2.5vl_merger", Qwen25),
    ("qwen3vl_merger", Qwen3),
    ("gemma3", Gemma3),
    ("idefics3", Idefics3),
    ("pixtral", Pixtral),
];

/// Text architectures that only fit certain kinds, because their positions or attention depend on them.
const OWN: [(&str, &[Projector]); 4] =
    [("qwen2vl", &[Qwen2, Qwen25]), ("qwen3vl", &[Qwen3]), ("qwen3vlmoe", &[Qwen3]), ("gemma3", &[Gemma3])];

/// Whether only certain towers, in their own files, fit text models of this architecture.
pub(crate) fn knows(architecture: &str) -> bool {
    OWN.iter().any(|(own, _)| *own == architecture)
}

/// Maximum number of candidate files beside a model.
const BESIDE_MAX: usize = 64;

impl Projector {
    fn of(metadata: &Metadata) -> Result<Projector, LoadError> {
        const KEY: &str = "clip.projector_type";
        let unsupported = |key: &str, value: &str, reason: String| LoadError::Unsupported {
            file: metadata.file().to_owned(),
            key: key.into(),
            value: value.into(),
            reason,
        };
        match metadata.string("general.architecture")? {
            Some("clip") => {}
            other => {
                let reason = "a projector (mmproj) is wanted, whose architecture is clip".to_owned();
                return Err(unsupported("general.architecture", other.unwrap_or("none"), reason));
            }
        }
        if metadata.bool("clip.has_vision_encoder")? != Some(true) {
            let reason = "it has no tower that sees".to_owned();
            return Err(unsupported("clip.has_vision_encoder", "false", reason));
        }
        let named = match metadata.string(KEY)? {
            Some(named) => Some(named),
            None => metadata.string("clip.vision.projector_type")?,
        };
        let named = match named {
            Some(named) => named,
            // The first files of LLaVA and Qwen2-VL had their own keys for it.
            None if metadata.bool("clip.has_qwen2vl_merger")? == Some(true) => "qwen2vl_merger",
            None if metadata.bool("clip.has_minicpmv_projector")? != Some(true) => "mlp",
            None => return Err(metadata.missing(KEY)),
        };
        let known = PROJECTORS.iter().find(|(name, _)| *name == named);
        known.map(|(_, projector)| *projector).ok_or_else(|| {
            let all: Vec<&str> = PROJECTORS.iter().map(|(name, _)| *name).collect();
            unsupported(KEY, named, format!("{} are known", all.join(", ")))
        })
    }

    /// Model type of the whole model in `config.json`.
    fn model_type(self, tower: &Tower<'_>) -> &'static str {
        match self {
            Mlp if tower.has("clip.vision.image_grid_pinpoints") => "llava_next",
            Mlp => "llava",
            Qwen2 => "qwen2_vl",
            Qwen25 => "qwen2_5_vl",
            Qwen3 => "qwen3_vl",
            Gemma3 => "gemma3",
            Idefics3 => "idefics3",
            Pixtral if tower.tensor("mm.patch_merger.weight").is_some() => "mistral3",
            Pixtral => "llava",
        }
    }

    /// Tensor names of its layers in the model's own files.
    fn names(self) -> &'static Names {
        match self {
            Mlp | Gemma3 => &gemma3::NAMES,
            Qwen2 => qwen::names_of("qwen2_vl"),
            Qwen25 => qwen::names_of("qwen2_5_vl"),
            Qwen3 => qwen::names_of("qwen3_vl"),
            Idefics3 => &idefics3::NAMES,
            Pixtral => &pixtral::NAMES,
        }
    }

    /// Token in place of a picture in prompts.
    fn place(self) -> &'static str {
        match self {
            Mlp | Idefics3 => "<image>",
            Qwen2 | Qwen25 | Qwen3 => "<|image_pad|>",
            Gemma3 => "<image_soft_token>",
            Pixtral => "[IMG]",
        }
    }

    /// Matrix that makes a row of the text model, and its dimension with that row's elements.
    fn last(self) -> (&'static str, usize) {
        match self {
            Mlp | Qwen2 | Qwen25 | Qwen3 | Pixtral => ("mm.2.weight", 0),
            Gemma3 => ("mm.input_projection.weight", 1),
            Idefics3 => ("mm.model.fc.weight", 0),
        }
    }
}

/// Parts of file names that tell how towers are stored, in order of preference.
const STORED: [&str; 4] = ["-f16", "bf16", "q8_0", "f32"];

/// Finds the tower of a GGUF model with these files: the named one, or the first one beside the model that fits.
///
/// # Errors
/// [`LoadError`] for a file that cannot be read.
pub(crate) fn find(
    wanted: &Mmproj,
    files: &[PathBuf],
    text: &TransformerSpec,
) -> Result<Option<(PathBuf, Gguf)>, LoadError> {
    let file = match wanted {
        Mmproj::None => return Ok(None),
        Mmproj::File(path) => return Ok(Some((path.clone(), gguf::open(path)?.0))),
        Mmproj::Beside => files.first(),
    };
    let folder = file.and_then(|file| file.parent());
    // Repositories may have a folder for the parts of each quantisation, named after it.
    let above = file.zip(folder).and_then(|(file, folder)| {
        let (file, of) = (file.file_stem()?.to_str()?, folder.file_name()?.to_str()?);
        file.to_ascii_lowercase().contains(&of.to_ascii_lowercase()).then_some(folder.parent()?)
    });
    for path in [folder, above].into_iter().flatten().flat_map(beside) {
        let (gguf, _) = gguf::open(&path)?;
        if fits(&gguf, text) {
            return Ok(Some((path, gguf)));
        }
    }
    Ok(None)
}

/// Files of a folder that are named like towers.
fn beside(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(if folder.as_os_str().is_empty() { Path::new(".") } else { folder })
    else {
        return Vec::new();
    };
    let named = entries.filter_map(|entry| {
        let entry = entry.ok()?;
        let name = entry.file_name().to_str()?.to_ascii_lowercase();
        let is_one = name.ends_with(".gguf") && name.contains("mmproj");
        let stored = STORED.iter().position(|stored| name.contains(stored)).unwrap_or(STORED.len());
        is_one.then(|| (stored, entry.path()))
    });
    let mut named: Vec<(usize, PathBuf)> = named.collect();
    named.sort();
    named.truncate(BESIDE_MAX);
    named.into_iter().map(|(_, path)| path).collect()
}

/// Whether a file fits a text model: a supported kind, of its family, with rows of its width.
fn fits(gguf: &Gguf, text: &TransformerSpec) -> bool {
    let Ok(projector) = Projector::of(&gguf.metadata) else { return false };
    Tower { gguf, projector, is_embedded: false }.belongs(text).is_ok()
}

/// Tower file while it is read.
struct Tower<'a> {
    gguf: &'a Gguf,
    projector: Projector,
    /// The tower was inside a text model's file, in which queries and keys are in the order of the model's own
    /// files.
    is_embedded: bool,
}

impl TowerFiles {
    /// Opens a tower's file for a text model, whose own keys are `words`.
    ///
    /// # Errors
    /// [`LoadError`] naming the file and the key or tensor in it; `Unsupported` if it belongs to another model.
    pub(crate) fn of_mmproj(
        gguf: Gguf,
        words: &Metadata,
        text: &TransformerSpec,
    ) -> Result<TowerFiles, LoadError> {
        TowerFiles::of_tower(gguf, words, text, false)
    }

    /// Opens a tower from inside a text model's file.
    ///
    /// # Errors
    /// As for [`TowerFiles::of_mmproj`].
    pub(crate) fn of_embedded(
        gguf: Gguf,
        words: &Metadata,
        text: &TransformerSpec,
    ) -> Result<TowerFiles, LoadError> {
        TowerFiles::of_tower(gguf, words, text, true)
    }

    fn of_tower(
        gguf: Gguf,
        words: &Metadata,
        text: &TransformerSpec,
        is_embedded: bool,
    ) -> Result<TowerFiles, LoadError> {
        let projector = Projector::of(&gguf.metadata)?;
        let tower = Tower { gguf: &gguf, projector, is_embedded };
        tower.belongs(text)?;
        tower.check_keys()?;
        let config = Config::new(gguf.metadata.file(), tower.config(words, text)?);
        let settings = Config::new(gguf.metadata.file(), tower.processor()?);
        let tensors = tower.tensors()?;
        let mut files =
            TowerFiles::of_settings(gguf.metadata.file(), &config, &settings, tensors, TextShape::of(text))?;
        // The embedding may lack a row for the image token. Its rows are given, so any other token will do.
        if files.spec.image_token as usize >= text.vocab {
            files.spec.stand_in = files.spec.stand_in.or(Some(0));
        }
        Ok(files)
    }
}

impl Tower<'_> {
    fn metadata(&self) -> &Metadata {
        &self.gguf.metadata
    }

    fn has(&self, key: &str) -> bool {
        self.metadata().get(key).is_some()
    }

    fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.gguf.tensors.iter().find(|tensor| tensor.name == name)
    }

    fn needed(&self, name: &str) -> Result<&Tensor, LoadError> {
        self.tensor(name).ok_or_else(|| LoadError::Missing {
            file: self.metadata().file().to_owned(),
            what: format!("tensor {name}"),
            hint: String::new(),
        })
    }

    /// Rows of a required matrix.
    fn rows(&self, name: &str) -> Result<usize, LoadError> {
        let first = self.needed(name)?.shape.first().copied();
        first.ok_or_else(|| self.metadata().corrupt(name, "it is no matrix"))
    }

    /// A required count below `clip.vision.`.
    fn count(&self, key: &str) -> Result<u32, LoadError> {
        let key = format!("clip.vision.{key}");
        match self.metadata().u32(&key)? {
            Some(count) if (1..=WIDTH_MAX as u32).contains(&count) => Ok(count),
            Some(count) => {
                Err(self.metadata().corrupt(&key, format!("{count} is not between 1 and {WIDTH_MAX}")))
            }
            None => Err(self.metadata().missing(&key)),
        }
    }

    /// Checks that it belongs to this text model.
    fn belongs(&self, text: &TransformerSpec) -> Result<(), LoadError> {
        let named = PROJECTORS.iter().find(|(_, projector)| *projector == self.projector);
        let another = |reason: String| LoadError::Unsupported {
            file: self.metadata().file().to_owned(),
            key: "mmproj".into(),
            value: named.map_or("", |(name, _)| name).to_owned(),
            reason: format!("{reason}; it is another model's"),
        };
        let own = OWN.iter().find(|(architecture, _)| *architecture == text.architecture);
        let of_others = || OWN.iter().any(|(_, projectors)| projectors.contains(&self.projector));
        let fits = own.map_or_else(|| !of_others(), |(_, projectors)| projectors.contains(&self.projector));
        if !fits {
            return Err(another(format!("the text model is {}", text.architecture)));
        }
        let (last, side) = self.projector.last();
        match self.needed(last)?.shape.get(side) {
            Some(&width) if width == text.hidden => Ok(()),
            Some(width) => Err(another(format!(
                "its rows have {width} elements, and those of the text model {}",
                text.hidden
            ))),
            None => Err(self.metadata().corrupt(last, "it is no matrix")),
        }
    }

    /// Whether the names of the two matrices in MLPs are swapped, as older files of CLIP and SigLIP have them.
    fn swaps_mlp(&self, hidden: usize) -> bool {
        if matches!(self.projector, Qwen3 | Pixtral) {
            return false;
        }
        let shape = |name: &str| self.tensor(name).map(|tensor| tensor.shape.as_slice());
        let (up, down) = (shape("v.blk.0.ffn_up.weight"), shape("v.blk.0.ffn_down.weight"));
        matches!((up, down), (Some(&[given, inner]), Some(&[wide, read])) if given == hidden && read == hidden && wide == inner && wide != hidden)
    }

    /// DeepStack layers, ascending.
    fn deep(&self) -> BTreeSet<usize> {
        let layer =
            |tensor: &Tensor| tensor.name.strip_prefix("v.deepstack.")?.split('.').next()?.parse().ok();
        self.gguf.tensors.iter().filter_map(layer).collect()
    }

    /// Activation of its MLPs, by its name in `config.json`.
    fn activation(&self) -> Result<&'static str, LoadError> {
        let says = |key| Ok::<_, LoadError>(self.metadata().bool(key)? == Some(true));
        Ok(match (says("clip.use_gelu")?, says("clip.use_silu")?) {
            (true, true) => {
                return Err(self.metadata().corrupt("clip.use_silu", "clip.use_gelu is true as well"));
            }
            // GGUF has one name for two activations; the family decides.
            (true, false) if matches!(self.projector, Mlp | Pixtral) => "gelu",
            (true, false) => "gelu_pytorch_tanh",
            (false, true) => "silu",
            (false, false) => "quick_gelu",
        })
    }

    /// Name of the first layer's matrix to the MLP's inner elements; `hidden` is the layers' width.
    fn up(&self, hidden: usize) -> &'static str {
        match self.swaps_mlp(hidden) {
            true => "v.blk.0.ffn_down.weight",
            false => "v.blk.0.ffn_up.weight",
        }
    }

    /// Settings of `config.json`.
    fn config(&self, words: &Metadata, text: &TransformerSpec) -> Result<Map<String, Value>, LoadError> {
        let metadata = self.metadata();
        let (hidden, layers) = (self.count("embedding_length")?, self.count("block_count")?);
        let (heads, patch) = (self.count("attention.head_count")?, self.count("patch_size")?);
        let image = self.count("image_size")?;
        let mut eps = metadata.f32("clip.vision.attention.layer_norm_epsilon")?;
        let ffn = self.rows(self.up(hidden as usize))?;
        let joined = metadata.u32("clip.vision.spatial_merge_size")?.unwrap_or(2);
        let activation = self.activation()?;
        let place = self.place(words)?;
        let mut vision = json!({
            "hidden_size": hidden,
            "num_attention_heads": heads,
            "num_hidden_layers": layers,
            "intermediate_size": ffn,
            "patch_size": patch,
            "image_size": image,
            "hidden_act": activation,
        });
        let mut whole = json!({"model_type": self.projector.model_type(self), "image_token_id": place});
        match self.projector {
            Mlp => {
                whole["vision_feature_layer"] = self.feature_layer(layers)?.into();
                whole["multimodal_projector_bias"] = self.tensor("mm.2.bias").is_some().into();
            }
            Pixtral => {
                // Its class has its own epsilon; the file's key holds the epsilon of the merging norm, which is the
                // text model's.
                whole["multimodal_projector_bias"] = self.tensor("mm.2.bias").is_some().into();
                whole["spatial_merge_size"] = joined.into();
                whole["vision_feature_layer"] = (-1).into();
                vision["model_type"] = "pixtral".into();
                if let Some(eps) =
                    words.f32(&format!("{}.attention.layer_norm_rms_epsilon", text.architecture))?
                {
                    whole["text_config"] = json!({"rms_norm_eps": eps});
                }
                if let Some(base) = metadata.f32("clip.rope.freq_base")? {
                    vision["rope_theta"] = base.into();
                }
                eps = None;
            }
            Gemma3 => {
                let joined = metadata.u32("clip.vision.projector.scale_factor")?.unwrap_or(4);
                let side = (image / patch).checked_div(joined).unwrap_or(0) as usize;
                let rows = metadata.u32("clip.vision.projector.rows")?.map(|rows| rows as usize);
                whole["mm_tokens_per_image"] = rows.unwrap_or(side * side).into();
            }
            Idefics3 => {
                whole["scale_factor"] =
                    metadata.u32("clip.vision.projector.scale_factor")?.unwrap_or(2).into();
            }
            Qwen2 | Qwen25 | Qwen3 => {
                // The file's epsilon is the text model's; the class has a fixed one.
                eps = None;
                vision["num_heads"] = heads.into();
                vision["depth"] = layers.into();
                vision["spatial_merge_size"] = joined.into();
                vision["out_hidden_size"] = text.hidden.into();
                whole["rope_scaling"] = json!({"mrope_section": self.sections(words, text)?});
            }
        }
        self.put_qwen(&mut vision, text.hidden)?;
        if let Some(eps) = eps {
            vision["layer_norm_eps"] = eps.into();
        }
        whole["vision_config"] = vision;
        Ok(object(whole))
    }

    /// Layer whose output is read; layers are counted from 1.
    fn feature_layer(&self, layers: u32) -> Result<i64, LoadError> {
        const KEY: &str = "clip.vision.feature_layer";
        match self.metadata().integers(KEY)? {
            None => Ok(i64::from(layers)),
            Some(list) if list.len() == 1 => Ok(list[0]),
            Some(list) => {
                let reason = format!("{} layers, and rows are of one", list.len());
                Err(self.metadata().corrupt(KEY, reason))
            }
        }
    }

    /// Puts the settings of one version of Qwen's towers, which the other versions lack, into `vision_config`.
    fn put_qwen(&self, vision: &mut Value, text_hidden: usize) -> Result<(), LoadError> {
        let metadata = self.metadata();
        match self.projector {
            Qwen2 => {
                let hidden = self.count("embedding_length")?;
                let up = self.up(hidden as usize);
                let ffn = self.rows(up)?;
                if !ffn.is_multiple_of(hidden as usize) {
                    return Err(metadata.corrupt(up, format!("{ffn} is no multiple of {hidden}")));
                }
                vision["embed_dim"] = hidden.into();
                vision["hidden_size"] = text_hidden.into();
                vision["mlp_ratio"] = (ffn / hidden as usize).into();
            }
            Qwen25 => {
                vision["fullatt_block_indexes"] = match metadata
                    .integers("clip.vision.fullatt_block_indexes")?
                {
                    Some(whole) => whole.into(),
                    None => {
                        let every = self.count("n_wa_pattern")?;
                        let whole = (0..self.count("block_count")?).filter(|layer| (layer + 1) % every == 0);
                        whole.collect::<Vec<u32>>().into()
                    }
                };
                vision["window_size"] = metadata.u32("clip.vision.window_size")?.unwrap_or(112).into();
            }
            Qwen3 => {
                let positions = self.rows("v.position_embd.weight")?;
                vision["num_position_embeddings"] = positions.into();
                vision["deepstack_visual_indexes"] = self.deep().into_iter().collect::<Vec<_>>().into();
            }
            _ => {}
        }
        Ok(())
    }

    /// Sections of the text model's rotary pairs for time, height and width.
    fn sections(&self, words: &Metadata, text: &TransformerSpec) -> Result<Vec<i64>, LoadError> {
        let key = format!("{}.rope.dimension_sections", text.architecture);
        let mut sections = words.integers(&key)?.ok_or_else(|| words.missing(&key))?;
        sections.truncate(3);
        Ok(sections)
    }

    /// Token in place of a picture.
    fn place(&self, words: &Metadata) -> Result<usize, LoadError> {
        const KEY: &str = "tokenizer.ggml.tokens";
        let place = self.projector.place();
        let at = words.strings(KEY)?.and_then(|tokens| tokens.iter().position(|token| token == place));
        // LLaVA's text models have no such token, nor a text that becomes it.
        let other = match self.projector {
            Mlp => words.u32("tokenizer.ggml.unknown_token_id")?.map(|token| token as usize),
            // Files of Gemma 3 may leave out the token, because the text model has no row for it.
            Gemma3 => words.u32("tokenizer.ggml.padding_token_id")?.map(|token| token as usize),
            _ => None,
        };
        at.or(other).ok_or_else(|| LoadError::Missing {
            file: words.file().to_owned(),
            what: format!("token {place}"),
            hint: format!(
                ", which stands in a picture's place in prompts for {}; without a tower (mmproj = none) it runs as text",
                self.metadata().file()
            ),
        })
    }
}

pub(super) fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(settings) => settings,
        _ => unreachable!("it was made as an object"),
    }
}
