//! Who holds parts of the budgets that a load may need.

use super::{Entry, Registry, State};
use crate::usage::Standing;

/// A model that holds a part of the budget and may leave.
#[derive(Clone, Debug)]
pub(crate) struct Holder {
    pub(crate) name: String,
    pub(crate) life: u64,
    /// In the places that were asked for.
    pub(crate) bytes: Vec<u64>,
    pub(crate) standing: Standing,
}

impl Entry {
    /// Bytes that it has of the budgets of these places, each.
    fn bytes_in(&self, places: &[usize]) -> Vec<u64> {
        let held = [(self.place, self.reserved_bytes)].into_iter().chain(self.beside.iter().copied());
        let of = |&place: &usize| held.clone().filter(|of| of.0 == place).map(|of| of.1).sum();
        places.iter().map(of).collect()
    }
}

impl Registry {
    /// What may make room for a life's load in these places, or in any: the other models of which some part of their budgets is,
    /// but those that are pinned.
    pub(crate) fn holders(&self, life: u64, places: Option<&[usize]>) -> Vec<Holder> {
        let entries = self.lock();
        let others = entries.values().filter(|entry| {
            let is_there = places.is_none_or(|places| entry.bytes_in(places).iter().any(|&bytes| bytes > 0));
            entry.life != life && entry.reserved_bytes > 0 && is_there
        });
        let holder = |entry: &Entry| {
            let standing = match (&entry.state, entry.usage.standing()) {
                (_, Standing::Stays) => return None,
                (State::Ready(_), standing) => standing,
                (State::Draining(_), Standing::Idle(_) | Standing::Leaves) => Standing::Leaves,
                _ => Standing::Changes,
            };
            let bytes = entry.bytes_in(places.unwrap_or_default());
            Some(Holder { name: entry.name.clone(), life: entry.life, bytes, standing })
        };
        others.filter_map(holder).collect()
    }
}
