//! Tests of driver calls, answered by the emulator: refusals, failures, and their messages.

use std::path::PathBuf;

use hanzo_engine_cuda_emulator::Sources;
use hanzo_engine_kernels_cuda::driver::{Cubin, Form, ptx};
use hanzo_engine_kernels_cuda::{Card, ComputeCapability, CudaBackend, Device, DeviceError, Driver, check};
use hanzo_engine_ops::{Backend, BufferRole, DeviceMemory, KernelError};

use crate::again::{in_a_process, is_again};
use crate::replay::{decodes, limits};
use crate::typed::TypedOps;

pub(crate) fn library() -> PathBuf {
    Sources::default().compile()
}

/// The emulated GPU, or a real one by its number if the environment names it (`tests/gpu/run` does).
pub(crate) fn card() -> Card {
    let (driver, ordinal) = driver();
    driver.open(ordinal).expect("the card opens")
}

/// The same GPU without programmatic dependent launch.
pub(crate) fn card_in_turn() -> Card {
    let (driver, ordinal) = driver();
    driver.in_turn().open(ordinal).expect("the card opens")
}

fn driver() -> (Driver, usize) {
    match std::env::var("HANZO_ENGINE_TEST_CARD") {
        Ok(ordinal) => (Driver::default(), ordinal.parse().expect("HANZO_ENGINE_TEST_CARD is a number")),
        Err(_) => (Driver::at(&library()), 0),
    }
}

#[test]
fn the_card_computes_what_is_known() {
    check(&card()).expect("it computes what is known");
}

fn words<T>(result: Result<T, DeviceError>) -> String {
    match result {
        Ok(_) => panic!("it must fail"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_card_says_what_it_is() {
    let cards = Driver::at(&library()).cards().expect("one card");
    let names: Vec<String> = cards.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["cuda:0: Emulated Card, driver 13.0"]);
    assert_eq!(cards[0].capability, ComputeCapability { major: 8, minor: 0 });
    assert_eq!(cards[0].memory_bytes, 8 << 30);
    // For `tests/gpu/try`.
    if let Some(file) = std::env::var_os("HANZO_ENGINE_TEST_DRIVER") {
        std::fs::write(file, library().into_os_string().as_encoded_bytes()).expect("it is written");
    }
    let card = Driver::at(&library()).open(0).expect("the emulated card opens");
    assert_eq!(card.name(), names[0]);
    let before = card.free_bytes().expect("a number");
    let numbers = CudaBackend::new(card.clone()).vector(&[0.0; 1 << 18]).expect("a megabyte");
    assert_eq!(card.free_bytes(), Ok(before - (1 << 20)));
    drop(numbers);
    assert_eq!(card.free_bytes(), Ok(before));
    assert_eq!(card.allocate(9 << 30), Err(DeviceError::OutOfMemory));
    let none = words(Driver::at(&library()).open(1));
    assert_eq!(none, "there is no cuda:1: the last card is cuda:0");
}

/// Checks that a program with machine code for the GPU loads that; if the driver does not accept it, and for other
/// GPUs, PTX is loaded.
#[test]
fn machine_code_comes_before_ptx() {
    let with = |arch: &'static str, head: &str| {
        let image = [head.as_bytes(), &ptx(), &[0]].concat();
        let packed = miniz_oxide::deflate::compress_to_vec(&image, 1).leak();
        let cubins: &'static [Cubin] = vec![(arch, &*packed)].leak();
        let card = Driver::at(&library()).with_machine_code(cubins).open(0).expect("the emulated card opens");
        check(&card).expect("it computes what is known");
        card.form().clone()
    };
    let taken = with("80", "\x7fELF80\n");
    assert_eq!(taken, Form::MachineCode("80"));
    assert_eq!(taken.to_string(), "machine code for sm_80");
    assert_eq!(with("86", "\x7fELF86\n"), Form::Ptx(None));
    let refused = with("80", "\x7fELF90\n");
    assert_eq!(
        refused.to_string(),
        "PTX, compiled by the driver: it does not take the machine code for sm_80: cuModuleLoadDataEx: no kernel image is \
         available for execution on the device (CUDA error 209)"
    );
}

#[test]
fn no_driver_is_said() {
    let error = words(Driver::at("/nowhere/libcuda.so.1".as_ref()).cards());
    assert!(error.starts_with("no CUDA driver: ") && error.contains("/nowhere/libcuda.so.1"), "{error}");
    // A library that is not CUDA's.
    let libc = words(Driver::at("libc.so.6".as_ref()).cards());
    assert!(libc.contains("libc.so.6 is too old a driver") && libc.contains("CUDA 12.0 is needed"), "{libc}");
}

#[test]
fn a_driver_that_fails_every_call_is_said() {
    let test = "driver::a_driver_that_fails_every_call_is_said";
    if !is_again() {
        return in_a_process(test, &[("HANZO_ENGINE_EMULATED_FAILS", "all")]);
    }
    assert_eq!(words(Driver::at(&library()).open(0)), "cuInit: unknown error (CUDA error 999)");
}

#[test]
fn each_call_that_fails_is_named() {
    let test = "driver::each_call_that_fails_is_named";
    let calls = [
        "cuDeviceGetCount",
        "cuDeviceTotalMem_v2",
        "cuDevicePrimaryCtxRetain",
        "cuCtxSetCurrent",
        "cuStreamCreate",
        "cuModuleLoadDataEx",
        "cuModuleGetFunction",
        "cuFuncSetAttribute",
    ];
    if !is_again() {
        return calls.iter().for_each(|call| in_a_process(test, &[("HANZO_ENGINE_EMULATED_FAILS", call)]));
    }
    let call = std::env::var("HANZO_ENGINE_EMULATED_FAILS").expect("set above");
    let error = words(Driver::at(&library()).open(0));
    let named = if call == "cuModuleGetFunction" { "kernel_norm" } else { call.trim_end_matches("_v2") };
    assert!(error.starts_with(named) && error.contains("CUDA error 999"), "{call}: {error}");
}

#[test]
fn no_visible_card_is_said() {
    let test = "driver::no_visible_card_is_said";
    if !is_again() {
        return in_a_process(test, &[("CUDA_VISIBLE_DEVICES", "")]);
    }
    let error = words(Driver::at(&library()).cards());
    assert_eq!(error, "cuInit: no CUDA-capable device is detected (CUDA error 100)");
}

/// Checks that a GPU computes a known step before it is trusted, and is refused if the result differs.
#[test]
fn a_card_that_computes_wrongly_is_found_out() {
    let wrong = |own, instead| Sources::default().with("norm.cuh", own, instead).with_flag("-O0");
    let wrong = wrong("fmaf(from_mean, from_mean, squares)", "fmaf(from_mean, from_mean, squares + 0.01f)");
    let card = Driver::at(&wrong.compile()).open(0).expect("it opens");
    let KernelError::Device { device, reason } = check(&card).expect_err("a wrong norm") else { panic!() };
    assert_eq!(device, "cuda:0: Emulated Card, driver 13.0");
    assert!(reason.starts_with("it computes ") && reason.contains(" is right"), "{reason}");
}

/// Checks that a failed kernel makes all later calls fail, and that every error says so.
#[test]
fn a_failed_launch_ends_the_card() {
    // A thread that does not reach the barrier.
    let own = "if (row >= p.batch.counts[COUNT_ROWS]) return;\n  const size_t at";
    let instead =
        "if (threadIdx.x % 32 == 5 || row >= p.batch.counts[COUNT_ROWS]) return;\n  const size_t at";
    let sources = Sources::default().with("norm.cuh", own, instead).with_flag("-O0");
    let driver = Driver::at(&sources.compile());
    let card = driver.open(0).expect("it works until the kernel runs");
    let mut backend = CudaBackend::new(card.clone());
    backend.reserve(&limits()).expect("memory");
    let weight = backend.vector(&[1.0; 64]).expect("memory");
    let x = backend.buffer(BufferRole::Operand, 8, 64).expect("memory");
    let mut out = backend.buffer(BufferRole::Operand, 8, 64).expect("memory");
    backend.begin(&decodes(&[1, 2], 0)).expect("a step");
    backend.rms_norm(&x, &weight, 1e-6, &mut out);
    let error = backend.end().expect_err("the kernel fails");
    let KernelError::Device { device, reason } = error else { panic!("{error}") };
    assert_eq!(device, "cuda:0: Emulated Card, driver 13.0");
    assert!(
        reason.contains("CUDA error 719") && reason.contains("this process cannot use the card any more"),
        "{reason}"
    );
    let again = words(card.allocate(16));
    assert!(
        again.starts_with("it failed before, with cuStreamSynchronize: unspecified launch failure"),
        "{again}"
    );
    assert!(backend.vector(&[1.0]).is_err());
}
