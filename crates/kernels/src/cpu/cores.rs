//! Cores that an op computes with.

use super::pool::PoolTurn;
use super::tier::Tier;

/// Cores of an op: the instructions that it uses, and a turn of the pool whose threads share its work.
pub(super) struct Cores<'a> {
    pub(super) tier: Tier,
    pub(super) turn: &'a mut PoolTurn,
}

impl Cores<'_> {
    /// The cores for one call, after which the lender has them again.
    pub(super) fn lend(&mut self) -> Cores<'_> {
        Cores { tier: self.tier, turn: self.turn }
    }
}
