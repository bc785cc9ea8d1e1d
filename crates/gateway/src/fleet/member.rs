//! One daemon of several: how it is called, what is known of it, and what this gateway has asked of it.

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
    health::{Health, State},
    metrics::{FleetMetrics, MemberMetrics},
    pick::Candidate,
    report::{Has, Report},
    target::Place,
};
use crate::{
    carrier::{Carrier, Client, client, dial},
    error::GatewayError,
};

/// One daemon.
#[derive(Debug)]
pub(crate) struct Member {
    pub(super) place: Place,
    pub(super) id: u64,
    pub(super) client: Client,
    pub(super) health_client: HealthClient<Carrier>,
    known: Mutex<Known>,
    in_flight: AtomicUsize,
    /// Has it asked how it is now.
    pub(super) poke: Notify,
    pub(super) metrics: MemberMetrics,
}

#[derive(Debug)]
struct Known {
    health: Health,
    report: Report,
    in_flight_then: usize, // of this gateway, when the report came
}

/// What `/health` tells of a daemon.
#[derive(Debug, Clone)]
pub(crate) struct MemberView {
    pub(crate) name: String,
    pub(crate) state: &'static str,
    /// Why it is left alone.
    pub(crate) reason: Option<String>,
    pub(crate) in_flight: usize,
}

/// A request that a daemon has, counted until this is dropped.
#[derive(Debug)]
pub(crate) struct Lease(pub(super) Arc<Member>);

impl Member {
    /// A daemon of which nothing is known; connects to nothing.
    pub(super) fn new(
        place: Place,
        key: Option<&Secret>,
        tls: &ClientTls,
        metrics: &FleetMetrics,
    ) -> Result<Member, GatewayError> {
        let carrier = dial(&place.uri, place.at, key, tls)?;
        let member = Member {
            id: hash(&place.name),
            client: client(carrier.clone()),
            health_client: HealthClient::new(carrier),
            known: Mutex::new(Known { health: Health::new(), report: Report::default(), in_flight_then: 0 }),
            in_flight: AtomicUsize::new(0),
            poke: Notify::new(),
            metrics: metrics.of(&place.name),
            place,
        };
        member.metrics.state(member.known().health.state());
        Ok(member)
    }

    /// It said that it has that model in its store now.
    pub(super) fn keeps(&self, model: String) {
        self.known().report.keep(model);
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes its health, and tells.
    fn change<T>(&self, change: impl FnOnce(&mut Health) -> T) -> T {
        let mut known = self.known();
        let before = known.health.state().word();
        let changed = change(&mut known.health);
        let state = known.health.state();
        if state.word() != before {
            let reason = match state {
                State::Out { reason, .. } => Some(reason.as_str()),
                State::Unknown | State::Up { .. } | State::Draining => None,
            };
            tracing::info!(upstream = self.place.name, state = state.word(), reason, "an engine changed");
            self.metrics.state(state);
        }
        changed
    }

    /// It said that it serves.
    pub(super) fn serves(&self) {
        self.change(|health| health.serves(Instant::now()));
    }

    /// It said that it takes nothing new.
    pub(super) fn drains(&self) {
        self.change(Health::drains);
    }

    /// It was not reached, or lost.
    pub(super) fn lost(&self, reason: &str) {
        if self.change(|health| health.lost(Instant::now(), reason)) {
            self.metrics.ejections.inc();
        }
    }

    /// A request of its ended as a sound daemon's does not.
    pub(super) fn failed(&self) {
        if self.change(|health| health.failed(Instant::now())) {
            self.metrics.ejections.inc();
        }
    }

    /// A request of its was answered.
    pub(super) fn worked(&self) {
        self.known().health.worked();
    }

    /// How long it is left alone from now on.
    pub(super) fn left_alone_for(&self) -> std::time::Duration {
        self.known().health.left_alone_for(Instant::now())
    }

    /// Its last word, and what this gateway had asked of it by then.
    pub(super) fn report(&self, stats: v1::StatsResponse) {
        let mut known = self.known();
        known.in_flight_then = self.in_flight();
        known.report.take_stats(stats);
    }

    /// What it stores.
    pub(super) fn stores(&self, list: v1::ListResponse) {
        self.known().report.take_list(list);
    }

    /// Where it has that model.
    pub(super) fn has(&self, model: &str) -> Has {
        self.known().report.has(model)
    }

    /// What it can be asked.
    pub(super) fn state(&self) -> State {
        self.known().health.state().clone()
    }

    /// The way to it.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// This gateway's requests that it has.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// As one of those a request for that model can go to; None: it takes nothing.
    pub(super) fn candidate(&self, model: &str) -> Option<Candidate> {
        let known = self.known();
        let out = match known.health.state() {
            State::Draining => return None,
            State::Out { .. } => true,
            State::Unknown | State::Up { .. } => false,
        };
        // What others ask of it is known as of its last word, what this gateway does as of now.
        let others = known.report.requests.saturating_sub(known.in_flight_then);
        Some(Candidate { id: self.id, has: known.report.has(model), out, load: others + self.in_flight() })
    }

    /// What is told of it.
    pub(super) fn view(&self) -> MemberView {
        let state = self.state();
        MemberView {
            name: self.place.name.clone(),
            state: state.word(),
            reason: if let State::Out { reason, .. } = &state { Some(reason.clone()) } else { None },
            in_flight: self.in_flight(),
        }
    }
}

impl Lease {
    /// The way to that daemon.
    pub(crate) fn client(&self) -> &Client {
        self.0.client()
    }

    /// A request goes to that daemon.
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
