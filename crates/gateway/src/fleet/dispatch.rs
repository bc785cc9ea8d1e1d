//! Dispatch of calls to one of several daemons, or to all of them.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{
        Arc, OnceLock, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use futures_util::future::join_all;
use hanzo_engine_access::{ClientTls, Secret};
use hanzo_engine_proto::v1;
use tonic::{Response, Status};

use super::{
    affinity::{hash, mixed},
    health::DaemonState,
    keeper::KeeperTask,
    member::{Lease, Member, MemberView},
    metrics::FleetMetrics,
    pick::{Candidate, pick},
    pull,
    report::Has,
    retry::Attempts,
    target::{Resolve, Upstream},
    union,
};
use crate::{
    carrier::{DaemonClient, within_state},
    error::GatewayError,
    retry_reason::{RetryReason, is_gone},
    silence::while_alive,
};

/// Several daemons.
pub(crate) struct Fleet {
    members: RwLock<Arc<[Arc<Member>]>>,
    pub(super) targets: Vec<Upstream>,
    pub(super) resolver: Arc<dyn Resolve>,
    pub(super) key: Option<Secret>,
    pub(super) tls: ClientTls,
    pub(crate) metrics: FleetMetrics,
    drawn: AtomicU64,
    keeping: OnceLock<KeeperTask>, // task that maintains the members
}

/// Routing information of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Route<'a> {
    /// Requested model; empty: any.
    pub(crate) model: &'a str,
    /// Affinity key of the request's prefix.
    pub(crate) key: Option<u64>,
}

impl<'a> Route<'a> {
    /// Route to a daemon that has the model.
    pub(crate) fn to(model: &'a str) -> Route<'a> {
        Route { model, key: None }
    }
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fleet").field("targets", &self.targets).finish_non_exhaustive()
    }
}

impl Fleet {
    /// Starts to follow the daemons at `targets`.
    ///
    /// # Errors
    /// Fault of an address or of the TLS files.
    pub(crate) async fn start(
        targets: Vec<Upstream>,
        resolver: Arc<dyn Resolve>,
        key: Option<&Secret>,
        tls: &ClientTls,
    ) -> Result<Arc<Fleet>, GatewayError> {
        let metrics = FleetMetrics::new().map_err(|e| GatewayError::Config(format!("metrics: {e}")))?;
        let fleet = Arc::new(Fleet {
            members: RwLock::new(Arc::new([])),
            targets,
            resolver,
            key: key.cloned(),
            tls: tls.clone(),
            metrics,
            drawn: AtomicU64::new(0),
            keeping: OnceLock::new(),
        });
        let keeping = KeeperTask::begin(&fleet).await?;
        // Set here only, so it cannot fail.
        let _ = fleet.keeping.set(keeping);
        Ok(fleet)
    }

    /// Current members.
    pub(super) fn members(&self) -> Arc<[Arc<Member>]> {
        self.members.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the members.
    pub(super) fn set_members(&self, members: Arc<[Arc<Member>]>) {
        *self.members.write().unwrap_or_else(PoisonError::into_inner) = members;
    }

    /// State of each member for `/health`.
    pub(crate) fn views(&self) -> Vec<MemberView> {
        self.members().iter().map(|member| member.view()).collect()
    }

    /// Asks every daemon for its state at once, because something has changed.
    pub(super) fn look_again(&self) {
        self.members().iter().for_each(|member| member.poke.notify_one());
    }

    /// Chooses a daemon for a request, other than those already tried.
    fn pick(&self, route: Route<'_>, attempts: &mut Attempts) -> Result<(Lease, Has), Status> {
        let members = self.members();
        let free = members.iter().filter(|member| !attempts.tried.contains(&member.id));
        let candidates = free.filter_map(|member| Some((member, member.candidate(route.model)?)));
        let (members, candidates): (Vec<&Arc<Member>>, Vec<Candidate>) = candidates
            .filter(|(_, candidate)| attempts.has_max.is_none_or(|has_max| candidate.has <= has_max))
            .unzip();
        let drawn = mixed(self.drawn.fetch_add(1, Ordering::Relaxed));
        let model = hash(&route.model.to_lowercase());
        let Some((at, why)) = pick(&candidates, route.key, model, drawn) else {
            return Err(std::mem::take(attempts).said().unwrap_or_else(|| self.nobody()));
        };
        let member = members[at];
        attempts.tried.push(member.id);
        member.metrics.picked(why);
        Ok((Lease::new(Arc::clone(member)), candidates[at].has))
    }

    /// Status if no daemon can be asked.
    pub(super) fn nobody(&self) -> Status {
        let what = if self.members().is_empty() {
            "no engine is known: upstreams have no address yet"
        } else {
            "every engine is shutting down"
        };
        Status::unavailable(what)
    }

    /// Handles a daemon's error: returns it as the answer, or nothing if another daemon is to be asked.
    pub(super) fn judge(
        &self,
        lease: &Lease,
        has: Has,
        status: Status,
        attempts: &mut Attempts,
    ) -> Result<(), Status> {
        let member = &lease.0;
        blame(member, &status);
        let Some(again) = attempts.again(&status, has) else { return Err(status) };
        member.metrics.retried(again);
        tracing::debug!(upstream = member.place.name, reason = again.word(), %status, "another engine is asked");
        attempts.keep(again, status);
        Ok(())
    }

    /// Asks one daemon, and another one if it cannot answer. The caller must hold the lease for as long as the
    /// answer lasts.
    pub(super) async fn ask_with<R, T, F>(
        &self,
        route: Route<'_>,
        request: &R,
        call: impl Fn(DaemonClient, R) -> F,
        attempts: &mut Attempts,
    ) -> Result<(Lease, Has, Response<T>), Status>
    where
        R: Clone,
        F: Future<Output = Result<Response<T>, Status>>,
    {
        loop {
            let (lease, has) = self.pick(route, attempts)?;
            let client = &lease.0.client;
            match while_alive(client, call(client.clone(), request.clone())).await {
                Ok(answer) => {
                    lease.0.worked();
                    return Ok((lease, has, answer));
                }
                Err(status) => self.judge(&lease, has, status, attempts)?,
            }
        }
    }

    /// Asks one daemon, and another one if it cannot answer.
    pub(crate) async fn ask<R, T, F>(
        &self,
        route: Route<'_>,
        request: R,
        call: impl Fn(DaemonClient, R) -> F,
    ) -> Result<Response<T>, Status>
    where
        R: Clone,
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let (_, _, answer) = self.ask_with(route, &request, call, &mut Attempts::default()).await?;
        Ok(answer)
    }

    /// Like [`Fleet::ask`], for a streamed answer. The caller must hold the lease for as long as it lasts.
    pub(crate) async fn ask_held<R, T, F>(
        &self,
        route: Route<'_>,
        request: R,
        call: impl Fn(DaemonClient, R) -> F,
    ) -> Result<(Lease, Response<T>), Status>
    where
        R: Clone,
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let (lease, _, answer) = self.ask_with(route, &request, call, &mut Attempts::default()).await?;
        Ok((lease, answer))
    }

    /// Asks every serving daemon whose state of the model is `wanted`. An error of one is the answer, with the
    /// daemon's name, because such calls can be repeated. Unreachable daemons are skipped. If none has the
    /// model, or all that have it are unreachable, one daemon answers.
    pub(crate) async fn ask_all<R, T, F>(
        &self,
        model: &str,
        wanted: impl Fn(Has) -> bool,
        request: R,
        call: impl Fn(DaemonClient, R) -> F,
    ) -> Result<Response<T>, Status>
    where
        R: Clone,
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let members = self.members();
        let up = members
            .iter()
            .filter(|member| matches!(member.state(), DaemonState::Up { .. } | DaemonState::Unknown));
        let all: Vec<&Arc<Member>> = up.filter(|member| wanted(member.has(model))).collect();
        if all.is_empty() {
            return self.ask(Route::to(model), request, call).await;
        }
        let calls = all.iter().map(|member| {
            let answer = call(member.client.clone(), request.clone());
            async move { (member, while_alive(&member.client, answer).await) }
        });
        let mut first = None;
        for (member, answer) in join_all(calls).await {
            match answer {
                Ok(answer) => first = first.or(Some(answer)),
                Err(status) => {
                    blame(member, &status);
                    if is_gone(&status) {
                        continue;
                    }
                    self.look_again();
                    return Err(pull::of(&member.place.name, status));
                }
            }
        }
        self.look_again();
        match first {
            Some(answer) => Ok(answer),
            None => self.ask(Route::to(model), request, call).await,
        }
    }

    /// Answers of all reachable daemons; an error if there are none. Ejected daemons are asked only if no other
    /// one answers: they may be back, and the others may be gone.
    async fn every<T>(
        &self,
        ask: impl AsyncFn(DaemonClient) -> Result<Response<T>, Status>,
    ) -> Result<Vec<T>, Status> {
        let (out, not_out) = self.out_and_not();
        let (mut good, mut bad) = (Vec::new(), None);
        for asked in [not_out, out] {
            let answers = join_all(asked.iter().map(|member| async {
                let answer = within_state(ask(member.client.clone())).await;
                answer.inspect_err(|status| blame(member, status))
            }));
            for answer in answers.await {
                match answer {
                    Ok(answer) => good.push(answer.into_inner()),
                    Err(status) => bad = bad.or(Some(status)),
                }
            }
            if !good.is_empty() {
                return Ok(good);
            }
        }
        Err(bad.unwrap_or_else(|| self.nobody()))
    }

    /// Ejected daemons, and the others.
    pub(super) fn out_and_not(&self) -> (Vec<Arc<Member>>, Vec<Arc<Member>>) {
        let members = self.members();
        members.iter().cloned().partition(|member| matches!(member.state(), DaemonState::Out { .. }))
    }

    /// Statistics of all loaded models.
    pub(crate) async fn stats(&self) -> Result<v1::StatsResponse, Status> {
        let ask = async |mut client: DaemonClient| client.stats(v1::StatsRequest::default()).await;
        Ok(union::stats(self.every(ask).await?))
    }

    /// All aliases, each once.
    pub(crate) async fn aliases(&self) -> Result<v1::AliasesResponse, Status> {
        let ask = async |mut client: DaemonClient| client.store.aliases(v1::AliasesRequest::default()).await;
        let mut aliases: Vec<v1::Alias> =
            self.every(ask).await?.into_iter().flat_map(|one| one.aliases).collect();
        let mut seen = HashSet::new();
        aliases.retain(|alias| seen.insert(alias.alias.clone()));
        Ok(v1::AliasesResponse { aliases })
    }

    /// All running downloads. A download on several daemons is reported as one.
    pub(crate) async fn pulls(&self) -> Result<v1::PullsResponse, Status> {
        let ask = async |mut client: DaemonClient| client.store.pulls(v1::PullsRequest::default()).await;
        let mut by_model: BTreeMap<String, Vec<v1::PullProgress>> = BTreeMap::new();
        for pull in self.every(ask).await?.into_iter().flat_map(|one| one.running) {
            by_model.entry(pull.model.clone()).or_default().push(pull);
        }
        let running = by_model.values().map(|far| union::pulls(far)).collect();
        Ok(v1::PullsResponse { running, ..v1::PullsResponse::default() })
    }

    /// All stored models.
    pub(crate) async fn list(&self) -> Result<v1::ListResponse, Status> {
        let ask = async |mut client: DaemonClient| client.list(v1::ListRequest::default()).await;
        Ok(union::lists(self.every(ask).await?))
    }
}

impl Lease {
    /// Records that a streamed answer broke off.
    pub(crate) fn failed(&self, status: &Status) {
        blame(&self.0, status);
    }
}

/// Records an error that is the daemon's fault.
pub(super) fn blame(member: &Member, status: &Status) {
    match RetryReason::of(status) {
        Some(RetryReason::Unreached | RetryReason::Lost) => {
            member.lost(status.message());
            member.poke.notify_one();
        }
        // The daemon may have begun to drain, or have lost a model.
        Some(RetryReason::Refused) => member.poke.notify_one(),
        Some(RetryReason::Full | RetryReason::NotFound) => {}
        None => match status.code() {
            tonic::Code::Internal | tonic::Code::Unknown | tonic::Code::DataLoss | tonic::Code::Aborted => {
                member.failed()
            }
            _ => {}
        },
    }
}
