//! Tests of the kernels under the compiler's sanitizers, each in a separate process that preloads the sanitizer's
//! library: threads of a block without a needed barrier (ThreadSanitizer, for which each fiber is a thread, whatever
//! the order), and accesses past the requested shared memory (AddressSanitizer). Planted faults must be found.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::Command;

use hanzo_engine_cuda_emulator::{EmulatedDevice, Sources};
use hanzo_engine_kernels_cuda::CudaBackend;
use hanzo_engine_ops::AnyBackend;
use hanzo_engine_ops::conformance::{self, briefly};

use crate::again::{ended, is_again};
use crate::attention::run_some_attention;
use crate::experts::run_some_experts;
use crate::fused::run_wide_layers;
use crate::products::of_floats;

type Make<'a> = &'a dyn Fn() -> CudaBackend<EmulatedDevice>;

/// A sanitizer: its compiler flag and its library.
struct Sanitizer {
    flag: &'static str,
    library: &'static str,
    options: (&'static str, &'static str),
    /// Words of its report.
    words: &'static str,
}

const THREADS: Sanitizer = Sanitizer {
    flag: "-fsanitize=thread",
    library: "libtsan.so",
    options: ("TSAN_OPTIONS", "halt_on_error=1 exitcode=66 history_size=0 ignore_noninstrumented_modules=1"),
    words: "WARNING: ThreadSanitizer: data race",
};
const ADDRESSES: Sanitizer = Sanitizer {
    flag: "-fsanitize=address",
    library: "libasan.so",
    options: ("ASAN_OPTIONS", "detect_leaks=0"),
    words: "ERROR: AddressSanitizer: heap-buffer-overflow",
};

/// Reports it even if the output of passing tests is hidden.
fn not_run(test: &str, why: &str) -> Option<(bool, String)> {
    writeln!(io::stderr(), "NOT RUN {test}: {why}").expect("standard error is open");
    None
}

impl Sanitizer {
    /// Path of its library; none if the compiler has no library of that name, like clang, which has another.
    fn path(&self) -> Option<String> {
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
        let says = |argument: &str| {
            let told = Command::new(&compiler).arg(argument).output().ok()?;
            String::from_utf8(told.stdout).ok()
        };
        let path = says(&format!("-print-file-name={}", self.library))?.trim().to_owned();
        (Path::new(&path).is_absolute() && !says("--version")?.contains("clang")).then_some(path)
    }

    /// Runs the checks of `test` with these kernels under the sanitizer. Returns whether all succeeded, and the
    /// output.
    fn watch(&self, test: &str, sources: Sources, check: impl Fn(Make<'_>)) -> Option<(bool, String)> {
        let sources = [self.flag, "-O0", "-g1"].into_iter().fold(sources, Sources::with_flag);
        if is_again() {
            let device = EmulatedDevice::of(&sources);
            briefly(|| check(&|| CudaBackend::new(device.clone())));
            return None;
        }
        let Some(path) = self.path() else {
            return not_run(test, &format!("the C++ compiler has no {}; g++ has", self.library));
        };
        // Compiled here, where the compiler does not run under the sanitizer.
        sources.compile();
        let (success, said) = ended(test, &[("LD_PRELOAD", &path), self.options]);
        // Older versions do not know the memory layout of newer systems.
        if said.contains("ThreadSanitizer: unexpected memory mapping") {
            return not_run(
                test,
                "memory lies where this ThreadSanitizer cannot have it; sysctl vm.mmap_rnd_bits=28",
            );
        }
        Some((success, said))
    }

    fn sees_nothing(&self, test: &str, sources: Sources, check: impl Fn(Make<'_>)) {
        if let Some((success, said)) = self.watch(test, sources, check) {
            assert!(success && said.contains("1 passed"), "{test} has not passed:\n{said}");
        }
    }

    fn sees(&self, test: &str, sources: Sources, check: impl Fn(Make<'_>)) {
        if let Some((success, said)) = self.watch(test, sources, check) {
            assert!(!success && said.contains(self.words), "{test}: it was not seen:\n{said}");
        }
    }
}

#[test]
fn threads_of_norms_wait_for_each_other() {
    THREADS.sees_nothing(
        "watched::threads_of_norms_wait_for_each_other",
        Sources::default().only(&["norm.cu"]),
        |make| {
            conformance::check_rms_norm(&|| AnyBackend::new(make()));
            conformance::check_layer_norm(&|| AnyBackend::new(make()));
        },
    );
}

#[test]
fn threads_of_attention_wait_for_each_other() {
    let kernels = Sources::default().only(&["attention.cu", "attention_tiles.cu", "heads.cu"]);
    THREADS.sees_nothing("watched::threads_of_attention_wait_for_each_other", kernels, run_some_attention);
}

#[test]
fn threads_of_experts_wait_for_each_other() {
    let kernels = Sources::default().only(&["matmul.cu", "experts.cu"]);
    THREADS.sees_nothing("watched::threads_of_experts_wait_for_each_other", kernels, run_some_experts);
}

#[test]
fn blocks_wait_for_what_others_have_written() {
    let kernels = of_floats(Sources::default()).only(&["norm.cu", "product.cu", "attention_tiles.cu"]);
    THREADS.sees_nothing("watched::blocks_wait_for_what_others_have_written", kernels, run_wide_layers);
}

#[test]
fn a_block_that_is_counted_too_early_is_a_race() {
    let own = "__syncthreads();\n  if (then.what == THEN_NORM)";
    let sources = Sources::default().with("product.cu", own, "if (then.what == THEN_NORM)");
    let test = "watched::a_block_that_is_counted_too_early_is_a_race";
    THREADS.sees(
        test,
        of_floats(sources).only(&["norm.cu", "product.cu", "attention_tiles.cu"]),
        run_wide_layers,
    );
}

#[test]
fn a_missing_barrier_is_a_race() {
    let own = "room[threadIdx.x / 32] = value;\n  __syncthreads();";
    let sources = Sources::default().with("prelude.cuh", own, "room[threadIdx.x / 32] = value;");
    THREADS.sees("watched::a_missing_barrier_is_a_race", sources.only(&["norm.cu"]), |make| {
        conformance::check_rms_norm(&|| AnyBackend::new(make()));
    });
}

#[test]
fn shared_memory_is_as_large_as_it_is_used() {
    let kernels = ["attention.cu", "attention_tiles.cu", "heads.cu", "norm.cu", "matmul.cu", "experts.cu"];
    let sources = Sources::default().only(&kernels);
    ADDRESSES.sees_nothing("watched::shared_memory_is_as_large_as_it_is_used", sources, |make| {
        run_some_attention(&make);
        conformance::check_rms_norm(&|| AnyBackend::new(make()));
        run_some_experts(&make);
    });
}

#[test]
fn a_place_behind_shared_memory_is_seen() {
    let own = "room[threadIdx.x / 32] = value;";
    let sources = Sources::default().with("prelude.cuh", own, "room[threadIdx.x / 32 + 1] = value;");
    ADDRESSES.sees("watched::a_place_behind_shared_memory_is_seen", sources.only(&["norm.cu"]), |make| {
        conformance::check_rms_norm(&|| AnyBackend::new(make()));
    });
}
