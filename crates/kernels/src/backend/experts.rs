//! What a mixture of experts is, in the contract.

use super::{Activation, Backend};

/// In place of an expert: of a row with a score that is no number.
pub const NO_EXPERT: u32 = u32::MAX;

/// How a router's scores become weights, in f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ExpertScoring {
    /// `exp(score) / Σ exp(scores)` over all experts (Mixtral, Qwen3-MoE).
    Softmax,
    /// `1 / (1 + exp(-score))`, each expert for itself (DeepSeek-V3).
    Sigmoid,
    /// Experts are chosen one after the other, and each counts for its part of the softmax over those not chosen before it that
    /// are near: no further below it than `reach` times the larger of its score and the magnitude of theirs (Phi-3.5-MoE,
    /// SparseMixer, arxiv.org/abs/2310.00811). Weights are not normalized, and groups are not known.
    Near {
        /// Part of a score; above 0.
        reach: f32,
    },
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
    /// Experts are chosen from the best groups of them alone.
    pub groups: Option<ExpertGroups>,
    /// What an expert counts for is multiplied with what it reads rather than with what it gives (Llama 4). Rows go to
    /// one expert then.
    pub scales_input: bool,
}

/// Group-limited routing (DeepSeek): groups are neighbours, all of one size. A group is worth the sum of its `best` largest
/// experts, as they stand for the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Groups; divides the experts.
    pub count: usize,
    /// Groups that a row's experts may be in; they hold at least as many experts as a row goes to.
    pub used: usize,
    /// Experts that make a group's worth: 1 (DeepSeek-V2) or 2 (DeepSeek-V3).
    pub best: usize,
}

/// The weights of a mixture of experts.
#[derive(Clone, Copy, Debug)]
pub struct MoeOperands<M, V, E, B> {
    /// `(experts, cols)`.
    pub router: M,
    /// Added to the router's scores, `(experts)` (GPT-OSS).
    pub router_bias: Option<V>,
    /// Added to what the scoring makes of scores, for the choice alone, `(experts)` (DeepSeek-V3).
    pub correction: Option<V>,
    /// An expert for each of the router's rows.
    pub experts: E,
    /// Biases of the experts' first products, `(experts, 2 * ffn)`, gate's first, or `(experts, ffn)` where they are not
    /// gated.
    pub up_bias: Option<V>,
    /// Biases of their second products, `(experts, cols)`.
    pub down_bias: Option<V>,
    /// Factor on what each expert counts for, after everything else, `(experts)` (Gemma 4).
    pub expert_scale: Option<V>,
    /// What the router reads, `(rows, cols)`, where that is not what experts do (Gemma 4).
    pub routed: Option<B>,
}

/// The weights of a mixture as a backend has them.
pub type MoeWeights<'a, B> = MoeOperands<
    &'a <B as Backend>::Matrix,
    &'a <B as Backend>::Vector,
    &'a <B as Backend>::Experts,
    &'a <B as Backend>::Buffer,
>;

impl<M, V, E, B> MoeOperands<M, V, E, B> {
    /// Matrices, with nothing added anywhere.
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
    /// Whether experts are chosen by what the scoring makes of their scores rather than by the scores, which have the same
    /// order but for rounding.
    pub fn chooses_by_weight(&self, corrected: bool) -> bool {
        corrected || self.groups.is_some_and(|groups| groups.best > 1)
    }

    /// Asserts that a row can go to so many of them.
    ///
    /// # Panics
    /// Where it cannot.
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

/// The matrices of one expert of a mixture, by shape or as stored. Each is stacked by rows of its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertParts<P> {
    /// Gate's rows, then up's, or up's alone where experts are not gated.
    pub gate_up: Vec<P>,
    /// Down's rows.
    pub down: Vec<P>,
}
