//! Who is there: names become addresses again and again, new addresses become members, and those that are gone leave.
//! What runs on one that has left ends by itself.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use tokio::{
    task::{AbortHandle, JoinSet},
    time::timeout,
};

use super::{
    dispatch::Fleet,
    member::Member,
    probe::follow,
    target::{Place, Target},
};
use crate::{
    error::GatewayError,
    limits::{MEMBERS_MAX, RESOLVE_TIMEOUT},
};

/// The task that keeps the members; it ends when this is dropped, and with it those that follow them.
#[derive(Debug)]
pub(super) struct Keeping(AbortHandle);

impl Drop for Keeping {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What the task knows.
struct Keeper {
    /// What each target was last.
    places: Vec<Vec<Place>>,
    members: BTreeMap<Place, (Arc<Member>, AbortHandle)>,
    following: JoinSet<()>,
}

impl Keeping {
    /// Finds the members for the first time, and keeps them from then on.
    ///
    /// # Errors
    /// What is wrong with an address or the files of TLS.
    pub(super) async fn begin(fleet: &Arc<Fleet>) -> Result<Keeping, GatewayError> {
        let mut keeper = Keeper {
            places: vec![Vec::new(); fleet.targets.len()],
            members: BTreeMap::new(),
            following: JoinSet::new(),
        };
        keeper.look(fleet).await?;
        let (resolver, fleet) = (Arc::clone(&fleet.resolver), Arc::downgrade(fleet));
        let keeping = tokio::spawn(async move {
            loop {
                resolver.again().await;
                let Some(fleet) = Weak::upgrade(&fleet) else { return };
                if let Err(error) = keeper.look(&fleet).await {
                    tracing::warn!(%error, "an engine cannot be reached by its address");
                }
            }
        });
        Ok(Keeping(keeping.abort_handle()))
    }
}

impl Keeper {
    /// Resolves every name and makes the members what was found.
    async fn look(&mut self, fleet: &Fleet) -> Result<(), GatewayError> {
        for (target, known) in fleet.targets.iter().zip(&mut self.places) {
            match timeout(RESOLVE_TIMEOUT, target.places(&*fleet.resolver)).await {
                Ok(Ok(found)) => *known = found,
                // A resolver that fails says nothing of the daemons; each of them is followed.
                Ok(Err(error)) => tell(target, &error),
                Err(_) => tell(target, &"no answer in time"),
            }
        }
        let mut places: Vec<&Place> = Vec::new();
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

fn tell(target: &Target, error: &dyn std::fmt::Display) {
    if let Target::Name { host, .. } = target {
        tracing::warn!(name = host, %error, "a name of engines is not resolved; those that are known stay");
    }
}
