//! Tests of programmatic dependent launch, on GPUs of compute capability 9.0 and above: a kernel that begins early
//! waits, and reads before that only what no kernel writes (`paper.rs` counts it).

use hanzo_engine_cuda_emulator::{EmulatedDevice, Sources};
use hanzo_engine_kernels_cuda::{Card, CudaBackend, Driver, Kernel, check};
use hanzo_engine_ops::KvType;

use crate::again::{in_a_process, is_again};
use crate::driver::{card, card_in_turn};
use crate::fused::bits_of_layers;
use crate::paper::{KERNELS, WHOLE, Weights, step};
use crate::products::{check_products, of_floats};

/// Repetitions of tests that may fail by chance.
const TIMES: usize = 3;

/// Whether a kernel begins early: products whose weights depend on no other kernel.
pub(crate) fn begins_early(kernel: Kernel) -> bool {
    use Kernel::*;
    matches!(
        kernel,
        ProductFew | ProductSome | ProductBatch | ProductFewBlocks | ProductSomeBlocks | ProductBatchBlocks
    )
}

/// Products without the wait before they read rows.
fn without_wait() -> Sources {
    let own = "  dev::wait_for_earlier();\n#pragma unroll 1\n  for (uint32_t tile = first;";
    Sources::default().with("multiply.cuh", own, "#pragma unroll 1\n  for (uint32_t tile = first;")
}

#[test]
fn rows_that_are_read_before_others_are_waited_for() {
    // Pieces are written by another kernel.
    let late = without_wait();
    let counting = EmulatedDevice::counting(of_floats(late.only(&KERNELS)));
    step(counting.clone(), WHOLE, Weights::Bf16, KvType::F16, (1, 20));
    let found = counting.counted();
    assert!(found.iter().any(|launch| launch.too_early > 0), "{found:?}");
}

#[test]
fn a_kernel_that_begins_early_and_never_waits() {
    let last = "  dev::wait_for_earlier();\n}";
    let sources = without_wait().with("product.cu", last, "}").only(&["matmul.cu", "product.cu"]);
    let device = EmulatedDevice::of(&sources.with_flag("-O0"));
    let failure = std::panic::catch_unwind(|| check_products(&|| CudaBackend::new(device.clone())));
    let failure = failure.expect_err("nobody waits").downcast::<String>().expect("words");
    assert!(failure.contains("a thread has begun early and never waited"), "{failure}");
}

/// Checks that a driver of a capable GPU is told of early starts in every launch, eager and recorded; other GPUs get
/// kernels without these instructions.
#[test]
fn a_card_that_can_begins_kernels_early() {
    let test = "early::a_card_that_can_begins_kernels_early";
    if !is_again() {
        for capability in ["8.9", "9.0", "12.0"] {
            let file = std::env::temp_dir().join(format!("launches.{}.{capability}", std::process::id()));
            let path = file.to_str().expect("a path in Unicode");
            let variables =
                [("HANZO_ENGINE_EMULATED_CAPABILITY", capability), ("HANZO_ENGINE_EMULATED_COUNTS", path)];
            in_a_process(test, &variables);
            let counts = std::fs::read_to_string(&file).expect("the driver has written it");
            std::fs::remove_file(&file).expect("it was there");
            let count = |of: &str| {
                let number = counts.lines().find_map(|line| line.strip_prefix(of)?.strip_prefix(' '));
                number.map_or(0, |number| number.parse::<u64>().expect("a number"))
            };
            // Of two GPUs that do the same, one has early starts disabled.
            let (all, early) = (count("cuLaunchKernelEx"), count("launches that may begin early"));
            assert!(
                all > 0 && early == if capability == "8.9" { 0 } else { all / 2 },
                "{capability}: {counts}"
            );
        }
        return;
    }
    let can = std::env::var("HANZO_ENGINE_EMULATED_CAPABILITY").expect("set above") != "8.9";
    let driver = Driver::at(&Sources::default().with_wide().compile());
    let cards =
        [driver.clone(), driver.in_turn()].map(|driver| driver.open(0).expect("the emulated card opens"));
    for (card, early) in cards.iter().zip([can, false]) {
        assert_eq!(
            card.kernels().contains("each begins while those before it end"),
            early,
            "{}",
            card.kernels()
        );
        check(card).expect("it computes what is known");
    }
}

/// Checks on a real GPU that kernels wait for what they read; the emulated one runs kernels one after the other.
#[test]
fn kernels_that_begin_early_leave_the_bits_of_kernels_in_turn() {
    let bits = |card: &Card| bits_of_layers(CudaBackend::new(card.clone()));
    let (own, in_turn) = (card(), bits(&card_in_turn()));
    for _ in 0..TIMES {
        assert!(bits(&own) == in_turn, "a kernel has not waited for those before it");
    }
}
