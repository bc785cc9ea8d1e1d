//! What a tower for sound is, as data: Whisper's encoder, how its rows become those of a text model, and what of a sound it
//! hears at once.

use hanzo_engine_kernels::{Activation, HeadShape};

use crate::error::LoadError;
use crate::limits::{HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, VOCAB_MAX, WIDTH_MAX};
use crate::spec::{
    AttentionSpec, Config, DenseSpec, LayerSpec, Mask, MlpSpec, NormKind, NormOrder, NormSpec, PositionTable,
    TransformerSpec,
};
use crate::whisper::SAMPLE_RATE;

/// Bands of a frame at most.
const MELS_MAX: usize = 512;
/// Rows of a window at most.
const ROWS_MAX: usize = 4_096;
/// Seconds of a sound that is heard in several windows.
const SECONDS_MAX: usize = 1800;
/// Frames of a row, by the second convolution's stride.
pub(super) const FRAMES_OF_ROW: usize = 2;
/// Samples of a sound at least where its frames end with it: a shorter one has silence behind it.
pub(super) const SAMPLES_MIN: usize = 8_000;
/// Frames of a second.
const FRAMES_OF_SECOND: usize = 100;
const EPS: f32 = 1e-5;

/// How a sound's tensors are called, and its rows are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// Qwen2-Audio: one window, of which what lies behind the sound is not heard; the mean of two rows is normed, and one matrix
    /// makes a row of it.
    Qwen2Audio,
    /// Voxtral: as many windows as a sound needs, the last with the silence behind it; an MLP makes a row of some that were normed.
    Voxtral,
    /// Qwen3-ASR: as many windows of eight seconds as a sound has, of which what lies behind it is not heard; three convolutions over
    /// bands and frames of each second, and an MLP behind each row.
    Qwen3Asr,
}

/// Convolutions over the bands and frames of a chunk, each of which halves both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Planes {
    /// Frames of a chunk.
    pub(crate) frames: usize,
    /// What each gives at a place.
    pub(crate) channels: usize,
}

/// How many they are.
pub(super) const HALVINGS: usize = 3;

/// A tower and what joins it to a text model.
#[derive(Clone, Debug, PartialEq)]
pub struct AudioSpec {
    pub(crate) family: Family,
    /// Its layers, over the rows of one window.
    pub(crate) layers: TransformerSpec,
    /// Bands of a frame.
    pub(crate) mels: usize,
    /// Rows of a whole window, of two frames each.
    pub(crate) rows: usize,
    /// Rows that become one of the text model's.
    pub(crate) joined: usize,
    /// Convolutions over bands and frames, rather than over frames alone.
    pub(crate) planes: Option<Planes>,
    /// Windows of a sound at most.
    pub(crate) windows_max: usize,
    /// Elements between the two matrices of the MLP that makes rows; 0 where one does.
    pub(crate) inner: usize,
    /// Elements of a row that the text model reads.
    pub(crate) text_hidden: usize,
    /// What a prompt has in a sound's place.
    pub(crate) audio_token: u32,
}

/// Whether a model is of a family whose sounds are read.
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

/// What a class takes for granted where `audio_config` does not say it.
struct Usual {
    hidden: usize,
    ffn: usize,
    layers: usize,
    heads: usize,
}

/// Qwen2-Audio's and Voxtral's.
const WHISPER: Usual = Usual { hidden: 1280, ffn: 5120, layers: 32, heads: 20 };
const QWEN3_ASR: Usual = Usual { hidden: 1024, ffn: 4096, layers: 24, heads: 16 };
const MELS: usize = 128;
const ROWS: usize = 1500;

impl AudioSpec {
    /// As the whole model's `config.json` and its feature extractor's settings say it, for a text model with rows of so many
    /// elements.
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
        // The classes call the same by two names.
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
        if let Some(activation) = audio.string("activation_function")?.filter(|&name| name != "gelu") {
            return Err(audio.unsupported("activation_function", activation, "gelu is known"));
        }
        if audio.bool("scale_embedding")? == Some(true) {
            return Err(audio.unsupported("scale_embedding", true, "no published tower has it"));
        }
        check_extractor(extractor, mels, (rows, planes))?;
        let joined = match family {
            Family::Qwen2Audio => 2,
            // Rows lie beside each other in as many elements as the layers' MLPs have.
            Family::Voxtral => ffn / hidden,
            Family::Qwen3Asr => 1,
        };
        if joined == 0
            || (family == Family::Voxtral && !ffn.is_multiple_of(hidden))
            || !rows.is_multiple_of(joined)
        {
            let reason = format!("{rows} rows of {hidden} elements are no whole rows of {ffn}");
            return Err(audio.corrupt("intermediate_size", reason));
        }
        if family == Family::Voxtral {
            match config.string("projector_hidden_act")?.unwrap_or("gelu") {
                "gelu" => {}
                other => return Err(config.unsupported("projector_hidden_act", other, "gelu is known")),
            }
        }
        let token = match config.whole("audio_token_id", VOCAB_MAX)? {
            Some(token) => Some(token),
            None => config.whole("audio_token_index", VOCAB_MAX)?,
        };
        let usual_token = match family {
            Family::Qwen2Audio => 151_646,
            Family::Voxtral => 24,
            Family::Qwen3Asr => 151_676,
        };
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
            audio_token: token.unwrap_or(usual_token) as u32,
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

    /// Whether rows become one by their mean, which is normed then; else they lie beside each other and were.
    pub(super) fn means(&self) -> bool {
        self.family == Family::Qwen2Audio
    }

    /// Whether the silence behind a sound is heard to its window's end.
    pub(super) fn whole_windows(&self) -> bool {
        self.family == Family::Voxtral
    }

    /// Rows of so many frames of a window: all of them, or of a sound's beginning one more than its rows have.
    pub(super) fn rows_of(&self, frames: usize) -> usize {
        match self.planes {
            None => frames / FRAMES_OF_ROW,
            Some(planes) => {
                frames / planes.frames * planes.rows_of_chunk(planes.frames)
                    + planes.rows_of_chunk(frames % planes.frames)
            }
        }
    }

    /// Whether a window may have so many frames.
    pub(super) fn fits(&self, frames: usize) -> bool {
        let part = match self.family {
            Family::Qwen2Audio => frames % FRAMES_OF_ROW == 1,
            Family::Voxtral => false,
            Family::Qwen3Asr => frames > 0,
        };
        (part && frames < self.frames() || frames == self.frames()) && self.rows_of(frames) >= self.joined
    }

    /// Numbers of what is joined.
    pub(super) fn joined_width(&self) -> usize {
        if self.means() { self.layers.hidden } else { self.joined * self.layers.hidden }
    }

    /// Whether a sound's frames end where it does, mirrored there, rather than in the silence behind it.
    pub(super) fn ends_with_sound(&self) -> bool {
        self.family == Family::Qwen3Asr
    }

    /// Bands behind all convolutions over them.
    pub(super) fn bands_left(&self) -> usize {
        halved(self.mels)
    }

    /// The conversation's form that its makers' library writes, where their files have no template.
    pub(crate) fn template(&self) -> Option<&'static str> {
        match self.family {
            Family::Qwen2Audio | Family::Qwen3Asr => None,
            Family::Voxtral => Some(VOXTRAL_TEMPLATE),
        }
    }
}

/// Half as many, rounded up, as often as planes are halved.
fn halved(number: usize) -> usize {
    (0..HALVINGS).fold(number, |number, _| number.div_ceil(2))
}

impl Planes {
    /// As `audio_config` says it, and how many chunks attend to each other.
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

    /// Rows of a chunk with so many frames.
    pub(super) fn rows_of_chunk(&self, frames: usize) -> usize {
        halved(frames)
    }
}

/// As mistral-common writes messages for Voxtral (its seventh version of them), without tools.
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

/// Whisper's layers.
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
    // A tower has no tokens: its vocabulary is one that no row is of.
    TransformerSpec {
        positions: Some(PositionTable { rows, offset: 0 }),
        ..TransformerSpec::bare("whisper", [1, hidden], vec![layer; count], norm, rows)
    }
}

/// Whether features are made as they are here: Whisper's, of such bands and windows.
fn check_extractor(
    extractor: &Config,
    mels: usize,
    (rows, planes): (usize, Option<Planes>),
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
        // Of Qwen3-ASR, which hears no shorter sounds.
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
