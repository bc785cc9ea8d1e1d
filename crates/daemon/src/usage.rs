//! Who uses a model, since when nobody does, and whether it is to leave: one account for each life of a model. A request
//! holds a [`Use`] from the moment it was given the model until it has been answered, so a model that works is never let go.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use tokio::sync::Notify;

use crate::keep_alive::KeepAlive;

/// The account.
pub(crate) struct Usage {
    now: Mutex<Now>,
    changed: Notify,
    /// Rings for whoever waits for room: this model is used no more.
    idle: Arc<Notify>,
}

struct Now {
    uses: usize,
    keep: Kept,
    ready_at: Instant,
    used_at: Instant, // when its last use ended
    leaving: bool,
}

/// How long a model is kept, and on whose word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) alive: KeepAlive,
    /// Who loaded it by its name said so, or the configuration: requests change nothing about it.
    pub(crate) by_operator: bool,
}

/// One request's use of a model; dropping it ends it.
pub(crate) struct Use(Arc<Usage>);

/// What a model's life is to see to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nobody has used it for as long as it may stay.
    Expired,
    /// It is to leave, and its last request has ended.
    Leave,
}

/// Whether a model could make room for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is pinned.
    Stays,
    /// Nobody has used it since.
    Idle(Instant),
    /// It works, and has been there since.
    Works(Instant),
    /// It is to leave and nobody uses it: what it takes will be free in a moment.
    Leaves,
    /// It leaves when what it has begun has ended, or is not there yet.
    Changes,
}

impl Usage {
    /// Nobody uses it yet.
    pub(crate) fn new(keep: Kept, now: Instant, idle: Arc<Notify>) -> Arc<Self> {
        let now = Now { uses: 0, keep, ready_at: now, used_at: now, leaving: false };
        Arc::new(Self { now: Mutex::new(now), changed: Notify::new(), idle })
    }

    /// A request uses it. Only while the registry is locked: whoever lets it go looks there.
    pub(crate) fn begin(self: &Arc<Self>) -> Use {
        self.lock().uses += 1;
        Use(self.clone())
    }

    /// It answers from now on.
    pub(crate) fn ready(&self, now: Instant) {
        let mut state = self.lock();
        (state.ready_at, state.used_at) = (now, now);
        drop(state);
        self.changed.notify_one();
    }

    /// The operator says how long it is kept.
    pub(crate) fn keep(&self, alive: KeepAlive) {
        self.lock().keep = Kept { alive, by_operator: true };
        self.changed.notify_one();
    }

    /// It is to take nothing new, and leave when its last request has ended.
    pub(crate) fn leave(&self) {
        self.lock().leaving = true;
        self.changed.notify_one();
    }

    /// Whether it leaves to make room, or because its time is over.
    pub(crate) fn is_leaving(&self) -> bool {
        self.lock().leaving
    }

    /// How long it is kept.
    pub(crate) fn kept(&self) -> Kept {
        self.lock().keep
    }

    /// When it leaves, if it is not used again.
    pub(crate) fn expires_at(&self) -> Option<Instant> {
        self.lock().expires_at()
    }

    /// Whether it has not been used for as long as it may stay.
    pub(crate) fn has_expired(&self, now: Instant) -> bool {
        self.expires_at().is_some_and(|at| at <= now)
    }

    /// Whether it could make room.
    pub(crate) fn standing(&self) -> Standing {
        let now = self.lock();
        match now.keep.alive {
            _ if now.leaving && now.uses == 0 => Standing::Leaves,
            _ if now.leaving => Standing::Changes,
            KeepAlive::Pinned => Standing::Stays,
            KeepAlive::For(_) if now.uses > 0 => Standing::Works(now.ready_at),
            KeepAlive::For(_) => Standing::Idle(now.used_at),
        }
    }

    /// Waits for what is to be seen to next.
    pub(crate) async fn next(&self) -> Next {
        loop {
            let (next, expires_at) = {
                let now = self.lock();
                let next = (now.leaving && now.uses == 0).then_some(Next::Leave);
                (next, now.expires_at())
            };
            if let Some(next) = next {
                return next;
            }
            let expired = async {
                match expires_at {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = expired => return Next::Expired,
                // A ring that came before this is kept.
                () = self.changed.notified() => {}
            }
        }
    }

    /// Waits for any change.
    pub(crate) async fn rings(&self) {
        self.changed.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, Now> {
        // Plain values, set one by one.
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Now {
    fn expires_at(&self) -> Option<Instant> {
        match self.keep.alive {
            KeepAlive::For(time) if self.uses == 0 && !self.leaving => self.used_at.checked_add(time),
            _ => None,
        }
    }
}

impl Use {
    /// The request says how long the model is kept, if nobody has said so who may.
    pub(crate) fn keep(&self, alive: KeepAlive) {
        let keep = &mut self.0.lock().keep;
        if !keep.by_operator {
            keep.alive = alive;
        }
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let mut now = self.0.lock();
        now.uses -= 1;
        if now.uses > 0 {
            return;
        }
        now.used_at = Instant::now();
        drop(now);
        self.0.changed.notify_one();
        self.0.idle.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt as _;

    use super::*;

    fn usage(alive: KeepAlive, by_operator: bool) -> Arc<Usage> {
        Usage::new(Kept { alive, by_operator }, Instant::now(), Arc::default())
    }

    #[tokio::test]
    async fn it_expires_when_it_has_not_been_used_for_its_time() {
        let usage = usage(KeepAlive::For(Duration::from_millis(50)), false);
        let first = usage.begin();
        let second = usage.begin();
        assert_eq!((usage.expires_at(), usage.has_expired(Instant::now())), (None, false));
        assert!(matches!(usage.standing(), Standing::Works(_)));
        drop(first);
        assert_eq!(usage.expires_at(), None);
        drop(second);
        assert!(matches!(usage.standing(), Standing::Idle(_)));
        assert_eq!(usage.next().await, Next::Expired);
    }

    #[tokio::test]
    async fn who_leaves_waits_for_its_last_request() {
        let usage = usage(KeepAlive::Pinned, false);
        let last = usage.begin();
        usage.leave();
        let next = usage.next();
        tokio::pin!(next);
        assert!(next.as_mut().now_or_never().is_none());
        assert_eq!(usage.standing(), Standing::Changes);
        drop(last);
        assert_eq!(next.await, Next::Leave);
    }

    #[test]
    fn a_request_may_say_how_long_unless_the_operator_has() {
        let zero = KeepAlive::For(Duration::ZERO);
        let on_demand = usage(KeepAlive::default(), false);
        on_demand.begin().keep(zero);
        assert_eq!(on_demand.kept().alive, zero);
        assert!(on_demand.has_expired(Instant::now()));
        on_demand.keep(KeepAlive::Pinned);
        on_demand.begin().keep(zero);
        assert_eq!(on_demand.kept(), Kept { alive: KeepAlive::Pinned, by_operator: true });
        assert_eq!((on_demand.standing(), on_demand.expires_at()), (Standing::Stays, None));
    }
}
