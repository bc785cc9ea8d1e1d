//! Memory for request bodies. A body takes memory as it arrives, not by its announced size, so clients that
//! send slowly or not at all do not block others.
//!
//! Bodies that each hold part of what they need could deadlock. So one at a time, in the order in which they
//! began to wait, may draw on a reserve of one maximum-size body.

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

/// Remembered shares above which unused ones are removed.
const SHARES_KEPT: usize = 1024;
/// Interval at which a waiting body checks for free memory.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Memory for all bodies.
#[derive(Debug)]
pub(crate) struct Bodies {
    shared: Arc<Semaphore>, // permits are bytes
    reserve: Arc<Semaphore>,
    next: Arc<Turns<()>>, // turn to draw on the reserve
    share_bytes: usize,
    shares: Mutex<HashMap<ShareOwner, Weak<ClientShare>>>, // those in use, and some that were
}

/// Limit of one client's memory: a quarter of the total, or one maximum-size body.
#[derive(Debug, Clone)]
pub(crate) struct Share(Arc<ClientShare>);

#[derive(Debug)]
struct ClientShare {
    bytes: Arc<Semaphore>,
    answers: Arc<Semaphore>, // one permit: large answers of a client are made one after the other
}

/// Turn of a client's large answer, until dropped.
#[derive(Debug)]
pub(crate) struct AnswerTurn {
    _permit: Option<OwnedSemaphorePermit>,
}

/// Identity of a client whose requests use the same share.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ShareOwner {
    /// Key of that name.
    Key(String),
    /// Network address, for clients without a key.
    Address(IpAddr),
}

impl Bodies {
    /// Creates memory for `bytes_max` bytes, of bodies of up to `body_bytes_max`, which must not be larger.
    pub(crate) fn new(bytes_max: usize, body_bytes_max: usize) -> Bodies {
        Bodies {
            shared: Arc::new(Semaphore::new(bytes_max.saturating_sub(body_bytes_max))),
            reserve: Arc::new(Semaphore::new(body_bytes_max)),
            next: Arc::default(),
            shares: Mutex::default(),
            share_bytes: (bytes_max / 4).max(body_bytes_max),
        }
    }

    /// Share of a connection whose client is not known yet.
    pub(crate) fn share(&self) -> Share {
        Share(Arc::new(ClientShare {
            bytes: Arc::new(Semaphore::new(self.share_bytes)),
            answers: Arc::new(Semaphore::new(1)),
        }))
    }

    /// Share of a client, over all its connections.
    pub(crate) fn share_of(&self, client: ShareOwner) -> Share {
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

    /// Bytes of the shared memory that are free.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.shared.available_permits()
    }

    /// Memory of a body that has not begun to arrive.
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

/// Memory held by one body, until dropped.
#[derive(Debug)]
pub(crate) struct Room {
    shared: Arc<Semaphore>,
    reserve: Arc<Semaphore>,
    next: Arc<Turns<()>>,
    share: Option<Share>,
    bytes: usize,
    held: Option<OwnedSemaphorePermit>,  // of the shared memory
    own: Option<OwnedSemaphorePermit>,   // of the client's share
    drawn: Option<OwnedSemaphorePermit>, // of the reserve
    turn: Option<OwnedMutexGuard<()>>,
}

impl Room {
    /// Grows to `bytes` in total, for a body of at most `bytes_max`. Waits for memory.
    pub(crate) async fn grow(&mut self, bytes: usize, bytes_max: usize) {
        if bytes <= self.bytes {
            return;
        }
        let wanted = bytes.next_multiple_of(BODY_STEP_BYTES).min(bytes_max).max(bytes);
        // Within `bodies_bytes_max`, which is below 4 GiB.
        let more = u32::try_from(wanted - self.bytes).unwrap_or(u32::MAX);
        while !self.try_grow(more) {
            if self.turn.is_none() {
                let turn = tokio::time::timeout(LOOK_AGAIN, Arc::clone(&self.next).lock_owned()).await;
                self.turn = turn.ok();
                continue;
            }
            let drawn = Arc::clone(&self.reserve).acquire_many_owned(more);
            // The semaphore is never closed.
            if let Ok(Ok(drawn)) = tokio::time::timeout(LOOK_AGAIN, drawn).await {
                merge(&mut self.drawn, drawn);
                break;
            }
        }
        self.bytes = wanted;
    }

    fn try_grow(&mut self, more: u32) -> bool {
        let take = |room: &Arc<Semaphore>| Arc::clone(room).try_acquire_many_owned(more).ok();
        let own = self.share.as_ref().map(|share| take(&share.0.bytes));
        let Some(shared) = take(&self.shared) else { return false };
        match own {
            Some(None) => return false,
            Some(Some(own)) => merge(&mut self.own, own),
            None => {}
        }
        merge(&mut self.held, shared);
        true
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Waits for the client's turn to be given a large answer, whose memory is not that of a body.
    pub(crate) async fn answer_turn(&self) -> AnswerTurn {
        let permit = match &self.share {
            // The semaphore is never closed.
            Some(share) => Arc::clone(&share.0.answers).acquire_owned().await.ok(),
            None => None,
        };
        AnswerTurn { _permit: permit }
    }

    /// Whether it has the turn, so that no other body can draw on the reserve.
    pub(crate) fn keeps_others_waiting(&self) -> bool {
        self.turn.is_some()
    }

    /// Ends the body's turn after it was read. What it drew from the reserve moves to the shared memory as far
    /// as that has room. The rest stays drawn, because the parsed request still uses it.
    pub(crate) fn settle(&mut self) {
        self.turn = None;
        let Some(mut drawn) = self.drawn.take() else { return };
        let fits = drawn.num_permits().min(self.shared.available_permits());
        // At most the number of permits drawn, which is a u32.
        let shared = Arc::clone(&self.shared).try_acquire_many_owned(u32::try_from(fits).unwrap_or(0));
        // Another body may have taken the permits meanwhile.
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

    use super::{Bodies, ShareOwner};

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
        // Beyond its share, a client can use the reserve in its turn.
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
        let of = |name: &str| bodies.room(Some(bodies.share_of(ShareOwner::Key(name.to_owned()))));
        let (mut one, mut two, mut three) = (of("alice"), of("alice"), of("alice"));
        assert!(grows(&mut one, 4 * STEP, 4 * STEP).await);
        // Bodies use the reserve in turn.
        assert!(grows(&mut two, 4 * STEP, 4 * STEP).await);
        assert!(!grows(&mut three, STEP, 4 * STEP).await);
        assert!(grows(&mut of("bob"), 4 * STEP, 4 * STEP).await);
        drop((one, two));
        assert!(grows(&mut three, 4 * STEP, 4 * STEP).await);
        for i in 0..5000_u32 {
            bodies.share_of(ShareOwner::Address(std::net::Ipv4Addr::from(i).into()));
        }
        let kept = bodies.shares.lock().unwrap().len();
        assert!(
            kept <= super::SHARES_KEPT
                && bodies.shares.lock().unwrap().contains_key(&ShareOwner::Key("alice".to_owned()))
        );
    }

    #[tokio::test]
    async fn what_was_drawn_from_the_reserve_is_accounted_until_it_is_dropped() {
        let bodies = Bodies::new(6 * STEP, 4 * STEP);
        let free = || (bodies.shared.available_permits() / STEP, bodies.reserve.available_permits() / STEP);
        let (mut first, mut second) = (bodies.room(None), bodies.room(None));
        assert!(grows(&mut first, STEP, 4 * STEP).await && grows(&mut second, 4 * STEP, 4 * STEP).await);
        assert_eq!(free(), (1, 0));
        // What fits moves to the shared memory; the turn goes to the next body.
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
