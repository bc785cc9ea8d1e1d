//! A classifier's layers on top of a network: one row in, a score for each label out. A reranker is one with a single
//! score.

use super::{
    modules::{Dense, layer_norm, sigmoid},
    pooling::Pooling,
};

/// What makes scores of a pooled row.
#[derive(Clone, Debug, PartialEq)]
pub struct Classifier {
    /// How a sequence's rows become the one that is looked at.
    pub input: Pooling,
    /// One after the other; the last one's outputs are the logits.
    pub layers: Vec<ClassifierLayer>,
    /// Names of the scores, in their order.
    pub labels: Vec<String>,
    /// What makes probabilities of logits.
    pub scores: Scores,
}

/// One layer.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassifierLayer {
    /// The linear layer and its non-linearity.
    pub dense: Dense,
    /// A layer norm after it.
    pub norm: Option<ClassifierNorm>,
}

/// A layer norm on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassifierNorm {
    /// Scale.
    pub weight: Vec<f32>,
    /// Shift.
    pub bias: Option<Vec<f32>>,
    /// Added to the variance.
    pub eps: f32,
}

/// From logits to what is reported unless raw scores are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scores {
    /// Probabilities that sum to 1.
    Softmax,
    /// Each a probability of its own.
    Sigmoid,
    /// Logits: a regression.
    Raw,
}

impl Classifier {
    /// The logits of a pooled row.
    pub fn logits(&self, row: &[f32]) -> Vec<f32> {
        let mut vector = row.to_vec();
        for layer in &self.layers {
            vector = layer.dense.apply(&vector);
            if let Some(ClassifierNorm { weight, bias, eps }) = &layer.norm {
                layer_norm(&mut vector, weight, bias.as_deref(), f64::from(*eps));
            }
        }
        vector
    }
}

impl Scores {
    /// Of logits, in place.
    pub fn apply(self, logits: &mut [f32]) {
        match self {
            Scores::Raw => {}
            Scores::Sigmoid => logits.iter_mut().for_each(|x| *x = sigmoid(*x)),
            Scores::Softmax => {
                let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                logits.iter_mut().for_each(|x| *x = (*x - most).exp());
                let sum: f32 = logits.iter().sum();
                logits.iter_mut().for_each(|x| *x /= sum);
            }
        }
    }
}
