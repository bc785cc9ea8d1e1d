//! Decoder: from phonemes' hidden states, pitch and loudness to sound.

use hanzo_engine_kernels::KernelError;
use hanzo_engine_runtime::LoadError;

use super::KokoroConfig;
use super::blocks::{StyleBlock, conv};
use super::generator::Generator;
use crate::nn::{Compute, Conv, ConvShape, Signal};
use crate::noise::Noise;
use crate::weights::Weights;

/// Number of blocks after the first one. The last doubles the number of rows.
const BLOCKS: usize = 4;

pub(super) struct Decoder {
    halving: [Conv; 2],
    text: Conv,
    encode: StyleBlock,
    decode: Vec<StyleBlock>,
    generator: Generator,
}

impl Decoder {
    pub(super) fn load(
        compute: &Compute,
        weights: &Weights,
        config: &KokoroConfig,
    ) -> Result<Decoder, LoadError> {
        let halving = |name: &str| {
            let shape = ConvShape { stride: 2, dilation: 1, padding: (1, 1) };
            conv(compute, weights, &format!("decoder.{name}"), [1, 1, 3], shape)
        };
        let block = |name: String| StyleBlock::load(compute, weights, &name, config.style);
        let decode = (0..BLOCKS).map(|index| block(format!("decoder.decode.{index}")));
        Ok(Decoder {
            halving: [halving("F0_conv")?, halving("N_conv")?],
            text: conv(compute, weights, "decoder.asr_res.0", [0, 0, 1], ConvShape::same(1, 1))?,
            encode: block("decoder.encode".to_owned())?,
            decode: decode.collect::<Result<_, _>>()?,
            generator: Generator::load(compute, weights, config)?,
        })
    }

    /// Computes the samples. Pitch and loudness have two values a frame.
    pub(super) fn run(
        &self,
        compute: &mut Compute,
        text: &Signal,
        (pitch, loudness): (&[f32], &[f32]),
        style: &[f32],
        noise: &mut Noise,
    ) -> Result<Vec<f32>, KernelError> {
        let column = |numbers: &[f32]| Signal::from_data(numbers.len(), 1, numbers.to_vec());
        let halved_pitch = self.halving[0].run(compute, &column(pitch))?;
        let halved_loudness = self.halving[1].run(compute, &column(loudness))?;
        let x = Signal::beside(&[text, &halved_pitch, &halved_loudness]);
        let mut x = self.encode.run(compute, &x, style)?;
        let text = self.text.run(compute, text)?;
        for block in &self.decode {
            x = Signal::beside(&[&x, &text, &halved_pitch, &halved_loudness]);
            x = block.run(compute, &x, style)?;
        }
        self.generator.run(compute, x, style, pitch, noise)
    }
}
