//! The one network that runs every family: weights packed for a backend (`loader`, by the plan of `packing`), and a layer
//! as a straight line of ops on buffers made beforehand (`forward`). [`crate::decoder`] puts paged attention and logits
//! around it, [`crate::encoder`] whole sequences and what only encoders have.
//!
//! Absent: tokens' meaning, who is in a batch, where keys and values live.

mod adapted;
mod forward;
mod loader;
mod packing;

use adapted::{AdapterBuffers, Deltas};
use hanzo_engine_kernels::{Activation, Backend, BufferRole, MoeParams, StepLimits};

use crate::spec::TransformerSpec;

pub(crate) use adapted::{buffer_bytes as adapter_buffer_bytes, bytes as adapter_bytes};
pub(crate) use forward::{Attention, Normer};
pub(crate) use loader::{Loader, as_f32};
pub use packing::WeightType;
pub(crate) use packing::{Group, plan};

/// What a network takes besides its KV cache, before it is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Packed weights, to the byte. A matrix of a type the backend cannot pack counts as its file's bytes; loading
    /// refuses it.
    pub weights_bytes: u64,
    /// Role and columns of each buffer.
    buffers: Vec<(BufferRole, usize)>,
}

impl MemoryPlan {
    /// Buffers and the backend's scratch for steps within `limits`.
    pub fn scratch_bytes<B: Backend>(&self, backend: &B, limits: &StepLimits) -> u64 {
        let bytes =
            |&(role, cols): &(BufferRole, usize)| backend.buffer_bytes(role, limits.rows, cols) as u64;
        self.buffers.iter().map(bytes).sum::<u64>() + backend.scratch_bytes(limits) as u64
    }
}

/// Weights on a backend, and what it takes to run them.
pub(crate) struct Network<B: Backend> {
    pub(crate) spec: TransformerSpec,
    pub(crate) embedding: B::Matrix,        // (vocab, hidden)
    pub(crate) first_norm: Option<Norm<B>>, // (hidden): before the first layer, where its attention reads no sum
    pub(crate) layers: Vec<Layer<B>>,
    pub(crate) ropes: Vec<B::Vector>,   // each (rope.dim / 2)
    pub(crate) head: Option<B::Matrix>, // (vocab, hidden); the token embedding where there is none
    pub(crate) buffers: Option<Buffers<B>>,
}

pub(crate) struct Norm<B: Backend> {
    pub(crate) weight: B::Vector,
    pub(crate) bias: Option<B::Vector>,
}

pub(crate) struct Layer<B: Backend> {
    pub(crate) qkv: B::Matrix, // (qkv_width, hidden): query, key and value projections
    pub(crate) qkv_bias: Option<B::Vector>, // (qkv_width)
    pub(crate) q_norm: Option<Norm<B>>, // (head_dim), or of all heads (heads * head_dim)
    pub(crate) k_norm: Option<Norm<B>>, // (head_dim), or (kv_heads * head_dim)
    pub(crate) sinks: Option<B::Vector>, // (heads)
    pub(crate) output: B::Matrix, // (hidden, q_width)
    pub(crate) output_bias: Option<B::Vector>, // (hidden)
    pub(crate) attention_post_norm: Option<Norm<B>>, // of what attention adds, or of the first of two sums
    pub(crate) middle_norm: Norm<B>, // of the sum after attention
    pub(crate) mlp: Mlp<B>,
    inner: usize,                              // which of the buffers inside MLPs it uses
    pub(crate) mlp_post_norm: Option<Norm<B>>, // of what the MLP adds
    deltas: Deltas<B>,                         // what adapters add to its matrices
    pub(crate) last_norm: Norm<B>, // of the sum after the MLP: the next layer's first where norms stand before halves
}

pub(crate) enum Mlp<B: Backend> {
    Plain {
        activation: Activation,
        up: B::Matrix,                // (ffn, hidden)
        up_bias: Option<B::Vector>,   // (ffn)
        down: B::Matrix,              // (hidden, ffn)
        down_bias: Option<B::Vector>, // (hidden)
    },
    Gated {
        activation: Activation,
        gate_up: B::Matrix,      // (2 * ffn, hidden)
        down: B::Matrix,         // (hidden, ffn)
        bias: Option<B::Vector>, // (hidden)
    },
    Experts {
        params: MoeParams,
        router: B::Matrix,       // (experts, hidden)
        experts: B::Experts,     // each (ffn, hidden), or gate and up (2 * ffn, hidden), and (hidden, ffn)
        bias: Option<B::Vector>, // (hidden): of their sum
    },
}

/// Activations of one step, all `(rows, _)`.
pub(crate) struct Buffers<B: Backend> {
    rows: usize,
    pub(crate) residual: B::Buffer, // (rows, hidden): the sum that halves add to
    pub(crate) normed: B::Buffer,   // (rows, hidden)
    qkv: B::Buffer,                 // (rows, qkv_width)
    attended: B::Buffer,            // (rows, q_width)
    pub(crate) branch: B::Buffer,   // (rows, hidden): what a layer's half adds
    adapters: Option<AdapterBuffers<B>>, // where there has been an adapter
    adapting: bool,                 // whether a sequence of the step has one
    inner: Vec<B::Buffer>,          // one for each width inside MLPs, in the order of `inner_widths`
}

/// Widths inside the layers' MLPs, ascending, each once.
fn inner_widths(spec: &TransformerSpec) -> Vec<usize> {
    let mut widths: Vec<usize> = spec.layers.iter().map(|layer| layer.mlp.inner_width()).collect();
    widths.sort_unstable();
    widths.dedup();
    widths
}

/// Role and columns of [`Buffers`]' members but for `inner`, in their order. Where norms stand on the sum, buffers take
/// each other's place and hold the sum in turns.
fn buffer_shapes(spec: &TransformerSpec) -> [(BufferRole, usize); 5] {
    use BufferRole::{Operand, Residual};
    let (hidden, projection) = (spec.hidden, spec.layers[0].attention.projection);
    let in_turns = spec.layers.iter().any(|layer| layer.order.on_sum());
    let of_hidden = if in_turns || spec.embedding_norm { Residual } else { Operand };
    [
        (Residual, hidden),
        (of_hidden, hidden),
        (Operand, projection.qkv_width()),
        (Operand, projection.attended_width()),
        (of_hidden, hidden),
    ]
}

/// Those of all members.
fn all_buffer_shapes(spec: &TransformerSpec) -> impl Iterator<Item = (BufferRole, usize)> {
    let inner = inner_widths(spec).into_iter().map(|cols| (BufferRole::Operand, cols));
    buffer_shapes(spec).into_iter().chain(inner)
}

#[cfg(test)]
impl<B: Backend> Network<B> {
    /// All matrices that it holds but for experts'.
    pub(crate) fn matrices(&self) -> Vec<&B::Matrix> {
        let mut matrices = vec![&self.embedding];
        for layer in &self.layers {
            matrices.extend([&layer.qkv, &layer.output]);
            match &layer.mlp {
                Mlp::Plain { up, down, .. } => matrices.extend([up, down]),
                Mlp::Gated { gate_up, down, .. } => matrices.extend([gate_up, down]),
                Mlp::Experts { router, .. } => matrices.push(router),
            }
        }
        matrices.extend(&self.head);
        matrices
    }

    /// The experts of the layers that have some.
    pub(crate) fn experts(&self) -> impl Iterator<Item = &B::Experts> {
        self.layers.iter().filter_map(|layer| match &layer.mlp {
            Mlp::Experts { experts, .. } => Some(experts),
            Mlp::Plain { .. } | Mlp::Gated { .. } => None,
        })
    }

    /// All vectors that it holds, and norms.
    pub(crate) fn vectors_and_norms(&self) -> (Vec<&B::Vector>, Vec<&Norm<B>>) {
        let mut vectors: Vec<&_> = self.ropes.iter().collect();
        let mut norms: Vec<&Norm<B>> = self.first_norm.iter().collect();
        for layer in &self.layers {
            vectors.extend(layer.qkv_bias.iter().chain(&layer.output_bias).chain(&layer.sinks));
            norms.extend(layer.q_norm.iter().chain(&layer.k_norm));
            norms.extend([&layer.middle_norm, &layer.last_norm]);
            norms.extend(layer.attention_post_norm.iter().chain(&layer.mlp_post_norm));
            match &layer.mlp {
                Mlp::Plain { up_bias, down_bias, .. } => vectors.extend(up_bias.iter().chain(down_bias)),
                Mlp::Gated { bias, .. } | Mlp::Experts { bias, .. } => vectors.extend(bias),
            }
        }
        (vectors, norms)
    }
}
