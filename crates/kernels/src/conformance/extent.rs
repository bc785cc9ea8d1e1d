//! How many of its cases each check tries.

use std::sync::LazyLock;

/// The environment variable that makes the suite brief where it is `brief`, for processors that are only emulated: every
/// check, type and kind of case is still there, with fewer shapes, batches and orders each.
pub const EXTENT_VARIABLE: &str = "HANZO_ENGINE_CONFORMANCE";

static BRIEF: LazyLock<bool> =
    LazyLock::new(|| std::env::var_os(EXTENT_VARIABLE).is_some_and(|extent| extent == "brief"));

/// Each how many-th of a list of cases is tried: all, or of a brief suite each `brief`-th.
pub(super) fn every(brief: usize) -> usize {
    if *BRIEF { brief } else { 1 }
}
