//! Memory for a load. Idle models are evicted first, the least recently used before others. Then busy models give
//! up their turn, after they have finished what they had begun. Also handles the end of a model's idle time.

use std::{pin::pin, sync::Arc, time::Instant};

use hanzo_engine_runtime::LoadError;
use tokio::sync::broadcast::error::RecvError;

use crate::{
    blocking::blocking,
    budget::Reservation,
    error::{Error, Failure},
    launch::{Exit, WorkerThread},
    limits::{CONTEXT_BESIDE_OTHERS, TURN},
    load::{OpenedFiles, Size},
    models::{Life, LoadOutcome, Models, SHUTTING_DOWN, Wish},
    registry::{Holder, LoadProgress},
    usage::{EvictionState, Next},
};

/// Reason for an eviction: the label of `model_evictions_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Eviction {
    /// The model was idle for its keep-alive time.
    KeepAlive,
    /// The model is idle, and another needs its memory.
    Room,
    /// The model has had its turn, and another needs its memory.
    Turn,
}

impl Eviction {
    /// Name in metrics and logs.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Eviction::KeepAlive => "keep_alive",
            Eviction::Room => "room",
            Eviction::Turn => "turn",
        }
    }
}

/// Sums of the bytes in each place.
fn added(one: &[u64], other: &[u64]) -> Vec<u64> {
    one.iter().zip(other).map(|(one, other)| one.saturating_add(*other)).collect()
}

fn is_nothing(bytes: &[u64]) -> bool {
    bytes.iter().all(|&bytes| bytes == 0)
}

/// Number that no life has.
const NO_LIFE: u64 = 0;

/// Result of a search for memory.
enum RoomSearch {
    Room(Reservation, Size),
    /// The load fits, but smaller than it could be if idle models left.
    Short,
    /// The load will fit when other models have left.
    Later,
}

impl Models {
    /// Reserves the memory of a life's load, evicting other models if necessary.
    ///
    /// # Errors
    /// [`LoadError::DoesNotFit`] if it would not fit even without all the others.
    pub(crate) async fn make_room(
        self: &Arc<Self>,
        life: &Life,
        mut opening: OpenedFiles,
        progress: &LoadProgress,
    ) -> Result<(OpenedFiles, Reservation, Size), Arc<Failure>> {
        let waits = |waits| {
            if progress.set_waits(waits) {
                self.registry.set(&life.name, life.number, |_| {});
            }
        };
        let room = match self.room.try_lock() {
            Ok(room) => room,
            Err(_) => {
                waits(true);
                self.room.lock().await
            }
        };
        loop {
            let mut changes = self.registry.changes();
            let mut idle = pin!(self.registry.idle.notified());
            idle.as_mut().enable();
            let places = opening.places();
            let holders = self.registry.holders(life.number, Some(&places));
            let bytes_of = |which: fn(EvictionState) -> bool| {
                let held = holders.iter().filter(|holder| which(holder.standing));
                held.fold(vec![0; places.len()], |sum, holder| added(&sum, &holder.bytes))
            };
            let idle_bytes = bytes_of(|standing| matches!(standing, EvictionState::Idle(_)));
            let all_bytes = bytes_of(|_| true);
            let models = self.clone();
            let (back, found) = blocking(move || {
                let found = models.look_for_room(&opening, &idle_bytes, &all_bytes).map_err(Failure::new)?;
                Ok::<_, Arc<Failure>>((opening, found))
            })
            .await?;
            opening = back;
            if let RoomSearch::Room(reservation, size) = found {
                drop(room);
                progress.set_waits(false);
                let (bytes, place) = (size.memory.total(), opening.place);
                self.registry.set(&life.name, life.number, |entry| {
                    (entry.reserved_bytes, entry.place) = (bytes, place);
                    let bytes = size.beside.iter().map(|memory| memory.total());
                    entry.beside = places[1..].iter().copied().zip(bytes).collect();
                });
                return Ok((opening, reservation, size));
            }
            let turn_ends = self.make_way(&holders, &waits);
            let turn_ends = async {
                match turn_ends {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = changes.recv() => {}
                () = idle => {}
                () = turn_ends => {}
            }
        }
    }

    /// Evicts a model if one may go. Calls `waits` with true if memory will be free later. Returns the end of the
    /// turn of the model that must go next, if it has one.
    fn make_way(self: &Arc<Self>, holders: &[Holder], waits: &impl Fn(bool)) -> Option<Instant> {
        let now = Instant::now();
        let used_first = |holder: &&Holder| match holder.standing {
            EvictionState::Idle(since) | EvictionState::Works(since) => Some(since),
            EvictionState::Stays | EvictionState::Leaves | EvictionState::Changes => None,
        };
        let oldest = |which: &dyn Fn(EvictionState) -> bool| {
            holders.iter().filter(|holder| which(holder.standing)).min_by_key(used_first)
        };
        let mut turn_ends = None;
        if holders.iter().any(|holder| holder.standing == EvictionState::Leaves) {
            // The memory that it frees may be enough.
            waits(true);
        } else if let Some(holder) = oldest(&|standing| matches!(standing, EvictionState::Idle(_))) {
            if self.evict(&holder.name, holder.life, Eviction::Room) {
                waits(true);
            }
        } else if holders.iter().any(|holder| holder.standing == EvictionState::Changes) {
            waits(true);
        } else if let Some(holder) = oldest(&|standing| matches!(standing, EvictionState::Works(_))) {
            waits(true);
            let since = used_first(&holder).unwrap_or(now);
            if now.saturating_duration_since(since) >= TURN {
                self.evict(&holder.name, holder.life, Eviction::Turn);
            } else {
                turn_ends = Some(since + TURN);
            }
        }
        turn_ends
    }

    /// Begins a life like [`Models::begin`]. If the maximum number of models is reached, an idle one is evicted
    /// first.
    ///
    /// # Errors
    /// Errors of [`Models::begin`]; [`Error::TooManyModels`] if no model is idle.
    pub(crate) async fn begin_in_place(self: &Arc<Self>, wish: &Wish) -> Result<LoadOutcome, Error> {
        loop {
            let mut changes = self.registry.changes();
            match self.begin(wish) {
                Err(Error::TooManyModels { .. }) if self.gives_place() => {}
                begun => return begun,
            }
            if let Err(RecvError::Closed) = changes.recv().await {
                return Err(Error::Stopped { what: SHUTTING_DOWN });
            }
        }
    }

    /// Whether an entry will be free soon: a model is being unloaded, or an idle one can be evicted.
    fn gives_place(&self) -> bool {
        let holders = self.registry.holders(NO_LIFE, None);
        if holders.iter().any(|holder| holder.standing == EvictionState::Leaves) {
            return true;
        }
        let idle = holders.iter().filter_map(|holder| match holder.standing {
            EvictionState::Idle(since) => Some((since, holder)),
            _ => None,
        });
        let oldest = idle.min_by_key(|(since, _)| *since);
        oldest.is_some_and(|(_, holder)| self.evict(&holder.name, holder.life, Eviction::Room))
    }

    fn look_for_room(
        self: &Arc<Self>,
        opening: &OpenedFiles,
        idle_bytes: &[u64],
        all_bytes: &[u64],
    ) -> Result<RoomSearch, LoadError> {
        let enough = |size: &Size, free: &[u64]| {
            let most = opening.choose(self, &added(free, idle_bytes));
            let most = most.map_or(0, |most| most.engine.context_tokens_max());
            size.engine.context_tokens_max() >= most.min(CONTEXT_BESIDE_OTHERS)
        };
        // `None` as the error: it fits, but smaller than desired.
        let choose = |free: &[u64]| match opening.choose(self, free) {
            Ok(size) if is_nothing(idle_bytes) || enough(&size, free) => Ok(size),
            Ok(_) => Err((free.to_vec(), None)),
            Err(error) => Err((free.to_vec(), Some(error))),
        };
        match self.reserve_in_order(&opening.places(), &mut Vec::new(), &choose) {
            Ok((mut reservations, size)) => {
                let own = reservations.pop().expect("one for each place");
                Ok(RoomSearch::Room(reservations.into_iter().rev().fold(own, Reservation::with), size))
            }
            Err((_, None)) => Ok(RoomSearch::Short),
            Err((_, Some(error))) if is_nothing(all_bytes) => Err(error),
            Err((free, Some(_))) => opening.choose(self, &added(&free, all_bytes)).map(|_| RoomSearch::Later),
        }
    }

    /// Chooses a size for the free memory of all these places together and reserves it, the last place first. All
    /// loads lock the budgets in the same order (the GPUs, then the CPU), so that no two wait for each other.
    fn reserve_in_order<E>(
        &self,
        places: &[usize],
        free: &mut Vec<u64>,
        choose: &impl Fn(&[u64]) -> Result<Size, E>,
    ) -> Result<(Vec<Reservation>, Size), E> {
        let Some((&place, behind)) = places.split_first() else {
            return Ok((Vec::new(), choose(free)?));
        };
        let at = free.len();
        let budget = &self.places[place].budget;
        let (own, (mut reservations, size)) = budget.reserve(|own| {
            free.push(own);
            let (reservations, size) = self.reserve_in_order(behind, free, choose)?;
            let memory = at.checked_sub(1).map_or(size.memory, |beside| size.beside[beside]);
            Ok((memory.total(), (reservations, size)))
        })?;
        reservations.push(own);
        Ok((reservations, size))
    }

    /// Evicts a model, if the reason still holds.
    fn evict(&self, name: &str, life: u64, why: Eviction) -> bool {
        let now = Instant::now();
        let leaves = self.registry.retire(name, life, |usage| match why {
            Eviction::KeepAlive => usage.has_expired(now),
            Eviction::Room => matches!(usage.standing(), EvictionState::Idle(_)),
            Eviction::Turn => matches!(usage.standing(), EvictionState::Idle(_) | EvictionState::Works(_)),
        });
        if leaves {
            self.metrics.evicted(why.word());
            tracing::info!(model = name, reason = why.word(), "model leaves");
        }
        leaves
    }

    /// Waits for the end of a life's worker, and evicts the model when its idle time is over.
    pub(crate) async fn stay(&self, life: &Life, running: WorkerThread) -> Exit {
        let mut exit = pin!(running.exit());
        loop {
            let next = tokio::select! {
                ended = &mut exit => return ended,
                next = life.usage.next() => next,
            };
            match next {
                Next::Expired => {
                    self.evict(&life.name, life.number, Eviction::KeepAlive);
                    if !life.usage.is_leaving() {
                        // It is being unloaded, or was used again. The next change triggers a notification.
                        tokio::select! {
                            ended = &mut exit => return ended,
                            () = life.usage.rings() => {}
                        }
                    }
                }
                Next::Leave => {
                    self.registry.drain(&life.name, life.number);
                    return exit.await;
                }
            }
        }
    }
}
