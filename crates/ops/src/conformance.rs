//! Conformance suite. A backend is right if its numbers equal those of
//! [`ReferenceBackend`](crate::reference::ReferenceBackend) within stated bounds, and a row's result is
//! bit-identical whatever else is in its batch and however its prompt is chunked.
//!
//! Every `check_` function panics at the first difference, naming the op, the type, the shape and the element.
//! Its argument is a function that makes a new backend; it is called once for each
//! [`StepLimits`](crate::StepLimits) that the check needs. The allowed differences are in `bounds.rs`: backends
//! may round as [`Facts::rounding`](crate::Facts::rounding) says. In attention over the KV cache, they may
//! also round queries, keys and softmax weights to f16. They may not round more than that.
//!
//! A check stops at the first fault. An op or a type of operand that the backend lacks is a fault too: the panic then is
//! that of [`Backend::run`](crate::Backend::run), or has the backend's error. Checks need more than the op of their name:
//! [`check_transfers`] runs `AllReduce`, [`check_steps`] `RmsNorm`, [`check_row_sources`] `Embed`, and [`check_sizes`]
//! asks for sizes of experts and caches.
//!
//! If the variable [`EXTENT_VARIABLE`] is `brief`, or is unset within [`briefly`], each check tries fewer cases,
//! because emulators take minutes.
//!
//! Data is random from fixed seeds, with difficult cases added by hand: zeros, outliers, rows of tiny and of huge
//! numbers, sizes that are no multiples of a kernel's blocks, buffers with more rows than the batch, block tables
//! in random order, and batches of sequences of many lengths.

mod attention;
mod bounds;
mod by_method;
mod convolution;
mod decoder;
mod encoder;
mod extent;
mod latent;
mod line;
mod linear;
mod low_rank;
mod mlp;
mod moe;
mod norms;
mod random;
mod rig;
mod rope;
mod rope_axes;
mod rope_tables;
mod rows;
mod sampling;
mod scene;
mod self_attention;
mod states;
mod storage;
#[cfg(test)]
mod tests;
mod unfold;
mod weights;

pub use attention::{
    check_attention, check_attention_invariance, check_attention_long_contexts, check_memory_attention,
    check_mutual_attention,
};
pub use convolution::{check_activate, check_convolutions};
pub use decoder::check_decoder;
pub use encoder::{check_add_embedding, check_matmul_activated};
pub use extent::{EXTENT_VARIABLE, briefly};
pub use latent::{check_heads_matmul, check_latent_attention};
pub use line::{check_instance_affine, check_lstm, check_mirror, check_relative_attention};
pub use linear::{
    check_add_bias, check_embed, check_logits, check_matmul, check_matmul_invariance, check_mixed_matrix,
};
pub use low_rank::{check_adapted_logits, check_gate, check_low_rank};
pub use mlp::check_gated_mlp;
pub use moe::{check_add_shared, check_moe, check_moe_choice, check_moe_invariance, check_moe_routing};
pub use norms::{
    check_add_layer_norm, check_add_rms_norm, check_layer_norm, check_layer_norm_columns, check_rms_norm,
};
pub use rope::{check_rope, check_rope_to_cache};
pub use rope_axes::{check_rope_axes, check_rope_to_cache_axes};
pub use rope_tables::check_rope_tables;
pub use rows::{check_row_op, check_streams};
pub use sampling::{check_row_sources, check_running_ahead, check_sample};
pub use self_attention::{check_self_attention, check_self_attention_invariance, check_self_attention_parts};
pub use states::{check_gate_output, check_states};
pub use storage::{check_pack, check_sizes, check_steps, check_transfers};
pub use unfold::check_unfold;

use crate::AnyBackend;

/// Runs every check but those of [`check_vocoder_ops`], whose ops only some backends have: [`check_decoder_ops`],
/// [`check_encoder_ops`], [`check_memory_attention`] and [`check_mutual_attention`].
///
/// # Panics
/// If the backend is wrong.
pub fn check_all(make: &dyn Fn() -> AnyBackend) {
    check_decoder_ops(&make);
    check_encoder_ops(&make);
    // Cross-attention, which speech recognition uses.
    check_memory_attention(&make);
    // Attention in which rows see later rows, such as those of an image.
    check_mutual_attention(&make);
}

/// Runs the checks of ops that every [`Backend`](crate::Backend) must have, those of decoders, and of packing,
/// transfers, steps and sampling.
///
/// # Panics
/// If the backend is wrong.
pub fn check_decoder_ops(make: &dyn Fn() -> AnyBackend) {
    check_pack(make);
    check_sizes(make);
    check_transfers(make);
    check_steps(make);
    check_embed(make);
    check_rms_norm(make);
    check_add_rms_norm(make);
    check_matmul(make);
    check_mixed_matrix(make);
    check_matmul_invariance(make);
    check_matmul_activated(make);
    check_add_bias(make);
    check_row_op(make);
    check_streams(make);
    check_layer_norm(make);
    check_add_layer_norm(make);
    check_layer_norm_columns(make);
    check_add_embedding(make);
    check_gated_mlp(make);
    check_gate(make);
    check_low_rank(make);
    check_adapted_logits(make);
    check_moe(make);
    check_moe_choice(make);
    check_moe_invariance(make);
    check_moe_routing(make);
    check_add_shared(make);
    check_logits(make);
    check_sample(make);
    check_row_sources(make);
    check_running_ahead(make);
    check_rope_to_cache(make);
    check_rope_to_cache_axes(make);
    check_rope_tables(make);
    check_attention(make);
    check_attention_invariance(make);
    check_attention_long_contexts(make);
    check_heads_matmul(make);
    check_latent_attention(make);
    check_states(make);
    check_gate_output(make);
    check_decoder(make);
}

/// Runs the checks of ops that encoders need besides: `Unfold`, `Rope`, `SelfAttention` and (if supported)
/// `AttendPart` of [`Op`](crate::Op). They read whole sequences, without a KV cache.
///
/// # Panics
/// If the backend is wrong.
pub fn check_encoder_ops(make: &dyn Fn() -> AnyBackend) {
    check_unfold(make);
    check_rope(make);
    check_rope_axes(make);
    check_self_attention(make);
    check_self_attention_invariance(make);
    check_self_attention_parts(make);
}

/// Runs the checks of ops that only vocoders need, and only some backends have: `Activate`, `Conv`,
/// `ConvTranspose`, `InstanceAffine`, `Mirror`, `Lstm` and `RelativeAttention` of [`Op`](crate::Op).
///
/// # Panics
/// If the backend is wrong.
pub fn check_vocoder_ops(make: &dyn Fn() -> AnyBackend) {
    check_activate(make);
    check_convolutions(make);
    check_instance_affine(make);
    check_mirror(make);
    check_lstm(make);
    check_relative_attention(make);
}
