//! What a model's files say lies around its network, as data.

use std::collections::BTreeMap;

use super::{Module, Pooling};

/// How texts become inputs, and hidden states vectors.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingSpec {
    /// The files say so themselves: the model was made to embed. Otherwise these are defaults.
    pub stated: bool,
    /// At least one; vectors of several are joined.
    pub pooling: Vec<Pooling>,
    /// Rows of a prompt count in pooling.
    pub include_prompt: bool,
    /// What follows pooling.
    pub modules: Vec<Module>,
    /// Texts that are put before an input, by name.
    pub prompts: BTreeMap<String, String>,
    /// The prompt of requests that name none.
    pub default_prompt: Option<String>,
    /// What a model that chats is told in its system prompt of inputs, each of which is a user's message then: their vectors are the
    /// row behind the prompt for an answer (Qwen3-VL-Embedding).
    pub asks: Option<String>,
    /// Tokens of an input at most, where the files say less than the network can take.
    pub tokens_max: Option<usize>,
    /// Texts are put in lower case first.
    pub lowercase: bool,
    /// Texts lose their punctuation, and white space of more than one character, first (SigLIP's first tokenizer).
    pub words_alone: bool,
    /// What is behind the first such token is left out (CLIP, whose tokens see none behind them, reads that one's row).
    pub end: Option<u32>,
    /// Inputs are all of one length (SigLIP, which reads the last row).
    pub padding: Option<Padding>,
    /// How a masked-language head's logits become sparse weights.
    pub splade: Splade,
    /// The layer that makes them of hidden states, where there is one.
    pub lexical: Option<Lexical>,
}

/// From logits over the vocabulary to one weight for each token (arxiv.org/abs/2107.05720):
/// `log(1 + max(logit, 0))`, over all rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Splade {
    /// The sum over rows instead of the largest.
    pub sums: bool,
    /// The logarithm is taken twice.
    pub log_twice: bool,
}

/// From the hidden state of each token to its weight, `max(weight · h + bias, 0)`: of a token that is there more than once
/// the largest, and of special tokens but the mask none (BGE-M3, arxiv.org/abs/2402.03216).
#[derive(Clone, Debug, PartialEq)]
pub struct Lexical {
    /// One factor an element of a hidden state.
    pub weight: Vec<f32>,
    /// Added to the sum.
    pub bias: f32,
    /// Tokens without a weight, in ascending order.
    pub special: Vec<u32>,
}

/// What makes inputs as long as those that a model was trained with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Padding {
    /// Tokens of an input.
    pub tokens: usize,
    /// What the tokenizer calls the token behind a text's own, where its files say so.
    pub name: Option<String>,
    /// That token.
    pub token: u32,
}

impl EmbeddingSpec {
    /// Pooling of one kind and, where `normalizes`, length 1; nothing else.
    pub fn plain(pooling: Pooling, normalizes: bool) -> EmbeddingSpec {
        EmbeddingSpec {
            stated: false,
            pooling: vec![pooling],
            include_prompt: true,
            modules: if normalizes { vec![Module::Normalize] } else { Vec::new() },
            prompts: BTreeMap::new(),
            default_prompt: None,
            asks: None,
            tokens_max: None,
            lowercase: false,
            words_alone: false,
            end: None,
            padding: None,
            splade: Splade::default(),
            lexical: None,
        }
    }

    /// Elements of the vectors of a network with so many.
    pub fn dimensions(&self, hidden: usize) -> usize {
        let dense = |module: &Module| match module {
            Module::Dense(dense) => Some(dense.outputs),
            Module::LayerNorm(_) | Module::Normalize => None,
        };
        self.modules.iter().rev().find_map(dense).unwrap_or(hidden * self.pooling.len())
    }

    /// Whether vectors have length 1 unless asked otherwise.
    pub fn normalizes(&self) -> bool {
        self.modules.last() == Some(&Module::Normalize)
    }

    /// Such as `mean`, or `cls+max`.
    pub fn pooling_name(&self) -> String {
        self.pooling.iter().map(|mode| mode.name()).collect::<Vec<_>>().join("+")
    }
}
