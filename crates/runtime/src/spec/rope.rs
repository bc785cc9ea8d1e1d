//! Rotary position embedding as files describe it, and the frequencies that follow.

use std::f64::consts::TAU;

use hanzo_engine_kernels::{QueryScale, RopeAxes, RopeKind};
use serde_json::Value;

use super::Config;
use crate::error::LoadError;
use crate::limits::{CONTEXT_TOKENS_MAX, HEAD_DIM_MAX};

/// Rotary position embedding (arxiv.org/abs/2104.09864) and how it was stretched over a longer context.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// How elements of a head pair up.
    pub kind: RopeKind,
    /// The base of the frequencies: theta.
    pub base: f32,
    /// Elements of a head that are turned; even.
    pub dim: usize,
    /// How the frequencies were stretched.
    pub scaling: RopeScaling,
    /// A divisor for each frequency (`rope_freqs.weight` of GGUF files).
    pub factors: Option<Vec<f32>>, // (dim / 2)
    /// Factor on cosine and sine.
    pub magnitude: f32,
    /// Which of several positions of a row turns which pair, where rows have several.
    pub axes: Option<AxesSpec>,
}

/// How pairs are shared out between a row's positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AxesSpec {
    /// Which position turns which pair.
    pub axes: RopeAxes,
    /// Frequencies begin anew with each position's pairs, rather than going on from one's to the next's.
    pub anew: bool,
}

/// How frequencies were changed to reach a longer context than the model was first trained on.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All by the same factor.
    Linear {
        /// Positions are divided by it.
        factor: f32,
    },
    /// Slow frequencies by a factor, fast ones not, a ramp between (Llama 3.1).
    Llama3 {
        /// Slow frequencies are divided by it.
        factor: f32,
        /// Frequencies that turn fewer times than this within the original context are slow.
        low_freq_factor: f32,
        /// Frequencies that turn more times than this within the original context are fast.
        high_freq_factor: f32,
        /// Tokens of the original context.
        original_context: u32,
    },
    /// YaRN (arxiv.org/abs/2309.00071): the same idea, with the ramp over the index of the pair.
    Yarn {
        /// Slow frequencies are divided by it.
        factor: f32,
        /// Frequencies that turn more times than this within the original context are fast.
        beta_fast: f32,
        /// Frequencies that turn fewer times than this within the original context are slow.
        beta_slow: f32,
        /// Tokens of the original context.
        original_context: u32,
        /// The ramp's ends are whole pairs.
        truncate: bool,
    },
}

/// How queries grow beyond the original context, as the settings of a rotary embedding say it.
pub(super) fn query_scale(settings: &Config) -> Result<Option<QueryScale>, LoadError> {
    let Some(factor) = settings.f32("llama_4_scaling_beta")?.filter(|&factor| factor != 0.0) else {
        return Ok(None);
    };
    let tokens = settings.required("original_max_position_embeddings", CONTEXT_TOKENS_MAX)? as u32;
    Ok(Some(QueryScale { factor, every: tokens, offset: 0 }))
}

impl RopeSpec {
    /// Radians per position of each pair, `dim / 2` of them.
    pub fn inv_freq(&self) -> Vec<f32> {
        let base = f64::from(self.base);
        (0..self.dim / 2)
            .map(|pair| {
                let (own, pairs) = self.within_axis(pair);
                let plain = base.powf(-(own as f64) / pairs as f64);
                let divisor = self.factors.as_ref().map_or(1.0, |factors| f64::from(factors[pair]));
                self.scaled(pair, plain / divisor) as f32
            })
            .collect()
    }

    /// Which of the pairs a pair is that frequencies fall along, and how many they are.
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

    /// Which pair, as a fraction, turns this many times within a context.
    fn pair_that_turns(&self, turns: f32, context: u32) -> f64 {
        let dim = self.dim as f64;
        dim * (f64::from(context) / (f64::from(turns) * TAU)).ln() / (2.0 * f64::from(self.base).ln())
    }
}

/// YaRN's factor on cosine and sine for a stretch by `factor`, weighted by `mscale`.
pub(crate) fn yarn_magnitude(factor: f32, mscale: f32) -> f32 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
}

/// Divisors of the frequencies of a model that was trained for long contexts (LongRoPE, arxiv.org/abs/2402.13753), and the factor on
/// cosine and sine. A model whose context is longer than the original one is run with those for long texts, whatever the
/// length of one: keys in the cache must not depend on what comes after them.
pub(super) fn long_factors(
    config: &Config,
    settings: &Config,
    context: usize,
) -> Result<(Vec<f32>, f32), LoadError> {
    const ORIGINAL: &str = "original_max_position_embeddings";
    let original = match config.count(ORIGINAL, CONTEXT_TOKENS_MAX)? {
        Some(original) => original,
        None => settings.required(ORIGINAL, CONTEXT_TOKENS_MAX)?,
    };
    let key = if context > original { "long_factor" } else { "short_factor" };
    let list = settings.get(key).and_then(Value::as_array).ok_or_else(|| settings.missing(key))?;
    let number = |value: &Value| {
        let number = value.as_f64().map(|number| number as f32);
        number.filter(|number| number.is_finite() && *number > 0.0)
    };
    let factors = list.iter().take(HEAD_DIM_MAX).map(number).collect::<Option<Vec<f32>>>();
    let factors = factors.ok_or_else(|| settings.corrupt(key, "a factor is not a number above 0"))?;
    let stretch = context as f32 / original as f32;
    let magnitude = match settings.positive("attention_factor")? {
        Some(magnitude) => magnitude,
        None if stretch > 1.0 => (1.0 + stretch.ln() / (original as f32).ln()).sqrt(),
        None => 1.0,
    };
    Ok((factors, magnitude))
}
