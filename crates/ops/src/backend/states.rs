//! Layers with a recurrent state per sequence instead of keys and values: gated delta nets (arxiv.org/abs/2412.06464),
//! Mamba 2 (arxiv.org/abs/2405.21060) and short convolutions (LFM2). Shapes and settings alone.

/// Rule by which a token updates a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateRule {
    /// Gated delta rule: keys and queries are normalised to length 1, and the state's current value for a key is
    /// subtracted from the new value.
    Delta,
    /// Selective state space (Mamba 2).
    Ssd,
    /// No recurrence: only the convolution, without a non-linearity, whose inputs are the state (LFM2).
    Convolution,
}

/// Sizes of a layer with a recurrent state.
///
/// A row of such a layer's projection is `[channels | gate | beta | step]`. Channels go through the convolution, the
/// gate is as wide as all values, and step has one number for each value head. So has beta under [`StateRule::Delta`];
/// under `Ssd` there is no beta. Channels are `[queries | keys | values]` under `Delta` and `[values | keys |
/// queries]` under `Ssd`. Under `Convolution` channels are values alone, keys have no elements, and a row is `[factors
/// before | factors behind | channels]`: factors on the input and on the output of the convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateShape {
    /// Rule by which a token updates the state.
    pub rule: StateRule,
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values, a multiple of `key_heads`, each with a separate state.
    pub value_heads: usize,
    /// Elements of a query and of a key.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Tokens that the convolution covers, from 2 to [`StateShape::TAPS_MAX`].
    pub taps: usize,
    /// Whether value head `h` reads key head `h % key_heads`, rather than `h / (value_heads / key_heads)`.
    pub tiled: bool,
}

impl StateShape {
    /// Largest number of a convolution's taps.
    pub const TAPS_MAX: usize = 8;

    /// Elements of all keys.
    #[inline]
    pub const fn key_width(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Elements of all values.
    #[inline]
    pub const fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Columns that go through the convolution.
    #[inline]
    pub const fn channels(&self) -> usize {
        2 * self.key_width() + self.value_width()
    }

    /// First columns of queries, keys and values.
    #[inline]
    pub const fn columns(&self) -> [usize; 3] {
        let (key, value) = (self.key_width(), self.value_width());
        match self.rule {
            StateRule::Delta => [0, key, 2 * key],
            StateRule::Ssd | StateRule::Convolution => [value + key, value, 0],
        }
    }

    /// First column of beta, or of the steps if there is no beta.
    #[inline]
    pub const fn beta_column(&self) -> usize {
        self.channels() + self.value_width()
    }

    /// First column of the steps.
    #[inline]
    pub const fn step_column(&self) -> usize {
        match self.rule {
            StateRule::Delta => self.beta_column() + self.value_heads,
            StateRule::Ssd | StateRule::Convolution => self.beta_column(),
        }
    }

    /// Columns of a row of the layer's projection.
    #[inline]
    pub const fn width(&self) -> usize {
        match self.rule {
            StateRule::Delta | StateRule::Ssd => self.step_column() + self.value_heads,
            StateRule::Convolution => 3 * self.channels(),
        }
    }

    /// The key head of a value head.
    #[inline]
    pub const fn key_head(&self, value_head: usize) -> usize {
        if self.tiled {
            value_head % self.key_heads
        } else {
            value_head / (self.value_heads / self.key_heads)
        }
    }

    /// Elements of a sequence's state: the inputs of the convolution and the states of the heads.
    #[inline]
    pub const fn elements(&self) -> usize {
        (self.taps - 1) * self.channels() + self.value_width() * self.key_dim
    }
}

/// Parameters of the convolution before a recurrence.
#[derive(Clone, Copy, Debug)]
pub struct ConvolutionParams<V> {
    /// The layer's sizes.
    pub shape: StateShape,
    /// Factor for each token of the convolution, oldest first, and each channel: `(taps, channels)`.
    pub weight: V,
    /// Addend for each channel.
    pub bias: Option<V>,
}

/// Parameters of a recurrence.
#[derive(Clone, Copy, Debug)]
pub struct RecurrenceParams<V> {
    /// The layer's sizes.
    pub shape: StateShape,
    /// Decay rate of each head, `(value_heads)`, not above 0: a step keeps `exp(decay * step)` of the state.
    pub decay: V,
    /// Added to each head's step before its softplus, `(value_heads)`.
    pub step_bias: V,
    /// Bounds of a step.
    pub step_limits: [f32; 2],
    /// Factor with which each head adds its value to the output, `(value_heads)`.
    pub skip: Option<V>,
}

/// Function of the gate that multiplies a sublayer's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateKind {
    /// `x * sigmoid(x)` of the gate.
    Silu,
    /// `sigmoid(x)` of the gate.
    Sigmoid,
}

/// Gate on the output of attention or of a recurrence, and the norm around it.
#[derive(Clone, Copy, Debug)]
pub struct OutputGateParams<V> {
    /// First column of the gate in its buffer.
    pub column: usize,
    /// Function of the gate.
    pub kind: GateKind,
    /// Norm, if there is one.
    pub norm: Option<OutputNorm<V>>,
}

/// RMS norm of parts of a row.
#[derive(Clone, Copy, Debug)]
pub struct OutputNorm<V> {
    /// Factor for each element of a row, or for each element of a part.
    pub weight: V,
    /// Number added to the mean of the squares.
    pub eps: f32,
    /// Elements of a part.
    pub part: usize,
    /// Whether the norm comes before the gate.
    pub before_gate: bool,
}
