//! Description of an audio tower: Whisper's encoder, the projector to the text model's rows, and the windows that a
//! sound is cut into.

use hanzo_engine_ops::{Activation, HeadShape};

use crate::error::LoadError;
use crate::limits::{HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, VOCAB_MAX, WIDTH_MAX};
use crate::mel::SAMPLE_RATE;
use crate::spec::{
    AttentionSpec, Config, DenseSpec, LayerSpec, Mask, MlpSpec, NormKind, NormOrder, NormSpec, PositionTable,
    TransformerSpec,
};

/// Maximum number of bands of a frame.
const MELS_MAX: usize = 512;
/// Maximum number of rows of a window.
const ROWS_MAX: usize = 4_096;
/// Maximum length, in seconds, of a sound that is cut into several windows.
const SECONDS_MAX: usize = 1800;
/// Frames for each row: the stride of the second convolution.
pub(super) const FRAMES_OF_ROW: usize = 2;
/// Minimum number of samples for towers whose frames end with the sound. A shorter sound is padded with silence.
pub(super) const SAMPLES_MIN: usize = 8_000;
/// Frames for each second of sound.
const FRAMES_OF_SECOND: usize = 100;
const EPS: f32 = 1e-5;

/// Model family. It decides tensor names and how rows are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// Qwen2-Audio: one window; padding after the sound is masked. The mean of two rows is normalised, and one
    /// matrix projects it.
    Qwen2Audio,
    /// Voxtral: as many windows as the sound needs; the last one includes its padding of silence. An MLP projects
    /// several normalised rows to one.
    Voxtral,
    /// Qwen3-ASR: as many windows of eight seconds as the sound needs, without padding. Three convolutions run over
    /// the bands and frames of each second, and an MLP projects each row.
    Qwen3Asr,
}

/// Convolutions over the bands and frames of a chunk. Each halves both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Planes {
    /// Frames of a chunk.
    pub(crate) frames: usize,
    /// Output channels of each convolution.
    pub(crate) channels: usize,
}

/// Number of convolutions.
pub(super) const HALVINGS: usize = 3;

/// Audio tower and its projector to a text model.
#[derive(Clone, Debug, PartialEq)]
pub struct AudioSpec {
    pub(crate) family: Family,
    /// Layers, which run over the rows of one window.
    pub(crate) layers: TransformerSpec,
    /// Bands of a frame.
    pub(crate) mels: usize,
    /// Rows of a whole window.
    pub(crate) rows: usize,
    /// Rows that are joined to one row of the text model.
    pub(crate) joined: usize,
    /// Convolutions over bands and frames; `None`: over frames only.
    pub(crate) planes: Option<Planes>,
    /// Maximum number of windows of a sound.
    pub(crate) windows_max: usize,
    /// Width of the projector's MLP; 0 if a single matrix projects.
    pub(crate) inner: usize,
    /// Elements of a row of the text model.
    pub(crate) text_hidden: usize,
    /// Token that stands for a sound in the prompt.
    pub(crate) audio_token: u32,
}

/// Whether the model type belongs to a supported family.
pub(crate) fn knows(model_type: &str) -> bool {
    family(model_type).is_some()
}

fn family(model_type: &str) -> Option<Family> {
    match model_type {
        "qwen2_audio" => Some(Family::Qwen2Audio),
        "voxtral" => Some(Family::Voxtral),
        "qwen3_asr" => Some(Family::Qwen3Asr),
        _ => None,
    }
}

impl Family {
    /// Number of the `rows` of a window that are joined to one row of the text model.
    fn joined_rows(self, audio: &Config, rows: usize, [hidden, ffn]: [usize; 2]) -> Result<usize, LoadError> {
        let joined = match self {
            Family::Qwen2Audio => 2,
            // The joined rows are concatenated to the width of the layers' MLPs.
            Family::Voxtral => ffn / hidden,
            Family::Qwen3Asr => 1,
        };
        if joined == 0
            || (self == Family::Voxtral && !ffn.is_multiple_of(hidden))
            || !rows.is_multiple_of(joined)
        {
            let reason = format!("{rows} rows of {hidden} elements are no whole rows of {ffn}");
            return Err(audio.corrupt("intermediate_size", reason));
        }
        Ok(joined)
    }

    /// Refuses unknown activations of the projector.
    fn check_projector(self, config: &Config) -> Result<(), LoadError> {
        if self != Family::Voxtral {
            return Ok(());
        }
        match config.string("projector_hidden_act")?.unwrap_or("gelu") {
            "gelu" => Ok(()),
            other => Err(config.unsupported("projector_hidden_act", other, "gelu is known")),
        }
    }
}

/// Token that stands for a sound in the prompt.
fn audio_token(config: &Config, family: Family) -> Result<u32, LoadError> {
    let token = match config.whole("audio_token_id", VOCAB_MAX)? {
        Some(token) => Some(token),
        None => config.whole("audio_token_index", VOCAB_MAX)?,
    };
    let usual = match family {
        Family::Qwen2Audio => 151_646,
        Family::Voxtral => 24,
        Family::Qwen3Asr => 151_676,
    };
    Ok(token.unwrap_or(usual) as u32)
}

/// Refuses settings of the tower's layers that no published tower has.
fn check_layers(audio: &Config) -> Result<(), LoadError> {
    if let Some(activation) = audio.string("activation_function")?.filter(|&name| name != "gelu") {
        return Err(audio.unsupported("activation_function", activation, "gelu is known"));
    }
    if audio.bool("scale_embedding")? == Some(true) {
        return Err(audio.unsupported("scale_embedding", true, "no published tower has it"));
    }
    Ok(())
}

/// Defaults of a model class for settings that `audio_config` leaves out.
struct Usual {
    hidden: usize,
    ffn: usize,
    layers: usize,
    heads: usize,
}

/// Defaults of Qwen2-Audio and Voxtral.
const WHISPER: Usual = Usual { hidden: 1280, ffn: 5120, layers: 32, heads: 20 };
const QWEN3_ASR: Usual = Usual { hidden: 1024, ffn: 4096, layers: 24, heads: 16 };
const MELS: usize = 128;
const ROWS: usize = 1500;

impl AudioSpec {
    /// Reads the whole model's `config.json` and the settings of its feature extractor, for a text model with rows
    /// of `text_hidden` elements.
    pub(super) fn from_config(
        config: &Config,
        extractor: &Config,
        text_hidden: usize,
    ) -> Result<AudioSpec, LoadError> {
        let model_type = config.string("model_type")?.unwrap_or_default();
        let Some(family) = family(model_type) else {
            return Err(config.unsupported(
                "model_type",
                model_type,
                "qwen2_audio, voxtral and qwen3_asr are known",
            ));
        };
        let audio = config.object("audio_config")?;
        let audio = audio.unwrap_or_else(|| Config::new(config.file.clone(), serde_json::Map::new()));
        // The model classes name the same setting in two ways.
        let whole = |keys: [&str; 2], max, usual| -> Result<usize, LoadError> {
            for key in keys {
                if let Some(number) = audio.count(key, max)? {
                    return Ok(number);
                }
            }
            Ok(usual)
        };
        let usual = if family == Family::Qwen3Asr { QWEN3_ASR } else { WHISPER };
        let hidden = whole(["d_model", "hidden_size"], WIDTH_MAX, usual.hidden)?;
        let heads = whole(["encoder_attention_heads", "num_attention_heads"], HEADS_MAX, usual.heads)?;
        if !hidden.is_multiple_of(heads) || hidden / heads > HEAD_DIM_MAX {
            let reason = format!("hidden states of {hidden} do not split into {heads} heads");
            return Err(audio.corrupt("num_attention_heads", reason));
        }
        let ffn = whole(["encoder_ffn_dim", "intermediate_size"], WIDTH_MAX / 2, usual.ffn)?;
        let count = whole(["encoder_layers", "num_hidden_layers"], LAYERS_MAX, usual.layers)?;
        let mels = whole(["num_mel_bins"; 2], MELS_MAX, MELS)?;
        let planes = match family {
            Family::Qwen2Audio | Family::Voxtral => None,
            Family::Qwen3Asr => Some(Planes::from_config(&audio)?),
        };
        let rows = match planes {
            None => whole(["max_source_positions"; 2], ROWS_MAX, ROWS)?,
            Some((planes, chunks)) => chunks * planes.rows_of_chunk(planes.frames),
        };
        let planes = planes.map(|(planes, _)| planes);
        check_layers(&audio)?;
        check_extractor(extractor, mels, rows, planes)?;
        let joined = family.joined_rows(&audio, rows, [hidden, ffn])?;
        family.check_projector(config)?;
        let audio_token = audio_token(config, family)?;
        let layers = layers([hidden, heads, ffn, count], rows).checked(&config.file)?;
        let mut spec = AudioSpec {
            family,
            layers,
            mels,
            rows,
            joined,
            planes,
            windows_max: 1,
            inner: match family {
                Family::Qwen2Audio => 0,
                Family::Voxtral => text_hidden,
                Family::Qwen3Asr => hidden,
            },
            text_hidden,
            audio_token,
        };
        if family != Family::Qwen2Audio {
            spec.windows_max = (SECONDS_MAX * SAMPLE_RATE / spec.samples()).max(1);
        }
        Ok(spec)
    }

    /// Frames of a whole window.
    pub(crate) fn frames(&self) -> usize {
        match self.planes {
            None => FRAMES_OF_ROW * self.rows,
            Some(planes) => self.rows / planes.rows_of_chunk(planes.frames) * planes.frames,
        }
    }

    /// Samples of a whole window.
    pub(super) fn samples(&self) -> usize {
        self.frames() * SAMPLE_RATE / FRAMES_OF_SECOND
    }

    /// Whether joined rows are averaged, and normalised afterwards. Otherwise normalised rows are concatenated.
    pub(super) fn means(&self) -> bool {
        self.family == Family::Qwen2Audio
    }

    /// Whether the tower also attends to the silence between the sound and the end of its window.
    pub(super) fn whole_windows(&self) -> bool {
        self.family == Family::Voxtral
    }

    /// Rows that the given number of frames of a window becomes. The beginning of a sound has one frame more than
    /// its rows need.
    pub(super) fn rows_of(&self, frames: usize) -> usize {
        match self.planes {
            None => frames / FRAMES_OF_ROW,
            Some(planes) => {
                frames / planes.frames * planes.rows_of_chunk(planes.frames)
                    + planes.rows_of_chunk(frames % planes.frames)
            }
        }
    }

    /// Whether a window may have the given number of frames.
    pub(super) fn fits(&self, frames: usize) -> bool {
        let part = match self.family {
            Family::Qwen2Audio => frames % FRAMES_OF_ROW == 1,
            Family::Voxtral => false,
            Family::Qwen3Asr => frames > 0,
        };
        (part && frames < self.frames() || frames == self.frames()) && self.rows_of(frames) >= self.joined
    }

    /// Elements of a joined row.
    pub(super) fn joined_width(&self) -> usize {
        if self.means() { self.layers.hidden } else { self.joined * self.layers.hidden }
    }

    /// Whether a sound's frames end with the sound, mirrored there, instead of running on into padding.
    pub(super) fn ends_with_sound(&self) -> bool {
        self.family == Family::Qwen3Asr
    }

    /// Bands left after all convolutions.
    pub(super) fn bands_left(&self) -> usize {
        halved(self.mels)
    }

    /// Chat template of the maker's library, for models whose files have none.
    pub(crate) fn template(&self) -> Option<&'static str> {
        match self.family {
            Family::Qwen2Audio | Family::Qwen3Asr => None,
            Family::Voxtral => Some(VOXTRAL_TEMPLATE),
        }
    }
}

/// Halves the number, rounded up, once for each convolution.
fn halved(number: usize) -> usize {
    (0..HALVINGS).fold(number, |number, _| number.div_ceil(2))
}

impl Planes {
    /// Reads `audio_config`. Returns the convolutions and the number of chunks that attend to each other.
    fn from_config(audio: &Config) -> Result<(Planes, usize), LoadError> {
        let half = audio.count("n_window", ROWS_MAX)?.unwrap_or(50);
        let all = audio.count("n_window_infer", ROWS_MAX)?.unwrap_or(800);
        let planes = Planes {
            frames: 2 * half,
            channels: audio.count("downsample_hidden_size", WIDTH_MAX / 9)?.unwrap_or(480),
        };
        if !all.is_multiple_of(planes.frames) {
            let reason = format!("{all} frames are no whole chunks of {}", planes.frames);
            return Err(audio.corrupt("n_window_infer", reason));
        }
        Ok((planes, all / planes.frames))
    }

    /// Rows of a chunk with the given number of frames.
    pub(super) fn rows_of_chunk(&self, frames: usize) -> usize {
        halved(frames)
    }
}

/// Chat template that writes messages as mistral-common does for Voxtral (tokenizer version 7), without tools.
const VOXTRAL_TEMPLATE: &str = "\
{{ bos_token }}\
{% for message in messages %}\
{% if message['role'] == 'system' %}{{ '[SYSTEM_PROMPT]' }}\
{% elif message['role'] == 'user' %}{{ '[INST]' }}\
{% elif message['role'] != 'assistant' %}{{ raise_exception('roles are system, user and assistant') }}{% endif %}\
{% if message['content'] is string %}{{ message['content'] }}\
{% else %}{% for part in message['content'] %}\
{% if part['type'] == 'audio' %}{{ '[BEGIN_AUDIO][AUDIO]' }}{% else %}{{ part['text'] }}{% endif %}\
{% endfor %}{% endif %}\
{% if message['role'] == 'system' %}{{ '[/SYSTEM_PROMPT]' }}\
{% elif message['role'] == 'user' %}{{ '[/INST]' }}\
{% else %}{{ eos_token }}{% endif %}\
{% endfor %}";

/// Layers of Whisper's encoder.
fn layers([hidden, heads, ffn, count]: [usize; 4], rows: usize) -> TransformerSpec {
    let attention = AttentionSpec {
        mask: Mask::Whole { reach: None },
        qkv_bias: true,
        output_bias: true,
        rope: None,
        ..AttentionSpec::causal(HeadShape { heads, kv_heads: heads, head_dim: hidden / heads })
    };
    let mlp =
        DenseSpec { ffn, activation: Activation::GeluErf, gated: false, up_bias: true, down_bias: true };
    let layer = LayerSpec { order: NormOrder::Pre, attention, mlp: MlpSpec::Dense(mlp), residual_scale: 1.0 };
    let norm = NormSpec { kind: NormKind::Layer { bias: true }, eps: EPS };
    // A tower has no tokens: no row uses its vocabulary.
    TransformerSpec {
        positions: Some(PositionTable { rows, offset: 0 }),
        ..TransformerSpec::bare("whisper", [1, hidden], vec![layer; count], norm, rows)
    }
}

/// Checks that the feature extractor works as this code does: Whisper's features, with these bands and windows.
fn check_extractor(
    extractor: &Config,
    mels: usize,
    rows: usize,
    planes: Option<Planes>,
) -> Result<(), LoadError> {
    let (own, usual_mels) = match planes {
        None => ("WhisperFeatureExtractor", 80),
        Some(_) => ("Qwen3ASRFeatureExtractor", 128),
    };
    if let Some(kind) = extractor.string("feature_extractor_type")?
        && kind != own
    {
        let reason = format!("{own} is what this model's tower hears");
        return Err(extractor.unsupported("feature_extractor_type", kind, reason));
    }
    let seconds = FRAMES_OF_ROW * rows / FRAMES_OF_SECOND;
    let needed = [
        ("feature_size", mels, usual_mels),
        ("sampling_rate", SAMPLE_RATE, SAMPLE_RATE),
        ("hop_length", 160, 160),
        ("n_fft", 400, 400),
        match planes {
            None => ("chunk_length", seconds, 30),
            Some(planes) => ("n_window", planes.frames / 2, 50),
        },
        // For Qwen3-ASR, which pads shorter sounds.
        ("min_length", SAMPLES_MIN, SAMPLES_MIN),
    ];
    for (key, needed, usual) in needed {
        let said = extractor.whole(key, usize::MAX >> 12)?.unwrap_or(usual);
        if said != needed || (key == "chunk_length" && !rows.is_multiple_of(FRAMES_OF_SECOND / FRAMES_OF_ROW))
        {
            let reason = format!("{needed} is what this model's tower hears");
            return Err(extractor.unsupported(key, said, reason));
        }
    }
    for key in ["dither", "padding_value"] {
        if let Some(number) = extractor.f32(key)?.filter(|&number| number != 0.0) {
            return Err(extractor.unsupported(key, number, "0 is known"));
        }
    }
    if extractor.bool("do_normalize")? == Some(true) {
        return Err(extractor.unsupported(
            "do_normalize",
            true,
            "Whisper's features are of the sound as it is",
        ));
    }
    Ok(())
}
