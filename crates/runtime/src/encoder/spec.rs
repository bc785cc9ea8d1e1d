//! An encoder as data: what the one forward must know to run a family. Absent: where its numbers come from
//! (`families`) and what its tensors are called (`names`).

use hanzo_engine_kernels::{Activation, HeadShape, StepLimits};

use super::distance::Buckets;
use crate::error::LoadError;
use crate::limits::{ENCODER_TYPES_MAX, WIDTH_MAX};
use crate::spec::RopeSpec;

/// An encoder-only network: embeddings, layers of attention over whole sequences and an MLP, and norms between them.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderSpec {
    /// The family's name in the file: `bert`, `modernbert`.
    pub architecture: String,
    /// Rows of the token embedding.
    pub vocab: usize,
    /// Elements of a hidden state.
    pub hidden: usize,
    /// What tells one layer from another.
    pub layers: Vec<LayerSpec>,
    /// Attention heads of every layer; `head_dim` need not be `hidden / heads`.
    pub heads: HeadShape,
    /// Elements inside the MLP.
    pub ffn: usize,
    /// Factor on token embeddings.
    pub embedding_scale: f32,
    /// The learned position embedding, where there is one.
    pub positions: Option<PositionTable>,
    /// Rows of the token type embedding; 0 where there is none, and all types must be 0 then.
    pub type_vocab: usize,
    /// The sum of the embeddings is normed.
    pub embedding_norm: bool,
    /// The norms between the layers' halves.
    pub norm: NormSpec,
    /// Where they stand.
    pub order: NormOrder,
    /// Rotary embeddings that layers choose from.
    pub ropes: Vec<RopeSpec>,
    /// What attention's scores get from the distance of two tokens.
    pub distance: Distance,
    /// Factor on attention's dot products.
    pub attention_scale: f32,
    /// Query, key and value projections have biases.
    pub qkv_bias: bool,
    /// The attention output projection has a bias.
    pub output_bias: bool,
    /// How queries and keys are normed before rope.
    pub qk_norm: QkNorm,
    /// The MLPs.
    pub mlp: MlpSpec,
    /// What stands in place of the MLP in layers that have experts.
    pub experts: Option<ExpertsSpec>,
    /// The convolution beside the first layer, where there is one.
    pub convolution: Option<ConvolutionSpec>,
    /// The head of a masked language model, where it is loaded.
    pub masked_lm: Option<MaskedLmSpec>,
    /// Tokens of the longest input.
    pub input_tokens_max: u32,
}

/// What tells a layer from others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerSpec {
    /// Which of [`EncoderSpec::ropes`] turns queries and keys, if any.
    pub rope: Option<usize>,
    /// Tokens that a token sees on each side of itself; none: all.
    pub reach: Option<u32>,
    /// Its MLP is [`EncoderSpec::experts`].
    pub experts: bool,
}

/// A learned embedding of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PositionTable {
    /// Rows.
    pub rows: usize,
    /// The row of a sequence's first token.
    pub offset: u32,
}

/// The norms of an encoder, all of one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormSpec {
    /// How they norm.
    pub kind: NormKind,
    /// Added to the variance or the mean of the squares.
    pub eps: f32,
}

/// How a norm norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// A layer norm.
    Layer {
        /// With an addend a column.
        bias: bool,
    },
    /// A root mean square norm.
    Rms {
        /// Files store each factor less 1 (Gemma).
        from_one: bool,
    },
}

/// Where norms stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormOrder {
    /// After each half of a layer, on the sum (BERT).
    Post,
    /// As `Post`; but what attention gives is added to its input and normed once more before that (Jina's models for
    /// code).
    PostTwice,
    /// Before each half of a layer, and one after the last (ModernBERT).
    Pre {
        /// Before the first half of the first layer too.
        first: bool,
    },
    /// Before each half of a layer and on what it adds, and one after the last (Gemma 3).
    Sandwich,
}

impl NormOrder {
    /// What a layer's half reads is the sum itself, which is normed after it.
    pub(super) fn on_sum(self) -> bool {
        matches!(self, NormOrder::Post | NormOrder::PostTwice)
    }

    /// What attention gives has a norm of its own.
    pub(super) fn attention_post_norm(self) -> bool {
        matches!(self, NormOrder::PostTwice | NormOrder::Sandwich)
    }
}

/// The norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// There are none.
    None,
    /// A root mean square norm of each head (Gemma 3).
    Heads,
    /// A layer norm of all heads together (Jina's models for code).
    Whole,
}

/// What attention's scores get from where two tokens stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distance {
    /// Nothing.
    None,
    /// `-slope * |i - j|`, a slope a head (arxiv.org/abs/2108.12409, seen from both sides).
    Alibi,
    /// A learned number for each head and bucket of distances, the same in all layers (MPNet).
    Learned {
        /// Buckets.
        buckets: usize,
        /// From this distance on all are alike.
        distance_max: u32,
    },
    /// DeBERTa's (arxiv.org/abs/2006.03654).
    Disentangled(Disentangled),
}

/// DeBERTa's scores between contents and distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disentangled {
    /// Queries meet the distances' keys (`c2p`).
    pub keys: bool,
    /// Keys meet the distances' queries (`p2c`).
    pub queries: bool,
    /// Both are made by the projections of the tokens' (`share_att_key`), not by projections of their own.
    pub shared: bool,
    /// The embedding of distances is layer normed first.
    pub normed: bool,
    /// Which row of it a distance takes.
    pub buckets: Buckets,
}

/// The MLPs of an encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MlpSpec {
    /// `down · activation(up · x)`.
    Plain {
        /// The non-linearity.
        activation: Activation,
        /// Both have biases.
        bias: bool,
    },
    /// `down · (activation(gate · x) * (up · x))`.
    Gated {
        /// The non-linearity.
        activation: Activation,
        /// Down has a bias; gate and up have none.
        down_bias: bool,
    },
}

impl MlpSpec {
    /// The non-linearity.
    pub fn activation(self) -> Activation {
        match self {
            MlpSpec::Plain { activation, .. } | MlpSpec::Gated { activation, .. } => activation,
        }
    }
}

/// A mixture of experts: a router and several plain MLPs without biases, each of [`EncoderSpec::ffn`] elements and with the
/// non-linearity of the other layers', of which each token goes to those the router scores highest. What an expert counts
/// for is its share in the softmax over all of them (Nomic).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertsSpec {
    /// Experts of a layer.
    pub count: usize,
    /// Experts that a token goes to; 1 to `count`.
    pub used: usize,
    /// Their sum has a bias.
    pub bias: bool,
    /// Files store each expert's second matrix as (ffn, hidden).
    pub down_transposed: bool,
}

/// A convolution along the tokens of the first layer's input, through a non-linearity and added to what that layer gives,
/// and a norm of the sum (DeBERTa v2 xlarge). Past a text's ends there are zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvolutionSpec {
    /// Tokens that it sees, half of them on each side of the one in the middle.
    pub window: usize,
    /// The non-linearity.
    pub activation: Activation,
}

/// From a hidden state to a number for each token of the vocabulary: dense, non-linearity, norm, decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskedLmSpec {
    /// The non-linearity.
    pub activation: Activation,
    /// The dense layer has a bias.
    pub dense_bias: bool,
    /// The decoder is the token embedding.
    pub tied: bool,
    /// The decoder has a bias.
    pub decoder_bias: bool,
}

impl EncoderSpec {
    /// The largest step of at most this many rows and sequences of at most `context` tokens.
    pub fn step_limits(&self, rows: usize, sequences: usize, context: usize) -> StepLimits {
        let mlp_width = match self.mlp {
            MlpSpec::Plain { .. } => self.ffn,
            MlpSpec::Gated { .. } => 2 * self.ffn,
        };
        let unfolded = self.convolution.map_or(0, |convolution| self.hidden * convolution.window);
        let (experts, experts_used) = self.experts.map_or((0, 0), |experts| (experts.count, experts.used));
        let (logit_rows, vocab) = if self.masked_lm.is_some() { (rows, self.vocab) } else { (0, 1) };
        StepLimits {
            rows,
            sequences,
            logit_rows,
            context,
            width: self.hidden.max(self.heads.qkv_width()).max(mlp_width).max(unfolded).max(experts),
            vocab,
            heads: self.heads,
            experts,
            experts_used,
        }
    }

    /// The norms' biases are there.
    pub(super) fn norm_bias(&self) -> bool {
        matches!(self.norm.kind, NormKind::Layer { bias: true })
    }

    /// Checks what no single setting shows: that the numbers fit each other. `file` is for errors.
    pub(super) fn checked(self, file: &str) -> Result<Self, LoadError> {
        let corrupt = |what: &str, reason: String| {
            Err(LoadError::Corrupt { file: file.to_owned(), what: what.to_owned(), reason })
        };
        let HeadShape { heads, kv_heads, head_dim } = self.heads;
        if !heads.is_multiple_of(kv_heads) {
            return corrupt(
                "attention heads",
                format!("{heads} query heads are not a multiple of {kv_heads} key-value heads"),
            );
        }
        if self.heads.qkv_width() > WIDTH_MAX {
            return corrupt("attention heads", format!("{heads} heads of {head_dim} are too wide"));
        }
        if self.type_vocab > ENCODER_TYPES_MAX {
            return corrupt(
                "token types",
                format!("there are {}; at most {ENCODER_TYPES_MAX} are allowed", self.type_vocab),
            );
        }
        for rope in &self.ropes {
            if rope.dim == 0 || !rope.dim.is_multiple_of(2) || rope.dim > head_dim {
                return corrupt(
                    "rotary embedding",
                    format!("{} dimensions; an even number up to the head's {head_dim} is needed", rope.dim),
                );
            }
            if !rope.inv_freq().iter().all(|frequency| frequency.is_finite()) {
                return corrupt("rotary embedding", "its frequencies are not finite".into());
            }
        }
        if let Some(table) = self.positions
            && table.rows < table.offset as usize + self.input_tokens_max as usize
        {
            return corrupt(
                "position embedding",
                format!(
                    "{} rows do not hold {} positions from row {}",
                    table.rows, self.input_tokens_max, table.offset
                ),
            );
        }
        if self.input_tokens_max == 0 {
            return corrupt("position embedding", "it leaves no room for a single token".into());
        }
        Ok(self)
    }
}
