//! Encoder-only networks: BERT and its relatives, EmbeddingGemma. A family is data, a description and a table of names
//! (`families`); one forward (`forward`) puts attention over whole packed sequences, with no padding and no cache, and what
//! only encoders have around the one network.
//!
//! Absent: tokens, pooling, prompts, and who is in a batch.

mod families;
mod files;
mod forward;
mod loader;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use families::encoders;
pub(crate) use families::gguf::gguf_encoders;
pub use families::gguf::is_encoder_gguf;
pub use files::{EncoderFiles, is_encoder};

use hanzo_engine_ops as ops;
use hanzo_engine_ops::{AnyBackend, Buckets, BufferRole, KernelError, Op, StepLimits};

use crate::error::LoadError;
use crate::network::{self, MemoryPlan, Network, Norm};
use crate::spec::TransformerSpec;

pub use crate::network::WeightType;

/// An encoder's weights on a backend, and what it takes to run them.
pub struct Encoder {
    network: Network,
    distance: DistanceTables,
    program: EncoderProgram,
    convolution: Option<Convolution>,
    masked_lm: Option<MaskedLm>,
}

/// Ops that only encoders have, between and behind those of the network.
#[derive(Default)]
struct EncoderProgram {
    embedded: Vec<Op>,       // after the embeddings
    attention: Vec<Vec<Op>>, // of each layer
    convolved: Vec<Op>,      // after the first layer
    masked_lm: Vec<Op>,      // from hidden states to the input of the head over the vocabulary
}

struct Convolution {
    weight: ops::Matrix,           // (hidden, hidden * window)
    bias: ops::Vector,             // (hidden)
    norm: Norm,                    // of the sum
    unfolded: Option<ops::Buffer>, // (rows, hidden * window): what it multiplies
}

/// What scores get from distances.
enum DistanceTables {
    None,
    Alibi { slopes: ops::Vector },              // (heads)
    Learned { table: ops::Vector, reach: u32 }, // (heads, 2 * reach + 1)
    Disentangled { bucket_of: Buckets, reach: u32, buckets: u32, layers: Vec<LayerDistances> },
}

/// A layer's tables of its own.
struct LayerDistances {
    keys: Option<ops::Vector>,    // (buckets, heads * head_dim)
    queries: Option<ops::Vector>, // (buckets, heads * head_dim)
}

/// A head over the vocabulary, whose matrix is the network's.
struct MaskedLm {
    dense: ops::Matrix,              // (hidden, hidden)
    dense_bias: Option<ops::Vector>, // (hidden)
    norm: Norm,                      // (hidden)
    decoder_bias: Option<Vec<f32>>,  // (vocab), added on the host
}

/// Columns of what a convolution multiplies; 0 where there is none.
fn unfolded_cols(spec: &TransformerSpec) -> usize {
    spec.convolution.map_or(0, |convolution| spec.hidden * convolution.window)
}

impl Encoder {
    /// What [`Encoder::load`] and [`Encoder::prepare`] would take. Reads no weights.
    pub fn plan(backend: &AnyBackend, files: &EncoderFiles, weight_type: WeightType) -> MemoryPlan {
        network::plan(backend, &files.spec, &files.tensors, weight_type, unfolded_cols(&files.spec))
    }

    /// Reads and packs all weights. `progress` hears the share that is done, up to 1. At no time is more held than
    /// the packed weights and one matrix as stored, of experts that are stored the other way round three times; a mapped
    /// file's pages are given back as they are packed.
    ///
    /// # Errors
    /// `Kernel` where the backend cannot pack a type (nothing is packed then) or give the memory.
    pub fn load(
        backend: &AnyBackend,
        files: &EncoderFiles,
        weight_type: WeightType,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Self, LoadError> {
        loader::load(backend, files, weight_type, progress)
    }

    /// What this encoder is.
    pub fn spec(&self) -> &TransformerSpec {
        &self.network.spec
    }

    /// Makes all buffers and the backend's scratch for steps within `limits`. Called once, before the first step.
    ///
    /// # Errors
    /// The backend's, when it cannot give the memory.
    pub fn prepare(&mut self, backend: &mut AnyBackend, limits: &StepLimits) -> Result<(), KernelError> {
        self.network.prepare(backend, limits.rows)?;
        let cols = unfolded_cols(&self.network.spec);
        if let Some(convolution) = &mut self.convolution {
            convolution.unfolded = Some(backend.buffer(BufferRole::Operand, limits.rows, cols)?);
        }
        self.build_program();
        backend.reserve(limits)
    }
}
