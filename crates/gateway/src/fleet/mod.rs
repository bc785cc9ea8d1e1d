//! Several daemons behind one gateway: which of them a call goes to, what is done when one does not answer, and what
//! they know together.
//!
//! Names become addresses again and again (`target`, `keeper`); each address is a [`Member`](member::Member), of which a
//! task of its own knows whether it serves and how much it has to do (`probe`, `health`, `report`). A call is routed by who
//! has its model and by what is cached of its prompt (`affinity`, `pick`), and given to another daemon where that is safe
//! (`retry`, `dispatch`). What each says of itself becomes one answer in `union`. Nothing here knows HTTP.

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
pub(crate) use retry::Again;
pub use target::{Resolve, SystemResolver};
pub(crate) use target::{Target, one_or_list};
