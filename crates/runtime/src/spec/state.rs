//! A layer that keeps a state of each sequence instead of keys and values, as data.

use hanzo_engine_kernels::{StateRule, StateShape};

/// How a layer's state is made and read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StateSpec {
    /// Its sizes.
    pub shape: StateShape,
    /// The convolution has biases.
    pub convolution_bias: bool,
    /// What the state gives is normed in parts of so many elements; 0: it is not.
    pub norm_part: usize,
    /// Added to the mean of that norm's squares.
    pub norm_eps: f32,
    /// Files have the logarithm of how fast heads forget.
    pub decay_as_log: bool,
}

impl StateSpec {
    /// A gated delta net.
    pub fn delta(shape: StateShape, norm_eps: f32) -> Self {
        let norm_part = shape.value_dim;
        Self { shape, convolution_bias: false, norm_part, norm_eps, decay_as_log: true }
    }

    /// Mamba 2, which norms what the heads of one head of keys give together.
    pub fn ssd(shape: StateShape, convolution_bias: bool, norm_eps: f32) -> Self {
        let norm_part = shape.value_width() / shape.key_heads;
        Self { shape, convolution_bias, norm_part, norm_eps, decay_as_log: true }
    }

    /// A short convolution of so many channels and tokens.
    pub fn convolution(channels: usize, taps: usize) -> Self {
        let shape = StateShape {
            rule: StateRule::Convolution,
            key_heads: 1,
            value_heads: 1,
            key_dim: 0,
            value_dim: channels,
            taps,
            tiled: false,
        };
        Self { shape, convolution_bias: false, norm_part: 0, norm_eps: 0.0, decay_as_log: false }
    }

    /// Something recurs beside the convolution.
    pub(crate) fn recurs(&self) -> bool {
        self.shape.rule != StateRule::Convolution
    }

    /// Each head gives some of its value besides.
    pub(crate) fn has_skip(&self) -> bool {
        self.shape.rule == StateRule::Ssd
    }

    /// Numbers that the norm multiplies with: one for each element of a value under the delta rule, of a row otherwise.
    pub(crate) fn norm_width(&self) -> usize {
        match self.shape.rule {
            StateRule::Delta => self.norm_part,
            StateRule::Ssd | StateRule::Convolution => self.shape.value_width(),
        }
    }
}
