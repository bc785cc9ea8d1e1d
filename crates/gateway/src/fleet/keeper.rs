//! Discovery of daemons: names are resolved repeatedly, new addresses become members, and addresses that are
//! gone leave. Calls that run on a removed member finish normally.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use hanzo_engine_process::tasks;
use tokio::{
    task::{AbortHandle, JoinSet},
    time::timeout,
};

use super::{
    dispatch::Fleet,
    member::Member,
    probe::follow,
    target::{DaemonAddress, Upstream},
};
use crate::{
    error::GatewayError,
    limits::{MEMBERS_MAX, RESOLVE_TIMEOUT},
};

/// Task that maintains the members. Dropping this ends it and the tasks that follow the members.
#[derive(Debug)]
pub(super) struct KeeperTask(AbortHandle);

impl Drop for KeeperTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// State of the task.
struct Keeper {
    /// Last known addresses of each target.
    places: Vec<Vec<DaemonAddress>>,
    members: BTreeMap<DaemonAddress, (Arc<Member>, AbortHandle)>,
    following: JoinSet<()>,
}

impl KeeperTask {
    /// Finds the members for the first time, and starts the task.
    ///
    /// # Errors
    /// Fault of an address or of the TLS files.
    pub(super) async fn begin(fleet: &Arc<Fleet>) -> Result<KeeperTask, GatewayError> {
        let mut keeper = Keeper {
            places: vec![Vec::new(); fleet.targets.len()],
            members: BTreeMap::new(),
            following: JoinSet::new(),
        };
        keeper.look(fleet).await?;
        let (resolver, fleet) = (Arc::clone(&fleet.resolver), Arc::downgrade(fleet));
        let keeping = tasks::spawn(async move {
            loop {
                resolver.again().await;
                let Some(fleet) = Weak::upgrade(&fleet) else { return };
                if let Err(error) = keeper.look(&fleet).await {
                    tracing::warn!(%error, "an engine cannot be reached by its address");
                }
            }
        });
        Ok(KeeperTask(keeping.abort_handle()))
    }
}

impl Keeper {
    /// Resolves every name and updates the members.
    async fn look(&mut self, fleet: &Fleet) -> Result<(), GatewayError> {
        for (target, known) in fleet.targets.iter().zip(&mut self.places) {
            match timeout(RESOLVE_TIMEOUT, target.places(&*fleet.resolver)).await {
                Ok(Ok(found)) => *known = found,
                // A failure of the resolver tells nothing about the daemons, which are followed on their own.
                Ok(Err(error)) => tell(target, &error),
                Err(_) => tell(target, &"no answer in time"),
            }
        }
        let mut places: Vec<&DaemonAddress> = Vec::new();
        for place in self.places.iter().flatten() {
            if !places.iter().any(|other| other.name == place.name) {
                places.push(place);
            }
        }
        if places.len() > MEMBERS_MAX {
            tracing::warn!(found = places.len(), used = MEMBERS_MAX, "more engines than a gateway asks");
            places.truncate(MEMBERS_MAX);
        }
        self.members.retain(|place, (_, following)| {
            let stays = places.contains(&place);
            if !stays {
                tracing::info!(upstream = place.name, "an engine has left");
                following.abort();
            }
            stays
        });
        for place in places {
            if !self.members.contains_key(place) {
                let member = Member::new(place.clone(), fleet.key.as_ref(), &fleet.tls, &fleet.metrics)?;
                let member = Arc::new(member);
                let following = self.following.spawn(follow(Arc::clone(&member)));
                self.members.insert(place.clone(), (member, following));
            }
        }
        while self.following.try_join_next().is_some() {}
        fleet.set_members(self.members.values().map(|(member, _)| Arc::clone(member)).collect());
        Ok(())
    }
}

fn tell(target: &Upstream, error: &dyn std::fmt::Display) {
    if let Upstream::Name { host, .. } = target {
        tracing::warn!(name = host, %error, "a name of engines is not resolved; those that are known stay");
    }
}
