//! Every op beside the reference: each check, type and kind of case, with the fewer shapes and batches that the suite has for
//! emulators.

use hanzo_engine_cuda_emulator::{Emulated, Sources};
use hanzo_engine_kernels::AnyBackend;
use hanzo_engine_kernels::conformance::{self, briefly};
use hanzo_engine_kernels_cuda::CudaBackend;

use crate::again::{in_a_process, is_again};
use crate::driver::card;

/// Runs checks in a process of their own, briefly unless the environment says how far they go: what a card says of its memory is
/// another test's.
fn alone(test: &str, check: impl FnOnce()) {
    if is_again() { briefly(check) } else { in_a_process(test, &[]) }
}

#[test]
fn decoder_ops_conform() {
    alone("conformance::decoder_ops_conform", || {
        let card = card();
        conformance::check_decoder_ops(&|| AnyBackend::new(CudaBackend::new(card.clone())));
    });
}

#[test]
fn encoder_ops_conform() {
    alone("conformance::encoder_ops_conform", || {
        let card = card();
        conformance::check_encoder_ops(&|| AnyBackend::new(CudaBackend::new(card.clone())));
    });
}

/// Whichever warp of a block runs ahead, the numbers are the same.
#[test]
fn the_order_of_warps_does_not_matter() {
    for seed in [1, 77] {
        let device = Emulated::new().scheduled_by(seed);
        let make = || CudaBackend::new(device.clone());
        conformance::check_rms_norm(&|| AnyBackend::new(make()));
        conformance::check_layer_norm(&|| AnyBackend::new(make()));
        conformance::check_gate_output(&|| AnyBackend::new(make()));
        conformance::check_add_shared(&|| AnyBackend::new(make()));
    }
}

/// As where the emulator has no way of its own to switch between fibers.
#[test]
fn fibers_of_the_system_compute_the_same() {
    let device =
        Emulated::of(&Sources::default().with_flag("-DEMULATOR_UCONTEXT").only(&["norm.cu", "rows.cu"]));
    let make = || CudaBackend::new(device.clone());
    conformance::check_layer_norm(&|| AnyBackend::new(make()));
    conformance::check_unfold(&|| AnyBackend::new(make()));
}
