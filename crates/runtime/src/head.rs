//! Task heads on hidden states: a classifier's layers, computed on the host because they read one row of a text, or the
//! head of a masked language model, which the encoder computes itself.

use crate::error::LoadError;
use crate::tensor::Tensor;

/// A task's head.
#[derive(Clone, Debug, PartialEq)]
pub enum Head {
    /// Sequence classification.
    Classifier(Classifier),
    /// A number for each token of the vocabulary and each row: [`crate::encoder::Encoder::vocabulary_logits`].
    MaskedLm,
}

/// From hidden states to a number for each label.
#[derive(Clone, Debug, PartialEq)]
pub struct Classifier {
    /// Input of the first layer, made of a text's rows.
    pub input: HeadInput,
    /// One after another; the last gives a number for each label.
    pub layers: Vec<HeadLayer>,
    /// Names of the labels, one for each number.
    pub labels: Vec<String>,
    /// How they become probabilities.
    pub scores: Scores,
}

/// Input of a classifier, made of a text's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadInput {
    /// The first row.
    Cls,
    /// The mean of all rows.
    Mean,
    /// The last row: of a decoder.
    Last,
}

impl HeadInput {
    /// As pooling is called in files.
    pub const fn name(self) -> &'static str {
        match self {
            HeadInput::Cls => "cls",
            HeadInput::Mean => "mean",
            HeadInput::Last => "lasttoken",
        }
    }
}

/// `norm(activation(weight · x + bias))`.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadLayer {
    /// (outputs, inputs)
    pub weight: Vec<f32>,
    /// Numbers it takes.
    pub inputs: usize,
    /// Numbers it gives.
    pub outputs: usize,
    /// (outputs)
    pub bias: Option<Vec<f32>>,
    /// The non-linearity.
    pub activation: HeadActivation,
    /// The layer norm after it.
    pub norm: Option<HeadNorm>,
}

/// A layer norm.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadNorm {
    /// One factor an output.
    pub weight: Vec<f32>,
    /// One addend an output.
    pub bias: Option<Vec<f32>>,
    /// Added to the variance.
    pub eps: f32,
}

/// The non-linearity of a head's layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadActivation {
    /// None.
    Identity,
    /// The hyperbolic tangent.
    Tanh,
    /// GELU by erf.
    Gelu,
    /// GELU by tanh.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// `x * sigmoid(x)`.
    Silu,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
}

/// How a classifier's numbers become what is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scores {
    /// One label of several is right: they add up to 1.
    Softmax,
    /// Each label is right or not: between 0 and 1, each for itself.
    Sigmoid,
    /// Regression: as they are.
    Raw,
}

impl Classifier {
    /// The numbers of one text, `(labels)`, from its pooled row as [`HeadInput`] says.
    ///
    /// # Panics
    /// On a row of another width than the first layer's.
    pub fn logits(&self, row: &[f32]) -> Vec<f32> {
        self.layers.iter().fold(row.to_vec(), |x, layer| layer.apply(&x))
    }
}

impl Scores {
    /// Makes scores of a classifier's numbers, in place.
    pub fn apply(self, logits: &mut [f32]) {
        match self {
            Scores::Raw => {}
            Scores::Sigmoid => {
                logits.iter_mut().for_each(|x| *x = (1.0 / (1.0 + (-f64::from(*x)).exp())) as f32)
            }
            Scores::Softmax => {
                let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let powers: Vec<f64> = logits.iter().map(|&x| f64::from(x - largest).exp()).collect();
                let sum: f64 = powers.iter().sum();
                for (x, power) in logits.iter_mut().zip(powers) {
                    *x = (power / sum) as f32;
                }
            }
        }
    }
}

impl HeadLayer {
    /// Of one row.
    pub(crate) fn apply(&self, x: &[f32]) -> Vec<f32> {
        assert_eq!(x.len(), self.inputs, "a row of the layer's width");
        let mut out: Vec<f32> = dense(&self.weight, self.bias.as_deref(), x);
        out.iter_mut().for_each(|x| *x = self.activation.apply(*x));
        if let Some(norm) = &self.norm {
            norm.apply(&mut out);
        }
        out
    }
}

impl HeadNorm {
    /// Norms one row in place.
    pub(crate) fn apply(&self, x: &mut [f32]) {
        let count = x.len() as f64;
        let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
        let variance = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / count;
        let factor = 1.0 / (variance + f64::from(self.eps)).sqrt();
        for (at, x) in x.iter_mut().enumerate() {
            let bias = self.bias.as_ref().map_or(0.0, |bias| bias[at]);
            *x = ((f64::from(*x) - mean) * factor) as f32 * self.weight[at] + bias;
        }
    }
}

impl HeadActivation {
    fn apply(self, x: f32) -> f32 {
        let gelu_tanh =
            |x: f64| 0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044_715 * x * x * x)).tanh());
        let wide = f64::from(x);
        match self {
            HeadActivation::Identity => x,
            HeadActivation::Tanh => wide.tanh() as f32,
            HeadActivation::Gelu => (0.5 * wide * (1.0 + erf(wide / std::f64::consts::SQRT_2))) as f32,
            HeadActivation::GeluTanh => gelu_tanh(wide) as f32,
            HeadActivation::Relu => x.max(0.0),
            HeadActivation::Silu => (wide / (1.0 + (-wide).exp())) as f32,
            HeadActivation::Sigmoid => (1.0 / (1.0 + (-wide).exp())) as f32,
        }
    }
}

/// `weight · x + bias`, each product summed in eight lanes of f32 in a fixed order.
pub(crate) fn dense(weight: &[f32], bias: Option<&[f32]>, x: &[f32]) -> Vec<f32> {
    let rows = weight.chunks_exact(x.len());
    rows.enumerate().map(|(row, weight)| dot(weight, x) + bias.map_or(0.0, |bias| bias[row])).collect()
}

pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 8];
    let (a, a_rest) = a.as_chunks::<8>();
    let (b, b_rest) = b.as_chunks::<8>();
    for (a, b) in a.iter().zip(b) {
        for lane in 0..8 {
            lanes[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    lanes.iter().sum::<f32>() + rest
}

/// The error function to double precision: its series near zero, its continued fraction beyond
/// (Abramowitz and Stegun 7.1.6 and 7.1.14).
fn erf(x: f64) -> f64 {
    let magnitude = x.abs();
    let value = if magnitude > 6.0 {
        1.0
    } else if magnitude < 2.5 {
        let (mut term, mut sum) = (magnitude, magnitude);
        for n in 1..60 {
            term *= 2.0 * magnitude * magnitude / f64::from(2 * n + 1);
            sum += term;
        }
        sum * (-magnitude * magnitude).exp() * std::f64::consts::FRAC_2_SQRT_PI
    } else {
        let fraction = (1..=60).rev().fold(0.0, |below, n| f64::from(n) / 2.0 / (magnitude + below));
        1.0 - (-magnitude * magnitude).exp() / (magnitude + fraction) / std::f64::consts::PI.sqrt()
    };
    value.copysign(x)
}

/// A head's layer from its tensors.
pub(crate) fn layer(
    weight: &Tensor,
    bias: Option<&Tensor>,
    activation: HeadActivation,
    norm: Option<HeadNorm>,
) -> Result<HeadLayer, LoadError> {
    Ok(HeadLayer {
        outputs: weight.shape[0],
        inputs: weight.shape[1],
        weight: weight.to_f32()?,
        bias: bias.map(Tensor::to_f32).transpose()?,
        activation,
        norm,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_function_is_that_of_the_tables() {
        // Abramowitz and Stegun, table 7.1 and 7.2.
        for (x, expected) in [
            (0.0, 0.0),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (2.0, 0.995_322_265_018_952_7),
            (2.4, 0.999_311_486_103_354_9),
            (2.6, 0.999_763_965_583_470_7),
            (3.0, 0.999_977_909_503_001_4),
        ] {
            assert!((erf(x) - expected).abs() < 1e-14, "erf({x}) = {}", erf(x));
            assert_eq!(erf(-x), -erf(x));
        }
    }

    #[test]
    fn scores_are_probabilities() {
        let scored = |scores: Scores, mut logits: Vec<f32>| {
            scores.apply(&mut logits);
            logits
        };
        assert_eq!(scored(Scores::Raw, vec![3.5, -2.0]), [3.5, -2.0]);
        assert_eq!(scored(Scores::Sigmoid, vec![0.0, 2000.0, -2000.0]), [0.5, 1.0, 0.0]);
        let soft = scored(Scores::Softmax, vec![1000.0, 1000.0, -1000.0]);
        assert_eq!(soft, [0.5, 0.5, 0.0]);
    }

    #[test]
    fn layers_follow_one_another() {
        let layer = |weight: &[f32], inputs: usize, activation, norm| HeadLayer {
            weight: weight.to_vec(),
            inputs,
            outputs: weight.len() / inputs,
            bias: Some(vec![1.0; weight.len() / inputs]),
            activation,
            norm,
        };
        let norm = HeadNorm { weight: vec![2.0, 2.0], bias: Some(vec![0.0, 1.0]), eps: 0.0 };
        let classifier = Classifier {
            input: HeadInput::Cls,
            layers: vec![
                // 1 - 2 + 1 = 0 and 3 + 1 + 1 = 5, normed to -1 and 1.
                layer(&[1.0, -1.0, 3.0, 0.5], 2, HeadActivation::Relu, Some(norm)),
                layer(&[1.0, 10.0], 2, HeadActivation::Identity, None),
            ],
            labels: vec!["x".into()],
            scores: Scores::Raw,
        };
        assert_eq!(classifier.logits(&[1.0, 2.0]), [-2.0 + 30.0 + 1.0]);
    }
}
