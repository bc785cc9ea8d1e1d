//! Limited number of turns for concurrent work, shared fairly among clients. No client has all of them, and the
//! next turn goes to the client that has the fewest.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use hanzo_engine_runtime::ClientId;
use tokio::sync::oneshot;

/// Pool of turns.
#[derive(Debug)]
pub(crate) struct Turns(Arc<TurnPool>);

#[derive(Debug)]
struct TurnPool {
    most: usize,
    of_client_most: usize,
    state: Mutex<TurnState>,
}

#[derive(Debug, Default)]
struct TurnState {
    taken: usize,
    of_clients: HashMap<Option<ClientId>, usize>, // turns of each client that has any
    waiting: Vec<TurnRequest>,                    // in the order of arrival
}

#[derive(Debug)]
struct TurnRequest {
    client: Option<ClientId>,
    given: oneshot::Sender<EngineTurn>,
}

/// Turn; dropping it gives it back.
#[derive(Debug)]
pub(crate) struct EngineTurn {
    shared: Arc<TurnPool>,
    client: Option<ClientId>,
}

impl Turns {
    /// Creates this many turns, of which each client gets at most all but one.
    pub(crate) fn new(most: usize) -> Self {
        let of_client_most = most.saturating_sub(1).max(1);
        Self(Arc::new(TurnPool { most, of_client_most, state: Mutex::default() }))
    }

    /// Waits for a turn. Requests without a known client count as those of a single client.
    pub(crate) async fn take(&self, client: Option<ClientId>) -> Option<EngineTurn> {
        let given = {
            let mut state = self.0.lock();
            if self.0.may_begin(&state, client) {
                return Some(EngineTurn::begin(&self.0, &mut state, client));
            }
            state.waiting.retain(|waiting| !waiting.given.is_closed());
            let (give, given) = oneshot::channel();
            state.waiting.push(TurnRequest { client, given: give });
            given
        };
        given.await.ok()
    }

    /// Number of free turns.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.0.most - self.0.lock().taken
    }
}

impl TurnPool {
    fn lock(&self) -> MutexGuard<'_, TurnState> {
        // A panic cannot occur between the changes of a count.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn may_begin(&self, state: &TurnState, client: Option<ClientId>) -> bool {
        state.taken < self.most && state.of(client) < self.of_client_most
    }

    /// Gives free turns to waiting requests.
    fn hand_out(self: &Arc<Self>) {
        let mut unwanted = Vec::new(); // dropped once the lock is free
        let mut state = self.lock();
        loop {
            let TurnState { waiting, .. } = &*state;
            let may = |(_, waiting): &(usize, &TurnRequest)| self.may_begin(&state, waiting.client);
            let next = waiting.iter().enumerate().filter(may);
            let Some((next, _)) = next.min_by_key(|(_, waiting)| state.of(waiting.client)) else { break };
            let TurnRequest { client, given } = state.waiting.remove(next);
            if !given.is_closed() {
                unwanted.extend(given.send(EngineTurn::begin(self, &mut state, client)).err());
            }
        }
        drop(state);
        drop(unwanted);
    }
}

impl TurnState {
    fn of(&self, client: Option<ClientId>) -> usize {
        self.of_clients.get(&client).copied().unwrap_or_default()
    }
}

impl EngineTurn {
    fn begin(shared: &Arc<TurnPool>, state: &mut TurnState, client: Option<ClientId>) -> Self {
        state.taken += 1;
        *state.of_clients.entry(client).or_default() += 1;
        Self { shared: shared.clone(), client }
    }
}

impl Drop for EngineTurn {
    fn drop(&mut self) {
        {
            let mut state = self.shared.lock();
            state.taken -= 1;
            let left = state.of(self.client).saturating_sub(1);
            match left {
                0 => state.of_clients.remove(&self.client),
                left => state.of_clients.insert(self.client, left),
            };
        }
        self.shared.hand_out();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn client(name: u64) -> Option<ClientId> {
        Some(ClientId(name))
    }

    #[tokio::test]
    async fn one_client_never_has_all_turns() {
        let turns = Turns::new(4);
        let mut has = Vec::new();
        for _ in 0..3 {
            has.push(turns.take(client(1)).now_or_never().flatten().expect("a turn"));
        }
        let mut fourth = Box::pin(turns.take(client(1)));
        assert!(fourth.as_mut().now_or_never().is_none(), "the last turn is for others");
        let other = turns.take(client(2)).now_or_never().flatten().expect("a turn");
        // Of two waiting requests, the next is the one whose client has fewer turns, although it arrived later.
        let mut second = Box::pin(turns.take(client(2)));
        assert!(second.as_mut().now_or_never().is_none());
        drop(other);
        assert!(fourth.as_mut().now_or_never().is_none());
        let second = second.now_or_never().flatten().expect("a turn");
        has.pop();
        let fourth = fourth.now_or_never().flatten().expect("a turn");
        drop((second, fourth, has));
        assert_eq!(turns.free(), 4);
        assert!(turns.0.lock().of_clients.is_empty());
    }

    #[tokio::test]
    async fn turns_do_not_go_to_those_that_have_left() {
        let turns = Turns::new(2);
        let (first, other) = (turns.take(client(1)).await, turns.take(client(2)).await);
        for _ in 0..100 {
            let mut gone = Box::pin(turns.take(client(1)));
            assert!(gone.as_mut().now_or_never().is_none());
        }
        assert!(turns.0.lock().waiting.len() <= 1);
        let mut left = Box::pin(turns.take(client(1)));
        let mut waits = Box::pin(turns.take(client(3)));
        assert!(left.as_mut().now_or_never().is_none() && waits.as_mut().now_or_never().is_none());
        // It was given its turn, and is dropped before it sees that.
        drop(first);
        drop(left);
        drop(other);
        assert!(waits.now_or_never().flatten().is_some());
        assert_eq!(turns.free(), 2);
    }
}
