//! Settings of a VITS model: transformers' `config.json`, or for Piper the shapes of its tensors, because its
//! settings leave them out.

use hanzo_engine_runtime::{LoadError, VoiceFiles, VoiceKind};
use serde_json::Value;

use crate::weights::Weights;

/// Maximum of any size.
const SIZE_MAX: usize = 1 << 16;
/// Dilations of Piper's vocoder blocks, with single convolutions and with pairs.
const PIPER_SINGLE: [[usize; 2]; 3] = [[1, 2], [2, 6], [3, 12]];
const PIPER_PAIRS: [[usize; 3]; 3] = [[1, 3, 5]; 3];
/// Other constants of Piper's networks.
const PIPER_BOUND: f32 = 5.0;
const PIPER_SLOPE: f32 = 0.1;
const PIPER_EPS: f32 = 1e-5;

/// Settings of a VITS model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct VitsConfig {
    pub(crate) hidden: usize,
    pub(crate) inner: usize,
    pub(crate) layers: usize,
    /// Number of latent channels.
    pub(crate) latents: usize,
    pub(crate) couplings: usize,
    pub(crate) wavenet_layers: usize,
    pub(crate) wavenet_dilation: usize,
    pub(crate) draws_durations: bool,
    pub(crate) duration_flows: usize,
    pub(crate) separable_layers: usize,
    pub(crate) spline_bound: f32,
    pub(crate) upsample_rates: Vec<usize>,
    pub(crate) block_dilations: Vec<Vec<usize>>,
    pub(crate) slope: f32,
    pub(crate) norm_eps: f32,
    /// Size of a speaker embedding; 0: the model has one voice.
    pub(crate) speaker: usize,
    pub(crate) sample_rate: u32,
    pub(crate) noise_scale: f32,
    pub(crate) duration_noise_scale: f32,
    pub(crate) length_scale: f32,
}

struct ConfigReader<'a> {
    file: &'a str,
    values: &'a Value,
}

impl ConfigReader<'_> {
    fn corrupt(&self, key: &str, reason: String) -> LoadError {
        LoadError::Corrupt { file: self.file.to_owned(), what: format!("key {key}"), reason }
    }

    fn size(
        &self,
        key: &str,
        range: std::ops::RangeInclusive<usize>,
        default: Option<usize>,
    ) -> Result<usize, LoadError> {
        let found = match &self.values[key] {
            Value::Null => default,
            value => value.as_u64().map(|value| value as usize),
        };
        found.filter(|value| range.contains(value)).ok_or_else(|| {
            self.corrupt(key, format!("{}; {} to {} is known", self.values[key], range.start(), range.end()))
        })
    }

    fn number(&self, key: &str, default: f32) -> Result<f32, LoadError> {
        match &self.values[key] {
            Value::Null => Ok(default),
            value => {
                let number = value
                    .as_f64()
                    .map(|number| number as f32)
                    .filter(|number| number.is_finite() && *number >= 0.0);
                number.ok_or_else(|| self.corrupt(key, format!("{value} is no number from 0 on")))
            }
        }
    }

    fn sizes(&self, value: &Value, key: &str) -> Result<Vec<usize>, LoadError> {
        let size =
            |value: &Value| value.as_u64().map(|size| size as usize).filter(|size| (1..=64).contains(size));
        let sizes: Option<Vec<usize>> = value.as_array().and_then(|values| values.iter().map(size).collect());
        let sizes = sizes.filter(|sizes| (1..=16).contains(&sizes.len()));
        sizes.ok_or_else(|| self.corrupt(key, format!("{value}: expected 1 to 16 numbers of 1 to 64")))
    }
}

impl VitsConfig {
    /// Reads the settings of a model.
    ///
    /// # Errors
    /// [`LoadError`] naming the file and the key.
    pub(crate) fn read(files: &VoiceFiles, weights: &Weights) -> Result<VitsConfig, LoadError> {
        match files.kind {
            VoiceKind::Piper => piper(files, weights),
            VoiceKind::Vits | VoiceKind::Kokoro => transformers(files),
        }
    }
}

fn transformers(files: &VoiceFiles) -> Result<VitsConfig, LoadError> {
    let settings = ConfigReader { file: &files.config_file, values: &files.config };
    let size = |key, default| settings.size(key, 1..=SIZE_MAX, default);
    let act = &files.config["hidden_act"];
    if !act.is_null() && act != "relu" {
        return Err(LoadError::Unsupported {
            file: files.config_file.clone(),
            key: "hidden_act".to_owned(),
            value: act.to_string(),
            reason: "of VITS only relu is known here".to_owned(),
        });
    }
    let speakers = settings.size("num_speakers", 1..=SIZE_MAX, Some(1))?;
    let speaker = settings.size("speaker_embedding_size", 0..=SIZE_MAX, Some(0))?;
    let dilations = files.config["resblock_dilation_sizes"].as_array().cloned().unwrap_or_default();
    let dilations = dilations.iter().map(|one| settings.sizes(one, "resblock_dilation_sizes"));
    let block_dilations: Vec<Vec<usize>> = dilations.collect::<Result<_, _>>()?;
    if block_dilations.is_empty() {
        return Err(settings.corrupt("resblock_dilation_sizes", "is missing".to_owned()));
    }
    let channels = settings.size("depth_separable_channels", 2..=2, Some(2))?;
    debug_assert_eq!(channels, 2);
    let latents = size("flow_size", None)?;
    if latents % 2 == 1 {
        return Err(settings.corrupt("flow_size", format!("{latents} is odd")));
    }
    let rate = settings.number("speaking_rate", 1.0)?;
    Ok(VitsConfig {
        hidden: size("hidden_size", None)?,
        inner: size("ffn_dim", None)?,
        layers: settings.size("num_hidden_layers", 1..=64, None)?,
        latents,
        couplings: settings.size("prior_encoder_num_flows", 1..=64, None)?,
        wavenet_layers: settings.size("prior_encoder_num_wavenet_layers", 1..=64, None)?,
        wavenet_dilation: settings.size("wavenet_dilation_rate", 1..=4, Some(1))?,
        draws_durations: files.config["use_stochastic_duration_prediction"].as_bool().unwrap_or(true),
        duration_flows: settings.size("duration_predictor_num_flows", 1..=64, Some(4))?,
        separable_layers: settings.size("depth_separable_num_layers", 1..=8, Some(3))?,
        spline_bound: settings.number("duration_predictor_tail_bound", 5.0)?,
        upsample_rates: settings.sizes(&files.config["upsample_rates"], "upsample_rates")?,
        block_dilations,
        slope: settings.number("leaky_relu_slope", 0.1)?,
        norm_eps: settings.number("layer_norm_eps", 1e-5)?,
        speaker: if speakers > 1 { speaker } else { 0 },
        sample_rate: settings.size("sampling_rate", 4_000..=96_000, Some(16_000))? as u32,
        noise_scale: settings.number("noise_scale", 0.667)?,
        duration_noise_scale: settings.number("noise_scale_duration", 0.8)?,
        length_scale: 1.0 / rate.max(0.01),
    })
}

/// Reads Piper's settings. The network's structure comes from the shapes of its tensors.
fn piper(files: &VoiceFiles, weights: &Weights) -> Result<VitsConfig, LoadError> {
    let shape = |name: &str| weights.shape(name);
    let hidden = shape("enc_p.proj.weight")?.get(1).copied().unwrap_or(0);
    let latents = shape("enc_p.proj.weight")?[0] / 2;
    let inner = shape("enc_p.encoder.ffn_layers.0.conv_1.weight")?[0];
    let count = |name: &dyn Fn(usize) -> String| (0..64).take_while(|&at| shape(&name(at)).is_ok()).count();
    let ups = count(&|at| format!("dec.ups.{at}.weight"));
    // Each kernel is twice its stride.
    let rate = |at: usize| Ok(shape(&format!("dec.ups.{at}.weight"))?.get(2).copied().unwrap_or(0) / 2);
    let upsample_rates = (0..ups).map(rate).collect::<Result<Vec<usize>, LoadError>>()?;
    let pairs = shape("dec.resblocks.0.convs1.0.weight").is_ok();
    let block_dilations = match pairs {
        // Small voices have fewer, with the first of these dilations.
        true => {
            let blocks = count(&|at| format!("dec.resblocks.{at}.convs1.0.weight")) / ups.max(1);
            let pairs = count(&|at| format!("dec.resblocks.0.convs1.{at}.weight"));
            PIPER_PAIRS.iter().take(blocks).map(|one| one[..pairs.min(one.len())].to_vec()).collect()
        }
        false => PIPER_SINGLE.iter().map(|one| one.to_vec()).collect(),
    };
    let sizes = [hidden, latents, inner, ups, upsample_rates.iter().copied().min().unwrap_or(0)];
    if sizes.contains(&0) || latents % 2 == 1 {
        return Err(
            weights.corrupt("tensors", format!("no Piper voice that is known here has sizes of {sizes:?}"))
        );
    }
    let settings = ConfigReader { file: &files.config_file, values: &files.config["inference"] };
    let audio = ConfigReader { file: &files.config_file, values: &files.config["audio"] };
    let speakers = files.config["num_speakers"].as_u64().unwrap_or(1);
    let speaker = if speakers > 1 { shape("emb_g.weight")?.get(1).copied().unwrap_or(0) } else { 0 };
    Ok(VitsConfig {
        hidden,
        inner,
        layers: count(&|at| format!("enc_p.encoder.attn_layers.{at}.conv_q.weight")),
        latents,
        couplings: count(&|at| format!("flow.flows.{}.pre.weight", 2 * at)),
        wavenet_layers: count(&|at| format!("flow.flows.0.enc.in_layers.{at}.weight")),
        wavenet_dilation: 1,
        draws_durations: shape("dp.pre.weight").is_ok(),
        duration_flows: count(&|at| format!("dp.flows.{}.pre.weight", 2 * at + 3)) + 1,
        separable_layers: count(&|at| format!("dp.convs.convs_sep.{at}.weight")),
        spline_bound: PIPER_BOUND,
        upsample_rates,
        block_dilations,
        slope: PIPER_SLOPE,
        norm_eps: PIPER_EPS,
        speaker,
        sample_rate: audio.size("sample_rate", 4_000..=96_000, Some(22_050))? as u32,
        noise_scale: settings.number("noise_scale", 0.667)?,
        duration_noise_scale: settings.number("noise_w", 0.8)?,
        length_scale: settings.number("length_scale", 1.0)?,
    })
}
