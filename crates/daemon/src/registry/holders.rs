//! Models that hold parts of the budgets that a load may need.

use super::{EntryState, Registry, RegistryEntry};
use crate::usage::EvictionState;

/// Model that holds part of a budget and may be evicted.
#[derive(Clone, Debug)]
pub(crate) struct Holder {
    pub(crate) name: String,
    pub(crate) life: u64,
    /// Bytes in each of the given places.
    pub(crate) bytes: Vec<u64>,
    pub(crate) standing: EvictionState,
}

impl RegistryEntry {
    /// Bytes that the model has reserved in each of these places.
    fn bytes_in(&self, places: &[usize]) -> Vec<u64> {
        let held = [(self.place, self.reserved_bytes)].into_iter().chain(self.beside.iter().copied());
        let of = |&place: &usize| held.clone().filter(|of| of.0 == place).map(|of| of.1).sum();
        places.iter().map(of).collect()
    }
}

impl Registry {
    /// Models that may be evicted for a life's load in these places, or in any place. These are the other models
    /// with a reservation there, except pinned ones.
    pub(crate) fn holders(&self, life: u64, places: Option<&[usize]>) -> Vec<Holder> {
        let entries = self.lock();
        let others = entries.values().filter(|entry| {
            let is_there = places.is_none_or(|places| entry.bytes_in(places).iter().any(|&bytes| bytes > 0));
            entry.life != life && entry.reserved_bytes > 0 && is_there
        });
        let holder = |entry: &RegistryEntry| {
            let standing = match (&entry.state, entry.usage.standing()) {
                (_, EvictionState::Stays) => return None,
                (EntryState::Ready(_), standing) => standing,
                (EntryState::Draining(_), EvictionState::Idle(_) | EvictionState::Leaves) => {
                    EvictionState::Leaves
                }
                _ => EvictionState::Changes,
            };
            let bytes = entry.bytes_in(places.unwrap_or_default());
            Some(Holder { name: entry.name.clone(), life: entry.life, bytes, standing })
        };
        others.filter_map(holder).collect()
    }
}
