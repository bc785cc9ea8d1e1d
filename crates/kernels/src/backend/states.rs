//! Layers that keep a state of each sequence instead of keys and values: gated delta nets (arxiv.org/abs/2412.06464),
//! Mamba 2 (arxiv.org/abs/2405.21060) and short convolutions (LFM2). Shapes and settings alone.

/// How a state takes up a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateRule {
    /// The gated delta rule: keys and queries have length 1, and what the state says of a key already is taken from its value.
    Delta,
    /// A selective state space (Mamba 2).
    Ssd,
    /// Nothing recurs: the convolution is all, without a non-linearity, and the state what it sees (LFM2).
    Convolution,
}

/// Sizes of a layer that keeps a state.
///
/// A row of what such a layer projects is `[channels | gate | beta | step]`: channels go through the convolution, gate
/// is as wide as all values, step has a number for each value head, and so has beta under [`StateRule::Delta`]; under
/// `Ssd` there is none. Channels are `[queries | keys | values]` under `Delta`, `[values | keys | queries]` under `Ssd`.
/// Under `Convolution` channels are values alone, keys have no elements, and a row is `[factors before | factors behind | channels]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateShape {
    /// How a state takes up a token.
    pub rule: StateRule,
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values, a multiple of `key_heads`, each with a state of its own.
    pub value_heads: usize,
    /// Elements of a query and of a key.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Tokens that the convolution sees, from 2 to [`StateShape::TAPS_MAX`].
    pub taps: usize,
    /// Value head `h` reads key head `h % key_heads`, rather than neighbours the same.
    pub tiled: bool,
}

impl StateShape {
    /// Tokens of the longest convolution.
    pub const TAPS_MAX: usize = 8;

    /// Elements of all keys.
    pub const fn key_width(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Elements of all values.
    pub const fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Columns that go through the convolution.
    pub const fn channels(&self) -> usize {
        2 * self.key_width() + self.value_width()
    }

    /// Columns of queries, keys and values begin at these.
    pub const fn columns(&self) -> [usize; 3] {
        let (key, value) = (self.key_width(), self.value_width());
        match self.rule {
            StateRule::Delta => [0, key, 2 * key],
            StateRule::Ssd | StateRule::Convolution => [value + key, value, 0],
        }
    }

    /// The column of the first beta, or of the first step where there is none.
    pub const fn beta_column(&self) -> usize {
        self.channels() + self.value_width()
    }

    /// The column of the first step.
    pub const fn step_column(&self) -> usize {
        match self.rule {
            StateRule::Delta => self.beta_column() + self.value_heads,
            StateRule::Ssd | StateRule::Convolution => self.beta_column(),
        }
    }

    /// Columns of a row that a layer projects.
    pub const fn width(&self) -> usize {
        match self.rule {
            StateRule::Delta | StateRule::Ssd => self.step_column() + self.value_heads,
            StateRule::Convolution => 3 * self.channels(),
        }
    }

    /// The key head of a value head.
    pub const fn key_head(&self, value_head: usize) -> usize {
        if self.tiled {
            value_head % self.key_heads
        } else {
            value_head / (self.value_heads / self.key_heads)
        }
    }

    /// Numbers that a sequence's state has: the inputs of the convolution and the heads' states.
    pub const fn elements(&self) -> usize {
        (self.taps - 1) * self.channels() + self.value_width() * self.key_dim
    }
}

/// The convolution before a recurrence.
#[derive(Clone, Copy, Debug)]
pub struct ConvolutionParams<V> {
    /// The layer's sizes.
    pub shape: StateShape,
    /// Of each token that it sees, the oldest first, a factor for each channel: `(taps, channels)`.
    pub weight: V,
    /// An addend for each channel.
    pub bias: Option<V>,
}

/// What a recurrence is computed with.
#[derive(Clone, Copy, Debug)]
pub struct RecurrenceParams<V> {
    /// The layer's sizes.
    pub shape: StateShape,
    /// How fast each head forgets, `(value_heads)`: a step keeps `exp(decay * step)` of the state. Not above 0.
    pub decay: V,
    /// Added to each head's step before its softplus, `(value_heads)`.
    pub step_bias: V,
    /// Bounds of a step.
    pub step_limits: [f32; 2],
    /// How much of its value each head gives besides, `(value_heads)`.
    pub skip: Option<V>,
}

/// What multiplies a half's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateKind {
    /// `x * sigmoid(x)` of the gate.
    Silu,
    /// `sigmoid(x)` of the gate.
    Sigmoid,
}

/// A gate on what attention or a recurrence gives, and the norm beside it.
#[derive(Clone, Copy, Debug)]
pub struct OutputGateParams<V> {
    /// The column of its buffer that the gate begins at.
    pub column: usize,
    /// What of it multiplies.
    pub kind: GateKind,
    /// The norm, where there is one.
    pub norm: Option<OutputNorm<V>>,
}

/// A root mean square norm of parts of a row.
#[derive(Clone, Copy, Debug)]
pub struct OutputNorm<V> {
    /// A factor for each element of a row, or for each of a part.
    pub weight: V,
    /// Added to the mean of the squares.
    pub eps: f32,
    /// Elements of a part.
    pub part: usize,
    /// It norms what is not gated yet.
    pub before_gate: bool,
}
