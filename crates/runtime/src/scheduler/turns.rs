//! Preemption between jobs when not all sequences fit.
//!
//! Free room goes to the first job in the queue. Beyond that, room is taken from running jobs in two cases:
//! - A job that holds more gives to a job that, with it, would hold no more than the giver. So the completions of
//!   one request shrink one by one to what other jobs have.
//! - A job that has not started takes the place of a job whose turn is over. So a short job does not wait for the
//!   end of one of many long ones.
//!
//! Neither job can take the room back by the same rule, so sequences do not swap back and forth. In the first case
//! the giver still holds as much; the second happens once in the life of a job. A priority decides the order, not
//! the share: the first case ignores it, and in the second no job gives way to a less urgent one. A preempted
//! sequence keeps its place in the queue, before all later ones. Its next turn is longer, to make up for what it
//! computes again.

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

/// Resources of a job's running sequences.
#[derive(Clone, Copy, Default)]
struct JobResources {
    sequences: usize,
    own_blocks: usize,
    shared_blocks: usize, // maximum of one sequence: siblings share the same ones
}

impl JobResources {
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

/// Resources of all running sequences.
struct Holdings {
    own_blocks: Vec<usize>, // by index in `running`: blocks without another holder
    of_jobs: HashMap<JobId, JobResources>,
}

impl Holdings {
    fn of(running: &[Sequence], pool: &BlockPool) -> Holdings {
        let own = |sequence: &Sequence| sequence.tables().ids().filter(|&id| pool.is_held_once(id)).count();
        let own_blocks: Vec<usize> = running.iter().map(own).collect();
        let mut of_jobs = HashMap::<JobId, JobResources>::new();
        for (sequence, &own) in running.iter().zip(&own_blocks) {
            of_jobs.entry(sequence.job).or_default().add(sequence, own);
        }
        Holdings { own_blocks, of_jobs }
    }
}

impl Scheduler {
    /// Makes room for the first sequence in the queue, or for one that may overtake it, by preempting others, if
    /// their turn allows. Returns the sequence that may enter.
    pub(super) fn displace(&mut self, first: Order, pool: &mut BlockPool) -> Option<Order> {
        if !self.running.iter().any(|sequence| sequence.turn_is_over(SHARED_TURN_TOKENS)) {
            return None;
        }
        let (order, victims) = self.whose_turn(first, pool)?;
        // In descending order, so that earlier indices stay valid.
        for at in victims {
            self.preempt(at, pool);
        }
        debug_assert!(self.running.len() < self.config.sequences_max, "who gives way leaves a slot");
        // No spare blocks are reserved for the remaining sequences: they have as many as before.
        (self.waiting[&order].blocks_needed(pool) <= pool.free()).then_some(order)
    }

    /// The sequence that enters, and the indices in `running` that give way to it, descending.
    fn whose_turn(&self, first: Order, pool: &BlockPool) -> Option<(Order, Vec<usize>)> {
        let most = self.line.running_most();
        let newcomers = self.displaced < self.config.sequences_max * DISPLACED_PER_SLOT_MAX
            && self.running.iter().any(|sequence| sequence.turn_is_over(SINGLE_TURN_TOKENS));
        // Skips the search through a long queue if nothing could enter.
        if most < 2 && !newcomers {
            return None;
        }
        // Sequences that overtake must leave the room that the first in the queue waits for.
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

    /// Sequences to preempt so that `claim` fits; `None` if it may not enter now, or that would not be enough.
    fn who_gives_way(
        &self,
        claim: &Sequence,
        kept_blocks: usize,
        newcomers: bool,
        held: &Holdings,
        pool: &BlockPool,
    ) -> Option<Vec<usize>> {
        let needed = claim.blocks_needed(pool);
        // If released, these blocks would be shared again at once.
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

    /// Sequence to preempt when a decoding one finds no block. It is one of several of the job that holds the most,
    /// if that job still holds at least as much as the job of the last in the queue. Otherwise it is the last in
    /// the queue. At least one sequence runs.
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
