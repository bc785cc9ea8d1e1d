//! The models of `tests/models`: each holds, and each finds the faults that are planted for it.

use std::process::{Command, Output};

fn check(name: &str, fault: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_models"));
    command.arg(name).args(fault).env_remove("LOOM_MAX_PREEMPTIONS").output().expect("the checker runs")
}

/// What a model says of a fault, among other words.
fn check_all(name: &str, faults: &[(&str, &str)]) {
    let sound = check(name, None);
    assert!(sound.status.success(), "{name}: {}", String::from_utf8_lossy(&sound.stderr));
    for (fault, says) in faults {
        let found = check(name, Some(fault));
        let said = String::from_utf8_lossy(&found.stderr);
        assert!(!found.status.success(), "{name} does not find {fault}");
        assert!(said.contains(says), "{name} finds {fault} by something else than {says:?}: {said}");
    }
}

const SLEEPS: &str = "deadlock";
const RACES: &str = "Causality violation";
const LOST: &str = "a place or a count is lost";

#[test]
fn the_pool_runs_every_item_and_sleeps_for_nobody() {
    check_all("pool-runs", &[("lost-wake-up", SLEEPS), ("weak-fence", SLEEPS), ("relaxed", RACES)]);
    check_all("pool-steals", &[("weak-fence", SLEEPS)]);
    check_all("pool-of-three", &[("lost-wake-up", SLEEPS)]);
}

#[test]
fn a_reader_that_makes_room_wakes_the_worker() {
    check_all("events-are-read", &[("lost-wake-up", SLEEPS), ("weak-fence", SLEEPS), ("relaxed", SLEEPS)]);
    check_all("reader-leaves", &[("lost-wake-up", SLEEPS)]);
}

#[test]
fn places_are_neither_lost_nor_taken_twice() {
    check_all("places", &[("torn-count", LOST)]);
    check_all("kept-places", &[("torn-count", LOST)]);
}
