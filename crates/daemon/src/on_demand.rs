//! On-demand loading. A request that names a stored model waits until it is loaded; all such requests share one
//! load, and each waits no longer than its own deadline.

use std::{
    path::Path,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use hanzo_engine_store::derive_name;
use tokio::sync::{broadcast::error::RecvError, watch};

use crate::{
    config::OnDemand,
    error::{Error, Failure, FailureReason},
    keep_alive::KeepAlive,
    limits::LOAD_AGAIN_AFTER,
    load_request::LoadRequest,
    models::{AskedBy, Models, SHUTTING_DOWN, Wish},
    name_key::key,
    registry::{Capability, InUse, LoadProgress, Look},
    usage::{IdleLimit, Use},
};

/// Needs of a request for its model.
#[derive(Clone, Copy, Default)]
pub(crate) struct Demand<'a> {
    /// Deadline of the request.
    pub(crate) by: Option<Instant>,
    /// Idle time after which the model is unloaded, if the request sets one.
    pub(crate) keep_alive: Option<KeepAlive>,
    /// Receiver of the load's progress.
    pub(crate) told: Option<&'a watch::Sender<Option<AwaitedLoad>>>,
}

/// Progress of a load that a request waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AwaitedLoad {
    pub(crate) model: String,
    pub(crate) percent: u32,
    /// Whether it waits for memory.
    pub(crate) waits: bool,
    /// Estimated time left.
    pub(crate) left_ms: Option<u64>,
}

/// State of the model that a request waits for.
#[derive(Clone, Copy)]
enum FoundModel<'a> {
    /// The model is listed under this name: loading, unloading or failed.
    Known(&'a str),
    /// The model is stored and not loaded.
    Stored,
}

/// Last state that a waiting request has seen.
enum SeenState {
    Nothing,
    /// The use keeps the model loaded until the request gets it.
    Loading {
        _using: Use,
        progress: Arc<LoadProgress>,
    },
}

impl Models {
    /// Model that answers to a name; see [`Models::loaded`]. Waits for a model that is loading. Loads a stored one,
    /// if on-demand loading is enabled.
    ///
    /// # Errors
    /// Reason why it does not answer in time.
    pub(crate) async fn serving(
        self: &Arc<Self>,
        asked: &str,
        wanted: Capability,
        demand: Demand<'_>,
    ) -> Result<InUse, Error> {
        let found = self.loaded(asked, wanted).await;
        if let Some(not_yet) = self.not_listed_yet(asked, wanted, &found) {
            return Err(not_yet);
        }
        let error = match found {
            Ok(found) => {
                demand.keep_alive.into_iter().for_each(|alive| found.using.keep(alive));
                return Ok(found);
            }
            Err(error) if asked.is_empty() || self.section().on_demand == OnDemand::Never => {
                return Err(error);
            }
            Err(error) => error,
        };
        match error {
            Error::Loading { name, .. } | Error::Unloading { name } => {
                self.bring(FoundModel::Known(&name), &name, demand).await
            }
            Error::Failed { name, retry_after_ms: None, .. } => {
                self.bring(FoundModel::Known(&name), asked, demand).await
            }
            Error::OnlyStored { .. } => self.bring(FoundModel::Stored, asked, demand).await,
            Error::NotLoaded { .. } if self.configured(asked).is_some() => {
                self.bring(FoundModel::Stored, asked, demand).await
            }
            other => Err(other),
        }
    }

    /// Error for a request that may mean a configured model that is not listed yet, just after startup. Its load
    /// has begun, so the client is told to retry, as if it were listed.
    fn not_listed_yet(&self, asked: &str, wanted: Capability, found: &Result<InUse, Error>) -> Option<Error> {
        let misses = match found {
            Ok(found) => asked.is_empty() && !wanted.of(found),
            Err(Error::Unnamed { able, .. }) => able.is_empty(),
            // A model configured under this very name is waited for, if on-demand loading is enabled.
            Err(Error::NotLoaded { .. }) => {
                self.section().on_demand == OnDemand::Never || self.configured(asked).is_none()
            }
            Err(_) => false,
        };
        if !misses || self.starting.load(Relaxed) == 0 {
            return None;
        }
        let means = |request: &&LoadRequest| {
            let names = [request.alias.clone(), Some(request.source.clone()), Some(name_of(request))];
            asked.is_empty() || names.iter().flatten().any(|name| key(name) == key(asked))
        };
        let request = self.configured.iter().filter(|request| request.at_start).find(means)?;
        Some(Error::Loading { name: name_of(request), percent: 0, waits: false, retry_after_ms: None })
    }

    /// Load request that the configuration has for a name.
    pub(crate) fn configured(&self, asked: &str) -> Option<&LoadRequest> {
        let named = |request: &&LoadRequest| {
            let own = request.alias.as_ref().unwrap_or(&request.source);
            key(own) == key(asked)
        };
        self.configured.iter().find(named)
    }

    /// Load that a request for `asked` starts.
    async fn wish_of(&self, name: &str, asked: &str, alive: Option<KeepAlive>) -> Result<Wish, Error> {
        let configured = self.configured(asked).or_else(|| self.configured(name)).cloned();
        let by_operator = configured.as_ref().is_some_and(|request| request.keep_alive.is_some());
        let (request, by) = match configured {
            Some(request) => (request, AskedBy::Operator),
            None => (LoadRequest { source: asked.to_owned(), ..LoadRequest::default() }, AskedBy::Request),
        };
        let alive = request.keep_alive.or(alive).unwrap_or(self.section().keep_alive);
        self.wish(request, IdleLimit { alive, by_operator }, by).await
    }

    /// Waits for a model, and starts its load if necessary.
    async fn bring(
        self: &Arc<Self>,
        found: FoundModel<'_>,
        asked: &str,
        demand: Demand<'_>,
    ) -> Result<InUse, Error> {
        let began = Instant::now();
        let capacity = self.section().queue_requests_max;
        let mut name = match found {
            FoundModel::Known(name) => name.to_owned(),
            FoundModel::Stored => self.wish_of(asked, asked, None).await?.name,
        };
        let Some(_waiting) = self.waiters.enter(&name, capacity) else {
            let retry_after_ms = self.retry_after_ms(&name, None).unwrap_or_default();
            return Err(Error::QueueFull { model: name, capacity, retry_after_ms });
        };
        let mut seen = SeenState::Nothing;
        let brought = self.waited_for(&mut name, found, asked, demand, &mut seen);
        let brought = match demand.by {
            Some(by) => tokio::time::timeout_at(by.into(), brought).await.ok(),
            None => Some(brought.await),
        };
        self.metrics.load_waited(&name, began.elapsed().as_secs_f64());
        let brought = brought.unwrap_or_else(|| {
            let progress = match &seen {
                SeenState::Loading { progress, .. } => Some(&**progress),
                SeenState::Nothing => None,
            };
            Err(Error::Loading {
                percent: progress.map_or(0, LoadProgress::percent),
                waits: progress.is_some_and(LoadProgress::waits),
                retry_after_ms: self.retry_after_ms(&name, progress),
                name,
            })
        })?;
        demand.keep_alive.into_iter().for_each(|alive| brought.using.keep(alive));
        Ok(brought)
    }

    async fn waited_for(
        self: &Arc<Self>,
        name: &mut String,
        found: FoundModel<'_>,
        asked: &str,
        demand: Demand<'_>,
        seen: &mut SeenState,
    ) -> Result<InUse, Error> {
        // The name may belong to another model; starting a load reveals that.
        let (mut begin, mut tried) = (matches!(found, FoundModel::Stored), false);
        loop {
            let mut changes = self.registry.changes();
            let look = if begin { Look::Absent } else { self.registry.look(name) };
            match look {
                Look::Ready(found) => return Ok(found),
                Look::Loading(_using, progress) => {
                    if let Some(told) = demand.told {
                        // The client may have disconnected.
                        let _ = told.send(Some(self.coming(name, &progress)));
                    }
                    *seen = SeenState::Loading { _using, progress };
                }
                Look::Draining => *seen = SeenState::Nothing,
                Look::Restarts(error) => return Err(error),
                Look::Failed { failure, at, ran } if tried || at.elapsed() < LOAD_AGAIN_AFTER => {
                    return Err(failed(name, failure, ran, at.elapsed()));
                }
                Look::Failed { .. } | Look::Absent => {
                    let wish = self.wish_of(name, asked, demand.keep_alive).await?;
                    name.clone_from(&wish.name);
                    match self.begin_in_place(&wish).await {
                        Ok(_) => tried = true,
                        // The model is being unloaded; it can be loaded again afterwards.
                        Err(Error::Unloading { .. }) => {}
                        Err(error) => return Err(error),
                    }
                    begin = false;
                    continue;
                }
            }
            if let Err(RecvError::Closed) = changes.recv().await {
                return Err(Error::Stopped { what: SHUTTING_DOWN });
            }
        }
    }

    fn coming(&self, name: &str, progress: &LoadProgress) -> AwaitedLoad {
        AwaitedLoad {
            model: name.to_owned(),
            percent: progress.percent(),
            waits: progress.waits(),
            left_ms: self.retry_after_ms(name, Some(progress)),
        }
    }

    fn retry_after_ms(&self, name: &str, progress: Option<&LoadProgress>) -> Option<u64> {
        let before = self.load_times.of(name);
        let left = progress.map_or(before, |progress| progress.left(before))?;
        u64::try_from(left.as_millis()).ok()
    }
}

/// Name of a configured model, as far as known without reading its files.
fn name_of(request: &LoadRequest) -> String {
    request.alias.clone().unwrap_or_else(|| derive_name(Path::new(&request.source)))
}

/// Error for a model that failed this long ago. A worker that ran and then failed, whether by an error, a panic or
/// otherwise, can be loaded again; the client should retry a little later.
fn failed(name: &str, failure: Arc<Failure>, ran: bool, since: Duration) -> Error {
    let by_worker = match failure.reason {
        FailureReason::Step(_) => true,
        FailureReason::Panic(_) | FailureReason::Thread(_) | FailureReason::Lost => ran,
        FailureReason::Load(_) | FailureReason::Store(_) | FailureReason::Source(_) => false,
    };
    if !by_worker {
        return Error::Load(failure);
    }
    let left = LOAD_AGAIN_AFTER.saturating_sub(since).as_millis();
    Error::Failed {
        name: name.to_owned(),
        failure,
        retry_after_ms: Some(u64::try_from(left).unwrap_or(u64::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use hanzo_engine_runtime::StepError;

    use super::*;

    #[test]
    fn a_worker_that_failed_for_good_is_asked_for_again_and_a_load_that_failed_is_not() {
        let lost = || FailureReason::Step(StepError::Lost { reason: "it ended".into() });
        let error = failed("a", Failure::new(lost()), true, Duration::from_millis(500));
        let Error::Failed { retry_after_ms: Some(left), .. } = &error else { panic!("{error}") };
        assert_eq!((*left, error.code()), (1500, tonic::Code::Unavailable));
        let late = failed("a", Failure::new(lost()), true, 2 * LOAD_AGAIN_AFTER);
        assert!(matches!(late, Error::Failed { retry_after_ms: Some(0), .. }), "{late}");
        for reason in [|| FailureReason::Lost, || FailureReason::Panic("oh".into())] {
            let again = failed("a", Failure::new(reason()), true, Duration::ZERO);
            assert_eq!(again.code(), tonic::Code::Unavailable, "{again}");
            let never = failed("a", Failure::new(reason()), false, Duration::ZERO);
            assert!(matches!(never, Error::Load(_)), "{never}");
        }
    }
}
