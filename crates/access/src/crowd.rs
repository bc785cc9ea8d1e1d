//! Eviction of idle connections when a port is nearly full. The longest idle connections are closed for new
//! ones, so a newcomer need not wait for their timeouts. While there is room, idle connections may stay.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep},
};

use crate::rate::locked;

/// Share of a port's places. While fewer are free, each new connection evicts idle ones, so that the next finds
/// a free place.
const RESERVE_SHARE: usize = 16;
/// Idle connections to evict for each new one, so that the reserve recovers after a burst.
const ASKED_AT_ONCE: usize = 2;
/// Minimum idle time before a connection may be evicted: a new client needs it to send its first bytes.
const GRACE: Duration = Duration::from_millis(200);
/// Time until another connection is asked, if one that was asked has not left.
const ASK_AGAIN: Duration = Duration::from_millis(5);

/// Places of a port and its idle connections. Cloning is cheap.
#[derive(Debug, Clone)]
pub(crate) struct Crowd(Arc<CrowdState>);

#[derive(Debug)]
struct CrowdState {
    places: Arc<Semaphore>,
    reserve: usize, // places
    idlers: Mutex<Idlers>,
}

#[derive(Debug, Default)]
struct Idlers {
    next: u64,
    longest_first: BTreeMap<u64, Idler>,
}

#[derive(Debug)]
struct Idler {
    since: Instant,
    asked: Arc<Notify>,
}

/// Marks a connection as idle until dropped.
#[derive(Debug)]
pub struct Idle {
    crowd: Crowd,
    number: u64,
    asked: Arc<Notify>,
}

impl Crowd {
    /// Creates the places of a port.
    pub(crate) fn new(places: usize) -> Crowd {
        Crowd(Arc::new(CrowdState {
            places: Arc::new(Semaphore::new(places)),
            reserve: places / RESERVE_SHARE,
            idlers: Mutex::default(),
        }))
    }

    /// Waits for a free place. Asks idle connections to leave while few places are free.
    pub(crate) async fn place(&self) -> OwnedSemaphorePermit {
        loop {
            if self.0.places.available_permits() <= self.0.reserve {
                self.ask(ASKED_AT_ONCE);
            }
            tokio::select! {
                biased;
                place = Arc::clone(&self.0.places).acquire_owned() => match place {
                    Ok(place) => return place,
                    Err(_) => std::future::pending().await, // it is never closed
                },
                // A connection may leave late, become active again, or have been idle for less than the grace
                // period.
                () = sleep(ASK_AGAIN) => {}
            }
        }
    }

    /// Asks up to `count` of the longest idle connections to leave.
    fn ask(&self, count: usize) {
        let now = Instant::now();
        let mut idlers = locked(&self.0.idlers);
        for _ in 0..count {
            match idlers.longest_first.first_entry() {
                Some(first) if now.duration_since(first.get().since) >= GRACE => {
                    first.remove().asked.notify_one()
                }
                _ => return,
            }
        }
    }

    /// Marks a connection as idle from now on, until the result is dropped.
    pub(crate) fn idle(&self) -> Idle {
        let asked = Arc::new(Notify::new());
        let mut idlers = locked(&self.0.idlers);
        let number = idlers.next;
        idlers.next += 1;
        idlers.longest_first.insert(number, Idler { since: Instant::now(), asked: Arc::clone(&asked) });
        drop(idlers);
        Idle { crowd: self.clone(), number, asked }
    }

    /// Resolves when a connection that has sent nothing must leave: after `time`, or when its place is needed.
    pub(crate) async fn within(self, time: Duration) {
        let idle = self.idle();
        tokio::select! {
            () = sleep(time) => {}
            () = idle.makes_way() => {}
        }
    }

    /// Number of free places.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.0.places.available_permits()
    }
}

impl Idle {
    /// Resolves once, when the place is needed.
    pub async fn makes_way(&self) {
        self.asked.notified().await;
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        locked(&self.crowd.0.idlers).longest_first.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{advance, timeout};

    use super::{Crowd, GRACE};

    async fn asked(idle: &super::Idle) -> bool {
        timeout(Duration::ZERO, idle.makes_way()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_done_nothing_for_longest_makes_way_for_each_that_comes() {
        let crowd = Crowd::new(32);
        let mut held = Vec::new();
        for _ in 0..29 {
            held.push((crowd.place().await, crowd.idle()));
        }
        advance(GRACE).await;
        // While there is room, no connection is asked to leave.
        held.push((crowd.place().await, crowd.idle()));
        for (_, idle) in &held {
            assert!(!asked(idle).await);
        }
        // Then the longest idle are asked, and a connection that was used since is not.
        held[0].1 = crowd.idle();
        let _last = crowd.place().await;
        for (i, (_, idle)) in held.iter().enumerate() {
            assert_eq!(asked(idle).await, (1..3).contains(&i), "{i}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_port_waits_for_one_that_leaves_and_asks_the_next_where_it_stays() {
        let crowd = Crowd::new(2);
        let (works, silent) = ((crowd.place().await, crowd.idle()), (crowd.place().await, crowd.idle()));
        // The first one that was asked stays; no other is asked within its grace period.
        let leaving = tokio::spawn(async move {
            silent.1.makes_way().await;
            drop(silent);
        });
        assert!(timeout(GRACE / 2, crowd.place()).await.is_err());
        assert!(!leaving.is_finished());
        assert!(timeout(GRACE, crowd.place()).await.is_ok());
        // If all connections are active, no place becomes free.
        let _held = crowd.place().await;
        drop(works.1);
        assert!(timeout(GRACE * 9, crowd.place()).await.is_err());
    }
}
