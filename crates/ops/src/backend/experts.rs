//! Mixture of experts in the contract.

use super::{Activation, DeviceMemory};

/// Placeholder for an expert, for rows with a score that is NaN.
pub const NO_EXPERT: u32 = u32::MAX;

/// Conversion of a router's scores into weights, in f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ExpertScoring {
    /// `exp(score) / Σ exp(scores)` over all experts (Mixtral, Qwen3-MoE).
    Softmax,
    /// `1 / (1 + exp(-score))`, each expert by itself (DeepSeek-V3).
    Sigmoid,
    /// SparseMixer (Phi-3.5-MoE, arxiv.org/abs/2310.00811). Experts are chosen one after the other. The weight of each
    /// is its part of a softmax over the experts that were not chosen before it and are near: no further below its
    /// score than `reach` times the larger of its score and the magnitude of theirs. Weights are not normalised, and
    /// groups are not supported.
    Near {
        /// Fraction of a score; above 0.
        reach: f32,
    },
}

/// Mixture of experts: which experts a row is routed to, and the weight of each (arxiv.org/abs/2101.03961).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoeParams {
    /// Experts that each row is routed to; from 1 to all.
    pub experts_used: usize,
    /// Conversion of scores into weights.
    pub scoring: ExpertScoring,
    /// Whether the weights of the chosen experts are divided by their sum (`norm_topk_prob`). If all are zero they
    /// stay zero.
    pub normalized: bool,
    /// Factor on the weights afterwards (`routed_scaling_factor`), usually 1.
    pub scale: f32,
    /// Non-linearity of every expert.
    pub activation: Activation,
    /// Whether an expert multiplies its activated product with a second one (SwiGLU and similar), rather than having
    /// only one (Nomic).
    pub gated: bool,
    /// Group-limited routing, if experts are chosen from the best groups only.
    pub groups: Option<ExpertGroups>,
    /// Whether an expert's weight multiplies its input rather than its output (Llama 4). Each row is then routed to
    /// one expert.
    pub scales_input: bool,
}

/// Group-limited routing (DeepSeek). Groups are neighbouring experts, all groups of one size. A group's score is the
/// sum of its `best` largest experts' scores, as used for the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Number of groups; divides the number of experts.
    pub count: usize,
    /// Groups that a row's experts may come from. They hold at least as many experts as a row is routed to.
    pub used: usize,
    /// Experts that count towards a group's score: 1 (DeepSeek-V2) or 2 (DeepSeek-V3).
    pub best: usize,
}

/// Weights of a mixture of experts.
#[derive(Clone, Copy, Debug)]
pub struct MoeOperands<M, V, E, B> {
    /// `(experts, cols)`.
    pub router: M,
    /// Added to the router's scores, `(experts)` (GPT-OSS).
    pub router_bias: Option<V>,
    /// Added to the weights that the scoring computes, for the choice alone, `(experts)` (DeepSeek-V3).
    pub correction: Option<V>,
    /// Experts, one for each row of the router.
    pub experts: E,
    /// Biases of the experts' first products, `(experts, 2 * ffn)` with gate's first, or `(experts, ffn)` if they are
    /// not gated.
    pub up_bias: Option<V>,
    /// Biases of the experts' second products, `(experts, cols)`.
    pub down_bias: Option<V>,
    /// Factor on each expert's weight, applied last, `(experts)` (Gemma 4).
    pub expert_scale: Option<V>,
    /// Input of the router, `(rows, cols)`, if it differs from the experts' input (Gemma 4).
    pub routed: Option<B>,
}

/// Weights of a mixture in a backend's types.
pub type MoeWeights<'a, B> = MoeOperands<
    &'a <B as DeviceMemory>::Matrix,
    &'a <B as DeviceMemory>::Vector,
    &'a <B as DeviceMemory>::Experts,
    &'a <B as DeviceMemory>::Buffer,
>;

impl<M, V, E, B> MoeOperands<M, V, E, B> {
    /// Matrices without biases, corrections or scales.
    pub fn plain(router: M, experts: E) -> Self {
        Self {
            router,
            router_bias: None,
            correction: None,
            experts,
            up_bias: None,
            down_bias: None,
            expert_scale: None,
            routed: None,
        }
    }
}

impl MoeParams {
    /// Whether experts are chosen by weight, after scoring, rather than by score. Both have the same order except for
    /// rounding.
    #[inline]
    pub fn chooses_by_weight(&self, corrected: bool) -> bool {
        corrected || self.groups.is_some_and(|groups| groups.best > 1)
    }

    /// Asserts that a row can be routed with these parameters among so many experts.
    ///
    /// # Panics
    /// If it cannot.
    pub fn check(&self, experts: usize) {
        let used = self.experts_used;
        assert!(used > 0 && used <= experts, "{used} of {experts} experts");
        assert!(!self.scales_input || used == 1, "an input that is scaled for {used} experts");
        if let ExpertScoring::Near { reach } = self.scoring {
            assert!(reach > 0.0 && !self.normalized && self.groups.is_none(), "near experts alone: {self:?}");
        }
        if let Some(ExpertGroups { count, used: groups, best }) = self.groups {
            assert!(count > 0 && experts.is_multiple_of(count), "{experts} experts in {count} groups");
            assert!((1..=2).contains(&best) && best <= experts / count, "the {best} best of a group");
            assert!(
                groups <= count && groups * (experts / count) >= used,
                "{used} experts of {groups} groups"
            );
        }
    }
}

/// Matrices of one expert, as shapes or as stored. Each is a list of parts that are stacked by rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertParts<P> {
    /// Gate's rows, then up's; up's alone if experts are not gated.
    pub gate_up: Vec<P>,
    /// Rows of down.
    pub down: Vec<P>,
}
