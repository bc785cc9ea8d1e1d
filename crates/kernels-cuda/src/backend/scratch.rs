//! Scratch memory of steps within given limits.

use std::sync::Arc;

use hanzo_engine_ops::{KernelError, StepLimits};

use super::attention;
use super::draw::DrawBuffers;
use super::pairs::PairRoom;
use super::products::PieceRoom;
use super::ranks::MEETINGS_BYTES;
use super::then::ARRIVED_BYTES;
use crate::device::{Device, Memory};

/// Scratch memory of steps within the limits.
pub(super) struct Scratch<D: Device> {
    pub(super) both: Arc<Memory<D>>,       // (rows, width): gate and up
    pub(super) scores: Arc<Memory<D>>,     // (rows, experts)
    pub(super) chosen: Arc<Memory<D>>,     // (rows, experts_used)
    pub(super) weights: Arc<Memory<D>>,    // (rows, experts_used)
    pub(super) logits: Arc<Memory<D>>,     // (logit_rows, vocab)
    pub(super) pieces: Arc<Memory<D>>,     // pieces of a product's rows, or of pairs of rows and experts
    pub(super) few_pieces: Arc<Memory<D>>, // the same for a tile of rows, used in turns with it
    pub(super) arrived: Arc<Memory<D>>,    // counters of what blocks have written, zero between launches
    pub(super) pairs: Arc<Memory<D>>,      // pairs of rows and experts: their places and products
    pub(super) parts: Arc<Memory<D>>,      // partial results of attention, if blocks share a row
    pub(super) drawn: Arc<Memory<D>>,      // sampling parameters and drawn tokens
    pub(super) meetings: Arc<Memory<D>>,   // barrier state of the ranks
}

/// Bytes of each array of [`Scratch`].
fn parts(limits: &StepLimits) -> [usize; 12] {
    let StepLimits { rows, width, experts, experts_used, logit_rows, vocab, .. } = *limits;
    let [both, scores, chosen, weights, logits] =
        [rows * width, rows * experts, rows * experts_used, rows * experts_used, logit_rows * vocab]
            .map(|count| 4 * count);
    let pieces = PieceRoom::of(limits).bytes().max(PieceRoom::of_experts(limits).bytes());
    let few_pieces = PieceRoom::of(limits).of_few().bytes();
    let (pairs, parts) = (PairRoom::of(limits).bytes(), attention::parts_bytes(limits));
    [
        both,
        scores,
        chosen,
        weights,
        logits,
        pieces,
        few_pieces,
        pairs,
        parts,
        DrawBuffers::bytes(limits),
        ARRIVED_BYTES,
        MEETINGS_BYTES,
    ]
}

impl<D: Device> Scratch<D> {
    pub(super) fn new(device: &D, limits: &StepLimits) -> Result<Self, KernelError> {
        let make = |bytes| Memory::unknown(device, bytes, "scratch");
        let [sizes @ .., arrived, meetings] = parts(limits);
        let [both, scores, chosen, weights, logits, pieces, few_pieces, pairs, parts, drawn] =
            sizes.map(make);
        Ok(Self {
            both: both?,
            scores: scores?,
            chosen: chosen?,
            weights: weights?,
            logits: logits?,
            pieces: pieces?,
            few_pieces: few_pieces?,
            arrived: Memory::zeroed(device, arrived, "scratch")?,
            meetings: Memory::zeroed(device, meetings, "scratch")?,
            pairs: pairs?,
            parts: parts?,
            drawn: drawn?,
        })
    }

    pub(super) fn bytes(limits: &StepLimits) -> usize {
        parts(limits).iter().sum()
    }
}
