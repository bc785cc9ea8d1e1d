//! Description of embedding: the settings in a model's files around its network.

use std::collections::BTreeMap;

use super::{Module, Pooling};

/// Settings that turn texts into inputs, and hidden states into vectors.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingSpec {
    /// The files have these settings: the model was made to embed. Otherwise they are defaults.
    pub stated: bool,
    /// Pooling modes; at least one. Vectors of several modes are concatenated.
    pub pooling: Vec<Pooling>,
    /// Include the rows of a prompt in pooling.
    pub include_prompt: bool,
    /// Modules after pooling.
    pub modules: Vec<Module>,
    /// Prompts to put before an input, by name.
    pub prompts: BTreeMap<String, String>,
    /// Name of the prompt for requests that name none.
    pub default_prompt: Option<String>,
    /// System prompt for chat models that embed; each input is then a user message. The vector is the row after the
    /// generation prompt (Qwen3-VL-Embedding).
    pub asks: Option<String>,
    /// Maximum tokens of an input, if the files state less than the network can take.
    pub tokens_max: Option<usize>,
    /// Convert texts to lower case first.
    pub lowercase: bool,
    /// Remove punctuation and repeated white space first (SigLIP's first tokenizer).
    pub words_alone: bool,
    /// Drop everything after the first such token. CLIP's tokens attend only to those before them, and its vector
    /// is this token's row.
    pub end: Option<u32>,
    /// Pad all inputs to one length (SigLIP, which reads the last row).
    pub padding: Option<Padding>,
    /// Formula for sparse weights from a masked language model's logits.
    pub splade: Splade,
    /// Layer for sparse weights from hidden states, if there is one.
    pub lexical: Option<Lexical>,
}

/// Sparse weights from logits over the vocabulary (arxiv.org/abs/2107.05720): `log(1 + max(logit, 0))` for each
/// token, combined over all rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Splade {
    /// Combine rows by their sum instead of the maximum.
    pub sums: bool,
    /// Take the logarithm twice.
    pub log_twice: bool,
}

/// Sparse weights from hidden states: each token gets `max(weight · h + bias, 0)`. A repeated token gets its
/// largest weight. Special tokens other than the mask get none (BGE-M3, arxiv.org/abs/2402.03216).
#[derive(Clone, Debug, PartialEq)]
pub struct Lexical {
    /// Weights, one for each element of a hidden state.
    pub weight: Vec<f32>,
    /// Bias.
    pub bias: f32,
    /// Tokens without a weight, in ascending order.
    pub special: Vec<u32>,
}

/// Padding of inputs to the length that a model was trained with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Padding {
    /// Length in tokens.
    pub tokens: usize,
    /// Name of the padding token in the tokenizer, if the files state one.
    pub name: Option<String>,
    /// ID of the padding token.
    pub token: u32,
}

impl EmbeddingSpec {
    /// Default settings with one pooling mode, and normalisation to length 1 if `normalizes`.
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

    /// Elements of a vector, for a network with `hidden` elements.
    pub fn dimensions(&self, hidden: usize) -> usize {
        let dense = |module: &Module| match module {
            Module::Dense(dense) => Some(dense.outputs),
            Module::LayerNorm(_) | Module::Normalize => None,
        };
        self.modules.iter().rev().find_map(dense).unwrap_or(hidden * self.pooling.len())
    }

    /// Whether vectors are normalised to length 1 by default.
    pub fn normalizes(&self) -> bool {
        self.modules.last() == Some(&Module::Normalize)
    }

    /// Names of the pooling modes, such as `mean` or `cls+max`.
    pub fn pooling_name(&self) -> String {
        self.pooling.iter().map(|mode| mode.name()).collect::<Vec<_>>().join("+")
    }
}
