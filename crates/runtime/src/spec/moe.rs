//! A mixture of experts as data: what stands in a layer in place of one MLP.

use hanzo_engine_kernels::{Activation, ExpertScoring, MoeParams};

/// Layers whose MLP is a router and many small MLPs, the experts, of which each token goes to a few.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeSpec {
    /// Experts of each of these layers.
    pub experts: usize,
    /// Experts each token goes to; 1 to `experts`.
    pub experts_used: usize,
    /// Elements inside one expert.
    pub ffn: usize,
    /// How the router's scores become weights.
    pub scoring: ExpertScoring,
    /// Whether the weights of the experts used are divided by their sum.
    pub normalized: bool,
    /// Factor on the weights afterwards.
    pub scale: f32,
    /// Which layers are mixtures; the others have one MLP.
    pub sparse: Vec<bool>, // (layers)
}

impl MoeSpec {
    /// What a layer computes with, all its experts having this non-linearity.
    pub fn params(&self, activation: Activation) -> MoeParams {
        let &MoeSpec { experts_used, scoring, normalized, scale, .. } = self;
        MoeParams { experts_used, scoring, normalized, scale, activation, gated: true }
    }

    /// Elements inside all experts that one token goes to.
    pub fn ffn_used(&self) -> usize {
        self.experts_used * self.ffn
    }
}
