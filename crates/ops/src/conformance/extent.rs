//! Number of cases that each check tries.

use std::cell::Cell;
use std::sync::LazyLock;

/// Environment variable that makes the suite brief if it is `brief`, for emulated processors. Every check, type and
/// kind of case is still there, with fewer shapes, batches and orders each. With any other value the suite is
/// complete, even within [`briefly`].
pub const EXTENT_VARIABLE: &str = "HANZO_ENGINE_CONFORMANCE";

/// Whether the environment asks for a brief suite, if it says anything.
static BRIEF: LazyLock<Option<bool>> =
    LazyLock::new(|| std::env::var_os(EXTENT_VARIABLE).map(|extent| extent == "brief"));

thread_local! {
    static BRIEF_HERE: Cell<bool> = const { Cell::new(false) };
}

/// Runs checks on this thread as if [`EXTENT_VARIABLE`] were `brief`, unless it is set otherwise.
pub fn briefly<T>(check: impl FnOnce() -> T) -> T {
    /// Restores the previous value, even if a check has failed.
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            BRIEF_HERE.set(self.0);
        }
    }
    let _before = Before(BRIEF_HERE.replace(true));
    check()
}

/// Step through a list of cases: 1, or `brief` in a brief suite.
pub(super) fn every(brief: usize) -> usize {
    if BRIEF.unwrap_or_else(|| BRIEF_HERE.get()) { brief } else { 1 }
}
