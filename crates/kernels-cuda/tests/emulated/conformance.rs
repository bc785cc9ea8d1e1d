//! Every op beside the reference: each check, type and kind of case, with the fewer shapes and batches that the suite has for
//! emulators.

use std::process::Command;

use hanzo_engine_cuda_emulator::{Emulated, Sources};
use hanzo_engine_kernels::conformance::{self, EXTENT_VARIABLE};
use hanzo_engine_kernels_cuda::CudaBackend;

/// The suite reads its extent from the environment, once: so it runs in a process of its own.
fn briefly(test: &str) {
    let program = std::env::current_exe().expect("a program knows its path");
    let extent = std::env::var(EXTENT_VARIABLE).unwrap_or_else(|_| "brief".to_owned());
    let status = Command::new(program)
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env(EXTENT_VARIABLE, extent)
        .status()
        .expect("this program starts");
    assert!(status.success(), "{test} has ended with {status}; see above");
}

#[test]
fn decoder_ops_conform() {
    briefly("conformance::decoder_ops");
}

#[test]
fn encoder_ops_conform() {
    briefly("conformance::encoder_ops");
}

#[test]
#[ignore = "run by decoder_ops_conform, in a process of its own"]
fn decoder_ops() {
    let device = Emulated::new();
    conformance::check_decoder_ops(&|| CudaBackend::new(device.clone()));
}

#[test]
#[ignore = "run by encoder_ops_conform, in a process of its own"]
fn encoder_ops() {
    let device = Emulated::new();
    conformance::check_encoder_ops(&|| CudaBackend::new(device.clone()));
}

/// Whichever warp of a block runs ahead, the numbers are the same.
#[test]
fn the_order_of_warps_does_not_matter() {
    for seed in [1, 77] {
        let device = Emulated::new().scheduled_by(seed);
        let make = || CudaBackend::new(device.clone());
        conformance::check_rms_norm(&make);
        conformance::check_layer_norm(&make);
        conformance::check_gate_output(&make);
        conformance::check_add_shared(&make);
    }
}

/// As where the emulator has no way of its own to switch between fibers.
#[test]
fn fibers_of_the_system_compute_the_same() {
    let device = Emulated::of(&Sources::default().with_flag("-DEMULATOR_UCONTEXT"));
    let make = || CudaBackend::new(device.clone());
    conformance::check_layer_norm(&make);
    conformance::check_unfold(&make);
}
