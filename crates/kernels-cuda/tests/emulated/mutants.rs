//! Faults planted in the kernels: each must be seen by a check of the suite, or what proves the kernels proves nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};

use hanzo_engine_cuda_emulator::{Emulated, Sources};
use hanzo_engine_kernels::conformance::{self, briefly};
use hanzo_engine_kernels_cuda::CudaBackend;

type Make<'a> = &'a dyn Fn() -> CudaBackend<Emulated>;

/// A check of what is in `file` must fail, with these words, where it or what it includes has other words instead of its own.
fn must_fail(file: &str, own: &str, instead: &str, words: &str, check: impl Fn(Make<'_>)) {
    let kernels: &[&str] = match file {
        "prelude.cuh" => &["norm.cu"],
        "attention.cu" => &["attention.cu", "heads.cu"],
        "product.cu" => &["matmul.cu", "product.cu"],
        "draw.cu" => &["matmul.cu", "draw.cu"],
        _ => &[file],
    };
    let device = Emulated::of(&Sources::default().with(file, own, instead).only(kernels));
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
    let own = "weights[lane] = weight;\n  __syncwarp();";
    must_fail("attention.cu", own, "weights[lane] = weight;", "latent attention", |make| {
        conformance::check_latent_attention(&make);
    });
}

#[test]
fn a_barrier_that_not_all_reach() {
    let own = "if (row >= p.batch.counts[COUNT_ROWS]) return;\n  const size_t at";
    let instead =
        "if (threadIdx.x % 32 == 5 || row >= p.batch.counts[COUNT_ROWS]) return;\n  const size_t at";
    must_fail("norm.cu", own, instead, "wait for each other", |make| conformance::check_rms_norm(&make));
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
    must_fail("product.cu", own, "= sums[t][i];", "matmul of F16", |make| conformance::check_matmul(&make));
}

#[test]
fn a_piece_that_is_not_what_is_left() {
    let own = "const float rest = value - dev::from_half(first[j]);";
    let instead = "const float rest = 0.0f * value;";
    must_fail("product.cu", own, instead, "matmul of F16", |make| conformance::check_matmul(&make));
}

#[test]
fn keys_cut_where_the_row_begins_to_see() {
    // Blocks of keys from the window's first key on: sums in another order for each row, in chunks or whole all the same, but
    // wrong where a block is not whole.
    let own = "% WARPS) % WARPS) * 32; block < end;";
    let instead = "% WARPS) % WARPS) * 32 + 1; block < end;";
    must_fail("attention.cu", own, instead, "latent attention", |make| {
        conformance::check_latent_attention(&make)
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
