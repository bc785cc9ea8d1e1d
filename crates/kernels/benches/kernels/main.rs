//! Speed of each kernel of the CPU backend, on the fastest tier or the one `HANZO_ENGINE_CPU_TIER` names, on all cores
//! this process may use:
//!
//! `cargo bench -p hanzo-engine-kernels -- matmul/Q4_K`
//!
//! A group is named by what is computed, on what, and for how many rows: `matmul/Q4_K/1`. Throughput is in bytes read
//! where memory binds, and in operations (elements), a multiplication and an addition being two, where arithmetic does.
//! What is only read is larger than the caches and used in turns.

mod attention;
mod bed;
mod matmul;
mod moe;
mod rows;
mod sample;
mod self_attention;

use std::time::Duration;

use criterion::Criterion;

/// Few samples of little time each: every kernel together takes minutes.
fn main() {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    matmul::decode_and_prefill(&mut criterion);
    matmul::activations(&mut criterion);
    moe::decode_and_prefill(&mut criterion);
    attention::decode_and_prefill(&mut criterion);
    self_attention::encoders(&mut criterion);
    matmul::activated(&mut criterion);
    rows::norms(&mut criterion);
    rows::layer_norms(&mut criterion);
    rows::rope(&mut criterion);
    sample::draws(&mut criterion);
    criterion.final_summary();
}
