//! Prosody: the duration of each phoneme, and pitch and loudness for each frame. Also the text encoder for the
//! decoder.

use hanzo_engine_kernels::KernelError;
use hanzo_engine_runtime::LoadError;

use super::KokoroConfig;
use super::blocks::{Style, StyleBlock, conv, lstm};
use crate::nn::{ChannelAffine, Compute, Conv, ConvShape, Lstm, Matrix, Signal, layer_norm, leaky_relu};
use crate::weights::Weights;

const EPS: f32 = 1e-5;

/// Predictor of durations, pitch and loudness.
pub(super) struct Prosody {
    encoder: Vec<(Lstm, Style)>,
    lstm: Lstm,
    durations: Matrix,
    shared: Lstm,
    curves: [Curve; 2],
}

/// Predictor of pitch, or of loudness.
struct Curve {
    blocks: Vec<StyleBlock>,
    projection: Conv,
}

impl Curve {
    fn load(compute: &Compute, weights: &Weights, name: &str, style: usize) -> Result<Curve, LoadError> {
        let block = |index| StyleBlock::load(compute, weights, &format!("predictor.{name}.{index}"), style);
        let blocks = (0..3).map(block).collect::<Result<_, _>>()?;
        let shape = ConvShape::same(1, 1);
        let projection = conv(compute, weights, &format!("predictor.{name}_proj"), [1, 0, 1], shape)?;
        Ok(Curve { blocks, projection })
    }

    fn run(&self, compute: &mut Compute, x: &Signal, style: &[f32]) -> Result<Vec<f32>, KernelError> {
        let mut x = x.clone();
        for block in &self.blocks {
            x = block.run(compute, &x, style)?;
        }
        Ok(self.projection.run(compute, &x)?.data)
    }
}

impl Prosody {
    pub(super) fn load(
        compute: &Compute,
        weights: &Weights,
        config: &KokoroConfig,
    ) -> Result<Prosody, LoadError> {
        let hidden = weights.shape("bert_encoder.weight")?[0];
        let layer = |index: usize| -> Result<(Lstm, Style), LoadError> {
            let named = |at| format!("predictor.text_encoder.lstms.{at}");
            let memory = lstm(compute, weights, &named(2 * index))?;
            Ok((memory, Style::load(weights, &named(2 * index + 1), config.style, hidden)?))
        };
        let name = "predictor.duration_proj.linear_layer";
        let ([steps, inputs], numbers) = weights.shaped(&format!("{name}.weight"), [0, hidden])?;
        let bias = weights.vector(&format!("{name}.bias"), steps)?;
        Ok(Prosody {
            encoder: (0..config.layers).map(layer).collect::<Result<_, _>>()?,
            lstm: lstm(compute, weights, "predictor.lstm")?,
            durations: compute.pack(name, (steps, inputs), &numbers, Some(&bias))?,
            shared: lstm(compute, weights, "predictor.shared")?,
            curves: [
                Curve::load(compute, weights, "F0", config.style)?,
                Curve::load(compute, weights, "N", config.style)?,
            ],
        })
    }

    /// Hidden states of phonemes, concatenated with the style.
    pub(super) fn encode(
        &self,
        compute: &mut Compute,
        hidden: &Signal,
        style: &[f32],
    ) -> Result<Signal, KernelError> {
        let mut x = hidden.beside_each(style);
        for (memory, norm) in &self.encoder {
            let mut y = memory.run(compute, &x)?;
            layer_norm(&mut y, EPS, &norm.of(style));
            x = y.beside_each(style);
        }
        Ok(x)
    }

    /// Frames of each phoneme, at least one.
    pub(super) fn durations(
        &self,
        compute: &mut Compute,
        encoded: &Signal,
        speed: f32,
    ) -> Result<Vec<usize>, KernelError> {
        let x = self.lstm.run(compute, encoded)?;
        let steps = compute.linear(&self.durations, &x)?;
        let frames = |row: &[f32]| -> usize {
            let sum: f32 = row.iter().map(|x| 1.0 / (1.0 + (-x).exp())).sum();
            (sum / speed).round_ties_even().max(1.0) as usize
        };
        Ok(steps.data.chunks_exact(steps.cols).map(frames).collect())
    }

    /// Pitch in Hz and loudness, two values a frame.
    pub(super) fn curves(
        &self,
        compute: &mut Compute,
        frames: &Signal,
        style: &[f32],
    ) -> Result<(Vec<f32>, Vec<f32>), KernelError> {
        let x = self.shared.run(compute, frames)?;
        Ok((self.curves[0].run(compute, &x, style)?, self.curves[1].run(compute, &x, style)?))
    }
}

/// Text encoder, whose output the decoder reads.
pub(super) struct TextEncoder {
    embedding: Vec<f32>, // (vocab, hidden)
    layers: Vec<(Conv, ChannelAffine)>,
    lstm: Lstm,
    hidden: usize,
}

impl TextEncoder {
    pub(super) fn load(
        compute: &Compute,
        weights: &Weights,
        config: &KokoroConfig,
    ) -> Result<TextEncoder, LoadError> {
        let ([vocab, hidden], embedding) = weights.shaped("text_encoder.embedding.weight", [0, 0])?;
        if config.vocab.values().any(|&id| id as usize >= vocab) {
            return Err(weights.corrupt("vocab", format!("a phoneme's number is over the {vocab} there are")));
        }
        let layer = |index: usize| -> Result<(Conv, ChannelAffine), LoadError> {
            let name = format!("text_encoder.cnn.{index}");
            let shape = ConvShape::same(config.text_kernel, 1);
            let sizes = [hidden, hidden, config.text_kernel];
            let norm = ChannelAffine {
                scale: weights.vector(&format!("{name}.1.gamma"), hidden)?,
                shift: weights.vector(&format!("{name}.1.beta"), hidden)?,
            };
            Ok((conv(compute, weights, &format!("{name}.0"), sizes, shape)?, norm))
        };
        let layers = (0..config.layers).map(layer).collect::<Result<_, _>>()?;
        Ok(TextEncoder { embedding, layers, lstm: lstm(compute, weights, "text_encoder.lstm")?, hidden })
    }

    pub(super) fn run(&self, compute: &mut Compute, tokens: &[u32]) -> Result<Signal, KernelError> {
        let rows =
            tokens.iter().flat_map(|&token| &self.embedding[token as usize * self.hidden..][..self.hidden]);
        let mut x = Signal::from_data(tokens.len(), self.hidden, rows.copied().collect());
        for (conv, norm) in &self.layers {
            x = conv.run(compute, &x)?;
            layer_norm(&mut x, EPS, norm);
            leaky_relu(compute, &mut x, 0.2);
        }
        self.lstm.run(compute, &x)
    }
}
