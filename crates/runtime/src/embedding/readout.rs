//! Output of one input: which rows the engine must read, and how they become a result.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    Embedder, Lexical,
    modules::normalize,
    pooling::{Pooler, Pooling},
};
use crate::head::HeadInput;

/// Requested output for an input.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Output {
    /// Single vector.
    Vector {
        /// Number of leading elements to keep; the vector is cut before it is normalised. `None`: all.
        dimensions: Option<usize>,
        /// Normalise to length 1, or leave as is; `None`: as in the model's files.
        normalize: Option<bool>,
    },
    /// Hidden state of each token.
    Tokens,
    /// Weight for each token of the vocabulary.
    Sparse,
    /// Classifier scores, one for each label.
    Scores {
        /// Return logits instead of probabilities.
        raw: bool,
    },
}

/// Result for an input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum EmbedResult {
    /// Matrix of shape `(rows, values.len() / rows)`.
    Dense {
        /// Elements, row by row.
        values: Vec<f32>,
        /// Number of rows: 1 except for [`Output::Tokens`].
        rows: usize,
    },
    /// Nonzero weights by token.
    Sparse(Vec<(u32, f32)>),
}

/// Rows of a sequence that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Every row.
    All,
    /// First row.
    First,
    /// Last row.
    Last,
}

/// Collects the rows of an input until they make the result.
#[derive(Debug)]
pub struct Readout {
    output: Output,
    rows: Rows,
    state: State,
}

#[derive(Debug)]
enum State {
    Pooled(Pooler),
    Tokens(Vec<f32>),
    // maximum or sum of each token's weight
    Vocabulary(Vec<f32>),
    Lexical(LexicalWeights),
}

/// Largest weight so far of each token of an input.
#[derive(Debug)]
struct LexicalWeights {
    /// Tokens whose rows have yet to come, in reverse order.
    left: Vec<u32>,
    weights: BTreeMap<u32, f32>,
}

impl LexicalWeights {
    fn push(&mut self, rows: &[f32], layer: &Lexical) {
        for row in rows.chunks_exact(layer.weight.len()) {
            let Some(token) = self.left.pop() else { return };
            if layer.special.binary_search(&token).is_ok() {
                continue;
            }
            let sum: f32 = row.iter().zip(&layer.weight).map(|(state, weight)| state * weight).sum();
            let weight = sum + layer.bias;
            let largest = self.weights.entry(token).or_insert(0.0);
            // NaN is kept, so that it is noticed at the end.
            if weight > *largest || weight.is_nan() {
                *largest = weight;
            }
        }
    }
}

impl Readout {
    /// Starts the output for an input of these tokens, whose first `prompt_tokens` are a prompt.
    pub fn new(embedder: &Embedder, output: Output, tokens: &[u32], prompt_tokens: usize) -> Readout {
        let spec = &embedder.spec;
        let (modes, first): (&[Pooling], usize) = match (output, &embedder.classifier) {
            (Output::Scores { .. }, Some(classifier)) => (classifier_pooling(classifier.input), 0),
            _ if spec.include_prompt => (&spec.pooling, 0),
            _ => (&spec.pooling, prompt_tokens),
        };
        let state = match output {
            Output::Vector { .. } | Output::Scores { .. } => {
                State::Pooled(Pooler::new(modes, embedder.hidden, first))
            }
            Output::Tokens => State::Tokens(Vec::new()),
            Output::Sparse if spec.lexical.is_some() => State::Lexical(LexicalWeights {
                left: tokens.iter().rev().copied().collect(),
                weights: BTreeMap::new(),
            }),
            Output::Sparse => State::Vocabulary(vec![0.0; embedder.vocab]),
        };
        Readout { output, rows: rows_of(output, modes, first), state }
    }

    /// Whether it needs logits over the vocabulary instead of hidden states.
    pub fn wants_vocabulary(&self) -> bool {
        matches!(self.state, State::Vocabulary(_))
    }

    /// Rows it needs.
    pub fn rows(&self) -> Rows {
        self.rows
    }

    /// Adds the next of its rows: hidden states `(n, hidden)`, or logits `(n, vocab)`.
    pub fn push(&mut self, rows: &[f32], embedder: &Embedder) {
        match &mut self.state {
            State::Pooled(pooled) => pooled.push(rows, embedder.hidden),
            State::Tokens(tokens) => tokens.extend_from_slice(rows),
            State::Lexical(weights) => {
                if let Some(layer) = &embedder.spec.lexical {
                    weights.push(rows, layer);
                }
            }
            State::Vocabulary(weights) => {
                let splade = embedder.spec.splade;
                for row in rows.chunks_exact(embedder.vocab) {
                    for (weight, &logit) in weights.iter_mut().zip(row) {
                        // NaN is kept, so that it is noticed at the end.
                        let once = if logit.is_nan() { logit } else { logit.max(0.0).ln_1p() };
                        let here = if splade.log_twice { once.ln_1p() } else { once };
                        *weight = if splade.sums {
                            *weight + here
                        } else if here > *weight || here.is_nan() {
                            here
                        } else {
                            *weight
                        };
                    }
                }
            }
        }
    }

    /// Result of the rows; `None` if it has a number that is NaN or infinite.
    pub fn finish(self, embedder: &Embedder) -> Option<EmbedResult> {
        let computed = match (self.state, self.output) {
            (State::Pooled(pooled), Output::Scores { raw }) => {
                let classifier = embedder.classifier.as_ref()?;
                let mut scores = classifier.logits(&pooled.finish());
                if scores.iter().any(|score| score.is_nan()) {
                    return None;
                }
                if !raw {
                    classifier.scores.apply(&mut scores);
                }
                EmbedResult::Dense { values: scores, rows: 1 }
            }
            (State::Pooled(pooled), Output::Vector { dimensions, normalize }) => {
                let values = embedder.vector(pooled.finish(), dimensions, normalize);
                EmbedResult::Dense { values, rows: 1 }
            }
            (State::Pooled(_), _) => return None,
            (State::Tokens(values), _) => {
                let rows = values.len() / embedder.hidden;
                EmbedResult::Dense { values, rows }
            }
            (State::Lexical(LexicalWeights { weights, .. }), _) => {
                if weights.values().any(|weight| !weight.is_finite()) {
                    return None;
                }
                EmbedResult::Sparse(weights.into_iter().filter(|&(_, weight)| weight > 0.0).collect())
            }
            (State::Vocabulary(weights), _) => {
                if weights.iter().any(|weight| !weight.is_finite()) {
                    return None;
                }
                let entries = weights.into_iter().enumerate().filter(|&(_, weight)| weight != 0.0);
                EmbedResult::Sparse(entries.map(|(token, weight)| (token as u32, weight)).collect())
            }
        };
        match &computed {
            EmbedResult::Dense { values, .. } if values.iter().any(|value| !value.is_finite()) => None,
            _ => Some(computed),
        }
    }
}

/// Pooling for a classifier's input.
fn classifier_pooling(input: HeadInput) -> &'static [Pooling] {
    match input {
        HeadInput::Cls => &[Pooling::Cls],
        HeadInput::Mean => &[Pooling::Mean],
        HeadInput::Last => &[Pooling::Last],
    }
}

fn rows_of(output: Output, modes: &[Pooling], first: usize) -> Rows {
    match (output, modes) {
        (Output::Tokens | Output::Sparse, _) => Rows::All,
        (_, [Pooling::Cls]) if first == 0 => Rows::First,
        (_, [Pooling::Last]) if first == 0 => Rows::Last,
        _ => Rows::All,
    }
}

impl Embedder {
    /// Applies the modules to a pooled vector.
    fn vector(&self, mut vector: Vec<f32>, dimensions: Option<usize>, wanted: Option<bool>) -> Vec<f32> {
        let modules = &self.spec.modules;
        let layers = modules.iter().take(modules.len() - usize::from(self.spec.normalizes()));
        layers.for_each(|module| module.apply(&mut vector));
        self.as_wanted(vector, dimensions, wanted)
    }

    /// Cuts and normalises a vector as requested. It is cut after the layers and before it is normalised.
    fn as_wanted(&self, mut vector: Vec<f32>, dimensions: Option<usize>, wanted: Option<bool>) -> Vec<f32> {
        vector.truncate(dimensions.unwrap_or(usize::MAX));
        if wanted.unwrap_or(self.spec.normalizes()) {
            normalize(&mut vector);
        }
        vector
    }

    /// Result for a picture's vector; `None` if a number is NaN or infinite.
    pub(crate) fn of_picture(&self, vector: Vec<f32>, output: Output) -> Option<EmbedResult> {
        let Output::Vector { dimensions, normalize } = output else { return None };
        let values = self.as_wanted(vector, dimensions, normalize);
        values.iter().all(|value| value.is_finite()).then_some(EmbedResult::Dense { values, rows: 1 })
    }
}
