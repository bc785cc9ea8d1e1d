//! What a daemon says of itself, followed for as long as it is there: grpc.health, which tells at once that it drains or
//! is gone, and its statistics now and then. One that is left alone is asked again when its time has come.

use std::sync::Arc;

use hanzo_engine_proto::v1;
use tokio::time::{sleep, timeout};
use tonic::{Code, Status, Streaming};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus};

use super::member::Member;
use crate::limits::{PROBE_EVERY, PROBE_TIMEOUT, PROBES_PER_LIST};

/// Follows a daemon until this is dropped.
pub(super) async fn follow(member: Arc<Member>) {
    loop {
        let status = reached(&member).await;
        member.lost(&format!("{:?}: {}", status.code(), status.message()));
        // Not sooner, whoever asks for it: a daemon that comes up must not meet everyone at once.
        sleep(member.left_alone_for()).await;
    }
}

/// How it is known whether a daemon serves.
enum Serving {
    /// It says so when that changes; what it said last.
    Told(Streaming<HealthCheckResponse>, bool),
    /// It is asked each time: one that drains waits for who holds a stream of its.
    Asked,
    /// It has no grpc.health: it serves while it answers.
    Assumed,
}

/// Follows a daemon for as long as it answers; why it does no more.
async fn reached(member: &Member) -> Status {
    let Err(status) = talk(member).await;
    status
}

async fn talk(member: &Member) -> Result<std::convert::Infallible, Status> {
    let mut probes = 0_u32;
    let mut serving = watch(member).await?;
    loop {
        let says = match &serving {
            Serving::Told(_, state) => *state,
            Serving::Asked => check(member).await?,
            Serving::Assumed => true,
        };
        let draining = ask(member, probes.is_multiple_of(PROBES_PER_LIST)).await?;
        probes = probes.wrapping_add(1);
        serving = match serving {
            other if says && !draining => {
                member.serves();
                if matches!(other, Serving::Asked) { watch(member).await? } else { other }
            }
            other => {
                member.drains();
                if matches!(other, Serving::Told(..)) { Serving::Asked } else { other }
            }
        };
        // One that is left alone for its answers is asked no sooner.
        let wait = PROBE_EVERY.max(member.left_alone_for());
        tokio::select! {
            changed = changed(&mut serving) => changed?,
            () = member.poke.notified() => {}
            () = sleep(wait) => {}
        }
        if matches!(serving, Serving::Told(_, false)) {
            member.drains();
        }
    }
}

/// The stream of its states, from its first on.
async fn watch(member: &Member) -> Result<Serving, Status> {
    let mut client = member.health_client.clone();
    let begin = async {
        let mut states = client.watch(HealthCheckRequest::default()).await?.into_inner();
        let first = states.message().await?.ok_or_else(ended)?;
        Ok(Serving::Told(states, serves(&first)))
    };
    match within(begin).await {
        Err(status) if status.code() == Code::Unimplemented => Ok(Serving::Assumed),
        told => told,
    }
}

async fn check(member: &Member) -> Result<bool, Status> {
    let mut client = member.health_client.clone();
    Ok(serves(within(client.check(HealthCheckRequest::default())).await?.get_ref()))
}

/// A daemon that has just begun may not know yet.
fn serves(state: &HealthCheckResponse) -> bool {
    state.status() != ServingStatus::NotServing
}

fn ended() -> Status {
    Status::unavailable("its stream of states ended")
}

/// Resolves when it says another state.
async fn changed(serving: &mut Serving) -> Result<(), Status> {
    let Serving::Told(states, state) = serving else { return std::future::pending().await };
    *state = serves(&states.message().await?.ok_or_else(ended)?);
    Ok(())
}

/// What it has to do and which models, and where that is wanted what it stores. Whether it drains.
async fn ask(member: &Member, list: bool) -> Result<bool, Status> {
    let mut client = member.client.clone();
    let stats = within(client.stats(v1::StatsRequest::default())).await?.into_inner();
    let draining = stats.draining;
    member.report(stats);
    if list {
        // One that cannot list its store may serve all the same.
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
