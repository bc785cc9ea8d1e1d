//! Faults planted in the kernels: each must be seen by a check of the suite, or what proves the kernels proves nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};

use hanzo_engine_cuda_emulator::{Emulated, Sources};
use hanzo_engine_kernels::DType;
use hanzo_engine_kernels::conformance::{self, briefly};
use hanzo_engine_kernels_cuda::CudaBackend;

use crate::attention::{check_runs, check_shared_rows, check_shared_rows_by_turns};
use crate::experts::check_some_experts;
use crate::few_bits::check_types;
use crate::fused::{check_fused_layers, check_wide_layers};
use crate::products::check_products;

type Make<'a> = &'a dyn Fn() -> CudaBackend<Emulated>;

/// A check of what is in `file` must fail, with these words, where it or what it includes has other words instead of its own.
fn must_fail(file: &str, own: &str, instead: &str, words: &str, check: impl Fn(Make<'_>)) {
    let kernels: &[&str] = match file {
        _ if words.starts_with("layers") => {
            &["norm.cu", "matmul.cu", "product.cu", "heads.cu", "attention.cu", "attention_tiles.cu"]
        }
        "prelude.cuh" | "norm.cuh" => &["norm.cu"],
        "attention.cu" | "attention_tiles.cu" | "queries.cuh" => {
            &["attention.cu", "attention_tiles.cu", "heads.cu"]
        }
        "multiply.cuh" if words.starts_with("experts") => &["matmul.cu", "experts.cu"],
        "multiply.cuh" | "pieces.cuh" | "few_bits.cuh" => &["matmul.cu", "product.cu"],
        "product.cuh" => &["product.cu"],
        "experts.cu" => &["matmul.cu", "experts.cu"],
        "draw.cu" => &["matmul.cu", "draw.cu"],
        _ => &[file],
    };
    // What is run once is compiled in less time than it is made fast in, but for what runs long.
    let runs_long = file == "attention.cu" || words.starts_with("layers");
    let flag = if runs_long { "-O1" } else { "-O0" };
    let sources = Sources::default().with(file, own, instead).only(kernels).with_flag(flag);
    let device = Emulated::of(&sources);
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

#[test]
fn a_missing_barrier_of_a_block() {
    // One warp adds up what the others have not brought yet.
    let own = "room[threadIdx.x / 32] = value;\n  __syncthreads();";
    must_fail("prelude.cuh", own, "room[threadIdx.x / 32] = value;", "rms_norm", |make| {
        conformance::check_rms_norm(&make);
    });
}

#[test]
fn a_missing_barrier_before_memory_is_used_again() {
    // The second sum of a layer norm is written while another warp still reads the first.
    let own = "value = dev::warp_sum(value);\n  __syncthreads();";
    must_fail("prelude.cuh", own, "value = dev::warp_sum(value);", "layer_norm", |make| {
        conformance::check_layer_norm(&make);
    });
}

#[test]
fn a_missing_barrier_of_a_warp() {
    let own = "weights[32 * h + lane] = weight;\n    }\n    __syncwarp();";
    let instead = "weights[32 * h + lane] = weight;\n    }";
    must_fail("attention.cu", own, instead, "latent attention", |make| {
        conformance::check_latent_attention(&make);
    });
}

#[test]
fn a_missing_barrier_before_warps_are_brought_together() {
    let own = "weights, slots, start, last, sums);\n    __syncthreads();";
    let instead = "weights, slots, start, last, sums);";
    must_fail("attention.cu", own, instead, "attention of", check_shared_rows);
}

#[test]
fn a_missing_barrier_before_the_next_span() {
    // A warp's sums are written over while another still folds the last ones: only where a block has several spans.
    let own = "    __syncthreads();\n  }\n  if (p.parts) return;";
    must_fail("attention.cu", own, "  }\n  if (p.parts) return;", "attention of", check_shared_rows);
}

#[test]
fn spans_that_are_folded_backwards() {
    // The right numbers, but for rounding: not the bits of one block.
    let own = "parts + span * (p.value_dim + 2)";
    let instead = "parts + (spans - 1 - span) * (p.value_dim + 2)";
    must_fail("attention.cu", own, instead, "has not the bits of", check_shared_rows);
}

#[test]
fn rows_of_another_turn() {
    let written = |row| {
        format!(
            "p.out + (size_t){row} * p.out_stride + head * p.value_dim;\n  for (uint32_t i = threadIdx.x; i < p.value_dim; i += THREADS) out[i] = joined"
        )
    };
    let (own, instead) = (written("row"), written("blockIdx.x"));
    must_fail("attention.cu", &own, &instead, "rows that take turns", |make| {
        check_shared_rows_by_turns(&|| make().without_fusion());
    });
}

#[test]
fn spans_of_a_tile_that_are_folded_backwards() {
    let (own, instead) = ("parts + span * (dim + 2)", "parts + (spans - 1 - span) * (dim + 2)");
    must_fail("attention_tiles.cu", own, instead, "has not the bits of", check_shared_rows);
}

#[test]
fn a_missing_barrier_before_maxima_are_compared() {
    let own = "+ lane / 4] = largest[h];\n    }\n    __syncthreads();";
    let instead = "+ lane / 4] = largest[h];\n    }";
    must_fail("attention_tiles.cu", own, instead, "attention of", check_shared_rows);
}

#[test]
fn keys_and_values_that_are_not_waited_for() {
    let own = "dev::wait_for_all_but<STAGES - 2>();";
    let instead = "dev::wait_for_all_but<STAGES - 1>();";
    must_fail("attention_tiles.cu", own, instead, "attention of", check_shared_rows);
}

#[test]
fn weights_of_one_half() {
    // 11 bits of each.
    let own = "dev::multiply_16(weight[step][1], value[0][2 * step], value[0][2 * step + 1], c[eight][1]);";
    must_fail("attention_tiles.cu", own, "", "attention of", check_shared_rows);
}

#[test]
fn values_of_keys_that_nobody_sees() {
    // Memory of the cache that was never written, times no weight: behind the end of the first sequence, whose last block is the first.
    let own = "dev::store16(to, zeros);";
    let instead = "dev::bring16(to, plane + (size_t)15 * p.slot_bytes + 2 * column);";
    must_fail("attention_tiles.cu", own, instead, "attention of", check_runs);
}

#[test]
fn tiles_of_another_sequence() {
    let own = "p.batch.spans[4 * middle] / each + middle <= index";
    let instead = "p.batch.spans[4 * middle] / each + middle < index";
    must_fail("queries.cuh", own, instead, "attention of", check_runs);
}

#[test]
fn a_barrier_that_not_all_reach() {
    let own = "if (row >= p.batch.counts[COUNT_ROWS]) return;\n  const size_t at";
    let instead =
        "if (threadIdx.x % 32 == 5 || row >= p.batch.counts[COUNT_ROWS]) return;\n  const size_t at";
    must_fail("norm.cuh", own, instead, "wait for each other", |make| conformance::check_rms_norm(&make));
}

#[test]
fn an_index_off_by_one_in_the_tail() {
    let own = "return (p.weights.cols + 31) / 32 * segment / WARPS;";
    let instead = "return p.weights.cols / 32 * segment / WARPS;";
    must_fail("matmul.cu", own, instead, "matmul of F32", |make| conformance::check_matmul(&make));
}

#[test]
fn an_index_of_a_fragment() {
    let own = "const uint32_t output = output_first + o * TILE_OUTPUTS + 2 * (lane % 4) + i % 2;";
    let instead = "const uint32_t output = output_first + o * TILE_OUTPUTS + 2 * (lane % 4) + i / 2;";
    must_fail("matmul.cu", own, instead, "matmul of F32", |make| conformance::check_matmul(&make));
}

#[test]
fn a_missing_barrier_before_segments_are_added_up() {
    let own = "numbers[i];\n  __syncthreads();";
    must_fail("matmul.cu", own, "numbers[i];", "matmul of F32", |make| conformance::check_matmul(&make));
}

#[test]
fn a_missing_barrier_before_segments_of_pieces_are_added_up() {
    let own = "= sums[t][i];\n    __syncthreads();";
    must_fail("multiply.cuh", own, "= sums[t][i];", "matmul of F16", |make| conformance::check_matmul(&make));
}

#[test]
fn a_copy_that_is_not_waited_for() {
    let own = "dev::wait_for_all_but<MANY_STAGES - 2>();";
    let instead = "dev::wait_for_all_but<MANY_STAGES - 1>();";
    must_fail("multiply.cuh", own, instead, "of BF16: NaN", check_products);
}

#[test]
fn copies_of_other_warps_that_are_not_waited_for() {
    let own = "dev::wait_for_all_but<MANY_STAGES - 2>();\n      __syncthreads();";
    let instead = "dev::wait_for_all_but<MANY_STAGES - 2>();";
    must_fail("multiply.cuh", own, instead, "of BF16: NaN", check_products);
}

#[test]
fn a_piece_that_is_not_what_is_left() {
    let own = "{a - dev::from_half(first[0]), b - dev::from_half(first[1])};";
    let instead = "{0.0f * a, 0.0f * b};";
    must_fail("pieces.cuh", own, instead, "matmul of F16", |make| conformance::check_matmul(&make));
}

#[test]
fn a_sign_that_is_not_stored() {
    let own = "minus = even_signs(codes >> 9);";
    must_fail("few_bits.cuh", own, "minus = codes >> 9;", "of [IQ2_XS]", |make| {
        check_types(make, &[DType::IQ2_XS]);
    });
}

#[test]
fn a_float_of_seven_bits() {
    must_fail("product.cuh", "codes >> 1 & 0x3f803f80u", "codes >> 1 & 0x3f003f00u", "of [FP8]", |make| {
        check_types(make, &[DType::FP8]);
    });
}

#[test]
fn a_missing_barrier_before_a_normed_row_is_cut() {
    let own = "whole[p.width + threadIdx.x] = 0.0f;\n  __syncthreads();";
    let instead = "whole[p.width + threadIdx.x] = 0.0f;";
    must_fail("norm.cuh", own, instead, "layers of", check_fused_layers);
}

#[test]
fn a_norm_before_the_last_block_has_written() {
    let own = "dev::is_last_of(then.arrived, gridDim.x);";
    must_fail(
        "product.cu",
        own,
        "dev::is_last_of(then.arrived, gridDim.x - 1);",
        "layers of",
        check_wide_layers,
    );
}

#[test]
fn a_head_before_its_last_tile() {
    let own = "tiles = then.of.heads.head_dim / PRODUCT_OUTPUTS;";
    let instead = "tiles = then.of.heads.head_dim / PRODUCT_OUTPUTS - 1;";
    must_fail("product.cu", own, instead, "layers of", check_wide_layers);
}

#[test]
fn halves_before_their_last_tile() {
    let own = "tiles = 2 * (left < BLOCK_COLS ? left : BLOCK_COLS) / PRODUCT_OUTPUTS;";
    let instead = "tiles = 2 * (left < BLOCK_COLS ? left : BLOCK_COLS) / PRODUCT_OUTPUTS - 1;";
    must_fail("product.cu", own, instead, "layers of", check_wide_layers);
}

#[test]
fn a_missing_barrier_before_pairs_are_counted_together() {
    let own = "own[expert]++; });\n  __syncthreads();";
    must_fail("experts.cu", own, "own[expert]++; });", "experts of", check_some_experts);
}

#[test]
fn tiles_of_two_experts() {
    let own = "tile += (counts[other] + PRODUCT_ROWS - 1) / PRODUCT_ROWS;";
    must_fail("experts.cu", own, "tile += counts[other] / PRODUCT_ROWS;", "experts of", check_some_experts);
}

#[test]
fn a_unit_that_begins_where_the_last_did() {
    let own = "to[1] = tile + first / PRODUCT_ROWS;";
    must_fail("experts.cu", own, "to[1] = tile;", "experts of", check_some_experts);
}

#[test]
fn tiles_of_rows_that_are_left_out() {
    let own = "tiles = (x.rows + PRODUCT_ROWS - 1) / PRODUCT_ROWS;\n  const auto bring";
    let instead = "tiles = x.rows / PRODUCT_ROWS;\n  const auto bring";
    must_fail("multiply.cuh", own, instead, "experts of", check_some_experts);
}

#[test]
fn keys_cut_one_too_late() {
    // Sums in the same order for each row, in chunks or whole all the same, but without the first key.
    let own = "const uint32_t block = SPAN * span + 32 * warp, key";
    let instead = "const uint32_t block = SPAN * span + 32 * warp + 1, key";
    must_fail("attention.cu", own, instead, "latent attention", |make| {
        conformance::check_latent_attention(&make);
    });
}

#[test]
fn a_missing_barrier_before_masses_are_added_up() {
    let own = "room.list.masses[threadIdx.x] = own_mass;\n  __syncthreads();";
    let instead = "room.list.masses[threadIdx.x] = own_mass;";
    must_fail("draw.cu", own, instead, "sample of a vocabulary", |make| conformance::check_sample(&make));
}

#[test]
fn a_digit_that_is_passed_too_late() {
    let own = "wanted = left + 1;";
    must_fail("draw.cu", own, "wanted = 1;", "sample of a vocabulary", |make| {
        conformance::check_sample(&make);
    });
}
