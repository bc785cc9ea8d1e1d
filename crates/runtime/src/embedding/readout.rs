//! One input on its way out: which rows the engine must hand over, and what they become.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    Embedder, Lexical,
    modules::normalize,
    pooling::{Pooled, Pooling},
};
use crate::encoder::HeadInput;

/// What is computed of an input.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Output {
    /// One vector.
    Vector {
        /// The first so many elements, cut before the vector gets its length; none: all.
        dimensions: Option<usize>,
        /// Length 1, or as the layers leave it; none: as the model's files say.
        normalize: Option<bool>,
    },
    /// The hidden state of each token.
    Tokens,
    /// A weight for each token of the vocabulary.
    Sparse,
    /// A classifier's scores, one for each label.
    Scores {
        /// Logits instead of probabilities.
        raw: bool,
    },
}

/// What came of an input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Computed {
    /// `(rows, values.len() / rows)`.
    Dense {
        /// Row after row.
        values: Vec<f32>,
        /// 1, but for [`Output::Tokens`].
        rows: usize,
    },
    /// The weights that are not 0, by token.
    Sparse(Vec<(u32, f32)>),
}

/// The rows of a sequence that are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Every one.
    All,
    /// The first.
    First,
    /// The last.
    Last,
}

/// The rows of one input as they come, until they are what was asked for.
#[derive(Debug)]
pub struct Readout {
    output: Output,
    rows: Rows,
    state: State,
}

#[derive(Debug)]
enum State {
    Pooled(Pooled),
    Tokens(Vec<f32>),
    // The largest or the sum of each token's weight.
    Vocabulary(Vec<f32>),
    Lexical(LexicalWeights),
}

/// The largest weight of each token of an input so far.
#[derive(Debug)]
struct LexicalWeights {
    /// The tokens whose rows have yet to come, the next one last.
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
            // What is not a number must be seen at the end.
            if weight > *largest || weight.is_nan() {
                *largest = weight;
            }
        }
    }
}

impl Readout {
    /// Of an input of these tokens, whose first `prompt_tokens` are a prompt.
    pub fn new(embedder: &Embedder, output: Output, tokens: &[u32], prompt_tokens: usize) -> Readout {
        let spec = &embedder.spec;
        let (modes, first): (&[Pooling], usize) = match (output, &embedder.classifier) {
            (Output::Scores { .. }, Some(classifier)) => (classifier_pooling(classifier.input), 0),
            _ if spec.include_prompt => (&spec.pooling, 0),
            _ => (&spec.pooling, prompt_tokens),
        };
        let state = match output {
            Output::Vector { .. } | Output::Scores { .. } => {
                State::Pooled(Pooled::new(modes, embedder.hidden, first))
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

    /// Whether logits over the vocabulary are wanted instead of hidden states.
    pub fn wants_vocabulary(&self) -> bool {
        matches!(self.state, State::Vocabulary(_))
    }

    /// The rows it wants.
    pub fn rows(&self) -> Rows {
        self.rows
    }

    /// Takes the next of the rows it wants: hidden states `(n, hidden)`, or logits `(n, vocab)`.
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
                        // What is not a number must be seen at the end.
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

    /// What the rows are; none where a number of it is not one.
    pub fn finish(self, embedder: &Embedder) -> Option<Computed> {
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
                Computed::Dense { values: scores, rows: 1 }
            }
            (State::Pooled(pooled), Output::Vector { dimensions, normalize }) => {
                let values = embedder.vector(pooled.finish(), dimensions, normalize);
                Computed::Dense { values, rows: 1 }
            }
            (State::Pooled(_), _) => return None,
            (State::Tokens(values), _) => {
                let rows = values.len() / embedder.hidden;
                Computed::Dense { values, rows }
            }
            (State::Lexical(LexicalWeights { weights, .. }), _) => {
                if weights.values().any(|weight| !weight.is_finite()) {
                    return None;
                }
                Computed::Sparse(weights.into_iter().filter(|&(_, weight)| weight > 0.0).collect())
            }
            (State::Vocabulary(weights), _) => {
                if weights.iter().any(|weight| !weight.is_finite()) {
                    return None;
                }
                let entries = weights.into_iter().enumerate().filter(|&(_, weight)| weight != 0.0);
                Computed::Sparse(entries.map(|(token, weight)| (token as u32, weight)).collect())
            }
        };
        match &computed {
            Computed::Dense { values, .. } if values.iter().any(|value| !value.is_finite()) => None,
            _ => Some(computed),
        }
    }
}

/// How a classifier's row comes about.
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
    /// A pooled row through the modules.
    fn vector(&self, mut vector: Vec<f32>, dimensions: Option<usize>, wanted: Option<bool>) -> Vec<f32> {
        let modules = &self.spec.modules;
        let layers = modules.iter().take(modules.len() - usize::from(self.spec.normalizes()));
        layers.for_each(|module| module.apply(&mut vector));
        self.as_wanted(vector, dimensions, wanted)
    }

    /// With fewer dimensions a vector is cut after the layers and before it gets its length.
    fn as_wanted(&self, mut vector: Vec<f32>, dimensions: Option<usize>, wanted: Option<bool>) -> Vec<f32> {
        vector.truncate(dimensions.unwrap_or(usize::MAX));
        if wanted.unwrap_or(self.spec.normalizes()) {
            normalize(&mut vector);
        }
        vector
    }

    /// What a picture's vector becomes; none where a number of it is not one.
    pub(crate) fn of_picture(&self, vector: Vec<f32>, output: Output) -> Option<Computed> {
        let Output::Vector { dimensions, normalize } = output else { return None };
        let values = self.as_wanted(vector, dimensions, normalize);
        values.iter().all(|value| value.is_finite()).then_some(Computed::Dense { values, rows: 1 })
    }
}
