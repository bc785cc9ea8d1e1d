//! What becomes of a port that is nearly full: the connections that have done nothing for longest make way, one for each that
//! comes. So a newcomer waits for nobody's time to be over, however many hold a place and say nothing, and where nobody
//! wants their places they may stay.

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

/// Below this part of a port's places, others make way for each connection that comes, so that the next finds one that is free.
const RESERVE_SHARE: usize = 16;
/// How many for each, so that a burst's places are found again.
const ASKED_AT_ONCE: usize = 2;
/// What a connection has in any case to say what it wants.
const GRACE: Duration = Duration::from_millis(200);
/// After which another is asked for its place, where one that was asked has not left.
const ASK_AGAIN: Duration = Duration::from_millis(5);

/// A port's places, and who does nothing with one. Cloning it is cheap.
#[derive(Debug, Clone)]
pub(crate) struct Crowd(Arc<State>);

#[derive(Debug)]
struct State {
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

/// A connection that does nothing, until this is dropped.
#[derive(Debug)]
pub struct Idle {
    crowd: Crowd,
    number: u64,
    asked: Arc<Notify>,
}

impl Crowd {
    /// Of a port with so many places.
    pub(crate) fn new(places: usize) -> Crowd {
        Crowd(Arc::new(State {
            places: Arc::new(Semaphore::new(places)),
            reserve: places / RESERVE_SHARE,
            idlers: Mutex::default(),
        }))
    }

    /// A place, when there is one: whoever does nothing makes way.
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
                // Some leave later than they were asked, or have something to do after all, or had only just come.
                () = sleep(ASK_AGAIN) => {}
            }
        }
    }

    /// Asks so many of those that have done nothing for longest for their places.
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

    /// To be held by a connection that does nothing from now on.
    pub(crate) fn idle(&self) -> Idle {
        let asked = Arc::new(Notify::new());
        let mut idlers = locked(&self.0.idlers);
        let number = idlers.next;
        idlers.next += 1;
        idlers.longest_first.insert(number, Idler { since: Instant::now(), asked: Arc::clone(&asked) });
        drop(idlers);
        Idle { crowd: self.clone(), number, asked }
    }

    /// Resolves when who has not begun by then is to leave: after that time, or when another wants its place.
    pub(crate) async fn within(self, time: Duration) {
        let idle = self.idle();
        tokio::select! {
            () = sleep(time) => {}
            () = idle.makes_way() => {}
        }
    }

    /// Places that are free.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.0.places.available_permits()
    }
}

impl Idle {
    /// Resolves, once, when another wants its place.
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
        // While there is room nobody is asked.
        held.push((crowd.place().await, crowd.idle()));
        for (_, idle) in &held {
            assert!(!asked(idle).await);
        }
        // Then the oldest are, and what has been used since is not.
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
        // The one that was asked first stays; nobody is asked before its time.
        let leaving = tokio::spawn(async move {
            silent.1.makes_way().await;
            drop(silent);
        });
        assert!(timeout(GRACE / 2, crowd.place()).await.is_err());
        assert!(!leaving.is_finished());
        assert!(timeout(GRACE, crowd.place()).await.is_ok());
        // Where all do something there is no place.
        let _held = crowd.place().await;
        drop(works.1);
        assert!(timeout(GRACE * 9, crowd.place()).await.is_err());
    }
}
