//! The conformance suite on every tier this processor has.

use std::sync::Arc;

use super::{CpuBackend, ThreadPool, Tier};
use crate::conformance;

#[test]
fn every_tier_conforms() {
    let pool = Arc::new(ThreadPool::new(3));
    for tier in Tier::available() {
        println!("tier {tier}");
        conformance::check_all(|| CpuBackend::new(Arc::clone(&pool), tier));
    }
}
