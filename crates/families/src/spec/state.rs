//! A layer with a recurrent state per sequence instead of keys and values, as data.

use hanzo_engine_ops::{StateRule, StateShape};

/// Computation of a layer's recurrent state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StateSpec {
    /// Sizes of the state.
    pub shape: StateShape,
    /// Whether the convolution has biases.
    pub convolution_bias: bool,
    /// Size of the parts in which the state's output is normed; 0: no norm.
    pub norm_part: usize,
    /// Epsilon of that norm.
    pub norm_eps: f32,
    /// Whether files store the logarithm of the decay rate.
    pub decay_as_log: bool,
}

impl StateSpec {
    /// A gated delta net.
    pub fn delta(shape: StateShape, norm_eps: f32) -> Self {
        let norm_part = shape.value_dim;
        Self { shape, convolution_bias: false, norm_part, norm_eps, decay_as_log: true }
    }

    /// Mamba 2, which norms the outputs of all value heads of one key head together.
    pub fn ssd(shape: StateShape, convolution_bias: bool, norm_eps: f32) -> Self {
        let norm_part = shape.value_width() / shape.key_heads;
        Self { shape, convolution_bias, norm_part, norm_eps, decay_as_log: true }
    }

    /// A short convolution with so many channels and taps.
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

    /// Whether there is a recurrence in addition to the convolution.
    pub fn recurs(&self) -> bool {
        self.shape.rule != StateRule::Convolution
    }

    /// Whether each head adds some of its value to its output.
    pub fn has_skip(&self) -> bool {
        self.shape.rule == StateRule::Ssd
    }

    /// Length of the norm's weights: one for each element of a value under the delta rule, of a row otherwise.
    pub fn norm_width(&self) -> usize {
        match self.shape.rule {
            StateRule::Delta => self.norm_part,
            StateRule::Ssd | StateRule::Convolution => self.shape.value_width(),
        }
    }
}
