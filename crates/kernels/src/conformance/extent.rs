//! How many of its cases each check tries.

use std::cell::Cell;
use std::sync::LazyLock;

/// The environment variable that makes the suite brief where it is `brief`, for processors that are only emulated: every
/// check, type and kind of case is still there, with fewer shapes, batches and orders each. With any other value the suite is
/// whole, [`briefly`] too.
pub const EXTENT_VARIABLE: &str = "HANZO_ENGINE_CONFORMANCE";

/// What the environment says, if anything.
static BRIEF: LazyLock<Option<bool>> =
    LazyLock::new(|| std::env::var_os(EXTENT_VARIABLE).map(|extent| extent == "brief"));

thread_local! {
    static BRIEF_HERE: Cell<bool> = const { Cell::new(false) };
}

/// Runs checks on this thread as briefly as if [`EXTENT_VARIABLE`] were `brief`, unless it says something else.
pub fn briefly<T>(check: impl FnOnce() -> T) -> T {
    /// Puts back what was, also when a check has failed.
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            BRIEF_HERE.set(self.0);
        }
    }
    let _before = Before(BRIEF_HERE.replace(true));
    check()
}

/// Each how many-th of a list of cases is tried: all, or of a brief suite each `brief`-th.
pub(super) fn every(brief: usize) -> usize {
    if BRIEF.unwrap_or_else(|| BRIEF_HERE.get()) { brief } else { 1 }
}
