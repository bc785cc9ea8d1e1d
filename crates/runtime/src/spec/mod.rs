//! A transformer as data: what the one network must know to run a family, decoder or encoder, and which weights that
//! takes. Decoders are read from GGUF metadata (`gguf`) or a Hugging Face `config.json` (`hf`), encoders by
//! `crate::encoder`'s families; a setting that cannot be expressed, or run, is a load error.

mod config;
mod crossing;
mod dense;
mod dense_absolute;
mod dense_gguf;
mod dense_own;
mod distance;
mod gemma;
mod gemma_gguf;
mod gemma_parts;
mod gguf;
mod hf;
mod hybrids_gguf;
mod layer;
mod mixtures;
mod mixtures_gguf;
mod multimodal;
mod names;
mod names_experts;
mod names_own;
mod names_state;
mod nemotron_gguf;
mod rope;
mod runnable;
mod state;
mod states_gguf;
#[cfg(test)]
mod tests;
mod unknown;
mod weights;

use std::ops::Range;

pub use config::Config;
pub(crate) use crossing::ROWS_OF_IMAGES;
pub use distance::{Alibi, Buckets, Disentangled, Distance};
pub(crate) use distance::{behind_table, learned_table};
pub use gemma_parts::{GemmaPart, StreamsSpec};
pub use gguf::from_gguf;
pub(crate) use gguf::{LONG_FACTORS, ROPE_FACTORS, is_permuted};
use hanzo_engine_kernels::{Activation, Cut, HeadShape, KvGroups, KvLayout, KvSpec, KvType, StepLimits};
pub use hf::from_config;
pub use layer::{
    AttentionSpec, DenseSpec, ExpertsSpec, LatentShape, LayerSpec, Mask, MlpSpec, NormKind, NormOrder,
    NormSpec, Projection, QkNorm, SharedExpert,
};
pub(crate) use mixtures::predicts_more;
pub(crate) use multimodal::{Multimodal, not_read};
pub(crate) use names::{GateUp, Names};
pub(crate) use names_experts::{ExpertNames, ExpertPack};
pub(crate) use names_state::StateStack;
pub(crate) use rope::yarn_magnitude;
pub use rope::{AxesSpec, LongRope, RopeScaling, RopeSpec};
pub use state::StateSpec;
pub use weights::{LayerPart, Part, Weight};

use crate::kv::{self, KvRoom};

/// A transformer: embeddings, layers of attention and an MLP with norms between them, and what stands on top.
#[derive(Clone, Debug, PartialEq)]
pub struct TransformerSpec {
    /// The family's name in the file: `qwen3`, `llama`, `bert`.
    pub architecture: String,
    /// Rows of the token embedding and of a head over the vocabulary.
    pub vocab: usize,
    /// Elements of a hidden state.
    pub hidden: usize,
    /// Factor on token embeddings.
    pub embedding_scale: f32,
    /// The learned position embedding, where there is one.
    pub positions: Option<PositionTable>,
    /// Rows of the token type embedding; 0 where there is none, and all types must be 0 then.
    pub type_vocab: usize,
    /// The sum of the embeddings is normed.
    pub embedding_norm: bool,
    /// The layers, first to last.
    pub layers: Vec<LayerSpec>,
    /// All norms but those of queries and keys.
    pub norm: NormSpec,
    /// Rotary embeddings that layers choose from.
    pub ropes: Vec<RopeSpec>,
    /// Rows of queries and keys are permuted: llama.cpp's converter puts the two that rotate together beside each other, and the
    /// published model has them half a head apart.
    pub permuted: bool,
    /// What attention's scores get from the distance of two tokens.
    pub distance: Distance,
    /// The convolution beside the first layer, where there is one.
    pub convolution: Option<ConvolutionSpec>,
    /// Elements of what each layer reads of each token beside the sum (Gemma 3n's embeddings for each layer).
    pub layer_inputs: Option<usize>,
    /// What each layer gives is multiplied by a number of its own.
    pub layers_scaled: bool,
    /// MLPs, which have no gate, go through xIELU with numbers of each layer's own (Apertus), whatever activation they say.
    pub curved: bool,
    /// Streams beside each other, where there are several.
    pub streams: Option<StreamsSpec>,
    /// Layers, from the first on, after which something is added to the rows of pictures (Qwen3-VL's DeepStack).
    pub deep_layers: usize,
    /// Factors on rows of layers' matrices that those of files are yet to be multiplied with (Falcon-H1).
    pub row_factors: Vec<RowFactor>,
    /// Rows of each picture that a sequence remembers, for the layers that read those (Llama 3.2 Vision). 0 where none do.
    pub picture_rows: usize,
    /// Rows that are computed in one step at most, because they see each other: a picture's (Gemma 3). 0 where none do.
    pub together: usize,
    /// What makes numbers for the tokens of the vocabulary.
    pub head: HeadSpec,
    /// Tokens of the longest context or input.
    pub context_tokens_max: u32,
}

/// A learned embedding of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PositionTable {
    /// Rows.
    pub rows: usize,
    /// The row of a sequence's first token.
    pub offset: u32,
}

/// A factor on some rows of a part of every layer that has it.
#[derive(Clone, Debug, PartialEq)]
pub struct RowFactor {
    /// The matrix.
    pub part: LayerPart,
    /// Which rows of it; those that it has no more are none.
    pub rows: Range<usize>,
    /// What they are multiplied with.
    pub factor: f32,
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

/// From a hidden state to a number for each token of the vocabulary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HeadSpec {
    /// Nothing: hidden states are the result.
    None,
    /// One matrix: a decoder's.
    Logits(LogitsSpec),
    /// That of a masked language model.
    MaskedLm(MaskedLmSpec),
}

/// A decoder's head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitsSpec {
    /// It is the token embedding.
    pub tied: bool,
    /// Factor on logits.
    pub scale: f32,
    /// `cap * tanh(logit / cap)` (Gemma 2).
    pub softcap: Option<f32>,
    /// Each row of its matrix is divided by its length (Baichuan 2).
    pub unit_rows: bool,
    /// A number for each token is added to its logit (Phi-2).
    pub bias: bool,
}

/// Dense, non-linearity, norm, decoder.
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

impl LogitsSpec {
    /// Nothing but the matrix.
    pub(crate) fn plain(tied: bool) -> Self {
        LogitsSpec { tied, scale: 1.0, softcap: None, unit_rows: false, bias: false }
    }
}

impl HeadSpec {
    /// A matrix of numbers for tokens, the token embedding or one of its own, with nothing after it.
    pub fn plain(tied: bool) -> Self {
        HeadSpec::Logits(LogitsSpec::plain(tied))
    }

    /// The token embedding is its matrix.
    pub fn tied(self) -> bool {
        match self {
            HeadSpec::None => false,
            HeadSpec::Logits(head) => head.tied,
            HeadSpec::MaskedLm(head) => head.tied,
        }
    }

    /// Gives it a matrix of its own.
    pub(crate) fn untie(&mut self) {
        match self {
            HeadSpec::None => {}
            HeadSpec::Logits(head) => head.tied = false,
            HeadSpec::MaskedLm(head) => head.tied = false,
        }
    }

    /// Factor on logits.
    pub(crate) fn logit_scale(self) -> f32 {
        match self {
            HeadSpec::Logits(head) => head.scale,
            HeadSpec::None | HeadSpec::MaskedLm(_) => 1.0,
        }
    }

    /// A decoder's has a bias.
    pub(crate) fn logit_bias(self) -> bool {
        matches!(self, HeadSpec::Logits(LogitsSpec { bias: true, .. }))
    }

    /// It has a matrix of its own.
    pub(crate) fn has_matrix(self) -> bool {
        self != HeadSpec::None && !self.tied()
    }

    /// The masked language model's, where it is one.
    pub fn masked_lm(self) -> Option<MaskedLmSpec> {
        match self {
            HeadSpec::MaskedLm(head) => Some(head),
            HeadSpec::None | HeadSpec::Logits(_) => None,
        }
    }
}

impl TransformerSpec {
    /// A vocabulary, hidden states and layers, with nothing before, beside and behind them.
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

    /// What rows of a matrix are yet to be multiplied with.
    pub(crate) fn row_factors_of(&self, weight: Weight) -> Vec<RowFactor> {
        let of = |factor: &&RowFactor| {
            !weight.bias && matches!(weight.part, Part::Layer(_, part) if part == factor.part)
        };
        self.row_factors.iter().filter(of).cloned().collect()
    }

    /// Changes each layer, which it gets with its number.
    #[must_use]
    pub fn with_layers(mut self, change: impl Fn(usize, &mut LayerSpec)) -> Self {
        self.layers.iter_mut().enumerate().for_each(|(index, layer)| change(index, layer));
        self
    }

    /// The same network without a factor on what halves add (Granite, MiniCPM), where all layers have the same and norm nothing but
    /// the sum: norms do not see the size of what they norm but for their epsilon, so the sum is kept in units of that factor, and
    /// no row is multiplied.
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

    /// Heads of the first layer, which an encoder's layers are alike in.
    pub fn heads(&self) -> HeadShape {
        self.attending().head_shape()
    }

    /// The projection of the layers that attend, or of all where none does.
    pub(crate) fn attending(&self) -> Projection {
        let mut projections = self.layers.iter().map(|layer| layer.attention.projection);
        projections.find(|of| of.state().is_none()).unwrap_or(self.layers[0].attention.projection)
    }

    /// The state that layers keep, where some do; they are alike in this.
    pub(crate) fn state(&self) -> Option<&StateSpec> {
        self.layers.iter().find_map(|layer| layer.attention.projection.state())
    }

    /// Tokens of the original context, where longer texts turn by frequencies of their own (LongRoPE).
    pub fn long_after(&self) -> Option<usize> {
        self.ropes
            .iter()
            .filter_map(|rope| rope.long.as_ref())
            .map(|long| long.original_context as usize)
            .min()
    }

    /// Whether layers keep a state of each sequence: then no prefix is shared and nothing is drafted.
    pub fn keeps_states(&self) -> bool {
        self.state().is_some()
    }

    /// What the cache of each layer that has one keeps of a token.
    pub fn kv_layouts(&self) -> impl Iterator<Item = KvLayout> + '_ {
        let own = self.layers.iter().filter(|layer| !layer.attention.queries_alone());
        own.map(|layer| layer.attention.kv_layout())
    }

    /// What is remembered of a row, for each layer that reads it.
    pub fn memory_layouts(&self) -> impl Iterator<Item = KvLayout> + '_ {
        let reads = self.layers.iter().filter(|layer| layer.attention.memory);
        reads.map(|layer| layer.attention.kv_layout())
    }

    /// Which of [`TransformerSpec::kv_layouts`] a layer attends to, or of [`TransformerSpec::memory_layouts`].
    pub(crate) fn cache_of(&self, layer: usize) -> usize {
        if self.layers[layer].attention.memory {
            return self.layers[..layer].iter().filter(|layer| layer.attention.memory).count();
        }
        let own = self.layers[layer].attention.shares.unwrap_or(layer);
        self.layers[..own].iter().filter(|layer| !layer.attention.queries_alone()).count()
    }

    /// How two devices may share it, so many layers of it on the first. What comes before the layers is there too, but for a model
    /// whose head is its embedding: that is where the head is.
    ///
    /// # Errors
    /// Why it cannot be cut there: layers attend to others' keys and values, which are on one device.
    pub fn cut(&self, layers: usize) -> Result<Cut, String> {
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
        Ok(Cut { layers, caches, inputs: self.head.has_matrix() })
    }

    /// The layers of the cache that devices which compute each layer together have all of ([`hanzo_engine_kernels::TensorParallel`]): those whose
    /// queries or keys are normed as one, over all heads.
    ///
    /// # Errors
    /// Why they cannot.
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

    /// Heads as attention meets them in the cache, of all layers: the most, the widest, and the fewest of keys and values.
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

    /// The paged cache of `blocks` blocks of 16 tokens, stored as `kv_type`, with states of `sequences` sequences where layers
    /// keep some.
    pub fn kv_spec(&self, blocks: usize, kv_type: KvType, sequences: usize) -> KvSpec {
        let (layers, groups) = (self.kv_layouts().collect(), self.kv_groups());
        KvSpec { layers, groups, blocks, kv_type, states: self.states_of(sequences), resident: false }
    }

    /// How many states so many sequences take.
    pub fn states_of(&self, sequences: usize) -> usize {
        if self.keeps_states() { sequences } else { 0 }
    }

    /// Which layers have block tables in common.
    pub fn kv_groups(&self) -> KvGroups {
        let layouts: Vec<KvLayout> = self.kv_layouts().collect();
        kv::groups_of(&layouts, self.context_tokens_max as usize)
    }

    /// How many blocks its sequences hold, in steps of at most so many rows.
    pub fn kv_room(&self, step_rows: usize) -> KvRoom {
        KvRoom::new(&self.kv_groups(), step_rows)
    }

    /// The largest step of at most this many rows, sequences and tokens of context. A decoder's sequence has at most one
    /// row whose logits are wanted; a masked language model's may be wanted of all rows.
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

    /// The norms' biases are there.
    pub(crate) fn norm_bias(&self) -> bool {
        matches!(self.norm.kind, NormKind::Layer { bias: true } | NormKind::LayerFromOne)
    }
}
