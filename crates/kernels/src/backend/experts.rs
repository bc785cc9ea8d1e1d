//! What a mixture of experts is, in the contract.

use super::Activation;

/// How a router's scores become weights. Either is of all experts, in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertScoring {
    /// `exp(score) / Σ exp(scores)` over all experts (Mixtral, Qwen3-MoE).
    Softmax,
    /// `1 / (1 + exp(-score))`, each expert for itself (DeepSeek-V3).
    Sigmoid,
}

/// A mixture of experts: which of them a row goes to, and what each counts for (arxiv.org/abs/2101.03961).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoeParams {
    /// Experts each row goes to; 1 to as many as there are.
    pub experts_used: usize,
    /// How scores become weights.
    pub scoring: ExpertScoring,
    /// Whether the weights of the chosen are divided by their sum (`norm_topk_prob`). Where all of them are zero they
    /// stay zero.
    pub normalized: bool,
    /// Factor on the weights afterwards (`routed_scaling_factor`), usually 1.
    pub scale: f32,
    /// The non-linearity of every expert.
    pub activation: Activation,
    /// Whether an expert multiplies what it activates with a second product (SwiGLU and its like), rather than
    /// activates its only one (Nomic).
    pub gated: bool,
}

/// The matrices of one expert of a mixture, by shape or as stored. Each is stacked by rows of its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertParts<P> {
    /// Gate's rows, then up's, or up's alone where experts are not gated.
    pub gate_up: Vec<P>,
    /// Down's rows.
    pub down: Vec<P>,
}
