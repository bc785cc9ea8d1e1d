//! A tower for sound on disk, opened: settings, tensors and the feature extractor's settings beside a text model's. Opening
//! checks every shape.

use std::path::Path;

use super::AudioSpec;
use super::spec::Family;
use crate::error::LoadError;
use crate::load::{Found, Tensors, huggingface::read_config};
use crate::spec::{Config, Names, TransformerSpec};
use crate::tensor::Tensor;
use crate::vision::{f32s, no_tokens};

/// An opened tower.
#[derive(Debug)]
pub struct AudioFiles {
    /// What it is.
    pub spec: AudioSpec,
    pub(super) tensors: Tensors,
    pub(super) first: Affine,             // (hidden, 3 * mels)
    pub(super) second: Affine,            // (hidden, 3 * hidden)
    pub(super) norm: Option<[Tensor; 2]>, // (hidden) each: of rows that were joined
    pub(super) up: Option<Tensor>,        // (inner, joined)
    pub(super) down: Tensor,              // (text hidden, inner or joined)
    pub(super) down_bias: Option<Tensor>, // (text hidden)
}

/// A matrix and what is added to its products.
#[derive(Debug)]
pub(super) struct Affine {
    pub(super) weight: Tensor,
    pub(super) bias: Tensor,
}

/// What the towers call their tensors: as Whisper's encoder does.
const NAMES: Names = Names {
    prefix: "audio_tower.",
    token_embedding: "no_tokens",
    position_embedding: "embed_positions",
    final_norm: "layer_norm",
    layer: "layers.",
    query: "self_attn.q_proj",
    key: "self_attn.k_proj",
    value: "self_attn.v_proj",
    attention_output: "self_attn.out_proj",
    attention_norm: "self_attn_layer_norm",
    up: "fc1",
    down: "fc2",
    mlp_norm: "final_layer_norm",
    ..Names::NONE
};
const JOINER: &str = "multi_modal_projector";

/// The settings of a directory's feature extractor, where there are some: in a file of their own, or in what newer libraries save
/// for all inputs together.
fn extractor_config(directory: &Path) -> Result<Option<Config>, LoadError> {
    if let Some(config) = read_config(directory, "preprocessor_config.json")? {
        return Ok(Some(config));
    }
    match read_config(directory, "processor_config.json")? {
        Some(config) => config.object("feature_extractor"),
        None => Ok(None),
    }
}

impl AudioFiles {
    /// Opens the tower of a model whose `config.json` and tensors beside the text's these are. None where the directory says
    /// nothing of how sound is prepared: the model is one of text then.
    ///
    /// # Errors
    /// [`LoadError`] naming the file and the key or tensor in it.
    pub(crate) fn open(
        directory: &Path,
        config: &Config,
        mut tensors: Vec<Tensor>,
        text: &TransformerSpec,
    ) -> Result<Option<AudioFiles>, LoadError> {
        let Some(extractor) = extractor_config(directory)? else { return Ok(None) };
        let spec = AudioSpec::from_config(config, &extractor, text.hidden)?;
        for tensor in &mut tensors {
            if let Some(own) = tensor.name.strip_prefix("model.") {
                tensor.name = own.to_owned();
            }
        }
        AudioFiles::resolve(&directory.display().to_string(), spec, tensors).map(Some)
    }

    fn resolve(name: &str, spec: AudioSpec, mut tensors: Vec<Tensor>) -> Result<AudioFiles, LoadError> {
        let hidden = spec.layers.hidden;
        tensors.push(no_tokens(&NAMES, hidden));
        let mut found = Found::new(name, &NAMES, tensors)?;
        // Keys are made without one.
        for layer in 0..spec.layers.layers.len() {
            let bias = format!("{}{}{layer}.{}.bias", NAMES.prefix, NAMES.layer, NAMES.key);
            if found.get(&bias).is_none() {
                found.put_back(f32s(name, bias, vec![0.0; hidden]));
            }
        }
        let mut convolution = |which: &str, from: usize| -> Result<Affine, LoadError> {
            let at = format!("{}{which}", NAMES.prefix);
            let weight = found.take(&format!("{at}.weight"), &[hidden, from, 3])?;
            let bias = found.take(&format!("{at}.bias"), &[hidden])?;
            Ok(Affine { weight: Tensor { shape: vec![hidden, 3 * from], ..weight }, bias })
        };
        let (first, second) = (convolution("conv1", spec.mels)?, convolution("conv2", hidden)?);
        let norm = match spec.means() {
            false => None,
            true => {
                // Rows are normed when they were joined, and not before.
                let mut own = |part: String, instead: f32| -> Result<Tensor, LoadError> {
                    let own = found.take(&part, &[hidden])?;
                    found.put_back(f32s(name, part, vec![instead; hidden]));
                    Ok(own)
                };
                let norm = format!("{}{}", NAMES.prefix, NAMES.final_norm);
                Some([own(format!("{norm}.weight"), 1.0)?, own(format!("{norm}.bias"), 0.0)?])
            }
        };
        let (joined, text, inner) = (spec.joined_width(), spec.text_hidden, spec.inner);
        let (up, down, down_bias) = match spec.family {
            Family::Qwen2Audio => {
                let down = found.take(&format!("{JOINER}.linear.weight"), &[text, joined])?;
                (None, down, Some(found.take(&format!("{JOINER}.linear.bias"), &[text])?))
            }
            Family::Voxtral => {
                let up = found.take(&format!("{JOINER}.linear_1.weight"), &[inner, joined])?;
                (Some(up), found.take(&format!("{JOINER}.linear_2.weight"), &[text, inner])?, None)
            }
        };
        let tensors = found.resolve(&spec.layers)?;
        found.left_out(&spec.layers.architecture, &[])?;
        Ok(AudioFiles { spec, tensors, first, second, norm, up, down, down_bias })
    }

    /// Matrices beside those of the layers.
    pub(super) fn matrices(&self) -> impl Iterator<Item = &Tensor> {
        [&self.first.weight, &self.second.weight, &self.down].into_iter().chain(&self.up)
    }

    /// Vectors beside those of the layers.
    pub(super) fn vectors(&self) -> impl Iterator<Item = &Tensor> {
        let norm = self.norm.iter().flatten();
        [&self.first.bias, &self.second.bias].into_iter().chain(norm).chain(&self.down_bias)
    }

    /// Numbers in all its weights.
    pub(crate) fn parameters(&self) -> u64 {
        let beside = self.matrices().chain(self.vectors());
        self.tensors.parameters() + beside.map(|tensor| tensor.elements() as u64).sum::<u64>()
    }
}
