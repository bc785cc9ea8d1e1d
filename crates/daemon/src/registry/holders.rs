//! Who holds parts of the budgets that a load may need.

use super::{Entry, Registry, State};
use crate::usage::Standing;

/// A model that holds a part of the budget and may leave.
#[derive(Clone, Debug)]
pub(crate) struct Holder {
    pub(crate) name: String,
    pub(crate) life: u64,
    /// In the places that were asked for.
    pub(crate) bytes: [u64; 2],
    pub(crate) standing: Standing,
}

impl Entry {
    /// Bytes that it has of the budgets of a place and of one beside it.
    fn bytes_in(&self, places: Option<(usize, Option<usize>)>) -> [u64; 2] {
        let Some((own, beside)) = places else { return [0; 2] };
        let held = [Some((self.place, self.reserved_bytes)), self.beside];
        let of = |place: usize| held.iter().flatten().filter(|of| of.0 == place).map(|of| of.1).sum();
        [of(own), beside.map_or(0, of)]
    }
}

impl Registry {
    /// What may make room for a life's load in a place and one beside it, or in any: the other models of which some part of its
    /// budget is, but those that are pinned.
    pub(crate) fn holders(&self, life: u64, places: Option<(usize, Option<usize>)>) -> Vec<Holder> {
        let entries = self.lock();
        let others = entries.values().filter(|entry| {
            let is_there = places.is_none() || entry.bytes_in(places) != [0; 2];
            entry.life != life && entry.reserved_bytes > 0 && is_there
        });
        let holder = |entry: &Entry| {
            let standing = match (&entry.state, entry.usage.standing()) {
                (_, Standing::Stays) => return None,
                (State::Ready(_), standing) => standing,
                (State::Draining(_), Standing::Idle(_) | Standing::Leaves) => Standing::Leaves,
                _ => Standing::Changes,
            };
            let bytes = entry.bytes_in(places);
            Some(Holder { name: entry.name.clone(), life: entry.life, bytes, standing })
        };
        others.filter_map(holder).collect()
    }
}
