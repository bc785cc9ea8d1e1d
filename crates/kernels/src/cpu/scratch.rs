//! Scratch memory of a step's ops.

use super::activations::Activations;
use super::attention::{AttentionLimits, AttentionScratch};
use super::convolution::ConvScratch;
use super::latent::LatentScratch;
use super::matmul::{PanelScratch, Plan};
use super::moe::MoeScratch;
use super::rope::RopeTables;
use super::self_attention::SelfAttentionScratch;
use super::tier::Tier;
use hanzo_engine_ops::sampling::DrawScratch;
use hanzo_engine_ops::{KernelError, StepLimits};

/// All scratch memory of a step, allocated by `reserve`.
#[derive(Debug)]
pub(super) struct Scratch {
    pub(super) limits: StepLimits,
    pub(super) activations: Activations,
    pub(super) plan: Plan,
    pub(super) panels: Vec<PanelScratch>, // one a thread
    pub(super) moe: MoeScratch,
    pub(super) latent: LatentScratch,
    pub(super) rope: RopeTables,
    pub(super) attention: AttentionScratch,
    pub(super) self_attention: SelfAttentionScratch,
    pub(super) convolution: ConvScratch, // as large as the packed kernels need
    pub(super) draws: Vec<DrawScratch>,  // one a thread
}

impl Scratch {
    /// Bytes that [`Scratch::new`] allocates.
    pub(super) fn bytes(tier: Tier, limits: &StepLimits, attention: &AttentionLimits) -> usize {
        Activations::bytes(tier, MoeScratch::columns(limits), limits.width, limits.logit_rows)
            .saturating_add(Plan::bytes(groups(limits)))
            .saturating_add(MoeScratch::bytes(limits))
            .saturating_add(LatentScratch::bytes(limits))
            .saturating_add(attention.threads * PanelScratch::BYTES)
            .saturating_add(attention.threads.saturating_mul(DrawScratch::bytes(drawn_vocab(limits))))
            .saturating_add(RopeTables::bytes(limits.rows, limits.heads.head_dim))
            .saturating_add(attention.bytes())
            .saturating_add(SelfAttentionScratch::bytes(
                limits.heads.head_dim,
                limits.sequences,
                attention.threads,
            ))
    }

    /// Allocates all of it.
    pub(super) fn new(
        tier: Tier,
        limits: &StepLimits,
        attention: &AttentionLimits,
    ) -> Result<Scratch, KernelError> {
        Ok(Scratch {
            limits: *limits,
            activations: Activations::new(
                tier,
                MoeScratch::columns(limits),
                limits.width,
                limits.logit_rows,
            )?,
            plan: Plan::new(groups(limits))?,
            panels: (0..attention.threads).map(|_| PanelScratch::new()).collect::<Result<_, _>>()?,
            moe: MoeScratch::new(limits)?,
            latent: LatentScratch::new(limits)?,
            rope: RopeTables::new(limits.rows, limits.heads.head_dim)?,
            attention: AttentionScratch::new(attention)?,
            self_attention: SelfAttentionScratch::new(
                limits.heads.head_dim,
                limits.sequences,
                attention.threads,
            )?,
            convolution: ConvScratch::new([0; 4])?,
            draws: (0..attention.threads)
                .map(|_| DrawScratch::new("cpu", drawn_vocab(limits)))
                .collect::<Result<_, _>>()?,
        })
    }
}

/// Vocabulary size of rows that are drawn from; 0 if there are none.
fn drawn_vocab(limits: &StepLimits) -> usize {
    if limits.logit_rows == 0 { 0 } else { limits.vocab }
}

/// Largest number of matrices in one product.
fn groups(limits: &StepLimits) -> usize {
    let heads = if limits.heads_matmul_width == 0 { 0 } else { limits.heads.heads };
    limits.experts.max(heads)
}
