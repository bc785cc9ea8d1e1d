//! Bounds of a model's shape.

pub use hanzo_engine_model_files::limits::VOCAB_MAX;

/// Layers of a decoder.
pub const LAYERS_MAX: usize = 1024;
/// Layer groups of the KV cache; layers with different windows are in different groups if possible. Each group has
/// its own block tables.
pub const KV_GROUPS_MAX: usize = 16;
/// Maximum memory of the groups as a multiple of their layers' need. Some waste is allowed so that there are few
/// groups.
pub const KV_WASTE_MAX: f64 = 1.05;
/// Elements of a hidden state, of an MLP's intermediate state, or of the intermediate states of all experts of a
/// token.
pub const WIDTH_MAX: usize = 1 << 20;
/// Parallel residual streams.
pub const STREAMS_MAX: usize = 16;
/// Experts of a layer.
pub const EXPERTS_MAX: usize = 4096;
/// Groups that a layer's experts are chosen from.
pub const EXPERT_GROUPS_MAX: usize = 64;
/// Query heads of a layer.
pub const HEADS_MAX: usize = 4096;
/// Elements of a head.
pub const HEAD_DIM_MAX: usize = 4096;
/// Rows of an encoder's token type embedding.
pub const ENCODER_TYPES_MAX: usize = 1024;
/// Tokens of a context.
pub const CONTEXT_TOKENS_MAX: usize = 64 << 20;
