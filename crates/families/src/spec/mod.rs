//! A transformer as data: everything that the one network must know to run a family, decoder or encoder, and the
//! weights it needs. Decoders are read from GGUF metadata (`metadata`) or a Hugging Face `config.json` (`settings`), as
//! `families` say, by parts for both (`base`) that read rows of settings (`setting`); encoders by the families of the
//! runtime's `encoder`. A setting that cannot be expressed or run is a load error.

mod base;
mod config;
mod crossing;
mod distance;
mod families;
mod gemma_parts;
mod layer;
mod mamba;
mod metadata;
mod multimodal;
mod names;
mod rope;
mod runnable;
mod setting;
mod settings;
mod state;
#[cfg(test)]
mod tests;
mod unknown;
mod weights;

use std::ops::Range;

pub use config::Config;
pub use crossing::ROWS_OF_IMAGES;
pub use distance::{Alibi, Buckets, DisentangledAttention, Distance};
pub use distance::{behind_table, learned_table};
pub use families::{FAMILIES, Family, TinyModel};
pub use families::{
    architecture, architecture_of, gguf_names, huggingface_names, is_permuted, predicts_more,
};
pub use gemma_parts::{GemmaPart, StreamsSpec};
use hanzo_engine_ops::{Activation, HeadShape, KvGroups, KvLayout, KvSpec, KvType, PipelineCut, StepLimits};
pub use layer::{
    AttentionSpec, DenseSpec, ExpertsSpec, LatentShape, LayerSpec, Mask, MlpSpec, NormKind, NormOrder,
    NormSpec, Projection, QkNorm, SharedExpert,
};
pub use metadata::Architecture;
pub use metadata::{LONG_FACTORS, ROPE_FACTORS, from_gguf};
pub use multimodal::{Multimodal, not_read};
pub use names::{ExpertNames, ExpertPack, GateUp, Names, StateNames, StateStack};
pub use rope::yarn_magnitude;
pub use rope::{AxesSpec, LongRope, RopeScaling, RopeSpec};
pub use settings::from_config;
pub use state::StateSpec;
pub use weights::{LayerPart, Part, Weight};

use crate::kv_groups::{KvRoom, groups_of};

/// A transformer: embeddings, layers of attention and an MLP with norms between them, and a head.
#[derive(Clone, Debug, PartialEq)]
pub struct TransformerSpec {
    /// Name of the family in the file: `qwen3`, `llama`, `bert`.
    pub architecture: String,
    /// Rows of the token embedding and of a head over the vocabulary.
    pub vocab: usize,
    /// Elements of a hidden state.
    pub hidden: usize,
    /// Factor on token embeddings.
    pub embedding_scale: f32,
    /// Learned position embedding, if there is one.
    pub positions: Option<PositionTable>,
    /// Rows of the token type embedding; 0 if there is none, and all types must be 0 then.
    pub type_vocab: usize,
    /// Whether the sum of the embeddings is normed.
    pub embedding_norm: bool,
    /// The layers, first to last.
    pub layers: Vec<LayerSpec>,
    /// Settings of all norms except those of queries and keys.
    pub norm: NormSpec,
    /// Rotary embeddings that layers choose from.
    pub ropes: Vec<RopeSpec>,
    /// Whether rows of queries and keys are permuted: llama.cpp's converter puts the two that rotate together next to
    /// each other, while the published model has them half a head apart.
    pub permuted: bool,
    /// Position bias: addend to attention scores by the distance of two tokens.
    pub distance: Distance,
    /// Convolution in parallel with the first layer, if there is one.
    pub convolution: Option<ConvolutionSpec>,
    /// Width of a separate input of each layer for each token (Gemma 3n's embeddings for each layer).
    pub layer_inputs: Option<usize>,
    /// Whether each layer's output is multiplied by a number.
    pub layers_scaled: bool,
    /// Whether MLPs, which have no gate, use xIELU with parameters for each layer (Apertus), whatever activation they
    /// name.
    pub curved: bool,
    /// Parallel streams, if there are several.
    pub streams: Option<StreamsSpec>,
    /// Number of layers, from the first on, after which features are added to the rows of images (Qwen3-VL's
    /// DeepStack).
    pub deep_layers: usize,
    /// Factors with which rows of layers' matrices must still be multiplied (Falcon-H1).
    pub row_factors: Vec<RowFactor>,
    /// Rows of each image in the cross-attention cache (Llama 3.2 Vision); 0 without cross-attention.
    pub picture_rows: usize,
    /// Largest number of rows that must be computed in one step because they see each other, those of an image (Gemma
    /// 3); 0 if there are none.
    pub together: usize,
    /// Head: computes scores of the vocabulary's tokens.
    pub head: HeadSpec,
    /// Tokens of the longest context or input.
    pub context_tokens_max: u32,
}

/// Learned embedding of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PositionTable {
    /// Rows.
    pub rows: usize,
    /// Row of a sequence's first token.
    pub offset: u32,
}

/// Factor on some rows of a part, in every layer that has the part.
#[derive(Clone, Debug, PartialEq)]
pub struct RowFactor {
    /// The part.
    pub part: LayerPart,
    /// Rows of its matrix; rows past its end are ignored.
    pub rows: Range<usize>,
    /// The factor.
    pub factor: f32,
}

/// Convolution along the tokens of the first layer's input, followed by a non-linearity, added to that layer's output
/// and normed (DeBERTa v2 xlarge). Past a text's ends there are zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvolutionSpec {
    /// Tokens that it covers, half of them on each side of the middle one.
    pub window: usize,
    /// Non-linearity.
    pub activation: Activation,
}

/// Head: from a hidden state to a number for each token of the vocabulary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HeadSpec {
    /// None: hidden states are the result.
    None,
    /// A single matrix, in decoders.
    Logits(LogitsSpec),
    /// Head of a masked language model.
    MaskedLm(MaskedLmSpec),
}

/// Head of a decoder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitsSpec {
    /// Whether it is the token embedding.
    pub tied: bool,
    /// Factor on logits.
    pub scale: f32,
    /// Soft cap: `cap * tanh(logit / cap)` (Gemma 2).
    pub softcap: Option<f32>,
    /// Whether each row of its matrix is divided by its length (Baichuan 2).
    pub unit_rows: bool,
    /// Whether a number for each token is added to its logit (Phi-2).
    pub bias: bool,
}

/// Head of a masked language model: dense layer, non-linearity, norm, decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskedLmSpec {
    /// Non-linearity.
    pub activation: Activation,
    /// Whether the dense layer has a bias.
    pub dense_bias: bool,
    /// Whether the decoder is the token embedding.
    pub tied: bool,
    /// Whether the decoder has a bias.
    pub decoder_bias: bool,
}

impl LogitsSpec {
    /// A matrix without further features.
    pub fn plain(tied: bool) -> Self {
        LogitsSpec { tied, scale: 1.0, softcap: None, unit_rows: false, bias: false }
    }
}

impl HeadSpec {
    /// A head matrix, the token embedding or a separate one, without further features.
    pub fn plain(tied: bool) -> Self {
        HeadSpec::Logits(LogitsSpec::plain(tied))
    }

    /// Whether its matrix is the token embedding.
    pub fn tied(self) -> bool {
        match self {
            HeadSpec::None => false,
            HeadSpec::Logits(head) => head.tied,
            HeadSpec::MaskedLm(head) => head.tied,
        }
    }

    /// Makes its matrix separate from the token embedding.
    pub fn untie(&mut self) {
        match self {
            HeadSpec::None => {}
            HeadSpec::Logits(head) => head.tied = false,
            HeadSpec::MaskedLm(head) => head.tied = false,
        }
    }

    /// Factor on logits.
    pub fn logit_scale(self) -> f32 {
        match self {
            HeadSpec::Logits(head) => head.scale,
            HeadSpec::None | HeadSpec::MaskedLm(_) => 1.0,
        }
    }

    /// Whether it is a decoder's head with a bias.
    pub fn logit_bias(self) -> bool {
        matches!(self, HeadSpec::Logits(LogitsSpec { bias: true, .. }))
    }

    /// Whether it has a separate matrix.
    pub fn has_matrix(self) -> bool {
        self != HeadSpec::None && !self.tied()
    }

    /// The masked language model's head, if it is one.
    pub fn masked_lm(self) -> Option<MaskedLmSpec> {
        match self {
            HeadSpec::MaskedLm(head) => Some(head),
            HeadSpec::None | HeadSpec::Logits(_) => None,
        }
    }
}

impl TransformerSpec {
    /// A transformer with a vocabulary, hidden states and layers, and no further features.
    pub fn bare(
        architecture: &str,
        [vocab, hidden]: [usize; 2],
        layers: Vec<LayerSpec>,
        norm: NormSpec,
        context_tokens_max: usize,
    ) -> Self {
        Self {
            architecture: architecture.to_owned(),
            vocab,
            hidden,
            embedding_scale: 1.0,
            positions: None,
            type_vocab: 0,
            embedding_norm: false,
            layers,
            norm,
            ropes: Vec::new(),
            permuted: false,
            distance: Distance::None,
            convolution: None,
            layer_inputs: None,
            layers_scaled: false,
            curved: false,
            streams: None,
            deep_layers: 0,
            row_factors: Vec::new(),
            picture_rows: 0,
            together: 0,
            head: HeadSpec::None,
            context_tokens_max: context_tokens_max as u32,
        }
    }

    /// Factors with which rows of this matrix must still be multiplied.
    pub fn row_factors_of(&self, weight: Weight) -> Vec<RowFactor> {
        let of = |factor: &&RowFactor| {
            !weight.bias && matches!(weight.part, Part::Layer(_, part) if part == factor.part)
        };
        self.row_factors.iter().filter(of).cloned().collect()
    }

    /// Changes each layer; the closure gets its index.
    #[must_use]
    pub fn with_layers(mut self, change: impl Fn(usize, &mut LayerSpec)) -> Self {
        self.layers.iter_mut().enumerate().for_each(|(index, layer)| change(index, layer));
        self
    }

    /// The same network without a factor on what sublayers add (Granite, MiniCPM), if all layers have the same factor
    /// and norm only the residual sum. Norms do not depend on the size of their input except through epsilon. So the
    /// sum is kept in units of that factor, and no row is multiplied.
    fn without_residual_scale(mut self) -> Self {
        let scale = self.layers.first().map_or(1.0, |layer| layer.residual_scale);
        let folds = |layer: &LayerSpec| {
            let of_sum_alone =
                matches!(layer.order, NormOrder::Pre | NormOrder::Parallel | NormOrder::ParallelApart);
            layer.residual_scale == scale && of_sum_alone && layer.attention.qk_norm == QkNorm::None
        };
        if scale > 0.0 && self.layers.iter().all(folds) && !self.embedding_norm {
            let of_latents = self.norm.eps;
            self.embedding_scale /= scale;
            self.norm.eps /= scale * scale;
            for layer in &mut self.layers {
                layer.residual_scale = 1.0;
                layer.attention.latent_eps.get_or_insert(of_latents);
            }
        }
        self
    }

    /// Heads of the first layer; an encoder's layers are all alike in this.
    pub fn heads(&self) -> HeadShape {
        self.attending().head_shape()
    }

    /// Projection of the layers with attention, or of all if none has attention.
    pub fn attending(&self) -> Projection {
        let mut projections = self.layers.iter().map(|layer| layer.attention.projection);
        projections.find(|of| of.state().is_none()).unwrap_or(self.layers[0].attention.projection)
    }

    /// Recurrent state of layers, if some have one; they are alike in this.
    pub fn state(&self) -> Option<&StateSpec> {
        self.layers.iter().find_map(|layer| layer.attention.projection.state())
    }

    /// Tokens of the original context, if longer texts use other frequencies (LongRoPE).
    pub fn long_after(&self) -> Option<usize> {
        self.ropes
            .iter()
            .filter_map(|rope| rope.long.as_ref())
            .map(|long| long.original_context as usize)
            .min()
    }

    /// Whether layers have recurrent states. No prefix is shared then, and there is no speculative decoding.
    pub fn keeps_states(&self) -> bool {
        self.state().is_some()
    }

    /// Cache layout of each layer that has its own keys and values.
    pub fn kv_layouts(&self) -> impl Iterator<Item = KvLayout> + '_ {
        let own = self.layers.iter().filter(|layer| !layer.attention.queries_alone());
        own.map(|layer| layer.attention.kv_layout())
    }

    /// Layout of the cross-attention cache, for each layer that reads it.
    pub fn memory_layouts(&self) -> impl Iterator<Item = KvLayout> + '_ {
        let reads = self.layers.iter().filter(|layer| layer.attention.memory);
        reads.map(|layer| layer.attention.kv_layout())
    }

    /// Index in [`TransformerSpec::kv_layouts`] of the cache that a layer attends to, or in
    /// [`TransformerSpec::memory_layouts`].
    pub fn cache_of(&self, layer: usize) -> usize {
        if self.layers[layer].attention.memory {
            return self.layers[..layer].iter().filter(|layer| layer.attention.memory).count();
        }
        let own = self.layers[layer].attention.shares.unwrap_or(layer);
        self.layers[..own].iter().filter(|layer| !layer.attention.queries_alone()).count()
    }

    /// Division of the model between two devices, with so many layers on the first. The embedding is on the first
    /// device too, except in a model whose head is its embedding: that is on the head's device.
    ///
    /// # Errors
    /// The reason why it cannot be cut there: layers attend to others' keys and values, which must be on one device.
    pub fn cut(&self, layers: usize) -> Result<PipelineCut, String> {
        if self.picture_rows > 0 {
            return Err("what it remembers of pictures is on one device".to_owned());
        }
        let shares = |layer: usize| self.layers[layer].attention.shares;
        let torn = (layers..self.layers.len()).find(|&layer| shares(layer).is_some_and(|of| of < layers));
        if let Some(layer) = torn {
            let of = shares(layer).unwrap_or(0);
            return Err(format!(
                "layer {layer} attends to what layer {of} has in its cache, so both are on one device"
            ));
        }
        let caches = (0..layers).filter(|&layer| shares(layer).is_none()).count();
        Ok(PipelineCut { layers, caches, inputs: self.head.has_matrix() })
    }

    /// Cache layers that must be complete on every device in tensor parallelism
    /// ([`hanzo_engine_ops::TensorParallel`]): those whose queries or keys are normed as one, over all heads.
    ///
    /// # Errors
    /// The reason why tensor parallelism is impossible.
    pub fn undivided_caches(&self) -> Result<Vec<usize>, String> {
        if self.picture_rows > 0 {
            return Err("what it remembers of pictures is on one device".to_owned());
        }
        let as_one = |layer: &usize| {
            self.layers[*layer].attention.qk_norm == QkNorm::Whole && !self.norm.kind.is_layer()
        };
        let mut caches: Vec<usize> =
            (0..self.layers.len()).filter(as_one).map(|layer| self.cache_of(layer)).collect();
        caches.dedup();
        Ok(caches)
    }

    /// Heads in cache form, over all layers: the most, the widest, and the fewest of keys and values.
    fn cache_heads(&self) -> HeadShape {
        let attending = self.layers.iter().filter(|layer| layer.attention.projection.state().is_none());
        let shapes = attending.map(|layer| layer.attention.projection.cache_shape());
        let joined = shapes.reduce(|a, b| HeadShape {
            heads: a.heads.max(b.heads),
            kv_heads: a.kv_heads.min(b.kv_heads),
            head_dim: a.head_dim.max(b.head_dim),
        });
        joined.unwrap_or(HeadShape { heads: 1, kv_heads: 1, head_dim: 1 })
    }

    /// The paged KV cache of `blocks` blocks of 16 tokens, stored as `kv_type`, with room for the states of
    /// `sequences` sequences if layers have states.
    pub fn kv_spec(&self, blocks: usize, kv_type: KvType, sequences: usize) -> KvSpec {
        let (layers, groups) = (self.kv_layouts().collect(), self.kv_groups());
        KvSpec { layers, groups, blocks, kv_type, states: self.states_of(sequences), resident: false }
    }

    /// Number of states for so many sequences.
    pub fn states_of(&self, sequences: usize) -> usize {
        if self.keeps_states() { sequences } else { 0 }
    }

    /// Layer groups of the cache.
    pub fn kv_groups(&self) -> KvGroups {
        let layouts: Vec<KvLayout> = self.kv_layouts().collect();
        groups_of(&layouts, self.context_tokens_max as usize)
    }

    /// Number of blocks that sequences hold, in steps of at most so many rows.
    pub fn kv_room(&self, step_rows: usize) -> KvRoom {
        KvRoom::new(&self.kv_groups(), step_rows)
    }

    /// Limits of steps of at most this many rows, sequences and tokens of context. A decoder's sequence has at most
    /// one row whose logits are wanted; a masked language model may need those of all rows.
    pub fn step_limits(&self, rows: usize, sequences: usize, context: usize) -> StepLimits {
        let widest = |width: fn(&LayerSpec) -> usize| self.layers.iter().map(width).max().unwrap_or(0);
        let experts = |number: fn(&ExpertsSpec) -> usize| {
            self.layers.iter().filter_map(|layer| layer.mlp.experts()).map(number).max().unwrap_or(0)
        };
        let unfolded = self.convolution.map_or(0, |convolution| self.hidden * convolution.window);
        let (logit_rows, vocab) = match self.head {
            HeadSpec::None => (0, 1),
            HeadSpec::Logits(_) => (sequences, self.vocab),
            HeadSpec::MaskedLm(_) => (rows, self.vocab),
        };
        StepLimits {
            rows,
            sequences,
            logit_rows,
            context,
            width: self
                .hidden
                .max(widest(|layer| layer.attention.projection.width()))
                .max(widest(|layer| layer.mlp.width()))
                .max(unfolded)
                .max(self.layer_inputs.map_or(0, |inputs| inputs * self.layers.len()))
                .max(self.deep_layers * self.hidden),
            vocab,
            heads: self.cache_heads(),
            experts: experts(|experts| experts.count),
            experts_used: experts(|experts| experts.used),
            experts_width: match experts(|experts| experts.products_width()) {
                0 => 0,
                width => width.max(self.hidden),
            },
            kv_groups: self.kv_groups().count(),
            heads_matmul_width: widest(|layer| layer.attention.projection.heads_matmul_width()),
        }
    }

    /// Whether norms have biases.
    pub fn norm_bias(&self) -> bool {
        matches!(self.norm.kind, NormKind::Layer { bias: true } | NormKind::LayerFromOne)
    }
}
