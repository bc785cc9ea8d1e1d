//! What follows pooling: sentence-transformers' `Dense`, `LayerNorm` and `Normalize`, and the activations they and
//! classifiers have. Small and once for an input, so they run on the host, in plain loops.

/// A step on a pooled vector.
#[derive(Clone, Debug, PartialEq)]
pub enum Module {
    /// A linear layer and a non-linearity.
    Dense(Dense),
    /// Scale and shift of the normed vector.
    LayerNorm {
        /// Scale; as many as the vector has elements.
        weight: Vec<f32>,
        /// Shift.
        bias: Vec<f32>,
    },
    /// To length 1.
    Normalize,
}

/// `activation(weight · x + bias)`, plus x where there is a residual connection.
#[derive(Clone, Debug, PartialEq)]
pub struct Dense {
    /// `(outputs, inputs)`.
    pub weight: Vec<f32>,
    /// `(outputs)`.
    pub bias: Option<Vec<f32>>,
    /// Elements of the vector before it.
    pub inputs: usize,
    /// Elements of the vector after it.
    pub outputs: usize,
    /// The non-linearity.
    pub activation: HostActivation,
}

/// The non-linearities of layers on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostActivation {
    /// None.
    Identity,
    /// Hyperbolic tangent.
    Tanh,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `max(x, 0)`.
    Relu,
    /// GELU by erf.
    Gelu,
    /// GELU by tanh.
    GeluTanh,
    /// `x * sigmoid(x)`.
    Silu,
}

impl HostActivation {
    /// Of one number.
    pub fn of(self, x: f32) -> f32 {
        match self {
            HostActivation::Identity => x,
            HostActivation::Tanh => x.tanh(),
            HostActivation::Sigmoid => sigmoid(x),
            HostActivation::Relu => x.max(0.0),
            HostActivation::Gelu => 0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2)),
            HostActivation::GeluTanh => {
                let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
                0.5 * x * (1.0 + inner.tanh())
            }
            HostActivation::Silu => x * sigmoid(x),
        }
    }
}

/// `1 / (1 + exp(-x))`.
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// The error function by its series below 3 and its continued fraction above, in f64: exact to f32.
fn erf(x: f32) -> f32 {
    let (x, sign) = (f64::from(x.abs()), f64::from(x.signum()));
    let value = if x < 3.0 {
        let (mut term, mut sum, mut n) = (x, x, 0.0);
        while f64::abs(term) > 1e-17 {
            n += 1.0;
            term *= -x * x / n;
            sum += term / (2.0 * n + 1.0);
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    } else if x < 6.0 {
        let mut fraction = 0.0;
        for n in (1..=60).rev() {
            fraction = f64::from(n) / 2.0 / (x + fraction);
        }
        1.0 - (-x * x).exp() / ((x + fraction) * std::f64::consts::PI.sqrt())
    } else {
        1.0
    };
    (sign * value) as f32
}

/// Sum of products, in sixteen sums that a compiler can keep in registers; the order is fixed.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 16;
    let mut sums = [0.0f32; LANES];
    let (a_chunks, a_rest) = a.as_chunks::<LANES>();
    let (b_chunks, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

impl Dense {
    /// Of a vector of `inputs` elements.
    pub fn apply(&self, x: &[f32]) -> Vec<f32> {
        let row = |(index, row): (usize, &[f32])| {
            let bias = self.bias.as_ref().map_or(0.0, |bias| bias[index]);
            self.activation.of(dot(row, x) + bias)
        };
        self.weight.chunks_exact(self.inputs).enumerate().map(row).collect()
    }
}

/// To length 1; zeros stay zeros, as torch's `normalize` has it.
pub(crate) fn normalize(vector: &mut [f32]) {
    let square: f64 = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    let length = square.sqrt().max(1e-12);
    vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
}

/// `(x - mean) / sqrt(variance + eps)`, scaled and shifted.
pub(crate) fn layer_norm(vector: &mut [f32], weight: &[f32], bias: Option<&[f32]>, eps: f64) {
    let count = vector.len() as f64;
    let mean = vector.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
    let variance = vector.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / count;
    let scale = 1.0 / (variance + eps).sqrt();
    for (index, x) in vector.iter_mut().enumerate() {
        let shift = bias.map_or(0.0, |bias| bias[index]);
        *x = ((f64::from(*x) - mean) * scale) as f32 * weight[index] + shift;
    }
}

impl Module {
    /// On a vector.
    pub fn apply(&self, vector: &mut Vec<f32>) {
        match self {
            Module::Dense(dense) => *vector = dense.apply(vector),
            // torch.nn.LayerNorm's epsilon, which the files do not say.
            Module::LayerNorm { weight, bias } => layer_norm(vector, weight, Some(bias), 1e-5),
            Module::Normalize => normalize(vector),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_is_that_of_the_tables() {
        for (x, y) in [
            (0.0, 0.0),
            (0.1, 0.112_462_92),
            (0.5, 0.520_499_9),
            (1.0, 0.842_700_8),
            (2.0, 0.995_322_3),
            (2.9, 0.999_958_9),
            (3.1, 0.999_988_3),
            (4.0, 0.999_999_98),
            (9.0, 1.0),
        ] {
            assert!((erf(x) - y).abs() < 2e-7, "{x}: {} is not {y}", erf(x));
            assert!((erf(-x) + y).abs() < 2e-7);
        }
    }

    #[test]
    fn a_vector_of_zeros_has_no_direction() {
        let mut zeros = vec![0.0; 3];
        normalize(&mut zeros);
        assert_eq!(zeros, [0.0; 3]);
        let mut vector = vec![3.0, 4.0];
        normalize(&mut vector);
        assert_eq!(vector, [0.6, 0.8]);
    }
}
