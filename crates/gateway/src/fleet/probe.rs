//! Follows a daemon's state: grpc.health, which reports at once that it drains or is gone, and its statistics
//! at intervals. An ejected daemon is asked again when its ejection ends.

use std::sync::Arc;

use hanzo_engine_proto::v1;
use tokio::time::{sleep, timeout};
use tonic::{Code, Status, Streaming};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus};

use super::member::Member;
use crate::limits::{PROBE_EVERY, PROBE_TIMEOUT, PROBES_PER_LIST};

/// Follows a daemon until dropped.
pub(super) async fn follow(member: Arc<Member>) {
    loop {
        let status = reached(&member).await;
        member.lost(&format!("{:?}: {}", status.code(), status.message()));
        // Never sooner: a daemon that comes up must not get all probes at once.
        sleep(member.left_alone_for()).await;
    }
}

/// Source of a daemon's serving state.
enum ServingSource {
    /// Stream of state changes, and the last state.
    Told(Streaming<HealthCheckResponse>, bool),
    /// Asked at each probe, because a draining daemon waits for clients that hold a stream.
    Asked,
    /// The daemon has no grpc.health: it serves as long as it answers.
    Assumed,
}

/// Follows a daemon while it answers. Returns the error that ended it.
async fn reached(member: &Member) -> Status {
    let Err(status) = talk(member).await;
    status
}

async fn talk(member: &Member) -> Result<std::convert::Infallible, Status> {
    let mut probes = 0_u32;
    let mut serving = watch(member).await?;
    loop {
        let says = match &serving {
            ServingSource::Told(_, state) => *state,
            ServingSource::Asked => check(member).await?,
            ServingSource::Assumed => true,
        };
        let draining = ask(member, probes.is_multiple_of(PROBES_PER_LIST)).await?;
        probes = probes.wrapping_add(1);
        serving = match serving {
            other if says && !draining => {
                member.serves();
                if matches!(other, ServingSource::Asked) { watch(member).await? } else { other }
            }
            other => {
                member.drains();
                if matches!(other, ServingSource::Told(..)) { ServingSource::Asked } else { other }
            }
        };
        // An ejected daemon is asked no sooner.
        let wait = PROBE_EVERY.max(member.left_alone_for());
        tokio::select! {
            changed = changed(&mut serving) => changed?,
            () = member.poke.notified() => {}
            () = sleep(wait) => {}
        }
        if matches!(serving, ServingSource::Told(_, false)) {
            member.drains();
        }
    }
}

/// Opens the stream of its state changes, and waits for the first.
async fn watch(member: &Member) -> Result<ServingSource, Status> {
    let mut client = member.health_client.clone();
    let begin = async {
        let mut states = client.watch(HealthCheckRequest::default()).await?.into_inner();
        let first = states.message().await?.ok_or_else(ended)?;
        Ok(ServingSource::Told(states, serves(&first)))
    };
    match within(begin).await {
        Err(status) if status.code() == Code::Unimplemented => Ok(ServingSource::Assumed),
        told => told,
    }
}

async fn check(member: &Member) -> Result<bool, Status> {
    let mut client = member.health_client.clone();
    Ok(serves(within(client.check(HealthCheckRequest::default())).await?.get_ref()))
}

/// An unknown state counts as serving, because a daemon that has just started may report it.
fn serves(state: &HealthCheckResponse) -> bool {
    state.status() != ServingStatus::NotServing
}

fn ended() -> Status {
    Status::unavailable("its stream of states ended")
}

/// Resolves when the state changes.
async fn changed(serving: &mut ServingSource) -> Result<(), Status> {
    let ServingSource::Told(states, state) = serving else { return std::future::pending().await };
    *state = serves(&states.message().await?.ok_or_else(ended)?);
    Ok(())
}

/// Asks for its load and models, and with `list` also for its stored models. Returns whether it drains.
async fn ask(member: &Member, list: bool) -> Result<bool, Status> {
    let mut client = member.client.clone();
    let stats = within(client.stats(v1::StatsRequest::default())).await?.into_inner();
    let draining = stats.draining;
    member.report(stats);
    if list {
        // A daemon that cannot list its store may serve all the same.
        match within(client.list(v1::ListRequest::default())).await {
            Ok(list) => member.stores(list.into_inner()),
            Err(status) => tracing::debug!(upstream = member.place.name, %status, "no list of stored models"),
        }
    }
    Ok(draining)
}

async fn within<T>(call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let late = || Status::deadline_exceeded(format!("no answer within {} s", PROBE_TIMEOUT.as_secs()));
    timeout(PROBE_TIMEOUT, call).await.unwrap_or_else(|_| Err(late()))
}
