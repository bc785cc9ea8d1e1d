//! Load balancing over several daemons: choice of a daemon for each call, retries on another one, and combined
//! answers.
//!
//! Names are resolved repeatedly (`target`, `keeper`). Each address is a [`Member`](member::Member), whose task
//! follows its health and load (`probe`, `health`, `report`). A call goes to a daemon that has its model,
//! preferably one with its prefix in the cache (`affinity`, `pick`). It is retried on another daemon if that is
//! safe (`retry`, `dispatch`). `union` combines the answers of all daemons. Nothing here knows HTTP.

mod affinity;
mod dispatch;
mod health;
mod keeper;
mod member;
mod metrics;
mod pick;
mod probe;
mod pull;
mod report;
mod retry;
mod stream;
mod target;
mod union;

pub(crate) use dispatch::{Fleet, Route};
pub(crate) use member::MemberView;
pub(crate) use metrics::FleetMetrics;
pub(crate) use report::Has;
pub use target::{Resolve, SystemResolver};
pub(crate) use target::{Upstream, one_or_list};
