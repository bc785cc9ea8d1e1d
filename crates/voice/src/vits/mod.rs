//! VITS (arxiv.org/abs/2106.06103), as in transformers (MMS-TTS) and in Piper: from symbols to sound.
//! [`encoder`] encodes the text, and [`duration`] predicts the length of each symbol. Random latents go through
//! [`flow`] in reverse and become sound in [`vocoder`].

mod config;
mod duration;
mod encoder;
mod flow;
mod names;
#[cfg(test)]
mod tests;
mod vocoder;

use hanzo_engine_kernels::HeadShape;
use hanzo_engine_runtime::{LoadError, VoiceFiles};

pub(crate) use self::config::VitsConfig;
use self::duration::Durations;
use self::encoder::TextEncoder;
use self::flow::Flow;
use self::names::NamedWeights;
use self::vocoder::Vocoder;
use crate::error::SpeakError;
use crate::limits::FRAMES_MAX;
use crate::nn::{Compute, Signal};
use crate::noise::Noise;
use crate::weights::Weights;

/// VITS network.
pub(crate) struct Vits {
    text: TextEncoder,
    durations: Durations,
    flow: Flow,
    vocoder: Vocoder,
    latents: usize, // number of channels
    noise_scale: f32,
    duration_noise_scale: f32,
    length_scale: f32,
}

impl Vits {
    /// Reads and packs the weights. Reports the fraction that is done.
    pub(crate) fn load(
        compute: &mut Compute,
        files: &VoiceFiles,
        weights: &Weights,
        config: &VitsConfig,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Vits, LoadError> {
        let named = NamedWeights::new(weights, files.kind);
        let text = TextEncoder::load(compute, &named, config)?;
        progress(0.3);
        let durations = Durations::load(compute, &named, config)?;
        progress(0.4);
        let flow = Flow::load(compute, &named, config)?;
        progress(0.6);
        let vocoder = Vocoder::load(compute, &named, config)?;
        progress(1.0);
        Ok(Vits {
            text,
            durations,
            flow,
            vocoder,
            latents: config.latents,
            noise_scale: config.noise_scale,
            duration_noise_scale: config.duration_noise_scale,
            length_scale: config.length_scale,
        })
    }

    /// Head shape for scratch. The device's attention is not used.
    pub(crate) fn heads() -> HeadShape {
        HeadShape { heads: 1, kv_heads: 1, head_dim: 64 }
    }

    /// Synthesises a piece. `speaker` is empty if the model has one voice.
    ///
    /// # Errors
    /// [`SpeakError`].
    pub(crate) fn speak(
        &self,
        compute: &mut Compute,
        tokens: &[u32],
        speaker: &[f32],
        speed: f32,
        noise: &mut Noise,
    ) -> Result<Vec<f32>, SpeakError> {
        let (hidden, stats) = self.text.run(compute, tokens)?;
        let logs = self.durations.run(compute, &hidden, speaker, self.duration_noise_scale, noise)?;
        let length =
            |log: &f32| (log.exp() * self.length_scale / speed).ceil().clamp(0.0, FRAMES_MAX as f32 + 1.0);
        let frames: Vec<usize> = logs.iter().map(|log| length(log) as usize).collect();
        let all: usize = frames.iter().sum();
        if logs.iter().any(|log| !log.is_finite()) {
            return Err(SpeakError::NotANumber);
        }
        if all > FRAMES_MAX {
            return Err(SpeakError::TooLong { frames: all });
        }
        // A text without duration gets one frame.
        let frames = if all == 0 {
            frames.iter().enumerate().map(|(at, _)| usize::from(at == 0)).collect()
        } else {
            frames
        };
        let stats = stats.repeated(&frames);
        let mut latents = Signal::zeros(stats.rows, self.latents);
        // Random numbers are drawn channel by channel.
        for channel in 0..self.latents {
            for row in 0..stats.rows {
                let stats = stats.row(row);
                let (mean, log) = (stats[channel], stats[self.latents + channel]);
                latents.row_mut(row)[channel] = mean + noise.normal() * log.exp() * self.noise_scale;
            }
        }
        let latents = self.flow.run(compute, latents, speaker)?;
        Ok(self.vocoder.run(compute, &latents, speaker)?)
    }
}
