//! Use of a model: the requests that use it, the time since its last use, and whether it is being evicted; one
//! record for each life of a model. A request holds a [`Use`] from the moment it gets the model until it has been
//! answered, so that a busy model is never evicted.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use tokio::sync::Notify;

use crate::keep_alive::KeepAlive;

/// Use of one life of a model.
pub(crate) struct LifeUsage {
    now: Mutex<Now>,
    changed: Notify,
    /// Notified when the model is no longer in use, for loads that wait for memory.
    idle: Arc<Notify>,
}

struct Now {
    uses: usize,
    keep: IdleLimit,
    ready_at: Instant,
    used_at: Instant, // when its last use ended
    leaving: bool,
}

/// Idle time after which a model is unloaded, and who set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IdleLimit {
    pub(crate) alive: KeepAlive,
    /// Whether the configuration or an explicit load set it. Requests cannot change it then.
    pub(crate) by_operator: bool,
}

/// Use of a model by one request; ends when it is dropped.
pub(crate) struct Use(Arc<LifeUsage>);

/// Next action in a model's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Its idle time is over.
    Expired,
    /// The model is being evicted, and its last request has ended.
    Leave,
}

/// Whether a model could make room for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EvictionState {
    /// The model is pinned.
    Stays,
    /// Idle since this time.
    Idle(Instant),
    /// In use, and loaded since this time.
    Works(Instant),
    /// Being evicted without any users, so that its memory will be free in a moment.
    Leaves,
    /// Being evicted after its running requests, or still loading.
    Changes,
}

impl LifeUsage {
    /// Creates the record of an unused model.
    pub(crate) fn new(keep: IdleLimit, now: Instant, idle: Arc<Notify>) -> Arc<Self> {
        let now = Now { uses: 0, keep, ready_at: now, used_at: now, leaving: false };
        Arc::new(Self { now: Mutex::new(now), changed: Notify::new(), idle })
    }

    /// Adds a use. Only with the registry locked, since evictions check there.
    pub(crate) fn begin(self: &Arc<Self>) -> Use {
        self.lock().uses += 1;
        Use(self.clone())
    }

    /// Marks the model as ready.
    pub(crate) fn ready(&self, now: Instant) {
        let mut state = self.lock();
        (state.ready_at, state.used_at) = (now, now);
        drop(state);
        self.changed.notify_one();
    }

    /// Sets the idle time for the operator.
    pub(crate) fn keep(&self, alive: KeepAlive) {
        self.lock().keep = IdleLimit { alive, by_operator: true };
        self.changed.notify_one();
    }

    /// Starts the eviction: nothing new is accepted, and the model ends after its last request.
    pub(crate) fn leave(&self) {
        self.lock().leaving = true;
        self.changed.notify_one();
    }

    /// Whether the model is being evicted to make room, or because its idle time is over.
    pub(crate) fn is_leaving(&self) -> bool {
        self.lock().leaving
    }

    /// Idle time and who set it.
    pub(crate) fn kept(&self) -> IdleLimit {
        self.lock().keep
    }

    /// Time at which it will be unloaded if it is not used again.
    pub(crate) fn expires_at(&self) -> Option<Instant> {
        self.lock().expires_at()
    }

    /// Whether its idle time is over.
    pub(crate) fn has_expired(&self, now: Instant) -> bool {
        self.expires_at().is_some_and(|at| at <= now)
    }

    /// Whether it could make room for another model.
    pub(crate) fn standing(&self) -> EvictionState {
        let now = self.lock();
        match now.keep.alive {
            _ if now.leaving && now.uses == 0 => EvictionState::Leaves,
            _ if now.leaving => EvictionState::Changes,
            KeepAlive::Pinned => EvictionState::Stays,
            KeepAlive::For(_) if now.uses > 0 => EvictionState::Works(now.ready_at),
            KeepAlive::For(_) => EvictionState::Idle(now.used_at),
        }
    }

    /// Waits for the next action.
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
                // A notification that came before this is not lost.
                () = self.changed.notified() => {}
            }
        }
    }

    /// Waits for any change.
    pub(crate) async fn rings(&self) {
        self.changed.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, Now> {
        // Plain values, each set on its own.
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
    /// Sets the idle time for a request, unless the operator has set one.
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

    fn usage(alive: KeepAlive, by_operator: bool) -> Arc<LifeUsage> {
        LifeUsage::new(IdleLimit { alive, by_operator }, Instant::now(), Arc::default())
    }

    #[tokio::test]
    async fn it_expires_when_it_has_not_been_used_for_its_time() {
        let usage = usage(KeepAlive::For(Duration::from_millis(50)), false);
        let first = usage.begin();
        let second = usage.begin();
        assert_eq!((usage.expires_at(), usage.has_expired(Instant::now())), (None, false));
        assert!(matches!(usage.standing(), EvictionState::Works(_)));
        drop(first);
        assert_eq!(usage.expires_at(), None);
        drop(second);
        assert!(matches!(usage.standing(), EvictionState::Idle(_)));
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
        assert_eq!(usage.standing(), EvictionState::Changes);
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
        assert_eq!(on_demand.kept(), IdleLimit { alive: KeepAlive::Pinned, by_operator: true });
        assert_eq!((on_demand.standing(), on_demand.expires_at()), (EvictionState::Stays, None));
    }
}
