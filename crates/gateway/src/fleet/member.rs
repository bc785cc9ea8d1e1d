//! One of several daemons: its connection, its state, and this gateway's requests to it.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use hanzo_engine_access::{ClientTls, Secret};
use hanzo_engine_proto::v1;
use tokio::{sync::Notify, time::Instant};
use tonic_health::pb::health_client::HealthClient;

use super::{
    affinity::hash,
    health::{DaemonState, Health},
    metrics::{FleetMetrics, MemberMetrics},
    pick::Candidate,
    report::{DaemonReport, Has},
    target::DaemonAddress,
};
use crate::{
    carrier::{Carrier, DaemonClient, client, dial},
    error::GatewayError,
};

/// Daemon behind the gateway.
#[derive(Debug)]
pub(crate) struct Member {
    pub(super) place: DaemonAddress,
    pub(super) id: u64,
    pub(super) client: DaemonClient,
    pub(super) health_client: HealthClient<Carrier>,
    status: Mutex<MemberStatus>,
    in_flight: AtomicUsize,
    /// Wakes the task that asks for its state.
    pub(super) poke: Notify,
    pub(super) metrics: MemberMetrics,
}

#[derive(Debug)]
struct MemberStatus {
    health: Health,
    report: DaemonReport,
    in_flight_then: usize, // of this gateway, at the time of the report
}

/// State of a daemon for `/health`.
#[derive(Debug, Clone)]
pub(crate) struct MemberView {
    pub(crate) name: String,
    pub(crate) state: &'static str,
    /// Reason of its ejection.
    pub(crate) reason: Option<String>,
    pub(crate) in_flight: usize,
}

/// Request in flight at a daemon. It is counted until dropped.
#[derive(Debug)]
pub(crate) struct Lease(pub(super) Arc<Member>);

impl Member {
    /// Creates a member without connecting to it.
    pub(super) fn new(
        place: DaemonAddress,
        key: Option<&Secret>,
        tls: &ClientTls,
        metrics: &FleetMetrics,
    ) -> Result<Member, GatewayError> {
        let carrier = dial(&place.uri, place.at, key, tls)?;
        let member = Member {
            id: hash(&place.name),
            client: client(carrier.clone()),
            health_client: HealthClient::new(carrier),
            status: Mutex::new(MemberStatus {
                health: Health::new(),
                report: DaemonReport::default(),
                in_flight_then: 0,
            }),
            in_flight: AtomicUsize::new(0),
            poke: Notify::new(),
            metrics: metrics.of(&place.name),
            place,
        };
        member.metrics.state(member.status().health.state());
        Ok(member)
    }

    /// Records that it has stored that model.
    pub(super) fn keeps(&self, model: String) {
        self.status().report.keep(model);
    }

    fn status(&self) -> MutexGuard<'_, MemberStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes its health, and reports a change of state.
    fn change<T>(&self, change: impl FnOnce(&mut Health) -> T) -> T {
        let mut status = self.status();
        let before = status.health.state().word();
        let changed = change(&mut status.health);
        let state = status.health.state();
        if state.word() != before {
            let reason = match state {
                DaemonState::Out { reason, .. } => Some(reason.as_str()),
                DaemonState::Unknown | DaemonState::Up { .. } | DaemonState::Draining => None,
            };
            tracing::info!(upstream = self.place.name, state = state.word(), reason, "an engine changed");
            self.metrics.state(state);
        }
        changed
    }

    /// Records that it serves.
    pub(super) fn serves(&self) {
        self.change(|health| health.serves(Instant::now()));
    }

    /// Records that it takes no new requests.
    pub(super) fn drains(&self) {
        self.change(Health::drains);
    }

    /// Records that it was unreachable or the connection broke.
    pub(super) fn lost(&self, reason: &str) {
        if self.change(|health| health.lost(Instant::now(), reason)) {
            self.metrics.ejections.inc();
        }
    }

    /// Records a failed request that is the daemon's fault.
    pub(super) fn failed(&self) {
        if self.change(|health| health.failed(Instant::now())) {
            self.metrics.ejections.inc();
        }
    }

    /// Records a successful request.
    pub(super) fn worked(&self) {
        self.status().health.worked();
    }

    /// Time until its ejection ends.
    pub(super) fn left_alone_for(&self) -> std::time::Duration {
        self.status().health.left_alone_for(Instant::now())
    }

    /// Records its statistics, and this gateway's requests at that time.
    pub(super) fn report(&self, stats: v1::StatsResponse) {
        let mut status = self.status();
        status.in_flight_then = self.in_flight();
        status.report.take_stats(stats);
    }

    /// Records its stored models.
    pub(super) fn stores(&self, list: v1::ListResponse) {
        self.status().report.take_list(list);
    }

    /// State of that model on the daemon.
    pub(super) fn has(&self, model: &str) -> Has {
        self.status().report.has(model)
    }

    /// State of its health.
    pub(super) fn state(&self) -> DaemonState {
        self.status().health.state().clone()
    }

    /// Client of the daemon.
    pub(crate) fn client(&self) -> &DaemonClient {
        &self.client
    }

    /// Requests of this gateway in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// The daemon as a candidate for a request for that model. None: it is draining.
    pub(super) fn candidate(&self, model: &str) -> Option<Candidate> {
        let status = self.status();
        let out = match status.health.state() {
            DaemonState::Draining => return None,
            DaemonState::Out { .. } => true,
            DaemonState::Unknown | DaemonState::Up { .. } => false,
        };
        // Load of other clients as of its last report, plus this gateway's own as of now.
        let others = status.report.requests.saturating_sub(status.in_flight_then);
        Some(Candidate { id: self.id, has: status.report.has(model), out, load: others + self.in_flight() })
    }

    /// State for `/health`.
    pub(super) fn view(&self) -> MemberView {
        let state = self.state();
        MemberView {
            name: self.place.name.clone(),
            state: state.word(),
            reason: if let DaemonState::Out { reason, .. } = &state { Some(reason.clone()) } else { None },
            in_flight: self.in_flight(),
        }
    }
}

impl Lease {
    /// Client of the daemon.
    pub(crate) fn client(&self) -> &DaemonClient {
        self.0.client()
    }

    /// Counts a request to the daemon.
    pub(super) fn new(member: Arc<Member>) -> Lease {
        let in_flight = member.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        member.metrics.in_flight.set(in_flight as i64);
        Lease(member)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let in_flight = self.0.in_flight.fetch_sub(1, Ordering::Relaxed) - 1;
        self.0.metrics.in_flight.set(in_flight as i64);
    }
}
