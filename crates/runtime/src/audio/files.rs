//! Files of an opened audio tower: settings, tensors and the feature extractor's settings, stored beside a text
//! model. Opening them checks every shape.

use std::path::Path;

use super::AudioSpec;
use super::spec::{Family, Planes};
use crate::error::LoadError;
use crate::load::{Found, Tensors, huggingface::read_config};
use crate::spec::{Config, Names, TransformerSpec};
use crate::tensor::Tensor;
use crate::vision::{JoinerFiles, f32s, no_tokens};

/// Audio tower, opened.
#[derive(Debug)]
pub struct AudioFiles {
    /// Settings of the tower and its projector.
    pub spec: AudioSpec,
    pub(super) tensors: Tensors,
    pub(super) stem: StemFiles,
    pub(super) joiner: JoinerFiles,
}

/// Weights of the convolutions in front of the layers.
#[derive(Debug)]
pub(super) enum StemFiles {
    /// Two convolutions over frames.
    Frames {
        first: Affine,  // (hidden, 3 * mels)
        second: Affine, // (hidden, 3 * hidden)
    },
    /// Three convolutions over bands and frames.
    Planes {
        convolutions: [Affine; 3], // (channels, 9), (channels, 9 * channels) twice
        out: Tensor,               // (hidden, channels * bands)
    },
}

impl StemFiles {
    /// Takes the convolutions of a tower.
    fn take(found: &mut Found<'_>, spec: &AudioSpec) -> Result<StemFiles, LoadError> {
        let hidden = spec.layers.hidden;
        let mut convolution = |which: &str, shape: &[usize]| -> Result<Affine, LoadError> {
            let at = format!("{}{which}", NAMES.prefix);
            let weight = found.take(&format!("{at}.weight"), shape)?;
            let bias = found.take(&format!("{at}.bias"), &shape[..1])?;
            let flat = vec![shape[0], shape[1..].iter().product()];
            Ok(Affine { weight: Tensor { shape: flat, ..weight }, bias })
        };
        Ok(match spec.planes {
            None => StemFiles::Frames {
                first: convolution("conv1", &[hidden, spec.mels, 3])?,
                second: convolution("conv2", &[hidden, hidden, 3])?,
            },
            Some(Planes { channels, .. }) => StemFiles::Planes {
                convolutions: [
                    convolution("conv2d1", &[channels, 1, 3, 3])?,
                    convolution("conv2d2", &[channels, channels, 3, 3])?,
                    convolution("conv2d3", &[channels, channels, 3, 3])?,
                ],
                out: found.take(
                    &format!("{}conv_out.weight", NAMES.prefix),
                    &[hidden, channels * spec.bands_left()],
                )?,
            },
        })
    }

    fn affine(&self) -> impl Iterator<Item = &Affine> {
        let (two, three) = match self {
            StemFiles::Frames { first, second } => (Some([first, second]), None),
            StemFiles::Planes { convolutions, .. } => (None, Some(convolutions)),
        };
        two.into_iter().flatten().chain(three.into_iter().flatten())
    }

    fn out(&self) -> Option<&Tensor> {
        match self {
            StemFiles::Frames { .. } => None,
            StemFiles::Planes { out, .. } => Some(out),
        }
    }
}

/// Weight matrix with its bias.
#[derive(Debug)]
pub(super) struct Affine {
    pub(super) weight: Tensor,
    pub(super) bias: Tensor,
}

/// Tensor names of the towers. They follow Whisper's encoder.
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
/// Tensor names of Qwen3-ASR, whose position embeddings are computed instead of stored.
const QWEN3_ASR: Names = Names { final_norm: "ln_post", ..NAMES };
const JOINER: &str = "multi_modal_projector";

/// Settings of a directory's feature extractor, or `None` if it has none. They stand in their own file, or in the
/// file in which newer libraries save the settings of all inputs.
fn extractor_config(directory: &Path) -> Result<Option<Config>, LoadError> {
    if let Some(config) = read_config(directory, "preprocessor_config.json")? {
        return Ok(Some(config));
    }
    match read_config(directory, "processor_config.json")? {
        Some(config) => config.object("feature_extractor"),
        None => Ok(None),
    }
}

/// Takes the projector to the text model's rows, and the norm before it.
fn joiner(name: &str, found: &mut Found<'_>, spec: &AudioSpec) -> Result<JoinerFiles, LoadError> {
    let hidden = spec.layers.hidden;
    let norm = match spec.means() {
        false => None,
        true => {
            // Rows are normalised after joining. The network's own final norm is not read: it gets placeholder
            // weights.
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
            (Some((up, None)), found.take(&format!("{JOINER}.linear_2.weight"), &[text, inner])?, None)
        }
        Family::Qwen3Asr => {
            let mut affine = |which: &str, shape: &[usize]| -> Result<[Tensor; 2], LoadError> {
                let weight = found.take(&format!("{JOINER}.{which}.weight"), shape)?;
                Ok([weight, found.take(&format!("{JOINER}.{which}.bias"), &shape[..1])?])
            };
            let [up, up_bias] = affine("linear_1", &[inner, joined])?;
            let [down, down_bias] = affine("linear_2", &[text, inner])?;
            (Some((up, Some(up_bias))), down, Some(down_bias))
        }
    };
    Ok(JoinerFiles { norm, merge: None, up, down, down_bias })
}

impl AudioFiles {
    /// The tower's layers and their tensors, for quantisation at load time (as for a vision tower).
    pub(crate) fn layers_mut(&mut self) -> (&TransformerSpec, &mut Tensors) {
        (&self.spec.layers, &mut self.tensors)
    }

    /// Summary of the types that the layers' matrices are quantised to, as for the text network.
    pub(crate) fn packed_summary(&self) -> Option<String> {
        self.tensors.packed_summary()
    }

    /// Opens the audio tower of a model from its `config.json` and the tensors left beside the text model's.
    /// Returns `None` if the directory does not say how sound is prepared: the model then takes text only.
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
        let names = if spec.planes.is_some() { &QWEN3_ASR } else { &NAMES };
        tensors.push(no_tokens(names, hidden));
        let mut found = Found::new(name, names, tensors)?;
        if let Some(planes) = spec.planes {
            let places = waves(planes.rows_of_chunk(planes.frames), spec.rows, hidden);
            let places = f32s(name, format!("{}{}.weight", names.prefix, names.position_embedding), places);
            found.put_back(Tensor { shape: vec![spec.rows, hidden], ..places });
        }
        // Key projections have no bias: the network gets zeros.
        for layer in 0..spec.layers.layers.len() {
            let bias = format!("{}{}{layer}.{}.bias", NAMES.prefix, NAMES.layer, NAMES.key);
            if found.get(&bias).is_none() {
                found.put_back(f32s(name, bias, vec![0.0; hidden]));
            }
        }
        let stem = StemFiles::take(&mut found, &spec)?;
        let joiner = joiner(name, &mut found, &spec)?;
        let tensors = found.resolve(&spec.layers)?;
        found.left_out(&spec.layers.architecture, &[])?;
        Ok(AudioFiles { spec, tensors, stem, joiner })
    }

    /// Matrices outside the layers.
    pub(super) fn matrices(&self) -> impl Iterator<Item = &Tensor> {
        let stem = self.stem.affine().map(|affine| &affine.weight).chain(self.stem.out());
        stem.chain([&self.joiner.down]).chain(self.joiner.up.iter().map(|(up, _)| up))
    }

    /// Vectors outside the layers.
    pub(super) fn vectors(&self) -> impl Iterator<Item = &Tensor> {
        let stem = self.stem.affine().map(|affine| &affine.bias);
        let JoinerFiles { norm, up, down_bias, .. } = &self.joiner;
        let up = up.iter().filter_map(|(_, bias)| bias.as_ref());
        stem.chain(norm.iter().flatten()).chain(up).chain(down_bias)
    }

    /// Number of parameters of the tower.
    pub(crate) fn parameters(&self) -> u64 {
        let beside = self.matrices().chain(self.vectors());
        self.tensors.parameters() + beside.map(|tensor| tensor.elements() as u64).sum::<u64>()
    }
}

/// Sinusoidal position embeddings, `(rows, hidden)`. Positions start again with each chunk of `rows_of_chunk` rows.
fn waves(rows_of_chunk: usize, rows: usize, hidden: usize) -> Vec<f32> {
    const PERIOD_MAX: f64 = 10_000.0;
    let half = hidden / 2;
    let step = PERIOD_MAX.ln() / half.saturating_sub(1).max(1) as f64;
    let of = |row: usize| {
        let turn = move |at: usize| (row % rows_of_chunk) as f32 * ((-step) as f32 * at as f32).exp();
        (0..half).map(move |at| turn(at).sin()).chain((0..half).map(move |at| turn(at).cos()))
    };
    (0..rows).flat_map(of).collect()
}
