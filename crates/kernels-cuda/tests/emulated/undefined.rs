//! Test for undefined behaviour in the kernels with the compiler's sanitizer: indices out of bounds, shifts that are
//! too large, signed overflow, misaligned loads. It ends the process at once, so it runs in a separate one.

use hanzo_engine_cuda_emulator::{EmulatedDevice, Sources};
use hanzo_engine_kernels_cuda::CudaBackend;
use hanzo_engine_ops::AnyBackend;
use hanzo_engine_ops::conformance::{self, briefly};

use crate::again::{ended, in_a_process, is_again};
use crate::attention::{check_runs, check_shared_rows};

/// Sources in which undefined behaviour becomes an instruction that no processor has.
fn watched(sources: Sources, kernels: &[&str]) -> EmulatedDevice {
    let flags = ["-fsanitize=undefined", "-fsanitize-undefined-trap-on-error", "-O1"];
    EmulatedDevice::of(&flags.into_iter().fold(sources, Sources::with_flag).only(kernels))
}

#[test]
fn attention_norms_and_rows_do_nothing_undefined() {
    if !is_again() {
        return in_a_process("undefined::attention_norms_and_rows_do_nothing_undefined", &[]);
    }
    let kernels = ["attention.cu", "attention_tiles.cu", "heads.cu", "norm.cu", "rows.cu"];
    let device = watched(Sources::default(), &kernels);
    let make = || CudaBackend::new(device.clone());
    briefly(|| {
        check_shared_rows(&make);
        check_runs(&make);
        conformance::check_latent_attention(&|| AnyBackend::new(make()));
        conformance::check_rms_norm(&|| AnyBackend::new(make()));
        conformance::check_layer_norm(&|| AnyBackend::new(make()));
        conformance::check_row_op(&|| AnyBackend::new(make()));
    });
}

#[test]
fn draws_do_nothing_undefined() {
    if !is_again() {
        return in_a_process("undefined::draws_do_nothing_undefined", &[]);
    }
    let device = watched(Sources::default(), &["matmul.cu", "draw.cu"]);
    briefly(|| conformance::check_sample(&|| AnyBackend::new(CudaBackend::new(device.clone()))));
}

/// An address that is not a multiple of the size of the load.
#[test]
fn what_is_undefined_is_seen() {
    let test = "undefined::what_is_undefined_is_seen";
    if !is_again() {
        let (success, said) = ended(test, &[]);
        assert!(!success && !said.contains("test result"), "it ends where it stands, not:\n{said}");
        return;
    }
    let own = "p.x_stride + part * p.width;\n  const float* x";
    let instead = "p.x_stride + (part << (32 + threadIdx.y)) * p.width;\n  const float* x";
    let device = watched(Sources::default().with("norm.cuh", own, instead), &["norm.cu"]);
    conformance::check_rms_norm(&|| AnyBackend::new(CudaBackend::new(device.clone())));
}
