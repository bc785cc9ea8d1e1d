//! Kokoro (github.com/hexgrad/kokoro; StyleTTS 2, arxiv.org/abs/2306.07691, with iSTFTNet's decoder,
//! arxiv.org/abs/2203.02395): from phonemes and a style to sound at 24 kHz. [`prosody`] predicts durations,
//! pitch and loudness. [`decoder`] computes the sound, and [`generator`] shapes it from a source of harmonics
//! and noise.

mod albert;
mod blocks;
mod config;
mod decoder;
mod generator;
mod prosody;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::snr_db;

use hanzo_engine_ops::{HeadShape, KernelError};
use hanzo_engine_runtime::LoadError;

pub(crate) use config::KokoroConfig;

use self::albert::Albert;
use self::decoder::Decoder;
use self::prosody::{Prosody, TextEncoder};
use crate::error::SpeakError;
use crate::limits::FRAMES_MAX;
use crate::nn::{DenseWeights, Device};
use crate::noise::Noise;
use crate::weights::Weights;

/// Sample rate in Hz.
pub(crate) const SAMPLE_RATE: u32 = 24_000;

/// Kokoro network.
pub(crate) struct Kokoro {
    albert: Albert,
    to_hidden: DenseWeights,
    prosody: Prosody,
    text: TextEncoder,
    decoder: Decoder,
    style: usize, // size of each half
}

/// Predicted prosody.
struct ProsodyPlan {
    frames: Vec<usize>, // of each phoneme
    pitch: Vec<f32>,    // Hz, two a frame
    loudness: Vec<f32>, // two a frame
}

impl Kokoro {
    /// Reads and packs the weights. Reports the fraction that is done.
    pub(crate) fn load(
        device: &Device,
        weights: &Weights,
        config: &KokoroConfig,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Kokoro, LoadError> {
        let albert = Albert::load(device, weights, config)?;
        let ([hidden, inputs], numbers) = weights.shaped("bert_encoder.weight", [0, 0])?;
        let bias = weights.vector("bert_encoder.bias", hidden)?;
        let to_hidden = device.dense("bert_encoder.weight", [hidden, inputs], &numbers, Some(&bias))?;
        progress(0.1);
        let prosody = Prosody::load(device, weights, config)?;
        progress(0.3);
        let text = TextEncoder::load(device, weights, config)?;
        progress(0.4);
        let decoder = Decoder::load(device, weights, config)?;
        progress(1.0);
        Ok(Kokoro { albert, to_hidden, prosody, text, decoder, style: config.style })
    }

    /// Attention heads, for which scratch is reserved.
    pub(crate) fn heads(config: &KokoroConfig) -> HeadShape {
        let heads = config.heads;
        HeadShape { heads, kv_heads: heads, head_dim: config.albert_hidden / heads }
    }

    /// Synthesises a piece. `tokens` include the pads. The first half of the style is the voice's timbre, the
    /// second its prosody.
    ///
    /// # Errors
    /// [`SpeakError`].
    pub(crate) fn speak(
        &self,
        device: &mut Device,
        tokens: &[u32],
        style: &[f32],
        speed: f32,
        noise: &mut Noise,
    ) -> Result<Vec<f32>, SpeakError> {
        let (sound, manner) = style.split_at(self.style);
        let plan = self.plan(device, tokens, manner, speed)?;
        Ok(self.sound(device, tokens, &plan, sound, noise)?)
    }

    fn plan(
        &self,
        device: &mut Device,
        tokens: &[u32],
        manner: &[f32],
        speed: f32,
    ) -> Result<ProsodyPlan, SpeakError> {
        let mut p = device.program(tokens.len());
        let bert = self.albert.record(&mut p, tokens)?;
        let hidden = p.dense(&self.to_hidden, &bert)?;
        p.free(bert);
        let [encoded, steps] = self.prosody.record_encoder(&mut p, hidden, tokens.len(), manner)?;
        p.run()?;
        let frames = self.prosody.durations(&p.read(&steps)?, speed);
        let all: usize = frames.iter().sum();
        if all > FRAMES_MAX {
            return Err(SpeakError::TooLong { frames: all });
        }
        let (channels, numbers) = (encoded.channels(), p.read(&encoded)?);
        p.free(encoded);
        p.free(steps);
        drop(p);
        let mut p = device.program(all);
        let of_frames = p.given(&repeated(&numbers, &frames), channels)?;
        let curves = self.prosody.record_curves(&mut p, of_frames, manner)?;
        p.run()?;
        let [pitch, loudness] = [p.read(&curves[0])?, p.read(&curves[1])?];
        curves.into_iter().for_each(|value| p.free(value));
        Ok(ProsodyPlan { frames, pitch, loudness })
    }

    fn sound(
        &self,
        device: &mut Device,
        tokens: &[u32],
        plan: &ProsodyPlan,
        sound: &[f32],
        noise: &mut Noise,
    ) -> Result<Vec<f32>, KernelError> {
        let mut p = device.program(tokens.len());
        let hidden = self.text.record(&mut p, tokens)?;
        p.run()?;
        let (channels, numbers) = (hidden.channels(), p.read(&hidden)?);
        p.free(hidden);
        drop(p);
        let generator = &self.decoder.generator;
        let source = generator.source_spectrum(device, &plan.pitch, noise);
        let mut p = device.program(plan.frames.iter().sum());
        let text = p.given(&repeated(&numbers, &plan.frames), channels)?;
        let source = p.given_places(&source, generator.source_channels())?;
        let curves = [&plan.pitch[..], &plan.loudness[..]];
        let spectrum_value = self.decoder.record(&mut p, text, curves, source, sound)?;
        p.run()?;
        let spectrum = p.read(&spectrum_value)?;
        p.free(spectrum_value);
        drop(p);
        Ok(generator.samples(device, spectrum))
    }
}

/// Repeats each row as often as `counts` says.
fn repeated(rows: &[f32], counts: &[usize]) -> Vec<f32> {
    let rows = rows.chunks_exact(rows.len() / counts.len()).zip(counts);
    rows.flat_map(|(row, &count)| std::iter::repeat_n(row, count).flatten().copied()).collect()
}
