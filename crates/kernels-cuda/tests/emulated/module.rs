//! Tests of the committed PTX modules: made from these sources, with every kernel, and within the limits of GPUs.

use std::fmt::Write as _;

use hanzo_engine_kernels_cuda::driver::{hopper_ptx, ptx};
use hanzo_engine_kernels_cuda::{Kernel, SOURCES};
use sha2::{Digest as _, Sha256};

const MAKE: &str = include_str!("../../ptx/make");
const EARLY: &str = include_str!("../../ptx/early.py");
const RESOURCES: &str = include_str!("../../ptx/resources.txt");

#[test]
fn the_modules_are_of_these_sources() {
    let mut hasher = Sha256::new();
    // In the order of `cat cuda/*.cu cuda/*.cuh`.
    for ending in [".cu", ".cuh"] {
        let mut files: Vec<_> = SOURCES.iter().filter(|(name, _)| name.ends_with(ending)).collect();
        files.sort();
        files.iter().for_each(|(_, text)| hasher.update(text));
    }
    hasher.update(MAKE);
    hasher.update(EARLY);
    let digest = hasher.finalize().iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    for ptx in [ptx(), hopper_ptx()] {
        let ptx = String::from_utf8(ptx).unwrap();
        let first = ptx.lines().next().unwrap_or_default();
        assert_eq!(
            first,
            format!("// made by ptx/make of sources {digest}"),
            "cuda/ or ptx/make was changed: run crates/kernels-cuda/ptx/make, which says what it needs"
        );
    }
}

#[test]
fn the_modules_have_every_kernel() {
    let [general, hopper] = [ptx(), hopper_ptx()].map(|ptx| String::from_utf8(ptx).unwrap());
    for kernel in Kernel::ALL {
        let ptx = if kernel.is_wide() { &hopper } else { &general };
        let (symbol, bytes) = (kernel.symbol(), kernel.params_bytes());
        let entry = format!(".visible .entry {symbol}(\n.param .align 8 .b8 {symbol}_param_0[{bytes}]\n)");
        assert!(ptx.contains(&entry), "the module lacks {entry}");
    }
    let entries = [general, hopper].map(|ptx| ptx.matches(".visible .entry ").count());
    assert_eq!(entries.iter().sum::<usize>(), Kernel::ALL.len());
}

/// Checks that the committed table has every kernel for each architecture, and that nothing is spilled.
#[test]
fn no_kernel_spills() {
    for arch in ["sm_80", "sm_90a", "sm_120a"] {
        for kernel in Kernel::ALL.iter().filter(|kernel| arch == "sm_90a" || !kernel.is_wide()) {
            let row = |line: &&str| {
                let mut words = line.split_whitespace();
                words.next() == Some(arch) && words.next() == Some(kernel.symbol())
            };
            let line = RESOURCES.lines().find(row);
            let line = line.unwrap_or_else(|| panic!("resources.txt has no {} on {arch}", kernel.symbol()));
            assert!(line.contains(" 0 bytes spilled"), "{line}");
        }
    }
    let wide = Kernel::ALL.iter().filter(|kernel| kernel.is_wide()).count();
    assert_eq!(RESOURCES.lines().count(), 3 * Kernel::ALL.len() - 2 * wide);
}
