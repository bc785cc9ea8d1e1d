//! A model family as data: what the one decoder must know to run it, and which weights that takes. Read from
//! GGUF metadata ([`gguf`]) or a Hugging Face `config.json` ([`hf`]); a setting it cannot express is a load error.

mod config;
mod gguf;
mod hf;
mod moe;
mod rope;
#[cfg(test)]
mod tests;
mod weights;

pub use config::Config;
pub(crate) use gguf::ROPE_FACTORS;
pub use gguf::from_gguf;
use hanzo_engine_kernels::{Activation, HeadShape, KvLayout, KvSpec, KvType, StepLimits};
pub use hf::from_config;
pub use moe::MoeSpec;
pub use rope::{RopeScaling, RopeSpec};
pub use weights::{LayerWeight, Naming, Weight};

use crate::error::LoadError;
use crate::limits::WIDTH_MAX;

/// A pre-norm decoder with RMS norms, its layers of attention and either a gated MLP or a mixture of experts.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderSpec {
    /// The family's name in the file: `qwen3`, `llama`, `mixtral`.
    pub architecture: String,
    /// Rows of the embedding and the head.
    pub vocab: usize,
    /// Elements of a hidden state.
    pub hidden: usize,
    /// Layers.
    pub layers: usize,
    /// Attention heads of every layer; `head_dim` need not be `hidden / heads`.
    pub heads: HeadShape,
    /// Elements inside the MLP of layers that are no mixtures of experts; 0 where all are.
    pub ffn: usize,
    /// The layers that are mixtures of experts, where some are.
    pub moe: Option<MoeSpec>,
    /// Epsilon of all RMS norms.
    pub norm_eps: f32,
    /// Query, key and value projections have biases.
    pub qkv_bias: bool,
    /// The attention output projection has a bias.
    pub o_bias: bool,
    /// Queries and keys are normed per head before rope.
    pub qk_norm: bool,
    /// Rotary position embedding.
    pub rope: RopeSpec,
    /// The MLPs' non-linearity, in experts too.
    pub activation: Activation,
    /// The head is the embedding.
    pub tied_embeddings: bool,
    /// A layer with a window sees only that many last keys.
    pub windows: Vec<Option<u32>>, // (layers)
    /// Tokens the model was made for.
    pub context_tokens_max: u32,
}

impl DecoderSpec {
    /// Factor on attention's dot products.
    pub fn attention_scale(&self) -> f32 {
        1.0 / (self.heads.head_dim as f32).sqrt()
    }

    /// The paged cache of `blocks` blocks of 16 tokens, stored as `kv_type`.
    pub fn kv_spec(&self, blocks: usize, kv_type: KvType) -> KvSpec {
        let HeadShape { kv_heads, head_dim, .. } = self.heads;
        let layers = self.windows.iter().map(|&window| KvLayout::Heads { kv_heads, head_dim, window });
        KvSpec { layers: layers.collect(), blocks, kv_type }
    }

    /// The mixture of experts that a layer is, or none.
    pub fn moe_of(&self, layer: usize) -> Option<&MoeSpec> {
        self.moe.as_ref().filter(|moe| moe.sparse[layer])
    }

    /// The largest step of an engine that runs at most this many rows, sequences and tokens of context. Each
    /// sequence has at most one row whose logits are wanted.
    pub fn step_limits(&self, rows: usize, sequences: usize, context: usize) -> StepLimits {
        let (experts, experts_used, expert_ffn) =
            self.moe.as_ref().map_or((0, 0, 0), |moe| (moe.experts, moe.experts_used, moe.ffn));
        let mlp_width = (2 * self.ffn).max(2 * expert_ffn).max(experts);
        StepLimits {
            rows,
            sequences,
            logit_rows: sequences,
            context,
            width: self.hidden.max(self.heads.qkv_width()).max(mlp_width),
            vocab: self.vocab,
            heads: self.heads,
            experts,
            experts_used,
        }
    }

    /// Checks what no single setting shows: that the numbers fit each other. `file` is for errors.
    fn checked(self, file: &str) -> Result<Self, LoadError> {
        let HeadShape { heads, kv_heads, head_dim } = self.heads;
        let corrupt = |what: &str, reason: String| {
            Err(LoadError::Corrupt { file: file.to_owned(), what: what.to_owned(), reason })
        };
        if !heads.is_multiple_of(kv_heads) {
            return corrupt(
                "attention heads",
                format!("{heads} query heads are not a multiple of {kv_heads} key-value heads"),
            );
        }
        if !self.rope.dim.is_multiple_of(2) || self.rope.dim > head_dim {
            return corrupt(
                "rotary embedding",
                format!("{} dimensions; an even number up to the head's {head_dim} is needed", self.rope.dim),
            );
        }
        if let Some(factors) = &self.rope.factors
            && factors.len() != self.rope.dim / 2
        {
            return corrupt(
                "tensor rope_freqs.weight",
                format!("expected {} factors, found {}", self.rope.dim / 2, factors.len()),
            );
        }
        if !self.rope.magnitude.is_finite() {
            return corrupt("rotary embedding", "its factor on cosine and sine is not finite".into());
        }
        if let Some(moe) = &self.moe {
            let &MoeSpec { experts, experts_used, ffn, .. } = moe;
            if experts_used > experts {
                return corrupt("experts", format!("a token goes to {experts_used} of {experts}"));
            }
            if moe.ffn_used() > WIDTH_MAX {
                return corrupt(
                    "experts",
                    format!(
                        "{experts_used} times {ffn} elements for a token; at most {WIDTH_MAX} are allowed"
                    ),
                );
            }
        }
        if !self.rope.inv_freq().iter().all(|frequency| frequency.is_finite()) {
            return corrupt("rotary embedding", "its frequencies are not finite".into());
        }
        Ok(self)
    }
}

/// Errors show the first characters of a long value.
pub(crate) fn shorten(text: String) -> String {
    const SHOWN: usize = 120; // characters
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
