//! The one network that runs every family: weights packed for a backend (`loader`, by the plan of `packing`), and a layer
//! as a straight line of ops on buffers made beforehand (`forward`). [`crate::decoder`] puts paged attention and logits
//! around it, [`crate::encoder`] whole sequences and what only encoders have.
//!
//! Absent: tokens' meaning, who is in a batch, where keys and values live.

mod adapted;
mod forward;
mod fused;
mod hqq;
mod inputs;
mod isq;
mod layers;
mod liveness;
mod loader;
mod observed;
mod packing;
mod program;
mod remembering;
mod seeing;
mod states;
mod streams;

use adapted::{AdaptedEmbedding, AdapterBuffers, Deltas};
use hanzo_engine_ops as ops;
use hanzo_engine_ops::{Activation, AnyBackend, BufferRole, MoeParams, StepLimits};

use crate::spec::{LayerSpec, Part, Projection, TransformerSpec};
use states::{State, StateBuffers, gate_width, state_widths};

pub(crate) use adapted::{buffer_bytes as adapter_buffer_bytes, bytes as adapter_bytes};
use inputs::{InputBuffers, Inputs, LayerInput};
pub use isq::{Isq, IsqRule};
pub(crate) use isq::{types as isq_types, types_by_name as isq_types_by_name};
pub(crate) use loader::{Loader, Quantiser, stored_as};
pub use observed::ActivationSums;
pub(crate) use observed::ImportanceSums;
pub use packing::WeightType;
pub(crate) use packing::{Group, plan};
use program::Programs;
pub(crate) use program::{Attend, CacheLayer, ProgramBuilder, Sum, ToMemory};
use remembering::MemoryBuffers;
use seeing::DeepBuffers;
use streams::{LayerStreams, StreamBuffers, Streams};

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
    pub fn scratch_bytes(&self, backend: &AnyBackend, limits: &StepLimits) -> u64 {
        let bytes =
            |&(role, cols): &(BufferRole, usize)| backend.buffer_bytes(role, limits.rows, cols) as u64;
        self.buffers.iter().map(bytes).sum::<u64>() + backend.scratch_bytes(limits) as u64
    }
}

/// Weights on a backend, and what it takes to run them.
pub(crate) struct Network {
    pub(crate) spec: TransformerSpec,
    pub(crate) embedding: ops::Matrix,         // (vocab, hidden)
    pub(crate) positions: Option<ops::Matrix>, // (positions, hidden): what is learned of positions
    pub(crate) types: Option<ops::Matrix>,     // (type_vocab, hidden): of tokens' types
    pub(crate) embedding_norm: Option<Norm>,   // (hidden): of the sum of embeddings
    inputs: Option<Inputs>,                    // what single layers read of tokens
    streams: Option<Streams>,                  // what makes streams, where there are several
    pub(crate) first_norm: Option<Norm>, // (hidden): before the first layer, where its attention reads no sum
    pub(crate) layers: Vec<Layer>,
    pub(crate) ropes: Vec<ops::Vector>, // each (rope.dim / 2), of long texts as many more
    pub(crate) head: Option<ops::Matrix>, // (vocab, hidden); the token embedding where there is none
    pub(crate) buffers: Option<Buffers>,
    programs: Programs,
    observed: Option<ImportanceSums>, // sums of an importance matrix, where one is made
    head_deltas: Vec<Option<ops::LowRank>>, // what adapters do to logits, by slot
    adapted_embeddings: Vec<Option<AdaptedEmbedding>>, // and to embeddings
}

pub(crate) struct Norm {
    pub(crate) weight: ops::Vector,
    pub(crate) bias: Option<ops::Vector>,
    part: Option<Part>,                // that adapters may change
    deltas: Vec<Option<ops::LowRank>>, // what adapters do to it, by slot
}

impl Norm {
    /// A norm that no adapter changes.
    pub(crate) fn new(weight: ops::Vector, bias: Option<ops::Vector>) -> Self {
        Self { weight, bias, part: None, deltas: Vec::new() }
    }

    /// Has what adapters do to a part done to it.
    fn of(self, part: Part) -> Self {
        Self { part: Some(part), ..self }
    }
}

pub(crate) struct Layer {
    pub(crate) cache: usize,                  // which of the cache's layers it attends to
    own: usize,                               // which of the buffers of first products it uses
    attended: usize,                          // which of those of what attention gives
    pub(crate) qkv: ops::Matrix, // (qkv_width, hidden): query, key and value projections; or (rank + rope_dim, hidden)
    pub(crate) latent: Option<Latent>, // what latent attention has besides
    pub(crate) qkv_bias: Option<ops::Vector>, // (qkv_width)
    remembered: Option<ops::Matrix>, // (2 * kv_heads * head_dim, hidden): keys and values of what sequences remember
    half_factors: Option<[f32; 2]>,  // on what its halves give
    pub(crate) q_norm: Option<Norm>, // (head_dim), or of all heads (heads * head_dim)
    pub(crate) k_norm: Option<Norm>, // (head_dim), or (kv_heads * head_dim)
    pub(crate) sinks: Option<ops::Vector>, // (heads)
    pub(crate) gate: Option<ops::Matrix>, // (q_width, hidden): what multiplies attention's output
    pub(crate) state: Option<State>, // what a layer that keeps a state has besides
    pub(crate) output: ops::Matrix,  // (hidden, q_width)
    pub(crate) output_bias: Option<ops::Vector>, // (hidden)
    pub(crate) attention_post_norm: Option<Norm>, // of what attention adds, or of the first of two sums
    pub(crate) middle_norm: Option<Norm>, // of the sum after the half that comes first; beside the other, of what attention reads
    pub(crate) mlp: Mlp,
    inner: usize,                           // which of the buffers inside MLPs it uses
    pub(crate) mlp_post_norm: Option<Norm>, // of what the MLP adds
    input: Option<LayerInput>,              // what it reads of tokens beside the sum
    factor: f32,                            // on what it gives
    streams: Option<LayerStreams>,          // what it does with several streams
    deltas: Deltas,                         // what adapters add to its matrices
    pub(crate) last_norm: Option<Norm>, // of the sum after both: what the next layer reads where norms stand before halves
}

/// A layer's latent attention: what makes queries, and of each head what takes them to latents and what is made of latents.
pub(crate) struct Latent {
    pub(crate) query_down: Option<(ops::Matrix, Norm)>, // (query_rank, hidden), (query_rank)
    pub(crate) query: ops::Matrix, // (heads * (nope_dim + rope_dim), hidden or query_rank)
    pub(crate) norm: Norm,         // (rank)
    pub(crate) key_up: ops::Heads, // (heads) of (rank, nope_dim)
    pub(crate) value_up: ops::Heads, // (heads) of (value_dim, rank)
}

/// The MLP beside experts.
pub(crate) struct SharedMlp {
    pub(crate) mlp: Box<Mlp>,
    pub(crate) gate: Option<ops::Vector>, // (hidden)
    averaged: bool,                       // what it and the experts give is halved
    ffn: usize,                           // columns inside of it
    inner: usize,                         // which of the buffers inside MLPs it uses
}

/// The norms of a mixture whose parts read and give each their own.
pub(crate) struct Apart {
    pub(crate) router_norm: ops::Vector,  // (hidden)
    pub(crate) expert_scale: ops::Vector, // (experts)
    pub(crate) norm: Norm,                // (hidden): of what experts read
    pub(crate) post_norm: Norm,           // (hidden): of what they give together
    pub(crate) shared_post_norm: Norm,    // (hidden): of what the MLP beside them gives
}

pub(crate) enum Mlp {
    /// The layer ends with its first half.
    None,
    /// Through xIELU, with these numbers for squares, exponentials and the number itself.
    Curved {
        curve: [f32; 3],
        up: ops::Matrix,   // (ffn, hidden)
        down: ops::Matrix, // (hidden, ffn)
    },
    Plain {
        activation: Activation,
        up: ops::Matrix,                // (ffn, hidden)
        up_bias: Option<ops::Vector>,   // (ffn)
        down: ops::Matrix,              // (hidden, ffn)
        down_bias: Option<ops::Vector>, // (hidden)
    },
    Gated {
        activation: Activation,
        gate_up: ops::Matrix,         // (2 * ffn, hidden)
        up_bias: Option<ops::Vector>, // (2 * ffn)
        down: ops::Matrix,            // (hidden, ffn)
        bias: Option<ops::Vector>,    // (hidden)
    },
    Experts {
        params: MoeParams,
        router: ops::Matrix,              // (experts, hidden)
        router_bias: Option<ops::Vector>, // (experts)
        correction: Option<ops::Vector>,  // (experts)
        up_bias: Option<ops::Vector>,     // (experts, 2 * ffn or ffn)
        down_bias: Option<ops::Vector>,   // (experts, hidden)
        shared: Option<SharedMlp>,
        experts: ops::Experts, // each (ffn, hidden), or gate and up (2 * ffn, hidden), and (hidden, ffn)
        bias: Option<ops::Vector>, // (hidden): of their sum
        apart: Option<Apart>,
    },
}

/// Activations of one step, all `(rows, _)`.
pub(crate) struct Buffers {
    rows: usize,
    pub(crate) residual: ops::Buffer, // (rows, hidden): the sum that halves add to
    pub(crate) normed: ops::Buffer,   // (rows, hidden)
    qkv: Vec<ops::Buffer>,            // (rows, qkv_width), one for each width of layers
    latent: Option<LatentBuffers>,    // where attention is of latents
    gates: Option<ops::Buffer>,       // (rows, q_width): where attention's output has a gate
    state: Option<StateBuffers>,      // where layers keep a state
    shared: Option<ops::Buffer>,      // (rows, hidden): what the MLP beside experts gives
    routed: Option<ops::Buffer>,      // (rows, hidden): what a router reads that has a norm of its own
    inputs: Option<InputBuffers>,     // where single layers read of tokens
    streams: Option<StreamBuffers>,   // where there are several
    deep: Option<DeepBuffers>,        // where first layers add what is given of pictures
    memory: Option<MemoryBuffers>,    // where layers read what sequences remember
    both: Option<ops::Buffer>,        // (rows, 2 * ffn): where gate and up have biases
    attended: Vec<ops::Buffer>,       // (rows, q_width), one for each width of layers
    pub(crate) branch: ops::Buffer,   // (rows, hidden): what a layer's half adds
    adapters: Option<AdapterBuffers>, // where there has been an adapter
    inner: Vec<ops::Buffer>,          // one for each width inside MLPs, in the order of `inner_widths`
}

/// Activations of latent attention, all `(rows, _)`.
pub(crate) struct LatentBuffers {
    low: ops::Buffer,      // (rows, query_rank), or nothing
    normed: ops::Buffer,   // likewise
    queries: ops::Buffer,  // (rows, heads * (nope_dim + rope_dim))
    absorbed: ops::Buffer, // (rows, heads * (rank + rope_dim))
    mixed: ops::Buffer,    // (rows, heads * rank)
}

/// Columns of [`LatentBuffers`]' members, in their order.
fn latent_widths(spec: &TransformerSpec) -> Option<[usize; 5]> {
    let Projection::Latent(shape) = spec.attending() else { return None };
    let (rank, heads) = (shape.query_rank.unwrap_or(0), shape.heads);
    Some([rank, rank, heads * shape.query_dim(), heads * (shape.rank + shape.rope_dim), heads * shape.rank])
}

/// Columns of [`Buffers::shared`], where there is one.
fn shared_width(spec: &TransformerSpec) -> Option<usize> {
    spec.layers.iter().any(|layer| layer.mlp.shared().is_some()).then_some(spec.hidden)
}

/// Widths inside the layers' MLPs, ascending, each once.
fn inner_widths(spec: &TransformerSpec) -> Vec<usize> {
    let mut widths: Vec<usize> = spec.layers.iter().map(|layer| layer.mlp.inner_width()).collect();
    widths.extend(spec.layers.iter().filter_map(|layer| layer.mlp.shared()).map(|shared| shared.ffn));
    // Of layers without an MLP.
    widths.retain(|&width| width > 0);
    widths.sort_unstable();
    widths.dedup();
    widths
}

/// Some width of all layers that attend, ascending, each once.
fn widths_of(spec: &TransformerSpec, width: fn(&LayerSpec) -> usize) -> Vec<usize> {
    let attend = spec.layers.iter().filter(|layer| layer.attention.projection.state().is_none());
    let mut widths: Vec<usize> = attend.map(width).collect();
    widths.sort_unstable();
    widths.dedup();
    widths
}

/// Columns of what a layer's first product gives.
fn own_width(layer: &LayerSpec) -> usize {
    layer.attention.first_width()
}

/// Columns of what its attention gives.
fn attended_width(layer: &LayerSpec) -> usize {
    layer.attention.projection.attended_width()
}

/// Columns of [`Buffers::routed`], where there is one.
fn routed_width(spec: &TransformerSpec) -> Option<usize> {
    spec.layers.iter().any(|layer| layer.mlp.is_apart()).then_some(spec.hidden)
}

/// Role and columns of the buffers as wide as hidden states: the sum, what is normed, and what a half adds. Where norms stand on the
/// sum, buffers take each other's place and hold the sum in turns.
fn buffer_shapes(spec: &TransformerSpec) -> [(BufferRole, usize); 3] {
    use BufferRole::{Operand, Residual};
    let hidden = spec.hidden;
    let in_turns = spec.layers.iter().any(|layer| layer.order.on_sum());
    // A shared expert is added to the output of the others.
    let adds_shared = spec.layers.iter().any(|layer| layer.mlp.shared().is_some());
    let of_hidden = if in_turns || spec.embedding_norm || adds_shared { Residual } else { Operand };
    [(Residual, hidden), (of_hidden, hidden), (of_hidden, hidden)]
}

/// Those of all members.
fn all_buffer_shapes(spec: &TransformerSpec) -> impl Iterator<Item = (BufferRole, usize)> {
    let widths = [inner_widths(spec), widths_of(spec, own_width), widths_of(spec, attended_width)];
    let more = latent_widths(spec).into_iter().flatten().chain(shared_width(spec)).chain(routed_width(spec));
    let more = more.chain(gate_width(spec)).chain(state_widths(spec).into_iter().flatten());
    let operands = widths.into_iter().flatten().chain(more).map(|cols| (BufferRole::Operand, cols));
    buffer_shapes(spec)
        .into_iter()
        .chain(operands)
        .chain(inputs::shapes(spec))
        .chain(streams::shapes(spec))
        .chain(seeing::shapes(spec))
        .chain(remembering::shapes(spec))
}

#[cfg(test)]
impl Network {
    /// All matrices that it holds but for experts' and those of single heads.
    pub(crate) fn matrices(&self) -> Vec<&ops::Matrix> {
        let mut matrices = vec![&self.embedding];
        matrices.extend(self.positions.iter().chain(&self.types));
        for layer in &self.layers {
            matrices.extend([&layer.qkv, &layer.output]);
            matrices.extend(layer.gate.iter().chain(&layer.remembered));
            if let Some(of) = &layer.streams {
                matrices.extend([&of.router, &of.prediction, &of.correction, &of.laurel_down, &of.laurel_up]);
            }
            matrices.extend(layer.input.iter().flat_map(|input| [&input.gate, &input.up]));
            if let Some(latent) = &layer.latent {
                matrices.extend(latent.query_down.iter().map(|(down, _)| down));
                matrices.extend([&latent.query]);
            }
            match &layer.mlp {
                Mlp::None => {}
                Mlp::Curved { up, down, .. } | Mlp::Plain { up, down, .. } => matrices.extend([up, down]),
                Mlp::Gated { gate_up, down, .. } => matrices.extend([gate_up, down]),
                Mlp::Experts { router, shared, .. } => {
                    matrices.push(router);
                    match shared.as_ref().map(|shared| &*shared.mlp) {
                        Some(Mlp::Plain { up, down, .. }) => matrices.extend([up, down]),
                        Some(Mlp::Gated { gate_up, down, .. }) => matrices.extend([gate_up, down]),
                        _ => {}
                    }
                }
            }
        }
        matrices.extend(self.streams.iter().flat_map(|streams| streams.up.iter().chain(&streams.down)));
        matrices.extend(self.inputs.iter().flat_map(|inputs| [&inputs.embedding, &inputs.projection]));
        matrices.extend(&self.head);
        matrices
    }

    /// The experts of the layers that have some.
    pub(crate) fn experts(&self) -> impl Iterator<Item = &ops::Experts> {
        self.layers.iter().filter_map(|layer| match &layer.mlp {
            Mlp::Experts { experts, .. } => Some(experts),
            Mlp::None | Mlp::Curved { .. } | Mlp::Plain { .. } | Mlp::Gated { .. } => None,
        })
    }

    /// All vectors that it holds, and norms.
    pub(crate) fn vectors_and_norms(&self) -> (Vec<&ops::Vector>, Vec<&Norm>) {
        let mut vectors: Vec<&_> = self.ropes.iter().collect();
        let mut norms: Vec<&Norm> = self.first_norm.iter().chain(&self.embedding_norm).collect();
        vectors.extend(self.inputs.iter().map(|inputs| &inputs.norm));
        for layer in &self.layers {
            vectors.extend(layer.qkv_bias.iter().chain(&layer.output_bias).chain(&layer.sinks));
            if let Some(of) = &layer.streams {
                vectors.extend([&of.router_norm].into_iter().chain(&of.scale));
                norms.extend([&of.input_norm, &of.laurel_norm]);
            }
            norms.extend(layer.input.iter().map(|input| &input.norm));
            norms.extend(layer.q_norm.iter().chain(&layer.k_norm));
            if let Some(state) = &layer.state {
                vectors.extend([&state.convolution].into_iter().chain(&state.convolution_bias));
                if let Some(of) = &state.recurrence {
                    vectors.extend([&of.decay, &of.step_bias].into_iter().chain(&of.skip).chain(&of.norm));
                }
            }
            norms.extend(layer.middle_norm.iter().chain(&layer.last_norm));
            if let Some(latent) = &layer.latent {
                norms.push(&latent.norm);
                norms.extend(latent.query_down.iter().map(|(_, norm)| norm));
            }
            norms.extend(layer.attention_post_norm.iter().chain(&layer.mlp_post_norm));
            match &layer.mlp {
                Mlp::None | Mlp::Curved { .. } => {}
                Mlp::Plain { up_bias, down_bias, .. } => vectors.extend(up_bias.iter().chain(down_bias)),
                Mlp::Gated { up_bias, bias, .. } => vectors.extend(up_bias.iter().chain(bias)),
                Mlp::Experts { bias, router_bias, correction, up_bias, down_bias, shared, apart, .. } => {
                    vectors.extend(apart.iter().flat_map(|of| [&of.router_norm, &of.expert_scale]));
                    norms.extend(apart.iter().flat_map(|of| [&of.norm, &of.post_norm, &of.shared_post_norm]));
                    vectors.extend([bias, router_bias, correction, up_bias, down_bias].into_iter().flatten());
                    vectors.extend(shared.iter().filter_map(|shared| shared.gate.as_ref()));
                }
            }
        }
        (vectors, norms)
    }
}
