//! Who gives way to whom when not everybody fits: what one job holds is not what is everybody's.
//!
//! Room that is free goes to the first in line. Beyond that, room is taken from who runs, in two cases:
//! - a job that holds more gives to one that would, with it, still hold no more: completions of one request come down to
//!   what others have, one by one;
//! - a job that has not begun takes the place of one that has had its turn, so that a short one does not wait until one of
//!   many long ones has ended.
//!
//! Neither can be undone by the other side's asking back, so nothing goes to and fro: in the first case who gave still
//! holds as much, the second happens once in the life of a job. A priority says who is first, not how much it gets: the
//! first case does not look at it, in the second nobody gives way to who is less urgent. Who gave way stands in line where it stood, before all
//! that came later, and comes back with a turn that makes up for what it computes again.

use std::collections::{HashMap, HashSet};
use std::ops::Bound::{Excluded, Unbounded};

use super::Scheduler;
use crate::{
    fair::Order,
    job::JobId,
    kv::BlockPool,
    limits::{DISPLACED_PER_SLOT_MAX, OVERTAKERS_ASKED_MAX, SHARED_TURN_TOKENS, SINGLE_TURN_TOKENS},
    sequence::Sequence,
};

/// What the sequences of one job hold that run.
#[derive(Clone, Copy, Default)]
struct Holding {
    sequences: usize,
    own_blocks: usize,
    shared_blocks: usize, // the most of one sequence: siblings share the same ones
}

impl Holding {
    fn blocks(&self) -> usize {
        self.own_blocks + self.shared_blocks
    }

    fn add(&mut self, sequence: &Sequence, own_blocks: usize) {
        self.sequences += 1;
        self.own_blocks += own_blocks;
        self.shared_blocks = self.shared_blocks.max(sequence.tables().len() - own_blocks);
    }

    fn give(&mut self, own_blocks: usize) {
        self.sequences -= 1;
        self.own_blocks -= own_blocks;
    }
}

/// What everybody holds that runs.
struct Holdings {
    own_blocks: Vec<usize>, // by place in `running`: those that no other sequence holds too
    of_jobs: HashMap<JobId, Holding>,
}

impl Holdings {
    fn of(running: &[Sequence], pool: &BlockPool) -> Holdings {
        let own = |sequence: &Sequence| sequence.tables().ids().filter(|&id| pool.is_held_once(id)).count();
        let own_blocks: Vec<usize> = running.iter().map(own).collect();
        let mut of_jobs = HashMap::<JobId, Holding>::new();
        for (sequence, &own) in running.iter().zip(&own_blocks) {
            of_jobs.entry(sequence.job).or_default().add(sequence, own);
        }
        Holdings { own_blocks, of_jobs }
    }
}

impl Scheduler {
    /// Makes room for the first in line, or for one after it, by having others give way, if it is its turn. Says whose.
    pub(super) fn displace(&mut self, first: Order, pool: &mut BlockPool) -> Option<Order> {
        if !self.running.iter().any(|sequence| sequence.turn_is_over(SHARED_TURN_TOKENS)) {
            return None;
        }
        let (order, victims) = self.whose_turn(first, pool)?;
        // From the back, so that places before stay what they were.
        for at in victims {
            self.preempt(at, pool);
        }
        debug_assert!(self.running.len() < self.config.sequences_max, "who gives way leaves a slot");
        // No block each is kept for those that stay: they have no fewer than before.
        (self.waiting[&order].blocks_needed(pool) <= pool.free()).then_some(order)
    }

    /// Who enters, and who gives way to it: places in `running`, descending.
    fn whose_turn(&self, first: Order, pool: &BlockPool) -> Option<(Order, Vec<usize>)> {
        let most = self.line.running_most();
        let newcomers = self.displaced < self.config.sequences_max * DISPLACED_PER_SLOT_MAX
            && self.running.iter().any(|sequence| sequence.turn_is_over(SINGLE_TURN_TOKENS));
        // Nobody in a long line is asked where nobody could be let in.
        if most < 2 && !newcomers {
            return None;
        }
        // What the first in line waits for is not taken from it by those that overtake it.
        let kept = self.waiting[&first].blocks_needed(pool);
        let held = Holdings::of(&self.running, pool);
        let mut from = first;
        let mut kept_for_first = 0;
        for _ in 0..OVERTAKERS_ASKED_MAX {
            let mut line = self.waiting.range(from..);
            let asks = |sequence: &Sequence| {
                (self.line.running(sequence.job) + 2 <= most || newcomers && sequence.is_newcomer())
                    && self.wants_to_enter(sequence, pool)
            };
            let (&order, claim) = line.find(|(_, sequence)| asks(sequence))?;
            if order != first {
                kept_for_first = kept;
            }
            if let Some(victims) = self.who_gives_way(claim, kept_for_first, newcomers, &held, pool) {
                return Some((order, victims));
            }
            let (&next, _) = self.waiting.range((Excluded(order.after_its_choices()), Unbounded)).next()?;
            from = next;
        }
        None
    }

    /// Those that give way so that `claim` fits; `None`: it is not its turn, or it would not be enough.
    fn who_gives_way(
        &self,
        claim: &Sequence,
        kept_blocks: usize,
        newcomers: bool,
        held: &Holdings,
        pool: &BlockPool,
    ) -> Option<Vec<usize>> {
        let needed = claim.blocks_needed(pool);
        // Given back, they would be shared again at once.
        let wanted: HashSet<u32> = claim.prefix(pool).filter(|&id| pool.is_held_once(id)).collect();
        let mut holdings = held.of_jobs.clone();
        let claims = holdings.get(&claim.job).copied().unwrap_or_default();
        let own = &held.own_blocks;
        let mut victims = Vec::new();
        let mut freed = 0;
        loop {
            let left = self.running.len() - victims.len();
            let spare = pool.free().saturating_sub(kept_blocks + left * pool.groups());
            let no_slot = left >= self.config.sequences_max;
            if !no_slot && (left == 0 || needed <= spare + freed) {
                break;
            }
            let may = |at: usize| {
                let sequence = &self.running[at];
                if sequence.held || sequence.job == claim.job || victims.contains(&at) {
                    return None;
                }
                let from = holdings[&sequence.job];
                let evens = if no_slot {
                    from.sequences >= claims.sequences + 2
                } else {
                    from.sequences > 1 && claims.blocks() + needed <= from.blocks().saturating_sub(own[at])
                };
                if evens && sequence.turn_is_over(SHARED_TURN_TOKENS) {
                    let most = if no_slot { from.sequences } else { from.blocks() };
                    return Some((true, most, sequence.drawn_in_turn()));
                }
                let takes_turn = newcomers
                    && claim.is_newcomer()
                    && !sequence.order.is_more_urgent_than(&claim.order)
                    && sequence.turn_is_over(SINGLE_TURN_TOKENS)
                    && (no_slot || needed <= from.blocks());
                takes_turn.then(|| (false, 0, sequence.drawn_in_turn()))
            };
            let at = (0..self.running.len()).filter(|&at| may(at).is_some()).max_by_key(|&at| may(at))?;
            holdings.entry(self.running[at].job).or_default().give(own[at]);
            let shared_again = self.running[at].tables().ids().filter(|id| wanted.contains(id)).count();
            freed += own[at] - shared_again;
            victims.push(at);
        }
        victims.sort_unstable_by(|a, b| b.cmp(a));
        Some(victims)
    }

    /// Who goes when a sequence that decodes finds no block: one of several of the job that holds the most, where that
    /// job still holds as much as the last in line's; otherwise the last in line. There is at least one that runs.
    pub(super) fn last_to_stay(&self, pool: &BlockPool) -> usize {
        let last = self.running.len() - 1;
        if self.line.running_most() < 2 {
            return last;
        }
        let Holdings { own_blocks, of_jobs: holdings } = Holdings::of(&self.running, pool);
        let least = holdings[&self.running[last].job].blocks();
        let gives = |at: &usize| {
            let from = holdings[&self.running[*at].job];
            from.sequences > 1 && from.blocks() - own_blocks[*at] >= least
        };
        let blocks = |at: &usize| (holdings[&self.running[*at].job].blocks(), *at);
        (0..last).filter(gives).max_by_key(blocks).unwrap_or(last)
    }
}
