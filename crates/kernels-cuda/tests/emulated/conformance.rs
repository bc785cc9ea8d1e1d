//! Conformance suite on the emulated device: each check, type and kind of case, with the fewer shapes and batches of
//! the brief suite.

use hanzo_engine_cuda_emulator::{EmulatedDevice, Sources};
use hanzo_engine_kernels_cuda::CudaBackend;
use hanzo_engine_ops::AnyBackend;
use hanzo_engine_ops::conformance::{self, briefly};

use crate::again::{in_a_process, is_again};
use crate::driver::card;

/// Runs checks in a separate process, because the device's memory counts belong to another test. They are brief unless
/// the environment sets the extent.
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

/// Checks that the numbers are the same whichever warp of a block runs ahead.
#[test]
fn the_order_of_warps_does_not_matter() {
    for seed in [1, 77] {
        let device = EmulatedDevice::new().scheduled_by(seed);
        let make = || CudaBackend::new(device.clone());
        conformance::check_rms_norm(&|| AnyBackend::new(make()));
        conformance::check_layer_norm(&|| AnyBackend::new(make()));
        conformance::check_gate_output(&|| AnyBackend::new(make()));
        conformance::check_add_shared(&|| AnyBackend::new(make()));
    }
}

/// Checks fibers as on systems for which the emulator has no own way of switching between them.
#[test]
fn fibers_of_the_system_compute_the_same() {
    let device = EmulatedDevice::of(
        &Sources::default().with_flag("-DEMULATOR_UCONTEXT").only(&["norm.cu", "rows.cu"]),
    );
    let make = || CudaBackend::new(device.clone());
    conformance::check_layer_norm(&|| AnyBackend::new(make()));
    conformance::check_unfold(&|| AnyBackend::new(make()));
}
