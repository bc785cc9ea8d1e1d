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

use hanzo_engine_ops::HeadShape;
use hanzo_engine_runtime::{LoadError, VoiceFiles};

pub(crate) use self::config::VitsConfig;
use self::duration::Durations;
use self::encoder::TextEncoder;
use self::flow::Flow;
use self::names::NamedWeights;
use self::vocoder::Vocoder;
use crate::error::SpeakError;
use crate::limits::FRAMES_MAX;
use crate::nn::{Device, PROGRAM_ROWS_MAX};
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
        device: &Device,
        files: &VoiceFiles,
        weights: &Weights,
        config: &VitsConfig,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Vits, LoadError> {
        let named = NamedWeights::new(weights, files.kind);
        let text = TextEncoder::load(device, &named, config)?;
        progress(0.3);
        let durations = Durations::load(device, &named, config)?;
        progress(0.4);
        let flow = Flow::load(device, &named, config)?;
        progress(0.6);
        let vocoder = Vocoder::load(device, &named, config)?;
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
        device: &mut Device,
        tokens: &[u32],
        speaker: &[f32],
        speed: f32,
        noise: &mut Noise,
    ) -> Result<Vec<f32>, SpeakError> {
        // A symbol takes a frame at least.
        if tokens.len() > PROGRAM_ROWS_MAX {
            return Err(SpeakError::TooLong { frames: tokens.len() });
        }
        let mut p = device.program(tokens.len());
        let [hidden, stats_value] = self.text.record(&mut p, tokens)?;
        let known = self.durations.record(&mut p, hidden, speaker)?;
        p.run()?;
        let stats = p.read(&stats_value)?;
        p.free(stats_value);
        drop(p);
        let scale = self.duration_noise_scale;
        let logs = self.durations.finish(device, known, tokens.len(), scale, noise)?;
        let frames = self.frames(&logs, speed)?;
        let latents = self.draw(&stats, &frames, noise);
        let mut p = device.program(latents.len() / self.latents);
        let latents = p.given(&latents, self.latents)?;
        let latents = self.flow.record(&mut p, latents, speaker)?;
        let samples_value = self.vocoder.record(&mut p, latents, speaker)?;
        p.run()?;
        let samples = p.read(&samples_value)?;
        p.free(samples_value);
        Ok(samples)
    }

    /// Frames of each symbol, from the logarithms.
    fn frames(&self, logs: &[f32], speed: f32) -> Result<Vec<usize>, SpeakError> {
        let length =
            |log: &f32| (log.exp() * self.length_scale / speed).ceil().clamp(0.0, FRAMES_MAX as f32 + 1.0);
        let mut frames: Vec<usize> = logs.iter().map(|log| length(log) as usize).collect();
        let all: usize = frames.iter().sum();
        if logs.iter().any(|log| !log.is_finite()) {
            return Err(SpeakError::NotANumber);
        }
        if all > FRAMES_MAX {
            return Err(SpeakError::TooLong { frames: all });
        }
        // A text without duration gets one frame.
        if let Some(first) = frames.first_mut().filter(|_| all == 0) {
            *first = 1;
        }
        Ok(frames)
    }

    /// Latents of each frame, `(frames, latents)`, from the means and log deviations of each symbol.
    fn draw(&self, stats: &[f32], frames: &[usize], noise: &mut Noise) -> Vec<f32> {
        let of_symbol = stats.chunks_exact(2 * self.latents).zip(frames);
        let rows: Vec<&[f32]> =
            of_symbol.flat_map(|(stats, &count)| std::iter::repeat_n(stats, count)).collect();
        let mut latents = vec![0.0; rows.len() * self.latents];
        // Random numbers are drawn channel by channel.
        for channel in 0..self.latents {
            for (stats, latents) in rows.iter().zip(latents.chunks_exact_mut(self.latents)) {
                let (mean, log) = (stats[channel], stats[self.latents + channel]);
                latents[channel] = mean + noise.normal() * log.exp() * self.noise_scale;
            }
        }
        latents
    }
}
