//! A layer that keeps a state of each sequence instead of keys and values, as data.

use hanzo_engine_kernels::{StateRule, StateShape};

/// How a layer's state is made and read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSpec {
    /// Its sizes.
    pub shape: StateShape,
    /// The convolution has biases.
    pub convolution_bias: bool,
    /// What the state gives is normed in parts of so many elements; 0: it is not.
    pub norm_part: usize,
    /// Files have the logarithm of how fast heads forget.
    pub decay_as_log: bool,
}

impl StateSpec {
    /// A gated delta net.
    pub fn delta(shape: StateShape) -> Self {
        Self { shape, convolution_bias: false, norm_part: shape.value_dim, decay_as_log: true }
    }

    /// Each head gives some of its value besides.
    pub(crate) fn has_skip(&self) -> bool {
        self.shape.rule == StateRule::Ssd
    }

    /// Numbers that the norm multiplies with: one for each element of a value under the delta rule, of a row otherwise.
    pub(crate) fn norm_width(&self) -> usize {
        match self.shape.rule {
            StateRule::Delta => self.norm_part,
            StateRule::Ssd => self.shape.value_width(),
        }
    }
}
