//! Rotary position embedding as files describe it, and the resulting frequencies.

use std::f64::consts::TAU;

use hanzo_engine_model_files::error::LoadError;
use hanzo_engine_ops::{QueryScale, RopeAxes, RopeKind};
use serde_json::{Map, Value};

use super::Config;
use crate::limits::{CONTEXT_TOKENS_MAX, HEAD_DIM_MAX};

/// Rotary position embedding (arxiv.org/abs/2104.09864), and its stretching over a longer context.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Pairing of a head's elements.
    pub kind: RopeKind,
    /// The base of the frequencies: theta.
    pub base: f32,
    /// Elements of a head that are rotated; even.
    pub dim: usize,
    /// Stretching of the frequencies.
    pub scaling: RopeScaling,
    /// A divisor for each frequency (`rope_freqs.weight` of GGUF files).
    pub factors: Option<Vec<f32>>, // (dim / 2)
    /// Factor on cosine and sine.
    pub magnitude: f32,
    /// Divisors and magnitude that replace those for long texts.
    pub long: Option<LongRope>,
    /// Assignment of a row's several positions to pairs, if rows have several.
    pub axes: Option<AxesSpec>,
}

/// Frequencies of texts longer than the original context (LongRoPE, arxiv.org/abs/2402.13753).
#[derive(Clone, Debug, PartialEq)]
pub struct LongRope {
    /// Tokens of the original context: only longer texts use these frequencies.
    pub original_context: u32,
    /// A divisor for each frequency.
    pub factors: Vec<f32>, // (dim / 2)
    /// Factor on cosine and sine.
    pub magnitude: f32,
}

/// Division of pairs between a row's positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AxesSpec {
    /// Assignment of positions to pairs.
    pub axes: RopeAxes,
    /// Whether frequencies restart with each position's pairs, rather than continuing from the previous one's.
    pub anew: bool,
}

/// Change of frequencies to reach a longer context than the model was first trained on.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// None.
    None,
    /// Division of all frequencies by the same factor.
    Linear {
        /// Divisor of positions.
        factor: f32,
    },
    /// Slow frequencies are divided by a factor, fast ones are not, with a ramp between (Llama 3.1).
    Llama3 {
        /// Divisor of slow frequencies.
        factor: f32,
        /// Number of rotations within the original context below which a frequency is slow.
        low_freq_factor: f32,
        /// Number of rotations within the original context above which a frequency is fast.
        high_freq_factor: f32,
        /// Tokens of the original context.
        original_context: u32,
    },
    /// YaRN (arxiv.org/abs/2309.00071): similar to Llama 3.1, with the ramp over the index of the pair.
    Yarn {
        /// Divisor of slow frequencies.
        factor: f32,
        /// Number of rotations within the original context above which a frequency is fast.
        beta_fast: f32,
        /// Number of rotations within the original context below which a frequency is slow.
        beta_slow: f32,
        /// Tokens of the original context.
        original_context: u32,
        /// Whether the ramp's ends are rounded to whole pairs.
        truncate: bool,
    },
}

/// Growth of queries beyond the original context, from the settings of a rotary embedding.
pub(super) fn query_scale(settings: &Config) -> Result<Option<QueryScale>, LoadError> {
    let Some(factor) = settings.f32("llama_4_scaling_beta")?.filter(|&factor| factor != 0.0) else {
        return Ok(None);
    };
    let tokens = settings.required("original_max_position_embeddings", CONTEXT_TOKENS_MAX)? as u32;
    Ok(Some(QueryScale { factor, every: tokens, offset: 0 }))
}

impl RopeSpec {
    /// A rotation that is not stretched.
    pub fn plain(kind: RopeKind, base: f32, dim: usize) -> RopeSpec {
        let scaling = RopeScaling::None;
        RopeSpec { kind, base, dim, scaling, factors: None, magnitude: 1.0, long: None, axes: None }
    }

    /// Radians per position of each pair, `dim / 2` of them.
    pub fn inv_freq(&self) -> Vec<f32> {
        self.divided_by(self.factors.as_deref())
    }

    /// The same rotation over the original context of training.
    pub(super) fn unstretched(&self) -> RopeSpec {
        RopeSpec { scaling: RopeScaling::None, factors: None, magnitude: 1.0, long: None, ..self.clone() }
    }

    /// Frequencies in the devices' form: [`RopeSpec::inv_freq`], then those of long texts if there are any.
    pub fn tables(&self) -> Vec<f32> {
        let long = self.long.as_ref().map(|long| self.divided_by(Some(&long.factors)));
        [self.inv_freq(), long.unwrap_or_default()].concat()
    }

    fn divided_by(&self, factors: Option<&[f32]>) -> Vec<f32> {
        let base = f64::from(self.base);
        (0..self.dim / 2)
            .map(|pair| {
                let (own, pairs) = self.within_axis(pair);
                let plain = base.powf(-(own as f64) / pairs as f64);
                let divisor = factors.map_or(1.0, |factors| f64::from(factors[pair]));
                self.scaled(pair, plain / divisor) as f32
            })
            .collect()
    }

    /// Index of a pair in its frequency progression, and the length of that progression.
    fn within_axis(&self, pair: usize) -> (usize, usize) {
        let Some(AxesSpec { axes, anew: true }) = self.axes else { return (pair, self.dim / 2) };
        let axis = axes.of_pair(pair);
        let before: u32 = axes.sections[..axis].iter().sum();
        (pair - before as usize, axes.sections[axis] as usize)
    }

    fn scaled(&self, pair: usize, frequency: f64) -> f64 {
        match self.scaling {
            RopeScaling::None => frequency,
            RopeScaling::Linear { factor } => frequency / f64::from(factor),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                let (low, high) = (f64::from(low_freq_factor), f64::from(high_freq_factor));
                let turns = f64::from(original_context) * frequency / TAU;
                let slow = frequency / f64::from(factor);
                if turns > high {
                    frequency
                } else if turns < low {
                    slow
                } else {
                    let fastness = (turns - low) / (high - low);
                    (1.0 - fastness) * slow + fastness * frequency
                }
            }
            RopeScaling::Yarn { factor, beta_fast, beta_slow, original_context, truncate } => {
                let last = (self.dim - 1) as f64;
                let mut low = self.pair_that_turns(beta_fast, original_context);
                let mut high = self.pair_that_turns(beta_slow, original_context);
                if truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                let (low, high) = (low.max(0.0), high.min(last));
                let span = if low == high { 0.001 } else { high - low };
                let slowness = ((pair as f64 - low) / span).clamp(0.0, 1.0);
                slowness * frequency / f64::from(factor) + (1.0 - slowness) * frequency
            }
        }
    }

    /// Index of the pair, as a fraction, that rotates this many times within a context.
    fn pair_that_turns(&self, turns: f32, context: u32) -> f64 {
        let dim = self.dim as f64;
        dim * (f64::from(context) / (f64::from(turns) * TAU)).ln() / (2.0 * f64::from(self.base).ln())
    }
}

/// YaRN's factor on cosine and sine for a stretch by `factor`, weighted by `mscale`.
pub fn yarn_magnitude(factor: f32, mscale: f32) -> f32 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
}

/// Stretches a rotary embedding according to any family's settings.
pub(super) fn stretch(
    rope: RopeSpec,
    config: &Config,
    settings: &Config,
    rope_type: &str,
    context: usize,
) -> Result<RopeSpec, LoadError> {
    if is_long(rope_type) {
        return lengthen(rope, config, settings, context, None);
    }
    // Dynamic NTK changes frequencies only beyond `max_position_embeddings`, which no text exceeds.
    let plain = rope_type == "dynamic" && settings.get("alpha").is_none();
    let (scaling, magnitude) = scaling(config, settings, if plain { "default" } else { rope_type }, context)?;
    Ok(RopeSpec { scaling, magnitude, ..rope })
}

/// Whether a model was trained for long contexts with LongRoPE.
pub(super) fn is_long(rope_type: &str) -> bool {
    matches!(rope_type, "longrope" | "su")
}

/// Adds LongRoPE's divisors to a rotary embedding (arxiv.org/abs/2402.13753): those of short texts, and those of texts
/// longer than the original context if the context allows them. `magnitudes` names settings of the factor on cosine
/// and sine for both, if a family has them.
pub(super) fn lengthen(
    rope: RopeSpec,
    config: &Config,
    settings: &Config,
    context: usize,
    magnitudes: Option<[&'static str; 2]>,
) -> Result<RopeSpec, LoadError> {
    const ORIGINAL: &str = "original_max_position_embeddings";
    let original = match config.count(ORIGINAL, CONTEXT_TOKENS_MAX)? {
        Some(original) => original,
        None => settings.required(ORIGINAL, CONTEXT_TOKENS_MAX)?,
    };
    let stretch = match settings.positive("factor")? {
        Some(factor) => factor,
        None => context as f32 / original as f32,
    };
    let usual = match settings.positive("attention_factor")? {
        Some(magnitude) => magnitude,
        None if stretch > 1.0 => (1.0 + stretch.ln() / (original as f32).ln()).sqrt(),
        None => 1.0,
    };
    let magnitude = |at: usize| match magnitudes {
        Some(keys) => settings.positive(keys[at])?.ok_or_else(|| settings.missing(keys[at])),
        None => Ok(usual),
    };
    let long = match context > original {
        true => Some(LongRope {
            original_context: original as u32,
            factors: divisors(settings, "long_factor")?,
            magnitude: magnitude(1)?,
        }),
        false => None,
    };
    Ok(RopeSpec {
        factors: Some(divisors(settings, "short_factor")?),
        magnitude: magnitude(0)?,
        long,
        ..rope
    })
}

fn divisors(settings: &Config, key: &str) -> Result<Vec<f32>, LoadError> {
    let list = settings.get(key).and_then(Value::as_array).ok_or_else(|| settings.missing(key))?;
    let number = |value: &Value| {
        let number = value.as_f64().map(|number| number as f32);
        number.filter(|number| number.is_finite() && *number > 0.0)
    };
    let factors = list.iter().take(HEAD_DIM_MAX).map(number).collect::<Option<Vec<f32>>>();
    factors.ok_or_else(|| settings.corrupt(key, "a factor is not a number above 0"))
}

/// Settings of rotary embeddings, which newer files keep by the kind of layer. They are in `rope_parameters`; in older
/// files, `rope_scaling` accompanies `rope_theta`.
pub(super) fn settings_of(config: &Config, kind_of_layers: &str) -> Result<Config, LoadError> {
    let settings = match config.object("rope_scaling")? {
        Some(settings) => Some(settings),
        None => config.object("rope_parameters")?,
    };
    let Some(settings) = settings else { return Ok(Config::new(config.file.clone(), Map::new())) };
    Ok(settings.object(kind_of_layers)?.unwrap_or(settings))
}

/// Name of the stretching, which older files call its type.
pub(super) fn rope_type(settings: &Config) -> Result<Option<&str>, LoadError> {
    match settings.string("rope_type")? {
        None => settings.string("type"),
        named => Ok(named),
    }
}

/// Divisors of frequencies, which LongRoPE alone has.
const LONG_SETTINGS: &[&str] = &["long_factor", "short_factor"];
/// Settings of `rope_scaling` and `rope_parameters` that are known.
const ROPE_SETTINGS: &[&str] = &[
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "factor",
    "finetuned",
    "high_freq_factor",
    "low_freq_factor",
    "mscale",
    "mscale_all_dim",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "rope_theta",
    "rope_type",
    "truncate",
    "type",
];

/// Refuses unknown settings of a Llama's rotary embedding.
pub(super) fn check_settings(settings: &Config, rope_type: &str) -> Result<(), LoadError> {
    for (key, value) in &settings.settings {
        let of_long = is_long(rope_type) && LONG_SETTINGS.contains(&key.as_str());
        if !ROPE_SETTINGS.contains(&key.as_str()) && !of_long {
            return Err(settings.unsupported(key, value, "this build does not know what to do with it"));
        }
    }
    match settings.get("partial_rotary_factor").filter(|value| value.as_f64() != Some(1.0)) {
        Some(value) => {
            Err(settings.unsupported("partial_rotary_factor", value, "this family turns whole heads"))
        }
        None => Ok(()),
    }
}

fn scaling(
    config: &Config,
    settings: &Config,
    rope_type: &str,
    context: usize,
) -> Result<(RopeScaling, f32), LoadError> {
    let required = |key: &str| settings.positive(key)?.ok_or_else(|| settings.missing(key));
    let original_context = || {
        const KEY: &str = "original_max_position_embeddings";
        let outside = config.count(KEY, CONTEXT_TOKENS_MAX)?;
        let inside = settings.count(KEY, CONTEXT_TOKENS_MAX)?;
        Ok::<_, LoadError>(outside.or(inside).unwrap_or(context) as u32)
    };
    match rope_type {
        "default" => Ok((RopeScaling::None, 1.0)),
        "linear" => Ok((RopeScaling::Linear { factor: required("factor")? }, 1.0)),
        "llama3" => {
            let scaling = RopeScaling::Llama3 {
                factor: required("factor")?,
                low_freq_factor: required("low_freq_factor")?,
                high_freq_factor: required("high_freq_factor")?,
                original_context: original_context()?,
            };
            Ok((scaling, 1.0))
        }
        "yarn" => {
            let original_context = original_context()?;
            let factor = match settings.positive("factor")? {
                Some(factor) => factor,
                None => context as f32 / original_context as f32,
            };
            let weights = (settings.positive("mscale")?, settings.positive("mscale_all_dim")?);
            let magnitude = match (settings.positive("attention_factor")?, weights) {
                (Some(magnitude), _) => magnitude,
                (None, (Some(mscale), Some(all_dim))) => {
                    yarn_magnitude(factor, mscale) / yarn_magnitude(factor, all_dim)
                }
                (None, _) => yarn_magnitude(factor, 1.0),
            };
            let scaling = RopeScaling::Yarn {
                factor,
                beta_fast: settings.positive("beta_fast")?.unwrap_or(32.0),
                beta_slow: settings.positive("beta_slow")?.unwrap_or(1.0),
                original_context,
                truncate: settings.bool("truncate")?.unwrap_or(true),
            };
            Ok((scaling, magnitude))
        }
        other => Err(settings.unsupported("rope_type", other, "default, linear, llama3 and yarn are known")),
    }
}

/// Context stretched by YaRN, which is enabled by adding it to a configuration whose `max_position_embeddings` may
/// stay the same.
pub(super) fn stretched_context(scaling: &RopeScaling, context: usize) -> usize {
    match *scaling {
        RopeScaling::Yarn { factor, original_context, .. } => {
            let stretched = (f64::from(factor) * f64::from(original_context)) as usize;
            stretched.clamp(context, CONTEXT_TOKENS_MAX)
        }
        _ => context,
    }
}
