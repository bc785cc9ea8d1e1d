//! Memory for request bodies. A body takes its share as it arrives, not as it is announced, so that clients that send
//! slowly, or not at all, keep nobody out.
//!
//! Bodies that have a part of what they need could wait for each other for ever. One of them at a time, in the order in
//! which they began to wait, draws on a reserve that is kept for it: the room of one body of the largest size.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tokio::{
    sync::{Mutex as Turns, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore},
    time::Duration,
};

use crate::limits::BODY_STEP_BYTES;

/// Shares that are remembered before those that nobody holds any more are forgotten.
const SHARES_KEPT: usize = 1024;
/// How often a body that waits looks whether others have given room back.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The room of all bodies.
#[derive(Debug)]
pub(crate) struct Bodies {
    shared: Arc<Semaphore>, // permits are bytes
    reserve: Arc<Semaphore>,
    next: Arc<Turns<()>>, // who may draw on the reserve
    share_bytes: usize,
    shares: Mutex<HashMap<Client, Weak<Semaphore>>>, // those in use, and some that were
}

/// What one client may hold of the room: a quarter, or one body of the largest size.
#[derive(Debug, Clone)]
pub(crate) struct Share(Arc<Semaphore>);

/// Whose bodies share a share.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Client {
    /// The holder of the key of that name.
    Key(String),
    /// Whoever comes from there.
    Address(IpAddr),
}

impl Bodies {
    /// Room for `bytes_max`, in bodies of up to `body_bytes_max`, which is no more.
    pub(crate) fn new(bytes_max: usize, body_bytes_max: usize) -> Bodies {
        Bodies {
            shared: Arc::new(Semaphore::new(bytes_max.saturating_sub(body_bytes_max))),
            reserve: Arc::new(Semaphore::new(body_bytes_max)),
            next: Arc::default(),
            shares: Mutex::default(),
            share_bytes: (bytes_max / 4).max(body_bytes_max),
        }
    }

    /// Of a connection that was accepted, and of whose client nothing else is known.
    pub(crate) fn share(&self) -> Share {
        Share(Arc::new(Semaphore::new(self.share_bytes)))
    }

    /// Of a client, over all its connections.
    pub(crate) fn share_of(&self, client: Client) -> Share {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = shares.get(&client).and_then(Weak::upgrade) {
            return Share(share);
        }
        if shares.len() >= SHARES_KEPT {
            shares.retain(|_, share| share.strong_count() > 0);
        }
        let share = self.share();
        shares.insert(client, Arc::downgrade(&share.0));
        share
    }

    /// For a body that has not begun to arrive.
    pub(crate) fn room(&self, share: Option<Share>) -> Room {
        Room {
            shared: Arc::clone(&self.shared),
            reserve: Arc::clone(&self.reserve),
            next: Arc::clone(&self.next),
            share,
            bytes: 0,
            held: None,
            own: None,
            drawn: None,
            turn: None,
        }
    }
}

/// What one body takes up, until this is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    shared: Arc<Semaphore>,
    reserve: Arc<Semaphore>,
    next: Arc<Turns<()>>,
    share: Option<Share>,
    bytes: usize,
    held: Option<OwnedSemaphorePermit>,  // of the shared room
    own: Option<OwnedSemaphorePermit>,   // of the connection's share
    drawn: Option<OwnedSemaphorePermit>, // of the reserve
    turn: Option<OwnedMutexGuard<()>>,
}

impl Room {
    /// Takes room for `bytes` in all, of a body that has at most `bytes_max`. Waits while there is none.
    pub(crate) async fn grow(&mut self, bytes: usize, bytes_max: usize) {
        if bytes <= self.bytes {
            return;
        }
        let wanted = bytes.next_multiple_of(BODY_STEP_BYTES).min(bytes_max).max(bytes);
        // Within `bodies_bytes_max`, which is under 4 GiB.
        let more = u32::try_from(wanted - self.bytes).unwrap_or(u32::MAX);
        while !self.try_grow(more) {
            if self.turn.is_none() {
                let turn = tokio::time::timeout(LOOK_AGAIN, Arc::clone(&self.next).lock_owned()).await;
                self.turn = turn.ok();
                continue;
            }
            let drawn = Arc::clone(&self.reserve).acquire_many_owned(more);
            // Never closed.
            if let Ok(Ok(drawn)) = tokio::time::timeout(LOOK_AGAIN, drawn).await {
                merge(&mut self.drawn, drawn);
                break;
            }
        }
        self.bytes = wanted;
    }

    fn try_grow(&mut self, more: u32) -> bool {
        let take = |room: &Arc<Semaphore>| Arc::clone(room).try_acquire_many_owned(more).ok();
        let own = self.share.as_ref().map(|share| take(&share.0));
        let Some(shared) = take(&self.shared) else { return false };
        match own {
            Some(None) => return false,
            Some(Some(own)) => merge(&mut self.own, own),
            None => {}
        }
        merge(&mut self.held, shared);
        true
    }

    /// Whether nobody else can draw on the reserve.
    pub(crate) fn keeps_others_waiting(&self) -> bool {
        self.turn.is_some()
    }

    /// The body has arrived and was read: the reserve is the next one's, as far as what was drawn from it fits into the shared
    /// room. The rest stays drawn: what was made of the body still takes it up.
    pub(crate) fn settle(&mut self) {
        self.turn = None;
        let Some(mut drawn) = self.drawn.take() else { return };
        let fits = drawn.num_permits().min(self.shared.available_permits());
        // Never more than there were permits asked for, which is a u32.
        let shared = Arc::clone(&self.shared).try_acquire_many_owned(u32::try_from(fits).unwrap_or(0));
        // Others may have been faster.
        if let Ok(shared) = shared {
            drop(drawn.split(shared.num_permits()));
            merge(&mut self.held, shared);
        }
        self.drawn = (drawn.num_permits() > 0).then_some(drawn);
    }
}

fn merge(held: &mut Option<OwnedSemaphorePermit>, more: OwnedSemaphorePermit) {
    match held {
        Some(held) => held.merge(more),
        None => *held = Some(more),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Bodies, Client};

    const STEP: usize = super::BODY_STEP_BYTES;

    async fn grows(room: &mut super::Room, bytes: usize, bytes_max: usize) -> bool {
        tokio::time::timeout(Duration::from_millis(200), room.grow(bytes, bytes_max)).await.is_ok()
    }

    #[tokio::test]
    async fn bodies_that_need_more_than_there_is_get_it_one_after_the_other() {
        let bodies = Bodies::new(12 * STEP, 4 * STEP);
        // Each has half of what it needs, and nothing is left.
        let mut rooms: Vec<_> = (0..4).map(|_| bodies.room(None)).collect();
        for room in &mut rooms {
            assert!(grows(room, 2 * STEP, 4 * STEP).await);
        }
        let grown = rooms.into_iter().map(|mut room| {
            tokio::spawn(async move {
                room.grow(4 * STEP, 4 * STEP).await;
                room.settle();
            })
        });
        for grown in grown.collect::<Vec<_>>() {
            tokio::time::timeout(Duration::from_secs(20), grown).await.unwrap().unwrap();
        }
        assert_eq!(
            (bodies.shared.available_permits(), bodies.reserve.available_permits()),
            (8 * STEP, 4 * STEP)
        );
    }

    #[tokio::test]
    async fn one_connection_leaves_room_for_others() {
        let bodies = Bodies::new(16 * STEP, 4 * STEP);
        let share = bodies.share();
        let mut first = bodies.room(Some(share.clone()));
        assert!(grows(&mut first, 3 * STEP, 4 * STEP).await);
        // Beyond its share, a connection has the reserve, in turn.
        let mut second = bodies.room(Some(share.clone()));
        assert!(grows(&mut second, 4 * STEP, 4 * STEP).await);
        let mut third = bodies.room(Some(share));
        assert!(!grows(&mut third, 4 * STEP, 4 * STEP).await);
        let mut other = bodies.room(Some(bodies.share()));
        assert!(grows(&mut other, 4 * STEP, 4 * STEP).await);
        second.settle();
        assert!(grows(&mut third, 4 * STEP, 4 * STEP).await);
    }

    #[tokio::test]
    async fn a_client_has_one_share_over_all_its_connections() {
        let bodies = Bodies::new(16 * STEP, 4 * STEP);
        let of = |name: &str| bodies.room(Some(bodies.share_of(Client::Key(name.to_owned()))));
        let (mut one, mut two, mut three) = (of("alice"), of("alice"), of("alice"));
        assert!(grows(&mut one, 4 * STEP, 4 * STEP).await);
        // The reserve, in turn.
        assert!(grows(&mut two, 4 * STEP, 4 * STEP).await);
        assert!(!grows(&mut three, STEP, 4 * STEP).await);
        assert!(grows(&mut of("bob"), 4 * STEP, 4 * STEP).await);
        drop((one, two));
        assert!(grows(&mut three, 4 * STEP, 4 * STEP).await);
        for i in 0..5000_u32 {
            bodies.share_of(Client::Address(std::net::Ipv4Addr::from(i).into()));
        }
        let kept = bodies.shares.lock().unwrap().len();
        assert!(
            kept <= super::SHARES_KEPT
                && bodies.shares.lock().unwrap().contains_key(&Client::Key("alice".to_owned()))
        );
    }

    #[tokio::test]
    async fn what_was_drawn_from_the_reserve_is_accounted_until_it_is_dropped() {
        let bodies = Bodies::new(6 * STEP, 4 * STEP);
        let free = || (bodies.shared.available_permits() / STEP, bodies.reserve.available_permits() / STEP);
        let (mut first, mut second) = (bodies.room(None), bodies.room(None));
        assert!(grows(&mut first, STEP, 4 * STEP).await && grows(&mut second, 4 * STEP, 4 * STEP).await);
        assert_eq!(free(), (1, 0));
        // Into the shared room goes what fits; the turn is the next one's.
        second.settle();
        assert_eq!(free(), (0, 1));
        let mut third = bodies.room(None);
        assert!(grows(&mut third, STEP, 4 * STEP).await);
        third.settle();
        assert_eq!(free(), (0, 0));
        drop((first, second, third));
        assert_eq!(free(), (2, 4));
    }

    #[tokio::test]
    async fn room_is_given_back() {
        let bodies = Bodies::new(8 * STEP, 4 * STEP);
        let mut room = bodies.room(None);
        assert!(grows(&mut room, 1, 4 * STEP).await && grows(&mut room, STEP + 1, 4 * STEP).await);
        assert_eq!(bodies.shared.available_permits(), 2 * STEP);
        drop(room);
        assert_eq!(bodies.shared.available_permits(), 4 * STEP);
    }
}
