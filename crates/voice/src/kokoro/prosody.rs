//! Prosody: the duration of each phoneme, and pitch and loudness for each frame. Also the text encoder for the
//! decoder.

use hanzo_engine_ops::{KernelError, PointActivation};
use hanzo_engine_runtime::LoadError;

use super::KokoroConfig;
use super::blocks::{Style, StyleBlock, conv, lstm};
use crate::nn::{
    ChannelAffine, ConvExtras, DenseWeights, Device, KernelWeights, LstmWeights, NormWeights, Program,
    Signal, same,
};
use crate::weights::Weights;

const EPS: f32 = 1e-5;

/// Predictor of durations, pitch and loudness.
pub(super) struct Prosody {
    encoder: Vec<(LstmWeights, Style)>,
    lstm: LstmWeights,
    durations: DenseWeights,
    shared: LstmWeights,
    curves: [Curve; 2],
}

/// Predictor of pitch, or of loudness.
struct Curve {
    blocks: Vec<StyleBlock>,
    projection: KernelWeights,
}

impl Curve {
    fn load(device: &Device, weights: &Weights, name: &str, style: usize) -> Result<Curve, LoadError> {
        let block = |index| StyleBlock::load(device, weights, &format!("predictor.{name}.{index}"), style);
        let blocks = (0..3).map(block).collect::<Result<_, _>>()?;
        let projection = conv(device, weights, &format!("predictor.{name}_proj"), [1, 0, 1], same(1, 1))?;
        Ok(Curve { blocks, projection })
    }

    fn record(&self, p: &mut Program<'_>, x: &Signal, style: &[f32]) -> Result<Signal, KernelError> {
        let mut done: Option<Signal> = None;
        for block in &self.blocks {
            let y = block.record(p, done.as_ref().unwrap_or(x), style)?;
            if let Some(old) = done.replace(y) {
                p.free(old);
            }
        }
        let curve = p.conv(&self.projection, done.as_ref().unwrap_or(x), ConvExtras::default())?;
        done.into_iter().for_each(|signal| p.free(signal));
        Ok(curve)
    }
}

impl Prosody {
    pub(super) fn load(
        device: &Device,
        weights: &Weights,
        config: &KokoroConfig,
    ) -> Result<Prosody, LoadError> {
        let hidden = weights.shape("bert_encoder.weight")?[0];
        let layer = |index: usize| -> Result<(LstmWeights, Style), LoadError> {
            let named = |at| format!("predictor.text_encoder.lstms.{at}");
            let memory = lstm(device, weights, &named(2 * index))?;
            Ok((memory, Style::load(weights, &named(2 * index + 1), config.style, hidden)?))
        };
        let name = "predictor.duration_proj.linear_layer";
        let ([steps, inputs], numbers) = weights.shaped(&format!("{name}.weight"), [0, hidden])?;
        let bias = weights.vector(&format!("{name}.bias"), steps)?;
        Ok(Prosody {
            encoder: (0..config.layers).map(layer).collect::<Result<_, _>>()?,
            lstm: lstm(device, weights, "predictor.lstm")?,
            durations: device.dense(name, [steps, inputs], &numbers, Some(&bias))?,
            shared: lstm(device, weights, "predictor.shared")?,
            curves: [
                Curve::load(device, weights, "F0", config.style)?,
                Curve::load(device, weights, "N", config.style)?,
            ],
        })
    }

    /// Records the ops to the hidden states of so many phonemes, beside the style, and to what [`Prosody::durations`] reads.
    pub(super) fn record_encoder(
        &self,
        p: &mut Program<'_>,
        hidden: Signal,
        rows: usize,
        style: &[f32],
    ) -> Result<[Signal; 2], KernelError> {
        let styles = p.given(&style.repeat(rows), style.len())?;
        let mut x = p.beside(&[&hidden, &styles])?;
        p.free(hidden);
        for (memory, norm) in &self.encoder {
            let states = p.lstm(memory, &x)?;
            let normed = p.norm_by(&norm.of(style), EPS, &states)?;
            let joined = p.beside(&[&normed, &styles])?;
            [states, normed, std::mem::replace(&mut x, joined)].into_iter().for_each(|value| p.free(value));
        }
        p.free(styles);
        let states = p.lstm(&self.lstm, &x)?;
        let steps = p.dense(&self.durations, &states)?;
        p.free(states);
        Ok([x, steps])
    }

    /// Frames of each phoneme, at least one.
    pub(super) fn durations(&self, steps: &[f32], speed: f32) -> Vec<usize> {
        let frames = |row: &[f32]| -> usize {
            let sum: f32 = row.iter().map(|x| 1.0 / (1.0 + (-x).exp())).sum();
            (sum / speed).round_ties_even().max(1.0) as usize
        };
        steps.chunks_exact(self.durations.outputs).map(frames).collect()
    }

    /// Records the ops from the hidden states of frames to pitch in Hz and loudness, two values a frame.
    pub(super) fn record_curves(
        &self,
        p: &mut Program<'_>,
        frames: Signal,
        style: &[f32],
    ) -> Result<[Signal; 2], KernelError> {
        let x = p.lstm(&self.shared, &frames)?;
        p.free(frames);
        let curves = [self.curves[0].record(p, &x, style)?, self.curves[1].record(p, &x, style)?];
        p.free(x);
        Ok(curves)
    }
}

/// Text encoder, whose output the decoder reads.
pub(super) struct TextEncoder {
    embedding: Vec<f32>, // (vocab, hidden)
    layers: Vec<(KernelWeights, NormWeights)>,
    lstm: LstmWeights,
    hidden: usize,
}

impl TextEncoder {
    pub(super) fn load(
        device: &Device,
        weights: &Weights,
        config: &KokoroConfig,
    ) -> Result<TextEncoder, LoadError> {
        let ([vocab, hidden], embedding) = weights.shaped("text_encoder.embedding.weight", [0, 0])?;
        if config.vocab.values().any(|&id| id as usize >= vocab) {
            return Err(weights.corrupt("vocab", format!("a phoneme's number is over the {vocab} there are")));
        }
        let layer = |index: usize| -> Result<(KernelWeights, NormWeights), LoadError> {
            let name = format!("text_encoder.cnn.{index}");
            let of = same(config.text_kernel, 1);
            let sizes = [hidden, hidden, config.text_kernel];
            let affine = ChannelAffine {
                scale: weights.vector(&format!("{name}.1.gamma"), hidden)?,
                shift: weights.vector(&format!("{name}.1.beta"), hidden)?,
            };
            let norm = device.norm(&affine, EPS)?;
            Ok((conv(device, weights, &format!("{name}.0"), sizes, of)?, norm))
        };
        let layers = (0..config.layers).map(layer).collect::<Result<_, _>>()?;
        Ok(TextEncoder { embedding, layers, lstm: lstm(device, weights, "text_encoder.lstm")?, hidden })
    }

    /// Records the ops from tokens to their hidden states.
    pub(super) fn record(&self, p: &mut Program<'_>, tokens: &[u32]) -> Result<Signal, KernelError> {
        let rows =
            tokens.iter().flat_map(|&token| &self.embedding[token as usize * self.hidden..][..self.hidden]);
        let numbers: Vec<f32> = rows.copied().collect();
        let mut x = p.given(&numbers, self.hidden)?;
        for (conv, norm) in &self.layers {
            let y = p.conv(conv, &x, ConvExtras::default())?;
            let normed = p.norm(norm, &y)?;
            p.activate(PointActivation::LeakyRelu { slope: 0.2 }, &normed);
            [y, std::mem::replace(&mut x, normed)].into_iter().for_each(|value| p.free(value));
        }
        let states = p.lstm(&self.lstm, &x)?;
        p.free(x);
        Ok(states)
    }
}
