//! Build script of the three programs: has the linker make those of a release smaller, where it can.
//!
//! `--icf=all` keeps functions with the same instructions once. Nothing here compares addresses of functions. A linker without the
//! flag is found by linking and running a program that does nothing. Packed relocations would save 3 MB more, but need glibc 2.36,
//! and Ubuntu 22.04 has 2.35.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

const FOLD: &str = "-Wl,--icf=all";

fn main() {
    println!("cargo:rerun-if-changed=../process/link/build.rs");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|is| is == value);
    // Only what can be run here can be tried.
    if !is("PROFILE", "release")
        || !is("CARGO_CFG_TARGET_OS", "linux")
        || env::var("TARGET") != env::var("HOST")
    {
        return;
    }
    if works(FOLD) {
        println!("cargo:rustc-link-arg-bins={FOLD}");
    }
}

/// Whether a program that was linked with this flag starts.
fn works(flag: &str) -> bool {
    let out = env::var("OUT_DIR").unwrap_or_default();
    let (source, program) = (Path::new(&out).join("trial.rs"), Path::new(&out).join("trial"));
    if fs::write(&source, "fn main() {}").is_err() {
        return false;
    }
    let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.arg(&source).arg("-o").arg(&program);
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        rustc.arg("-C").arg(format!("linker={}", linker.to_string_lossy()));
    }
    let given = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    rustc.args(given.split('\x1f').filter(|flag| !flag.is_empty()));
    rustc.arg(format!("-Clink-arg={flag}"));
    let linked = rustc.output().is_ok_and(|output| output.status.success());
    linked && Command::new(&program).status().is_ok_and(|status| status.success())
}
