//! Mutation tests: each fault planted in the kernels must be found by a check of the suite, because a suite that
//! cannot fail proves nothing.
//!
//! Faults that are found with the same kernels are compiled together, and each launch selects one, so that the
//! compiler reads the kernels once for all of them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use hanzo_engine_cuda_emulator::{EmulatedDevice, Fault, Sources};
use hanzo_engine_kernels_cuda::CudaBackend;
use hanzo_engine_ops::conformance::{self, briefly};
use hanzo_engine_ops::{AnyBackend, DType};

use crate::attention::{check_runs, check_shared_rows, check_shared_rows_by_turns};
use crate::experts::check_some_experts;
use crate::few_bits::check_types;
use crate::fused::{check_fused_layers, check_wide_layers};
use crate::products::{check_products, of_floats};

type Make<'a> = &'a dyn Fn() -> CudaBackend<EmulatedDevice>;

/// Faults that are compiled together, and the kernels for them.
struct Planted {
    sources: fn() -> Sources,
    kernels: &'static [&'static str],
    /// Optimisation flag: compiling for a single run takes less time than optimising, except for long runs.
    flag: &'static str,
    faults: &'static [Fault],
}

impl Planted {
    /// Checks that a check fails with these words if this fault is present.
    fn must_fail(&self, fault: Fault, words: &str, check: impl Fn(Make<'_>)) {
        let at = self.faults.iter().position(|other| *other == fault).expect("it is one of them");
        let sources = (self.sources)().with_planted(self.faults).only(self.kernels).with_flag(self.flag);
        is_seen(EmulatedDevice::of(&sources).planted(at as u32 + 1), fault, words, check);
    }
}

/// Checks that a check fails with these words on a device with a fault.
fn is_seen(device: EmulatedDevice, (file, own, instead): Fault, words: &str, check: impl Fn(Make<'_>)) {
    let make: Make<'_> = &|| CudaBackend::new(device.clone());
    match catch_unwind(AssertUnwindSafe(|| briefly(|| check(make)))) {
        Ok(()) => panic!("{file} with {instead:?} for {own:?} was not seen"),
        Err(panic) => {
            let message = panic.downcast_ref::<String>().cloned().unwrap_or_default();
            assert!(
                message.contains(words),
                "{file} with {instead:?} was seen for another reason: {message}"
            );
        }
    }
}

/// Defines a test for each fault: file, original words and replacement, and the message and check that find it.
macro_rules! faults {
    ($all:ident: $sources:expr, $kernels:expr, $flag:literal;
     $($(#[$about:meta])* $test:ident: $file:literal, $own:literal, $instead:literal => $words:literal, $check:expr;)*) => {
        static $all: Planted =
            Planted { sources: $sources, kernels: &$kernels, flag: $flag, faults: &[$(($file, $own, $instead)),*] };
        $(
            $(#[$about])*
            #[test]
            fn $test() {
                $all.must_fail(($file, $own, $instead), $words, $check);
            }
        )*
    };
}

faults! { NORMS: Sources::default, ["norm.cu"], "-O0";
    /// A warp sums what the others have not written yet.
    a_missing_barrier_of_a_block: "prelude.cuh",
        "room[threadIdx.x / 32] = value;\n  __syncthreads();",
        "room[threadIdx.x / 32] = value;"
        => "rms_norm", |make| conformance::check_rms_norm(&|| AnyBackend::new(make()));

    /// The second sum of a layer norm is written while another warp still reads the first.
    a_missing_barrier_before_memory_is_used_again: "prelude.cuh",
        "value = dev::warp_sum(value);\n  __syncthreads();",
        "value = dev::warp_sum(value);"
        => "layer_norm", |make| conformance::check_layer_norm(&|| AnyBackend::new(make()));

    a_barrier_that_not_all_reach: "norm.cuh",
        "if (row >= p.batch.counts[COUNT_ROWS]) return;\n  const size_t at",
        "if (threadIdx.x % 32 == 5 || row >= p.batch.counts[COUNT_ROWS]) return;\n  const size_t at"
        => "wait for each other", |make| conformance::check_rms_norm(&|| AnyBackend::new(make()));
}

faults! { ATTENTION: Sources::default, ["attention.cu", "attention_tiles.cu", "heads.cu"], "-O1";
    a_missing_barrier_of_a_warp: "attention.cu",
        "weights[32 * h + lane] = weight;\n    }\n    __syncwarp();",
        "weights[32 * h + lane] = weight;\n    }"
        => "latent attention", |make| conformance::check_latent_attention(&|| AnyBackend::new(make()));

    a_missing_barrier_before_warps_are_brought_together: "attention.cu",
        "weights, slots, start, last, sums);\n    __syncthreads();",
        "weights, slots, start, last, sums);"
        => "attention of", check_shared_rows;

    /// A warp's sums are overwritten while another still merges the last ones: only if a block has several spans.
    a_missing_barrier_before_the_next_span: "attention.cu",
        "    __syncthreads();\n  }\n  if (p.parts) return;",
        "  }\n  if (p.parts) return;"
        => "attention of", check_shared_rows;

    /// The right numbers up to rounding, but not the bits of a single block.
    spans_that_are_folded_backwards: "attention.cu",
        "parts + span * (p.value_dim + 2)",
        "parts + (spans - 1 - span) * (p.value_dim + 2)"
        => "has not the bits of", check_shared_rows;

    rows_of_another_turn: "attention.cu",
        "p.out + (size_t)row * p.out_stride + head * p.value_dim",
        "p.out + (size_t)blockIdx.x * p.out_stride + head * p.value_dim"
        => "rows that take turns", |make| check_shared_rows_by_turns(&|| make().without_fusion());

    /// Sums in the same order for each row, in chunks or whole, but without the first key.
    keys_cut_one_too_late: "attention.cu",
        "SPAN * span + 32 * warp",
        "SPAN * span + 32 * warp + 1"
        => "latent attention", |make| conformance::check_latent_attention(&|| AnyBackend::new(make()));

    spans_of_a_tile_that_are_folded_backwards: "attention_tiles.cu",
        "parts + span * (dim + 2)",
        "parts + (spans - 1 - span) * (dim + 2)"
        => "has not the bits of", check_shared_rows;

    a_missing_barrier_before_maxima_are_compared: "attention_tiles.cu",
        "+ lane / 4] = largest[h];\n    }\n    __syncthreads();",
        "+ lane / 4] = largest[h];\n    }"
        => "attention of", check_shared_rows;

    keys_and_values_that_are_not_waited_for: "attention_tiles.cu",
        "dev::wait_for_all_but<STAGES - 2>();",
        "dev::wait_for_all_but<STAGES - 1>();"
        => "attention of", check_shared_rows;

    /// Weights of 11 bits each.
    weights_of_one_half: "attention_tiles.cu",
        "dev::multiply_16(weight[step][1], value[0][2 * step], value[0][2 * step + 1], c[eight][1]);",
        ""
        => "attention of", check_shared_rows;

    /// Memory of the cache that was never written, times a weight of 0: after the end of the first sequence, whose
    /// last block is the first.
    values_of_keys_that_nobody_sees: "attention_tiles.cu",
        "dev::store16(to, zeros);",
        "dev::bring16(to, plane + (size_t)15 * p.slot_bytes + 2 * column);"
        => "attention of", check_runs;

    tiles_of_another_sequence: "queries.cuh",
        "p.batch.spans[4 * middle] / each + middle <= index",
        "p.batch.spans[4 * middle] / each + middle < index"
        => "attention of", check_runs;
}

faults! { PRODUCTS: Sources::default, ["matmul.cu", "product.cu"], "-O0";
    an_index_off_by_one_in_the_tail: "matmul.cu",
        "return (p.weights.cols + 31) / 32 * segment / WARPS;",
        "return p.weights.cols / 32 * segment / WARPS;"
        => "matmul of F32", |make| conformance::check_matmul(&|| AnyBackend::new(make()));

    an_index_of_a_fragment: "matmul.cu",
        "output_first + o * TILE_OUTPUTS + 2 * (lane % 4) + i % 2",
        "output_first + o * TILE_OUTPUTS + 2 * (lane % 4) + i / 2"
        => "matmul of F32", |make| conformance::check_matmul(&|| AnyBackend::new(make()));

    a_missing_barrier_before_segments_are_added_up: "matmul.cu",
        "numbers[i];\n  __syncthreads();",
        "numbers[i];"
        => "matmul of F32", |make| conformance::check_matmul(&|| AnyBackend::new(make()));

    a_missing_barrier_before_segments_of_pieces_are_added_up: "multiply.cuh",
        "= sums[t][i];\n    __syncthreads();",
        "= sums[t][i];"
        => "matmul of F16", |make| conformance::check_matmul(&|| AnyBackend::new(make()));

    a_copy_that_is_not_waited_for: "multiply.cuh",
        "dev::wait_for_all_but<MANY_STAGES - 2>();",
        "dev::wait_for_all_but<MANY_STAGES - 1>();"
        => "of BF16: NaN", check_products;

    copies_of_other_warps_that_are_not_waited_for: "multiply.cuh",
        "dev::wait_for_all_but<MANY_STAGES - 2>();\n      __syncthreads();",
        "dev::wait_for_all_but<MANY_STAGES - 2>();"
        => "of BF16: NaN", check_products;

    a_sign_that_is_not_stored: "few_bits.cuh",
        "minus = even_signs(codes >> 9);",
        "minus = codes >> 9;"
        => "of [IQ2_XS]", |make| check_types(make, &[DType::IQ2_XS]);

    a_float_of_seven_bits: "product.cuh",
        "codes >> 1 & 0x3f803f80u",
        "codes >> 1 & 0x3f003f00u"
        => "of [FP8]", |make| check_types(make, &[DType::FP8]);
}

/// A fault that is neither an expression nor a statement, and so is in all launches.
#[test]
fn a_piece_that_is_not_what_is_left() {
    let own = "{a - dev::from_half(first[0]), b - dev::from_half(first[1])};";
    let fault @ (file, own, instead) = ("pieces.cuh", own, "{0.0f * a, 0.0f * b};");
    let sources = Sources::default().with(file, own, instead);
    let device = EmulatedDevice::of(&sources.only(PRODUCTS.kernels).with_flag(PRODUCTS.flag));
    is_seen(device, fault, "matmul of F16", |make| conformance::check_matmul(&|| AnyBackend::new(make())));
}

faults! { LAYERS: || of_floats(Sources::default()), ["norm.cu", "matmul.cu", "product.cu", "heads.cu", "attention.cu", "attention_tiles.cu"], "-O1";
    a_missing_barrier_before_a_normed_row_is_cut: "norm.cuh",
        "whole[p.width + threadIdx.x] = 0.0f;\n  __syncthreads();",
        "whole[p.width + threadIdx.x] = 0.0f;"
        => "layers of", check_fused_layers;

    a_norm_before_the_last_block_has_written: "product.cu",
        "dev::is_last_of(then.arrived, gridDim.x)",
        "dev::is_last_of(then.arrived, gridDim.x - 1)"
        => "layers of", check_wide_layers;

    a_head_before_its_last_tile: "product.cu",
        "tiles = then.of.heads.head_dim / PRODUCT_OUTPUTS;",
        "tiles = then.of.heads.head_dim / PRODUCT_OUTPUTS - 1;"
        => "layers of", check_wide_layers;

    halves_before_their_last_tile: "product.cu",
        "tiles = 2 * (left < BLOCK_COLS ? left : BLOCK_COLS) / PRODUCT_OUTPUTS;",
        "tiles = 2 * (left < BLOCK_COLS ? left : BLOCK_COLS) / PRODUCT_OUTPUTS - 1;"
        => "layers of", check_wide_layers;
}

faults! { EXPERTS: Sources::default, ["matmul.cu", "experts.cu"], "-O0";
    a_missing_barrier_before_pairs_are_counted_together: "experts.cu",
        "own[expert]++; });\n  __syncthreads();",
        "own[expert]++; });"
        => "experts of", check_some_experts;

    tiles_of_two_experts: "experts.cu",
        "tile += (counts[other] + PRODUCT_ROWS - 1) / PRODUCT_ROWS;",
        "tile += counts[other] / PRODUCT_ROWS;"
        => "experts of", check_some_experts;

    a_unit_that_begins_where_the_last_did: "experts.cu",
        "to[1] = tile + first / PRODUCT_ROWS;",
        "to[1] = tile;"
        => "experts of", check_some_experts;

    tiles_of_rows_that_are_left_out: "multiply.cuh",
        "(x.rows + PRODUCT_ROWS - 1) / PRODUCT_ROWS",
        "x.rows / PRODUCT_ROWS"
        => "experts of", check_some_experts;
}

faults! { DRAWS: Sources::default, ["matmul.cu", "draw.cu"], "-O0";
    a_missing_barrier_before_masses_are_added_up: "draw.cu",
        "room.list.masses[threadIdx.x] = own_mass;\n  __syncthreads();",
        "room.list.masses[threadIdx.x] = own_mass;"
        => "sample of a vocabulary", |make| conformance::check_sample(&|| AnyBackend::new(make()));

    a_digit_that_is_passed_too_late: "draw.cu",
        "wanted = left + 1;",
        "wanted = 1;"
        => "sample of a vocabulary", |make| conformance::check_sample(&|| AnyBackend::new(make()));
}
