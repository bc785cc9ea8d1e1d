//! Tests of products of many rows by warpgroups, on GPUs of compute capability 9.0: used if they give the bits of the
//! other kernels.

use hanzo_engine_cuda_emulator::{EmulatedDevice, Fault, Sources};
use hanzo_engine_kernels_cuda::{CudaBackend, Driver, check};
use hanzo_engine_ops::conformance::{self, briefly};
use hanzo_engine_ops::{AnyBackend, DType, DeviceMemory};

use crate::again::{in_a_process, is_again};
use crate::few_bits::check_types;
use crate::fused::check_fused_layers;
use crate::products::check_products;

/// Source files of the kernels that are compared, and of those that they need.
const ASKED: [&str; 6] =
    ["heads.cu", "attention_tiles.cu", "attention_groups.cu", "matmul.cu", "product.cu", "product_wide.cu"];

pub(crate) fn device() -> EmulatedDevice {
    EmulatedDevice::of(&Sources::default().with_wide())
}

/// A backend that was found to give the same bits, and uses warpgroups.
pub(crate) fn backend(device: &EmulatedDevice) -> CudaBackend<EmulatedDevice> {
    let backend = CudaBackend::new(device.clone());
    assert!(backend.is_wide(), "groups of warps do not give the bits of warps");
    backend
}

#[test]
fn groups_of_warps_give_the_bits_of_warps() {
    // Whichever warp runs ahead.
    for seed in [0, 1, 77] {
        let device = device().scheduled_by(seed);
        check_products(&|| backend(&device));
    }
    let device = device();
    let make = || backend(&device);
    // Parts of all types, each for another warpgroup.
    let in_halves = |dtype: &DType| dtype != &DType::F32 && dtype != &DType::BF16;
    let types: Vec<DType> = DType::ALL
        .iter()
        .copied()
        .filter(|dtype| make().facts().supports(*dtype) && in_halves(dtype))
        .collect();
    check_types(&make, &types);
}

/// Checks that kernels write pieces in the form that these read.
#[test]
fn groups_of_warps_read_what_others_have_cut() {
    let device = device();
    check_fused_layers(&|| backend(&device).with_few_rows_wide());
}

#[test]
fn products_of_groups_of_warps_conform() {
    let device = device();
    let make = || backend(&device).with_few_rows_wide();
    briefly(|| {
        conformance::check_matmul(&|| AnyBackend::new(make()));
        conformance::check_mixed_matrix(&|| AnyBackend::new(make()));
        conformance::check_matmul_invariance(&|| AnyBackend::new(make()));
        conformance::check_matmul_activated(&|| AnyBackend::new(make()));
        conformance::check_logits(&|| AnyBackend::new(make()));
        conformance::check_gated_mlp(&|| AnyBackend::new(make()));
        conformance::check_low_rank(&|| AnyBackend::new(make()));
        conformance::check_adapted_logits(&|| AnyBackend::new(make()));
    });
}

/// Sources of the warpgroup kernels for floats alone, which compile sooner.
fn floats() -> Sources {
    let blocks = "WIDE_KERNEL(product_wide_blocks, ProductParams, WIDE_THREADS, 1) {\n  SHARED(unsigned char, room);\n  \
                  multiply_wide_rows<BLOCKS>(p, room);\n}\n";
    Sources::default().with_wide().only(&ASKED).with("product_wide.cu", blocks, "")
}

/// Checks that a device with unchanged warpgroup kernels uses them, and that one with any of these faults (file,
/// original words, replacement) does not.
pub(crate) fn check_faults(faults: &[Fault]) {
    let all = EmulatedDevice::of(&floats().with_planted(faults));
    assert!(CudaBackend::new(all.clone()).is_wide());
    for (number, (file, own, instead)) in (1..).zip(faults) {
        let device = all.clone().planted(number);
        // Warps that run ahead of the first.
        let device = if own.contains("sync") { device.scheduled_by(3) } else { device };
        assert!(!CudaBackend::new(device).is_wide(), "{file} with {instead:?} for {own:?} was not seen");
    }
}

/// Checks that a GPU whose warpgroups compute something else does not use them, and neither does one with a fault in
/// the kernel.
#[test]
fn groups_of_warps_that_differ_are_not_used() {
    let faults = [
        // Tensor cores that add in another way.
        ("hopper.hpp", "sums += value * a;", "sums += 1.0001f * value * a;"),
        // Missing waits: for products, for their operands, for readers of the previous content, for barriers.
        ("product_wide.cu", "dev::wait_for_products_but<0>(c);", ""),
        ("product_wide.cu", "dev::wait_for_phase(there + group % STAGES, group / STAGES % 2);", ""),
        ("product_wide.cu", "if (turn > 0) dev::wait_for_phase(read + stage, (turn - 1) % 2);", ""),
        ("product_wide.cu", "  __syncthreads();\n", ""),
        // Squares at wrong addresses, a descriptor with its fields in the wrong place, and rows mixed differently.
        (
            "product_wide.cu",
            "dev::squares(piece + PIECE_BYTES / 2, PIECE_BYTES / 4, tile_bytes)",
            "dev::squares(piece + PIECE_BYTES / 2, PIECE_BYTES / 8, tile_bytes)",
        ),
        (
            "hopper.hpp",
            "static_cast<uint64_t>(columns_apart >> 4) << 16",
            "static_cast<uint64_t>(columns_apart >> 4) << 32",
        ),
        (
            "hopper.hpp",
            "static_cast<uint64_t>(rows_apart >> 4) << 32",
            "static_cast<uint64_t>(rows_apart >> 4) << 32 | uint64_t(1) << 62",
        ),
        // Fewer bytes expected than arrive, and products started before their operands are settled.
        (
            "product_wide.cu",
            "dev::arrive_expecting(there + stage, tiles * TILE_BYTES);",
            "dev::arrive_expecting(there + stage, TILE_BYTES);",
        ),
        (
            "product_wide.cu",
            "} else {\n        dev::products_begin();\n        ask_piece<BF16S, false>",
            "} else {\n        ask_piece<BF16S, false>",
        ),
    ];
    check_faults(&faults);
}

/// Checks that a driver gives a GPU of compute capability 9.0 both modules; a GPU without these kernels works without
/// them.
#[test]
fn a_card_is_given_both_modules() {
    let test = "wide::a_card_is_given_both_modules";
    if !is_again() {
        return in_a_process(test, &[("HANZO_ENGINE_EMULATED_CAPABILITY", "9.0")]);
    }
    let card =
        Driver::at(&Sources::default().with_wide().compile()).open(0).expect("the emulated card opens");
    let early = "PTX, compiled by the driver; each begins while those before it end";
    assert_eq!(card.kernels(), format!("{early}; those of groups of warps not tried yet"));
    check(&card).expect("it computes what is known");
    assert_eq!(card.kernels(), format!("{early}; those of groups of warps in use"));
    check_products(&|| CudaBackend::new(card.clone()));
    let without = Driver::at(&Sources::default().compile()).open(0).expect("the emulated card opens");
    assert!(!CudaBackend::new(without.clone()).is_wide());
    let refused = format!("{early}; those of groups of warps not loaded: kernel_product_wide: ");
    assert!(without.kernels().starts_with(&refused), "{}", without.kernels());
}
