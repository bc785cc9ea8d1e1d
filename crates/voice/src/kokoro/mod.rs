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

use hanzo_engine_kernels::{HeadShape, KernelError};
use hanzo_engine_runtime::LoadError;

pub(crate) use config::KokoroConfig;

use self::albert::Albert;
use self::decoder::Decoder;
use self::prosody::{Prosody, TextEncoder};
use crate::error::SpeakError;
use crate::limits::FRAMES_MAX;
use crate::nn::{Compute, Matrix};
use crate::noise::Noise;
use crate::weights::Weights;

/// Sample rate in Hz.
pub(crate) const SAMPLE_RATE: u32 = 24_000;

/// Kokoro network.
pub(crate) struct Kokoro {
    albert: Albert,
    to_hidden: Matrix,
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
        compute: &mut Compute,
        weights: &Weights,
        config: &KokoroConfig,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Kokoro, LoadError> {
        let albert = Albert::load(compute, weights, config)?;
        let ([hidden, inputs], numbers) = weights.shaped("bert_encoder.weight", [0, 0])?;
        let bias = weights.vector("bert_encoder.bias", hidden)?;
        let to_hidden = compute.pack("bert_encoder.weight", (hidden, inputs), &numbers, Some(&bias))?;
        progress(0.1);
        let prosody = Prosody::load(compute, weights, config)?;
        progress(0.3);
        let text = TextEncoder::load(compute, weights, config)?;
        progress(0.4);
        let decoder = Decoder::load(compute, weights, config)?;
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
        compute: &mut Compute,
        tokens: &[u32],
        style: &[f32],
        speed: f32,
        noise: &mut Noise,
    ) -> Result<Vec<f32>, SpeakError> {
        let (sound, manner) = style.split_at(self.style);
        let plan = self.plan(compute, tokens, manner, speed)?;
        Ok(self.sound(compute, tokens, &plan, sound, noise)?)
    }

    fn plan(
        &self,
        compute: &mut Compute,
        tokens: &[u32],
        manner: &[f32],
        speed: f32,
    ) -> Result<ProsodyPlan, SpeakError> {
        let bert = self.albert.run(compute, tokens)?;
        let hidden = compute.linear(&self.to_hidden, &bert)?;
        let encoded = self.prosody.encode(compute, &hidden, manner)?;
        let frames = self.prosody.durations(compute, &encoded, speed)?;
        let all = frames.iter().sum();
        if all > FRAMES_MAX {
            return Err(SpeakError::TooLong { frames: all });
        }
        let (pitch, loudness) = self.prosody.curves(compute, &encoded.repeated(&frames), manner)?;
        Ok(ProsodyPlan { frames, pitch, loudness })
    }

    fn sound(
        &self,
        compute: &mut Compute,
        tokens: &[u32],
        plan: &ProsodyPlan,
        sound: &[f32],
        noise: &mut Noise,
    ) -> Result<Vec<f32>, KernelError> {
        let text = self.text.run(compute, tokens)?.repeated(&plan.frames);
        self.decoder.run(compute, &text, (&plan.pitch, &plan.loudness), sound, noise)
    }
}
