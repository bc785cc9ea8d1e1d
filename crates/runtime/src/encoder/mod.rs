//! Encoder-only networks: BERT and its relatives, EmbeddingGemma. A family is data, an [`EncoderSpec`] and a table of
//! names (`families`); one forward (`forward`) runs them all on packed sequences, with no padding and no cache.
//!
//! Absent: tokens, pooling, prompts, and who is in a batch.

mod distance;
mod families;
mod files;
mod forward;
mod head;
mod loader;
mod names;
mod packing;
mod spec;
#[cfg(test)]
mod tests;
mod weights;

pub use distance::Buckets;
pub use families::gguf::is_encoder_gguf;
pub use files::{EncoderFiles, is_encoder};
pub use head::{Classifier, Head, HeadActivation, HeadInput, HeadLayer, HeadNorm, Scores};
pub use packing::WeightType;
pub use spec::{
    ConvolutionSpec, Disentangled, Distance, EncoderSpec, ExpertsSpec, LayerSpec, MaskedLmSpec, MlpSpec,
    NormKind, NormOrder, NormSpec, PositionTable, QkNorm,
};
pub use weights::{LayerPart, Part, Weight};

use forward::Buffers;
use hanzo_engine_kernels::{Backend, KernelError, MoeParams, StepLimits};

use crate::decoder::MemoryPlan;
use crate::error::LoadError;

/// An encoder's weights on a backend, and what it takes to run them.
pub struct Encoder<B: Backend> {
    spec: EncoderSpec,
    embedding: B::Matrix,            // (vocab, hidden)
    positions: Option<B::Matrix>,    // (positions, hidden)
    types: Option<B::Matrix>,        // (type_vocab, hidden)
    embedding_norm: Option<Norm<B>>, // (hidden)
    first_norm: Option<Norm<B>>,     // (hidden): before the first layer, where norms stand before halves
    layers: Vec<Layer<B>>,
    ropes: Vec<B::Vector>, // each (rope.dim / 2)
    distance: DistanceTables<B>,
    convolution: Option<Convolution<B>>,
    masked_lm: Option<MaskedLm<B>>,
    buffers: Option<Buffers<B>>,
}

struct Convolution<B: Backend> {
    weight: B::Matrix, // (hidden, hidden * window)
    bias: B::Vector,   // (hidden)
    norm: Norm<B>,     // of the sum
}

struct Norm<B: Backend> {
    weight: B::Vector,
    bias: Option<B::Vector>,
}

struct Layer<B: Backend> {
    qkv: B::Matrix,                       // (qkv_width, hidden): query, key and value projections
    qkv_bias: Option<B::Vector>,          // (qkv_width)
    q_norm: Option<Norm<B>>,              // (head_dim), or of all heads (heads * head_dim)
    k_norm: Option<Norm<B>>,              // (head_dim), or (kv_heads * head_dim)
    distance_keys: Option<B::Vector>,     // (buckets, heads * head_dim)
    distance_queries: Option<B::Vector>,  // (buckets, heads * head_dim)
    output: B::Matrix,                    // (hidden, q_width)
    output_bias: Option<B::Vector>,       // (hidden)
    attention_post_norm: Option<Norm<B>>, // of what attention adds, or of the first of two sums
    middle_norm: Norm<B>,                 // of the sum after attention
    mlp: Mlp<B>,
    mlp_post_norm: Option<Norm<B>>, // of what the MLP adds
    last_norm: Norm<B>, // of the sum after the MLP: the next layer's first where norms stand before halves
}

enum Mlp<B: Backend> {
    Plain {
        up: B::Matrix,                // (ffn, hidden)
        up_bias: Option<B::Vector>,   // (ffn)
        down: B::Matrix,              // (hidden, ffn)
        down_bias: Option<B::Vector>, // (hidden)
    },
    Gated {
        gate_up: B::Matrix, // (2 * ffn, hidden)
        down: B::Matrix,    // (hidden, ffn)
        /// The bias once for each token type, which is how it is added: (type_vocab or 1, hidden).
        down_bias: Option<B::Matrix>,
    },
    Experts {
        params: MoeParams,
        router: B::Matrix,   // (experts, hidden)
        experts: B::Experts, // (experts), each (ffn, hidden) and (hidden, ffn)
        /// As of a gated MLP.
        bias: Option<B::Matrix>,
    },
}

/// What all layers share of what scores get from distances.
enum DistanceTables<B: Backend> {
    None,
    Alibi { slopes: B::Vector },              // (heads)
    Learned { table: B::Vector, reach: u32 }, // (heads, 2 * reach + 1)
    Disentangled { bucket_of: Vec<u32>, reach: u32, buckets: u32 },
}

struct MaskedLm<B: Backend> {
    dense: B::Matrix,               // (hidden, hidden)
    dense_bias: Option<B::Vector>,  // (hidden)
    norm: Norm<B>,                  // (hidden)
    decoder: Option<B::Matrix>,     // (vocab, hidden); the token embedding where there is none
    decoder_bias: Option<Vec<f32>>, // (vocab), added on the host
}

impl<B: Backend> Encoder<B> {
    /// What [`Encoder::load`] and [`Encoder::prepare`] would take. Reads no weights.
    pub fn plan(backend: &B, files: &EncoderFiles, weight_type: WeightType) -> MemoryPlan {
        packing::plan(backend, files, weight_type)
    }

    /// Reads and packs all weights. `progress` hears the share that is done, up to 1. At no time is more held than
    /// the packed weights and one matrix as stored, or one expert's, three times where it is stored the other way round; a mapped
    /// file's pages are given back as they are packed.
    ///
    /// # Errors
    /// `Kernel` where the backend cannot pack a type (nothing is packed then) or give the memory; `Unsupported` where
    /// a decoder differs from the embedding it is tied to.
    pub fn load(
        backend: &B,
        files: &EncoderFiles,
        weight_type: WeightType,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Self, LoadError> {
        loader::load(backend, files, weight_type, progress)
    }

    /// What this encoder is.
    pub fn spec(&self) -> &EncoderSpec {
        &self.spec
    }

    /// Makes all buffers and the backend's scratch for steps within `limits`. Called once, before the first step.
    ///
    /// # Errors
    /// The backend's, when it cannot give the memory.
    pub fn prepare(&mut self, backend: &mut B, limits: &StepLimits) -> Result<(), KernelError> {
        self.buffers = Some(Buffers::new(backend, &self.spec, limits.rows)?);
        backend.reserve(limits)
    }
}
