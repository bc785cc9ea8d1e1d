//! Decoder: from phonemes' hidden states, pitch and loudness to sound.

use hanzo_engine_ops::KernelError;
use hanzo_engine_runtime::LoadError;

use super::KokoroConfig;
use super::blocks::{StyleBlock, conv};
use super::generator::Generator;
use crate::nn::{ConvExtras, Device, KernelWeights, LineConvolution, Program, Signal, same};
use crate::weights::Weights;

/// Number of blocks after the first one. The last doubles the number of rows.
const BLOCKS: usize = 4;

pub(super) struct Decoder {
    halving: [KernelWeights; 2],
    text: KernelWeights,
    encode: StyleBlock,
    decode: Vec<StyleBlock>,
    pub(super) generator: Generator,
}

impl Decoder {
    pub(super) fn load(
        device: &Device,
        weights: &Weights,
        config: &KokoroConfig,
    ) -> Result<Decoder, LoadError> {
        let halving = |name: &str| {
            let of = LineConvolution { stride: 2, ..LineConvolution::plain(3, [1; 2]) }.kernel_use();
            conv(device, weights, &format!("decoder.{name}"), [1, 1, 3], of)
        };
        let block = |name: String| StyleBlock::load(device, weights, &name, config.style);
        let decode = (0..BLOCKS).map(|index| block(format!("decoder.decode.{index}")));
        Ok(Decoder {
            halving: [halving("F0_conv")?, halving("N_conv")?],
            text: conv(device, weights, "decoder.asr_res.0", [0, 0, 1], same(1, 1))?,
            encode: block("decoder.encode".to_owned())?,
            decode: decode.collect::<Result<_, _>>()?,
            generator: Generator::load(device, weights, config)?,
        })
    }

    /// Records the ops to the spectrum of the sound, from the text's hidden states, the pitch and the loudness, two values a frame
    /// each, and the spectrum of the source.
    pub(super) fn record(
        &self,
        p: &mut Program<'_>,
        text: Signal,
        curves: [&[f32]; 2],
        source: Signal,
        style: &[f32],
    ) -> Result<Signal, KernelError> {
        let mut halved = Vec::new();
        for (conv, curve) in self.halving.iter().zip(curves) {
            let curve = p.given_places(curve, 1)?;
            halved.push(p.conv(conv, &curve, ConvExtras::default())?);
            p.free(curve);
        }
        let joined = p.beside(&[&text, &halved[0], &halved[1]])?;
        let mut x = self.encode.record(p, &joined, style)?;
        p.free(joined);
        let narrow = p.conv(&self.text, &text, ConvExtras::default())?;
        p.free(text);
        for block in &self.decode {
            let joined = p.beside(&[&x, &narrow, &halved[0], &halved[1]])?;
            let y = block.record(p, &joined, style)?;
            p.free(joined);
            p.free(std::mem::replace(&mut x, y));
        }
        halved.into_iter().chain([narrow]).for_each(|value| p.free(value));
        self.generator.record(p, x, source, style)
    }
}
