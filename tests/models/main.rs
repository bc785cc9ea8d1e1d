//! The kernels' thread pool, the events' way from worker to client and the places before a model, under a model checker
//! (loom): their own files, compiled against `sync.rs`, are run in every order that their threads may take, and with
//! every value that the memory model lets a load see. loom, because some of what is checked is fences.
//!
//! usage: models NAME [FAULT]      a fault is planted in the primitives, and must be found

mod admitted;
mod pooled;
mod read;
mod sync;

#[allow(dead_code)]
#[path = "../../crates/daemon/src/admission.rs"]
mod admission;
#[path = "../../crates/daemon/src/ticket/events.rs"]
mod events;
// No turns are spun here.
#[allow(dead_code, unreachable_pub, missing_docs, clippy::absurd_extreme_comparisons)]
#[path = "../../crates/kernels/src/cpu/pool.rs"]
mod pool;

use std::process::ExitCode;

/// The bounds of what is checked, as small as they can be: every order is tried.
mod limits {
    pub(crate) const RETRY_AFTER_MS_MIN: u64 = 100;
    pub(crate) const RETRY_AFTER_MS_MAX: u64 = 1000;
    pub(crate) const RETRY_AFTER_MS_UNMEASURED: u64 = 500;

    pub(crate) const fn room_to_resume(events_max: usize) -> usize {
        events_max
    }
}

type Model = (&'static str, Option<usize>, fn());

/// Each with how often at most a thread is interrupted in one order; none: as often as it can be.
const MODELS: [Model; 7] = [
    ("pool-runs", Some(2), pooled::runs),
    ("pool-steals", Some(3), pooled::steals),
    ("pool-of-three", Some(1), pooled::three),
    ("events-are-read", None, read::all),
    ("reader-leaves", None, read::leaves),
    ("places", Some(2), admitted::places),
    ("kept-places", None, admitted::kept),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let model = MODELS.iter().find(|model| Some(&model.0) == arguments.first().map(String::as_str).as_ref());
    let planted = arguments.get(1).map_or(Ok(()), |fault| sync::plant(fault));
    let (Some(&(_, preemption_bound, run)), Ok(())) = (model, planted) else {
        let names: Vec<_> = MODELS.iter().map(|model| model.0).collect();
        eprintln!(
            "usage: models NAME [FAULT]\nnames: {}\nfaults: {}",
            names.join(" "),
            sync::FAULTS.join(" ")
        );
        return ExitCode::from(2);
    };
    let mut checker = loom::model::Builder::new();
    checker.preemption_bound = preemption_bound;
    checker.max_branches = 100_000;
    checker.log = false;
    checker.check(run);
    ExitCode::SUCCESS
}
