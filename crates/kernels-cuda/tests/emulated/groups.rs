//! Tests of attention of many rows by warpgroups, on GPUs of compute capability 9.0, against tiles of one or two
//! warps.

use hanzo_engine_cuda_emulator::{EmulatedDevice, Sources};
use hanzo_engine_kernels_cuda::{CudaBackend, Driver, Kernel};
use hanzo_engine_ops::conformance::{self, briefly};
use hanzo_engine_ops::{AnyBackend, KvType};

use crate::again::{in_a_process, is_again};
use crate::attention::{Bench, check_same_runs, plain, same_bits};
use crate::engine::{Weights, continuations, golden_prompts};
use crate::wide::{backend, check_faults, device};

const KERNELS: [Kernel; 2] = [Kernel::AttentionGroupsNarrow, Kernel::AttentionGroups];

#[test]
fn groups_of_warps_have_the_bits_of_tiles() {
    let others = EmulatedDevice::new();
    let tiles = || CudaBackend::new(others.clone());
    // Whichever warp runs ahead.
    for seed in [0, 9] {
        let device = device().scheduled_by(seed);
        check_same_runs([&|| backend(&device).with_few_rows_wide(), &tiles], KERNELS);
    }
}

/// Checks that many rows use warpgroups by default; sequences with few rows in the same batch use tiles.
#[test]
fn many_queries_are_for_groups_of_warps() {
    let setting = plain(96, 1, 64, KvType::F16);
    let parts = [(0, 90, 90), (1, 1, 20)];
    let [mut wide, mut narrow] = [backend(&device()), CudaBackend::new(EmulatedDevice::new())]
        .map(|made| Bench::new(made, setting, &[90, 20]));
    let found = wide.step(&parts, true);
    assert!(wide.has_planned(Kernel::AttentionGroupsNarrow) && wide.has_planned(Kernel::AttentionFew));
    same_bits("many queries", &found, &narrow.step(&parts, true));
    assert!(narrow.has_planned(Kernel::AttentionMany));
    wide.step(&[(0, 64, 90)], true);
    assert!(wide.has_planned(Kernel::AttentionMany), "fewer are for others");
}

#[test]
fn attention_of_groups_of_warps_conforms() {
    let device = device();
    let make = || backend(&device).with_few_rows_wide();
    briefly(|| {
        conformance::check_attention(&|| AnyBackend::new(make()));
        conformance::check_attention_invariance(&|| AnyBackend::new(make()));
        conformance::check_attention_long_contexts(&|| AnyBackend::new(make()));
    });
}

/// Checks that a GPU with other bits, as with a planted fault, does not use the kernels.
#[test]
fn faults_of_groups_of_warps_are_seen() {
    let own = "attention_groups.cu";
    let faults = [
        // Missing waits: for keys and values, for readers of the previous content, for copies, for queries, for
        // products, for barriers.
        (own, "dev::wait_for_phase(shared.there + turn % KV_STAGES, turn / KV_STAGES % 2);", ""),
        (
            own,
            "if (turn >= KV_STAGES) dev::wait_for_phase(shared.read + turn % KV_STAGES, (turn / KV_STAGES - 1) % 2);",
            "",
        ),
        (own, "dev::wait_for_all_but<1>();", "dev::wait_for_all_but<3>();"),
        (own, "dev::wait_for_phase(shared.cut + group, 0);", ""),
        (own, "dev::wait_for_products_but<0>(scores);", ""),
        (own, "dev::wait_for_products_but<0>(c, rest);", "dev::wait_for_products_but<0>(c);"),
        (own, "  __syncthreads();\n", ""),
        // A warpgroup that is not waited for, a missing signal after reading, and a warpgroup that gives itself the
        // turn.
        (own, "dev::begin_barrier(read + stage, 4 * GROUPS);", "dev::begin_barrier(read + stage, 4);"),
        (own, "if (lane == 0) dev::arrive(shared.read + turn % KV_STAGES);", ""),
        (own, "dev::arrive(shared.turns + 1 - group);", "dev::arrive(shared.turns + group);"),
        // Written data not made visible to products, and operands that are not settled.
        (
            own,
            "{\n    dev::seen_by_products();\n    dev::arrive(shared.there",
            "{\n    dev::arrive(shared.there",
        ),
        (own, "}\n  dev::seen_by_products();\n  dev::arrive(shared.cut", "}\n  dev::arrive(shared.cut"),
        (
            own,
            "const unsigned char* keys = wait();\n    dev::products_begin();",
            "const unsigned char* keys = wait();",
        ),
        // Rows at wrong addresses, in the descriptor and in memory.
        (
            "hopper.hpp",
            "uint64_t(8 * MIXED_ROW_BYTES >> 4) << 32",
            "uint64_t(4 * MIXED_ROW_BYTES >> 4) << 32",
        ),
        ("hopper.hpp", "uint64_t(1) << 62", "uint64_t(2) << 62"),
        (own, "16 * (eight ^ row % 8)", "16 * eight"),
        // Chains in another order, and two chains merged.
        (
            own,
            "if (step == 0) {\n        dev::ask_products_of<false>(scores, lower, key);\n      } else {\n        \
             dev::ask_products_of<true>(scores, lower, key);\n      }\n      dev::ask_products_of<true>(scores, upper, key);",
            "if (step == 0) {\n        dev::ask_products_of<false>(scores, upper, key);\n      } else {\n        \
             dev::ask_products_of<true>(scores, upper, key);\n      }\n      dev::ask_products_of<true>(scores, lower, key);",
        ),
        (
            own,
            "dev::ask_products_across<true>(rest, lower[step], value);",
            "dev::ask_products_across<true>(c, lower[step], value);",
        ),
        // The key after a row's own, and a total in another order.
        (own, "key >= sees_first[h] && key < sees_end[h]", "key >= sees_first[h] && key <= sees_end[h]"),
        (
            own,
            "(totals[0][h] + totals[1][h]) + (totals[2][h] + totals[3][h])",
            "totals[0][h] + (totals[1][h] + (totals[2][h] + totals[3][h]))",
        ),
    ];
    check_faults(&faults);
}

/// Checks the demo model on a GPU of compute capability 9.0 with everything on warpgroups, against one without them.
#[test]
fn the_demo_model_says_the_same_by_groups_of_warps() {
    let test = "groups::the_demo_model_says_the_same_by_groups_of_warps";
    if !is_again() {
        return in_a_process(test, &[("HANZO_ENGINE_EMULATED_CAPABILITY", "9.0")]);
    }
    let prompts = &golden_prompts()[..2];
    let said = |sources: Sources, wide: bool| {
        let card = Driver::at(&sources.compile()).open(0).expect("the emulated card opens");
        let backend = CudaBackend::new(card);
        assert_eq!(backend.is_wide(), wide);
        continuations(backend.with_few_rows_wide(), Weights::Q8_0, KvType::F16, prompts)
    };
    let found = said(Sources::default().with_wide(), true);
    assert_eq!(found, said(Sources::default(), false));
}
